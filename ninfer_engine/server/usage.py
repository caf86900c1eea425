"""Token counts of a completed reply, in the words of each API. reused_tokens is reported everywhere, 0 included."""

from collections.abc import Sequence
from typing import Any

from ninfer_engine.runtime.api import Finished
from ninfer_engine.server.reply import Reply


def responses_usage(finished: Finished, reasoning_tokens: int) -> dict[str, Any]:
    """`usage` of a response."""
    prompt, completion = _counts(finished)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": finished.record.reused_tokens},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt + completion,
    }


def chat_usage(finished: Sequence[Finished], replies: Sequence[Reply]) -> dict[str, Any]:
    """`usage` of chat completions and completions. The prompt counts once, whatever the number of choices, and what of
    it was cached is what the first choice found; the others found all of it."""
    prompt, _ = _counts(finished[0])
    completion = sum(_counts(one)[1] for one in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": finished[0].record.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(reply.reasoning_tokens for reply in replies)},
    }


def messages_usage(finished: Finished, marked: int = 0) -> dict[str, Any]:
    """`usage` of messages, whose three counts of input add up to the prompt: read from the cache; computed before the
    last breakpoint (marked: tokens before it), so that the next request need not; computed after it."""
    record = finished.record
    created = max(0, marked - record.reused_tokens)
    return {
        "input_tokens": record.computed_tokens - created,
        "cache_read_input_tokens": record.reused_tokens,
        "cache_creation_input_tokens": created,
        "output_tokens": _counts(finished)[1],
    }


def _counts(finished: Finished) -> tuple[int, int]:
    record = finished.record
    return record.reused_tokens + record.computed_tokens, finished.log_result.completion_tokens
