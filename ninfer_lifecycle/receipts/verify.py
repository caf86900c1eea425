"""Verification of a receipt as ordered, named steps. Only after the last one does a typed value exist.

Order and meaning follow the project's receipt format (docs/receipts.md). What is *not* checked: that the evidence was
observed rather than invented (the signer is trusted for that), that no newer receipt was deleted (give `previous`, or
the highest sequence seen, to notice), and any transparency log.

The clock is read by the caller, once.
"""

from ninfer_lifecycle.errors import RefusedError
from ninfer_lifecycle.receipts.attachments import Files
from ninfer_lifecycle.receipts.verification import (
    Expectations,
    Step,
    StepReport,
    StepState,
    Verification,
    VerifiedReceipt,
)
from ninfer_lifecycle.receipts.walk import Walk

__all__ = ["Expectations", "Step", "StepReport", "StepState", "Verification", "VerifiedReceipt", "verify"]


def verify(raw: bytes, files: Files, expected: Expectations) -> Verification:
    """Walk the steps over a receipt file (envelope or bundle). No refusal is raised: it is the result."""
    if expected.now.tzinfo is None:
        raise ValueError("the reference time has no zone")
    walk = Walk(raw, files, expected)
    reports: list[StepReport] = []
    steps = list(Step)
    for step in steps:
        try:
            detail = walk.take(step)
        except RefusedError as error:
            reports.append(StepReport(step, StepState.FAILED, error.message, error.advice))
            break
        reports.append(StepReport(step, StepState.PASSED, detail))
    reports += [StepReport(step, StepState.NOT_REACHED) for step in steps[len(reports):]]
    return Verification(tuple(reports), walk.receipt() if reports[-1].state is StepState.PASSED else None)
