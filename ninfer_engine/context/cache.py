"""ContextCache: what the runtime talks to. One thread calls it; no call waits, reads a clock or touches bytes.

The life of a request:

    plan = cache.plan(request)                      pure
    (blocked: wait until a sequence ends, plan again)
    carry out plan.moves in order, allocate plan.new_pages, copy resume.tail_page into the first of them
    cache.begin(plan, sequence_id, new_page_ids)    commits; resume image and pages are pinned
    prefill to each plan.splits frontier; there, and at the end of a stored reply:
        publishing = cache.publish_plan(sequence_id, frontier, kind, now, generated)      pure
        tier None: go on. Else carry out publishing.moves, take the snapshot into that tier
        cache.publish(publishing, image_id)         commits
    cache.store_continuation(...)                   for a stored response
    released = cache.end(sequence_id)               on every way out, cancelled or failed too

Between plan and begin (publish_plan and publish) nothing else may change the cache: a stale plan is refused. When
memory fails while carrying out moves, `abort` says so and the brain is as it was before the plan.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Ids
from dataclasses import replace
from typing import assert_never

from ninfer_engine.context.audit import findings
from ninfer_engine.context.catalog import Catalog, Continuation
from ninfer_engine.context.costs import CostModel
from ninfer_engine.context.errors import BlockedPlanError, ContextError, PageCountError, StalePlanError
from ninfer_engine.context.evidence import note_publication, note_resume, publication
from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.lineage import checkpoint_record, lineage_of
from ninfer_engine.context.planning import plan_request
from ninfer_engine.context.publishing import landed_weight, publish_plan
from ninfer_engine.context.reserving import Reservation, reserve, unpin, use_room
from ninfer_engine.context.restoring import check_loaded, check_restore, plan_restore, restore
from ninfer_engine.context.sequences import Sequence
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Node, Tombstone
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    Capacities,
    CheckpointId,
    CheckpointKind,
    CheckpointRecord,
    DemoteImage,
    DemotePages,
    DropImage,
    DropPages,
    Eviction,
    ImageId,
    Lineage,
    Move,
    Occupancy,
    PageId,
    Plan,
    PlanRequest,
    Policy,
    PromoteImage,
    PromotePages,
    PublishPlan,
    Released,
    Restored,
    RestorePlan,
    Stored,
    Tier,
)


class ContextCache:
    """The context cache's brain."""

    def __init__(self, capacities: Capacities, costs: CostModel, policy: Policy | None = None) -> None:
        self.capacities, self.costs = capacities, costs
        self.policy = policy or Policy()
        self._inventory = Inventory(capacities, costs, self.policy)
        self._catalog = Catalog(self._inventory)

    # --- planning ---

    def plan(self, request: PlanRequest) -> Plan:
        """Where the request resumes and what makes room for it. Pure: nothing changes, ask as often as you like."""
        parent = self._catalog.entries.get(request.parent_response_id or "")
        known = parent.tokens if parent is not None and parent.salt == request.salt else None
        return plan_request(self._inventory, request, known)

    def begin(self, plan: Plan, sequence_id: str, new_page_ids: Ids[PageId]) -> None:
        """Commit a plan whose moves were carried out: the sequence runs from here.

        new_page_ids: exactly plan.new_pages fresh ids on the device, the copy of resume.tail_page first where there is
        one.
        Raises StalePlanError, BlockedPlanError, PageCountError; then nothing has changed.
        """
        inventory = self._inventory
        if plan.blocked is not None:
            raise BlockedPlanError
        if plan.version != inventory.version:
            raise StalePlanError("plan")
        if len(new_page_ids) != plan.new_pages:
            raise PageCountError(plan.new_pages, len(new_page_ids))
        if sequence_id in inventory.sequences:
            raise ContextError(f"sequence {sequence_id!r} is running already", "give every sequence an id of its own")
        request = plan.request
        self._catalog.shift(inventory.tick())
        resumed = inventory.checkpoints[plan.resume.checkpoint] if plan.resume.checkpoint is not None else None
        if resumed is not None:
            resumed.image_pins += 1
            inventory.pin(resumed.node)
        self._carry(plan.moves, plan.touched)
        self._give_up(plan.evicted, request.request_id, request.now)
        if resumed is not None:
            note_resume(inventory, resumed, request)
        inventory.tree.reference(list(new_page_ids))
        inventory.sequences[sequence_id] = Sequence(
            id=sequence_id,
            request_id=request.request_id,
            salt=request.salt,
            session=request.session,
            parent_response_id=request.parent_response_id,
            tokens=request.tokens,
            prompt_length=len(request.tokens),
            resumed=resumed.node if resumed else None,
            first_page=plan.resume.frontier // PAGE_TOKENS,
            own=tuple(new_page_ids),
            reading=resumed,
            last_frontier=plan.resume.frontier,
            began_at=plan.resume.frontier,
            shared=plan.resume.checkpoint,
        )
        if plan.miss is not None:
            inventory.misses[plan.miss.kind] = inventory.misses.get(plan.miss.kind, 0) + 1
        inventory.settle()

    def abort(self, plan: Plan | PublishPlan) -> None:
        """Give up a plan that was not committed. Plans are pure: the brain is as it was before, and the plan is
        stale.
        """
        if plan.version == self._inventory.version:
            self._inventory.version += 1

    def image_read(self, sequence_id: str) -> None:
        """The sequence has read its resume image into its own slot; the image may move again. Implied by its first
        publish_plan and by end."""
        self._image_read(self._inventory.sequence(sequence_id))

    # --- publishing ---

    def publish_plan(
        self, sequence_id: str, frontier: int, kind: CheckpointKind, now: float, generated: TokenString | None = None
    ) -> PublishPlan:
        """How an image at `frontier` finds room. Pure but for `image_read` and for `generated`.

        generated: all reply tokens so far, needed when the frontier is beyond the prompt. A sequence's frontiers rise.
        Raises UnknownSequenceError, ContextError for a frontier that is not beyond the last one or not known.
        """
        sequence = self._inventory.sequence(sequence_id)
        self._image_read(sequence)
        if generated is not None:
            sequence.tokens = sequence.tokens.part(0, sequence.prompt_length).joined(generated)
        if not sequence.last_frontier < frontier <= len(sequence.tokens):
            raise ContextError(
                f"frontier {frontier} is not in ({sequence.last_frontier}, {len(sequence.tokens)}]",
                "publish in rising order and pass `generated` for frontiers inside the reply",
            )
        return publish_plan(self._inventory, sequence_id, frontier, kind, now)

    def publish(self, plan: PublishPlan, image_id: ImageId | None = None) -> CheckpointId | None:
        """Commit a publish plan whose moves were carried out and whose snapshot lies in plan.tier under image_id.

        Returns the checkpoint, the existing one for an equal prefix, or None when it was not kept (tier None).
        Raises StalePlanError, ContextError when an image is missing.
        """
        inventory = self._inventory
        sequence = inventory.sequence(plan.sequence_id)
        if plan.version != inventory.version:
            raise StalePlanError("publish plan")
        if plan.tier is None:
            return self._meet(sequence, plan)
        if image_id is None:
            raise ContextError("the publish plan keeps an image and none came", "pass the id of the snapshot")
        self._carry(plan.moves)
        self._give_up(plan.evicted, sequence.request_id, plan.now)
        node = inventory.place(sequence.salt, sequence.tokens.part(0, plan.frontier), sequence.own, sequence.first_page)
        if sequence.published is not None:
            old = sequence.published
            inventory.pin(node)
            freed = inventory.unpin(old)
            assert not freed  # noqa: S101
        else:
            inventory.pin(node)
        sequence.published = node
        weight = publication(inventory, sequence, plan)
        checkpoint = inventory.attach(node, plan.kind, image_id, plan.tier, weight)
        note_publication(inventory, checkpoint, sequence, plan)
        sequence.last_frontier = plan.frontier
        inventory.settle()
        return checkpoint.id

    def store_continuation(
        self, sequence_id: str, response_id: str, session: str | None, endpoint: CheckpointId | None, now: float
    ) -> Stored:
        """Enter a stored response in the private catalog, with the anchors it was admitted through.

        endpoint: what `publish` returned for the end of the reply; None: the reply's end was not worth an image.
        """
        inventory = self._inventory
        sequence = inventory.sequence(sequence_id)
        found = inventory.checkpoints.get(endpoint) if endpoint is not None else None
        start = found.node if found is not None else sequence.resumed
        anchors = self._anchors(start, exclude=endpoint)
        weight = inventory.scale.stored(self.policy.stored)
        loss = weight * (inventory.value.potential(len(sequence.tokens)) - self._nearest_potential(anchors))
        entry = Continuation(
            response_id,
            session,
            sequence.salt,
            sequence.parent_response_id,
            sequence.tokens,
            endpoint,
            anchors,
            weight,
            loss,
            0,
        )
        left = sequence.published.checkpoint if sequence.published is not None else None
        inventory.name_end(response_id, found or left)
        evicted = self._catalog.add(entry, now)
        inventory.settle()
        return Stored(endpoint, anchors, evicted)

    # --- endings ---

    def end(self, sequence_id: str) -> Released:
        """The sequence is over, finished or not: its pins and page references go. Memory frees what is returned."""
        inventory = self._inventory
        sequence = inventory.sequence(sequence_id)
        self._image_read(sequence)
        del inventory.sequences[sequence_id]
        freed = inventory.tree.unreference(list(sequence.own))
        for node in (sequence.published, sequence.resumed):
            if node is not None:
                freed += inventory.unpin(node)
        inventory.settle()
        return inventory.released(freed)

    def forget(self, response_id: str, now: float) -> Released:
        """The client deleted a stored response: its entry goes, and every image that only it had, be the entry still in
        the catalog or not. What others stand on stays, and is expected by nobody on this response's account."""
        inventory = self._inventory
        self._catalog.remove(response_id)
        endpoint = inventory.by_response.get(response_id)
        inventory.name_end(response_id, None)
        inventory.settle()
        if endpoint is None or endpoint.ends:
            return Released()
        inventory.disown(endpoint)
        return self._drop_unused(endpoint.node, now)

    def _drop_unused(self, node: Node, now: float) -> Released:
        """Give up, from `node` upwards, what deleted responses and the prefill of their prompts left, as far as nobody
        else has used it."""
        inventory = self._inventory
        gone: list[Checkpoint] = []
        for step in node.ancestors():
            found = step.checkpoint
            if found is None:
                continue
            used = found.continuations or found.ends or found.image_pins or step.pins_below
            prefilled = found.kind in (CheckpointKind.REPLAY, CheckpointKind.RUNG) and not found.forks
            if used or step.checkpoints > len(gone) + 1 or not (found.deleted or prefilled):
                break
            gone.append(found)
        images = [checkpoint.image for checkpoint in gone]
        freed = [page for checkpoint in gone for page in inventory.evict(checkpoint, "deleted", now, 0)]
        return inventory.released(freed, images)

    # --- sessions ---

    def lineage_of(self, session: str, now: float) -> Lineage:
        """All checkpoints, continuations and evidence that a save of the session must write."""
        return lineage_of(self._inventory, self._catalog, session, now)

    def plan_restore(self, lineage: Lineage, now: float) -> RestorePlan:
        """How a saved lineage finds room. Pure. Raises LineageError for one that contradicts itself."""
        return plan_restore(self._inventory, lineage, now)

    def restore_lineage(
        self, plan: RestorePlan, images: Mapping[ImageId, ImageId], pages: Mapping[PageId, PageId]
    ) -> Restored:
        """Enter a restored lineage as one operation, once plan.moves are carried out and plan.load_* lie in memory.

        images, pages: present ids by the ids in the records. Raises StalePlanError, LineageError; then nothing changed.
        """
        check_restore(self._inventory, plan, images, pages)
        self._carry(plan.moves, plan.touched)
        self._give_up(plan.evicted, "restore", plan.now)
        return restore(self._inventory, self._catalog, plan, images, pages)

    def resumable(self, tokens: TokenString, salt: str) -> int:
        """The deepest frontier that a prompt of these tokens can resume from as things are; 0: root."""
        match = self._inventory.tree.match(salt, tokens) if self.policy.reuse else None
        found = (n.frontier for n in match.path if n.checkpoint and n.frontier < len(tokens)) if match else ()
        return max(found, default=0)

    def known(self, tokens: TokenString, salt: str) -> int:
        """How many tokens of a prompt were met here before, whether or not it can be resumed from there."""
        match = self._inventory.tree.match(salt, tokens) if self.policy.reuse else None
        return match.depth if match else 0

    def reserve_restore(self, plan: RestorePlan) -> Reservation:
        """Commit a restore's moves, carried out just now, and keep its room while plan.load_* are read; others go on.

        End in `restore_reserved` or `abandon_restore`. Raises StalePlanError.
        """
        if plan.version != self._inventory.version:
            raise StalePlanError("restore plan")
        self._carry(plan.moves, plan.touched)
        self._give_up(plan.evicted, "restore", plan.now)
        return reserve(self._inventory, plan)

    def restore_reserved(
        self, reservation: Reservation, images: Mapping[ImageId, ImageId], pages: Mapping[PageId, PageId]
    ) -> Restored:
        """Enter a lineage whose plan.load_* lie in memory, as `restore_lineage`. Loaded things that a sequence has
        published meanwhile come back as `released`. Raises LineageError; then nothing changed."""
        check_loaded(reservation.plan, images, pages)
        use_room(self._inventory, reservation)
        done = restore(self._inventory, self._catalog, reservation.plan, images, pages)
        freed = unpin(self._inventory, reservation)
        self._inventory.settle()
        return replace(done, released=Released((*done.released.pages, *freed), done.released.images))

    def abandon_restore(self, reservation: Reservation) -> Released:
        """The restore failed or is not wanted: its room is free again. Does nothing the second time."""
        if not reservation.open:
            return Released()
        use_room(self._inventory, reservation)
        freed = unpin(self._inventory, reservation)
        self._inventory.settle()
        return self._inventory.released(freed)

    def checkpoints(self, now: float) -> tuple[CheckpointRecord, ...]:
        """Every checkpoint there is, shallow first. O(inventory)."""
        found = sorted(self._inventory.checkpoints.values(), key=lambda c: (c.node.frontier, c.id))
        return tuple(checkpoint_record(self._inventory, c, now) for c in found)

    # --- looking ---

    @property
    def free_pages(self) -> int:
        """Device pages that nobody holds and no restore has reserved."""
        return self._inventory.free_device_pages

    @property
    def restoring(self) -> bool:
        """Room is reserved for a restore under way."""
        return any(self._inventory.reserved_pages.values())

    def checkpoints_by_id(self) -> Mapping[CheckpointId, Checkpoint]:
        """The live checkpoints, to look at and not to change."""
        return self._inventory.checkpoints

    @property
    def version(self) -> int:
        """Rises with every change; two equal readings mean that nothing has changed between."""
        return self._inventory.version

    def occupancy(self) -> Occupancy:
        """Counts for the status document."""
        inventory = self._inventory
        on_host = len(inventory.tree.on_host)
        return Occupancy(
            device_images=inventory.device_images,
            host_images=inventory.host_images,
            device_pages=len(inventory.tree.references) - on_host,
            host_pages=on_host,
            continuations=len(self._catalog.entries),
            checkpoints=len(inventory.checkpoints),
            running=len(inventory.sequences),
            private_evictions=self._catalog.evictions,
            shared_prefixes=len(inventory.shared),
            shared_references=sum(sequence.shared in inventory.shared for sequence in inventory.sequences.values()),
            shared_evictions=inventory.shared_evictions,
            misses=dict(inventory.misses),
        )

    def held(self) -> Released:
        """Every page and image that the brain refers to: what memory must hold, one reference each. O(inventory)."""
        inventory = self._inventory
        return Released(tuple(inventory.tree.references), tuple(inventory.by_image))

    def audit(self) -> list[str]:
        """Whatever does not add up, in words; empty when all is well. O(inventory)."""
        return findings(self._inventory)

    # --- steps ---

    def _give_up(self, evicted: tuple[Eviction, ...], evicted_for: str, now: float) -> None:
        for eviction in evicted:
            if eviction.checkpoint is not None:
                victim = self._inventory.checkpoints[eviction.checkpoint]
                self._inventory.evict(victim, evicted_for, now, eviction.predicted_loss_ns)

    def _carry(self, moves: tuple[Move, ...], touched: tuple[int, ...] = ()) -> None:
        """Bookkeeping of tier moves; drops follow from the evictions."""
        inventory = self._inventory
        down: list[PageId] = []
        up: list[PageId] = []
        for move in moves:
            match move:
                case DemoteImage(image):
                    inventory.set_image_tier(inventory.by_image[image], Tier.HOST)
                case PromoteImage(image):
                    inventory.set_image_tier(inventory.by_image[image], Tier.DEVICE)
                case DemotePages(pages):
                    down += pages
                case PromotePages(pages):
                    up += pages
                case DropImage() | DropPages():
                    pass
                case _:
                    assert_never(move)
        inventory.move_pages(down, Tier.HOST, touched)
        inventory.move_pages(up, Tier.DEVICE, touched)

    def _image_read(self, sequence: Sequence) -> None:
        if sequence.reading is not None:
            sequence.reading.image_pins -= 1
            sequence.reading = None

    def _meet(self, sequence: Sequence, plan: PublishPlan) -> CheckpointId | None:
        """Not kept, or kept already: an equal checkpoint gains the evidence of one more publication."""
        sequence.last_frontier = plan.frontier
        if plan.existing is None:
            if plan.kind is CheckpointKind.ENDPOINT:
                self._bury(sequence, plan)
            return None
        checkpoint = self._inventory.checkpoints[plan.existing]
        self._inventory.add_weight(checkpoint, own=publication(self._inventory, sequence, plan))
        note_publication(self._inventory, checkpoint, sequence, plan)
        self._inventory.settle()
        return checkpoint.id

    def _bury(self, sequence: Sequence, plan: PublishPlan) -> None:
        """The end of a reply was not worth an image; that somebody may go on from it is evidence all the same."""
        inventory = self._inventory
        tokens = sequence.tokens.part(0, plan.frontier)
        node = inventory.tree.grow(inventory.known(sequence.salt, tokens), tokens, plan.frontier)
        landed = landed_weight(self.policy, inventory.value, plan.kind, sequence.fresh(plan.frontier), plan.frontier)
        weight = publication(inventory, sequence, plan) - inventory.scale.stored(landed)
        inventory.bury(
            node,
            Tombstone(
                plan.kind,
                weight,
                0,
                frozenset({sequence.session or ""}),
                sequence.request_id,
                plan.now,
                plan.predicted_future_loss_ns,
            ),
        )
        inventory.settle()

    def _anchors(self, start: Node | None, exclude: CheckpointId | None) -> tuple[CheckpointId, ...]:
        """Checkpoints of a lineage worth referring to: those resumed from most, then deepest, shallow first."""
        if start is None:
            return ()
        found = [n.checkpoint for n in start.ancestors() if n.checkpoint is not None and n.checkpoint.id != exclude]
        found.sort(
            key=lambda c: (c.kind is CheckpointKind.ENDPOINT or c.resumes > 0, c.mass, c.node.frontier), reverse=True
        )
        kept = found[: self.capacities.anchors_per_continuation]
        return tuple(c.id for c in sorted(kept, key=lambda c: c.node.frontier))

    def _nearest_potential(self, anchors: tuple[CheckpointId, ...]) -> int:
        frontier = max((self._inventory.checkpoints[a].node.frontier for a in anchors), default=0)
        return self._inventory.value.potential(frontier)
