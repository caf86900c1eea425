"""Rendered files: byte for byte as written down, and taken by the parsers of those who will read them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from needed import needed
from render_cases import BOXED, GOLDEN, PROFILES, cases, deployment, is_locked

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.locking import lock_profile
from ninfer_lifecycle.render.deployment import Places, deployment_of
from ninfer_lifecycle.render.files import TEMPLATES, Kind, render, unit_text, yaml_text
from ninfer_lifecycle.render.lane_units import NAMES, lane_units


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_files_are_byte_for_byte_as_written_down(tmp_path: Path) -> None:
    made = cases(tmp_path)
    assert set(made) == {path.name for path in GOLDEN.iterdir()}
    for name, text in made.items():
        assert text == (GOLDEN / name).read_text(), name
    assert cases(tmp_path) == made


@pytest.mark.parametrize("name", PROFILES)
def test_docker_compose_takes_the_file_and_reads_what_was_meant(name: str, tmp_path: Path) -> None:
    made = deployment(name, tmp_path, locked=is_locked(name))
    file = tmp_path / "compose.yaml"
    file.write_text(render(Kind.COMPOSE, made))
    done = run(needed("docker-compose"), "-f", str(file), "config")
    assert done.returncode == 0, done.stderr
    engine = yaml.safe_load(done.stdout)["services"]["engine"]
    assert engine["image"] == made.image
    assert tuple(engine["command"]) == made.argv
    assert (engine["read_only"], engine["cap_drop"], engine["security_opt"]) == (
        True, ["ALL"], ["no-new-privileges:true"])
    sources = {item["target"]: (item["source"], item.get("read_only", False)) for item in engine["volumes"]}
    assert sources["/model"] == (made.places.model_dir, True)
    devices = engine.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    assert bool(devices) is bool(made.limits.gpus)
    if name == "two-gpus":
        assert devices[0]["device_ids"] == ["GPU-1", "GPU-2"]
    if name == "limits":
        assert engine["ulimits"] == {"nofile": {"soft": 65536, "hard": 65536}, "memlock": {"soft": -1, "hard": -1}}
        assert f"size={64 * 2**20}," in engine["tmpfs"][0]


def test_compose_is_told_runtime_and_seccomp_and_then_requests_no_device(tmp_path: Path) -> None:
    (tmp_path / "seccomp.json").write_text('{"defaultAction": "SCMP_ACT_ALLOW"}')
    text = render(Kind.COMPOSE, deployment("boxed", tmp_path))
    file = tmp_path / "compose.yaml"
    file.write_text(text.replace("/etc/ninfer/seccomp.json", str(tmp_path / "seccomp.json")))
    done = run(needed("docker-compose"), "-f", str(file), "config")
    assert done.returncode == 0, done.stderr
    engine = yaml.safe_load(done.stdout)["services"]["engine"]
    assert (engine["runtime"], engine["environment"]["NVIDIA_VISIBLE_DEVICES"]) == ("nvidia", "GPU-1,GPU-2")
    assert any("seccomp" in option for option in engine["security_opt"])
    assert "devices" not in str(engine.get("deploy", {}))


@pytest.mark.parametrize(("kind", "words"), [
    (Kind.SWARM, "a service of a swarm cannot carry a seccomp profile"), (Kind.SYSTEMD, "no seccomp profile")])
def test_what_a_kind_cannot_say_is_refused_and_not_left_out(tmp_path: Path, kind: Kind, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        render(kind, deployment("boxed", tmp_path))
    assert "leave host.seccomp out" in caught.value.advice
    assert "seccomp" in BOXED


@pytest.mark.parametrize(("changes", "words"), [
    ({"model_dir": "models/tiny"}, "the model at models/tiny: not an absolute path"),
    ({"key_file": "api.key"}, "the key file at api.key: not an absolute path"),
    ({"address": "a:b"}, "a:b is no address"), ({"address": "localhost"}, "localhost is no address")])
def test_a_place_that_another_machine_would_read_otherwise_is_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Places(**{"model_dir": "/srv/m", **changes})


def test_an_address_of_ipv6_is_published_in_brackets() -> None:
    assert Places("/srv/m", address="::1", port=81).published == "[::1]:81"


@pytest.mark.parametrize("name", PROFILES)
def test_dockers_stack_parser_takes_the_swarm_file_and_reads_what_was_meant(name: str, tmp_path: Path) -> None:
    made = deployment(name, tmp_path, locked=is_locked(name))
    file = tmp_path / "stack.yaml"
    file.write_text(render(Kind.SWARM, made))
    docker = needed("docker.io", "docker")
    if "\n  config " not in run(docker, "stack", "--help").stdout:
        pytest.skip("this docker is too old to check a stack file: 23 can")
    done = run(docker, "stack", "config", "-c", str(file))
    assert done.returncode == 0, done.stderr
    assert "unsupported" not in done.stderr.lower()
    engine = yaml.safe_load(done.stdout)["services"]["engine"]
    assert tuple(engine["command"]) == made.argv
    assert engine["deploy"]["placement"]["constraints"] == [f"node.labels.ninfer.lane == {made.lane}"]
    assert engine["deploy"]["update_config"]["failure_action"] == "rollback"
    reserved = engine["deploy"].get("resources", {}).get("reservations", {})
    specs = [item["discrete_resource_spec"] for item in reserved.get("generic_resources", ())]
    assert specs == ([{"kind": "NVIDIA-GPU", "value": 2 if name == "two-gpus" else 1}] if made.limits.gpus else [])


@pytest.mark.parametrize("kind", [Kind.SYSTEMD, Kind.SYSTEMD_DOCKER])
@pytest.mark.parametrize("name", PROFILES)
def test_systemd_finds_nothing_wrong_with_the_unit(name: str, kind: Kind, tmp_path: Path) -> None:
    made = deployment(name, tmp_path, locked=is_locked(name))
    text = render(kind, made).replace(made.places.program, sys.executable).replace("BindsTo=docker.service\n", "")
    text = text.replace("After=docker.service\n", "")  # this machine's daemon may be no service of systemd
    unit = tmp_path / f"ninfer-{name}.service"
    unit.write_text(text)
    done = run(needed("systemd", "systemd-analyze"), "verify", "--man=no", str(unit))
    about_ours = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, about_ours) == (0, []), done.stderr


def test_units_that_look_after_the_lanes_call_recovery_at_boot_and_again(tmp_path: Path) -> None:
    made = lane_units(sys.executable, "/var/lib/50% of ninfer", 30)
    assert made == lane_units(sys.executable, "/var/lib/50% of ninfer", 30)
    for name, text in made.items():
        (tmp_path / name).write_text(text.replace(" docker.service", "").replace("Wants=docker.service\n", ""))
    for name in NAMES:
        done = run(needed("systemd", "systemd-analyze"), "verify", "--man=no", str(tmp_path / name))
        assert (done.returncode, [line for line in done.stderr.splitlines() if name in line]) == (0, []), done.stderr
    assert '--state-dir "/var/lib/50%% of ninfer"' in made["ninfer-lanes.service"]
    assert "Environment=" not in made["ninfer-lanes.service"]


def test_units_ask_the_daemon_that_the_lanes_are_on(tmp_path: Path) -> None:
    made = lane_units(sys.executable, "/s", 30, {"DOCKER_HOST": "unix:///run/a b.sock", "DOCKER_TLS_VERIFY": "1"})
    text = made["ninfer-lanes.service"]
    assert 'Environment="DOCKER_HOST=unix:///run/a b.sock"\nEnvironment=DOCKER_TLS_VERIFY=1\n' in text
    unit = tmp_path / "ninfer-lanes.service"
    unit.write_text(text.replace(" docker.service", "").replace("Wants=docker.service\n", ""))
    done = run(needed("systemd", "systemd-analyze"), "verify", "--man=no", str(unit))
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, []), done.stderr


def test_systemd_says_so_when_a_unit_is_wrong(tmp_path: Path) -> None:
    unit = tmp_path / "ninfer-x.service"
    unit.write_text(render(Kind.SYSTEMD, deployment("plain", tmp_path, locked=False)).replace("MemoryMax", "MemoryMux")
                    + "NoSuchKey=1\n")
    done = run(needed("systemd", "systemd-analyze"), "verify", "--man=no", str(unit))
    assert done.returncode != 0 or "NoSuchKey" in done.stderr


def test_a_lock_of_another_profile_is_refused_with_what_differs(tmp_path: Path) -> None:
    for name in ("plain", "all-gpus"):
        (tmp_path / f"{name}.yaml").write_text(PROFILES[name])
    plain, other = (load_profile(str(tmp_path / f"{name}.yaml")).profile for name in ("plain", "all-gpus"))
    with pytest.raises(UsageError, match=r'flags\.device: "cuda" -> "auto"'):
        deployment_of(plain, Places("/m"), lock_profile(other, "a" * 64, None, "c" * 64))
    changed = plain.model_copy(update={"probes": plain.probes.model_copy(update={"forks": 9})})
    with pytest.raises(UsageError, match="not of profile plain"):
        deployment_of(changed, Places("/m"), lock_profile(plain, "a" * 64, None, "c" * 64))
    with pytest.raises(UsageError, match="model_sha256"):
        deployment_of(other, Places("/m"), lock_profile(other, "c" * 64, None, "c" * 64))


def test_a_swarm_is_not_given_an_image_that_only_this_machine_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nodes can pull"):
        render(Kind.SWARM, deployment("plain", tmp_path))
    assert "sha256:" + "e" * 64 in render(Kind.COMPOSE, deployment("plain", tmp_path))


def test_a_name_that_a_template_does_not_know_is_an_error() -> None:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701
    for path in TEMPLATES.glob("*.jinja2"):
        text = re.sub(r"\| (yaml|unit|plain_unit)", "", path.read_text())
        with pytest.raises(jinja2.UndefinedError):
            environment.from_string(text).render({})


@given(st.text(st.characters(blacklist_categories=("Cs",))))
def test_any_text_is_one_yaml_scalar_and_compose_reads_it_as_it_was(text: str) -> None:
    quoted = yaml_text(text)
    assert "\n" not in quoted
    if all(char.isprintable() or char in "\t\n" for char in text):
        assert yaml.safe_load(quoted).replace("$$", "$") == text or "$$" in text
    assert json.loads(quoted.replace("$$", "$")) == text or "$$" in text


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc"))))
def test_any_word_stays_one_word_of_a_unit(text: str) -> None:
    word = unit_text(text)
    if word.startswith('"'):
        inner = word[1:-1]
        assert not re.search(r'(?<!\\)(\\\\)*"', inner)
        assert word.endswith('"')
    else:
        assert re.fullmatch(r"\S+", word)
    assert re.search(r"(?<!%)%(%%)*(?!%)", word.removeprefix("%d/").removeprefix("%S/")) is None


def test_a_line_break_cannot_get_into_a_unit() -> None:
    with pytest.raises(UsageError, match="line break"):
        unit_text("a\nExecStartPre=/bin/sh")
