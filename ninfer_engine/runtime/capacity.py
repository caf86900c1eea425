"""From flags and a model's shapes to the sizes of every pool: what `auto` and what is not given become."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from ninfer_engine.context.sizing import DEFAULT_TEMPLATE, Intent, Sizes, derive
from ninfer_engine.context.types import Policy
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.kernels.cache_layout import KV_DTYPES, PAGE_TOKENS, CacheShapes
from ninfer_engine.runtime.quota import HERE, CgroupFiles, memory_room

_DEFAULT_FORKS = 4
_SHARE = 0.5  # of free memory; the rest is left to activations, the host tier's growth and everybody else
_UNKNOWN = 1 << 62


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and dtypes that the engine settled on."""

    device: torch.device
    dtype: str
    kv_dtype: str


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Units of each pool. device_pages and host_kv_bytes hold KV; device_slots = C + extra."""

    kv_mode: Literal["auto", "explicit"]
    device_pages: int
    host_kv_bytes: int
    device_slots: int
    device_extra: int
    host_slots: int


class CapacityError(Exception):
    """The flags ask for more than the device has; the message says by how much and what to change."""


def place(flags: EngineFlags) -> Placement:
    """Resolve `auto` of --device, --dtype and --kv-dtype. Raises CapacityError when cuda is asked for and absent."""
    cuda = torch.cuda.is_available()
    if flags.device == "cuda" and not cuda:
        raise CapacityError("--device cuda: no CUDA device is visible here: use --device cpu, or give it a GPU")
    device = torch.device("cuda" if flags.device == "cuda" or (flags.device == "auto" and cuda) else "cpu")
    dtype = flags.dtype if flags.dtype != "auto" else ("bf16" if device.type == "cuda" else "fp32")
    if flags.kv_dtype == "int8" and device.type != "cpu":
        raise CapacityError("--kv-dtype int8 is for --device cpu: leave it at auto, or choose bf16")
    return Placement(device, dtype, flags.kv_dtype if flags.kv_dtype != "auto" else dtype)


def free_bytes(device: torch.device) -> int:
    """Memory that is free now where the KV pool will lie; on the CPU within the container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_ram()


def free_ram(meminfo: Path = Path("/proc/meminfo"), groups: CgroupFiles = HERE) -> int:
    """Bytes of main memory that this process may still take: what the machine has available, and what is left under
    the tightest limit of its control groups."""
    room = memory_room(groups)
    available = _available(meminfo)
    return available if room is None else min(available, room)


def kv_pages(
    flags: EngineFlags, shapes: CacheShapes, placement: Placement, free: Callable[[torch.device], int] = free_bytes
) -> int:
    """Device pages: from --kv-capacity, or with `auto` half of what `free` says, at most four contexts a sequence.

    Raises CapacityError when `auto` cannot hold one context.
    """
    if isinstance(flags.kv_capacity, int):
        return -(-flags.kv_capacity // PAGE_TOKENS)
    page = shapes.page_bytes(KV_DTYPES[placement.kv_dtype])
    most = 4 * flags.max_concurrency * -(-flags.max_context // PAGE_TOKENS)
    fitting = int(free(placement.device) * _SHARE) // page
    if fitting * PAGE_TOKENS < flags.max_context:
        raise CapacityError(f"free memory holds {fitting * PAGE_TOKENS} tokens of keys and values, --max-context is "
                            f"{flags.max_context}: lower --max-context, or give the engine more memory")
    return min(most, fitting)


def derived_sizes(flags: EngineFlags) -> Sizes:
    """Catalog and slots: from --expected-forks and --max-concurrency, but for what is given outright."""
    forks = _DEFAULT_FORKS if flags.expected_forks is None else flags.expected_forks
    template = min(DEFAULT_TEMPLATE, flags.max_context)
    sizes = derive(Intent(flags.max_concurrency, forks, (template,)), Policy(prefill_chunk=flags.prefill_chunk))
    given = {
        "private_catalog": flags.max_private_continuations,
        "device_state_extra": flags.device_state_slots,
        "host_state_slots": flags.host_state_slots,
    }
    return replace(sizes, **{name: value for name, value in given.items() if value is not None})


def _available(meminfo: Path) -> int:
    """MemAvailable in bytes; a very large number where the file does not say."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return _UNKNOWN
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), _UNKNOWN)
