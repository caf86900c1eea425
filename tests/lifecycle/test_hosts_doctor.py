"""The preflight: each thing that stands against a start is found and told with its remedy, on machines that lack it."""

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli_harness import ninfer
from fake_dockerd import FakeDockerd
from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import ExitCode, HostError
from ninfer_lifecycle.hosts.daemon import Daemon, DaemonFacts, ImageFacts, ImageMissingError, NoDaemonError
from ninfer_lifecycle.hosts.doctor import Asked, Doctor
from ninfer_lifecycle.hosts.doctor_room import LOG_BYTES, computed_need
from ninfer_lifecycle.hosts.findings import Finding, Level, exit_code_of, ok, problem, unknown, warning
from ninfer_lifecycle.hosts.machine import Gpu, Machine
from ninfer_lifecycle.hosts.model_digest import model_digest, weight_numbers
from ninfer_lifecycle.hosts.needs import OVERHEAD_BYTES, need_of, session_bytes, store_bytes
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.models import ensure_model
from ninfer_lifecycle.simulate.shapes import HYBRID_27B, TINY

NOW = datetime(2026, 12, 2, tzinfo=UTC).timestamp() + 10**6
GIB = 2**30
HEALTHY = Machine(free_disk=lambda _: 10**12, same_disk=lambda *_: False, can_write=lambda _: True,
                  available_memory=lambda: 10**12,
                  gpus=lambda: (Gpu("GPU-1", 80 * GIB), Gpu("GPU-2", 24 * GIB)), port_is_free=lambda _: True,
                  free_port=lambda: 4711, unix_s=lambda: NOW, has_module=lambda _: True)
FACTS = DaemonFacts("20.10", "1.41", "overlay2", "2", Path("/nowhere"), ("nvidia", "runc"),
                    datetime.fromtimestamp(NOW, UTC).isoformat(), 10**12, local=True)


class ToldDaemon:
    """A daemon that says what it is told to."""

    def __init__(self, facts: DaemonFacts = FACTS, images: dict[str, str] | None = None) -> None:
        self.told, self.images, self.closed = facts, images, False

    def facts(self) -> DaemonFacts:
        return self.told

    def image(self, reference: str) -> ImageFacts:
        if self.images is not None and reference not in self.images:
            raise ImageMissingError(reference)
        return ImageFacts("sha256:" + "1" * 64, (), 1)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    from ninfer_lifecycle.profiles.schema import ModelSection
    made = ensure_model(ModelSection(source="tiny"), tmp_path_factory.mktemp("models"))
    return made.path, made.sha256


def profile_with(**changes: Any) -> Profile:
    """tiny-cpu with sections changed, by their own field names."""
    profile = load_profile("tiny-cpu").profile
    for name, fields in changes.items():
        section = getattr(profile, name)
        profile = profile.model_copy(update={name: section.model_copy(update=fields)})
    return profile


def examine(profile: Profile, kind: Any = "docker", machine: Machine = HEALTHY, daemon: Any = None,
            hash_model: bool = True, port: int = 0, run_dir: Path = Path("/nowhere/runs")) -> dict[str, Finding]:
    def open_daemon() -> Daemon:
        return daemon or ToldDaemon()  # type: ignore[return-value]  # the part of it that is asked

    found = Doctor(open_daemon, machine).examine(Asked(profile, kind, run_dir, port, hash_model))
    return {one.check: one for one in found}


def test_a_healthy_machine_has_nothing_against_a_pinned_profile() -> None:
    found = examine(profile_with(image={"digest": "sha256:" + "1" * 64}))
    assert {one.level for one in found.values()} == {Level.OK}
    assert set(found) == {"clock", "daemon", "api", "daemon clock", "image", "port", "model", "memory", "store quota",
                          "disk", "gpu"}


GPU: dict[str, Any] = {"flags": {"device": "cuda"}, "host": {"gpus": "all"}}


