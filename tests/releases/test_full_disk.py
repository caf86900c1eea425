"""The state directory's disk fills at any step of a promotion: that is said, and room is all it takes."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from release_world import World

from ninfer_lifecycle.errors import ExitCode
from ninfer_lifecycle.releases.change import ChangeError
from ninfer_lifecycle.releases.records import Strategy

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a disk")]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    """A world on a disk of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run([shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], check=True)
    world = World(place)
    yield world
    world.close()
    subprocess.run([shutil.which("umount") or "umount", str(place)], check=True)


def fill(world: World) -> None:
    """Leave nothing."""
    free = os.statvfs(world.root)
    with (world.root / "filler").open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, file.tell() + free.f_bavail * free.f_frsize)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_disk_that_fills_at_any_step_is_told_and_mended_by_room_alone(small: World, strategy: Strategy) -> None:
    wanted = {name: small.wanted(name, model, strategy) for name, model in (("one", "pretend"), ("two", "other"))}
    small.promote(wanted["one"])
    small.steps = []
    small.promote(wanted["two"])
    steps = list(small.steps)
    for index, step in enumerate(steps):
        live = small.live_name()
        other = "two" if live == "one" else "one"
        small.steps, small.at_step = [], lambda at, _, index=index: fill(small) if at == index else None
        try:
            done = small.promote(wanted[other])
            assert step == "done" or not done.retired, step
        except ChangeError as error:
            assert (error.exit_code, "No space left on device" in error.message) == (ExitCode.INCONCLUSIVE, True), step
            assert error.failure_stage and index < steps.index("proved"), step
            assert strategy is Strategy.STOP_START or error.incumbent_preserved, step
        if strategy is Strategy.BESIDE:
            small.live_name()  # what the file says serves, on a full disk too
        (small.root / "filler").unlink()
        small.at_step = lambda *_: None
        small.recover()
        assert small.live_name() == (other if index >= steps.index("switched") else live), step
        assert (len(small.engines()), small.lane().change) == (1, None), step
