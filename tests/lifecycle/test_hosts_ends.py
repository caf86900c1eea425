"""Witnesses of an end, the kernel's counters, the limit of a stop, GPUs seen inside: pure parts of the Docker host."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_hosts_readiness import document

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.contract.status import BytePool, Cache, Pool
from ninfer_lifecycle.client import EngineUnreachableError
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, HostFacts, RunningEngine
from ninfer_lifecycle.hosts.daemon import Said
from ninfer_lifecycle.hosts.ends import CgroupWitness, MemoryWitnesses, end_of, explained
from ninfer_lifecycle.hosts.gpus import gpu_difference, listed_gpus
from ninfer_lifecycle.hosts.grace import LONGEST_S, SAVE_BYTES_PER_S, enough_grace, stop_limit, unsaved_bytes
from ninfer_lifecycle.hosts.inside import listens_inside
from ninfer_lifecycle.hosts.readiness import EngineEndedError, ForeignServerError
from ninfer_lifecycle.simulate.shapes import HYBRID_27B, TINY

MIB = 2**20


# An end for memory


@given(st.builds(MemoryWitnesses, st.booleans(), st.booleans(), st.integers(0, 3),
                 st.sampled_from([None, 0, 1, 137]), st.sampled_from(["", "Traceback", "CUDA out of memory"])))
def test_any_witness_is_enough_and_a_sigkill_alone_is_none(seen: MemoryWitnesses) -> None:
    said = seen.flag or seen.event or seen.cgroup_kills > 0 or "memory" in seen.last_lines
    assert bool(seen.named()) == said
    assert ("exit code 137" in seen.named()) == (said and seen.exit_code == 137)


def test_an_end_that_the_daemon_alone_can_explain_has_its_words() -> None:
    attrs = {"State": {"ExitCode": 127, "Error": "exec: no such file", "OOMKilled": False}}
    assert end_of(attrs, "", event=False, cgroup_kills=0).last_lines == "exec: no such file"
    assert end_of(attrs, "its own words", event=False, cgroup_kills=0).last_lines == "its own words"


CONTAINER = "c" * 64


def cgroups(tmp_path: Path, lines: str) -> CgroupWitness:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(lines)
    return CgroupWitness.of(CONTAINER, 7, tmp_path / "sys", tmp_path / "proc")


def test_kills_are_counted_in_cgroup_2(tmp_path: Path) -> None:
    place = tmp_path / "sys" / "system.slice" / f"docker-{CONTAINER}.scope"
    place.mkdir(parents=True)
    (tmp_path / "sys" / "cgroup.controllers").write_text("memory")
    (place / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n")
    assert cgroups(tmp_path, f"0::/system.slice/docker-{CONTAINER}.scope\n").kills() == 2


def test_kills_are_counted_in_cgroup_1(tmp_path: Path) -> None:
    place = tmp_path / "sys" / "memory" / "docker" / CONTAINER
    place.mkdir(parents=True)
    (place / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    seen = cgroups(tmp_path, f"8:pids:/x\n4:memory:/docker/{CONTAINER}\n0::/docker/{CONTAINER}\n")
    assert seen.kills() == 1
    (place / "memory.oom_control").unlink()
    assert seen.kills() is None, "it goes with the container"


def test_a_process_of_the_same_number_on_this_machine_is_no_witness(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys" / "cgroup.controllers").write_text("")
    (tmp_path / "sys" / "memory.events").write_text("oom_kill 9\n")
    assert cgroups(tmp_path, "0::/\n4:memory:/user.slice\n").kills() is None
    assert CgroupWitness.of(CONTAINER, 8, tmp_path / "sys", tmp_path / "proc").kills() is None


def sockets(tmp_path: Path, name: str, *rows: str) -> Path:
    process = tmp_path / "proc" / "7"
    (process / "net").mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/docker/{CONTAINER}\n")
    (process / "net" / name).write_text("  sl  local_address rem_address   st\n" + "".join(row + "\n" for row in rows))
    return tmp_path / "proc"


@pytest.mark.parametrize(("name", "row", "listening"), [
    ("tcp", "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000", True),
    ("tcp6", "   0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0", True),
    ("tcp", "   0: 00000000:1F91 00000000:0000 0A 00000000:00000000", False),
    ("tcp", "   0: 0100007F:1F90 0100007F:C000 01 00000000:00000000", False)])
def test_a_listener_inside_is_seen_in_the_kernels_table(tmp_path: Path, name: str, row: str, listening: bool) -> None:
    proc = sockets(tmp_path, name, row)
    assert listens_inside(CONTAINER, 7, 8080, proc) is listening
    assert not listens_inside("d" * 64, 7, 8080, proc) and not listens_inside(CONTAINER, 8, 8080, proc)


class ToldHost:
    """A host whose engine ends after some looks."""

    def __init__(self, *running: bool) -> None:
        self.running = list(running)

    def inspect(self, engine: RunningEngine) -> HostFacts:
        alive = self.running.pop(0) if len(self.running) > 1 else self.running[0]
        return HostFacts("docker", "h", alive, "now", exit_code=None if alive else 137,
                         oom_killed=not alive, memory_witnesses=("an oom event",))

    def logs(self, engine: RunningEngine, tail: int = 200) -> str:
        return "the last line"


@pytest.fixture
def engine(tmp_path: Path) -> RunningEngine:
    spec = EngineSpec("r", EngineFlags(session_checkpoint_quota_mib=1024), tmp_path, tmp_path, store_dir=tmp_path)
    return RunningEngine(spec, "docker", "h", "http://127.0.0.1:9", "now")


def told(host: Any, engine: RunningEngine, error: Any) -> Any:
    return explained(host, engine, error)


def test_a_broken_conversation_is_explained_by_an_end_that_shows_a_moment_later(engine: RunningEngine) -> None:
    found = told(ToldHost(True, True, False), engine, EngineUnreachableError("broken"))
    assert isinstance(found, EngineEndedError)
    assert "killed for memory (witnesses: an oom event)" in found.message and "the last line" in found.message


def test_what_is_no_broken_conversation_or_no_end_stays_as_it_is(engine: RunningEngine) -> None:
    for error in (HostError("x"), ForeignServerError("y")):
        assert told(ToldHost(False), engine, error) is error
    broken = EngineUnreachableError("broken")
    assert told(ToldHost(True), engine, broken) is broken


# The limit of a stop


def held(device_images: int, host_images: int, pages: int, host_bytes: int) -> Any:
    cache = Cache(device_state=Pool(occupied=device_images), host_state=Pool(occupied=host_images),
                  device_kv=Pool(occupied=pages), host_kv=BytePool(occupied_bytes=host_bytes))
    return document().model_copy(update={"cache": cache})


def test_what_is_held_is_what_a_stop_may_have_to_save() -> None:
    status = held(2, 3, 10, 5 * MIB)
    found = unsaved_bytes(status, HYBRID_27B, quota_mib=10**6)
    assert found == 5 * HYBRID_27B.image_bytes + 10 * HYBRID_27B.page_bytes("fp32") + 5 * MIB
    assert unsaved_bytes(status, HYBRID_27B, quota_mib=1) == MIB
    assert unsaved_bytes(status, None, quota_mib=7) == 7 * MIB
    assert unsaved_bytes(held(0, 0, 0, 0), None, quota_mib=7) == 0


@given(st.floats(0.1, 3600), st.integers(0, 2**44), st.integers(0, 2**44))
def test_a_limit_is_never_shorter_than_asked_for_and_grows_with_what_is_held(grace: float, less: int,
                                                                           more: int) -> None:
    limit = stop_limit(grace, less)
    assert grace <= limit <= max(LONGEST_S, grace)
    assert stop_limit(grace, less + more) >= limit


def test_forty_gigabytes_get_more_than_a_minute() -> None:
    assert stop_limit(60, 40 * 2**30) == 60 + 40 * 2**30 / SAVE_BYTES_PER_S > 600


def test_a_kill_stays_a_kill_and_an_engine_that_does_not_answer_gets_what_was_asked_for(engine: RunningEngine) -> None:
    assert enough_grace(engine, 0.0) == 0.0
    assert enough_grace(replace(engine, spec=replace(engine.spec, store_dir=None)), 7.0) == 7.0
    assert enough_grace(engine, 7.0) == 7.0
    assert TINY.image_bytes > 0


# GPUs seen inside: what `nvidia-smi -L` prints

LISTED = """GPU 0: NVIDIA H200 (UUID: GPU-5c8a8b3e-5f3c-0f39-6f6c-2b6d0d2f4b11)
  MIG 1g.18gb     Device  0: (UUID: MIG-41a2e0d5-1111-5b0a-8f0e-3a2f6a3f1c22)
