"""Whose something is: an owner is told dead only when it certainly ended here. What `sweep` then removes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_harness import ninfer
from fake_dockerd import FakeContainer, FakeDockerd, Fault
from hypothesis import given
from hypothesis import strategies as st

from ninfer_lifecycle.hosts.docker_sdk import SdkDaemon
from ninfer_lifecycle.hosts.ownership import Fate, Here, fate_of, here, kept_labels, owner_labels
from ninfer_lifecycle.hosts.sweeping import sweep

OURS = {"dev.ninfer.tool": "ninfer"}


def labels(pid: int = 7, start: int = 100, boot: str = "boot", place: str = "machine:1") -> dict[str, str]:
    return {**OURS, "dev.ninfer.run": "r", "dev.ninfer.owner-pid": str(pid), "dev.ninfer.owner-start": str(start),
            "dev.ninfer.owner-boot": boot, "dev.ninfer.owner-place": place}


def at(*processes: tuple[int, int], boot: str = "boot", place: str = "machine:1") -> Here:
    return Here(place, boot, dict(processes).get)


def test_this_process_is_alive_by_its_own_labels() -> None:
    assert fate_of(owner_labels("r"), "id", here()) is Fate.ALIVE


@pytest.mark.parametrize(("now", "fate"), [
    (at((7, 100)), Fate.ALIVE),
    (at(), Fate.DEAD),
    (at((7, 101)), Fate.DEAD),  # the number was given to another process
    (at((7, 100), boot="another"), Fate.DEAD),
    (at((7, 100), place="machine:2"), Fate.ELSEWHERE),
    (at(place="another:1"), Fate.ELSEWHERE),
    (at(boot="another", place="another:1"), Fate.ELSEWHERE),
])
def test_an_owner_is_dead_only_when_it_ended_here(now: Here, fate: Fate) -> None:
    assert fate_of(labels(), "id", now) is fate


@given(st.dictionaries(st.sampled_from([*labels()]), st.text(max_size=5)))
def test_labels_that_say_too_little_never_make_an_owner_dead(some: dict[str, str]) -> None:
    if len(some) < len(labels()):
        assert fate_of({**OURS, **some}, "id", at()) in {Fate.UNKNOWN, Fate.ELSEWHERE}


def test_what_a_file_still_names_is_kept_and_goes_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "engines.json"
    marked = {**labels(), **kept_labels(file)}
    assert fate_of(marked, "abc", at()) is Fate.DEAD
    file.write_text('[{"handle": "abc"}]')
    assert fate_of(marked, "abc", at()) is Fate.KEPT
    file.write_text("[]")
    assert fate_of(marked, "abc", at()) is Fate.DEAD
    file.unlink()
    file.mkdir()
    assert fate_of(marked, "abc", at()) is Fate.KEPT, "what cannot be read may name it"


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., FakeDockerd]:
    def start(*faults: Fault) -> FakeDockerd:
        fake = FakeDockerd(tmp_path_factory.mktemp("d") / "s", *faults)
        dead = {**owner_labels("dead"), "dev.ninfer.owner-start": "1"}
        for name, told in {"dead": dead, "alive": owner_labels("alive"), "foreign": {"com.docker": "x"},
                           "else": labels(), "bare": OURS}.items():
            fake.containers[name] = FakeContainer(name, name, {"Labels": told}, state="running")
            fake.networks[f"{name}-net"] = told
            fake.volumes[f"{name}-vol"] = told
        fake.start()
        return fake

    return start


def test_sweep_removes_what_is_ours_and_dead_owned_and_nothing_else(daemon: Callable[..., FakeDockerd]) -> None:
    with daemon() as fake:
        asked = SdkDaemon(fake.url)
        dry = sweep(asked, dry_run=True)
        assert len(fake.containers) == len(fake.networks) == len(fake.volumes) == 5
        done = sweep(asked, dry_run=False)
        asked.close()
        assert {one.thing.name for one in done if one.done == "removed"} == {"dead", "dead-net", "dead-vol"}
        assert [one.thing.name for one in dry if one.done == "would be removed"] == [
            one.thing.name for one in done if one.done == "removed"]
        assert set(fake.containers) == {"alive", "foreign", "else", "bare"}
        assert set(fake.networks) == {"alive-net", "foreign-net", "else-net", "bare-net"}
        assert set(fake.volumes) == {"alive-vol", "foreign-vol", "else-vol", "bare-vol"}


def test_a_container_that_vanishes_while_sweep_lists_it_is_no_error(daemon: Callable[..., FakeDockerd]) -> None:
    with daemon(Fault.VANISHES_WHILE_LISTING) as fake:
        asked = SdkDaemon(fake.url)
        assert {one.done for one in sweep(asked, dry_run=False)} == {"removed", "kept"}
        asked.close()


def test_the_command_prints_json_and_tells_what_could_not_be_removed(
    daemon: Callable[..., FakeDockerd], monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon(Fault.REFUSES_TO_REMOVE) as fake:
        monkeypatch.setenv("DOCKER_HOST", fake.url)
        ran = ninfer("sweep", "--json")
        told = {one["name"]: one for one in json.loads(ran.out)["things"]}
    assert ran.code == 3
    assert told["dead"]["done"] == "could not be removed" and "device or resource busy" in told["dead"]["reason"]
    assert (told["dead-vol"]["done"], told["alive"]["owner"]) == ("removed", "alive")
    assert "foreign" not in told
