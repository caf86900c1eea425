"""Engines that a killed tool left: found by the run's own key file, and by nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.orphans import engines_of
from ninfer_lifecycle.hosts.process import ProcessHost
from ninfer_lifecycle.qualify.rundir import RunDirectory, held

SAYS_READY_AND_WAITS = "import signal, sys; print('ready', flush=True); signal.pause()"


def run_directory(parent: Path, name: str) -> Path:
    path = parent / name
    path.mkdir()
    (path / "api.key").write_text("secret\n")
    return path


@contextmanager
def engine_of(run: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with the arguments of an engine of that run, alone in its group as engines are."""
    process = subprocess.Popen([sys.executable, "-c", SAYS_READY_AND_WAITS, "serve", "--api-key-file",
                                str(run / "api.key"), "--port", "1"], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_engine_of_the_run_goes_and_that_of_another_run_stays(tmp_path: Path) -> None:
    ours, theirs = run_directory(tmp_path, "a"), run_directory(tmp_path, "b")
    with engine_of(ours) as left, engine_of(theirs) as other:
        assert engines_of(ours) == (left.pid,)
        assert ProcessHost().reap(ours) == 1
        assert left.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        assert ProcessHost().reap(ours) == 0


def test_a_process_that_merely_names_the_key_is_no_engine(tmp_path: Path) -> None:
    run = run_directory(tmp_path, "a")
    process = subprocess.Popen([sys.executable, "-c", SAYS_READY_AND_WAITS, str(run / "api.key")],
                               stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        assert engines_of(run) == ()
        assert ProcessHost().reap(run) == 0
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_run_is_held_by_one_tool_and_freed_when_that_is_killed(tmp_path: Path) -> None:
    run = RunDirectory(run_directory(tmp_path, "a"), "a")
    code = ("import sys, signal; from pathlib import Path; from ninfer_lifecycle.qualify.rundir import *\n"
            "with held(RunDirectory(Path(sys.argv[1]), 'a')): print('held', flush=True); signal.pause()")
    tool = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdout=subprocess.PIPE,
                            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    assert tool.stdout is not None
    try:
        assert tool.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another ninfer works on run a"), held(run):
            pass
    finally:
        tool.kill()
        tool.wait()
        tool.stdout.close()
    with held(run):
        assert (run.path / "lock").is_file()
