"""What the engine answers, as far as the contract package does not hold it: the Responses reply and small documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from ninfer_engine.contract.base import Reply
from ninfer_engine.contract.diagnostics import NinferRecord


class TokenDetails(Reply):
    """`input_tokens_details`: prompt tokens that were not computed again; None: the engine left it out (a fault)."""

    cached_tokens: int | None = None


class ReasoningDetails(Reply):
    """`output_tokens_details`."""

    reasoning_tokens: int = 0


class Usage(Reply):
    """Token counts of a reply. An absent cached_tokens stays absent, never 0: the prober reports it as unreported."""

    input_tokens: int
    input_tokens_details: TokenDetails = TokenDetails()
    output_tokens: int
    output_tokens_details: ReasoningDetails = ReasoningDetails()
    total_tokens: int


class ResponseReply(BaseModel):
    """A Responses reply. `ninfer` is absent when another engine of the family answers; `text` joins all output text."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    id: str
    status: str
    output: tuple[dict[str, Any], ...] = ()
    usage: Usage | None = None
    ninfer: NinferRecord | None = None

    @property
    def text(self) -> str:
        """Output text of every message item, in order."""
        parts = (part for item in self.output if item.get("type") == "message" for part in item.get("content", ()))
        return "".join(str(part.get("text", "")) for part in parts if part.get("type") == "output_text")


class ModelCard(Reply):
    """One entry of /v1/models."""

    id: str
    max_model_len: int | None = None


class ModelList(Reply):
    """Reply of /v1/models."""

    data: tuple[ModelCard, ...]


class TokenCount(Reply):
    """Reply of /v1/responses/input_tokens."""

    input_tokens: int


class Deleted(Reply):
    """Reply of a delete."""

    id: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class Health:
    """GET /health: whether the engine can serve, and the HTTP status that said so."""

    ok: bool
    http_status: int


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A raw reply: status, headers, body; `wall_s` from sending to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    wall_s: float
