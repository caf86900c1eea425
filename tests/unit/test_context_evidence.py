"""Reasons for misses, names of paths, and what a restart brings back."""

import pytest
from context_world import World, capacities

from ninfer_engine.context.errors import BlockedPlanError, ContextError, LineageError, StalePlanError
from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import CheckpointKind, Lineage, MissKind, PathKind, Policy, Released, Tier

ROOMY = capacities(device=3, host=12, pages=200, host_pages=100, private=8)
TEMPLATE = [(i * 7) % 251 for i in range(1000)]
QUIET = Policy(min_rung_tokens=1 << 20)


def question(number: int, length: int = 20) -> list[int]:
    return [300 + number] * length


def test_a_new_prompt_was_never_seen_and_its_exact_resend_costs_one_token() -> None:
    world = World(ROOMY)
    assert world.run(TEMPLATE, [7], store=False).miss.kind is MissKind.NEVER_SEEN  # type: ignore[union-attr]
    again = world.run(TEMPLATE, [7], store=False)
    assert (again.resume.frontier, again.resume.path) == (999, PathKind.PRIVATE_RESPONSE_REPLAY)
    assert again.miss is None


@pytest.mark.parametrize("length", [30, 63, 64, 65, 128, 480])
def test_short_prompts_are_reused_too(length: int) -> None:
    world = World(ROOMY)
    world.run(TEMPLATE[:length], [7], store=False)
    assert world.run(TEMPLATE[:length], [7], store=False).resume.frontier == length - 1


def test_a_fork_is_not_told_a_miss_for_its_own_new_suffix() -> None:
    world = World(ROOMY)
    world.run(TEMPLATE, [7, 8, 9], "s")
    for number in range(4):
        plan = world.run([*TEMPLATE, 7, 8, 9, *question(number)], [1, 2], "s", "r1")
        assert plan.miss is None
        assert plan.resume.frontier == 1002
        assert plan.resume.path is (PathKind.PRIVATE_LONG_ANCHOR if number else PathKind.PRIVATE_ENDPOINT)


def test_another_session_with_the_same_prefix_shares_it() -> None:
    world = World(ROOMY)
    world.run(TEMPLATE, [7, 8, 9], "s")
    plan = world.run([*TEMPLATE, 7, 8, 9, *question(1)], [1, 2], "other")
    assert plan.resume.path is PathKind.SHARED_STABLE_PREFIX
    assert world.cache.occupancy().shared_prefixes == 1


def test_different_salts_share_nothing() -> None:
    world = World(ROOMY)
    world.run(TEMPLATE, [7], "s")
    plan = world.cache.plan(world.request(TEMPLATE, "s", salt="pepper"))
    assert plan.resume.path is PathKind.ROOT
    assert plan.miss is not None
    assert plan.miss.kind is MissKind.NEVER_SEEN


def test_a_prompt_that_leaves_its_parent_is_told_where() -> None:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7] * 100, "s")
    changed = [*TEMPLATE, *[7] * 40, *question(1)]
    plan = world.cache.plan(world.request(changed, "s", "r1"))
    assert plan.miss is not None
    assert (plan.miss.kind, plan.miss.token) == (MissKind.IDENTITY_DIFFERS, 1040)
    assert plan.resume.frontier == 999


def test_known_tokens_without_an_image_are_named() -> None:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7], "s")
    plan = world.cache.plan(world.request([*TEMPLATE[:700], *question(1)], "s"))
    assert plan.miss is not None
    assert (plan.miss.kind, plan.miss.token) == (MissKind.NOT_RESUMABLE_BEFORE, 700)


def test_the_second_sight_of_a_branch_leaves_an_image_there() -> None:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7], "a", store=False)
    second = world.run([*TEMPLATE[:700], *question(1)], [7], "b", store=False)
    assert (second.splits[0].frontier, second.splits[0].kind) == (700, CheckpointKind.JUNCTION)
    third = world.run([*TEMPLATE[:700], *question(2)], [7], "c", store=False)
    assert (third.resume.frontier, third.resume.path) == (700, PathKind.SHARED_STABLE_PREFIX)


