"""Requests a second that the simulator runs on one core: `python -m benchmarks.simulate_bench [REQUESTS]`.

Each generated load at the packaged fan-out profile's capacities and at a pool of 64 GiB; the policies that ours is
compared with beside it. Seconds are those of the CPU. The last column says how many minutes a million requests
would take at that rate.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from ninfer_engine.context.baselines import BASELINES, pool_bytes
from ninfer_engine.context.costs import HYBRID_27B_5090
from ninfer_engine.context.types import Capacities
from ninfer_lifecycle.simulate.generators import GENERATORS, Generated
from ninfer_lifecycle.simulate.runs import other_share, run_ours
from ninfer_lifecycle.simulate.settings import Overrides, setting_of
from ninfer_lifecycle.simulate.table import divided

REQUESTS = 2000


def rate(work: Callable[[], object], requests: int) -> str:
    """Requests a second, and minutes a million."""
    begun = time.process_time()
    work()
    seconds = time.process_time() - begun
    return f"{requests / seconds:>10,.0f}{1e6 / requests * seconds / 60:>12,.1f}"


def main() -> None:
    """Print one line a load, capacity and policy."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else REQUESTS
    small = setting_of("qwen38-5090-fanout", Overrides(model="27b", kv_capacity=262_144)).capacities
    print(f"{'load':<16}{'capacities':<12}{'policy':<16}{'requests/s':>10}{'min/million':>12}{'plan p99, us':>14}")
    for name in GENERATORS:
        trace = Generated(name, requests)
        length = sum(1 for _ in trace())
        for label, capacities in (("profile", small), ("64 GiB", divided(64 << 30, 160_000, 0.2))):
            one_load(f"{name:<16}{label:<12}", trace, length, capacities)


def one_load(label: str, trace: Generated, length: int, capacities: Capacities) -> None:
    """Ours and every baseline over one trace."""
    p99: list[float | None] = []
    costs, pool = HYBRID_27B_5090, pool_bytes(capacities)
    ours = rate(lambda: p99.append(run_ours(trace, capacities, costs, time.process_time_ns).plan.p99_us), length)
    print(f"{label}{'ours':<16}{ours}{p99[0]:>14,.0f}", flush=True)
    for policy in BASELINES:
        spent = rate(partial(other_share, policy, trace, pool, capacities, costs), length)
        print(f"{label}{policy:<16}{spent}", flush=True)


if __name__ == "__main__":
    main()
