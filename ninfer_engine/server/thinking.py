"""Whether a model reasons before it answers, and for how long: what the APIs call effort, thinking and budgets."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from ninfer_engine.server.body import Body
from ninfer_engine.server.errors import invalid, unsupported
from ninfer_engine.server.model import ServedModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
BUDGETS: dict[str, int | None] = {"minimal": 256, "low": 1024, "medium": 8192, "high": None, "xhigh": None}
"""Most tokens of reasoning by effort; None: as many as the model likes."""


class TemplateSwitches(Body):
    """The switches of a chat template that a request may set."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None


class ReasoningConfig(Body):
    """`reasoning` of responses."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class ThinkingConfig(Body):
    """`thinking` of messages."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(default=None, ge=1)
    display: None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request wants. enabled, preserve: None is the template's own choice; preserve: whether the reasoning of
    earlier replies stays in the prompt. budget: most tokens of reasoning. param: the request's name for it."""

    enabled: bool | None = None
    preserve: bool | None = None
    budget: int | None = None
    param: str = "enable_thinking"

    def switches(self) -> dict[str, Any]:
        """The variables that the template gets."""
        both = {"enable_thinking": self.enabled, "preserve_thinking": self.preserve}
        return {name: value for name, value in both.items() if value is not None}

    def check(self, model: ServedModel, in_reasoning: bool) -> None:
        """Raises unsupported when the template cannot do what was asked. in_reasoning: the prompt, made with the
        switches, ends inside an open think tag."""
        if self.preserve and not model.can_keep_thinking:
            raise unsupported("preserve_thinking", "this model's chat template drops earlier reasoning; leave it out")
        if self.enabled is None or model.can_switch_thinking or self.enabled is in_reasoning:
            return
        if self.enabled:
            raise unsupported(self.param, "this model's chat template has no switch for thinking; leave it out")


def of_effort(effort: str | None, param: str) -> Thinking:
    """Reasoning effort: none switches thinking off; the others bound it."""
    if effort is None:
        return Thinking()
    if effort == "none":
        return Thinking(enabled=False, param=param)
    return Thinking(budget=BUDGETS[effort], param=param)


def of_config(config: ThinkingConfig | None, max_tokens: int | None) -> Thinking:
    """`thinking` of messages. Raises ApiError for a budget that leaves no room for an answer."""
    match config:
        case None | ThinkingConfig(type="adaptive", budget_tokens=None):
            return Thinking()
        case ThinkingConfig(type="disabled", budget_tokens=None):
            return Thinking(enabled=False, param="thinking")
        case ThinkingConfig(type="enabled", budget_tokens=int() as budget):
            if max_tokens is not None and budget >= max_tokens:
                raise invalid("thinking.budget_tokens must be less than max_tokens", "thinking.budget_tokens")
            return Thinking(enabled=True, budget=budget, param="thinking")
        case _:
            raise invalid("thinking has budget_tokens when enabled, and only then", "thinking.budget_tokens")


def merged(switches: TemplateSwitches | None, enable: bool | None, preserve: bool | None, effort: Thinking) -> Thinking:
    """The same switch under its several names. Raises ApiError when two of them differ."""
    inner = switches or TemplateSwitches()
    enabled = _one("enable_thinking", enable, inner.enable_thinking, effort.enabled)
    kept = _one("preserve_thinking", preserve, inner.preserve_thinking)
    return Thinking(enabled, kept, effort.budget, "enable_thinking" if effort.enabled is None else effort.param)


def _one(name: str, *given: bool | None) -> bool | None:
    values = set(given) - {None}
    if len(values) > 1:
        raise invalid(f"{name} is given twice, differently; send one", name)
    return values.pop() if values else None
