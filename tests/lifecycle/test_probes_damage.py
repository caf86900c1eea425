"""One byte of what a save has written is changed, wherever it lies, and nothing else."""

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
