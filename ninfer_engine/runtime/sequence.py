"""One request while it runs: its tokens, where its bytes are, how far it is, and who listens."""

import asyncio
import enum
from dataclasses import dataclass, field

from ninfer_engine.context.tokens import TokenArray
from ninfer_engine.context.types import Eviction, Plan, Split
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.kernels.pages import PageTable, page_table
from ninfer_engine.runtime.api import EngineRefusedError, Finished, GenerationRequest, Logprobs, Token
from ninfer_engine.runtime.sampler import Sampler

Event = Token | Finished | EngineRefusedError


class Channel:
    """Carries events from the engine thread to the coroutine that waits for them. Never blocks the engine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[Event] = asyncio.Queue()

    def send(self, *events: Event) -> None:
        """From the engine thread, in order. A loop that has gone away (server stopping) drops them."""
        try:
            self._loop.call_soon_threadsafe(self._put, events)
        except RuntimeError:
            return

    def _put(self, events: tuple[Event, ...]) -> None:
        for event in events:
            self._queue.put_nowait(event)

    async def receive(self) -> Event:
        """The next event; raises it when it is a refusal."""
        event = await self._queue.get()
        if isinstance(event, EngineRefusedError):
            raise event
        return event


class Phase(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    DONE = "done"


@dataclass(slots=True)
class Clock:
    """Monotonic instants of one sequence, in seconds; None until reached."""

    arrived: float
    admitted: float | None = None
    plan_s: float = 0.0
    restore_s: float = 0.0
    prefilled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    finished: float | None = None


@dataclass(slots=True)
class View:
    """A sequence as others behind it in the queue see it. known: tokens of its prompt that had been met here before its
    admission; beyond where it resumed it may come to hold their pages twice, its own and those that were there."""

    prompt: TokenArray
    known: int = 0


@dataclass(slots=True)
class Sequence:
    """A request in the engine. Only the engine thread touches it, but for `cancelled` (its client
    left) and `ended` (a stop string appeared), which anyone may set.

    tokens: prompt, then reply. computed: tokens whose keys, values and state are in memory; the next step computes
    tokens[computed]. room: most tokens that prompt and reply may have together. frontier: where it resumed.
    device_pages: device indices of the pages that hold its whole reserved life; pages of a running sequence never move.
    slot: the working slot; source_slot: what the next kernel reads (the anchor's image at first, -1 at root).
    splits: positions, ascending, at which prefill stops to publish an image. demoted, evictions: what this request's
    plans moved and gave up. logprobs: of each token of the reply, when asked for and told at the end. place: rises
    along the queue; prefills go by it. view: what backfilling knows of it.
    """

    sequence_id: int
    request: GenerationRequest
    channel: Channel
    clock: Clock
    sampler: Sampler
    tokens: list[int]
    room: int
    phase: Phase = Phase.WAITING
    cancelled: bool = False
    ended: bool = False
    plan: Plan | None = None
    computed: int = 0
    frontier: int = 0
    device_pages: PageTable = field(default_factory=lambda: page_table(()))
    slot: int = -1
    source_slot: int = -1
    splits: list[Split] = field(default_factory=list)
    demoted: int = 0
    evictions: list[Eviction] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    place: int = 0
    view: "View | None" = None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.tokens)

    @property
    def output(self) -> list[int]:
        """The reply so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def longest(self) -> int:
        """Tokens at the end of the longest life that the request may have."""
        return min(self.room, self.prompt_tokens + self.request.sampling.max_new_tokens)

    def say(self, token: Token) -> None:
        """Hand a committed token to the client, unless it takes all at the end."""
        if not self.request.together:
            self.channel.send(token)
        elif token.logprobs is not None:
            self.logprobs.append(token.logprobs)

    def tell(self, finished: Finished) -> None:
        """The last event, after the tokens that were held back."""
        self.channel.send(*self._held(), finished)

    def _held(self) -> list[Token]:
        if not self.request.together:
            return []
        if self.logprobs:
            return [Token(token, logs) for token, logs in zip(self.output, self.logprobs, strict=True)]
        return [Token(token) for token in self.output]

    def refuse(self, code: ErrorCode, message: str) -> None:
        """End with an error for the client."""
        self.phase = Phase.DONE
        self.channel.send(EngineRefusedError(code, message))
