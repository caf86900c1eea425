"""What the HTTP server asks of the engine, and what it hears back. No HTTP, no tensors.

The engine runs in a thread of its own; every coroutine here is safe to await from the server's event loop. Cancelling
the task that iterates `generate` (a client that went away) frees the request's slot at the next step boundary.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.diagnostics import LogMaterialization, LogResult, LogTimings, NinferRecord
from ninfer_engine.contract.errors import ErrorCode
from ninfer_engine.contract.status import StatusDocument
from ninfer_engine.runtime.responses import ResponseStore

FinishReason = Literal["stop", "length", "cancelled"]


class EngineRefusedError(Exception):
    """The engine will not or cannot run a request; `code` decides the HTTP status, `message` is for the client."""

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class ConstraintError(Exception):
    """A grammar is not one that can be followed, or following it went wrong; the message says why, for the client."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 leave the distribution whole.

    presence_penalty, frequency_penalty: taken from the logits of tokens of the reply so far, once and once a time.
    repetition_penalty: logits of tokens of prompt and reply are divided by it where positive, multiplied where negative
    (Keskar et al. 2019). logit_bias: (token id, what is added to its logit). logprobs: how many alternatives are told
    beside each chosen token; None: no log-probabilities at all.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None


class Matcher(Protocol):
    """Follows one reply and says what may come next. Used by the engine thread alone."""

    def allowed(self) -> NDArray[np.bool_] | None:
        """By token id, whether it may come next; ids beyond the end may not. None: every token may."""

    def accept(self, token_id: int) -> None:
        """The token was chosen. Raises ConstraintError."""


class Constraint(Protocol):
    """What a reply must look like; immutable, and good for any number of replies."""

    def start(self) -> Matcher:
        """A matcher at the beginning of a reply."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to run.

    tokens: the whole prompt. parent_response_id: the stored response it continues, whose lineage is where the planner
    looks first. response_id: the name under which a continuation is published when `store` is set. cache_salt: prompts
    with different salts share nothing. arrived: `time.monotonic()` when the request reached the server. restored_s:
    seconds since then that went into restoring its session. together: the tokens may all come right before Finished,
    since nobody reads them sooner; waking the server for each would take a core from the step that computes the next.
    marks: positions in the prompt, ascending, where the client says that others will go on differently; an image is
    published at each that is computed, as far as it is worth its room.
    """

    request_id: str
    tokens: Sequence[int]
    sampling: Sampling
    arrived: float
    session: str | None = None
    parent_response_id: str | None = None
    response_id: str | None = None
    store: bool = False
    cache_salt: str = ""
    restored_s: float = 0.0
    together: bool = False
    constraint: Constraint | None = None
    follows: str | None = None
    marks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of the model's own probabilities (fp32, before any option changed them): of the chosen token,
    and of the likeliest ones as (token id, logprob), likeliest first."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token of the reply, in order. logprobs: when the request asked for them."""

    token_id: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Durations:
    """How long something took, since start. counts[i]: times of at most bounds[i] seconds and more than the bound
    before; the last count is of all longer ones."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total_s: float


@dataclass(frozen=True, slots=True)
class SaveCounts:
    """Saves of one mode since start. session_bytes: what the saved sessions take in the store, added up over saves;
    written_bytes: what the saves added to it; stall_s: how long they held the step loop. refused: those that came to
    nothing, by the code of the refusal, or `fault`."""

    seconds: Durations
    session_bytes: int
    written_bytes: int
    stall_s: float
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RestoreCounts:
    """Restores since start. seconds, bytes: of those that read pages. outcomes: restored, recompute (the responses came
    back, the pages are computed anew), failed."""

    seconds: Durations
    bytes: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Counts:
    """What the engine counts beside the status document. gaps: between two tokens of a running reply. saves: by mode,
    explicit and automatic. backfilled: requests that started ahead of a head that waited for pages."""

    gaps: Durations
    saves: Mapping[str, SaveCounts]
    restores: RestoreCounts
    backfilled: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request. When it arrives, the status document already tells of the request."""

    reason: FinishReason
    record: NinferRecord
    log_result: LogResult
    log_timings: LogTimings
    log_materialization: LogMaterialization
    output_tokens: tuple[int, ...] = field(default=())


class EngineApi(Protocol):
    """The engine as the server sees it."""

    responses: ResponseStore

    def generate(self, request: GenerationRequest) -> AsyncIterator[Token | Finished]:
        """Run one request. Raises EngineRefusedError before the first event: context_length_exceeded,
        server_overloaded (queue full), request_queue_timeout, engine_unavailable."""

    def finish(self, request_id: str) -> None:
        """End a running request at the next step boundary as if it had sampled a stop token (a stop string appeared in
        its text): its Finished follows with reason `stop`. An unknown or ended request is left alone."""

    def status(self) -> StatusDocument:
        """The newest snapshot; never waits for the engine thread."""

    async def save_session(self, session: str) -> SaveReply:
        """Save now. Raises EngineRefusedError nothing_to_save or checkpoint_unavailable with the reason."""

    async def checkpoint_status(self, session: str) -> CheckpointStatus:
        """What the durable store holds of a session."""

    async def delete_checkpoint(self, session: str) -> DeleteReply:
        """Forget a session in the durable store."""

    async def restore_session(self, session: str) -> bool:
        """Bring a saved session back into memory and `responses`; False when there is none or it cannot be used."""

    async def forget_response(self, response_id: str, session: str | None) -> None:
        """A stored response was deleted: its continuation leaves the catalog; descendants keep what they refer to.
        Returns when the durable store has noted it, so that no restart brings it back."""

    def healthy(self) -> bool:
        """True while the engine thread lives and steps."""

    def wedged(self) -> bool:
        """True when the engine thread lives but has not come back from a step for longer than any step takes."""

    def counts(self) -> Counts:
        """What was counted since start; never waits for the engine thread."""
