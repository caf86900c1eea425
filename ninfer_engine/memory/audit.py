"""The accounts of both pools, checked against whoever holds what: nothing is lost, nothing is counted twice.

Holders (sequences, checkpoints, running saves) say how many references they have to each page and image. On every
tier free + occupied = total, no place is occupied twice, every reference has a holder and every holder a reference.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from ninfer_engine.memory.errors import AuditError
from ninfer_engine.memory.images import ImageId, StateImages
from ninfer_engine.memory.pages import DevicePages, PageId

_Number = TypeVar("_Number", bound=int)


def audit(
    pages: DevicePages,
    images: StateImages,
    held_pages: Mapping[PageId, int],
    held_images: Mapping[ImageId, int],
    working_slots: Collection[int],
) -> list[str]:
    """What is wrong, one line each; empty when everything balances. O(pages + slots).

    held_pages, held_images: references by holder, summed. working_slots: slots of the running sequences.
    """
    return [*_audit_pages(pages, held_pages), *_audit_images(images, held_images, working_slots)]


def check(
    pages: DevicePages,
    images: StateImages,
    held_pages: Mapping[PageId, int],
    held_images: Mapping[ImageId, int],
    working_slots: Collection[int],
) -> None:
    """Raise AuditError with the findings, if there are any."""
    findings = audit(pages, images, held_pages, held_images, working_slots)
    if findings:
        raise AuditError(findings)


def _audit_pages(pages: DevicePages, held: Mapping[PageId, int]) -> list[str]:
    account = pages.account()
    free = [index for run in account.free_runs for index in range(run.start, run.end)]
    return [
        *_references("page", account.references, held),
        *_places("device page", free, account.device, range(pages.total_device)),
        *_nowhere("page", account.references, account.device, account.host),
        *_rows("host page", account.host, pages.host_bytes_used // pages.page_bytes,
               pages.host_capacity_bytes // pages.page_bytes),
    ]


def _audit_images(images: StateImages, held: Mapping[ImageId, int], working: Collection[int]) -> list[str]:
    account = images.account()
    findings = [
        *_references("image", account.references, held),
        *_places("device slot", [*account.free_slots, *account.working], account.device, range(images.device_slots)),
        *_nowhere("image", account.references, account.device, account.host),
        *_rows("host slot", account.host, images.host_used, images.host_slots),
    ]
    if set(account.working) != set(working) or len(set(working)) != len(working):
        findings.append(f"working slots are {sorted(account.working)}, sequences hold {sorted(working)}")
    return findings


def _references(what: str, counted: Mapping[_Number, int], held: Mapping[_Number, int]) -> list[str]:
    findings = []
    for number in sorted(counted.keys() | held.keys()):
        ours, theirs = counted.get(number, 0), held.get(number, 0)
        if ours != theirs:
            findings.append(f"{what} {number} counts {ours} references, holders have {theirs}")
        elif ours <= 0:
            findings.append(f"{what} {number} is kept with {ours} references")
    return findings


def _places(what: str, free: Iterable[int], occupied: Mapping[_Number, int], every: range) -> list[str]:
    uses = Counter([*free, *occupied.values()])
    doubled = sorted(place for place, count in uses.items() if count > 1)
    lost = sorted(set(every) - uses.keys())
    foreign = sorted(uses.keys() - set(every))
    return [f"{what}s {places} {verb}" for places, verb in (
        (doubled, "are used twice"), (lost, "are lost: neither free nor occupied"), (foreign, "do not exist"),
    ) if places]


def _nowhere(
    what: str, every: Iterable[_Number], device: Mapping[_Number, int], host: Mapping[_Number, int],
) -> list[str]:
    return [f"{what} {number} is on no tier" for number in every if number not in device and number not in host]


def _rows(what: str, occupied: Mapping[_Number, int], used: int, total: int) -> list[str]:
    findings = []
    if len(set(occupied.values())) != len(occupied):
        findings.append(f"a {what} is used twice")
    if used != len(occupied):
        findings.append(f"{used} {what}s are counted as used, {len(occupied)} are occupied")
    if used > total:
        findings.append(f"{used} {what}s are used of {total}")
    return findings
