"""The directory of one run: everything that was observed, and how to do it again.

    runs/<id>/plan.json        orders, nonce and steps, written before the first request
              lock.json        the lock document
              command.txt      the command line to repeat the run
              evidence/        requests, saves, epochs, steps: one JSON object a line, written as they arise
              status.jsonl     the status document as it was seen
              engine.log ...   what the host keeps of the engine
              run.json         what the run is of; it can be taken up again as long as all of it is still so
              lock           held while a tool works on the run
              summary.json     tokens, seconds, and the prober's own share of them
              partial.json     only when the run died: why, and what the gates made of the evidence so far; unsigned
"""

import fcntl
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.errors import DISK_ERRORS, UsageError
from ninfer_lifecycle.evidence import RequestEvidence, StepEvidence, printable


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run. Effects: every method writes below `path`."""

    path: Path
    run_id: str

    @property
    def evidence(self) -> Path:
        """Where evidence files go."""
        return self.path / "evidence"

    @property
    def store(self) -> Path:
        """The durable store of the engine under test; removed when the run ends."""
        return self.path / "store"

    def write_json(self, name: str, value: Any) -> None:
        """A JSON document that people read."""
        text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
        self.write_bytes(name, printable(text).encode() + b"\n")

    def write_bytes(self, name: str, data: bytes) -> None:
        """A file, whole or not at all."""
        target = self.path / name
        partial = target.with_suffix(target.suffix + ".part")
        partial.write_bytes(data)
        partial.replace(target)

    def write_command(self, argv: Sequence[str]) -> None:
        """The command line to repeat the run."""
        self.write_bytes("command.txt", (shlex.join(argv) + "\n").encode())


@contextmanager
def held(run: RunDirectory) -> Iterator[None]:
    """Inside, no other tool works on this run. Raises UsageError when one does; the kernel frees it with its holder."""
    with (run.path / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another ninfer works on run {run.run_id}", "wait until it is done, or end it") from None
        yield


def open_run_directory(path: Path) -> RunDirectory:
    """The directory of an earlier run. Raises UsageError when it is none."""
    if not (path / "run.json").is_file():
        raise UsageError(f"{path} is not the directory of a run that can be taken up again",
                         "give one that `ninfer qualify` made below --runs-dir")
    return RunDirectory(path, path.name)


def create_run_directory(runs_dir: Path, run_id: str) -> RunDirectory:
    """A new directory for a run. Raises UsageError when it cannot be made or is there already, OSError as it is when
    the disk takes no more.
    """
    path = runs_dir / run_id
    try:
        path.mkdir(parents=True)
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise UsageError(f"cannot make the run directory {path}: {error.strerror}",
                         "give a directory that can be written: --runs-dir DIR") from error
    return RunDirectory(path, run_id)


class StatusRecorder:
    """Writes each status document that the probe sees, with the order in which it saw it, and the time of day.

    A run that is taken up again adds to what it had.
    """

    def __init__(self, file: Path, now: Callable[[], str]) -> None:
        self._file: TextIO = file.open("a", encoding="utf-8")
        self._seen, self._now = 0, now

    def step_started(self, name: str, index: int, total: int, done_cost: int, total_cost: int) -> None:
        """Not recorded here: steps are evidence."""

    def request_done(self, record: RequestEvidence) -> None:
        """Not recorded here: requests are evidence."""

    def step_ended(self, record: StepEvidence) -> None:
        """Not recorded here: steps are evidence."""

    def status_seen(self, status: StatusDocument) -> None:
        """Append one sample."""
        self._seen += 1
        sample = {"at": self._now(), "sample": self._seen, "status": status.model_dump(mode="json")}
        self._file.write(json.dumps(sample, sort_keys=True, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
