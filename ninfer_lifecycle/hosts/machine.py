"""What a preflight looks at on this machine, as functions that tests replace."""

import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ninfer_lifecycle.hosts.facts import available_memory
from ninfer_lifecycle.hosts.placing import free_port, port_is_free

_SMI = ("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
_SMI_S = 20.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    uuid: str
    memory_bytes: int


def gpus_here() -> tuple[Gpu, ...] | None:
    """The GPUs that the driver lists; None where there is no working driver."""
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=_SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    found = []
    for line in done.stdout.splitlines():
        uuid, _, mib = line.partition(",")
        if mib.strip().isdigit():
            found.append(Gpu(uuid.strip(), int(mib) << 20))
    return tuple(found)


def free_disk(path: Path) -> int:
    """Bytes that are free where `path` is, or where it would be made."""
    return shutil.disk_usage(_there(path)).free


def same_disk(left: Path, right: Path) -> bool:
    """Whether both lie, or would be made, on one file system."""
    return _there(left).stat().st_dev == _there(right).stat().st_dev


def can_write(path: Path) -> bool:
    """Whether `path` can be written, or be made."""
    return os.access(_there(path), os.W_OK | os.X_OK)


def _there(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    while not path.exists():
        path = path.parent
    return path


def has_module(name: str) -> bool:
    """Whether a Python package is installed here; it is not imported."""
    return importlib.util.find_spec(name) is not None


@dataclass(frozen=True, slots=True)
class Machine:
    """The effects of a preflight: all of them only look. unix_s: this machine's clock."""

    free_disk: Callable[[Path], int] = free_disk
    same_disk: Callable[[Path, Path], bool] = same_disk
    can_write: Callable[[Path], bool] = can_write
    available_memory: Callable[[], int | None] = available_memory
    gpus: Callable[[], tuple[Gpu, ...] | None] = gpus_here
    port_is_free: Callable[[int], bool] = port_is_free
    free_port: Callable[[], int] = free_port
    unix_s: Callable[[], float] = time.time
    has_module: Callable[[str], bool] = has_module


THIS_MACHINE = Machine()
