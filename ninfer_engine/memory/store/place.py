"""The store's directory: who may use it, the writer's lock, and where damaged things are set aside.

    lmdb/          the database             writer.lock   held by whoever saves, deletes or collects
    quarantine/    damaged records, as      users.lock    held shared by whoever has the database open, alone by
                   found, the newest 32                   whoever replaces its file
"""

import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ninfer_engine.memory.store.errors import StoreCorruptError, StoreUnavailableError

_LOCK_WAIT_S = 60.0
_PROBE_WAIT_S = 120.0
_KEPT_FOR_INSPECTION = 32


class StorePlace:
    """A store's directory. Creating it has side effects only when `prepare` is called."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / "lmdb"
        self._thread_lock = threading.Lock()

    def prepare(self) -> bool:
        """Make the directories; True when they can be written, False when they can only be read."""
        try:
            self.database.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            if not self.database.is_dir():
                raise StoreUnavailableError(f"no store at {self.directory}: {error.strerror}") from error
        return all(os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
                   for path in self._needed())

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time, over threads and processes; a killed one lets go by itself."""
        with self._thread_lock:
            try:
                handle = (self.directory / "writer.lock").open("ab")
            except OSError as error:
                raise StoreUnavailableError(f"the store cannot be written: {error.strerror}") from error
            with handle:
                _lock(handle.fileno(), fcntl.LOCK_EX)
                yield

    def user(self) -> IO[bytes] | None:
        """A shared hold on the database's file, until closed; None where the directory cannot be written."""
        try:
            handle = (self.directory / "users.lock").open("ab")
        except OSError:
            return None
        try:
            _lock(handle.fileno(), fcntl.LOCK_SH)
        except StoreUnavailableError:
            handle.close()
            raise
        return handle

    @contextmanager
    def alone(self, handle: IO[bytes]) -> Iterator[None]:
        """Turn a hold from `user` into the only one; raises StoreUnavailableError when others have the file open."""
        try:
            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreUnavailableError("other processes have the store open: stop them first") from error
        try:
            yield
        finally:
            fcntl.flock(handle.fileno(), fcntl.LOCK_SH)

    def free_on_disk(self) -> int:
        """Bytes that this user may still write to the file system."""
        try:
            stat = os.statvfs(self.directory)
        except OSError as error:
            raise StoreUnavailableError(f"the store cannot be used: {error.strerror}") from error
        return stat.f_bavail * stat.f_frsize

    def set_aside(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Keep damaged bytes for inspection, as well as possible: a full disk loses them, never the engine."""
        target = self.directory / "quarantine"
        try:
            target.mkdir(exist_ok=True, mode=0o700)
            (target / f"{name}-{time.time_ns()}").write_bytes(data)
            kept = sorted(target.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            for path in kept[:-_KEPT_FOR_INSPECTION]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            return

    def set_database_aside(self) -> None:
        """Move the whole database out of the way; the next one starts empty."""
        target = self.directory / "quarantine"
        try:
            target.mkdir(exist_ok=True, mode=0o700)
            self.database.rename(target / f"lmdb-{time.time_ns()}")
            self.database.mkdir(mode=0o700)
        except OSError as error:
            raise StoreUnavailableError(f"a damaged store cannot be set aside: {error.strerror}") from error

    def probe(self) -> None:
        """Walk the database in a process of its own, which dies in place of this one if its pages are damaged.

        Raises StoreCorruptError. Costs the start of a small interpreter (a tenth of a second).
        """
        if (self.database / "data.mdb").exists():
            self._examine(str(self.database))

    def replace_by_compacted_copy(self) -> None:
        """Copy the database without its free pages and its list of them, examine the copy, and put it in its place.

        The caller is alone with the file. Raises StoreCorruptError with the old file in place.
        """
        copy = self.directory / "lmdb.new"
        try:
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir(mode=0o700)
            self._examine(str(self.database), str(copy))
            self._examine(str(copy))
            (copy / "data.mdb").replace(self.database / "data.mdb")
            (self.database / "lock.mdb").unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailableError(f"the store cannot be copied: {error.strerror}") from error
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _examine(self, *directories: str) -> None:
        argv = [sys.executable, "-m", "ninfer_engine.memory.store.probe", *directories]
        try:
            done = subprocess.run(argv, capture_output=True, timeout=_PROBE_WAIT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise StoreUnavailableError(f"the store could not be examined within {_PROBE_WAIT_S:.0f} s") from error
        except OSError:
            return  # where no process can be started the store is opened unexamined
        if done.returncode != 0:
            reason = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"]
            raise StoreCorruptError(f"the store's file is damaged ({reason[-1]})")

    def _needed(self) -> list[Path]:
        files = [self.database / "data.mdb", self.database / "lock.mdb"]
        return [self.directory, self.database, *(path for path in files if path.exists())]


def _lock(descriptor: int, kind: int) -> None:
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise StoreUnavailableError("another process has been writing to the store for a minute: "
                                            "wait for it, or end it") from error
            time.sleep(0.02)
        except OSError as error:
            raise StoreUnavailableError(f"the store cannot be locked: {error.strerror}") from error
