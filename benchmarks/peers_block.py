"""What one engine is asked at one size, always in the same order, and the figures that it gives."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_engines.engine import Engine, Running, Said
from benchmarks.peer_engines.weights import Weights

FORKS = 6
AT_ONCE = 6
OUTPUT = 8
DECODED = 64
SPARE = 1024
"""Tokens of context beyond the template: every fork's turns and replies."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One block of one engine. Seconds, and tokens a second. None: this engine has no such thing.

    reused_*: tokens that the engine says it did not compute, of `tokens`. after_stranger: a fork when another template
    of this size has come between. new_process: the first fork in a new process, with what brings its cache back.
    """

    engine: str
    tokens: int
    cold: float
    cold_again: float
    prefill_rate: float
    decode_rate: float
    first_fork: float | None = None
    forks: tuple[float, ...] = ()
    reused_forks: tuple[int | None, ...] = ()
    middle: float | None = None
    reused_middle: int | None = None
    middle_again: float | None = None
    at_once: float | None = None
    reused_at_once: tuple[int | None, ...] = ()
    after_stranger: float | None = None
    new_process: float | None = None
    reused_new_process: int | None = None


def fork_block(engine: Engine, weights: Weights, tokens: int, place: Path) -> Figures:
    """Cold, forks, decode, fork from the middle, six at once, a stranger between, and a new process."""
    place.mkdir(parents=True, exist_ok=True)
    text = template(weights, tokens, seed=tokens)
    half = text[:len(text) // 2]
    with engine.start(weights, tokens + SPARE, place) as running:
        _warm(running)
        base = _checked(running.cold(text, OUTPUT), tokens)
        running.save(base)  # here, because llama.cpp's file holds one sequence, and goes on only from its end
        forks = [running.fork(base, question(index), OUTPUT) for index in range(FORKS)]
        decoded = [running.fork(base, question(100 + index), DECODED).decode_rate for index in range(3)]
        middle, again = (running.cold(half + question(200 + index), OUTPUT) for index in range(2))
        together = running.together(base, [question(300 + index) for index in range(AT_ONCE)], OUTPUT)
        stranger = _checked(running.cold(template(weights, tokens, seed=tokens + 1), OUTPUT), tokens)
        after = running.fork(base, question(400), OUTPUT)
    with engine.start(weights, tokens + SPARE, place) as running:
        _warm(running)
        started = time.perf_counter()
        running.adopt(base)
        adopted = time.perf_counter() - started
        renewed = running.fork(base, question(500), OUTPUT)
    return Figures(
        engine.name, tokens, base.total_s, stranger.total_s, 2 * tokens / (base.first_s + stranger.first_s),
        sorted(decoded)[1], forks[0].total_s, tuple(fork.total_s for fork in forks[1:]),
        tuple(fork.reused for fork in forks), middle.total_s, middle.reused, again.total_s, together.makespan_s,
        together.reused, after.total_s, adopted + renewed.total_s, renewed.reused)


def speed_block(engine: Engine, weights: Weights, tokens: int, place: Path) -> Figures:
    """Prefill and decode alone."""
    place.mkdir(parents=True, exist_ok=True)
    with engine.start(weights, tokens + SPARE, place) as running:
        _warm(running)
        colds = [_checked(running.cold(template(weights, tokens, seed=tokens + turn), OUTPUT), tokens)
                 for turn in range(3)]
        decoded = [running.fork(colds[-1], question(index), DECODED).decode_rate for index in range(3)]
    firsts = sorted(said.first_s for said in colds)
    return Figures(engine.name, tokens, colds[0].total_s, colds[1].total_s, tokens / firsts[1], sorted(decoded)[1])


def template(weights: Weights, tokens: int, seed: int) -> str:
    """A text of random words whose whole prompt is exactly `tokens` long; those of two seeds differ from the start."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 7))) for _ in range(tokens)]
    low, high = 1, len(words)
    while low < high:  # the longest that fits
        middle = (low + high + 1) // 2
        fits = len(weights.prompt_tokens(" ".join(words[:middle]))) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    text = " ".join(words[:low])
    while (missing := tokens - len(weights.prompt_tokens(text))) > 0:
        text += "~!"[missing % 2]
    if missing:
        raise ValueError(f"no text of exactly {tokens} tokens for {weights.name}")
    return text


def question(index: int) -> str:
    """A turn of about thirty tokens, another one for every index."""
    return f"sibling {index}: which word of the text stands alone, and where?"


def _warm(running: Running) -> None:
    """First requests compile, allocate and calibrate; they are not timed."""
    said = running.cold("warm up before anything is timed " * 12, OUTPUT)
    running.fork(said, "and once more", OUTPUT)


def _checked(said: Said, tokens: int) -> Said:
    if said.prompt_tokens != tokens:
        raise RuntimeError(f"a template of {tokens} tokens came as {said.prompt_tokens}")
    if (said.reused or 0) > tokens // 2:
        raise RuntimeError(f"a template that nobody can know was reused for {said.reused} of {tokens} tokens")
    return said
