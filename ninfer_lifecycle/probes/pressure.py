"""pressure and multi-session: does reuse survive strangers that fill every catalog, and sessions in rotation?"""

from collections.abc import Sequence

from ninfer_lifecycle.gates.plans import NEWCOMER_TURNS, ROUNDS, SESSIONS, STRANGERS
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection

SMALLEST = 200


def _pressure_steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()
    size = small(section)

    def fork(run: ProbeRun, purpose: str, key: str = "base") -> None:
        child = threads.get(key).fork()
        child.turns = threads.get(key).turns = threads.get(key).turns + 1
        # Under pressure the end of the template will do: one token short of it, since the last one must be computed.
        turn(run, child, purpose, section, expected=size - 1, kind="fork")

    def start(run: ProbeRun) -> None:
        threads.named["base"] = begin(run, "pressure", size, section.base_output_tokens)
        fork(run, "pressure.fork_between_strangers")

    def strangers(run: ProbeRun) -> None:
        # Together at most half of the KV capacity: then nothing needs to be lost, and a miss has no excuse.
        room = run.status.runtime.kv_capacity_tokens // (2 * STRANGERS)
        for number in range(STRANGERS):
            tokens = max(SMALLEST, min(room, size * (number + 2) // 4))
            begin(run, f"pressure/stranger/{number}", tokens, section.base_output_tokens)
            fork(run, "pressure.fork_between_strangers")

    def recover(run: ProbeRun) -> None:
        threads.named["late"] = begin(run, "pressure/late", size, section.base_output_tokens)
        for _ in range(section.forks):
            fork(run, "pressure.reuse_after_full_catalogs", "late")

    def newcomer(run: ProbeRun) -> None:
        # The smallest conversation of all, and the one that someone is in: it must not lose to large ones left behind.
        thread = begin(run, "pressure/newcomer", SMALLEST, section.base_output_tokens)
        for _ in range(NEWCOMER_TURNS):
            turn(run, thread, "pressure.newcomer_after_full_catalogs", section)

    step = section.fork_input_tokens + section.fork_output_tokens
    return (Act("base and first fork", size + step, start),
            Act("strangers of growing size, a fork after each", STRANGERS * (2 * size + step), strangers),
            Act("a new template afterwards", size + section.forks * step, recover),
            Act("a small newcomer afterwards", SMALLEST + NEWCOMER_TURNS * step, newcomer))


def _rotation_steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads: list[Thread] = []
    size = max(SMALLEST, small(section) // 2)
    step = section.fork_input_tokens + section.fork_output_tokens

    def start(run: ProbeRun) -> None:
        threads.extend(begin(run, f"multi-session/{number}", size, section.base_output_tokens)
                       for number in range(SESSIONS))

    def rotate(run: ProbeRun) -> None:
        for thread in threads:
            turn(run, thread, "multi_session.turn", section)

    return (Act(f"begin {SESSIONS} sessions", SESSIONS * size, start),
            *(Act(f"round {number + 1} over the sessions", SESSIONS * step, rotate) for number in range(ROUNDS)))


PRESSURE = Part(
    "pressure", "Do forks stay hot between growing strangers, and does reuse come back after every catalog was full?",
    _pressure_steps)
MULTI_SESSION = Part("multi-session", "Does each turn of sessions in rotation reuse all that came before it?",
                     _rotation_steps)
