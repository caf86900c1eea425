"""The planner against brute force over random small inventories, on every axis."""

import pytest
from context_world import World, brute_plan, brute_publish, capacities
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer_engine.context.types import CheckpointKind, Policy

CAPACITIES = st.builds(
    capacities,
    device=st.integers(0, 3),
    host=st.integers(0, 3),
    pages=st.integers(6, 20),
    host_pages=st.integers(0, 10),
    private=st.integers(0, 3),
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int, int, int, bool, bool]]:
    """Requests as (which earlier text, cut, new tokens, reply, stored, left running)."""
    step = st.tuples(
        st.integers(0, 7), st.integers(0, 400), st.integers(1, 260), st.integers(1, 90), st.booleans(), st.booleans()
    )
    return draw(st.lists(step, min_size=1, max_size=8))


def play(world: World, history: list[tuple[int, int, int, int, bool, bool]], check: bool) -> None:
    """Run a history; with `check`, hold every plan against brute force."""
    texts: list[list[int]] = [[]]
    running: list[str] = []
    for number, (which, cut, fresh, reply_length, stored, stays) in enumerate(history):
        base = texts[which % len(texts)]
        prompt = base[: cut or len(base)] + [(number * 7 + i // 50) % 11 for i in range(fresh)]
        prompt = prompt[:600]
        reply = [20 + number + i % 3 for i in range(reply_length)]
        request = world.request(prompt, "s", None, reply_length)
        plan = world.cache.plan(request)
        if check:
            expected = brute_plan(world.cache, request)
            assert (plan.blocked is not None) == (expected is None)
            if expected is not None:
                assert plan.optimal
                assert plan.total_stored == expected
        if plan.blocked is not None:
            for name in running:
                world.end(name)
            running.clear()
            continue
        name = world.begin(plan)
        world.consistent()
        for split in plan.splits:
            publish(world, name, split.frontier, split.kind, None, check)
        if stored:
            endpoint = publish(world, name, len(prompt) + reply_length - 1, CheckpointKind.ENDPOINT, reply, check)
            world.cache.store_continuation(name, name, "s", endpoint, world.now)
        texts.append(prompt + reply)
        running.append(name)
        if not stays:
            for name in running:
                world.end(name)
            running.clear()
        world.now += 1.0 + number
        world.consistent()
        assert world.cache.audit() == []


def publish(
    world: World, name: str, frontier: int, kind: CheckpointKind, reply: list[int] | None, check: bool
) -> int | None:
    from ninfer_engine.context.tokens import TokenArray

    world.memory.reading.pop(name, None)
    plan = world.cache.publish_plan(name, frontier, kind, world.now, TokenArray.of(reply) if reply else None)
    if check and plan.existing is None:
        assert plan.total_stored == brute_publish(world.cache, plan)
    return world.commit(plan)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(CAPACITIES, histories(), st.sampled_from([0.02, 0.5]), st.sampled_from([1, 3, 64]), st.sampled_from([0, 1, 8]))
def test_every_plan_is_as_good_as_the_best_of_all_possible_plans(caps, history, replay, half_life, spare):  # type: ignore[no-untyped-def]
    world = World(caps, Policy(replay=replay, half_life=half_life, min_rung_tokens=128, spare_pages=spare))
    play(world, history, check=True)


if __name__ == "__main__":
    pytest.main([__file__])
