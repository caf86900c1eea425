"""durability: what is left of a session after a graceful stop, after a kill, and after damage to its file?"""

from collections.abc import Sequence

from ninfer_lifecycle.probes.continuing import status_of_continuing
from ninfer_lifecycle.probes.damage import fingerprint, flip_a_byte
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError
from ninfer_lifecycle.profiles.schema import ProbeSection


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()

    def start(run: ProbeRun) -> None:
        for name in ("flushed", "saved"):
            threads.named[name] = begin(run, f"durability/{name}", small(section), section.base_output_tokens)

    def stop_gracefully(run: ProbeRun) -> None:
        _require_restart(run)
        run.restart()
        run.fact("durability.graceful_stop_saves", _available(run, threads.get("flushed")), "equal", 1,
                 "whether an unsaved session is in the store after a graceful stop")
        turn(run, threads.get("flushed"), "durability.hot_after_graceful_stop", section)

    def kill(run: ProbeRun) -> None:
        _require_restart(run)
        thread = threads.get("saved")
        if turn(run, thread, "durability.before_kill", section).error is not None:
            raise SkipStepError("the session could not go on before the kill")
        with run.waiting():
            run.client.save(thread.session)
        run.restart(kill=True)
        run.fact("durability.kill_keeps_what_was_saved", _available(run, thread), "equal", 1,
                 "whether a saved session is in the store after a kill")
        turn(run, thread, "durability.hot_after_kill", section)

    def tamper(run: ProbeRun) -> None:
        _require_restart(run)
        store = run.subject.store_dir()
        if store is None:
            raise SkipStepError("the store cannot be reached from here")
        threads.named["damaged"] = begin(run, "durability/damaged", small(section), section.base_output_tokens)
        thread, before = threads.get("damaged"), fingerprint(store)
        with run.waiting():
            run.client.save(thread.session)
        if not flip_a_byte(store, before):
            raise SkipStepError("the save changed no byte of the store")
        run.restart(kill=True)
        run.fact("durability.damage_is_refused", status_of_continuing(run, thread), "equal", 404,
                 "HTTP status of continuing a session whose file has one byte changed")

    step = section.fork_input_tokens + section.fork_output_tokens
    return (Act("begin two sessions", 2 * small(section), start), Act("stop gracefully", step, stop_gracefully),
            Act("kill", step, kill), Act("change one byte in the store", small(section), tamper))


def _require_restart(run: ProbeRun) -> None:
    if not run.subject.can_restart:
        raise SkipStepError("an engine given by its address cannot be restarted from here")


def _available(run: ProbeRun, thread: Thread) -> int:
    with run.waiting():
        return int(run.client.checkpoint_status(thread.session).state == "available")


DURABILITY = Part(
    "durability", "Is a session there and hot after a graceful stop and after a kill, and is damage refused?",
    _steps)
