"""The published failure arms, replayed: the same paths in the same order, and the check that catches each.

The arms are those of published runs of a 27B hybrid model. A is an anchor hit, r a re-prefill from
root; the templates were 57,853 and 67,681 tokens, here scaled down to what a pretend tokenizer makes quickly.
"""

from pathlib import Path

import pytest
from fault_model import Fault
from probe_bench import SIZES, judge, not_passed, probe

from ninfer_lifecycle.evidence import RequestEvidence, Step
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.probes.journal import Journal

SMALL, LARGE = 200, 300
ONE_SIZE = SIZES.model_copy(update={"sizes": (SMALL,)})
BOTH_SIZES = SIZES.model_copy(update={"sizes": (SMALL, LARGE)})


def paths(journal: Journal, size: int, epoch: int) -> str:
    """A for each fork that resumed, r for each that did not, in the order in which they were asked."""
    forks = [record for record in journal.requests
             if record.step is Step.FORK and record.template_tokens == size and record.epoch == epoch]
    return "".join(letter(record) for record in sorted(forks, key=lambda record: record.order))


def letter(record: RequestEvidence) -> str:
    assert record.cached_tokens is not None
    return "A" if record.cached_tokens >= record.template_tokens else "r"


@pytest.mark.parametrize(("fault", "epoch", "published", "check"), [
    (Fault.ALTERNATE_ANCHOR_ROOT, 0, "ArAr", "fork_hits"),
    (Fault.ALTERNATE_ROOT_ANCHOR, 0, "rArA", "first_sibling_hot"),
    (Fault.ALTERNATE_AFTER_RESTART, 1, "rArA", "first_sibling_hot"),
    (Fault.FIRST_FORK_COLD_AFTER_RESTART, 1, "rAAA", "first_sibling_hot"),
])
def test_an_arm_of_one_template_is_replayed_and_caught(
    tmp_path: Path, fault: Fault, epoch: int, published: str, check: str
) -> None:
    planned, journal = probe(tmp_path, fault, section=ONE_SIZE)
    assert paths(journal, SMALL, epoch) == published
    verdict = judge(planned, journal)
    assert verdict.result is Result.FAILED
    assert check in not_passed(verdict)


def test_hot_at_one_size_then_cold_at_the_next_in_the_same_process_is_replayed_and_caught(tmp_path: Path) -> None:
    planned, journal = probe(tmp_path, Fault.HOT_THEN_COLD, section=BOTH_SIZES)
    seen = {paths(journal, size, 0) for size in (SMALL, LARGE)}
    assert seen == {"AAAA", "rrrr"}
    failed = [check for check in judge(planned, journal).not_passed if check.name.value == "fork_hits"]
    assert {check.template_tokens for check in failed} < {SMALL, LARGE}


def test_the_arm_that_was_hot_at_every_size_passes(tmp_path: Path) -> None:
    planned, journal = probe(tmp_path, section=BOTH_SIZES)
    assert {paths(journal, size, epoch) for size in (SMALL, LARGE) for epoch in (0, 1)} == {"AAAA"}
    assert judge(planned, journal).result is Result.PASSED


def test_a_median_would_have_hidden_the_alternation_and_the_check_does_not(tmp_path: Path) -> None:
    planned, journal = probe(tmp_path, Fault.ALTERNATE_ANCHOR_ROOT, section=ONE_SIZE)
    [check] = [one for one in judge(planned, journal).checks
               if one.name.value == "fork_hits" and one.epoch == 0]
    assert (check.trials, check.misses, check.result) == (4, 2, Result.FAILED)