def test_an_eviction_is_named_with_its_cause_its_age_and_its_price() -> None:
    world = World(capacities(device=1, host=0, pages=200), QUIET)
    world.run(TEMPLATE, [7], "s", store=False)
    for number in range(3):
        world.run([50_000 + number] * 2000, [9], f"n{number}")
    plan = world.cache.plan(world.request(TEMPLATE, "s"))
    assert plan.miss is not None
    assert plan.miss.kind is MissKind.EVICTED
    assert plan.miss.evicted_for in {"r2", "r3", "r4"}
    assert plan.miss.age_s is not None and plan.miss.age_s > 0
    assert plan.miss.predicted_loss_ns is not None and plan.miss.predicted_loss_ns > 0


def test_reuse_that_is_switched_off_says_so() -> None:
    world = World(ROOMY, Policy(reuse=False))
    world.run(TEMPLATE, [7], "s")
    plan = world.run(TEMPLATE, [7], "s")
    assert plan.resume.path is PathKind.ROOT
    assert plan.miss is not None
    assert plan.miss.kind is MissKind.DISABLED


def test_after_a_fork_nothing_of_the_parent_is_written() -> None:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7, 8, 9], "s")
    first = world.cache.plan(world.request([*TEMPLATE, 7, 8, 9, *question(0)], "s", "r1"))
    assert first.resume.tail_page is not None
    assert first.new_pages == 1
    assert len(first.resume.pages) == 1002 // 64


def test_an_image_that_a_sequence_has_yet_to_read_is_never_given_up() -> None:
    world = World(capacities(device=1, host=0, pages=200, concurrency=2), QUIET)
    world.run(TEMPLATE[:200], [7], "s", store=False)
    reader = world.begin(world.cache.plan(world.request(TEMPLATE[:200], "s")))
    writer = world.begin(world.cache.plan(world.request([9] * 5000, "t")))
    plan = world.cache.publish_plan(writer, 4999, CheckpointKind.JUNCTION, world.now)
    assert (plan.tier, plan.moves) == (None, ())
    world.cache.image_read(reader)
    plan = world.cache.publish_plan(writer, 4999, CheckpointKind.JUNCTION, world.now)
    assert plan.tier is Tier.DEVICE
    assert [e.frontier for e in plan.evicted] == [199]


def test_a_begun_plan_makes_the_next_one_stale() -> None:
    world = World(ROOMY)
    one, two = (world.cache.plan(world.request(TEMPLATE)) for _ in range(2))
    world.begin(one)
    with pytest.raises(StalePlanError):
        world.begin(two)


def test_an_aborted_plan_leaves_everything_as_it_was() -> None:
    world = World(ROOMY)
    world.run(TEMPLATE, [7], "s")
    before = (world.cache.occupancy(), world.cache.checkpoints(0.0))
    plan = world.cache.plan(world.request(TEMPLATE))
    world.cache.abort(plan)
    assert (world.cache.occupancy(), world.cache.checkpoints(0.0)) == before
    with pytest.raises(StalePlanError):
        world.begin(plan)


def test_a_request_larger_than_the_device_is_impossible_and_one_beside_a_large_runner_waits() -> None:
    world = World(capacities(pages=20))
    assert world.cache.plan(world.request([1] * 2000)).impossible
    world.begin(world.cache.plan(world.request([1] * 1000)))
    waiting = world.cache.plan(world.request([2] * 1000))
    assert waiting.blocked is not None and not waiting.impossible
    with pytest.raises(BlockedPlanError):
        world.cache.begin(waiting, "x", [])


def test_frontiers_of_a_sequence_rise_and_lie_in_known_tokens() -> None:
    world = World(ROOMY)
    name = world.begin(world.cache.plan(world.request(TEMPLATE)))
    world.publish(name, 500, CheckpointKind.RUNG)
    for frontier in (500, 400, 1001):
        with pytest.raises(ContextError, match="rising order"):
            world.cache.publish_plan(name, frontier, CheckpointKind.RUNG, 0.0)


