"""What the brain remembers of a running sequence."""

from dataclasses import dataclass, field

from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import CheckpointId, PageId


@dataclass(slots=True, eq=False)
class Sequence:
    """A begun plan. resumed: the node it stands on, pinned for life. own: its pages from index first_page on, the copied
    tail first. published: the deepest node it published on, pinned too. tokens grow when a reply is published.
    reading: the checkpoint whose image it has not read yet."""

    id: str
    request_id: str
    salt: str
    session: str | None
    parent_response_id: str | None
    tokens: TokenString
    prompt_length: int
    resumed: Node | None
    first_page: int
    own: tuple[PageId, ...]
    reading: Checkpoint | None
    published: Node | None = None
    last_frontier: int = 0
    checkpoints: dict[int, CheckpointId] = field(default_factory=dict)
