"""Requests that are under way at once. The work counter cannot tell them apart: none of them has a reading of it."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

from ninfer_lifecycle.evidence import RequestEvidence
from ninfer_lifecycle.probes.exchange import Answer, Place, Question, ask, require_same_life
from ninfer_lifecycle.probes.run import ProbeRun


class Send(Protocol):
    """Sends one question and waits for its answer. on_output: called at each piece of a streamed one."""

    def __call__(self, question: Question, on_output: Callable[[], None] = ...) -> RequestEvidence: ...


Loop = Callable[[Send], None]
"""Something that sends one question after another, each when the one before is answered."""


@dataclass(frozen=True, slots=True)
class Together:
    """Records in the order in which they were sent, the seconds that each loop took, and those from first to last."""

    records: tuple[RequestEvidence, ...]
    loop_s: tuple[float, ...]
    makespan_s: float


def ask_loops(run: ProbeRun, loops: Sequence[Loop]) -> Together:
    """Run every loop in a thread of its own. Raises what a loop raises, once all have ended and all is written down."""
    client, model, before, clock = run.client, run.model, run.status, run.effects.clock
    answers: list[_Sent] = []
    lock, all_there = threading.Lock(), threading.Event()

    def send(question: Question, on_output: Callable[[], None] = lambda: None) -> RequestEvidence:
        with lock:
            place = Place(run.effects.token_hex(32), run.epoch, run.next_order())
        answer = ask(client, replace(question, alone=False), place, model, before, clock=clock, on_output=on_output)
        with lock:
            answers.append(_Sent(place.order, question, answer))
        return answer.record

    def timed(loop: Loop) -> float:
        all_there.wait()
        started = clock()
        loop(send)
        return clock() - started

    started = clock()
    try:
        with run.waiting(), ThreadPoolExecutor(len(loops)) as pool:
            try:
                ended = pool.map(timed, loops)
            finally:
                all_there.set()
            loop_s = tuple(ended)
        makespan_s = clock() - started
    finally:
        records = _write_down(run, answers)
    run.refresh()
    return Together(records, loop_s, makespan_s)


def ask_together(run: ProbeRun, questions: Sequence[Question]) -> Together:
    """Send all at once."""
    return ask_loops(run, [_once(question) for question in questions])


def ask_during(run: ProbeRun, first: Question, then: Question) -> Together:
    """Send `then` as soon as the streamed `first` has said something, or has ended without a word."""
    speaks = threading.Event()

    def begin(send: Send) -> None:
        try:
            send(first, speaks.set)
        finally:
            speaks.set()

    def follow(send: Send) -> None:
        speaks.wait()
        send(then)

    return ask_loops(run, [begin, follow])


def _once(question: Question) -> Loop:
    def loop(send: Send) -> None:
        send(question)

    return loop


@dataclass(frozen=True, slots=True)
class _Sent:
    order: int
    question: Question
    answer: Answer


def _write_down(run: ProbeRun, answers: Sequence[_Sent]) -> tuple[RequestEvidence, ...]:
    records = []
    for sent in sorted(answers, key=lambda one: one.order):
        records.append(run.journal.add(run.named(sent.answer.record)))
        run.note_stored(sent.question, records[-1])
        run.watcher.request_done(records[-1])
        require_same_life(run.status, sent.answer.status, "requests sent together")
    return tuple(records)
