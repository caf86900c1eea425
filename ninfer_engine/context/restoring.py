"""A saved lineage back into the tree: what finds room, where it goes, and entering it."""

from collections.abc import Iterable, Mapping

from ninfer_engine.context.catalog import Catalog, Continuation
from ninfer_engine.context.errors import LineageError, StalePlanError
from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.room import Room, make_room
from ninfer_engine.context.roommoves import room_moves
from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Node, Tombstone
from ninfer_engine.context.types import (
    PAGE_TOKENS,
    CheckpointId,
    CheckpointRecord,
    ContinuationRecord,
    ImageId,
    Lineage,
    PageId,
    Released,
    Restored,
    RestorePlan,
    Tier,
)


def plan_restore(inventory: Inventory, lineage: Lineage, now: float) -> RestorePlan:
    """Which checkpoints of a saved lineage find room, dearest first, and where they go. Pure.

    A slot is taken from an image of the present only when that is worth less. Pages go to the device while there is
    room without giving anything up, else to the host, else the planner makes room on the device; when even that fails,
    the cheapest checkpoints stay behind until the rest fits.
    """
    _check(lineage)
    records = lineage.checkpoints
    known = tuple(i for i, record in enumerate(records) if _present(inventory, record) is not None)
    losses = _losses(inventory, records, now)
    wanted = sorted((i for i in range(len(records)) if i not in known), key=lambda i: (-losses[i], i))
    cheap = _cheap(inventory, records)
    tiers, victims = _slots(inventory, cheap, wanted, losses)
    accepted = [i for i in wanted if i in tiers]
    while True:
        coming = [records[i] for i in sorted(accepted)]
        pages, room, tier = _place(inventory, coming, victims, cheap, now)
        if room is not None or not accepted:
            break
        accepted.pop()
    given_up = room if room is not None else Room(victims=tuple(victims))
    moves, evicted = room_moves(inventory, given_up, now)
    order = tuple(sorted(accepted))
    return RestorePlan(
        lineage,
        inventory.version,
        now,
        order,
        known,
        tuple((records[i].image, tiers[i]) for i in order),
        tuple(pages),
        tier,
        tuple(moves),
        evicted,
        given_up.touched,
    )


def check_restore(
    inventory: Inventory, plan: RestorePlan, images: Mapping[ImageId, ImageId], pages: Mapping[PageId, PageId]
) -> None:
    """Raises StalePlanError for a plan of an older inventory, LineageError when something to load is missing."""
    if plan.version != inventory.version:
        raise StalePlanError("restore plan")
    check_loaded(plan, images, pages)


def check_loaded(plan: RestorePlan, images: Mapping[ImageId, ImageId], pages: Mapping[PageId, PageId]) -> None:
    """Raises LineageError when something to load is missing."""
    lacking = {image for image, _ in plan.load_images} - images.keys() or set(plan.load_pages) - pages.keys()
    if lacking:
        raise LineageError(f"{len(lacking)} of the images and pages that the plan loads did not come")


def restore(
    inventory: Inventory,
    catalog: Catalog,
    plan: RestorePlan,
    images: Mapping[ImageId, ImageId],
    pages: Mapping[PageId, PageId],
) -> Restored:
    """Enter what was loaded, once the plan was checked and its moves and evictions are committed."""
    tiers = dict(plan.load_images)
    found: dict[int, CheckpointId] = {}
    spare: list[ImageId] = []
    records = plan.lineage.checkpoints
    for i, record in enumerate(records):
        present = _present(inventory, record)
        if present is not None:
            for session in record.sessions:
                inventory.note_session(present, session)
            present.resumes = max(present.resumes, record.resumes)
            found[i] = present.id
            if i in plan.accepted:
                spare.append(images[record.image])
        elif i in plan.accepted:
            found[i] = _enter(inventory, record, images[record.image], tiers[record.image], pages)
        else:
            _mourn(inventory, record, plan.now)
    if plan.page_tier is Tier.HOST:
        _mark_hosted(inventory, found.values(), frozenset(pages.values()))
    by_old = {records[i].checkpoint: new for i, new in found.items()}
    stored = tuple(_store(inventory, catalog, c, by_old, plan.now) for c in plan.lineage.continuations)
    unused = [page for page in pages.values() if page not in inventory.tree.references]
    inventory.settle()
    return Restored(found, stored, Released(tuple(unused), tuple(spare)))


