"""Reading LMDB's file without LMDB: the same tables, and an error where the map would be the end of the process."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_engine.memory.store.datafile import DataFile, Extent
from ninfer_engine.memory.store.errors import StoreCorruptError, StoreCutShortError
from ninfer_engine.memory.store.treeview import CommitGoneError, TreeView

KEYS = st.binary(min_size=1, max_size=40)


@contextmanager
def environment(directory: Path) -> Iterator[lmdb.Environment]:
    env = lmdb.open(str(directory), map_size=1 << 30, max_dbs=4)
    try:
        yield env
    finally:
        env.close()


@contextmanager
def viewed(env: lmdb.Environment, directory: Path) -> Iterator[TreeView]:
    file = DataFile(directory / "data.mdb")
    try:
        with env.begin() as txn:
            yield TreeView(file, txn.id())
    finally:
        file.close()


def value(size: int, key: bytes) -> bytes:
    return random.Random(key + size.to_bytes(4, "big")).randbytes(size)


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(st.lists(st.tuples(KEYS, st.sampled_from([0, 1, 50, 1999, 2100, 9000]), st.booleans()),
                                max_size=120), min_size=1, max_size=3), probes=st.lists(KEYS, max_size=8))
def test_a_view_says_what_lmdb_says(tmp_path_factory: pytest.TempPathFactory,
                                    rounds: list[list[tuple[bytes, int, bool]]], probes: list[bytes]) -> None:
    directory = tmp_path_factory.mktemp("view")
    with environment(directory) as env:
        tables = {name: env.open_db(name.encode()) for name in ("one", "two")}
        for changes in rounds:  # so that pages are freed and used again
            with env.begin(write=True) as txn:
                for key, size, gone in changes:
                    txn.delete(key, db=tables["one"]) if gone else txn.put(key, value(size, key), db=tables["one"])
        with env.begin() as txn, viewed(env, directory) as view:
            expected = {bytes(key): bytes(data) for key, data in txn.cursor(db=tables["one"])}
            assert list(view.keys("one")) == list(expected)
            assert list(view.keys("two")) == list(view.keys("none")) == []
            assert {key: view.get("one", key) for key in expected} == expected
            assert view.tables["one"].entries == len(expected)
            for probe in probes:
                assert list(view.keys("one", probe)) == [key for key in expected if key >= probe]
                assert view.get("one", probe) == expected.get(probe)
            asked = [*probes, *expected]
            found = view.find_many("one", asked)
            assert {key: view.file.bytes_at(*data) if isinstance(data, Extent) else data
                    for key, data in found.items()} == expected
            view.touch()


def test_a_view_of_a_large_tree_finds_every_key(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        table = env.open_db(b"one")
        with env.begin(write=True, db=table) as txn:
            for number in range(30_000):  # three levels
                txn.put(b"%0100d" % (number * 7), b"%d" % number)
        with viewed(env, tmp_path) as view:
            assert view.tables["one"].depth == 3
            asked = [b"%0100d" % number for number in range(0, 210_000, 3)]
            assert view.find_many("one", asked) == {b"%0100d" % (n * 7): b"%d" % n for n in range(0, 30_000, 3)}
            assert list(view.keys("one", b"%0100d" % 209_990)) == [b"%0100d" % 209_993]
            view.touch()


def test_a_commit_that_lmdb_has_overwritten_is_told(tmp_path: Path) -> None:
    with environment(tmp_path) as env:
        file = DataFile(tmp_path / "data.mdb")
        with env.begin() as txn:
            before = txn.id()
        for key in (b"a", b"b"):
            with env.begin(write=True) as txn:
                txn.put(key, b"1")
        with pytest.raises(CommitGoneError):
            TreeView(file, before)
        file.close()


def test_damaged_pages_are_errors_and_never_another_tables_values(tmp_path: Path) -> None:
    chance = random.Random(3)
    with environment(tmp_path) as env:
        table = env.open_db(b"one")
        with env.begin(write=True, db=table) as txn:
            for number in range(2_000):
                txn.put(b"%05d" % number, b"%d" % number)
    whole = (tmp_path / "data.mdb").read_bytes()
    seen = set()
    for _ in range(300):
        damaged = bytearray(whole)
        page = chance.randrange(len(whole) // 4096)
        for _ in range(3):
            damaged[page * 4096 + chance.randrange(200)] ^= 1 << chance.randrange(8)
        (tmp_path / "data.mdb").write_bytes(damaged)
        file = DataFile(tmp_path / "data.mdb")
        try:
            view = TreeView(file, 2)
            listed = sum(1 for _ in view.keys("one"))
            view.find_many("one", [b"%05d" % number for number in range(2_000)])
            view.touch()
            seen.add(listed)
        except (StoreCorruptError, CommitGoneError) as error:
            seen.add(type(error))
        finally:
            file.close()
    assert StoreCorruptError in seen


def test_neighbours_are_read_in_one_call_and_each_lands_in_its_buffer(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(1).randbytes(400_000)
    (tmp_path / "data").write_bytes(content)
    file, calls, whole = DataFile(tmp_path / "data"), [], os.preadv
    extents = [Extent(16, 5_000), Extent(5_016, 3_000), Extent(8_116, 10), Extent(300_000, 700), Extent(200_000, 9)]
    targets = [bytearray(extent.size) for extent in extents]

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        return whole(descriptor, buffers, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        file.read([(extent, memoryview(target)) for extent, target in zip(extents, targets, strict=True)])
    assert calls == [16, 300_000, 200_000]
    assert targets == [content[extent.offset:extent.offset + extent.size] for extent in extents]
    with pytest.raises(StoreCutShortError):
        file.bytes_at(399_990, 20)
    file.close()


def test_a_read_that_comes_in_parts_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random.Random(2).randbytes(9_000)
    (tmp_path / "data").write_bytes(content)
    file, whole = DataFile(tmp_path / "data"), os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, offset: whole(
        descriptor, [memoryview(buffers[0])[:7]], offset))
    first, second = bytearray(4_000), bytearray(20)
    file.read([(Extent(0, 4_000), memoryview(first)), (Extent(4_100, 20), memoryview(second))])
    assert (first, second) == (content[:4_000], content[4_100:4_120])
    file.close()
