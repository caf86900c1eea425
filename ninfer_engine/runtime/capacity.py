"""From flags and a model's shapes to the sizes of every pool: what `auto` and what is not given become."""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from ninfer_engine.context.sizing import DEFAULT_TEMPLATE, Intent, Sizes, derive
from ninfer_engine.context.types import Policy
from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.kernels.cache_layout import KV_DTYPES, PAGE_TOKENS, CacheShapes

_DEFAULT_FORKS = 4
_HEADROOM = 0.5  # of free memory, left to activations, the host tier's growth and everybody else


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
    return Placement(device, dtype, flags.kv_dtype if flags.kv_dtype != "auto" else dtype)


def free_bytes(device: torch.device) -> int:
    """Memory that is free now where the KV pool will lie; on the CPU within the container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available_ram(), _cgroup_room())


def kv_pages(flags: EngineFlags, shapes: CacheShapes, placement: Placement) -> int:
    """Device pages: from --kv-capacity, or with `auto` what free memory allows, at most four contexts a sequence."""
    if isinstance(flags.kv_capacity, int):
        return -(-flags.kv_capacity // PAGE_TOKENS)
    page = shapes.page_bytes(KV_DTYPES[placement.kv_dtype])
    most = 4 * flags.max_concurrency * -(-flags.max_context // PAGE_TOKENS)
    fitting = int(free_bytes(placement.device) * _HEADROOM) // page
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


def _available_ram() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123  # a kernel file
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def _cgroup_room() -> int:
    """Bytes left under the cgroup v2 memory limit of this process; a very large number where there is none."""
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:  # noqa: PTH123
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:  # noqa: PTH123
            current = int(file.read())
    except OSError:
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - current)
