"""multi-session: sessions in rotation, so many that they fit the device, that they fit memory, or more than fit it.

How many that is follows from the capacities in the status document. A conversation that goes on deletes the response
that it went on from, so that each holds one entry and one image, and the ledger is exact: where memory holds them all,
each turn resumes at the end of the one before. Where it does not, the store does: a turn then reuses what was saved,
but for what is computed again sooner than the engine predicts to read it back.
"""

from collections.abc import Sequence

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.gates.plans import DEVICE_TURNS, DISK_TURNS, ROUNDS, SESSIONS
from ninfer_lifecycle.gates.stats import median
from ninfer_lifecycle.gates.tally import reported_reuse
from ninfer_lifecycle.probes.continuing import delete
from ninfer_lifecycle.probes.parts import END_SLACK, Act, Part, PutAway, Thread, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError
from ninfer_lifecycle.profiles.schema import ProbeSection

SMALLEST = 200
MORE_THAN_FIT = 3
MOST_ON_DISK = 40


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    size = max(SMALLEST, small(section) // 2)
    step = section.fork_input_tokens + section.fork_output_tokens

    def on_device(run: ProbeRun) -> None:
        sessions = max(1, min(DEVICE_TURNS, room_on_device(run.status)))
        threads = [begin(run, f"multi-session/device/{number}", size, section.base_output_tokens)
                   for number in range(sessions)]
        for _ in range(-(-DEVICE_TURNS // sessions)):
            for thread in threads:
                _go_on(run, thread, "multi_session.on_device", section)

    def in_memory(run: ProbeRun) -> None:
        sessions = max(1, min(SESSIONS, room_in_memory(run.status)))
        threads = [begin(run, f"multi-session/{number}", size, section.base_output_tokens)
                   for number in range(sessions)]
        for _ in range(-(-SESSIONS * ROUNDS // sessions)):
            for thread in threads:
                _go_on(run, thread, "multi_session.turn", section)

    def from_disk(run: ProbeRun) -> None:
        sessions = max(DISK_TURNS, room_in_memory(run.status) + MORE_THAN_FIT)
        if sessions > MOST_ON_DISK:
            raise SkipStepError(f"it takes {sessions} sessions to fill this engine's memory, more than {MOST_ON_DISK}")
        threads, cold_us = [], []
        for number in range(sessions):
            threads.append(begin(run, f"multi-session/disk/{number}", size, section.base_output_tokens))
            cold_us.append(run.journal.requests[-1].wall_us or 0)
        for thread in threads:
            with run.waiting():
                run.client.save(thread.session)
        token_ns = median(cold_us) * 1000 // size
        for thread in threads:
            _turn_from_disk(run, thread, section, token_ns)

    return (Act("sessions that fit the device", DEVICE_TURNS * (size + step), on_device),
            PutAway("sessions that fit the device"),
            Act("sessions that fit memory", SESSIONS * (size + ROUNDS * step), in_memory),
            PutAway("sessions that fit memory"),
            Act("more sessions than fit memory", 2 * SESSIONS * (size + step), from_disk))


def room_on_device(status: StatusDocument) -> int:
    """Conversations whose last image can lie on the device: slots but for those of running sequences and of what they
    are about to store.
    """
    cache, running = status.cache, status.scheduler.max_concurrency
    return min(cache.private_catalog.capacity - running, cache.device_state.capacity - 2 * running)


def room_in_memory(status: StatusDocument) -> int:
    """Conversations that memory can hold, by catalog entries and by images on both tiers; a running sequence needs an
    entry for its reply, its working slot, and two images on their way (before its reply, and at its end).
    """
    cache, running = status.cache, status.scheduler.max_concurrency
    return min(cache.private_catalog.capacity - running,
               cache.device_state.capacity + cache.host_state.capacity - 3 * running)


def _go_on(run: ProbeRun, thread: Thread, claim: str, section: ProbeSection) -> None:
    parent = thread.fork()
    turn(run, thread, claim, section)
    if thread.response_id != parent.response_id:
        delete(run, parent)


def _turn_from_disk(run: ProbeRun, thread: Thread, section: ProbeSection, token_ns: int) -> None:
    """token_ns: what computing a token takes here, prefilled cold."""
    expected = thread.end_tokens - END_SLACK
    # Judged as a fact: what the cost model may compute instead of reading it back is no lost reuse.
    record = turn(run, thread, "multi_session.disk_turn", section)
    missing = _missing(record, expected)
    restore = run.status.restore
    # A tier must pay: reading back what takes longer than computing what is missing would be the fault.
    computing_ns = restore.predicted_recompute_ns if restore.decision == "recompute" else (missing or 0) * token_ns
    chosen = bool(missing) and 0 < computing_ns <= restore.predicted_restore_ns
    run.fact("multi_session.from_disk", 0 if chosen else missing, "at_most", 0,
             record.error or f"tokens lost of what the store held; {missing} computed again in about {computing_ns} "
             f"ns, predicted to be read back in {restore.predicted_restore_ns} ns", [record.request_id])


def _missing(record: RequestEvidence, expected: int) -> int | None:
    reused = reported_reuse(record)
    return None if reused is None else max(0, expected - reused)


MULTI_SESSION = Part(
    "multi-session", "Does each turn of sessions in rotation reuse all that came before, from device, memory and disk?",
    _steps)
