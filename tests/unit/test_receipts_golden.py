"""Receipts, a keyring and a decision as the first version wrote them: they verify for ever.

The files are never written again. Where one of these tests fails, readers of receipts that are out in the world are
broken: see docs/decisions/0006-receipts-and-gates.md.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ninfer_engine.contract.base import sha256_hex
from ninfer_lifecycle.gates.verdict import CheckName, Result
from ninfer_lifecycle.receipts.build import ChainHead
from ninfer_lifecycle.receipts.decision import verify_decision
from ninfer_lifecycle.receipts.keyring import Keyring
from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.policy_file import parse_policy
from ninfer_lifecycle.receipts.release_gate import decide
from ninfer_lifecycle.receipts.sources import candidates, read_keyring, read_receipt
from ninfer_lifecycle.receipts.trust import Role
from ninfer_lifecycle.receipts.verify import Expectations, VerifiedReceipt, verify

V1 = Path(__file__).parents[1] / "data" / "receipts" / "v1"
AT = datetime(2026, 9, 5, 12, 0, 0, tzinfo=UTC)


def keyring() -> Keyring:
    return read_keyring(V1, AT, [load_public_key(V1 / "root.pub")])


def read(sequence: int, kind: str = "intoto", previous: ChainHead | None = None) -> VerifiedReceipt:
    found = read_receipt(V1 / "tiny-cpu" / f"tiny-cpu.default.{sequence:06d}.{kind}.json")
    return verify(found.raw, found.files, Expectations(
        trust=keyring().trust(Role.QUALIFIER), now=AT, lock=found.own_lock(), results=frozenset(Result),
        previous=previous)).require()


@pytest.mark.parametrize(("sequence", "result"), [(1, Result.PASSED), (2, Result.FAILED), (3, Result.INCONCLUSIVE)])
@pytest.mark.parametrize("kind", ["intoto", "sigstore"])
def test_a_receipt_of_the_first_version_verifies_with_its_result(sequence: int, result: Result, kind: str) -> None:
    found = read(sequence, kind)
    assert found.predicate.result is result
    assert found.signers == (load_public_key(V1 / "qualifier.pub"),)


def test_its_chain_holds() -> None:
    first = read(1)
    second = read(2, previous=first.head)
    assert read(3, previous=second.head).predicate.sequence == 3


def test_what_failed_then_is_what_failed() -> None:
    failing = read(2).verdict.not_passed
    assert {check.name for check in failing} == {CheckName.FORK_HITS, CheckName.FIRST_SIBLING_HOT}
    assert all((check.epoch, check.misses, check.observed) == (1, 1, 0) for check in failing)


def test_a_decision_of_the_first_version_verifies() -> None:
    lock = read_receipt(V1 / "tiny-cpu" / "tiny-cpu.default.000001.intoto.json").own_lock()
    assert lock is not None
    found = verify_decision((V1 / "tiny-cpu.release.intoto.json").read_bytes(), lock, keyring().trust(Role.RELEASE), AT)
    assert found.receipts == (read(1).payload_sha256,)
    assert found.policy_sha256 == sha256_hex((V1 / "release-policy.yaml").read_bytes())


def test_the_gate_of_the_first_version_decides_as_it_did() -> None:
    """Alone the first receipt lets its lock through; with the failure after it in sight it does not."""
    rules = parse_policy("release-policy.yaml", (V1 / "release-policy.yaml").read_bytes()).policy
    lock = (V1 / "tiny-cpu" / "tiny-cpu.default.000001.lock.json").read_bytes()
    trust = keyring().trust(Role.QUALIFIER)
    first = V1 / "tiny-cpu" / "tiny-cpu.default.000001.intoto.json"
    assert decide(lock, candidates([first]), rules, trust, AT).allowed
    assert not decide(lock, candidates([V1]), rules, trust, AT).allowed
    assert not decide(lock, candidates([first]), rules, trust, AT + timedelta(days=90)).allowed
