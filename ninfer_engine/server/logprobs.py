"""Log-probabilities of message text, in the words of each API."""

from collections.abc import Iterable
from typing import Any

from ninfer_engine.server.output import TokenLog


def _entry(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(token)}


def chat_logprobs(logs: Iterable[TokenLog]) -> dict[str, Any]:
    """`logprobs` of a chat choice."""
    return {"content": response_logprobs(logs), "refusal": None}


def response_logprobs(logs: Iterable[TokenLog]) -> list[dict[str, Any]]:
    """`logprobs` of an output_text part; a chat choice has the same under `content`."""
    return [_entry(log.token, log.logprob) | {"top_logprobs": [_entry(*pair) for pair in log.top]} for log in logs]


class TextLogprobs:
    """`logprobs` of a text completion, whose offsets count the characters of the text so far."""

    def __init__(self) -> None:
        self._offset = 0

    def take(self, logs: Iterable[TokenLog], text: str) -> dict[str, Any]:
        """Of the next piece of text."""
        made: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offset = self._offset
        for log in logs:
            token = log.token.decode("utf-8", "replace")
            made["tokens"].append(token)
            made["token_logprobs"].append(log.logprob)
            made["top_logprobs"].append({other.decode("utf-8", "replace"): value for other, value in log.top})
            made["text_offset"].append(offset)
            offset += len(token)
        self._offset += len(text)
        return made
