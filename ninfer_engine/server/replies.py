"""What the generating routes reply, for the OpenAPI document. Nothing is made with these models: the document says with
them what the builders write, and tests hold every reply against it. A field that may be missing has a default."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ninfer_engine.contract.diagnostics import NinferRecord
from ninfer_engine.contract.errors import ErrorDetail
from ninfer_engine.server.items import Item
from ninfer_engine.server.tools import ResponseChoice

Count = Annotated[int, Field(ge=0)]
ItemEnd = Literal["in_progress", "completed", "incomplete"]


class Sent(BaseModel):
    """A reply or a part of one: no field beside those named."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class TokenLogprob(Sent):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ToldToken(TokenLogprob):
    """A token of the reply, and the likeliest in its place."""

    top_logprobs: list[TokenLogprob]


class Cached(Sent):
    """What of the prompt was resumed, to the token."""

    cached_tokens: Count


class Reasoned(Sent):
    """What of the reply is reasoning."""

    reasoning_tokens: Count


class ChatUsage(Sent):
    """Counts of chat completions and completions."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: Cached
    completion_tokens_details: Reasoned


class Arguments(Sent):
    """The function of a call."""

    name: str
    arguments: str


class Call(Sent):
    """A call of chat completions."""

    id: str
    type: Literal["function"]
    function: Arguments


class ChatMessage(Sent):
    """The reply of a choice."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    tool_calls: list[Call] = []


class ChatLogprobs(Sent):
    """Log-probabilities of message text."""

    content: list[ToldToken]
    refusal: None


class ChatChoice(Sent):
    """A choice; ninfer: when there are several."""

    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    ninfer: NinferRecord | None = None


class ChatCompletion(Sent):
    """POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    ninfer: NinferRecord


class LegacyLogprobs(Sent):
    """Log-probabilities of completions."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[Count]


class CompletionChoice(Sent):
    """A choice; ninfer: when there are several."""

    index: Count
    text: str
    logprobs: LegacyLogprobs | None
    finish_reason: Literal["stop", "length"]
    ninfer: NinferRecord | None = None


class Completion(Sent):
    """POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[CompletionChoice]
    usage: ChatUsage
    ninfer: NinferRecord


class OutputText(Sent):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ToldToken]


class OutputMessage(Sent):
    """Message text of a response."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemEnd
    content: list[OutputText]


class ReasoningText(Sent):
    """The text of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Sent):
    """Reasoning of a response."""

    id: str
    type: Literal["reasoning"]
    status: ItemEnd
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(Sent):
    """A call of a response."""

    id: str
    type: Literal["function_call"]
    status: ItemEnd
    call_id: str
    name: str
    arguments: str


class ResponsesUsage(Sent):
    """Counts of responses."""

    input_tokens: Count
    input_tokens_details: Cached
    output_tokens: Count
    output_tokens_details: Reasoned
    total_tokens: Count


class ShownReasoning(Sent):
    """The effort that was asked for."""

    effort: str | None
    summary: None


class ShownText(Sent):
    """The format that was asked for."""

    format: dict[str, Any]


class ShownTool(Sent):
    """A tool in force."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any]
    strict: bool


class Why(Sent):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class Failure(Sent):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(Sent):
    """A response. ninfer and usage: of one that ran to its end."""

    id: str
    object: Literal["response"]
    created_at: Count
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
    background: Literal[False]
    error: Failure | None
    incomplete_details: Why | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ShownReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: ShownText
    tool_choice: ResponseChoice
    tools: list[ShownTool]
    top_logprobs: Count
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponsesUsage | None
    user: str | None
    ninfer: NinferRecord | None = None


class InputItems(Sent):
    """A page of input items."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(Sent):
    """DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Sent):
    """POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: Count


class SaidText(Sent):
    """Text of a message."""

    type: Literal["text"]
    text: str


class SaidThinking(Sent):
    """Reasoning of a message."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class SaidCall(Sent):
    """A call of a message."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessagesUsage(Sent):
    """Counts of messages; the three of input add up to the prompt."""

    input_tokens: Count
    cache_read_input_tokens: Count
    cache_creation_input_tokens: Count
    output_tokens: Count


class Message(Sent):
    """POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[SaidText | SaidThinking | SaidCall]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessagesUsage
    ninfer: NinferRecord


class MessageTokens(Sent):
    """POST /v1/messages/count_tokens."""

    input_tokens: Count


class MessagesError(Sent):
    """What /v1/messages refuses with."""

    type: Literal["error"]
    error: ErrorDetail


class Model(Sent):
    """The model served. max_model_len: longest prompt plus reply."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    max_model_len: Count


class Models(Sent):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Healthy(Sent):
    """GET /health."""

    status: Literal["ok"]
