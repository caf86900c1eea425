"""Request fields that decide how a reply is sampled; the same on every route."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ninfer_engine.runtime.api import Sampling
from ninfer_engine.server.body import Body

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=0, le=1_000_000)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MaxTokens = Annotated[int, Field(ge=1, le=2**31)]
Metadata = Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[str, Field(min_length=1)]
Stops = Annotated[
    list[Stop], Field(max_length=16), BeforeValidator(_one_or_many, json_schema_input_type=Stop | list[Stop])
]


class SamplingFields(Body):
    """Fields that every generating route shares. Defaults are OpenAI's: temperature 1, top_p 1.

    cache_salt: prompts with different salts share no cached prefix.
    """

    model: str
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stream: bool | None = None
    cache_salt: str | None = Field(default=None, max_length=256)

    def sampling(self, max_new_tokens: int, eos: frozenset[int]) -> Sampling:
        """What the engine is asked for."""
        return Sampling(
            max_new_tokens=max_new_tokens,
            temperature=1.0 if self.temperature is None else float(self.temperature),
            top_p=1.0 if self.top_p is None else float(self.top_p),
            top_k=self.top_k or 0,
            seed=self.seed,
            stop_token_ids=eos,
        )


def reply_limit(asked: int | None, default: int, prompt_tokens: int, max_context: int) -> int:
    """Tokens that a reply may have. What a request asks for is passed on as it is, so that the engine refuses what
    cannot fit; the default shrinks to the room that the prompt leaves."""
    return asked if asked is not None else max(1, min(default, max_context - prompt_tokens))
