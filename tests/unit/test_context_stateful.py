"""Random schedules of requests, cancels, stores, deletes, restores and tier moves: nothing leaks, nothing is counted
wrong."""

from context_world import World, capacities
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import CheckpointKind, Plan, Policy


class Schedule(RuleBasedStateMachine):
    """Sequences overlap, publish out of step with each other, and end at any point."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(capacities())
        self.running: dict[str, tuple[Plan, list[int]]] = {}
        self.texts: list[list[int]] = [[1] * 10]
        self.stored: list[str] = []

    @initialize(device=st.integers(0, 3), host=st.integers(0, 4), pages=st.integers(8, 30),
                host_pages=st.integers(0, 15), private=st.integers(0, 3), half_life=st.sampled_from([1, 8, 64]))
    def start(self, device: int, host: int, pages: int, host_pages: int, private: int, half_life: int) -> None:
        self.world = World(capacities(device, host, pages, host_pages, private, concurrency=3),
                           Policy(half_life=half_life, min_rung_tokens=128, prefill_chunk=64, tombstones=6))

    @precondition(lambda self: len(self.running) < 3)
    @rule(which=st.integers(0, 20), cut=st.integers(0, 500), fresh=st.integers(1, 300), token=st.integers(2, 9),
          reserve=st.integers(0, 80), session=st.sampled_from([None, "a", "b"]), salt=st.sampled_from(["", "x"]))
    def begin(self, which: int, cut: int, fresh: int, token: int, reserve: int, session: str | None, salt: str) -> None:
        base = self.texts[which % len(self.texts)]
        prompt = (base[: cut or len(base)] + [token] * fresh)[:600]
        request = self.world.request(prompt, session, self.stored[-1] if self.stored else None, reserve, salt)
        plan = self.world.cache.plan(request)
        assert plan == self.world.cache.plan(request), "planning is deterministic and changes nothing"
        if plan.blocked is None:
            assert plan.resume.frontier < len(prompt)
            self.running[self.world.begin(plan)] = (plan, prompt)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 2), reply=st.integers(1, 70), kind=st.sampled_from(list(CheckpointKind)), data=st.data())
    def publish(self, which: int, reply: int, kind: CheckpointKind, data: st.DataObject) -> None:
        name = list(self.running)[which % len(self.running)]
        plan, prompt = self.running[name]
        last = self.world.cache._inventory.sequences[name].last_frontier
        room = plan.new_pages * 64 + plan.resume.frontier // 64 * 64
        if kind is CheckpointKind.ENDPOINT:
            text = prompt + [11] * min(reply, room - len(prompt))
            if len(text) - 1 > max(last, len(prompt) - 1):
                endpoint = self.world.publish(name, len(text) - 1, kind, text[len(prompt):])
                self.world.cache.store_continuation(name, name, None, endpoint, self.world.now)
                self.stored.append(name)
                self.texts.append(text)
        elif last + 1 <= len(prompt) - 1:
            self.world.publish(name, data.draw(st.integers(last + 1, len(prompt) - 1)), kind)
            self.texts.append(prompt)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 2))
    def end(self, which: int) -> None:
        name = list(self.running)[which % len(self.running)]
        del self.running[name]
        self.world.end(name)
        self.world.now += 1.0

    @precondition(lambda self: self.stored)
    @rule(which=st.integers(0, 9))
    def forget(self, which: int) -> None:
        name = self.stored.pop(which % len(self.stored))
        self.world.memory.release(self.world.cache.forget(name, self.world.now))

    @rule()
    def restore_what_was_saved(self) -> None:
        lineage = self.world.cache.lineage_of("a", self.world.now)
        plan = self.world.cache.plan_restore(lineage, self.world.now)
        assert plan.accepted == (), "everything of a live session is known"
        self.world.memory.release(self.world.cache.restore_lineage(plan, {}, {}).released)

    @invariant()
    def memory_and_brain_agree(self) -> None:
        self.world.consistent()
        assert self.world.cache.audit() == []
        occupied, caps = self.world.cache.occupancy(), self.world.cache.capacities
        assert occupied.device_images <= caps.device_state_extra
        assert occupied.host_images <= caps.host_state_slots
        assert occupied.device_pages <= caps.device_pages
        assert occupied.host_pages <= caps.host_pages
        assert occupied.continuations <= caps.private_catalog

    @invariant()
    def every_checkpoint_still_stands_for_its_tokens(self) -> None:
        tree = self.world.cache._inventory.tree
        for checkpoint in self.world.cache.checkpoints_by_id().values():
            tokens = tree.tokens(checkpoint.node)
            match = tree.match(tree.salt(checkpoint.node), TokenArray.of(tokens))
            assert match is not None
            assert match.node is checkpoint.node

    def teardown(self) -> None:
        for name in self.running:
            self.world.end(name)
        self.memory_and_brain_agree()
        held = self.world.cache.held()
        assert len(held.images) == len(self.world.memory.images)


Schedule.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSchedule = Schedule.TestCase
