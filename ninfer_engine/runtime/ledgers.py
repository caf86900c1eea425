"""What saves and restores came to since start, whoever asked for them: a client, the engine by itself, a stop."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ninfer_engine.contract.checkpoints import SaveReply
from ninfer_engine.contract.status import Restore
from ninfer_engine.runtime.api import EngineRefusedError, RestoreCounts, SaveCounts
from ninfer_engine.runtime.durations import Stopwatch


@dataclass
class Save:
    """One save under way; `reply` once it has succeeded."""

    reply: SaveReply | None = None


@dataclass
class _Mode:
    took: Stopwatch = field(default_factory=Stopwatch)
    session_bytes: int = 0
    written_bytes: int = 0
    stall_s: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)


class SaveLedger:
    """Counts saves by mode. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modes = {"explicit": _Mode(), "automatic": _Mode()}

    @contextmanager
    def save(self, explicit: bool) -> Iterator[Save]:
        """Count what happens inside: set `reply` of what is yielded, or raise. A refusal counts by its code."""
        mode, started, save = self._modes["explicit" if explicit else "automatic"], time.monotonic(), Save()
        reason = "fault"
        try:
            yield save
            reason = ""
        except EngineRefusedError as refusal:
            reason = refusal.code.value
            raise
        finally:
            with self._lock:
                if save.reply is None or reason:
                    mode.refused[reason] += 1
                else:
                    mode.took.observe(time.monotonic() - started)
                    mode.session_bytes += save.reply.bytes
                    mode.written_bytes += save.reply.written_bytes
                    mode.stall_s += save.reply.engine_stall_s

    def counts(self) -> dict[str, SaveCounts]:
        """By mode."""
        with self._lock:
            return {name: SaveCounts(mode.took.counts(), mode.session_bytes, mode.written_bytes, mode.stall_s,
                                     dict(mode.refused)) for name, mode in self._modes.items()}


class RestoreLedger:
    """Counts restores by what is told of them; they run one at a time. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._took = Stopwatch()
        self._outcomes: Counter[str] = Counter()
        self._bytes = 0
        self._began: float | None = None

    def note(self, restore: Restore) -> None:
        """How far one is."""
        with self._lock:
            match restore.state:
                case "restoring":
                    self._began = time.monotonic() if self._began is None else self._began
                    return
                case "done" if restore.decision == "recompute":
                    self._outcomes["recompute"] += 1
                case "done":
                    self._outcomes["restored"] += 1
                    self._bytes += restore.bytes_done
                    if self._began is not None:
                        self._took.observe(time.monotonic() - self._began)
                case "failed":
                    self._outcomes["failed"] += 1
                case "idle":
                    pass
            self._began = None

    def counts(self) -> RestoreCounts:
        """So far."""
        with self._lock:
            return RestoreCounts(self._took.counts(), self._bytes, dict(self._outcomes))
