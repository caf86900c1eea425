"""Cache breakpoints of messages: where they come to, what the usage says, and that the first branch there is hot."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from real_server import real_server
from server_harness import Served

EPHEMERAL = {"type": "ephemeral"}
RULES = "The ledger has lines. Every line names an account, what it pays and to whom it pays. " * 12
SYSTEM: Any = [{"type": "text", "text": RULES, "cache_control": EPHEMERAL}]
FIVE_MINUTES: Any = [{"type": "text", "text": RULES, "cache_control": {**EPHEMERAL, "ttl": "5m"}}]
TOOLS: Any = [{"name": "pay", "description": "Pays.", "input_schema": {"type": "object"}, "cache_control": EPHEMERAL}]


def user(text: str, *, marked: bool = False) -> dict[str, Any]:
    """A user message of one block."""
    mark = {"cache_control": EPHEMERAL} if marked else {}
    return {"role": "user", "content": [{"type": "text", "text": text, **mark}]}


@pytest.fixture
def client(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=str(served.http.base_url), api_key="none", max_retries=0)


def prompts(
    served: Served, client: anthropic.Anthropic, *bodies: dict[str, Any]
) -> list[tuple[list[int], tuple[int, ...]]]:
    """The tokens and the marks that the engine was asked with."""
    for body in bodies:
        client.messages.create(model="tiny", max_tokens=5, **body)
    return [(list(request.tokens), request.marks) for request in served.engine.requests]


@pytest.mark.parametrize("body", [
    {"system": SYSTEM}, {"system": FIVE_MINUTES}, {"tools": TOOLS}, {"system": RULES, "tools": TOOLS},
    {"messages": [user(RULES, marked=True)]},
    {"messages": [user("Hello."), {"role": "assistant", "content": "Yes?"}, user(RULES, marked=True)]},
], ids=["system", "as long as the default", "tools", "both", "first message", "later message"])
def test_a_breakpoint_is_where_two_requests_with_that_beginning_part(
    served: Served, client: anthropic.Anthropic, body: dict[str, Any]
) -> None:
    before = body.get("messages", [])
    [(one, marks), (other, _)] = prompts(
        served, client, *({**body, "messages": [*before, *([{"role": "assistant", "content": "So."}] if before else []),
                                                user(text)]} for text in ("What is line 4?", "And of line 9, who?")))
    [mark] = marks
    agree = next(index for index, (ours, theirs) in enumerate(zip(one, other, strict=False)) if ours != theirs)
    assert 0 < mark <= agree
    text = served.model.tokenizer.decode(one[:mark], skip_special=False)
    marked_text = "Pays." if "tools" in body else RULES.strip()
    assert marked_text in text


def test_the_counts_of_input_add_up_and_tell_what_was_written(served: Served, client: anthropic.Anthropic) -> None:
    plain = client.messages.create(model="tiny", max_tokens=5, messages=[user("Hello?")], system=RULES)
    marked = client.messages.create(model="tiny", max_tokens=5, messages=[user("Hello?")], system=SYSTEM)
    whole = client.messages.create(model="tiny", max_tokens=5, messages=[user("Hello?")], system=RULES,
                                   cache_control=EPHEMERAL)  # type: ignore[arg-type]  # a plain dict
    assert (plain.usage.cache_creation_input_tokens, marked.usage.cache_creation_input_tokens) == \
        (0, served.engine.requests[1].marks[-1])
    for made in (marked, whole):
        usage = made.usage
        assert usage.input_tokens + (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0) == \
            plain.usage.input_tokens
    assert whole.usage.input_tokens < marked.usage.input_tokens < plain.usage.input_tokens


def test_more_breakpoints_than_there_may_be_are_refused(served: Served, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="at most 4"):
        client.messages.create(model="tiny", max_tokens=5, system=SYSTEM, messages=[user(str(n), marked=True)
                                                                                   for n in range(4)])
    assert served.engine.requests == []


@pytest.fixture(scope="module")
def real_url() -> Iterator[str]:
    """A server over the real engine."""
    with real_server(max_context=8192, max_concurrency=1) as server:
        yield server.url


def test_the_first_request_that_goes_on_differently_resumes_at_the_breakpoint(real_url: str) -> None:
    client = anthropic.Anthropic(base_url=real_url, api_key="none", max_retries=0)
    read = []
    for text in ("Which account pays line 4?", "Of line 9, who is paid?", "Nothing."):
        made = client.messages.create(model="tiny", max_tokens=4, system=SYSTEM, messages=[user(text)])
        read.append((made.usage.cache_creation_input_tokens, made.usage.cache_read_input_tokens))
    assert read[0][0] and read[0][1] == 0
    assert read[1:] == [(0, read[0][0])] * 2
    with client.messages.stream(model="tiny", max_tokens=4, system=SYSTEM,
                                messages=[user("Streamed.")]) as stream:
        assert stream.get_final_message().usage.cache_read_input_tokens == read[0][0]
