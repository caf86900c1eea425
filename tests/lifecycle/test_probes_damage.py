"""One byte of what a save has written is changed, wherever it lies, and nothing else."""

import random
import struct
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_lifecycle.probes.damage import BLOCK, fingerprint, flip_a_byte


def test_an_untouched_store_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(3 * BLOCK))
    assert not flip_a_byte(tmp_path, fingerprint(tmp_path))
    assert (tmp_path / "data").read_bytes() == bytes(3 * BLOCK)


@settings(deadline=None)  # it writes files
@given(st.integers(0, 20), st.integers(1, 12), st.integers(0, 8))
def test_the_byte_lies_in_what_was_written_last_and_is_one(at: int, count: int, after: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        store = Path(name)
        old = bytearray((at + count + after) * BLOCK)
        (store / "data").write_bytes(old)
        (store / "other").write_bytes(b"as it was")
        before = fingerprint(store)
        new = old[:]
        new[at * BLOCK:(at + count) * BLOCK] = b"n" * (count * BLOCK)
        (store / "data").write_bytes(new)
        assert flip_a_byte(store, before)
        damaged = (store / "data").read_bytes()
        places = [n for n, (a, b) in enumerate(zip(new, damaged, strict=True)) if a != b]
        assert len(places) == 1
        assert at * BLOCK <= places[0] < (at + count) * BLOCK
        assert (store / "other").read_bytes() == b"as it was"


def test_a_new_file_counts_as_written(tmp_path: Path) -> None:
    before = fingerprint(tmp_path)
    (tmp_path / "session.bin").write_bytes(b"a saved session")
    assert flip_a_byte(tmp_path, before)
    assert (tmp_path / "session.bin").read_bytes() != b"a saved session"


def test_in_a_store_full_of_holes_it_is_the_data_and_not_the_longer_list_of_holes(tmp_path: Path) -> None:
    """As LMDB writes a value into a hole: its pages there, and elsewhere the list of what is still free, page numbers
    in eight bytes each."""
    chance, file = random.Random(3), tmp_path / "data"
    old = chance.randbytes(200 * BLOCK)
    file.write_bytes(old)
    before = fingerprint(tmp_path)
    value = chance.randbytes(17 * BLOCK)
    free = b"".join(struct.pack("<Q", number) for number in range(70_000, 70_000 + 30 * BLOCK // 8))
    new = bytearray(old)
    new[20 * BLOCK:37 * BLOCK], new[100 * BLOCK:130 * BLOCK] = value, free
    file.write_bytes(new)
    assert flip_a_byte(tmp_path, before)
    [place] = [n for n, (a, b) in enumerate(zip(new, file.read_bytes(), strict=True)) if a != b]
    assert 20 * BLOCK <= place < 37 * BLOCK
