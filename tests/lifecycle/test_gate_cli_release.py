"""`ninfer gate`: exit codes, explanations, the signed decision, and what GitHub Actions sees."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from cli_harness import Ran, ninfer
from receipt_cases import LOCK, NOW, chained, honest_evidence, is_fork, receipt, signer, spoil

from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.store import ReceiptStore

COLD = spoil(honest_evidence(), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0, computed_tokens=1058,
             counter_computed_tokens=1058)


@pytest.fixture(autouse=True)
def quiet_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINFER_STATE_DIR", str(tmp_path / "state"))
    for name in ("NINFER_KEYRING", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "key.pub").write_bytes(signer(1).public_key.pem())
    (tmp_path / "a.lock.json").write_bytes(LOCK)
    (tmp_path / "receipts").mkdir()
    return tmp_path


def gate(place: Path, *more: object, **extra: object) -> Ran:
    at = extra.get("at", NOW)
    assert isinstance(at, type(NOW))
    return ninfer("gate", place / "a.lock.json", "--receipts", place / "receipts", "--key", place / "key.pub", *more,
                  at=at)


def test_a_fitting_receipt_passes(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt())
    ran = gate(place)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("allowed: lock ")


def test_every_refusal_exits_1_and_says_why(place: Path) -> None:
    store = ReceiptStore(place / "receipts")
    nothing = gate(place)
    assert (nothing.code, "there is none" in nothing.err) == (1, True)
    path = store.write(receipt())
    expired = gate(place, at=NOW + timedelta(days=91))
    assert (expired.code, "expired" in expired.err) == (1, True)
    (place / "key2.pub").write_bytes(signer(2).public_key.pem())
    stranger = ninfer("gate", place / "a.lock.json", "--receipts", place / "receipts", "--key", place / "key2.pub")
    assert (stranger.code, "no key of the role" in stranger.err) == (1, True)
    (place / "b.lock.json").write_bytes(b"another")
    other = ninfer("gate", place / "b.lock.json", "--receipts", place / "receipts", "--key", place / "key.pub")
    assert (other.code, "about other configurations" in other.err) == (1, True)
    raw = bytearray(path.read_bytes())
    raw[900] = ord("A") if raw[900] != ord("A") else ord("B")
    path.write_bytes(bytes(raw))
    changed = gate(place)
    assert (changed.code, "signature" in changed.err) == (1, True)


def test_a_failed_receipt_is_refused(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt(COLD))
    ran = gate(place)
    assert ran.code == 1
    assert "fork_hits 1000 tokens epoch 0 is FAILED" in ran.err


def test_a_policy_file_is_used_and_its_mistakes_are_usage_errors(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt())
    (place / "policy.yaml").write_text(ninfer("gate", "--show-default-policy").out + "sizes: [57853]\n")
    ran = gate(place, "--policy", place / "policy.yaml")
    assert (ran.code, "no template of 57853 tokens" in ran.err) == (1, True)
    (place / "policy.yaml").write_text("sizess: []\n")
    assert gate(place, "--policy", place / "policy.yaml").code == 2
    assert gate(place, "--policy", place / "gone.yaml").code == 2


def test_missing_arguments_are_usage_errors(place: Path) -> None:
    assert ninfer("gate").code == 2
    assert ninfer("gate", place / "gone.json", "--key", place / "key.pub").code == 2
    ran = ninfer("gate", place / "a.lock.json", "--receipts", place / "gone", "--key", place / "key.pub")
    assert ran.code == 2
    assert ninfer("gate", place / "a.lock.json", "--receipts", place / "receipts").code == 2


def test_an_allowed_release_is_signed_by_the_release_key_and_read_back(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt())
    assert ninfer("key", "new", place / "release").code == 0
    ran = gate(place, "--release-key", place / "release.key")
    assert ran.code == 0, ran.err
    decision = place / "a.lock.release.intoto.json"
    assert decision.is_file()
    read = ninfer("receipt", "verify-decision", decision, "--lock", place / "a.lock.json",
                  "--key", place / "release.pub")
    assert (read.code, read.out.startswith("allowed: lock ")) == (0, True)
    wrong = ninfer("receipt", "verify-decision", decision, "--lock", place / "a.lock.json", "--key", place / "key.pub")
    assert wrong.code == 1
    assert ninfer("receipt", "verify-decision", decision, "--lock", place / "a.lock.json").code == 2
    assert load_public_key(place / "release.pub").keyid[:8] not in ran.err


def test_a_refused_release_is_not_signed(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt(COLD))
    ninfer("key", "new", place / "release")
    assert gate(place, "--release-key", place / "release.key").code == 1
    assert not list(place.glob("*.release.intoto.json"))


def test_a_keyring_may_say_whom_to_trust(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt())
    ninfer("key", "new", place / "root")
    ran = ninfer("key", "init", "--keyring", place / "ring", "--root-key", place / "root.key", "--add",
                 f"qualifier={place / 'key.pub'}")
    assert ran.code == 0, ran.err
    arguments = ["gate", place / "a.lock.json", "--receipts", place / "receipts", "--keyring", place / "ring"]
    assert ninfer(*arguments, "--root", place / "root.pub").code == 0
    assert ninfer(*arguments, at=NOW + timedelta(days=366)).code == 1
    keyid = signer(1).public_key.keyid
    ninfer("key", "revoke", keyid, "--compromised", "--keyring", place / "ring", "--root-key", place / "root.key")
    assert ninfer(*arguments).code == 1


def test_the_role_that_a_policy_trusts_is_the_role_that_is_asked(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt())
    ninfer("key", "new", place / "root")
    ninfer("key", "init", "--keyring", place / "ring", "--root-key", place / "root.key", "--add",
           f"qualifier={place / 'key.pub'}")
    (place / "policy.yaml").write_text(ninfer("gate", "--show-default-policy").out + "trustedRole: release\n")
    arguments = ["gate", place / "a.lock.json", "--receipts", place / "receipts", "--keyring", place / "ring"]
    assert ninfer(*arguments).code == 0
    ran = ninfer(*arguments, "--policy", place / "policy.yaml")
    assert (ran.code, "nobody has the role release" in ran.err) == (1, True)


def test_a_baseline_that_cannot_be_compared_is_inconclusive(place: Path) -> None:
    path = ReceiptStore(place / "receipts").write(receipt())
    ran = gate(place, "--baseline", path)
    assert ran.code == 3
    assert "6 blocks are needed" in ran.out
    assert not list(place.glob("*.release.intoto.json"))


def test_an_index_serves_in_place_of_its_folder(place: Path) -> None:
    ReceiptStore(place / "receipts").write(receipt())
    assert ninfer("receipt", "index", place / "receipts", "--key", place / "key.pub").code == 0
    index = place / "receipts" / "index.json"
    ran = ninfer("gate", place / "a.lock.json", "--receipts", index, "--key", place / "key.pub")
    assert ran.code == 0, ran.err
    (place / "b.lock.json").write_bytes(b"another")
    assert ninfer("gate", place / "b.lock.json", "--receipts", index, "--key", place / "key.pub").code == 1


def test_an_index_cannot_vouch_for_a_receipt_that_was_changed_after_it(place: Path) -> None:
    path = ReceiptStore(place / "receipts").write(receipt())
    ninfer("receipt", "index", place / "receipts", "--key", place / "key.pub")
    path.write_bytes(path.read_bytes().replace(b'"payload":"e', b'"payload":"f', 1))
    index = place / "receipts" / "index.json"
    ran = ninfer("gate", place / "a.lock.json", "--receipts", index, "--key", place / "key.pub")
    assert ran.code == 1


def test_json_holds_the_decision_and_the_reasons(place: Path) -> None:
    store = ReceiptStore(place / "receipts")
    first = receipt()
    store.write(first)
    allowed = json.loads(gate(place, "--json").out)
    assert allowed["allowed"] is True
    assert allowed["chosen"][0]["payloadSha256"] == first.payload_sha256
    store.write(receipt(COLD, head=chained(first), finished_on=NOW - timedelta(minutes=1)))
    ran = gate(place, "--json")
    refused = json.loads(ran.out)
    assert (ran.code, refused["allowed"]) == (1, False)
    assert "FAILED" in refused["missing"][0]["reason"]


def test_actions_gets_annotations_and_a_summary_that_no_receipt_can_forge(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    evil = "x\n::error::forged\n<script>alert(1)</script>"
    ReceiptStore(place / "receipts").write(receipt(limitations=(evil,)))
    ran = gate(place)
    assert ran.code == 1
    commands = [line for line in ran.out.splitlines() if line.startswith("::")]
    assert commands
    assert all(line.startswith(("::error title=ninfer gate", "::warning title=ninfer gate")) for line in commands)
    summary = (place / "summary.md").read_text()
    assert "refused" in summary
    assert "<script>" not in summary
    ReceiptStore(place / "receipts").write(receipt(head=chained(receipt(limitations=(evil,))), finished_on=NOW))
    assert gate(place).code == 0
    assert "allowed" in (place / "summary.md").read_text()