def test_deleting_a_parent_leaves_its_descendants_usable() -> None:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7, 8, 9], "s")
    world.run([*TEMPLATE, 7, 8, 9, *question(0)], [1, 2], "s", "r1")
    world.memory.release(world.cache.forget("r1", world.now))
    world.consistent()
    plan = world.run([*TEMPLATE, 7, 8, 9, *question(0), 1, 2, 5], [3], "s", "r2")
    assert plan.resume.frontier == 1000 + 3 + 20 + 1


def test_deleting_a_response_that_nothing_stands_on_frees_it() -> None:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7] * 100, "s")
    assert world.cache.occupancy().checkpoints == 2, "its end, and the point just before its reply"
    world.memory.release(world.cache.forget("r1", world.now))
    world.consistent()
    assert world.cache.occupancy().checkpoints == 0
    assert world.cache.forget("r1", world.now) == Released()


def test_deleting_a_response_that_the_catalog_has_dropped_frees_it_all_the_same() -> None:
    world = World(capacities(device=2, host=4, pages=40, private=1))
    first = world.run(list(range(100)), [7] * 9, "s")
    world.run(list(range(200, 300)), [7] * 9, "s")
    held = world.cache.occupancy()
    assert held.continuations == 1
    world.memory.release(world.cache.forget(first.request.request_id, world.now))
    left = world.cache.occupancy()
    assert left.checkpoints == held.checkpoints - 2, "its end, and the point just before its reply"
    assert world.cache.audit() == []
    world.consistent()


def test_deleting_every_response_leaves_no_image_behind() -> None:
    world = World(capacities(device=2, host=8, pages=60, private=2), Policy(min_rung_tokens=64, prefill_chunk=64))
    base = world.run(list(range(400)), [7] * 9, "s")
    forks = [world.run([*range(400), *[7] * 9, *range(start, start + 30)], [8] * 9, "s", base.request.request_id)
             for start in (500, 600, 700)]
    last = forks[-1].request
    world.run([*last.tokens.tolist(), *[8] * 9, 1, 2, 3], [9] * 9, "s", last.request_id)
    for number in range(1, 6):
        world.memory.release(world.cache.forget(f"r{number}", world.now))
        world.consistent()
    assert world.cache.occupancy().checkpoints == 0
    assert world.memory.pages == {}
    assert world.cache.audit() == []


def test_a_deleted_response_that_others_stand_on_is_expected_by_nobody() -> None:
    world = World(capacities(device=2, host=4, pages=40, private=4))
    base = world.run(list(range(100)), [7] * 9, "s")
    world.run([*range(100), *[7] * 9, *range(200, 240)], [8] * 9, "s", base.request.request_id)
    world.cache.forget(base.request.request_id, world.now)
    weights = {record.frontier: record.weight for record in world.cache.checkpoints(world.now)}
    assert weights[108] == 0.0
    assert weights[157] > 0.0


def test_a_new_template_is_held_above_the_ends_of_its_forks_and_a_conversation_is_not() -> None:
    world = World(ROOMY, Policy(min_rung_tokens=1 << 20, landed=0.0))
    world.run(TEMPLATE, [7] * 40, "s")
    weight = {}
    for number in range(2):
        world.run([*TEMPLATE, *[7] * 40, *question(number)], [1] * 80, "s", "r1")
        weight[number] = {r.frontier: r.weight for r in world.cache.checkpoints(world.now)}
    assert weight[0][1039] > 4 * weight[0][1139], "one fork says little: the template is still expected to be forked"
    assert weight[1][1039] > weight[0][1039], "each further fork announces others"
    talk = World(ROOMY, Policy(min_rung_tokens=1 << 20, landed=0.0))
    text = TEMPLATE
    for turn in range(3):
        reply = [400 + turn] * 30
        talk.run(text, reply, "s")
        text = [*text, *reply, *question(turn)]
    ends = {r.frontier: r.weight for r in talk.cache.checkpoints(talk.now) if r.kind is CheckpointKind.ENDPOINT}
    assert ends[1029] < 3, "a grandchild shows a conversation"


# --- restart ----------------------------------------------------------------------------------------------------------


