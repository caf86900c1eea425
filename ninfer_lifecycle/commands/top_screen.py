"""The screen of `ninfer top`: status documents as text. Pure; times are the caller's monotonic seconds."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.sparks import cells, sparkline
from ninfer_lifecycle.text import plain

_BAR, _SPARK = 16, 30  # what fits into 60 columns beside the words
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: when, and what the engine said."""

    at: float
    status: StatusDocument


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second between successive looks at one life of the engine, oldest first."""

    name: str
    values: tuple[float, ...]


def rates(samples: Sequence[Sample]) -> tuple[Rate, Rate]:
    """Prefill and decode. A restart begins anew: counters restart with the process."""
    life = same_life(samples)
    pairs = [(old, new) for old, new in itertools.pairwise(life) if new.at > old.at]
    return (
        Rate("prefill", tuple(_pace(old, new, "computed_prefill_tokens") for old, new in pairs)),
        Rate("decode", tuple(_pace(old, new, "committed_decode_tokens") for old, new in pairs)),
    )


def same_life(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples of the process that answered last."""
    instance = samples[-1].status.identity.server_instance_id
    life = list(itertools.takewhile(
        lambda sample: sample.status.identity.server_instance_id == instance, reversed(samples)))
    return life[::-1]


def screen(url: str, samples: Sequence[Sample], trouble: str = "") -> RenderableType:
    """The whole screen from the samples so far, at least one. trouble: why the last look failed."""
    status = samples[-1].status
    parts: list[RenderableType] = [_title(url, status)]
    if trouble:
        parts.append(Text(plain(f"no answer: {trouble}"), style="bold red"))
    parts += [Text(), _load(status), Text()]
    shown = rates(samples)
    if any(rate.values for rate in shown):
        parts += [_pace_table(shown), Text()]
    parts += [_pools(status), Text(), _reuse(status)]
    return Group(*parts)


def _pace(old: Sample, new: Sample, counter: str) -> float:
    risen: int = getattr(new.status.scheduler, counter) - getattr(old.status.scheduler, counter)
    return max(0, risen) / (new.at - old.at)


def _title(url: str, status: StatusDocument) -> Text:
    known, runs = status.identity, status.runtime
    style = {"ok": "bold green", "loading": "bold yellow", "failed": "bold red"}[status.status]
    profile = f"  profile {plain(known.deployment_profile)}" if known.deployment_profile else ""
    return Text.assemble(
        (status.status, style), ("  " + plain(runs.public_model_id), "bold"), f"  {url}{profile}\n",
        (plain(f"ninfer {known.engine_version} on {known.device}, context {runs.max_context:,} tokens, KV "
               f"{runs.kv_capacity_tokens:,} tokens {runs.kv_cache}, instance {known.server_instance_id[:12]}"), "dim"))


def _load(status: StatusDocument) -> Text:
    load = status.scheduler
    return Text.assemble(
        (f"running {load.running}/{load.max_concurrency}", "bold" if load.running else ""),
        f"   prefilling {load.prefilling}   decoding {load.decode_ready}   materializing {load.materializing}   ",
        (f"waiting {load.waiting}/{load.max_pending_requests}", "yellow" if load.waiting else ""))


def _pace_table(shown: Sequence[Rate]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(justify="right", min_width=14)
    grid.add_column()
    for rate in shown:
        grid.add_row(rate.name, f"{rate.values[-1] if rate.values else 0:,.0f} tokens/s",
                     Text(sparkline(rate.values, _SPARK), style="cyan"))
    return grid


def _pools(status: StatusDocument) -> Table:
    cache = status.cache
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column()
    grid.add_column(justify="right")
    for name, pool in (("device images", cache.device_state), ("device KV pages", cache.device_kv),
                       ("host images", cache.host_state), ("private catalog", cache.private_catalog),
                       ("shared catalog", cache.shared_catalog)):
        grid.add_row(name, _filled(pool.occupied, pool.capacity), f"{pool.occupied:,} of {pool.capacity:,}")
    host = cache.host_kv
    grid.add_row("host KV", _filled(host.occupied_bytes, host.capacity_bytes),
                 f"{_bytes(host.occupied_bytes)} of {_bytes(host.capacity_bytes)}")
    return grid


def _filled(occupied: int, capacity: int) -> Text:
    share = occupied / capacity if capacity else 0.0
    filled = cells(share, _BAR)
    return Text.assemble(("━" * filled, "yellow" if share >= 1 else "green"), ("─" * (_BAR - filled), "dim"))


def _reuse(status: StatusDocument) -> Table:
    cache, load = status.cache, status.scheduler
    grid = Table.grid(padding=(0, 2))
    total = cache.reused_prompt_tokens + load.computed_prefill_tokens
    share = f" ({cache.reused_prompt_tokens / total:.1%} of all)" if total else ""
    last = cache.last_selection
    where = "none yet" if last is None else f"{last.path.value} at {last.frontier_tokens:,} tokens"
    grid.add_row("reused", f"{cache.reused_prompt_tokens:,} tokens{share}, {load.computed_prefill_tokens:,} computed")
    grid.add_row("last request", where)
    misses = ", ".join(f"{plain(reason)} {count:,}" for reason, count in sorted(cache.misses.items()) if count)
    grid.add_row("misses", misses or "none")
    grid.add_row("evictions", f"{cache.private_evictions:,} private, {cache.shared_evictions:,} shared")
    restore = status.restore
    moved = f", {_bytes(restore.bytes_done)} of {_bytes(restore.bytes_total)}" if restore.bytes_total else ""
    grid.add_row("restore", f"{restore.state}{moved}")
    return grid


def _bytes(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} {_UNITS[unit]}" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"
