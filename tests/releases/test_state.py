"""The state file and its locks: compare-and-swap, owners that die, and the choice of a strategy."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.releases.records import HISTORY_KEPT, Entry, LaneState, Outcome, Strategy
from ninfer_lifecycle.releases.room import SPARE_BYTES, Need, available_memory, choose, share_a_gpu
from ninfer_lifecycle.releases.state import LaneBusyError, ReleaseFile, SwapError

GIB = 2**30


def entry(name: str) -> Entry:
    return Entry(at="2026-01-01T00:00:00Z", outcome=Outcome.PROMOTED, release_id=name, profile="p",
                 configuration_sha256="c" * 64, receipt_sha256="r" * 64)


def test_a_lane_is_written_only_from_the_revision_that_was_read(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    first = files.swap(LaneState(name="a", port=1))
    assert (first.revision, files.lane("a")) == (1, first)
    files.swap(first.model_copy(update={"port": 2}))
    for stale in (first, LaneState(name="a", port=3)):
        with pytest.raises(SwapError):
            files.swap(stale)
        with pytest.raises(SwapError):
            files.drop(stale)
    assert files.lane("a").port == 2
    assert files.read().revision == 2


def test_lanes_do_not_hinder_each_other(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    a, b = files.swap(LaneState(name="a", port=1)), files.swap(LaneState(name="b", port=2))
    files.swap(a.model_copy(update={"port": 3}))
    assert files.swap(b.model_copy(update={"port": 4})).revision == 2
    files.drop(files.lane("a"))
    assert list(files.read().lanes) == ["b"]


def test_histories_are_told_in_the_order_of_their_time_and_outlive_their_lanes(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    times = {"a": ("01", "04"), "b": ("02", "03")}
    for name, days in times.items():
        entries = tuple(entry(name).model_copy(update={"at": f"2026-01-{day}T00:00:00Z"}) for day in days)
        files.swap(LaneState(name=name, port=1, history=entries))
    assert [name for name, _ in files.history()] == ["a", "b", "b", "a"]
    files.drop(files.lane("a"))
    assert [name for name, _ in files.history()] == ["a", "b", "b", "a"]
    assert [one.at[8:10] for _, one in files.history("a")] == ["01", "04"]
    files.swap(LaneState(name="a", port=1, history=files.read().out_of_service["a"]))
    assert (len(files.history()), files.read().out_of_service) == (4, {})
    with pytest.raises(UsageError, match="there is no lane 'c'"):
        files.history("c")


def test_of_writers_at_once_each_revision_has_one_winner(tmp_path: Path) -> None:
    ReleaseFile(tmp_path).swap(LaneState(name="a", port=1))
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            wins, files = 0, ReleaseFile(tmp_path)
            for _ in range(25):
                try:
                    files.swap(files.lane("a"))
                    wins += 1
                except SwapError:
                    continue
            os._exit(wins)
        children.append(pid)
    wins = sum(os.WEXITSTATUS(os.waitpid(pid, 0)[1]) for pid in children)
    assert ReleaseFile(tmp_path).lane("a").revision == 1 + wins
    assert wins >= 25


def test_an_owner_that_is_killed_gives_the_lane_back(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with files.owning("a", "promote x"):
            os.write(writing, b"x")
            signal.pause()
    os.read(reading, 1)
    with pytest.raises(LaneBusyError, match=f"process {pid} works on it since .*: promote x"), files.owning("a", "y"):
        pass
    assert files.is_owned("a")
    with files.owning("b", "another lane"):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (files.is_owned("a"), files.owner("a")) == (False, None)
    with files.owning("a", "z") as owner:
        assert owner.pid == os.getpid()


def test_a_process_of_the_same_number_is_not_taken_for_the_owner(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    with files.owning("a", "x") as owner:
        path = files.folder("a") / "owner.lock"
        path.write_text(owner.model_copy(update={"start": owner.start + 1}).model_dump_json())
        assert files.owner("a") is None
        path.write_text(owner.model_copy(update={"boot": "another"}).model_dump_json())
        assert files.owner("a") is None


def test_a_damaged_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    lane = files.swap(LaneState(name="a", port=1))
    files.path.write_bytes(files.path.read_bytes()[:-20])
    damaged = files.path.read_bytes()
    for action in (files.read, lambda: files.swap(lane)):
        with pytest.raises(UsageError, match="cannot be understood"):
            action()
    assert files.path.read_bytes() == damaged


@pytest.mark.parametrize(("bind", "url"), [
    ("127.0.0.1", "http://127.0.0.1:7"), ("0.0.0.0", "http://127.0.0.1:7"),  # noqa: S104
    ("::", "http://[::1]:7"),
    ("fe80::1", "http://[fe80::1]:7"), ("10.1.2.3", "http://10.1.2.3:7")])
def test_a_lanes_address_is_one_that_this_machine_can_ask(bind: str, url: str) -> None:
    assert LaneState(name="a", port=7, bind=bind).url == url


def test_an_unknown_lane_is_told_with_the_one_that_was_meant(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    files.swap(LaneState(name="front", port=1))
    with pytest.raises(UsageError, match="did you mean front"):
        files.lane("frnt")


def test_the_key_of_a_lane_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    files = ReleaseFile(tmp_path)
    key = files.api_key("a")
    text = key.read_text()
    assert files.api_key("a").read_text() == text
    assert (key.stat().st_mode & 0o777, len(text) > 32) == (0o600, True)


@given(st.integers(0, 3 * HISTORY_KEPT))
def test_the_history_keeps_the_newest(count: int) -> None:
    lane = LaneState(name="a", port=1)
    for number in range(count):
        lane = lane.model_copy(update={"history": lane.noted(entry(str(number)))})
    assert [item.release_id for item in lane.history] == [str(n) for n in range(max(0, count - HISTORY_KEPT), count)]


needs = st.builds(Need, st.none() | st.integers(0, 64 * GIB),
                  st.sampled_from([(), ("all",), ("GPU-1",), ("GPU-2",), ("GPU-1", "GPU-2")]))


@given(needs, st.none() | needs, st.none() | st.integers(0, 64 * GIB))
def test_two_engines_run_at_once_only_where_both_are_known_to_fit(
    candidate: Need, incumbent: Need | None, free: int | None,
) -> None:
    chosen = choose(None, candidate, incumbent, free).strategy
    if chosen is Strategy.BESIDE and incumbent is not None:
        assert free is not None and candidate.memory_bytes is not None
        assert candidate.memory_bytes + SPARE_BYTES <= free
        assert not share_a_gpu(candidate.gpus, incumbent.gpus)
    for asked in Strategy:
        assert choose(asked, candidate, incumbent, free).strategy is asked


@pytest.mark.parametrize(("left", "right", "shared"), [
    ((), ("all",), False), (("all",), ("GPU-1",), True), (("GPU-1",), ("GPU-2",), False),
    (("GPU-1", "GPU-2"), ("GPU-2",), True)])
def test_gpus_that_two_engines_would_meet_on(left: tuple[str, ...], right: tuple[str, ...], shared: bool) -> None:
    assert share_a_gpu(left, right) is shared
    assert share_a_gpu(right, left) is shared


def test_free_memory_is_what_the_kernel_says_is_available() -> None:
    said = Path("/proc/meminfo").read_text()
    assert available_memory("MemTotal: 5 kB\nMemAvailable:  3 kB\n") == 3072
    assert available_memory("MemTotal: 5 kB\n") is None
    assert (available_memory(said) or 0) > 0
