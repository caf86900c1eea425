"""`python -m ninfer_engine.memory.store.probe DIR [COPY]`: walk every tree of a database, touch every small value.

With COPY, an empty directory, write a compact copy there instead.

Exit 0: the trees hang together. Anything else, a signal included: they do not. Run apart from the engine, because a
damaged tree page can end the process that reads it.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb

_BATCH_BYTES = 16 << 20


def main(directory: str) -> int:
    """Walk all tables read-only; large values are checked by digest when they are read, not here."""
    env = lmdb.open(directory, readonly=True, lock=False, max_dbs=16, map_size=1 << 30, create=False)
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    env.close()
    env = lmdb.open(directory, readonly=True, lock=False, max_dbs=16, map_size=max(1 << 30, needed), create=False)
    with env.begin(buffers=True) as txn:
        names = [bytes(name) for name, _ in txn.cursor()]
    tables = {name: env.open_db(name, create=False) for name in names}
    with env.begin(buffers=True) as txn:
        for name, table in tables.items():
            cursor = txn.cursor(db=table)
            entries, before = 0, b""
            for key, value in cursor:
                if bytes(key) <= before and entries:
                    raise lmdb.CorruptedError(f"keys of {name.decode()} are out of order")
                before, entries = bytes(key), entries + 1
                if len(value) < 2048:
                    bytes(value)
            if entries != txn.stat(table)["entries"]:
                raise lmdb.CorruptedError(f"table {name.decode()} has lost entries")
    env.close()
    return 0


def copy(directory: str, target: str) -> int:
    """Write every entry into a new database: damage in the list of free pages does not reach it.

    LMDB's own compacting copy reads that list, and fails with it.
    """
    needed = Path(directory, "data.mdb").stat().st_size
    source = lmdb.open(directory, readonly=True, lock=False, max_dbs=16, map_size=max(1 << 30, needed), create=False)
    fresh = lmdb.open(target, max_dbs=16, map_size=max(1 << 30, 2 * needed), sync=False, mode=0o600)
    with source.begin() as txn:
        names = [bytes(name) for name, _ in txn.cursor()]
    for name in names:
        table, copied = source.open_db(name, create=False), fresh.open_db(name)
        with source.begin(buffers=True) as txn:
            _copy_table(txn.cursor(db=table), fresh, copied)
    fresh.sync(True)
    fresh.close()
    source.close()
    return 0


def _copy_table(entries: Iterable[tuple[memoryview, memoryview]], fresh: Any, copied: Any) -> None:
    txn, held = fresh.begin(write=True), 0
    for key, value in entries:
        txn.put(bytes(key), value, db=copied, append=True)
        held += len(value)
        if held > _BATCH_BYTES:
            txn.commit()
            txn, held = fresh.begin(write=True), 0
    txn.commit()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else copy(sys.argv[1], sys.argv[2]))
