"""The store: all of a receipt or none of it, one receipt a place, chains that go on where they ended."""

import threading
from pathlib import Path

import pytest
from receipt_cases import chained, expectations, receipt

from ninfer_lifecycle.receipts.attachments import DirectoryFiles
from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.receipts.errors import StoreError
from ninfer_lifecycle.receipts.store import ReceiptStore, write_atomic
from ninfer_lifecycle.receipts.verify import verify


def test_what_is_written_verifies_from_disk(tmp_path: Path) -> None:
    path = ReceiptStore(tmp_path).write(receipt())
    assert path == tmp_path / "tiny-cpu" / "tiny-cpu.default.000001.intoto.json"
    for name in (path, path.with_name("tiny-cpu.default.000001.sigstore.json")):
        assert verify(name.read_bytes(), DirectoryFiles(path.parent), expectations()).receipt is not None
    assert not [item for item in path.parent.iterdir() if item.name.startswith(".")]


def test_a_chain_goes_on_where_it_ended_a_profile_and_lane(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    assert store.head("tiny-cpu", "default") is None
    first = receipt()
    store.write(first)
    assert store.head("tiny-cpu", "default") == chained(first)
    second = receipt(head=store.head("tiny-cpu", "default"))
    store.write(second)
    assert store.head("tiny-cpu", "default") == chained(second)
    assert second.sequence == 2
    assert store.head("tiny-cpu", "other") is None
    assert store.head("tiny", "default") is None


def test_lanes_whose_names_begin_alike_have_chains_of_their_own(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    store.write(receipt(lane="a.b"))
    assert store.head("tiny-cpu", "a") is None
    assert store.head("tiny-cpu", "a.b") is not None


def test_a_place_in_the_chain_is_taken_once_and_the_loser_leaves_nothing(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    contenders = [receipt(limitations=(f"run {number}",)) for number in range(6)]
    outcomes: list[str] = []
    barrier = threading.Barrier(len(contenders))

    def write(made: ReceiptFiles) -> None:
        barrier.wait()
        try:
            store.write(made)
            outcomes.append("won")
        except StoreError:
            outcomes.append("lost")

    threads = [threading.Thread(target=write, args=(made,)) for made in contenders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("won") == 1
    path = tmp_path / "tiny-cpu" / "tiny-cpu.default.000001.intoto.json"
    assert verify(path.read_bytes(), DirectoryFiles(path.parent), expectations()).receipt is not None
    assert len(list(path.parent.iterdir())) == len(contenders[0].files)


def test_a_chain_is_not_continued_past_damage(tmp_path: Path) -> None:
    store = ReceiptStore(tmp_path)
    path = store.write(receipt())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StoreError):
        store.head("tiny-cpu", "default")


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "..", ".", "", "sub/file", "link"])
def test_names_that_lead_elsewhere_read_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    folder = tmp_path / "receipts"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "file").write_bytes(b"x")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert DirectoryFiles(folder).read(name) is None


def test_an_atomic_write_replaces_and_leaves_no_other_file(tmp_path: Path) -> None:
    for data in (b"first", b"second"):
        write_atomic(tmp_path / "a", data)
        assert (tmp_path / "a").read_bytes() == data
    assert [item.name for item in tmp_path.iterdir()] == ["a"]
