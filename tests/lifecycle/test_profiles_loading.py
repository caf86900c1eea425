"""Profiles: search, inheritance, merging, and errors that say where."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_lifecycle.errors import ExitCode, UsageError
from ninfer_lifecycle.profiles.loader import (
    PACKAGED,
    ProfileError,
    _merge_values,
    find_profile,
    list_profiles,
    load_profile,
)
from ninfer_lifecycle.profiles.units import parse_bytes, parse_milli_cpus
from ninfer_lifecycle.profiles.yaml_source import ProfileSyntaxError, parse_mapping

BASE = """\
schemaVersion: 1
name: base
model:
  source: tiny
flags:
  max-context: 4096
  kv_capacity: 8192
probes:
  sizes: [512, 1024]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def write(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{name}.yaml")


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ProfileError) as caught:
        load_profile(write(folder, "bad", text))
    assert caught.value.exit_code is ExitCode.USAGE
    return tuple(line.replace(str(folder) + "/", "") for line in caught.value.problems)


def test_a_profile_holds_what_it_sets_and_the_engines_defaults_for_the_rest(folder: Path) -> None:
    profile = load_profile(str(folder / "base.yaml")).profile
    assert profile.flags_set() == {"kv_capacity": 8192, "max_context": 4096}
    assert profile.flags.max_concurrency == 1
    assert profile.probes.sizes == (512, 1024)


def test_a_child_is_merged_into_its_parent_key_by_key_and_lists_are_replaced(folder: Path) -> None:
    child = write(folder, "child", "schemaVersion: 1\nname: child\nextends: base\n"
                                   "flags:\n  max_context: 8192\nprobes:\n  sizes: [2048]\n  forks: 2\n")
    loaded = load_profile(child)
    assert loaded.profile.name == "child"
    assert loaded.profile.flags_set() == {"kv_capacity": 8192, "max_context": 8192}
    assert (loaded.profile.probes.sizes, loaded.profile.probes.forks) == ((2048,), 2)
    assert [file.name for file in loaded.files] == ["child.yaml", "base.yaml"]


def test_null_puts_a_flag_back_to_the_engines_default(folder: Path) -> None:
    child = write(folder, "child", "name: child\nextends: ./base.yaml\nflags:\n  kv-capacity: null\n")
    assert load_profile(child).profile.flags_set() == {"max_context": 4096}


def test_each_problem_has_its_file_line_column_and_nearest_spelling(folder: Path) -> None:
    assert problems(folder, BASE.replace("max-context: 4096", "max-contxt: 4096") + "  frks: 4\nlanes: a\n") == (
        "bad.yaml:6:3: flags.max_contxt: unknown flag; did you mean max_context?",
        "bad.yaml:10:3: probes.frks: unknown key; did you mean forks?",
        "bad.yaml:11:1: lanes: unknown key; did you mean lane?",
    )


def test_a_problem_inherited_from_a_parent_is_shown_in_the_parents_file(folder: Path) -> None:
    write(folder, "base", BASE.replace("8192", "wide"))
    lines = problems(folder, "name: bad\nextends: base\n")
    assert len(lines) == 1 and lines[0].startswith("base.yaml:7:3: flags.kv_capacity: ")


@pytest.mark.parametrize(("old", "new", "where"), [
    ("max-context: 4096", "max-context: '4096'", "bad.yaml:6:3: flags.max_context: "),
    ("max-context: 4096", "max-concurrency: yes", "bad.yaml:6:3: flags.max_concurrency: "),
    ("max-context: 4096", "no-prefix-reuse: 1", "bad.yaml:6:3: flags.no_prefix_reuse: "),
    ("sizes: [512, 1024]", "sizes: [512, 512]", "bad.yaml:9:3: probes.sizes: each size once"),
    ("sizes: [512, 1024]", "sizes: []", "bad.yaml:9:3: probes.sizes: "),
    ("sizes: [512, 1024]", "sizes: [512, 5000]", "bad.yaml:1:1: the largest template needs 5056 tokens"),
    ("source: tiny", "source: path", "bad.yaml:3:1: model: source: path needs a path"),
    ("name: base", "name: Base Profile", "bad.yaml:2:1: name: "),
    ("schemaVersion: 1", "schemaVersion: 2", "bad.yaml:1:1: schemaVersion: "),
    ("  kv_capacity: 8192", "  port: 80", "bad.yaml:7:3: flags.port is not a profile's to set: "),
    ("  kv_capacity: 8192", "  kv_capacity: 8", "flags: kv_capacity is in tokens"),
])
def test_a_wrong_value_is_refused_where_it_stands(folder: Path, old: str, new: str, where: str) -> None:
    assert any(where in line for line in problems(folder, BASE.replace(old, new)))


def test_a_flag_in_both_spellings_is_refused(folder: Path) -> None:
    lines = problems(folder, BASE.replace("  kv_capacity: 8192", "  max_context: 8192"))
    assert lines[0].startswith("bad.yaml:7:3: flag 'max_context' a second time")