def _enter(
    inventory: Inventory, record: CheckpointRecord, image: ImageId, tier: Tier, pages: Mapping[PageId, PageId]
) -> CheckpointId:
    node = inventory.place(record.salt, record.tokens, [pages.get(page, -1) for page in record.pages], 0)
    checkpoint = inventory.attach(node, record.kind, image, tier, inventory.scale.stored(record.weight))
    checkpoint.resumes = max(checkpoint.resumes, record.resumes)
    checkpoint.deleted = record.deleted
    for session in record.sessions:
        inventory.note_session(checkpoint, session)
    return checkpoint.id


def _mark_hosted(inventory: Inventory, entered: Iterable[CheckpointId], loaded: frozenset[PageId]) -> None:
    """Loaded pages lie on the host: the tree took them for device pages, as those of a sequence are."""
    seen: set[int] = set()
    for checkpoint in entered:
        for step in inventory.checkpoints[checkpoint].node.ancestors():
            if step.id in seen:
                break
            seen.add(step.id)
            fresh = [page for page in step.pages[step.joined :] if page in loaded]
            if fresh:
                inventory.tree.set_tier(step, fresh, Tier.HOST)


def _mourn(inventory: Inventory, record: CheckpointRecord, now: float) -> None:
    """Remember that a restore did not bring a checkpoint back."""
    node = inventory.tree.grow(inventory.known(record.salt, record.tokens), record.tokens, record.frontier)
    inventory.bury(
        node,
        Tombstone(
            record.kind,
            inventory.scale.stored(record.weight),
            record.resumes,
            frozenset(record.sessions),
            "restore",
            now,
            0,
            lacking=True,
        ),
    )


def _store(
    inventory: Inventory,
    catalog: Catalog,
    record: ContinuationRecord,
    by_old: Mapping[CheckpointId, CheckpointId],
    now: float,
) -> str:
    endpoint = by_old.get(record.endpoint) if record.endpoint is not None else None
    anchors = tuple(by_old[a] for a in record.anchors if a in by_old)
    base = max((inventory.checkpoints[a].node.frontier for a in anchors), default=0)
    inventory.name_end(record.response_id, inventory.checkpoints.get(endpoint) if endpoint is not None else None)
    weight = inventory.scale.stored(record.weight)
    loss = weight * (inventory.value.potential(record.frontier) - inventory.value.potential(base))
    catalog.add(
        Continuation(
            record.response_id,
            record.session,
            record.salt,
            record.parent_response_id,
            record.tokens,
            endpoint,
            anchors,
            weight,
            loss,
            0,
        ),
        now,
    )
    return record.response_id


