"""p50 and p99 of plan() and publish_plan() at 10, 1,000 and 10,000 checkpoints, on real token ids.

    python benchmarks/planner_bench.py [requests a size]

The inventory is a fleet: templates of 2,048 to 16,384 tokens with forks that were stored, some continued, in the
course of two hours; device pages, host pages, slots and catalog are full. The requests: forks of random templates
(70%), continuations of random forks (20%), strangers of 2,000 tokens (10%). Plans are timed alone and then committed,
so that the inventory keeps changing. Times are CPU times of the thread; Python's garbage collector waits, as it does in
the engine while requests run.
"""

import gc
import random
import sys
import time
from itertools import count

from ninfer_engine.context.cache import ContextCache
from ninfer_engine.context.costs import HYBRID_27B_5090
from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import Capacities, CheckpointKind, Plan, PlanRequest, Policy

IDS = count(1)
PAGE, IMAGE = 64 * 65536, 153_931_776


class Fleet:
    """A cache under load, and the texts that were stored in it."""

    def __init__(self, checkpoints: int, seed: int, pages_each: int) -> None:
        self.random = random.Random(seed)
        templates = max(1, checkpoints // 100)
        self.now = 0.0
        pages = 400 + templates * 150 + checkpoints * pages_each
        self.cache = ContextCache(
            Capacities(
                checkpoints // 5,
                checkpoints - checkpoints // 5,
                pages,
                pages // 2 * PAGE,
                PAGE,
                IMAGE,
                checkpoints,
                64,
                2,
                4,
            ),
            HYBRID_27B_5090,
            Policy(ladder=0),
        )
        self.bases: list[TokenArray] = []
        self.forks: list[TokenArray] = []
        self.plan_ns: list[int] = []
        self.publish_ns: list[int] = []
        for _ in range(templates):
            self.bases.append(self.run(self.text(self.random.randrange(2048, 16384))))
        for _ in range(checkpoints * 3):
            if len(self.cache.checkpoints_by_id()) >= checkpoints * 0.99:
                break
            self.step()

    def text(self, length: int) -> TokenArray:
        """Random tokens."""
        return TokenArray.of([self.random.randrange(150_000) for _ in range(length)])

    def step(self) -> None:
        """One request of the mix."""
        dice = self.random.random()
        if dice < 0.7:
            prompt = self.random.choice(self.bases).joined(self.text(40))
        elif dice < 0.9 and self.forks:
            prompt = self.random.choice(self.forks).joined(self.text(60))
        else:
            prompt = self.text(2000)
        self.forks.append(self.run(prompt))
        self.forks = self.forks[-2000:]

    def run(self, prompt: TokenArray) -> TokenArray:
        """One request, its planning timed."""
        self.now += 7200 / 20000
        name = f"q{next(IDS)}"
        request = PlanRequest(name, prompt, self.now, session="s", reserve_tokens=80)
        begun = time.thread_time_ns()
        plan: Plan = self.cache.plan(request)
        self.plan_ns.append(time.thread_time_ns() - begun)
        assert plan.blocked is None, plan.blocked
        self.cache.begin(plan, name, [next(IDS) for _ in range(plan.new_pages)])
        reply = self.text(80)
        for split in plan.splits:
            self.publish(name, split.frontier, split.kind, None)
        endpoint = self.publish(name, len(prompt) + 79, CheckpointKind.ENDPOINT, reply)
        self.cache.store_continuation(name, name, "s", endpoint, self.now)
        self.cache.end(name)
        return prompt.joined(reply)

    def publish(self, name: str, frontier: int, kind: CheckpointKind, reply: TokenArray | None) -> int | None:
        """One publication, its planning timed."""
        begun = time.thread_time_ns()
        plan = self.cache.publish_plan(name, frontier, kind, self.now, reply)
        self.publish_ns.append(time.thread_time_ns() - begun)
        return self.cache.publish(plan, next(IDS) if plan.tier else None)


def quantile(values: list[int], share: float) -> float:
    """An order statistic, in microseconds; an empty sample is an error."""
    if not values:
        raise ValueError("no samples")
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] / 1e3


def main() -> None:
    """Print a table. Slots bind with six device pages a checkpoint; with three, pages on both tiers do."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print("binding checkpoints  plan p50 us  plan p99 us  plan max us  publish p50 us  publish p99 us")
    for name, pages_each in (("slots", 6), ("pages", 3)):
        for size in (10, 1000, 10_000):
            fleet = Fleet(size, size, pages_each)
            for _ in range(200):
                fleet.step()
            fleet.plan_ns.clear()
            fleet.publish_ns.clear()
            gc.collect()
            gc.disable()
            for _ in range(requests):
                fleet.step()
            gc.enable()
            held = len(fleet.cache.checkpoints_by_id())
            used, room = fleet.cache.occupancy(), fleet.cache.capacities
            print(
                f"{name} {held:13,} {quantile(fleet.plan_ns, 0.5):12.0f} {quantile(fleet.plan_ns, 0.99):12.0f} "
                f"{quantile(fleet.plan_ns, 1):12.0f} {quantile(fleet.publish_ns, 0.5):15.0f} "
                f"{quantile(fleet.publish_ns, 0.99):15.0f}   device pages {used.device_pages / room.device_pages:.0%} "
                f"host pages {used.host_pages / max(1, room.host_pages):.0%}"
            )


if __name__ == "__main__":
    main()