@pytest.mark.parametrize(("check", "changes", "machine", "daemon"), [
    ("clock", {}, replace(HEALTHY, unix_s=lambda: 0.0), None),
    ("api", {}, HEALTHY, ToldDaemon(replace(FACTS, api_version="1.39"))),
    ("daemon clock", {}, HEALTHY, ToldDaemon(replace(FACTS, system_time="2001-01-01T00:00:00Z"))),
    ("image", {}, HEALTHY, ToldDaemon(images={})),
    ("port", {}, replace(HEALTHY, port_is_free=lambda _: False), None),
    ("model", {"model": {"source": "path", "path": "/nowhere"}}, HEALTHY, None),
    ("model", {}, replace(HEALTHY, has_module=lambda _: False), None),
    ("memory limit", {"host": {"memory": 2**29}}, HEALTHY, None),
    ("memory", {}, replace(HEALTHY, available_memory=lambda: 2**29), None),
    ("memory", {}, HEALTHY, ToldDaemon(replace(FACTS, memory_bytes=2**29, local=False))),
    ("store quota", {"flags": {"session_checkpoint_quota_mib": 1}}, HEALTHY, None),
    ("disk", {}, replace(HEALTHY, free_disk=lambda _: 10**6), None),
    ("disk", {}, replace(HEALTHY, can_write=lambda _: False), None),
    ("gpu", {"flags": {"device": "cuda"}}, HEALTHY, None),
    ("gpu", GPU, replace(HEALTHY, gpus=lambda: None), None),
    ("gpu", {"host": {"gpus": ("GPU-9",)}, "flags": {"device": "auto"}}, HEALTHY, None),
    ("runtime", {**GPU, "host": {"gpus": "all", "runtime": "nvidia"}}, HEALTHY, ToldDaemon(
        replace(FACTS, runtimes=("runc",)))),
    ("runtime", {"host": {"runtime": "crun"}}, HEALTHY, None),
    ("seccomp", {"host": {"seccomp": "/nowhere.json"}}, HEALTHY, None),
    ("gpu memory", GPU, replace(HEALTHY, gpus=lambda: (Gpu("GPU-1", 2**29),)), None),
])
def test_each_lack_is_a_problem_with_a_remedy(check: str, changes: dict[str, Any], machine: Machine,
                                              daemon: Any) -> None:
    found = examine(profile_with(**changes), machine=machine, daemon=daemon, port=4711)
    assert found[check].level is Level.PROBLEM and found[check].remedy
    assert exit_code_of(found.values()) is ExitCode.FAILED


@pytest.mark.parametrize(("check", "host", "no_manager", "words"), [
    ("swarm", {}, "its swarm is inactive", "no swarm manager: its swarm is inactive"),
    ("swarm", {}, "it is a worker", "it is a worker"),
    ("swarm service", {"runtime": "nvidia"}, None, "cannot choose a runtime"),
    ("swarm service", {"seccomp": "/x.json"}, None, "cannot carry a seccomp profile")])
def test_what_a_swarm_lacks_or_cannot_say_is_a_problem_before_anything_starts(
    check: str, host: dict[str, Any], no_manager: str | None, words: str
) -> None:
    found = examine(profile_with(host=host), "swarm", daemon=ToldDaemon(replace(FACTS, no_manager=no_manager)))
    assert found[check].level is Level.PROBLEM and words in found[check].message and found[check].remedy
    well = examine(profile_with(), "swarm", daemon=ToldDaemon(replace(FACTS, no_manager=None)))
    assert well["swarm"].level is Level.OK and "swarm service" not in well


def test_room_is_kept_for_two_generations_and_for_an_image_that_is_yet_to_come(tmp_path: Path) -> None:
    profile, facts = profile_with(), replace(FACTS, data_root=tmp_path)
    session = session_bytes(profile.flags, TINY, on_gpu=False)
    least, image = 2 * session + LOG_BYTES, LOG_BYTES + 2 * GIB

    def disk(free: int, *, together: bool, images: dict[str, str] | None = None) -> tuple[Level, ...]:
        machine = replace(HEALTHY, free_disk=lambda _: free, same_disk=lambda *_: together)
        found = examine(profile, machine=machine, daemon=ToldDaemon(facts, images))
        return tuple(found[name].level for name in ("disk", "daemon disk") if name in found)

    assert disk(least, together=False)[0] is Level.WARNING and disk(least - 1, together=False)[0] is Level.PROBLEM
    assert disk(image, together=False, images={})[1] is Level.OK
    assert disk(image - 1, together=False, images={})[1] is Level.PROBLEM
    assert disk(least + image, together=True, images={}) != (Level.PROBLEM,)
    assert disk(least + image - 1, together=True, images={}) == (Level.PROBLEM,)


