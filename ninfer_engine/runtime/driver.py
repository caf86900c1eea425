"""Asks the context cache for plans and has memory carry them out: reserve, copy, verify, publish, release.

The only place where the brain and the pools meet. The brain holds one reference to every page and image that it knows
of; memory frees an id when the brain releases it (and nobody else, such as a running save, still holds it).
"""

import time
from collections.abc import Callable
from typing import assert_never

from ninfer_engine.context.cache import ContextCache
from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import (
    CheckpointId,
    CheckpointKind,
    DemoteImage,
    DemotePages,
    DropImage,
    DropPages,
    Move,
    PlanRequest,
    PromoteImage,
    PromotePages,
    Released,
    Tier,
)
from ninfer_engine.contract.status import BytePool, Cache, Pool, SharedPool
from ninfer_engine.kernels.cache_layout import NO_SLOT, PAGE_TOKENS
from ninfer_engine.kernels.pages import page_table
from ninfer_engine.memory.audit import check
from ninfer_engine.memory.images import ImageId, StateImages
from ninfer_engine.memory.pages import DevicePages, PageId
from ninfer_engine.runtime.sequence import Sequence


class CacheDriver:
    """Resumes, publishes and releases sequences. The engine thread alone calls it."""

    def __init__(
        self, brain: ContextCache, pages: DevicePages, images: StateImages, concurrency: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.brain = brain
        self.pages = pages
        self.images = images
        self.concurrency = concurrency
        self._clock = clock
        self._slots: set[int] = set()

    @property
    def running(self) -> int:
        """Sequences that hold a slot; may be read from any thread."""
        return len(self._slots)

    def longest_sequence(self, max_context: int) -> int:
        """Most tokens that one prompt and its reply may have together."""
        return min(max_context, self.pages.total_device * PAGE_TOKENS)

    def admit(self, sequence: Sequence) -> bool:
        """Plan, make room, and stand the sequence on what it resumes from; False when running ones must end first."""
        started = self._clock()
        plan = self.brain.plan(PlanRequest(
            request_id=sequence.request.request_id,
            tokens=TokenArray.of(sequence.request.tokens),
            now=started,
            salt=sequence.request.cache_salt,
            session=sequence.request.session,
            parent_response_id=sequence.request.parent_response_id,
            reserve_tokens=sequence.longest - sequence.prompt_tokens,
        ))
        planned = self._clock()
        sequence.clock.plan_s += planned - started
        if plan.blocked:
            return False
        self.carry_out(plan.moves)
        resume = plan.resume
        shared = [PageId(page) for page in resume.pages]
        fresh = self.pages.allocate(plan.new_pages, after=shared[-1] if shared else None)
        self.brain.begin(plan, self._name(sequence), list(fresh))
        if resume.tail_page is not None:
            self.pages.copy_tail(PageId(resume.tail_page), fresh[0])
        sequence.slot = self.images.acquire_slot()
        self._slots.add(sequence.slot)
        sequence.source_slot = self._source_slot(sequence, resume.image)
        sequence.plan = plan
        sequence.computed = sequence.frontier = resume.frontier
        sequence.splits = list(plan.splits)
        sequence.demoted = plan.demoted_pages
        sequence.device_pages = page_table(self.pages.device_indices([*shared, *fresh]))
        sequence.clock.restore_s += self._clock() - planned
        return True

    def publish(self, sequence: Sequence, kind: CheckpointKind) -> None:
        """Keep the state at the sequence's computed frontier, where it is worth the room."""
        at_end = kind is CheckpointKind.ENDPOINT
        reply = TokenArray.of(sequence.output) if at_end else None
        plan = self.brain.publish_plan(self._name(sequence), sequence.computed, kind, self._clock(), reply)
        sequence.evictions += plan.evicted
        image: ImageId | None = None
        if plan.tier is not None:
            self.carry_out(plan.moves)
            image = self.images.snapshot(sequence.slot, "device" if plan.tier is Tier.DEVICE else "host")
        checkpoint = self.brain.publish(plan, image)
        if at_end and sequence.request.store:
            self._store(sequence, checkpoint)

    def release(self, sequence: Sequence) -> None:
        """The sequence ended: its slot and what only it held are free."""
        if sequence.plan is None:
            return
        self.free(self.brain.end(self._name(sequence)))
        self._slots.remove(sequence.slot)
        self.images.release_slot(sequence.slot)
        sequence.slot = NO_SLOT

    def forget(self, response_id: str) -> None:
        """A stored response was deleted by its client."""
        self.free(self.brain.forget(response_id, self._clock()))

    def occupancy(self) -> Cache:
        """Pools now, for the status document; its request counters are not this class's."""
        counts, room = self.brain.occupancy(), self.brain.capacities
        return Cache(
            device_state=Pool(occupied=counts.device_images + len(self._slots),
                              capacity=self.images.device_slots),
            host_state=Pool(occupied=counts.host_images, capacity=room.host_state_slots),
            device_kv=Pool(occupied=counts.device_pages, capacity=room.device_pages),
            host_kv=BytePool(occupied_bytes=counts.host_pages * room.page_bytes, capacity_bytes=room.host_kv_bytes),
            private_catalog=Pool(occupied=counts.continuations, capacity=room.private_catalog),
            shared_catalog=SharedPool(occupied=counts.shared_prefixes, capacity=room.shared_catalog,
                                      active_references=counts.shared_references),
            private_evictions=counts.private_evictions,
            shared_evictions=counts.shared_evictions,
        )

    def check(self) -> None:
        """Raise when brain and memory disagree about a page, an image or a slot. Not while a save holds references."""
        findings = self.brain.audit()
        if findings:
            raise AssertionError("; ".join(findings))
        held = self.brain.held()
        check(self.pages, self.images, {PageId(page): 1 for page in held.pages},
              {ImageId(image): 1 for image in held.images}, self._slots)

    def _store(self, sequence: Sequence, endpoint: CheckpointId | None) -> None:
        request = sequence.request
        stored = self.brain.store_continuation(
            self._name(sequence), request.response_id or request.request_id, request.session, endpoint, self._clock())
        sequence.evictions += stored.evicted

    def _source_slot(self, sequence: Sequence, image: int | None) -> int:
        """Where the first kernel reads: the anchor's slot on the device, or the own slot after a load from the host."""
        if image is None:
            return NO_SLOT
        place = self.images.residency(ImageId(image))
        if place.device is not None:
            return place.device
        self.images.load_into(ImageId(image), sequence.slot)
        self.brain.image_read(self._name(sequence))
        return sequence.slot

    def carry_out(self, moves: tuple[Move, ...]) -> None:
        """Have memory do what a plan says, in its order."""
        for move in moves:
            match move:
                case DropImage():
                    self.images.release([ImageId(move.image)])
                case DropPages():
                    self.pages.release([PageId(page) for page in move.pages])
                case DemoteImage():
                    self.images.demote(ImageId(move.image))
                case PromoteImage():
                    self.images.promote(ImageId(move.image))
                    self.images.drop_host(ImageId(move.image))
                case DemotePages():
                    self.pages.demote([PageId(page) for page in move.pages])
                case PromotePages():
                    self.pages.promote([PageId(page) for page in move.pages])
                    self.pages.drop_host([PageId(page) for page in move.pages])
                case _:
                    assert_never(move)

    def free(self, released: Released) -> None:
        """The brain refers to these no more."""
        self.pages.release([PageId(page) for page in released.pages])
        self.images.release([ImageId(image) for image in released.images])

    @staticmethod
    def _name(sequence: Sequence) -> str:
        return str(sequence.sequence_id)
