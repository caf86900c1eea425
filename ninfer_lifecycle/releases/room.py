"""Beside the incumbent, or in its place? Pure."""

from dataclasses import dataclass

from ninfer_lifecycle.releases.records import Strategy

SPARE_BYTES = 512 * 2**20
"""What the machine itself keeps. An engine that is let into the last of the memory is killed, or the incumbent is."""


@dataclass(frozen=True, slots=True)
class Need:
    """What an engine takes. memory_bytes: None where it is not known. gpus: "all" or device UUIDs."""

    memory_bytes: int | None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A strategy, and why."""

    strategy: Strategy
    reason: str


def choose(asked: Strategy | None, candidate: Need, incumbent: Need | None, available_bytes: int | None) -> Choice:
    """What to do. available_bytes: memory that is free while the incumbent runs; None where it cannot be read.

    A strategy that was asked for is taken as it is. In doubt the incumbent is stopped first: a lane that stands still
    for a start is better than two engines that are killed for memory.
    """
    if asked is not None:
        return Choice(asked, "as asked for")
    if incumbent is None:
        return Choice(Strategy.BESIDE, "nothing serves yet")
    if share_a_gpu(candidate.gpus, incumbent.gpus):
        return Choice(Strategy.STOP_START, "both take the same GPU")
    if candidate.memory_bytes is None or available_bytes is None:
        return Choice(Strategy.STOP_START, "what memory it takes, or what is free, is not known")
    needed = candidate.memory_bytes + SPARE_BYTES
    if needed > available_bytes:
        return Choice(Strategy.STOP_START, f"it may take {needed >> 20} MiB and {available_bytes >> 20} MiB are free")
    return Choice(Strategy.BESIDE, f"{available_bytes >> 20} MiB are free and it may take {needed >> 20} MiB")


def fits_in_its_place(candidate: Need, incumbent: Need, available_bytes: int | None) -> bool:
    """Whether a candidate may fit once the incumbent is stopped; what is not known may."""
    if candidate.memory_bytes is None or incumbent.memory_bytes is None or available_bytes is None:
        return True
    return candidate.memory_bytes <= available_bytes + incumbent.memory_bytes


def share_a_gpu(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
    """Whether two engines would meet on a device."""
    if not left or not right:
        return False
    return "all" in left or "all" in right or bool(set(left) & set(right))


def available_memory(meminfo: str) -> int | None:
    """MemAvailable of a /proc/meminfo in bytes; None when it is not there."""
    line = next((line for line in meminfo.splitlines() if line.startswith("MemAvailable:")), "")
    return int(line.split()[1]) * 1024 if line else None
