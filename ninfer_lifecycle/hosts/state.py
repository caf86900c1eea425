"""The file that remembers what `ninfer up` started, so that `down`, `status` and `logs` find it again.

STATE_DIR/engines.json, replaced whole; a lock file beside it orders writers. A lock of its own for each name says that
somebody is starting or stopping that engine; the kernel frees it when that somebody dies.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.base import RunningEngine
from ninfer_lifecycle.text import did_you_mean

STATE_FILE = "engines.json"


class EngineRecord(BaseModel):
    """One engine that was left running. configuration_sha256: what its status document must name.

    stop_seconds: how long `down` lets it save its sessions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    profile: str
    configuration_sha256: str
    engine: RunningEngine
    stop_seconds: float = 60.0


_RECORDS = TypeAdapter(tuple[EngineRecord, ...])


def default_state_dir() -> Path:
    """$XDG_STATE_HOME/ninfer, or ~/.local/state/ninfer."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "ninfer"


class EngineState:
    """Records by name. Every method reads the file anew; writers take turns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = directory / STATE_FILE

    def all(self) -> tuple[EngineRecord, ...]:
        """Every record, by name. UsageError when the file was damaged."""
        try:
            return tuple(sorted(_RECORDS.validate_json(self._file.read_bytes()), key=lambda record: record.name))
        except FileNotFoundError:
            return ()
        except ValidationError as error:
            raise UsageError(f"{self._file} cannot be understood", "stop its engines by hand (docker ps, ps), then "
                             "remove the file") from error

    def find(self, name: str | None) -> EngineRecord:
        """The record of a name, or the only one when no name is given. UsageError otherwise."""
        records = self.all()
        if name is None and len(records) == 1:
            return records[0]
        if name is None:
            raise UsageError("several engines are up: say which" if records else "no engine is up",
                             "one of: " + ", ".join(record.name for record in records) if records
                             else "start one with `ninfer up PROFILE`")
        found = next((record for record in records if record.name == name), None)
        if found is None:
            near = did_you_mean(name or "", [record.name for record in records])
            raise UsageError(f"no engine named {name!r} is up{near}", "`ninfer status` lists what is")
        return found

    def put(self, record: EngineRecord) -> None:
        """Add a record, or replace the one of its name."""
        with self._exclusive("engines", wait=True):
            self._write([*(old for old in self.all() if old.name != record.name), record])

    def drop(self, name: str) -> None:
        """Forget a record; no error when there is none."""
        with self._exclusive("engines", wait=True):
            self._write([record for record in self.all() if record.name != name])

    @contextmanager
    def working_on(self, name: str) -> Iterator[None]:
        """Inside, no other tool starts or stops this engine. UsageError at once when another one does."""
        with self._exclusive(f"engine-{name}", wait=False):
            yield

    @contextmanager
    def _exclusive(self, name: str, wait: bool) -> Iterator[None]:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._directory / f"{name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise UsageError(f"another ninfer is working on {name.removeprefix('engine-')}",
                                 "wait until it is done") from None
            yield

    def _write(self, records: list[EngineRecord]) -> None:
        partial = self._file.with_suffix(".part")
        partial.write_text(json.dumps([record.model_dump(mode="json") for record in records], indent=2) + "\n",
                           encoding="utf-8")
        partial.replace(self._file)