def test_a_quota_has_to_hold_two_generations_of_the_longest_session() -> None:
    needed = -(-2 * session_bytes(profile_with().flags, TINY, on_gpu=False) >> 20)
    for quota, level in ((needed, Level.OK), (needed - 1, Level.PROBLEM)):
        found = examine(profile_with(flags={"session_checkpoint_quota_mib": quota}))["store quota"]
        assert found.level is level, quota
    assert f"set session-checkpoint-quota-mib to {needed} or more" in found.remedy


def test_with_a_gpu_the_machines_memory_holds_the_pinned_host_tier_and_the_process() -> None:
    flags = {"device": "cuda", "host_kv_mib": 4096, "host_state_slots": 8}
    profile = profile_with(flags=flags, host={"gpus": "all", "memory": None})
    need = 4096 * 2**20 + 8 * TINY.image_bytes + OVERHEAD_BYTES
    assert computed_need(profile) == need
    for free, level in ((need, Level.OK), (need - 1, Level.PROBLEM)):
        found = examine(profile, machine=replace(HEALTHY, available_memory=lambda free=free: free))["memory"]
        assert found.level is level and "host tier 4.0 GiB, pinned" in found.message


def test_memory_of_a_daemon_elsewhere_is_told_as_what_it_is() -> None:
    found = examine(profile_with(), daemon=ToldDaemon(replace(FACTS, local=False)))["memory"]
    assert "the daemon's machine has 931.3 GiB in all" in found.message


def test_the_computed_need_is_what_the_preflight_holds_against_what_is_free() -> None:
    profile = profile_with(host={"memory": None})
    need = computed_need(profile)
    assert need is not None
    enough, little = (examine(profile, machine=replace(HEALTHY, available_memory=lambda size=size: size))["memory"]
                      for size in (need, need - 1))
    assert (enough.level, little.level) == (Level.OK, Level.PROBLEM)
    unknown = profile.model_copy(update={"model": profile.model.model_copy(update={"source": "path", "path": "/no"})})
    assert computed_need(unknown) is None


def test_no_daemon_is_a_problem_and_what_hangs_on_it_is_unknown() -> None:
    def none() -> Daemon:
        raise NoDaemonError("no Docker daemon answers at unix:///x", "start it")

    found = {one.check: one for one in Doctor(none, HEALTHY).examine(Asked(profile_with(), "docker", Path("/r")))}
    assert (found["daemon"].level, found["image"].level) == (Level.PROBLEM, Level.UNKNOWN)
    assert found["daemon"].remedy == "start it" and "memory" in found


def test_a_tag_without_a_digest_and_a_disk_that_fills_are_warnings() -> None:
    found = examine(profile_with(), machine=replace(HEALTHY, free_disk=lambda _: 2**29))
    assert (found["image"].level, found["disk"].level) == (Level.WARNING, Level.WARNING)
    assert exit_code_of(found.values()) is ExitCode.PASSED


def test_the_process_host_needs_an_engine_and_no_daemon() -> None:
    found = examine(profile_with(), "process", replace(HEALTHY, has_module=lambda name: name != "torch"))
    assert found["engine"].level is Level.PROBLEM and "daemon" not in found and "image" not in found


def test_gpus_of_another_machine_cannot_be_looked_at() -> None:
    found = examine(profile_with(**GPU), daemon=ToldDaemon(replace(FACTS, local=False)))
    assert found["gpu"].level is Level.UNKNOWN
    assert exit_code_of(found.values()) is ExitCode.INCONCLUSIVE


def test_only_the_gpus_that_are_asked_for_count() -> None:
    small = examine(profile_with(flags={"device": "cuda"}, host={"gpus": ("GPU-2",)}))
    assert "24.0 GiB" in small["gpu memory"].message and "1 of this machine's 2" in small["gpu"].message


