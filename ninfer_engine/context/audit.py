"""A self-check that recomputes from scratch what the brain keeps as running sums."""

from ninfer_engine.context.inventory import Inventory
from ninfer_engine.context.tree import Node
from ninfer_engine.context.types import PAGE_TOKENS, Tier


def findings(inventory: Inventory) -> list[str]:
    """Everything that does not add up; empty when all is well. O(inventory): for tests and a debug flag."""
    found: list[str] = []
    references: dict[int, int] = {}
    for root in inventory.tree.roots.values():
        for node in root.subtree():
            found += _node(inventory, node)
            for page in node.pages:
                references[page] = references.get(page, 0) + 1
    for sequence in inventory.sequences.values():
        for page in sequence.own:
            references[page] = references.get(page, 0) + 1
    if references != inventory.tree.references:
        found.append("page references differ from the pages that nodes and sequences list")
    if not inventory.tree.on_host <= references.keys():
        found.append("a page on host is referenced by nobody")
    found += _room(inventory)
    found += _index(inventory)
    return found


def _node(inventory: Inventory, node: Node) -> list[str]:
    name, found = f"node {node.id} at {node.frontier}", []
    upper = node.parent.frontier if node.parent is not None else 0
    if node.parent is not None and node.frontier != upper + len(node.edge):
        found.append(f"{name}: edge and frontier disagree")
    checkpoint, below = node.checkpoint, list(node.children.values())
    mass = (checkpoint.mass if checkpoint else 0) + sum(c.mass for c in below)
    worth = checkpoint.mass * inventory.value.worth(node.frontier, checkpoint.tier) if checkpoint else 0
    sums = {
        "mass": (node.mass, mass),
        "energy": (node.energy, worth + sum(c.energy for c in below)),
        "checkpoints": (node.checkpoints, int(checkpoint is not None) + sum(c.checkpoints for c in below)),
        "pins": (node.pins_below, node.pins + sum(c.pins_below for c in below)),
        "device pages": (node.device_pages, node.own_device + sum(c.device_pages for c in below)),
        "host pages": (node.host_pages, node.own_host + sum(c.host_pages for c in below)),
    }
    found += [
        f"{name}: {what} is {kept}, counted {counted}" for what, (kept, counted) in sums.items() if kept != counted
    ]
    owned = node.pages[node.joined :]
    on_host = sum(page in inventory.tree.on_host for page in owned)
    if (node.own_device, node.own_host) != (len(owned) - on_host, on_host):
        found.append(f"{name}: pages by tier are miscounted")
    if node.joined != bool(
        node.pages and any(node.pages[0] in above.pages for above in node.ancestors() if above is not node)
    ):
        found.append(f"{name}: it is wrong about sharing its first page with a node above")
    if mass < 0 or (checkpoint is not None and (checkpoint.weight < 0 or checkpoint.heirs < 0)):
        found.append(f"{name}: a weight is negative")
    if node.parent is not None:
        last = -(-node.frontier // PAGE_TOKENS) if checkpoint else node.frontier // PAGE_TOKENS
        wanted = last - upper // PAGE_TOKENS if node.live else 0
        if len(node.pages) != max(0, wanted):
            found.append(f"{name}: lists {len(node.pages)} pages, {wanted} are needed")
        if not node.live and not node.children and node.tombstone is None:
            found.append(f"{name}: a ghost that remembers nothing")
    return found


def _room(inventory: Inventory) -> list[str]:
    found = []
    images = {tier: sum(c.tier is tier for c in inventory.checkpoints.values()) for tier in Tier}
    if (inventory.device_images, inventory.host_images) != (images[Tier.DEVICE], images[Tier.HOST]):
        found.append("images by tier are miscounted")
    for what, free in (
        ("device pages", inventory.free_device_pages),
        ("host pages", inventory.free_host_pages),
        ("device slots", inventory.free_device_images),
        ("host slots", inventory.free_host_images),
    ):
        if free < 0:
            found.append(f"{what} are overcommitted by {-free}")
    return found


def _index(inventory: Inventory) -> list[str]:
    """The indices list every checkpoint once, at its present loss."""
    found = []
    for tier in Tier:
        kept = list(inventory.index.by_loss[tier])
        counted = sorted(
            (inventory.value.checkpoint_loss(c), c.id) for c in inventory.checkpoints.values() if c.tier is tier
        )
        if kept != counted:
            found.append(f"the loss index of the {tier.value} tier is out of date")
    for need in (1, 1 << 40):
        for _, item in inventory.index.items(need):
            if item.loss != inventory.value.subtree_loss(item.node) or item.device != item.node.device_pages:
                found.append(f"the item index of node {item.node.id} is out of date")
    return found
