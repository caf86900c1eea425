"""Whose something on a daemon is: labels that name the tool, the run and the owning process, and what they say later.

A process id alone names nothing for long, and on another machine or in another container it names somebody else. So an
owner is a place (machine and pid namespace), a boot of it, a process id and that process's start time. Only an owner of
this very place can be told dead.
"""

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ninfer_lifecycle.hosts.facts import boot_id, process_start_ticks

LABEL = "dev.ninfer"
TOOL_LABEL = f"{LABEL}.tool=ninfer"
KEPT_BY = f"{LABEL}.kept-by"


class Fate(StrEnum):
    """What the labels say of the owner. KEPT: it left this on purpose and a file of its still says so."""

    ALIVE = "its owner is alive"
    DEAD = "its owner is dead"
    KEPT = "it was left running on purpose"
    ELSEWHERE = "its owner lives on another machine or in another container, and cannot be looked at from here"
    UNKNOWN = "its labels do not name an owner"


@dataclass(frozen=True, slots=True)
class Here:
    """This place and moment. started: start ticks of a process of this place, None when there is none."""

    place: str
    boot: str
    started: Callable[[int], int | None]


def here() -> Here:
    """This machine, as this process sees it."""
    return Here(f"{_machine()}:{_pid_namespace()}", boot_id(), process_start_ticks)


def owner_labels(run_id: str) -> dict[str, str]:
    """Labels for something that this process makes for a run, and that must not outlive it."""
    pid, now = os.getpid(), here()
    return {f"{LABEL}.tool": "ninfer", f"{LABEL}.run": run_id, f"{LABEL}.owner-pid": str(pid),
            f"{LABEL}.owner-start": str(now.started(pid) or 0), f"{LABEL}.owner-boot": now.boot,
            f"{LABEL}.owner-place": now.place}


def kept_labels(file: Path) -> dict[str, str]:
    """Labels for something that may outlive its owner for as long as `file` names its id."""
    return {KEPT_BY: str(file.resolve())}


def fate_of(labels: Mapping[str, str], handle: str, now: Here) -> Fate:
    """Whether the owner of the thing `handle` lives. DEAD is said only of a process that certainly ended here."""
    try:
        pid, start = int(labels[f"{LABEL}.owner-pid"]), int(labels[f"{LABEL}.owner-start"])
        place, boot = labels[f"{LABEL}.owner-place"], labels[f"{LABEL}.owner-boot"]
    except (KeyError, ValueError):
        return Fate.UNKNOWN
    if place != now.place:
        return Fate.ELSEWHERE
    if boot == now.boot and now.started(pid) == start:
        return Fate.ALIVE
    return Fate.KEPT if _is_kept(labels, handle) else Fate.DEAD


def _is_kept(labels: Mapping[str, str], handle: str) -> bool:
    """Whether the file that the labels name still holds the id. A file that cannot be read keeps what it may name."""
    name = labels.get(KEPT_BY)
    if name is None:
        return False
    try:
        return handle in Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True


def _machine() -> str:
    try:
        return Path("/etc/machine-id").read_text(encoding="ascii").strip() or socket.gethostname()
    except (OSError, UnicodeDecodeError):
        return socket.gethostname()


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return "unknown"
