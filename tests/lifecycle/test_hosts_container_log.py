"""The one reader of a container's output: every entry once, in order, however often its stream breaks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts import container_log
from ninfer_lifecycle.hosts.container_log import LogKeeper
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, NoDaemonError


class BrokenStream:
    """Gives entries until it breaks."""

    def __init__(self, entries: list[bytes]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.entries)

    def close(self) -> None:
        """Nothing is open."""


class BreakingDaemon:
    """Holds what a container wrote. Each followed stream breaks after so many entries as `breaks` says, then it ends.

    away: so many calls find no daemon first.
    """

    def __init__(self, entries: list[tuple[int, bytes]], breaks: list[int], away: int = 0) -> None:
        self.entries, self.breaks, self.away, self.streams = entries, list(breaks), away, 0

    def inspect(self, container: str) -> dict[str, Any]:
        if self.away > 0:
            self.away -= 1
            raise NoDaemonError("away", "")
        return {"State": {"Running": bool(self.breaks), "Status": "running" if self.breaks else "exited"}}

    def logs(self, container: str, since_s: int | None, follow: bool) -> BrokenStream:
        self.streams += 1
        lines = [stamped(at) + b" " + text for at, text in self.entries if since_s is None or at // 1000 >= since_s]
        return BrokenStream(lines[:self.breaks.pop(0)] if self.breaks else lines)


def stamped(at_ms: int) -> bytes:
    seconds, rest = divmod(at_ms, 1000)
    return f"1970-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}.{rest:03d}000000Z".encode()


def kept(daemon: Any, file: Path, **more: Any) -> bytes:
    keeper = LogKeeper(daemon, "c" * 64, file, **more)
    keeper.follow()
    keeper.settle(30.0)
    return file.read_bytes()


times = st.lists(st.integers(0, 400), max_size=40).map(lambda gaps: [sum(gaps[:n]) for n in range(len(gaps))])


@settings(max_examples=60, deadline=None)
@given(times, st.lists(st.integers(0, 40), max_size=6), st.integers(0, 2))
def test_every_entry_is_written_once_and_in_order(at: list[int], breaks: list[int], away: int) -> None:
    import tempfile
    entries = [(moment, f"entry {number}\n".encode()) for number, moment in enumerate(at)]
    daemon = BreakingDaemon(entries, breaks, away)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(container_log, "_AGAIN_S", 0.0)
        assert kept(daemon, Path(directory) / "log") == b"".join(text for _, text in entries)
    assert daemon.streams == len(breaks) + 1


def test_a_clock_that_goes_back_loses_nothing_of_an_unbroken_stream(tmp_path: Path) -> None:
    daemon = BreakingDaemon([(5000, b"a\n"), (1000, b"b\n"), (6000, b"c\n")], [])
    assert kept(daemon, tmp_path / "log") == b"a\nb\nc\n"


def test_a_flood_leaves_two_files_of_bounded_size(tmp_path: Path) -> None:
    entries = [(number, b"x" * 99 + b"\n") for number in range(1000)]
    last = kept(BreakingDaemon(entries, []), tmp_path / "log", max_bytes=10_000)
    assert len(last) <= 10_000 and (tmp_path / "log.1").stat().st_size <= 10_000
    assert {file.name for file in tmp_path.iterdir()} == {"log", "log.1"}


def test_a_second_life_is_appended_and_a_container_taken_over_is_read_anew(tmp_path: Path) -> None:
    daemon = BreakingDaemon([(1, b"first\n")], [])
    keeper = LogKeeper(daemon, "c", tmp_path / "log")  # type: ignore[arg-type]  # the part of a Daemon that is read
    keeper.follow()
    keeper.settle(30.0)
    daemon.entries.append((2, b"second\n"))
    keeper.follow()
    keeper.settle(30.0)
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"
    other = LogKeeper(daemon, "c", tmp_path / "log", "wb")  # type: ignore[arg-type]  # as above
    other.finish(30.0)
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"


def test_a_full_disk_is_noted_and_ends_no_run() -> None:
    keeper = LogKeeper(BreakingDaemon([(1, b"x" * 10_000)], []), "c", Path("/dev/full"))  # type: ignore[arg-type]
    keeper.follow()
    keeper.settle(30.0)
    assert keeper.failed is not None and "No space left" in str(keeper.failed)


@pytest.mark.parametrize("error", [ContainerGoneError("c")])
def test_a_container_that_is_gone_has_nothing_more_to_say(error: HostError, tmp_path: Path) -> None:
    class Gone(BreakingDaemon):
        def inspect(self, container: str) -> dict[str, Any]:
            raise error

    assert kept(Gone([], []), tmp_path / "log") == b""
