"""The table of docs/cache-simulation.md: hit shares of our cache and of the others at equal bytes.

    python -m ninfer_lifecycle.simulate.table [--limit N] [TRACE ...]

Bytes are those of the published 27B hybrid figures: 4 MiB a KV page, 146.8 MiB a state image. Ours divides a pool
between image slots and pages, as an operator's flags do: of a few divisions the one that reuses most of the first
requests. The others get the pool undivided.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ninfer_engine.context.baselines import BASELINES
from ninfer_engine.context.costs import HYBRID_27B_5090
from ninfer_engine.context.types import PAGE_TOKENS, Capacities
from ninfer_lifecycle.errors import NinferError, UsageError
from ninfer_lifecycle.simulate.generators import GENERATORS, Generated
from ninfer_lifecycle.simulate.readers import Trace, open_trace
from ninfer_lifecycle.simulate.runs import BOUND, Clock, OurRun, other_share, run_ours

PAGE_BYTES = 4 << 20
IMAGE_BYTES = 153_944_064
"""The published 146.8 MiB: 48 layers of 48 heads of 128 x 128 in fp32, and a convolution tail in bf16."""

SIZES_GIB = (16, 32, 64, 128)
IMAGE_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5)
"""Divisions that are tried: the share of a pool that becomes image slots."""

TRIED_ON = 1024
"""Requests of a trace that a division is chosen on."""


@dataclass(frozen=True, slots=True)
class Row:
    """One trace in one size of pool. image_share: the division; others: hit share by policy, the bound included."""

    trace: str
    requests: int
    gib: int
    image_share: float
    capacities: Capacities
    ours: OurRun
    others: dict[str, float]

    @property
    def beaten_by(self) -> tuple[str, ...]:
        """Policies that reuse more by over a token a request: they resume behind a reply's last token, which in an
        engine costs a stop of the prefill that no later request would win back."""
        token = self.requests / self.ours.prompt_tokens
        return tuple(name for name in BASELINES if self.others[name] > self.ours.hit_share + token)


def divided(pool: int, longest: int, image_share: float) -> Capacities:
    """A pool of bytes as capacities for one sequence of up to `longest` tokens. Raises UsageError when too small."""
    slots = max(2, int(pool * image_share) // IMAGE_BYTES)
    pages = (pool - slots * IMAGE_BYTES) // PAGE_BYTES
    needed = -(-longest // PAGE_TOKENS)
    if pages < needed:
        raise UsageError(f"a pool of {pool >> 30} GiB leaves {pages} pages, the longest request needs {needed}",
                         "give a larger pool")
    device = max(needed, pages // 2)
    extra = max(1, slots // 8)
    return Capacities(device_state_extra=extra, host_state_slots=slots - extra, device_pages=device,
                      host_kv_bytes=(pages - device) * PAGE_BYTES, page_bytes=PAGE_BYTES, image_bytes=IMAGE_BYTES,
                      private_catalog=slots, shared_catalog=slots, anchors_per_continuation=2, max_concurrency=1)


def rows(traces: Iterable[tuple[str, Trace]], clock: Clock, sizes: Sequence[int] = SIZES_GIB,
         shares: Sequence[float] = IMAGE_SHARES) -> Iterator[Row]:
    """Every trace in every size. The bound knows no sizes and is computed once a trace. Raises UsageError for a pool
    that a trace's longest request does not fit in."""
    for name, trace in traces:
        longest = max((len(request.prompt) + len(request.reply) for request in trace()), default=0)
        limit: float | None = None
        for gib in sizes:
            pool, costs = gib << 30, HYBRID_27B_5090
            share = best_share(trace, pool, longest, shares, clock)
            capacities = divided(pool, longest, share)
            if limit is None:
                limit = other_share(BOUND, trace, pool, capacities, costs)
            ours = run_ours(trace, capacities, costs, clock)
            others = {other: other_share(other, trace, pool, capacities, costs) for other in BASELINES} | {BOUND: limit}
            yield Row(name, ours.report.requests, gib, share, capacities, ours, others)


def best_share(trace: Trace, pool: int, longest: int, shares: Sequence[float], clock: Clock) -> float:
    """The division that reuses most of a trace's first requests; of equals the one with more images. Raises UsageError
    when no division leaves room for the longest request."""
    fitting = [share for share in shares if _fits(pool, longest, share)]
    if not fitting:
        divided(pool, longest, min(shares))
    if len(fitting) == 1:
        return fitting[0]
    found = {share: run_ours(lambda: islice(trace(), TRIED_ON), divided(pool, longest, share), HYBRID_27B_5090, clock)
             for share in fitting}
    return max(fitting, key=lambda share: (round(found[share].hit_share, 4), share))


def _fits(pool: int, longest: int, share: float) -> bool:
    try:
        divided(pool, longest, share)
    except UsageError:
        return False
    return True


def markdown(found: Iterable[Row]) -> Iterator[str]:
    """Lines of a Markdown table; the best policy of a row stands in bold."""
    yield ("| trace | requests | pool, GiB | images | ours | LRU | FLOP a byte (Marconi) | replay length (SegLen) | "
           "clairvoyant | ours / clairvoyant |")
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in found:
        shares = [row.ours.hit_share, *(row.others[name] for name in BASELINES)]
        cells = [f"**{share:.4f}**" if f"{share:.4f}" == f"{max(shares):.4f}" else f"{share:.4f}" for share in shares]
        ratio = row.ours.hit_share / row.others[BOUND] if row.others[BOUND] else 1.0
        yield (f"| {row.trace} | {row.requests:,} | {row.gib} | {row.image_share:.0%} | " + " | ".join(cells)
               + f" | {row.others[BOUND]:.4f} | {ratio:.3f} |")


def standard_traces(files: Iterable[Path], limit: int | None) -> list[tuple[str, Trace]]:
    """The generated traces and those of `files`, by name."""
    return [*((name, Generated(name)) for name in GENERATORS),
            *((path.name.split(".")[0], open_trace(path, limit=limit)) for path in files)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as it grows; 1 when ours is below another policy anywhere, which stderr then names."""
    parser = argparse.ArgumentParser(prog="python -m ninfer_lifecycle.simulate.table", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="trace files beside the generated")
    parser.add_argument("--limit", type=int, help="most requests of each file")
    parser.add_argument("--size", type=int, action="append", dest="sizes", metavar="GIB",
                        help="a pool; may be repeated")
    chosen = parser.parse_args(arguments)
    try:
        return write_table(standard_traces(chosen.traces, chosen.limit), chosen.sizes or SIZES_GIB)
    except NinferError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)


def write_table(traces: Iterable[tuple[str, Trace]], sizes: Sequence[int] = SIZES_GIB) -> int:
    """The table on stdout, each row as soon as it is known; what beats ours on stderr. Exit code 1 when any does."""
    beaten: list[Row] = []

    def watched() -> Iterator[Row]:
        for row in rows(traces, time.perf_counter_ns, sizes):
            if row.beaten_by:
                beaten.append(row)
            yield row

    for line in markdown(watched()):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    for row in beaten:
        sys.stderr.write(f"{row.trace} at {row.gib} GiB: {', '.join(row.beaten_by)} reuse more\n")
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
