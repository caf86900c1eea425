"""Embedded stores side by side, then the durable store itself: `python benchmarks/store_bench.py [DIR] [MIB]`.

Every write is durable: LMDB and sqlite commit every 16 MiB, a raw file is synced after every value. Reads are from
the page cache and copied once; the last lines read cold, beside the disk's own sequential read of the same file.
"""

import hashlib
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb

from ninfer_engine.memory.store.digests import ObjectNames
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.manifest import CheckpointRecord, SessionManifest
from ninfer_engine.memory.store.objects import PIECE_BYTES
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.saving import PendingObject

BATCH = 16 << 20


def values(size: int, total: int) -> Iterator[tuple[bytes, bytes]]:
    """Names and incompressible values of `size` bytes, `total` bytes in all."""
    blocks = [os.urandom(size) for _ in range(4)]
    for index in range(total // size):
        yield hashlib.sha256(index.to_bytes(8, "little")).digest(), blocks[index % 4]


def lmdb_case(directory: Path, size: int, total: int, piece: int) -> tuple[float, float]:
    """Seconds of writing and of reading everything, values cut into pieces of `piece` bytes."""
    env = lmdb.open(str(directory), map_size=1 << 36, meminit=False)
    started, held = time.perf_counter(), 0
    txn = env.begin(write=True)
    for name, value in values(size, total):
        view = memoryview(value)
        for start in range(0, size, piece):
            txn.put(name + start.to_bytes(4, "big"), view[start:start + piece])
        held += size
        if held >= BATCH:
            txn.commit()
            txn, held = env.begin(write=True), 0
    txn.commit()
    wrote = time.perf_counter() - started
    started = time.perf_counter()
    with env.begin() as reader:
        for _, value in reader.cursor():
            len(value)
    read = time.perf_counter() - started
    env.close()
    return wrote, read


def files_case(directory: Path, size: int, total: int) -> tuple[float, float]:
    """One file a value, each synced, the directory after every batch."""
    folder = os.open(directory, os.O_RDONLY)
    started, held = time.perf_counter(), 0
    for name, value in values(size, total):
        with (directory / name.hex()).open("wb") as handle:
            handle.write(value)
            handle.flush()
            os.fsync(handle.fileno())
        held += size
        if held >= BATCH:
            os.fsync(folder)
            held = 0
    wrote = time.perf_counter() - started
    started = time.perf_counter()
    for path in directory.iterdir():
        len(path.read_bytes())
    os.close(folder)
    return wrote, time.perf_counter() - started


def sqlite_case(directory: Path, size: int, total: int) -> tuple[float, float]:
    """One table of blobs, write-ahead log, full synchronisation."""
    connection = sqlite3.connect(directory / "store.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE objects (name BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    started, held = time.perf_counter(), 0
    connection.execute("BEGIN")
    for name, value in values(size, total):
        connection.execute("INSERT INTO objects VALUES (?, ?)", (name, value))
        held += size
        if held >= BATCH:
            connection.execute("COMMIT")
            connection.execute("BEGIN")
            held = 0
    connection.execute("COMMIT")
    wrote = time.perf_counter() - started
    started = time.perf_counter()
    for (value,) in connection.execute("SELECT value FROM objects"):
        len(value)
    read = time.perf_counter() - started
    connection.close()
    return wrote, read


def show(title: str, case: Callable[[Path], tuple[float, float]], root: Path, total: int) -> None:
    """Run one case in a directory of its own and print MB/s."""
    directory = Path(tempfile.mkdtemp(dir=root))
    wrote, read = case(directory)
    shutil.rmtree(directory)
    print(f"{title:44} write {total / 1e6 / wrote:6.0f} MB/s   read {total / 1e6 / read:6.0f} MB/s", flush=True)


def durable_case(root: Path, total: int, page: int) -> None:
    """A session of pages of `page` bytes through the durable store: save, warm and cold restore, the disk alone."""
    directory = Path(tempfile.mkdtemp(dir=root))
    names = ObjectNames({"model": "bench"})
    tokens = list(range(total // page * 64))
    pages, block = names.pages(tokens), os.urandom(page)
    image, run = names.image(pages[-1], len(tokens)), names.content("tokens", b"run")
    manifest = SessionManifest(session="0" * 64, checkpoints=(CheckpointRecord(
        number=0, frontier_tokens=len(tokens), tokens=run, pages=tuple(pages), image=image),))
    objects = {name: PendingObject(page, lambda: block) for name in (*pages, image, run)}
    store = DurableStore.open(directory, {"model": "bench"}, 1 << 40, OriginKey.from_api_key("bench"))
    started = time.perf_counter()
    store.save(manifest, objects)
    saved = time.perf_counter() - started
    warm = _read_all(store, manifest)
    store.close()
    file = directory / "lmdb" / "data.mdb"
    disk = _cold(file, lambda: _read_file(file))
    store = DurableStore.open(directory, {"model": "bench"}, 1 << 40, OriginKey.from_api_key("bench"))
    cold = _cold(file, lambda: _read_all(store, manifest))
    store.close()
    shutil.rmtree(directory)
    rate = total / 1e6
    print(f"durable store, {page >> 10:4} KiB pages: save {rate / saved:.0f} MB/s, restore warm {rate / warm:.0f}, "
          f"cold {rate / cold:.0f} MB/s; the disk's own sequential read {rate / disk:.0f} MB/s "
          f"({disk / cold:.2f} of it)", flush=True)


def _read_all(store: DurableStore, manifest: SessionManifest) -> float:
    started = time.perf_counter()
    for _, data in store.read_many(list(manifest.objects())):
        len(data)
    return time.perf_counter() - started


def _read_file(file: Path) -> float:
    started = time.perf_counter()
    with file.open("rb", buffering=0) as handle:
        while handle.read(4 << 20):
            pass
    return time.perf_counter() - started


def _cold(file: Path, measure: Callable[[], float]) -> float:
    """`measure` with the file dropped from the page cache as far as the system lets us."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    return measure()


def main() -> None:
    """Everything, at 64 KiB, 1 MiB and 4 MiB."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.gettempdir())
    total = (int(sys.argv[2]) if len(sys.argv) > 2 else 256) << 20
    for size in (64 << 10, 1 << 20, 4 << 20):
        label = f"{size >> 10} KiB values, "
        show(label + "LMDB whole", lambda d, s=size: lmdb_case(d, s, total, s), root, total)  # type: ignore[misc]  # default binds s
        if size > PIECE_BYTES:
            show(label + "LMDB in 256 KiB pieces",
                 lambda d, s=size: lmdb_case(d, s, total, PIECE_BYTES), root, total)  # type: ignore[misc]  # as above
        show(label + "a file each, fsync", lambda d, s=size: files_case(d, s, total), root, total)  # type: ignore[misc]  # as above
        show(label + "sqlite", lambda d, s=size: sqlite_case(d, s, total), root, total)  # type: ignore[misc]  # as above
    durable_case(root, total, 64 << 10)
    durable_case(root, total, 4 << 20)


if __name__ == "__main__":
    main()
