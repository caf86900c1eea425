"""throughput: how fast are prefill and decode by size, how much sooner is a warm first token, and against a baseline?

With a baseline the same requests go to both engines in blocks of A B B A, so that whatever drifts over the run drifts
for both. Each slot has a template of its own, the same text for both engines, that neither has seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.blocks import MIN_BLOCKS
from ninfer_lifecycle.gates.pairs import measured
from ninfer_lifecycle.gates.plans import WARM_A_SIZE
from ninfer_lifecycle.gates.stats import median
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.parts import Act, Part, Thread, advance, next_question, small
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template
from ninfer_lifecycle.profiles.schema import ProbeSection

DECODE_TOKENS = 32
NOISE_US = 20_000
"""What a shared machine may add to the time to a first token: all that a tiny model takes for a cold one."""
SIDES = ("own", "baseline", "baseline", "own")

Ask = Callable[[Question], RequestEvidence]


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    warm = section.fork_input_tokens + DECODE_TOKENS
    curve = [Act(f"curve at {size}", size + WARM_A_SIZE * warm, _curve(section, size)) for size in section.sizes]
    if section.baseline is None:
        return curve
    cost = len(SIDES) * (small(section) + 2 * warm)
    return (*curve, *(Act(f"block {number + 1} beside the baseline", cost, _block(section, number))
                      for number in range(MIN_BLOCKS)))


def _curve(section: ProbeSection, size: int) -> Callable[[ProbeRun], None]:
    def act(run: ProbeRun) -> None:
        thread, cold = _cold(run, run.ask, size, section, f"curve/{size}", purpose="throughput.cold")
        warm = [run.ask(_decoding(run, thread, section, size, "throughput.warm")) for _ in range(WARM_A_SIZE)]
        first_us, computed = measured(cold, "first_token"), cold.prompt_tokens
        run.fact("throughput.prefill_tokens_per_s",
                 computed * 1_000_000 // first_us if first_us and computed else None, "at_least", 1,
                 f"tokens a second of a cold prompt of {size}", [cold.request_id])
        speeds = [value for record in warm if (value := measured(record, "decode"))]
        run.fact("throughput.decode_tokens_per_s", 10**12 // median(speeds) if speeds else None, "at_least", 1,
                 f"tokens a second of replies on {size}, median of {len(speeds)}", [one.request_id for one in warm])
        firsts = [value for record in warm if (value := measured(record, "first_token"))]
        run.fact("throughput.warm_first_token", median(firsts) * 1_000_000 // first_us if firsts and first_us else None,
                 "at_most", 1_000_000 + NOISE_US * 1_000_000 // max(1, first_us or 1),
                 f"ppm of the time to a cold first token on {size}, {first_us} us",
                 [cold.request_id, *(one.request_id for one in warm)])

    return act


def _block(section: ProbeSection, number: int) -> Callable[[ProbeRun], None]:
    def act(run: ProbeRun) -> None:
        size = small(section)
        for slot, side in enumerate(SIDES):
            ask = _in_block(run.ask if side == "own" else run.ask_baseline, number)
            thread, _ = _cold(run, ask, size, section, f"block/{number}/{slot}", purpose="throughput.paired_cold")
            for purpose in ("throughput.paired_warm", "throughput.paired_decode"):
                ask(_decoding(run, thread, section, size, purpose))

    return act


def _in_block(ask: Ask, number: int) -> Ask:
    return lambda question: ask(replace(question, block=number))


def _cold(run: ProbeRun, ask: Ask, size: int, section: ProbeSection, key: str, purpose: str
          ) -> tuple[Thread, RequestEvidence]:
    template = exact_template(size, derive_nonce(run.nonce, f"part/throughput/{key}"), run.count, run.chars_per_token)
    run.chars_per_token = template.chars_per_token
    thread = Thread(run.effects.token_hex(32))
    record = ask(Question(Step.OTHER, template.text, thread.session, size, section.base_output_tokens,
                          purpose=purpose, streamed=True))
    advance(thread, record)
    return thread, record


def _decoding(run: ProbeRun, thread: Thread, section: ProbeSection, size: int, purpose: str) -> Question:
    question = next_question(run, thread, purpose, section, expected=size, kind="fork")
    return replace(question, streamed=True, max_output_tokens=DECODE_TOKENS)


THROUGHPUT = Part(
    "throughput", "How fast are prefill and decode by size, and how much sooner is a warm first token?", _steps)
