"""Interruptions as exceptions, and clean-up that a second one cannot cut short."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(BaseException):  # like KeyboardInterrupt: no error, and not caught by `except Exception`
    """SIGTERM arrived."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Inside, SIGTERM raises Terminated in the main thread, so that context managers clean up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def shielded() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM wait: the last of them is delivered again on leaving. For clean-up only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda got, _frame: waiting.append(got))
              for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[-1])


def _raise_terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated
