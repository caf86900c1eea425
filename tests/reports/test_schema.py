"""`ninfer schema profile`: what the loader takes fits the schema, and what the schema refuses the loader refuses."""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from cli_harness import ninfer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.profiles.json_schema import profile_schema
from ninfer_lifecycle.profiles.loader import PACKAGED, list_profiles, load_profile

SCHEMA = jsonschema.Draft202012Validator(profile_schema())
PROFILES = sorted({*(entry.path for entry in list_profiles()), *PACKAGED.glob("*.yaml")})
WHOLE = yaml.safe_load((PACKAGED / "tiny-cpu.yaml").read_text(encoding="utf-8"))
VALUES: list[Any] = [None, True, 0, -1, 7, 1.5, "", "8g", "512m", "1.5", "cpu", "auto", "a" * 64, [], [512], ["512"],
                     {}, {"x": 1}]


def faults(value: Any) -> list[str]:
    return [error.message for error in SCHEMA.iter_errors(value)]


def test_the_schema_is_a_schema_and_is_what_the_command_prints() -> None:
    jsonschema.Draft202012Validator.check_schema(profile_schema())
    ran = ninfer("schema", "profile")
    assert ran.code == 0
    assert json.loads(ran.out) == profile_schema()


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_profile_fits(path: Path) -> None:
    assert faults(yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(("change", "word"), [
    ({"flags": {"max-contxt": 1}}, "max-contxt"), ({"flags": {"port": 1}}, "port"), ({"probess": {}}, "probess"),
    ({"flags": {"prefill-chunk": 65}}, "65"), ({"host": {"memory": "much"}}, "much"),
    ({"host": {"cpus": "two"}}, "two"),
    ({"probes": {"sizes": []}}, "[]"), ({"probes": {"sizes": [1]}}, "1 is less"), ({"model": {}}, "source"),
    ({"name": "Capital"}, "Capital"), ({"schemaVersion": 2}, "1 was expected"),
    ({"probes": {"plan": "fanuot"}}, "fanuot"),
])
def test_a_wrong_key_or_value_is_found(change: dict[str, Any], word: str) -> None:
    assert any(word in fault for fault in faults(WHOLE | change))


@pytest.mark.parametrize("change", [
    {"flags": {"max_context": 8192, "kv-dtype": None}}, {"host": {"cpus": 1.5, "memory": 1024, "shm": "256MiB"}},
    {"host": {"gpus": "all"}}, {"host": {"gpus": ["GPU-1"]}}, {"gates": {"maxMissBoundPpm": 50_000}},
])
def test_what_a_file_may_write_otherwise_fits_and_loads(change: dict[str, Any], tmp_path: Path) -> None:
    value = {**WHOLE, **change}
    assert faults(value) == []
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(value))
    load_profile(str(tmp_path / "p.yaml"))


def test_a_profile_that_inherits_may_leave_out_all_but_its_name() -> None:
    assert faults({"extends": "tiny-cpu", "name": "mine", "probes": {"forks": 2}}) == []
    assert faults({"extends": "tiny-cpu"}) != []
    assert faults({"name": "mine", "schemaVersion": 1}) != []


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """A whole profile with one value put in the place of another, taken out, or added under a made-up key."""
    value = copy.deepcopy(WHOLE)
    section = draw(st.sampled_from([value, *(value[key] for key in ("model", "image", "flags", "host", "probes"))]))
    key = draw(st.sampled_from([*section, "made-up", "gates", "memory", "cpus", "gpus", "kv_dtype", "no-prefix-reuse"]))
    if draw(st.booleans()) and key in section:
        del section[key]
    else:
        section[key] = draw(st.sampled_from(VALUES))
    return dict(value)


@settings(max_examples=250, deadline=None)
@given(changed())
def test_an_editor_never_marks_what_the_loader_takes(value: dict[str, Any]) -> None:
    assume(value.get("schemaVersion") is not True)  # equals 1 in Python, and so to pydantic
    if faults(value):
        with tempfile.TemporaryDirectory() as made, pytest.raises(UsageError):
            (Path(made) / "p.yaml").write_text(yaml.safe_dump(value))
            load_profile(str(Path(made) / "p.yaml"))


def test_a_mistyped_flag_is_found_whatever_its_value(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("extends: tiny-cpu\nname: p\nflags: {max-contxt: null}\n")
    ran = ninfer("profile", "validate", tmp_path / "p.yaml")
    assert ran.code == 2
    assert "did you mean max_context?" in ran.err
