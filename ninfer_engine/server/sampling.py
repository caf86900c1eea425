"""Request fields that decide how a reply is sampled; the same on every route."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ninfer_engine.runtime.api import Sampling
from ninfer_engine.server.body import Body
from ninfer_engine.server.errors import invalid
from ninfer_engine.server.model import ServedModel

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MaxTokens = Annotated[int, Field(ge=1, le=2**31)]
MinP = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Repetition = Annotated[float, Field(gt=0, le=10)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]
Choices = Annotated[int, Field(ge=1, le=128)]
Bias = Annotated[dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
                 Field(max_length=1024)]
Metadata = Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1, max_length=1024)]
Stops = Annotated[
    list[Stop], Field(max_length=16), BeforeValidator(_one_or_many, json_schema_input_type=Stop | list[Stop])
]


class SamplingFields(Body):
    """Fields that every generating route shares. Defaults are OpenAI's: temperature 1, top_p 1.

    cache_salt: prompts with different salts share no cached prefix. logit_bias: by token id, as text. min_p, top_k and
    repetition_penalty are not OpenAI's; they mean what vLLM and Hugging Face mean by them.
    """

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Bias | None = None
    stream: bool | None = None
    cache_salt: str | None = Field(default=None, max_length=256)

    def sampling(self, max_new_tokens: int, model: ServedModel, logprobs: int | None = None) -> Sampling:
        """What the engine is asked for. logprobs: alternatives told beside each token; None: no log-probabilities.
        Raises ApiError for a bias on a token that there is none of."""
        bias = tuple((int(token), float(value)) for token, value in (self.logit_bias or {}).items())
        if any(token >= model.tokenizer.size for token, _ in bias):
            raise invalid(f"logit_bias names a token id outside 0..{model.tokenizer.size - 1}", "logit_bias")
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=1.0 if self.temperature is None else float(self.temperature),
            top_p=1.0 if self.top_p is None else float(self.top_p),
            top_k=self.top_k or 0,
            seed=self.seed,
            stop_token_ids=model.eos_token_ids,
            min_p=float(self.min_p or 0.0),
            presence_penalty=float(self.presence_penalty or 0.0),
            frequency_penalty=float(self.frequency_penalty or 0.0),
            repetition_penalty=float(self.repetition_penalty or 1.0),
            logit_bias=bias,
            logprobs=logprobs,
        )


def reply_limit(asked: int | None, default: int, prompt_tokens: int, max_context: int) -> int:
    """Tokens that a reply may have. What a request asks for is passed on as it is: the engine ends a reply where the
    context ends. The default shrinks to the room that the prompt leaves."""
    return asked if asked is not None else max(1, min(default, max_context - prompt_tokens))
