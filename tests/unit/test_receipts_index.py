"""The index: verified receipts only, brought up to date by what changed."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from receipt_cases import NOW, chained, honest_evidence, is_fork, receipt, signer, spoil

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.errors import StoreError
from ninfer_lifecycle.receipts.index import Query, ReceiptIndex
from ninfer_lifecycle.receipts.store import ReceiptStore
from ninfer_lifecycle.receipts.trust import Role, trust_keys

TRUST = trust_keys(Role.QUALIFIER, signer(1).public_key)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three receipts: PASSED, FAILED, and one of another profile."""
    store = ReceiptStore(tmp_path)
    first = receipt()
    cold = spoil(honest_evidence(), is_fork(1000, 0, 2), reused_tokens=0, cached_tokens=0, computed_tokens=1058)
    store.write(first)
    store.write(receipt(cold, head=chained(first), finished_on=NOW - timedelta(minutes=30)))
    store.write(receipt(profile="other", finished_on=NOW - timedelta(minutes=90)))
    return tmp_path


def found(index: ReceiptIndex, query: Query = Query()) -> list[tuple[str, int, str]]:  # noqa: B008  frozen
    return [(entry.profile, entry.sequence, entry.result) for entry in index.find(query)]


def test_an_index_holds_what_verifies_newest_first(folder: Path) -> None:
    index = ReceiptIndex(folder)
    update = index.update(TRUST, NOW)
    assert (update.entries, update.verified, update.unchanged, update.removed, update.refused) == (3, 3, 0, 0, ())
    assert found(index) == [("tiny-cpu", 2, "FAILED"), ("tiny-cpu", 1, "PASSED"), ("other", 1, "PASSED")]
    entries = json.loads(index.json_path.read_bytes())["entries"]
    assert [(entry["profile"], entry["sequence"]) for entry in entries] == [
        ("other", 1), ("tiny-cpu", 1), ("tiny-cpu", 2)]
    assert entries[0]["signers"] == [signer(1).public_key.keyid]
    assert (folder / entries[0]["path"]).is_file()


def test_entries_are_found_by_profile_result_time_and_subject(folder: Path) -> None:
    index = ReceiptIndex(folder)
    index.update(TRUST, NOW)
    assert found(index, Query(profile="other")) == [("other", 1, "PASSED")]
    assert found(index, Query(result=Result.FAILED)) == [("tiny-cpu", 2, "FAILED")]
    assert found(index, Query(since="2026-09-05T11:00:00Z", profile="tiny-cpu", result=Result.PASSED)) == [
        ("tiny-cpu", 1, "PASSED")]
    assert found(index, Query(since="2026-09-05T11:30:01Z")) == []
    assert found(index, Query(lane="gpu")) == []
    subject = next(index.find(Query())).subject
    assert len(found(index, Query(subject=subject))) == 3
    assert found(index, Query(profile="x' OR '1'='1")) == []


def test_an_update_looks_only_at_what_changed(folder: Path) -> None:
    index = ReceiptIndex(folder)
    index.update(TRUST, NOW)
    written = index.json_path.stat().st_mtime_ns
    assert index.update(TRUST, NOW).verified == 0
    assert index.json_path.stat().st_mtime_ns == written
    ReceiptStore(folder).write(receipt(profile="third"))
    update = index.update(TRUST, NOW)
    assert (update.verified, update.unchanged, update.entries) == (1, 3, 4)


def test_a_changed_receipt_leaves_the_index_and_a_lost_one_is_forgotten(folder: Path) -> None:
    index = ReceiptIndex(folder)
    index.update(TRUST, NOW)
    path = folder / "other" / "other.default.000001.intoto.json"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"payload":"e', b'"payload":"f', 1))
    update = index.update(TRUST, NOW)
    assert update.entries == 2
    assert [name for name, _ in update.refused] == ["other/other.default.000001.intoto.json"]
    path.unlink()
    update = index.update(TRUST, NOW)
    assert (update.removed, update.refused) == (1, ())


def test_an_index_under_other_trust_starts_over(folder: Path) -> None:
    index = ReceiptIndex(folder)
    index.update(TRUST, NOW)
    update = index.update(trust_keys(Role.QUALIFIER, signer(2).public_key), NOW)
    assert (update.entries, update.verified, len(update.refused)) == (0, 3, 3)


def test_receipts_that_expired_are_still_told_of(folder: Path) -> None:
    assert ReceiptIndex(folder).update(TRUST, NOW + timedelta(days=400)).entries == 3


def test_a_damaged_index_is_a_clear_error_and_is_made_anew_once_deleted(folder: Path) -> None:
    index = ReceiptIndex(folder)
    index.update(TRUST, NOW)
    (folder / "index.sqlite").write_bytes(b"not a database, but long enough to be taken for one" * 50)
    for use in (lambda: list(index.find(Query())), lambda: index.update(TRUST, NOW)):
        with pytest.raises(StoreError) as refused:
            use()
        assert "Delete it" in refused.value.advice
    (folder / "index.sqlite").unlink()
    assert index.update(TRUST, NOW).entries == 3


def test_a_folder_without_an_index_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        list(ReceiptIndex(tmp_path).find(Query()))
    assert "ninfer receipt index" in refused.value.advice
    with pytest.raises(UsageError):
        ReceiptIndex(tmp_path / "gone")
