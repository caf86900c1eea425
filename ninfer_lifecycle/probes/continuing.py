"""sibling-continue: does a fork go on hot while its siblings live, at depth, and after its relatives were deleted?"""

from collections.abc import Sequence

from ninfer_lifecycle.client import EngineReplyError
from ninfer_lifecycle.gates.plans import DEPTH, SIBLINGS
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()
    step = section.fork_input_tokens + section.fork_output_tokens

    def fork_all(run: ProbeRun) -> None:
        base = threads.named["base"] = begin(run, "sibling-continue", small(section), section.base_output_tokens)
        for number in range(SIBLINGS):
            child = threads.named[str(number)] = base.fork()
            child.turns = number * 100
            turn(run, child, "sibling_continue.fork", section, expected=small(section), kind="sibling")

    def go_on(run: ProbeRun) -> None:
        for number in range(SIBLINGS):
            turn(run, threads.get(str(number)), "sibling_continue.alive", section)

    def go_deep(run: ProbeRun) -> None:
        for _ in range(DEPTH):
            turn(run, threads.get("0"), "sibling_continue.deep", section)

    def without_parent(run: ProbeRun) -> None:
        base = threads.get("base")
        delete(run, base)
        turn(run, threads.get("1"), "sibling_continue.after_parent_deleted", section)
        run.fact("sibling_continue.deleted_parent_is_gone", status_of_continuing(run, base), "equal", 404,
                 "HTTP status of continuing a deleted response")

    def without_sibling(run: ProbeRun) -> None:
        delete(run, threads.get("1"))
        turn(run, threads.get("2"), "sibling_continue.after_sibling_deleted", section)
        turn(run, threads.get("0"), "sibling_continue.after_sibling_deleted", section)

    return (Act("fork the siblings", small(section) + SIBLINGS * step, fork_all),
            Act("continue each sibling", SIBLINGS * step, go_on),
            Act("continue one at depth", DEPTH * step, go_deep),
            Act("delete the parent", step, without_parent),
            Act("delete a sibling", 2 * step, without_sibling))


def delete(run: ProbeRun, thread: Thread) -> None:
    """Delete the last response of a conversation."""
    with run.waiting():
        run.client.delete_response(thread.response_id or "", thread.session)


def status_of_continuing(run: ProbeRun, thread: Thread, session: str | None = None) -> int:
    """The HTTP status of continuing a response, asked as `session` (default: its own). 200 when it was continued."""
    asked_as = session or thread.session
    body = {"model": run.model, "input": "Go on.", "previous_response_id": thread.response_id, "temperature": 0,
            "max_output_tokens": 1, "store": False, "ninfer_session": asked_as}
    try:
        with run.waiting():
            run.client.create_response(body, asked_as)
    except EngineReplyError as error:
        run.refresh()
        return error.status
    run.refresh()
    return 200


SIBLING_CONTINUE = Part(
    "sibling-continue", "Do forks go on hot while siblings live, at depth, and after deletes of parent and sibling?",
    _steps)
