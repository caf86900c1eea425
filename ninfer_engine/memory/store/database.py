"""The LMDB environment under the store: opening, transactions, and LMDB's errors in our words.

Mapped reads, one writer, every transaction durable when it returns. Values are cut into pieces below 256 KiB: LMDB
needs contiguous file pages for a value, and finds them four times faster for these than for 4 MiB (decision 0003).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import lmdb

from ninfer_engine.memory.store.errors import (
    StoreCorruptError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)

TABLES = ("meta", "index", "chunks", "manifests", "damaged", "deleted")
_LARGEST_MAP = 1 << 42  # address space, not memory: the file grows only as it is filled
_SMALLEST_MAP = 1 << 30


class Database:
    """One open environment. `readonly` when the directory cannot be written. Safe from any thread.

    hold: an open lock file that is closed with the environment.
    """

    def __init__(self, directory: Path, readonly: bool, hold: IO[bytes] | None = None) -> None:
        self._hold = hold
        self.readonly = readonly
        self._directory = directory
        self._idle = threading.Condition()
        self._active = 0
        self._broken = False
        self._env, self.tables = self._open()

    def close(self) -> None:
        """Wait for running transactions and close."""
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0)
            self._env.close()
            if self._hold is not None:
                self._hold.close()

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A consistent view of the last commit. Buffers from it are valid inside only: copy what you keep."""
        with self._running(), translated(), self._env.begin(buffers=True) as txn:
            yield txn

    @contextmanager
    def write(self) -> Iterator[Any]:
        """One transaction: all of it is on disk when this returns, or nothing after an error."""
        if self.readonly:
            raise StoreUnavailableError(f"the store at {self._directory} is read-only: make it writable")
        self._mend()
        with self._running():
            try:
                with translated(), self._env.begin(write=True) as txn:
                    yield txn
            except StoreUnavailableError:
                self._broken = True  # after a failed sync LMDB refuses every write until it is opened anew
                raise

    def put(self, txn: Any, table: str, key: bytes, value: bytes | memoryview) -> None:
        """Set `key` in `table`."""
        txn.put(key, value, db=self.tables[table])

    def get(self, txn: Any, table: str, key: bytes) -> Any:
        """The value as a buffer valid inside the transaction, or None."""
        return txn.get(key, db=self.tables[table])

    def remove(self, txn: Any, table: str, key: bytes) -> bool:
        """Drop `key`; whether it was there."""
        return bool(txn.delete(key, db=self.tables[table]))

    def keys(self, txn: Any, table: str, start: bytes = b"") -> Iterator[bytes]:
        """Keys from `start` on, in order."""
        cursor = txn.cursor(db=self.tables[table])
        if cursor.set_range(start) if start else cursor.first():
            for key in cursor.iternext(keys=True, values=False):
                yield bytes(key)

    def free_inside(self) -> int:
        """Bytes of the file that new values can take without growing it."""
        with self.read() as txn:
            held: int = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
                       for stat in (txn.stat(self.tables[table]) for table in TABLES))
            info, size = self._env.info(), self._env.stat()["psize"]
            return max(0, (int(info["last_pgno"]) + 1 - held) * int(size))

    def _open(self) -> tuple[Any, dict[str, Any]]:
        size = _LARGEST_MAP
        while True:
            try:
                with translated():
                    env = lmdb.open(str(self._directory), map_size=size, max_dbs=len(TABLES), readonly=self.readonly,
                                    lock=not self.readonly, max_readers=512, meminit=False,
                                    mode=0o600)
                    return env, self._tables(env)
            except StoreUnavailableError as error:
                if size <= _SMALLEST_MAP or "allocate" not in str(error):
                    raise
                size //= 4  # a limit on address space

    def _tables(self, env: Any) -> dict[str, Any]:
        try:
            if not self.readonly:
                env.reader_check()  # readers of killed processes would pin old pages for ever
            _need_whole_file(env, self._directory)
            return {name: env.open_db(name.encode(), create=not self.readonly) for name in TABLES}
        except (lmdb.Error, StoreError):
            env.close()
            raise

    def _mend(self) -> None:
        with self._idle:
            if self._broken and self._active == 0:
                self._env.close()
                self._env, self.tables = self._open()
                self._broken = False

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._idle:
            self._active += 1
        try:
            yield
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()


@contextmanager
def translated() -> Iterator[None]:
    """LMDB's and the system's errors as StoreError."""
    try:
        yield
    except lmdb.VersionMismatchError as error:
        raise StoreIncompatibleError("the store's file is of another LMDB: use the engine that wrote it", ("lmdb",)
                                     ) from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError) as error:
        raise StoreCorruptError(f"the store's file is damaged ({error}): run `ninfer-engine store repair`") from error
    except lmdb.MapFullError as error:
        raise StoreUnavailableError("the store's file has reached its largest size: run `ninfer-engine store gc`"
                                    ) from error
    except lmdb.Error as error:
        raise StoreUnavailableError(f"the store cannot be used: {error}") from error
    except OSError as error:
        raise StoreUnavailableError(f"the store cannot be used: {error.strerror or error}") from error


def _need_whole_file(env: Any, directory: Path) -> None:
    """A file that ends before its last page would be a bus error in some later read."""
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    found = (directory / "data.mdb").stat().st_size
    if found < needed and env.info()["last_txnid"] > 0:
        raise StoreCorruptError(f"the store's file was cut to {found} of {needed} bytes")
