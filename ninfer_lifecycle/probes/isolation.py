"""isolation: can one session see, continue or delete what belongs to another, or reuse across salts?"""

from collections.abc import Callable, Sequence

from ninfer_lifecycle.client import EngineReplyError
from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.probes.continuing import status_of_continuing
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.parts import Act, Part, Threads, advance, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template
from ninfer_lifecycle.profiles.schema import ProbeSection

SHARED_HEAD = 64
"""Tokens that any two prompts may share: the chat template before the user's first word."""


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()

    def foreigners(run: ProbeRun) -> None:
        mine = threads.named["mine"] = begin(run, "isolation", small(section), section.base_output_tokens)
        stranger, client, wanted = run.effects.token_hex(32), run.client, mine.response_id or ""
        run.fact("isolation.continue", status_of_continuing(run, mine, stranger), "equal", 404,
                 "HTTP status of continuing another session's response")
        run.fact("isolation.read", _status(run, lambda: client.get_response(wanted, stranger)), "equal", 404,
                 "HTTP status of reading another session's response")
        run.fact("isolation.delete", _status(run, lambda: client.delete_response(wanted, stranger)), "equal", 404,
                 "HTTP status of deleting another session's response")
        run.fact("isolation.still_there", _status(run, lambda: client.get_response(wanted, mine.session)), "equal",
                 200, "HTTP status of reading it as its owner afterwards")
        with run.waiting():
            state = client.checkpoint_status(stranger).state
        run.fact("isolation.checkpoint", int(state == "missing"), "equal", 1, f"a stranger's checkpoint is {state}")
        body = {"model": run.model, "input": "Go on.", "max_output_tokens": 1, "store": False,
                "ninfer_session": mine.session}
        run.fact("isolation.identity_conflict", _status(run, lambda: client.create_response(body, stranger)), "equal",
                 400, "HTTP status of a request whose body and header name different sessions")

    def salts(run: ProbeRun) -> None:
        template = exact_template(small(section), derive_nonce(run.nonce, "part/isolation/salts"), run.count,
                                  run.chars_per_token)
        for salt in ("one", "two"):
            session = run.effects.token_hex(32)
            record = run.ask(Question(Step.OTHER, template.text, session, template.tokens, section.base_output_tokens,
                                      cache_salt=derive_nonce(run.nonce, salt)))
            if salt == "two":
                run.fact("isolation.salts_share_nothing", record.cached_tokens, "at_most", SHARED_HEAD,
                         record.error or "tokens that the same text reused under another salt", [record.request_id])

    def own_still_hot(run: ProbeRun) -> None:
        record = turn(run, threads.get("mine"), "isolation.owner_is_hot", section)
        advance(threads.get("mine"), record)

    return (Act("ask as a stranger", small(section), foreigners),
            Act("the same text under two salts", 2 * small(section), salts),
            Act("go on as the owner", section.fork_input_tokens + section.fork_output_tokens, own_still_hot))


def _status(run: ProbeRun, call: Callable[[], object]) -> int:
    """200, or the HTTP status of the engine's refusal."""
    try:
        with run.waiting():
            call()
    except EngineReplyError as error:
        return error.status
    finally:
        run.refresh()
    return 200


ISOLATION = Part(
    "isolation", "Can sessions and salts see each other's responses or prefixes?", _steps)