def restore_into(world: World, lineage: Lineage) -> None:
    """Load everything the plan wants, under fresh ids."""
    plan = world.cache.plan_restore(lineage, world.now)
    world.memory.move(plan.moves)
    pages = dict(zip(plan.load_pages, world.memory.new_pages(len(plan.load_pages)), strict=True))
    for page in pages.values():
        world.memory.pages[page] = plan.page_tier
    images = {image: world.memory.new_image(tier) for image, tier in plan.load_images}
    world.memory.release(world.cache.restore_lineage(plan, images, pages).released)
    world.consistent()
    assert world.cache.audit() == []


def saved_fleet() -> Lineage:
    world = World(ROOMY, QUIET)
    world.run(TEMPLATE, [7, 8, 9], "s")
    for number in range(3):
        world.run([*TEMPLATE, 7, 8, 9, *question(number)], [1, 2], "s", "r1")
    return world.cache.lineage_of("s", world.now)


def test_after_a_restart_the_first_sibling_is_as_hot_as_the_fourth() -> None:
    lineage = saved_fleet()
    assert len(lineage.continuations) == 4
    world = World(ROOMY, QUIET)
    world.count = 100  # request ids go on: those of the first process are taken
    restore_into(world, lineage)
    for number in range(10, 14):
        plan = world.run([*TEMPLATE, 7, 8, 9, *question(number)], [1, 2], "s", "r1")
        assert (plan.resume.frontier, plan.resume.path) == (1002, PathKind.PRIVATE_LONG_ANCHOR)
        assert plan.miss is None


def test_restoring_twice_loads_nothing_the_second_time() -> None:
    lineage = saved_fleet()
    world = World(ROOMY, QUIET)
    restore_into(world, lineage)
    plan = world.cache.plan_restore(lineage, world.now)
    assert plan.load_pages == ()
    assert plan.load_images == ()
    assert len(plan.known) == len(lineage.checkpoints)


def test_a_restore_into_few_slots_keeps_what_is_worth_most_and_names_what_it_lacks() -> None:
    lineage = saved_fleet()
    world = World(capacities(device=0, host=1, pages=200, host_pages=100), QUIET)
    restore_into(world, lineage)
    assert world.cache.occupancy().checkpoints == 1
    plan = world.cache.plan(world.request([*TEMPLATE, 7, 8, 9, *question(0), 1, 2, 4], "s", "r2"))
    assert plan.resume.frontier >= 999
    assert plan.miss is not None
    assert plan.miss.kind is MissKind.RESTORED_LINEAGE_LACKS_IT


def test_a_restore_that_only_the_host_can_hold_goes_there_and_is_promoted_when_resumed() -> None:
    lineage = saved_fleet()
    world = World(capacities(device=0, host=8, pages=24, host_pages=40), QUIET)
    busy = world.begin(world.cache.plan(world.request([9] * 1000)))
    restore_into(world, lineage)
    assert world.cache.occupancy().host_pages > 0
    world.end(busy)
    plan = world.cache.plan(world.request([*TEMPLATE, 7, 8, 9, *question(9)], "s", "r1"))
    assert plan.resume.frontier == 1002
    world.begin(plan)
    world.consistent()
    assert not set(plan.resume.pages) & world.cache._inventory.tree.on_host


def test_a_lineage_that_contradicts_itself_is_refused() -> None:
    record = saved_fleet().checkpoints[0]
    broken = Lineage("s", (type(record)(**{**_fields(record), "pages": record.pages[:-1]}),), ())
    with pytest.raises(LineageError, match="pages"):
        World(ROOMY).cache.plan_restore(broken, 0.0)


def test_a_restore_that_did_not_load_everything_changes_nothing() -> None:
    world = World(ROOMY, QUIET)
    plan = world.cache.plan_restore(saved_fleet(), 0.0)
    with pytest.raises(LineageError, match="did not come"):
        world.cache.restore_lineage(plan, {}, {})
    assert world.cache.occupancy().checkpoints == 0


def _fields(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__slots__}  # type: ignore[attr-defined]


def test_a_record_holds_the_tokens_of_its_prefix() -> None:
    for record in saved_fleet().checkpoints:
        assert isinstance(record.tokens, TokenArray)
        assert len(record.tokens) == record.frontier
        assert record.image_tier in set(Tier)
