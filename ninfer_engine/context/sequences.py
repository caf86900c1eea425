"""What the brain remembers of a running sequence."""

from dataclasses import dataclass

from ninfer_engine.context.tokens import TokenString
from ninfer_engine.context.tree import Checkpoint, Node
from ninfer_engine.context.types import CheckpointId, PageId


@dataclass(slots=True, eq=False)
class Sequence:
    """A begun plan. resumed: the node it stands on, pinned for life. own: its pages from index first_page on, the
    copied tail first. published: the deepest node it published on, pinned too. tokens grow when a reply is
    published. reading: the checkpoint whose image it has not read yet. began_at: the frontier it resumed at.
    shared: the checkpoint it resumed at, if any."""

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
    began_at: int = 0
    shared: CheckpointId | None = None

    def fresh(self, frontier: int) -> float:
        """The share of the tokens before `frontier` that this sequence computed itself."""
        return 1.0 - self.began_at / frontier
