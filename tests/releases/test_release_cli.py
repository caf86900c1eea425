"""promote, rollback and release on the command line: exit codes, what is said, and JSON that is all of stdout."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_harness import Ran, ninfer
from receipt_cases import NOW, signer
from release_world import ENGINE, LANE, MODEL_SHA256, World

from ninfer_lifecycle.commands import lanes, promote
from ninfer_lifecycle.hosts.process import ProcessHost, pid_of
from ninfer_lifecycle.qualify.models import ModelOnDisk


@pytest.fixture
def place(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world behind the command line: its engines are pretended, its router calls for no recovery."""
    monkeypatch.chdir(world.root)
    monkeypatch.setenv("NINFER_STATE_DIR", str(world.root / "state"))
    monkeypatch.delenv("NINFER_KEYRING", raising=False)
    monkeypatch.setattr(lanes, "open_host", lambda _kind: ProcessHost(ENGINE))
    monkeypatch.setattr(lanes, "heal_command", lambda _files, _lane: ())
    monkeypatch.setattr(promote, "ensure_model", lambda *_: ModelOnDisk(world.root / "model", MODEL_SHA256))
    monkeypatch.setattr(promote, "preflight", lambda *_: ())
    (world.root / "key.pub").write_bytes(signer(1).public_key.pem())
    yield world


def promoting(world: World, name: str, model: str = "pretend", *more: object) -> Ran:
    receipt = world.receipt(world.profile(name, model))
    return ninfer("promote", f"{name}.yaml", "--receipt", receipt, "--trust", "key.pub", "--strategy", "beside", *more,
                  at=NOW + timedelta(minutes=1))


def document(ran: Ran) -> Any:
    assert ran.out.isascii()
    return json.loads(ran.out)


def test_a_lane_from_its_first_release_to_its_end(place: World) -> None:
    ran = promoting(place, "one", "pretend", "--json")
    assert ran.code == 0, ran.err
    told = document(ran)
    assert (told["lane"], told["live"]["profile"], told["previous"], told["failureStage"]) == (LANE, "one", None, None)
    assert told["url"] == place.lane().url
    assert Path(told["apiKeyFile"]).is_file()
    ran = promoting(place, "two", "other")
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"front serves two ({place.lane().live.release_id}) at http://127.0.0.1:")  # type: ignore[union-attr]
    assert "ninfer rollback front" in ran.out
    status = ninfer("release", "status", "--json")
    assert (status.code, [lane["serving"] for lane in document(status)]) == (0, [True])
    assert "front  serves  two" in ninfer("release", "status").out
    back = ninfer("rollback", LANE, "--json")
    assert (back.code, document(back)["live"]["profile"], place.live_name()) == (0, "one", "one")
    assert ninfer("release", "recover", LANE, "--json").code == 0
    history = document(ninfer("release", "history", "--json"))
    assert [entry["outcome"] for entry in history] == ["promoted", "promoted", "rolled-back"]
    assert ninfer("release", "history", LANE).out.count("\n") == 3
    stopped = ninfer("release", "stop", LANE, "--json")
    assert (stopped.code, document(stopped)["stopped"], place.engines()) == (0, True, [])
    gone = ninfer("rollback", LANE)
    assert (gone.code, "there is no lane 'front'" in gone.err) == (2, True)
    assert ninfer("release", "status").out.startswith("there is no lane")
    assert [entry["outcome"] for entry in document(ninfer("release", "history", LANE, "--json"))] == [
        "promoted", "promoted", "rolled-back", "stopped"]
    assert promoting(place, "one").code == 0
    assert ninfer("release", "history").out.count("\n") == 5, "a lane that comes again goes on with its history"


def test_a_failed_promotion_says_its_stage_and_that_the_incumbent_serves(place: World) -> None:
    assert promoting(place, "one").code == 0
    ran = promoting(place, "bad", "no_reuse", "--json")
    told = document(ran)
    assert (ran.code, told["failureStage"], told["incumbentPreserved"], told["live"]["profile"]) == (
        1, "qualification", True, "one")
    assert "failed at qualification, the incumbent serves: fork_hits" in ran.err
    ran = promoting(place, "worse", "dies_at_once", "--json")
    assert (ran.code, document(ran)["failureStage"], document(ran)["incumbentPreserved"]) == (3, "start", True)


def test_a_refused_receipt_exits_with_1_and_a_missing_one_with_2(place: World) -> None:
    place.profile("one")
    strange = place.receipt(place.profile("two", "other"))
    asked = ("promote", "one.yaml", "--trust", "key.pub")
    ran = ninfer(*asked, "--receipt", strange, "--json", at=NOW + timedelta(minutes=1))
    assert (ran.code, document(ran)["failureStage"]) == (1, "admission")
    assert "model_id" in ran.err
    assert ninfer(*asked, "--receipt", "gone", at=NOW + timedelta(minutes=1)).code == 2
    assert ninfer(*asked).code == 2
    assert ninfer("promote", "one.yaml", "--receipt", strange).code == 2
    assert ninfer("release", "status", "front").code == 2


@pytest.mark.parametrize("name", ["../x", "", "Front", "a/b", "x" * 65])
def test_a_name_that_is_none_of_a_lane_is_refused_before_a_file_is_made(place: World, name: str) -> None:
    receipt = place.receipt(place.profile("one"))
    before = sorted(place.root.rglob("*"))
    ran = ninfer("promote", "one.yaml", "--receipt", receipt, "--trust", "key.pub", "--lane", name)
    assert (ran.code, "is no name of a lane" in ran.err) == (2, True)
    assert sorted(place.root.rglob("*")) == before


def test_a_lane_whose_engine_died_is_told_as_such_with_exit_1(place: World) -> None:
    assert promoting(place, "one").code == 0
    live = place.lane().live
    assert live is not None and live.engine is not None
    os.kill(pid_of(live.engine.handle), signal.SIGKILL)
    ran = ninfer("release", "status", "--json")
    seen = document(ran)[0]
    assert (ran.code, seen["engineWell"], seen["serving"]) == (1, False, False)
    assert seen["engineFault"].startswith("its engine has ended")
    told = ninfer("release", "status").out
    assert "DOES NOT SERVE" in told and "its engine has ended" in told
    assert ninfer("release", "recover").code == 0
    assert ninfer("release", "status").code == 0


def test_a_busy_lane_exits_with_3_and_names_its_owner(place: World) -> None:
    assert promoting(place, "one").code == 0
    with place.files.owning(LANE, "a person's work"):
        for words in (("rollback", LANE), ("release", "recover", LANE), ("release", "stop", LANE)):
            ran = ninfer(*words)
            assert (ran.code, f"process {os.getpid()} works on it" in ran.err) == (3, True), words
        ran = promoting(place, "two", "other", "--json")
        assert (ran.code, document(ran)["failureStage"]) == (3, "before")
    assert place.live_name() == "one"
