"""`ninfer receipt`: verifying, showing, indexing and listing what lies on disk."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from cli_harness import ninfer
from receipt_cases import LOCK, NOW, chained, honest_evidence, is_fork, receipt, signer, spoil

from ninfer_lifecycle.receipts.store import ReceiptStore

COLD = spoil(honest_evidence(), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0, computed_tokens=1058)


@pytest.fixture(autouse=True)
def no_trust_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("NINFER_KEYRING", raising=False)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.pub"
    path.write_bytes(signer(1).public_key.pem())
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return ReceiptStore(tmp_path / "receipts").write(receipt())


def test_a_good_receipt_verifies_step_by_step(good: Path, key: Path) -> None:
    for path in (good, good.with_name(good.name.replace(".intoto.", ".sigstore."))):
        ran = ninfer("receipt", "verify", path, "--key", key)
        assert ran.code == 0, ran.err
        lines = ran.out.splitlines()
        assert len(lines) == 17
        assert all(line.startswith("passed ") for line in lines[:16])
        assert lines[16].endswith("verified")


def test_one_changed_byte_is_refused_with_the_step_and_advice(good: Path, key: Path) -> None:
    raw = bytearray(good.read_bytes())
    raw[600] = ord("A") if raw[600] != ord("A") else ord("B")
    good.write_bytes(bytes(raw))
    ran = ninfer("receipt", "verify", good, "--key", key)
    assert ran.code == 1
    assert "failed       signature" in ran.out
    assert "not reached  threshold" in ran.out
    assert "refused at step 'signature'" in ran.err
    assert "\n  " in ran.err


def test_json_tells_every_step(good: Path, key: Path) -> None:
    ran = ninfer("receipt", "verify", good, "--key", key, "--json")
    value = json.loads(ran.out)
    assert value["verified"] is True
    assert len(value["steps"]) == 16
    assert value["signers"] == [signer(1).public_key.keyid]
    refused = json.loads(ninfer("receipt", "verify", good, "--key", key, "--json", at=NOW + timedelta(days=91)).out)
    assert refused["verified"] is False
    assert [step["step"] for step in refused["steps"] if step["state"] == "failed"] == ["freshness"]
    assert "result" not in refused


def test_whom_to_trust_must_be_said_or_be_this_machines_own_key(good: Path, tmp_path: Path, key: Path) -> None:
    ran = ninfer("receipt", "verify", good)
    assert ran.code == 2
    assert "--key" in ran.err
    own = tmp_path / "state" / "keys" / "qualifier.pub"
    own.parent.mkdir(parents=True)
    own.write_bytes(key.read_bytes())
    ran = ninfer("receipt", "verify", good)
    assert ran.code == 0
    assert "own key" in ran.err


def test_the_lock_file_in_hand_decides_what_the_receipt_is_about(good: Path, key: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.lock.json").write_bytes(LOCK)
    assert ninfer("receipt", "verify", good, "--key", key, "--lock", tmp_path / "mine.lock.json").code == 0
    (tmp_path / "mine.lock.json").write_bytes(b"another")
    ran = ninfer("receipt", "verify", good, "--key", key, "--lock", tmp_path / "mine.lock.json")
    assert ran.code == 1
    assert "subject" in ran.err
    assert ninfer("receipt", "verify", good, "--key", key, "--lock", tmp_path / "gone").code == 2


def test_files_that_are_missing_or_of_another_kind_are_clear_errors(tmp_path: Path, key: Path) -> None:
    ran = ninfer("receipt", "verify", tmp_path / "gone.intoto.json", "--key", key)
    assert ran.code == 2
    assert ninfer("receipt", "verify", key, "--key", key).code == 1
    assert ninfer("receipt", "verify", tmp_path, "--key", key).code == 2


def test_a_failed_receipt_is_refused_by_verify_and_shown_by_show(tmp_path: Path, key: Path) -> None:
    path = ReceiptStore(tmp_path / "receipts").write(receipt(COLD))
    ran = ninfer("receipt", "verify", path, "--key", key)
    assert ran.code == 1
    assert "says FAILED" in ran.err
    assert ninfer("receipt", "verify", path, "--key", key, "--any-result").code == 0
    shown = ninfer("receipt", "show", path, "--key", key)
    assert shown.code == 0
    assert "FAILED" in shown.out
    assert "fork_hits" in shown.out
    statement = json.loads(ninfer("receipt", "show", path, "--key", key, "--json").out)
    assert statement["predicate"]["result"] == "FAILED"


def test_an_expired_receipt_is_shown_as_expired(good: Path, key: Path) -> None:
    shown = ninfer("receipt", "show", good, "--key", key, at=NOW + timedelta(days=400))
    assert shown.code == 0
    assert "(expired)" in shown.out


def test_markup_in_a_receipt_is_text(tmp_path: Path, key: Path) -> None:
    path = ReceiptStore(tmp_path / "receipts").write(receipt(limitations=("[red]x[/red] [/nonsense]",)))
    shown = ninfer("receipt", "show", path, "--key", key)
    assert shown.code == 0
    assert "[red]x[/red] [/nonsense]" in shown.out


def test_words_of_an_engine_add_no_line_no_colour_and_no_command(tmp_path: Path, key: Path) -> None:
    evil = "[bold]x[/nonsense]\x1b[31m\n::error::forged\u202e"
    made = receipt(spoil(honest_evidence(), is_fork(480, 0, 1), witness_conflict=evil))
    path = ReceiptStore(tmp_path / "receipts").write(made)
    for ran in (ninfer("receipt", "show", path, "--key", key), ninfer("receipt", "verify", path, "--key", key)):
        text = ran.out + ran.err
        assert "accounting" in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert not [line for line in text.splitlines() if line.startswith("::")]


def test_what_does_not_verify_is_not_shown(good: Path, key: Path) -> None:
    good.write_bytes(good.read_bytes().replace(b'"sig":"', b'"sig":"AAAA', 1))
    ran = ninfer("receipt", "show", good, "--key", key)
    assert ran.code == 1
    assert "PASSED" not in ran.out


@pytest.mark.parametrize("arguments", [["--max-age", "1x"], ["--policy-sha256"], ["--key", "gone.pub"]])
def test_mistaken_options_are_usage_errors(good: Path, key: Path, arguments: list[str]) -> None:
    assert ninfer("receipt", "verify", good, "--key", key, *arguments).code == 2


def test_age_and_policy_can_be_asked_for(good: Path, key: Path) -> None:
    assert ninfer("receipt", "verify", good, "--key", key, "--max-age", "2h").code == 0
    assert ninfer("receipt", "verify", good, "--key", key, "--max-age", "30m").code == 1
    assert ninfer("receipt", "verify", good, "--key", key, "--policy-sha256", "0" * 64).code == 1


def test_a_chain_is_checked_where_the_receipt_before_is_given(tmp_path: Path, key: Path, good: Path) -> None:
    store = ReceiptStore(tmp_path / "receipts")
    second = store.write(receipt(head=store.head("tiny-cpu", "default"), finished_on=NOW - timedelta(minutes=9)))
    third = store.write(receipt(head=store.head("tiny-cpu", "default"), finished_on=NOW - timedelta(minutes=8)))
    ran = ninfer("receipt", "verify", second, "--key", key, "--previous", good)
    assert (ran.code, "follows" in ran.out) == (0, True)
    ran = ninfer("receipt", "verify", third, "--key", key, "--previous", good)
    assert (ran.code, "a gap or a fork" in ran.err) == (1, True)


def test_receipts_are_indexed_and_listed(tmp_path: Path, key: Path, good: Path) -> None:
    store = ReceiptStore(tmp_path / "receipts")
    store.write(receipt(COLD, head=chained(receipt()), finished_on=NOW - timedelta(minutes=30)))
    folder = tmp_path / "receipts"
    assert ninfer("receipt", "list", folder).code == 2
    ran = ninfer("receipt", "index", folder, "--key", key)
    assert ran.code == 0
    assert "2 receipts" in ran.out
    assert [line.split()[1] for line in ninfer("receipt", "list", folder).out.splitlines()] == ["FAILED", "PASSED"]
    assert len(ninfer("receipt", "list", folder, "--result", "passed").out.splitlines()) == 1
    assert len(ninfer("receipt", "list", folder, "--since", "45m").out.splitlines()) == 1
    assert len(ninfer("receipt", "list", folder, "--since", "2026-09-05T00:00:00Z").out.splitlines()) == 2
    assert ninfer("receipt", "list", folder, "--since", "yesterday").code == 2
    listed = json.loads(ninfer("receipt", "list", folder, "--json", "--profile", "tiny-cpu").out)
    assert {entry["result"] for entry in listed} == {"FAILED", "PASSED"}
    good.write_bytes(b"{}")
    ran = ninfer("receipt", "index", folder, "--key", key)
    assert "1 receipts" in ran.out
    assert "left out" in ran.err