def _check(lineage: Lineage) -> None:
    for record in lineage.checkpoints:
        if record.frontier != len(record.tokens) or record.frontier <= 0:
            raise LineageError(f"a checkpoint at {record.frontier} has {len(record.tokens)} tokens")
        if len(record.pages) != -(-record.frontier // PAGE_TOKENS):
            raise LineageError(f"a checkpoint at {record.frontier} has {len(record.pages)} pages")


def _present(inventory: Inventory, record: CheckpointRecord) -> Checkpoint | None:
    match = inventory.tree.match(record.salt, record.tokens)
    return match.node.checkpoint if match is not None and match.node.frontier == record.frontier else None


def _losses(inventory: Inventory, records: tuple[CheckpointRecord, ...], now: float) -> list[int]:
    """Stored loss of leaving each out, seen from what lies above it in the lineage."""
    deepest_first = sorted(records, key=lambda record: -record.frontier)
    losses = []
    for record in records:
        above = next(
            (
                other.frontier
                for other in deepest_first
                if other.frontier < record.frontier
                and other.salt == record.salt
                and _begins(record.tokens, other.tokens)
            ),
            0,
        )
        gain = inventory.value.potential(record.frontier) - inventory.value.potential(above)
        losses.append(inventory.scale.stored(record.weight) * gain)
    return losses


def _begins(tokens: TokenString, prefix: TokenString) -> bool:
    """Whether `tokens` begin with `prefix`. Siblings differ near their ends, so those are looked at first."""
    last = max(0, len(prefix) - PAGE_TOKENS)
    end = prefix.part(last, len(prefix))
    return tokens.common(last, end) == len(end) and tokens.common(0, prefix) == len(prefix)


def _cheap(inventory: Inventory, records: tuple[CheckpointRecord, ...]) -> list[Checkpoint]:
    """Present checkpoints that a restore may push out, cheapest first: none on the way of what comes back."""
    kept = {node.id for record in records for node in inventory.known(record.salt, record.tokens).path}
    cheap = [
        c
        for tier in (Tier.HOST, Tier.DEVICE)
        for _, cid in inventory.index.by_loss[tier]
        for c in (inventory.checkpoints[cid],)
        if not c.image_pins and c.node.id not in kept
    ]
    return sorted(cheap, key=inventory.value.checkpoint_loss)


def _slots(
    inventory: Inventory, cheap: list[Checkpoint], wanted: list[int], losses: list[int]
) -> tuple[dict[int, Tier], list[Checkpoint]]:
    """A tier for each wanted image that gets a slot, and present checkpoints that make way."""
    free = {Tier.DEVICE: inventory.free_device_images, Tier.HOST: inventory.free_host_images}
    cheap = list(cheap)
    tiers: dict[int, Tier] = {}
    victims: list[Checkpoint] = []
    for i in wanted:
        tier = next((t for t in (Tier.HOST, Tier.DEVICE) if free[t] > 0), None)
        if tier is None and cheap and inventory.value.checkpoint_loss(cheap[0]) < losses[i]:
            victims.append(cheap.pop(0))
            tier = victims[-1].tier
            free[tier] += 1
        if tier is None:
            continue
        free[tier] -= 1
        tiers[i] = tier
    return tiers, victims


def _lost(victims: Iterable[Checkpoint]) -> dict[int, int]:
    """Checkpoints that go at or below each node."""
    lost: dict[int, int] = {}
    for victim in victims:
        for node in victim.node.ancestors():
            lost[node.id] = lost.get(node.id, 0) + 1
    return lost


def _missing_pages(
    inventory: Inventory, records: Iterable[CheckpointRecord], lost: Mapping[int, int]
) -> list[PageId]:
    """Ids in the records of pages whose positions no lineage covers that stays live, in order, each once."""

    def stays(node: Node) -> bool:
        return node.checkpoints > lost.get(node.id, 0) or node.pins_below > 0

    missing: dict[PageId, None] = {}
    for record in records:
        match = inventory.known(record.salt, record.tokens)
        covered = next((node.frontier for node in reversed(match.path) if stays(node)), 0)
        if match.partial is not None and stays(match.partial):
            covered = match.depth
        missing |= dict.fromkeys(record.pages[covered // PAGE_TOKENS :])
    return list(missing)


def _place(
    inventory: Inventory,
    records: list[CheckpointRecord],
    victims: list[Checkpoint],
    cheap: list[Checkpoint],
    now: float,
) -> tuple[list[PageId], Room | None, Tier]:
    """What to load and where it goes. Where some give up their slot already and the pages do not fit, more of the
    cheapest follow, twice as many each time, and those that turn out not to be needed stay."""
    given = list(victims)
    chosen = {victim.id for victim in victims}
    rest = [c for c in cheap if c.id not in chosen]
    while True:
        pages = _missing_pages(inventory, records, _lost(given))
        room, tier = _place_pages(inventory, records, len(pages), given, now)
        if room is not None or not given or not rest:
            break
        more = len(given)
        given, rest = given + rest[:more], rest[more:]
    for extra in reversed(given[len(victims) :] if room is not None else ()):
        fewer = [victim for victim in given if victim is not extra]
        lighter = _missing_pages(inventory, records, _lost(fewer))
        found, where = _place_pages(inventory, records, len(lighter), fewer, now)
        if found is not None:
            given, pages, room, tier = fewer, lighter, found, where
    return pages, room, tier


def _place_pages(
    inventory: Inventory, records: list[CheckpointRecord], count: int, victims: list[Checkpoint], now: float
) -> tuple[Room | None, Tier]:
    freed = inventory.preview(victims)
    room = Room(victims=tuple(victims))
    if count <= inventory.free_device_pages + len(freed.device):
        return room, Tier.DEVICE
    if count <= inventory.free_host_pages + len(freed.host):
        return room, Tier.HOST
    if victims:
        return None, Tier.DEVICE
    keep: dict[int, Node] = {}
    for record in records:
        match = inventory.known(record.salt, record.tokens)
        keep |= {node.id: node for node in (*match.path, *((match.partial,) if match.partial else ())) if node.live}
    need = count - inventory.free_device_pages
    return make_room(inventory, need, tuple(keep.values()), inventory.scale.scale()), Tier.DEVICE
