"""The identity of a configuration: what changes it and what does not."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_engine.contract.flags import EngineFlags
from ninfer_lifecycle.profiles.configuration import ProfileLock, build_configuration, build_lock, configured_flags
from ninfer_lifecycle.profiles.differences import differences
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile

MODEL, IMAGE = "b" * 64, "sha256:" + "c" * 64
TEXT = """\
schemaVersion: 1
name: one
model: {source: tiny, id: m}
flags: {max-context: 4096}
probes: {sizes: [512]}
"""


def profile(folder: Path, text: str = TEXT) -> Profile:
    (folder / "p.yaml").write_text(text)
    return load_profile(str(folder / "p.yaml")).profile


def identity(folder: Path, text: str = TEXT, model: str = MODEL, image: str | None = IMAGE) -> str:
    return build_configuration(profile(folder, text), model, image).identity_sha256


def test_the_identity_is_the_sha256_of_sorted_compact_json(tmp_path: Path) -> None:
    configuration = build_configuration(profile(tmp_path), MODEL, IMAGE)
    text = json.dumps(json.loads(configuration.canonical()), sort_keys=True, separators=(",", ":"))
    assert configuration.identity_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(text)["flags"]["max_context"] == 4096


@pytest.mark.parametrize(("old", "new"), [
    ("name: one", "name: two"),
    ("name: one", "name: one\nlane: other\ndescription: words"),
    ("name: one", "name: one\nhost: {kind: docker, memory: 4g}"),
    ("sizes: [512]", "sizes: [1024], forks: 2"),
    ("{max-context: 4096}", "{max_context: 4096}"),
    ("{max-context: 4096}", "{max-context: 4096, max-concurrency: 1}"),
    ("{max-context: 4096}", "{max-context: 4096, log-level: debug}"),
    ("name: one", "name: one\ngates: {maxForkToColdPpm: 10000}"),
])
def test_what_does_not_change_the_engine_does_not_change_its_identity(tmp_path: Path, old: str, new: str) -> None:
    assert identity(tmp_path, TEXT.replace(old, new)) == identity(tmp_path)


@pytest.mark.parametrize(("old", "new"), [
    ("{max-context: 4096}", "{max-context: 4160}"),
    ("{max-context: 4096}", "{max-context: 4096, no-prefix-reuse: true}"),
    ("{max-context: 4096}", "{max-context: 4096, expected-forks: 4}"),
    ("id: m", "id: other"),
])
def test_what_changes_the_engine_changes_its_identity(tmp_path: Path, old: str, new: str) -> None:
    assert identity(tmp_path, TEXT.replace(old, new)) != identity(tmp_path)


def test_model_and_image_are_part_of_the_identity(tmp_path: Path) -> None:
    same = identity(tmp_path)
    assert same != identity(tmp_path, model="d" * 64)
    assert same != identity(tmp_path, image=None)
    assert same != identity(tmp_path, image="sha256:" + "e" * 64)


def test_the_engine_is_started_with_the_digest_and_id_that_were_hashed(tmp_path: Path) -> None:
    flags = configured_flags(profile(tmp_path), MODEL)
    hashed = build_configuration(profile(tmp_path), MODEL).flags
    assert (flags.model_sha256, flags.model_id) == (MODEL, "m") == (hashed["model_sha256"], hashed["model_id"])


def test_a_lock_read_back_has_the_same_bytes_and_digests(tmp_path: Path) -> None:
    one = profile(tmp_path)
    lock = build_lock(one, build_configuration(one, MODEL, IMAGE))
    again = ProfileLock.model_validate_json(lock.canonical()).checked()
    assert (again.canonical(), again.sha256) == (lock.canonical(), lock.sha256)
    assert lock.sha256 == hashlib.sha256(lock.canonical()).hexdigest()


def test_probes_and_gates_change_the_lock_and_not_the_configuration(tmp_path: Path) -> None:
    one, two, three = (profile(tmp_path, TEXT.replace(old, new)) for old, new in (
        ("", ""), ("sizes: [512]", "sizes: [576]"), ("name: one", "name: one\ngates: {maxForkToColdPpm: 10000}")))
    locks = [build_lock(item, build_configuration(item, MODEL)) for item in (one, two, three)]
    assert len({lock.configuration_sha256 for lock in locks}) == 1
    assert len({lock.sha256 for lock in locks}) == 3


@pytest.mark.parametrize("part", ["configuration_sha256", "probes_sha256", "gates_sha256"])
def test_a_lock_whose_digest_is_not_that_of_its_part_is_refused(tmp_path: Path, part: str) -> None:
    one = profile(tmp_path)
    value = json.loads(build_lock(one, build_configuration(one, MODEL)).canonical())
    value[part] = "0" * 64
    with pytest.raises(ValueError, match=part):
        ProfileLock.model_validate_json(json.dumps(value)).checked()


@given(st.integers(64, 10**6), st.booleans(), st.sampled_from(["auto", "fp32", "bf16"]))
def test_equal_flags_have_equal_identities_and_others_do_not(context: int, reuse: bool, dtype: str) -> None:
    from ninfer_lifecycle.profiles.configuration import Configuration, identity_flags

    def of(**values: object) -> str:
        flags = EngineFlags.model_validate(values)
        return Configuration(flags=identity_flags(flags), image=None, model_sha256=MODEL).identity_sha256

    given_flags = {"max_context": context, "no_prefix_reuse": reuse, "dtype": dtype}
    assert of(**given_flags) == of(**given_flags, port=9, log_level="debug", model="/elsewhere")
    assert of(**given_flags) != of(**{**given_flags, "max_context": context + 1})


def test_differences_name_each_leaf_and_both_values() -> None:
    left = {"a": {"b": 1, "c": [1, 2]}, "d": None}
    right = {"a": {"b": 2, "c": [2, 1]}, "e": "x"}
    assert differences(left, right) == ["a.b: 1 -> 2", "a.c: [1, 2] -> [2, 1]", "d: null -> (absent)",
                                        'e: (absent) -> "x"']
    assert differences(left, left) == []
