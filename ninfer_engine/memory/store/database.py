"""The LMDB environment under the store: opening, transactions, and LMDB's errors in our words.

One writer, every transaction durable when it returns. LMDB itself reads through its memory map only while it writes;
all other reads go through a descriptor (treeview.py), where a failing disk is an error and not a bus error. Values are
cut into pieces below 256 KiB: LMDB needs contiguous file pages for a value, and finds them four times faster for these
than for 4 MiB (decision 0003).
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import lmdb

from ninfer_engine.memory.store.datafile import DataFile
from ninfer_engine.memory.store.errors import (
    StoreCorruptError,
    StoreCutShortError,
    StoreError,
    StoreIncompatibleError,
    StoreUnavailableError,
)
from ninfer_engine.memory.store.treeview import CommitGoneError, TreeView

TABLES = ("meta", "index", "chunks", "manifests", "damaged", "deleted")
_LARGEST_MAP = 1 << 42  # address space, not memory: the file grows only as it is filled
_SMALLEST_MAP = 1 << 30


class Database:
    """One open environment. `readonly` when the directory cannot be written. Safe from any thread.

    hold: an open lock file that is closed with the environment. file: its data file, for reading large values. lost:
    the file was cut short under us; whoever opened the database should close it and open it anew.
    """

    def __init__(self, directory: Path, readonly: bool, hold: IO[bytes] | None = None) -> None:
        self._hold = hold
        self.readonly = readonly
        self._directory = directory
        self._idle = threading.Condition()
        self._active = 0
        self._broken = False
        self.lost = False
        self._env, self.tables = self._open()
        self.file = self._open_file()

    def close(self) -> None:
        """Wait for running transactions and close."""
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0)
            self._env.close()
            self.file.close()
            if self._hold is not None:
                self._hold.close()

    @contextmanager
    def read(self) -> Iterator[TreeView]:
        """A consistent view of the last commit, read by descriptor; its extents are valid inside only."""
        with self._running(), translated(), self._whole(), ExitStack() as held:
            self.file.need_whole()
            yield self._view(held)

    @contextmanager
    def write(self) -> Iterator[Any]:
        """One transaction: all of it is on disk when this returns, or nothing after an error."""
        if self.readonly:
            raise StoreUnavailableError(f"the store at {self._directory} is read-only: make it writable")
        self._mend()
        with self._running():
            try:
                with translated(), self._whole():
                    self.file.need_whole()
                    with self._env.begin(write=True) as txn:
                        yield txn
            except StoreUnavailableError:
                self._broken = True  # after a failed sync LMDB refuses every write until it is opened anew
                raise

    def put(self, txn: Any, table: str, key: bytes, value: bytes | memoryview) -> None:
        """Set `key` in `table`."""
        txn.put(key, value, db=self.tables[table])

    def get(self, txn: Any, table: str, key: bytes) -> bytes | None:
        """The value, or None."""
        if isinstance(txn, TreeView):
            return txn.get(table, key)
        found: bytes | None = txn.get(key, db=self.tables[table])
        return found

    def remove(self, txn: Any, table: str, key: bytes) -> bool:
        """Drop `key`; whether it was there."""
        return bool(txn.delete(key, db=self.tables[table]))

    def keys(self, txn: Any, table: str, start: bytes = b"") -> Iterator[bytes]:
        """Keys from `start` on, in order."""
        if isinstance(txn, TreeView):
            yield from txn.keys(table, start)
            return
        cursor = txn.cursor(db=self.tables[table])
        if cursor.set_range(start) if start else cursor.first():
            for key in cursor.iternext(keys=True, values=False):
                yield bytes(key)

    def free_inside(self) -> int:
        """Bytes of the file that new values can take without growing it."""
        with self.read() as view:
            held = sum(view.tables[table].pages for table in TABLES if table in view.tables)
            return max(0, (view.last_page + 1 - held) * view.page_bytes)

    def prepare_write(self) -> None:
        """Read whatever of the file a write may go through by the memory map: what cannot be read is an error here.
        Raises StoreUnavailableError, StoreCorruptError."""
        with self.read() as view:
            view.touch()

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

    def _open_file(self) -> DataFile:
        try:
            with translated():
                return DataFile(self._directory / "data.mdb")
        except StoreError:
            self._env.close()
            raise

    def _view(self, held: ExitStack) -> TreeView:
        while True:
            with ExitStack() as attempt:
                txn = attempt.enter_context(self._env.begin())
                try:
                    view = TreeView(self.file, txn.id())
                except CommitGoneError:
                    continue
                held.push(attempt.pop_all())
                return view

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except StoreCutShortError:
            self.lost = True
            raise

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
                self.file.close()
                self._env, self.tables = self._open()
                self.file = self._open_file()
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
