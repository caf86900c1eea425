"""A look at a receipt file: verified, with what it says, or refused, with the step that refused.

Reports for machines must tell of both: a receipt that does not verify is news, and never a pass. Nothing of a refused
file but its name is repeated.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.receipts.sources import read_receipt, receipt_paths
from ninfer_lifecycle.receipts.store import SUFFIX
from ninfer_lifecycle.receipts.trust import RoleTrust
from ninfer_lifecycle.receipts.verify import Expectations, verify
from ninfer_lifecycle.reports.facts import ReceiptFacts, facts_of


@dataclass(frozen=True, slots=True)
class Verified:
    """A receipt that verified. file: its path as it was given; lock: the bytes of its subject, digest compared."""

    file: str
    facts: ReceiptFacts
    lock: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that did not verify. step, detail and advice: of the step that refused."""

    file: str
    step: str
    detail: str
    advice: str = ""


Looked = Verified | Refused


def look(path: Path, trust: RoleTrust, now: datetime) -> Looked:
    """Verify one file, of any result and age. Reads files; raises UsageError where the file cannot be read."""
    found = read_receipt(path)
    lock = found.own_lock()
    outcome = verify(found.raw, found.files, Expectations(
        trust=trust, now=now, lock=lock, results=frozenset(Result), allow_expired=True))
    if outcome.receipt is not None and lock is not None:
        return Verified(str(path), facts_of(outcome.receipt), lock)
    refusal = outcome.refusal
    if refusal is None:
        return Refused(str(path), "subject", "there is no lock file beside it")
    return Refused(str(path), refusal.step, refusal.detail, refusal.advice)


def look_at(paths: Sequence[Path], trust: RoleTrust, now: datetime) -> Iterator[Looked]:
    """Look at files, and at all receipts below folders; release decisions are left out."""
    for path in receipt_paths(paths):
        if not path.name.endswith(f".release{SUFFIX}"):
            yield look(path, trust, now)


def newest(seen: Iterable[Looked]) -> tuple[Verified, ...]:
    """The newest verified receipt of each profile and lane, in their order."""
    best: dict[tuple[str, str], Verified] = {}
    for item in seen:
        if isinstance(item, Verified):
            place = (item.facts.profile, item.facts.lane)
            held = best.get(place)
            if held is None or _order(held) < _order(item):
                best[place] = item
    return tuple(item for _, item in sorted(best.items()))


def _order(item: Verified) -> tuple[datetime, int, str]:
    return item.facts.finished, item.facts.sequence, item.facts.payload_sha256
