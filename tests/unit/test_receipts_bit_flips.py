"""One bit flipped at any byte of any file of a receipt: it does not verify."""

import pytest
from receipt_cases import check, expectations, honest_evidence, receipt

from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds

# The smallest honest run, so that every byte can be tried.
PLAN = PlanSummary(template_tokens=(100,), epochs=1, forks=1, saves=0, resumes=0)
GOOD = receipt(honest_evidence(PLAN), policy=QualificationPolicy(plan=PLAN, thresholds=Thresholds()))


def test_the_receipt_that_is_flipped_verifies() -> None:
    assert check(GOOD).receipt is not None
    assert check(GOOD, raw=GOOD.files[GOOD.bundle_name]).receipt is not None


@pytest.mark.parametrize("name", [GOOD.receipt_name, GOOD.bundle_name])
def test_a_flipped_bit_at_any_byte_of_the_signed_files_is_refused(name: str) -> None:
    raw = GOOD.files[name]
    for at in range(len(raw)):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << (at % 8)
        assert check(GOOD, raw=bytes(flipped)).receipt is None, f"byte {at}: {raw[at : at + 1]!r}"


@pytest.mark.parametrize("name", sorted(set(GOOD.files) - {GOOD.receipt_name, GOOD.bundle_name}))
def test_a_flipped_bit_in_any_file_beside_it_is_refused(name: str) -> None:
    raw = GOOD.files[name]
    for at in range(0, len(raw), 7):
        flipped = bytearray(raw)
        flipped[at] ^= 1 << (at % 8)
        expected = expectations(lock=bytes(flipped)) if name.endswith(".lock.json") else None
        assert check(GOOD, files={name: bytes(flipped)}, expected=expected).receipt is None, f"byte {at}"