@pytest.mark.parametrize(("text", "where"), [
    ("a: 1\nb: 2\na: 3\n", ":3:1: key 'a' a second time"),
    ("a: &x 1\nb: *x\n", ":2:4: a YAML alias"),
    ("a: !!python/object:os.system 1\n", ":1:4: a YAML tag"),
    ("<<: {a: 1}\n", ":1:1: a YAML merge key"),
    ("1: a\n", ":1:1: a key that is not text"),
    ("[1, 2]\n", ":1:1: a profile is a mapping"),
    ("", ":1:1: a profile is a mapping"),
    ("a: [1\n", ":2:1: "),
    ("a: 1\n---\nb: 2\n", ":2:1: "),
    ("a:\n  - {b: 1, b: 2}\n", ":2:12: key 'b' a second time"),
    ("a: " + "[" * 5000 + "\n", ":1:19: more than 16 levels deep"),
])
def test_yaml_that_means_two_things_is_refused(text: str, where: str) -> None:
    with pytest.raises(ProfileSyntaxError) as caught:
        parse_mapping(text.encode(), "f")
    assert where in caught.value.message


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ProfileSyntaxError, match="not UTF-8"):
        parse_mapping(b"a: \xff\n", "f")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_mapping_or_a_profile_error(data: bytes) -> None:
    try:
        located = parse_mapping(data, "f")
    except UsageError:
        return
    assert isinstance(located.value, dict)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3),
                    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3) | st.lists(inner),
                    max_leaves=8)
MAPPINGS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(MAPPINGS, MAPPINGS, MAPPINGS)
def test_merging_is_the_same_however_the_chain_is_grouped_when_no_scalar_meets_a_mapping(
    a: dict[str, object], b: dict[str, object], c: dict[str, object]
) -> None:
    flat = [{key: value for key, value in item.items() if not isinstance(value, dict)} for item in (a, b, c)]
    assert _merge_values(_merge_values(flat[0], flat[1]), flat[2]) == _merge_values(
        flat[0], _merge_values(flat[1], flat[2]))
    assert _merge_values(a, {}) == a and _merge_values(a, a) == a


def test_profiles_that_extend_each_other_are_refused_with_the_circle(folder: Path) -> None:
    write(folder, "one", "name: one\nextends: two\n")
    path = write(folder, "two", "name: two\nextends: one\n")
    with pytest.raises(UsageError, match=r"in a circle: two\.yaml -> one\.yaml -> two\.yaml"):
        load_profile(path)


def test_an_unknown_parent_is_refused_where_it_is_named(folder: Path) -> None:
    path = write(folder, "orphan", "name: orphan\nextends: bse\n")
    with pytest.raises(UsageError, match=r"orphan\.yaml:2:1: no profile named 'bse'"):
        load_profile(path)


def test_a_profile_in_the_working_directory_comes_before_the_packaged_one(folder: Path) -> None:
    write(folder, "tiny-cpu", BASE.replace("name: base", "name: tiny-cpu"))
    assert find_profile("tiny-cpu", (folder, PACKAGED)) == folder / "tiny-cpu.yaml"
    shadowed = [entry for entry in list_profiles((folder, PACKAGED)) if entry.shadowed_by]
    assert [entry.path for entry in shadowed] == [PACKAGED / "tiny-cpu.yaml"]


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UsageError, match="no profile named 'tiny-cup'; did you mean tiny-cpu"):
        load_profile("tiny-cup", (PACKAGED,))


@pytest.mark.parametrize("name", ["tiny-cpu", "tiny-cpu-full", "qwen38-5090", "qwen38-5090-fanout"])
def test_every_packaged_profile_is_valid(name: str) -> None:
    assert load_profile(name, (PACKAGED,)).profile.name == name


def test_the_full_profile_probes_the_published_sizes() -> None:
    profile = load_profile("tiny-cpu-full", (PACKAGED,)).profile
    assert profile.probes.sizes == (28405, 57853, 67681, 79957)
    assert (profile.probes.forks, profile.probes.restarts, profile.flags.max_concurrency) == (4, 1, 1)
    assert profile.flags.max_context == 131072
    assert isinstance(profile.flags.kv_capacity, int) and profile.flags.kv_capacity > sum(profile.probes.sizes)


def test_the_fanout_variant_has_the_published_remedy_and_its_parent_the_published_defaults() -> None:
    names = ("max_private_continuations", "device_state_slots", "host_state_slots")
    parent, variant = (load_profile(name, (PACKAGED,)).profile.flags for name in ("qwen38-5090", "qwen38-5090-fanout"))
    assert [getattr(parent, name) for name in names] == [2, 1, 8]
    assert [getattr(variant, name) for name in names] == [8, 4, 24]


@pytest.mark.parametrize(("text", "size"), [("512m", 512 * 2**20), ("8g", 8 * 2**30), ("1GiB", 2**30), ("64", 64),
                                            (4096, 4096), ("1 kb", 1024)])
def test_sizes_are_read_as_docker_reads_them(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "8 giga", "-1", "0", "1.5g", "g", True, 0, -5])
def test_a_size_without_meaning_is_refused(text: str | int) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize(("value", "milli"), [(2, 2000), (1.5, 1500), ("0.25", 250), ("12", 12000), (0.001, 1)])
def test_cpus_are_thousandths(value: str | int | float, milli: int) -> None:
    assert parse_milli_cpus(value) == milli


@pytest.mark.parametrize("value", [0, -1, "two", 1.2345, True, float("nan"), 1e-9])
def test_cpus_without_meaning_are_refused(value: str | int | float) -> None:
    with pytest.raises(ValueError, match=re.escape("cpus is a number")):
        parse_milli_cpus(value)
