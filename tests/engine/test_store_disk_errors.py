"""A disk that fails while the store is read, and a file that is cut short under it: a state with a reason, never the
end of the process, which is what a memory map makes of both."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from store_cases import SavedSession, bad_sectors, open_store, place_of, problems, save

from ninfer_engine.memory.store.errors import StoreCorruptError, StoreUnavailableError
from ninfer_engine.memory.store.reading import RowReader
from ninfer_engine.memory.store.upkeep import verify

EVERYTHING = 1 << 60


def template(name: str = "template") -> SavedSession:
    saved = SavedSession(name, base=400, page_bytes=9_000, image_bytes=700_000)
    saved.fork(0)
    return saved


def large() -> SavedSession:
    return SavedSession("large", base=400, page_bytes=200_000, image_bytes=5_000_000)


@pytest.mark.parametrize("part", ["page", "image"])
def test_a_bad_sector_under_an_object_makes_the_session_unavailable_until_it_can_be_read(
    tmp_path: Path, part: str
) -> None:
    store, saved, other = open_store(tmp_path), template(), SavedSession("other", base=50)
    save(store, saved)
    record = saved.checkpoints[0]
    place = place_of(store, record.pages[1] if part == "page" else record.image)
    with bad_sectors(place.offset, place.offset + 512):
        with pytest.raises(StoreUnavailableError, match="Input/output"), store.reading(saved.session):
            problems(store, saved.session, saved.contents)
        status = store.status(saved.session)
        assert (status.state, "Input/output" in (status.reason or "")) == ("unavailable", True)
        assert save(store, other).generation == 1
        assert problems(store, other.session, other.contents) == []
        assert len(verify(store).damaged) == 1
    with store.reading(saved.session):
        assert problems(store, saved.session, saved.contents) == []
    assert store.status(saved.session).state == "available"
    assert verify(store).whole


def test_bad_sectors_under_the_tree_make_the_whole_store_unavailable_and_no_write_begins(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), template()
    save(store, saved)
    saved.fork(1)
    with bad_sectors(2 * 4096, EVERYTHING):
        assert store.status(saved.session).state == "unavailable"
        for attempt in (lambda: save(store, saved), lambda: store.delete(saved.session), store.gc,
                        lambda: store.forget_response(saved.session, "resp_base")):
            with pytest.raises(StoreUnavailableError, match="Input/output"):
                attempt()
    assert store.status(saved.session).generation == 1
    assert save(store, saved).generation == 2
    assert problems(store, saved.session, saved.contents) == []


def test_garbage_that_cannot_be_read_stays_and_the_rest_goes(tmp_path: Path) -> None:
    store, saved = open_store(tmp_path), template()
    save(store, saved)
    bad = saved.checkpoints[0].image
    place = place_of(store, bad)
    with bad_sectors(place.offset, place.offset + 512):
        assert store.delete(saved.session)
        assert store.missing(saved.contents) == set(saved.contents) - {bad}
    store.gc()
    assert store.missing(saved.contents) == set(saved.contents)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
def test_a_file_cut_short_under_an_open_store_is_set_aside_and_saves_go_on(tmp_path: Path, left: float) -> None:
    """In a process of its own, so that its end would be seen."""
    done = _in_process("""
        store, saved = open_store(place), template()
        save(store, saved)
        file = place / "lmdb" / "data.mdb"
        manifest = store.load(saved.session)
        os.truncate(file, int(file.stat().st_size * float(left)))
        told = [store.status(saved.session).state]
        try:
            store.read(manifest.checkpoints[0].image)
        except StoreError as error:
            told.append(type(error).__name__)
        told.append(store.status(saved.session).state)
        saved.fork(1)
        told.append(save(store, saved).generation)
        told.append(problems(store, saved.session, saved.contents))
        told.append(len(list((place / "quarantine").glob("lmdb-*"))))
        print(json.dumps(told))
    """, tmp_path / "store", str(left))
    assert done == ["corrupt", "ObjectMissingError", "missing", 1, [], 1]


def test_a_file_cut_short_while_a_session_is_read_stops_that_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, saved = open_store(tmp_path), template()
    save(store, saved)
    whole = RowReader._move

    def cut_then_move(self: RowReader, *group: Any) -> None:
        os.truncate(tmp_path / "lmdb" / "data.mdb", 4 * 4096)
        whole(self, *group)

    monkeypatch.setattr(RowReader, "_move", cut_then_move)
    taken: list[bytes] = []
    with pytest.raises(StoreCorruptError, match="ends at"), store.read_rows(
            [(saved.checkpoints[0].pages, saved.page_bytes)]) as reader:
        reader.place_in(lambda names, rows: taken.extend(names))
        reader.wait()
    assert taken == []
    assert store.status(saved.session).state == "missing"  # set aside, and begun anew


@pytest.mark.parametrize("part", ["values", "everything"])
def test_a_real_disk_that_fails_is_survived(tmp_path: Path, part: str) -> None:
    """A loop device over a file that is cut: the block layer answers EIO."""
    disk = _LoopDisk(tmp_path)
    with disk.mounted() as mount:
        store, saved = open_store(mount / "store"), large()
        save(store, saved)
        place = place_of(store, saved.checkpoints[0].pages[0] if part == "everything" else saved.checkpoints[0].image)
        store.close()
        cut = disk.position(mount / "store" / "lmdb" / "data.mdb", place.offset)
    with disk.mounted() as mount:  # anew: nothing is in the page cache
        told = _in_process("""
            store, saved = open_store(place), large()
            states = [store.status(saved.session).state]
            os.truncate(image, int(cut))
            with (place / "lmdb" / "data.mdb").open("rb") as file:  # of what the system has read ahead
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for _ in range(2):
                try:
                    with store.reading(saved.session):
                        states.append(problems(store, saved.session, saved.contents))
                except StoreError as error:
                    states.append(type(error).__name__)
                states.append(store.status(saved.session).state)
            print(json.dumps(states))
        """, mount / "store", str(disk.image), str(cut))
        os.truncate(disk.image, _LoopDisk.SIZE)  # or unmounting would complain
    assert told == ["available", *["StoreUnavailableError", "unavailable"] * 2]


class _LoopDisk:
    """A file system in a file. Skips the test where this process may not make one."""

    SIZE = 64 << 20

    def __init__(self, directory: Path) -> None:
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or shutil.which("filefrag") is None:
            pytest.skip("needs root, mkfs.ext4 and filefrag; bad_sectors shows the same with a disk that is made up")
        self.image, self._mount = directory / "disk.img", directory / "disk"
        self._mount.mkdir()
        with self.image.open("wb") as file:
            file.truncate(self.SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", str(self.image)], check=True)  # noqa: S607

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        mounting = ["mount", "-o", "loop", str(self.image), str(self._mount)]
        if subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
            pytest.skip("loop devices cannot be mounted here")
        try:
            yield self._mount
        finally:
            subprocess.run(["umount", str(self._mount)], check=True)  # noqa: S607

    @staticmethod
    def position(file: Path, offset: int) -> int:
        """Where byte `offset` of `file` lies on the disk, in whole blocks."""
        listed = subprocess.run(["filefrag", "-e", str(file)], capture_output=True, text=True, check=True)  # noqa: S607
        lines = [line.replace("..", " ").replace(":", " ").split() for line in listed.stdout.splitlines()]
        for _, first, last, physical, *_ in (line for line in lines if line and line[0].isdigit()):
            if int(first) <= offset // 4096 <= int(last):
                return (int(physical) + offset // 4096 - int(first)) * 4096
        raise AssertionError("the file has no such byte")


def _in_process(script: str, place: Path, *values: str) -> list[object]:
    """Run a script that prints JSON. It finds `place`, and `values` under the names left, or image and cut."""
    names = ["left"] if len(values) == 1 else ["image", "cut"]
    head = ("import sys; sys.path.insert(0, sys.argv[1])\n"
            "from test_store_disk_errors import *; from store_cases import *\n"
            "from ninfer_engine.memory.store.errors import *\n"
            f"place, ({', '.join(names)},) = Path(sys.argv[2]), sys.argv[3:]\n")
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(script), str(Path(__file__).parent), str(place), *values],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    told: list[object] = json.loads(done.stdout)
    return told
