"""The text side of one reply: tokens in, parts out, stop strings cut, reasoning counted."""

import logging
from collections.abc import AsyncIterator, Sequence

from ninfer_engine.runtime.api import EngineApi, Finished, FinishReason, Logprobs, Token
from ninfer_engine.server.errors import ApiError, internal_error
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.output import Delta, OutputParser, TextDelta, TokenLog
from ninfer_engine.server.runs import Run, RunEndedError
from ninfer_engine.server.tool_calls import Schemas

logger = logging.getLogger("ninfer.server")


class StopStrings:
    """Passes text on until a stop string appears; what may be the beginning of one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._buffer = ""
        self.hit: str | None = None

    def feed(self, text: str) -> str:
        """The text that no stop string can begin in."""
        if not self._stops:
            return text
        if self.hit is not None:
            return ""
        self._buffer += text
        found = [(self._buffer.find(stop), stop) for stop in self._stops if stop in self._buffer]
        if found:
            # The one that is complete first ends the reply, however the text was cut into pieces.
            at, self.hit = min(found, key=lambda place: (place[0] + len(place[1]), place[0]))
            passed, self._buffer = self._buffer[:at], ""
            return passed
        cut = len(self._buffer) - self._held()
        passed, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return passed

    def flush(self) -> str:
        """What was held back and turned out to be ordinary."""
        rest, self._buffer = self._buffer, ""
        return rest

    def _held(self) -> int:
        """Characters at the end that a stop string may begin with: however long those are, the text is short."""
        buffer = self._buffer
        sizes = (size for stop in self._stops for size in range(1, min(len(stop), len(buffer) + 1))
                 if buffer.endswith(stop[:size]))
        return max(sizes, default=0)


class Reply:
    """What a reply's tokens come to. plain: everything is text (completions have no parts). parallel: it may hold more
    than one tool call."""

    def __init__(
        self,
        model: ServedModel,
        tools: Schemas,
        in_reasoning: bool = False,
        stops: Sequence[str] = (),
        plain: bool = False,
        parallel: bool = True,
    ) -> None:
        self._model = model
        self._eos = model.eos_token_ids
        self._decoder = model.tokenizer.stream()
        self._stops = StopStrings(stops)
        self._parser = None if plain else OutputParser(tools, in_reasoning, parallel)
        self._logs: list[TokenLog] = []  # of tokens whose text has not come out yet
        self.may_end_early = bool(stops) or not parallel
        self.tokens: list[int] = []
        self.reasoning_tokens = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply, if one did."""
        return self._stops.hit

    @property
    def ended(self) -> bool:
        """Nothing that the model says from here on belongs to the reply."""
        return self._stops.hit is not None or (self._parser is not None and self._parser.done)

    def add(self, token: Token) -> list[Delta]:
        """The parts that became certain with a token."""
        token_id = token.token_id
        self.tokens.append(token_id)
        reasoning = self._parser is not None and self._parser.in_reasoning
        if reasoning:
            self.reasoning_tokens += 1
        if token_id in self._eos:
            return []
        found = self._parse(self._stops.feed(self._text_of(token_id)))
        return found if token.logprobs is None else self._logged(found, token_id, token.logprobs, reasoning)

    def end(self) -> list[Delta]:
        """The parts still held back."""
        rest = self._stops.feed(self._decoder.finish()) + self._stops.flush()
        found = self._parse(rest) + (self._parser.finish() if self._parser is not None else [])
        return self._with_logs(found)

    def _text_of(self, token_id: int) -> str:
        """A model's vocabulary may be padded beyond its tokenizer's; such a token has no text, and says so."""
        try:
            return self._decoder.add(token_id)
        except ValueError:
            return "\ufffd"

    def _parse(self, text: str) -> list[Delta]:
        if self._parser is not None:
            return self._parser.feed(text)
        return [TextDelta(text)] if text else []

    def _logged(self, found: list[Delta], token_id: int, logs: Logprobs, reasoning: bool) -> list[Delta]:
        """Message text has log-probabilities, reasoning and calls have none."""
        parser = self._parser
        if parser is not None and parser.in_reasoning:
            self._logs.clear()
        elif not reasoning:
            top = tuple((self._bytes(other), value) for other, value in logs.top)
            self._logs.append(TokenLog(self._bytes(token_id), logs.chosen, top))
        return self._with_logs(found)

    def _with_logs(self, found: list[Delta]) -> list[Delta]:
        if not self._logs:
            return found
        made: list[Delta] = []
        for delta in found:
            if isinstance(delta, TextDelta):
                made.append(TextDelta(delta.text, tuple(self._logs)))
            else:
                made.append(delta)
            self._logs.clear()
        return made

    def _bytes(self, token_id: int) -> bytes:
        try:
            return self._model.tokenizer.bytes_of(token_id)
        except ValueError:
            return b""


async def parts(engine: EngineApi, run: Run, reply: Reply) -> AsyncIterator[list[Delta | Finished]]:
    """The parts of a run's reply as they become certain, then Finished, in lists of what is at hand. A stop string ends
    the run early. Raises ApiError and RunEndedError; a fault of ours becomes the 500 that names the request."""
    asked = False
    try:
        async for burst in run.bursts():
            made: list[Delta | Finished] = []
            for event in burst:
                made += reply.add(event) if isinstance(event, Token) else [*reply.end(), event]
            if reply.ended and not asked:
                asked = True
                engine.finish(run.request.request_id)
            if made:
                yield made
    except (ApiError, RunEndedError):
        raise
    except Exception as error:
        request_id = run.request.request_id
        logger.error("reply failed", exc_info=error, extra={"request_id": request_id})
        raise internal_error(request_id) from None


def finish_reason(finished: Finished, reply: Reply) -> FinishReason:
    """Why the reply ended, as a client sees it: a stop string is a stop, and so is the one call there may be."""
    return "stop" if reply.ended else finished.reason