GPU 1: NVIDIA H200 (UUID: GPU-0b1f0c52-aaaa-bbbb-cccc-000000000001)
"""


def test_gpus_are_listed_by_uuid() -> None:
    assert listed_gpus(LISTED) == ("GPU-5c8a8b3e-5f3c-0f39-6f6c-2b6d0d2f4b11",
                                   "MIG-41a2e0d5-1111-5b0a-8f0e-3a2f6a3f1c22",
                                   "GPU-0b1f0c52-aaaa-bbbb-cccc-000000000001")


ONE = Said(0, "GPU 0: X (UUID: GPU-1)\n")


@pytest.mark.parametrize(("asked", "said", "words"), [
    (("all",), ONE, None), (("GPU-1",), ONE, None), (("all",), Said(0, "No devices found\n"), "sees none"),
    (("GPU-2",), ONE, "does not see GPU-2"), (("GPU-1",), Said(0, "UUID: GPU-1\nUUID: GPU-2"), "also sees GPU-2"),
    (("all",), Said(255, "Failed to initialize NVML: Unknown Error\n"), "ends with 255: Failed to initialize NVML"),
    (("all",), Said(127, ""), "says nothing")])
def test_gpus_inside_are_compared_with_those_asked_for(asked: tuple[str, ...], said: Said, words: str | None) -> None:
    found = gpu_difference(asked, said)
    assert found is None if words is None else words in str(found)