@pytest.mark.parametrize(("findings", "code"), [
    ((ok("a", "x"),), 0), ((ok("a", "x"), warning("b", "x", "y")), 0), ((unknown("a", "x", "y"),), 3),
    ((unknown("a", "x", "y"), problem("b", "x", "y")), 1), ((), 0)])
def test_the_worst_finding_decides_the_exit_code(findings: tuple[Finding, ...], code: int) -> None:
    assert exit_code_of(findings) == code


# The model


def test_the_digest_is_the_one_that_the_engine_computes(tiny: tuple[Path, str]) -> None:
    path, digest = tiny
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(path.iterdir())
             if file.name != "made.json"]  # a note of how the tiny model was made, and no part of it
    assert model_digest(path) == digest == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_a_changed_byte_a_missing_digest_and_a_right_one_are_told_apart(tiny: tuple[Path, str]) -> None:
    path, digest = tiny
    given = {"source": "path", "path": str(path)}
    assert examine(profile_with(model={**given, "sha256": digest}))["model"].level is Level.OK
    assert "names no digest" in examine(profile_with(model=given))["model"].message
    assert digest in examine(profile_with(model=given))["model"].remedy
    assert digest in examine(profile_with(model={**given, "sha256": "0" * 64}))["model"].message
    skipped = examine(profile_with(model={**given, "sha256": digest}), hash_model=False)["model"]
    assert skipped.level is Level.UNKNOWN


def test_weights_are_counted_as_the_engine_loads_them(tiny: tuple[Path, str]) -> None:
    from safetensors import safe_open
    counted = 0
    for file in tiny[0].glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            counted += sum(opened.get_tensor(name).numel() for name in opened.keys())  # noqa: SIM118 - no mapping
    assert abs(weight_numbers(tiny[0]) - counted) < counted * 0.02


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="holds no model"):
        model_digest(tmp_path)


# Needs


def test_the_published_setting_needs_what_was_published_of_it() -> None:
    """146.8 to 149.6 MiB an image, 64 KiB of keys and values a token: published figures of the 27B model."""
    flags = EngineFlags(max_context=131072, max_concurrency=1, device_state_slots=4, host_state_slots=24,
                        host_kv_mib=8192, kv_capacity=131072)
    need = need_of(flags, HYBRID_27B, 27_000_000_000, on_gpu=True)
    assert need.device_kv == 131072 * 64 * 1024
    assert 5 * 146 * 2**20 < need.device_images < 5 * 150 * 2**20
    assert need.host_kv == 8 * GIB and 24 * 146 * 2**20 < need.host_images < 24 * 150 * 2**20
    assert need.weights == 54_000_000_000 and not need.kv_is_least


@given(st.integers(1, 8), st.integers(64, 2**17), st.integers(1, 2**16))
def test_a_store_never_needs_more_than_its_quota_and_grows_with_the_context(c: int, context: int, quota: int) -> None:
    flags = EngineFlags(max_concurrency=c, max_context=context, session_checkpoint_quota_mib=quota)
    need = need_of(flags, HYBRID_27B, 10**9, on_gpu=True)
    assert 0 < store_bytes(flags, HYBRID_27B, need, True) <= quota << 20
    more = flags.model_copy(update={"max_context": 2 * context})
    assert session_bytes(more, HYBRID_27B, True) > session_bytes(flags, HYBRID_27B, True)
    assert need_of(more, HYBRID_27B, 10**9, True).device >= need.device


# The command


def test_the_command_speaks_json_with_a_remedy_for_each_problem(tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeDockerd(tmp_path / "s") as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.url)
        ran = ninfer("doctor", "tiny-cpu", "--host", "docker", "--runs-dir", tmp_path, "--json")
    found = {one["check"]: one for one in json.loads(ran.out)["findings"]}
    assert ran.code == 0 and found["daemon"]["message"].startswith("Docker 20.10.0-fake")
    assert all(one["remedy"] for one in found.values() if one["level"] != "ok")


def test_the_command_tells_a_missing_daemon_with_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    ran = ninfer("doctor")
    assert ran.code == 1 and "no Docker daemon answers" in ran.out and "-> start it" in ran.out


def test_an_unknown_profile_is_a_usage_error() -> None:
    assert ninfer("doctor", "tiny-cpuu").code == 2
