"""What a container is asked to be against what inspecting it says: every difference is found, and only differences."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import ninfer_lifecycle
from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import EngineSpec, Limits, Ulimit
from ninfer_lifecycle.hosts.container import (
    Asked,
    BoundPath,
    create_options,
    drift,
    facts_of,
    has_ended,
    published_port,
)
from ninfer_lifecycle.hosts.ends import end_of
from ninfer_lifecycle.hosts.mounts import prepare_belongings
from ninfer_lifecycle.hosts.placing import check_inputs
from ninfer_lifecycle.profiles.schema import HostSection
from ninfer_lifecycle.qualify.prepare import limits_of

IMAGE = "sha256:" + "a" * 64
ASKED = Asked(IMAGE, ("serve", "--port", "8080"), "10001:10001", (BoundPath("/m", "/model", read_only=True),),
              Limits(memory_bytes=2**30, milli_cpus=1500), 0)


def inspected() -> dict[str, Any]:
    """A running container as the Docker API 1.41 describes it, cut down to what is read."""
    return {
        "Id": "c" * 64, "Image": IMAGE,
        "State": {"Status": "running", "Running": True, "OOMKilled": False, "ExitCode": 0, "Pid": 7, "Error": "",
                  "StartedAt": "2026-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"},
        "Config": {"Cmd": ["serve", "--port", "8080"], "User": "10001:10001"},
        "HostConfig": {"ReadonlyRootfs": True, "CapDrop": ["ALL"], "CapAdd": None, "Privileged": False,
                       "SecurityOpt": ["no-new-privileges:true"], "Memory": 2**30, "NanoCpus": 1_500_000_000,
                       "Tmpfs": {"/tmp": "rw,nosuid,nodev,size=1073741824,mode=1777"},  # noqa: S108 - inside
                       "Runtime": "runc",
                       "ShmSize": 2**26, "Ulimits": None,
                       "DeviceRequests": None, "PortBindings": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}},
        "Mounts": [{"Type": "bind", "Source": "/m", "Destination": "/model", "RW": False}],
        "NetworkSettings": {"Ports": {"8080/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}]}},
    }


def test_a_container_as_asked_for_has_no_drift() -> None:
    assert drift(ASKED, inspected()) == ()


@pytest.mark.parametrize(("path", "value", "named"), [
    (("Image",), "sha256:" + "b" * 64, "image"),
    (("Config", "Cmd"), ["serve", "--port", "8080", "--no-prefix-reuse"], "command"),
    (("Config", "User"), "", "user"),
    (("HostConfig", "ReadonlyRootfs"), False, "read-only root"),
    (("HostConfig", "CapDrop"), None, "dropped capabilities"),
    (("HostConfig", "CapAdd"), ["SYS_ADMIN"], "added capabilities"),
    (("HostConfig", "Privileged"), True, "privileged"),
    (("HostConfig", "SecurityOpt"), None, "no-new-privileges"),
    (("HostConfig", "SecurityOpt"), ["no-new-privileges:false"], "no-new-privileges"),
    (("HostConfig", "Memory"), 0, "memory"),
    (("HostConfig", "NanoCpus"), 0, "cpus"),
    (("HostConfig", "DeviceRequests"), [{"Count": -1}], "gpus"),
    (("HostConfig", "PortBindings"), {"8080/tcp": [{"HostIp": "", "HostPort": ""}]}, "published address"),
    (("HostConfig", "Tmpfs"), {}, "size of /tmp"),
    (("HostConfig", "RestartPolicy"), {"Name": "always", "MaximumRetryCount": 0}, "restart policy"),
    (("HostConfig", "Ulimits"), [{"Name": "nofile", "Soft": 9, "Hard": 9}], "ulimits"),
    (("HostConfig", "SecurityOpt"), ["no-new-privileges:true", "seccomp=unconfined"], "seccomp profile"),
    (("Mounts",), [{"Type": "bind", "Source": "/m", "Destination": "/model", "RW": True}], "mounts"),
    (("Mounts",), [], "mounts"),
])
def test_each_difference_is_named(path: tuple[str, ...], value: object, named: str) -> None:
    attrs = copy.deepcopy(inspected())
    target = attrs
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    differences = drift(ASKED, attrs)
    assert len(differences) == 1 and differences[0].startswith(named)


def test_a_port_counts_only_when_bound_on_the_loopback_address() -> None:
    attrs = inspected()
    assert published_port(attrs) == 32768
    attrs["NetworkSettings"]["Ports"]["8080/tcp"] = [{"HostIp": "192.0.2.1", "HostPort": "1"}]
    assert published_port(attrs) is None
    attrs["NetworkSettings"]["Ports"] = {}
    assert published_port(attrs) is None


@pytest.mark.parametrize(("status", "ended"), [("created", False), ("running", False), ("restarting", False),
                                               ("exited", True), ("dead", True)])
def test_created_is_not_ended(status: str, ended: bool) -> None:
    attrs = inspected()
    attrs["State"]["Status"] = status
    assert has_ended(attrs) is ended


def test_an_exit_code_is_told_only_of_what_ended() -> None:
    attrs = inspected()
    assert facts_of(attrs, {}, None).exit_code is None and facts_of(attrs, {}, None).finished_at is None
    attrs["State"] |= {"Status": "exited", "Running": False, "ExitCode": 3, "FinishedAt": "2026-01-01T00:01:00Z"}
    facts = facts_of(attrs, {}, end_of(attrs, "", event=False, cgroup_kills=0))
    assert (facts.exit_code, facts.oom_killed, facts.finished_at) == (3, False, "2026-01-01T00:01:00Z")


def test_limits_that_are_asked_for_and_not_given_are_drift(tmp_path: Path) -> None:
    profile = tmp_path / "seccomp.json"
    profile.write_text('{"defaultAction": "SCMP_ACT_ERRNO"}')
    limits = replace(ASKED.limits, runtime="nvidia", shm_bytes=2**20, ulimits=(Ulimit("nofile", 1, 2),),
                     tmpfs_bytes=2**21, seccomp=profile)
    named = [difference.split(" is ")[0] for difference in drift(replace(ASKED, limits=limits), inspected())]
    assert named == ["runtime", "shared memory", "ulimits", "size of /tmp", "seccomp profile"]


@pytest.fixture
def spec(tmp_path: Path) -> EngineSpec:
    key = tmp_path / "key"
    key.write_text("the-words-of-the-key\n")
    (tmp_path / "model").mkdir()
    spec = EngineSpec("r", EngineFlags(), tmp_path / "model", tmp_path / "run", key_file=key,
                      store_dir=tmp_path / "store", image="i")
    check_inputs(spec)
    return spec


def test_no_path_of_this_machine_and_no_key_reaches_the_engines_arguments(spec: EngineSpec, tmp_path: Path) -> None:
    argv = " ".join(prepare_belongings(spec).argv)
    assert str(tmp_path) not in argv and "the-words-of-the-key" not in argv
    assert "--model /model" in argv and "--host 0.0.0.0" in argv


def test_only_store_and_log_can_be_written(spec: EngineSpec) -> None:
    writable = {mount.target for mount in prepare_belongings(spec).mounts if not mount.read_only}
    assert writable == {"/var/lib/ninfer/store", "/var/lib/ninfer/log"}


def test_a_model_file_is_mounted_under_its_own_name(spec: EngineSpec, tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"GGUF")
    belongings = prepare_belongings(replace(spec, model_dir=file))
    assert "--model /model/weights.gguf" in " ".join(belongings.argv)


def test_an_empty_key_is_refused(spec: EngineSpec) -> None:
    assert spec.key_file is not None
    spec.key_file.write_text("\n")
    with pytest.raises(HostError, match="is empty"):
        check_inputs(spec)


def test_options_ask_for_gpus_by_uuid_or_all_or_none(spec: EngineSpec) -> None:
    def requests(*gpus: str) -> object:
        return create_options(spec, Asked(IMAGE, (), "1:1", (), Limits(gpus=gpus), 0))["device_requests"]

    assert requests() is None
    assert requests("all") == [{"count": -1, "capabilities": [["gpu"]]}]
    assert requests("GPU-1", "GPU-2") == [{"device_ids": ["GPU-1", "GPU-2"], "capabilities": [["gpu"]]}]


def test_the_nvidia_runtime_is_told_the_devices_in_its_own_way(spec: EngineSpec) -> None:
    limits = Limits(gpus=("GPU-1", "GPU-2"), runtime="nvidia")
    options = create_options(spec, Asked(IMAGE, (), "1:1", (), limits, 0))
    assert (options["runtime"], options["device_requests"]) == ("nvidia", None)
    assert options["environment"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"


def test_a_seccomp_profile_travels_as_text_and_a_broken_one_is_refused(spec: EngineSpec, tmp_path: Path) -> None:
    profile = tmp_path / "seccomp.json"
    asked = Asked(IMAGE, (), "1:1", (), Limits(seccomp=profile), 0)
    profile.write_text('{"defaultAction":\n "SCMP_ACT_ALLOW"}')
    assert 'seccomp={"defaultAction":"SCMP_ACT_ALLOW"}' in create_options(spec, asked)["security_opt"]
    profile.write_text("{}")
    with pytest.raises(HostError, match="no seccomp profile"):
        create_options(spec, asked)


def test_a_profiles_host_section_says_every_limit() -> None:
    section = HostSection.model_validate({
        "memory": "8g", "cpus": 1.5, "shm": "1g", "tmpfs": "64m", "gpus": ["GPU-1"], "runtime": "nvidia",
        "ulimits": {"nofile": 1024, "memlock": -1}, "seccomp": "/etc/seccomp.json"})
    assert limits_of(section) == Limits(
        8 * 2**30, 1500, 2**30, ("GPU-1",), "nvidia", (Ulimit("memlock", -1, -1), Ulimit("nofile", 1024, 1024)),
        64 * 2**20, Path("/etc/seccomp.json"))


@pytest.mark.parametrize("wrong", [{"ulimits": {"NOFILE": 1}}, {"ulimits": {"nofile": -2}}, {"runtime": "a b"},
                                   {"tmpfs": "much"}])
def test_a_limit_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HostSection.model_validate(wrong)


def test_docker_py_is_known_to_one_sub_package() -> None:
    root = Path(ninfer_lifecycle.__file__).parent
    knows = {path.relative_to(root).parent.as_posix() for path in root.rglob("*.py")
             if re.search(r"^\s*(import|from) docker\b", path.read_text(encoding="utf-8"), re.MULTILINE)}
    assert knows == {"hosts/docker_sdk"}
