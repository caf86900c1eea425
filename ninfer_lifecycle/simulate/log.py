"""An engine's request log as a trace.

The log holds no tokens, so content is named by lineage: a request with a known parent goes on from the parent's prompt
and reply, as far as its own prompt is long. A request without one that hit n tokens repeats what its session, or else
anybody, last computed at least n tokens of; which one the log does not say, so that is a guess. What an engine with
smaller caches missed without lineage cannot be seen: hit shares from a log are a lower bound for such requests.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ninfer_engine.context.simulator import TraceRequest
from ninfer_engine.context.tokens import TokenRuns
from ninfer_engine.context.traces import TraceError, text
from ninfer_engine.contract.diagnostics import LogEvent

_REMEMBERED = 64  # root prompts of which a later hit without a parent may be a repetition


@dataclass(slots=True)
class _Known:
    """Whole responses by response id, and the last prompts without a parent as (session, prompt)."""

    whole: dict[str, TokenRuns] = field(default_factory=dict)
    roots: list[tuple[str | None, TokenRuns]] = field(default_factory=list)

    def repeated(self, session: str | None, hit: int) -> TokenRuns:
        """The first `hit` tokens of the newest prompt that has as many, the session's own before anybody's."""
        long_enough = [(owner, prompt) for owner, prompt in self.roots if len(prompt) >= hit > 0]
        own = [prompt for owner, prompt in long_enough if owner == session]
        found = own or [prompt for _, prompt in long_enough]
        return found[-1].part(0, hit) if found else TokenRuns.of(())


def from_log(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """Requests that ran to their end, in the order of their arrival. Raises TraceError for a line that is no log line.

    A request is given out once no earlier one is open any more, so a log of long concurrent requests is held in part.
    """
    known, waiting, done = _Known(), dict[str, dict[str, Any]](), dict[str, dict[str, Any] | None]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        record = _record(line, number)
        name, event = str(record.get("request_id")), record["event"]
        if event == LogEvent.REQUEST_START:
            waiting[name] = record
        elif event == LogEvent.REQUEST_DONE and name in waiting:
            done[name] = record
        elif event in (LogEvent.REQUEST_ERROR, LogEvent.REQUEST_REJECTED) and name in waiting:
            done[name] = None
        elif event == LogEvent.SERVER_START:
            done |= {left: None for left in waiting if left not in done}  # what the last process took with it
        yield from _ready(known, waiting, done)
    done |= {left: None for left in waiting if left not in done}
    yield from _ready(known, waiting, done)


def _record(line: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if not isinstance(record, dict) or not isinstance(record["event"], str):
            raise TypeError("no event")
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"line {number} is not a line of a request log ({error!r})") from None
    return record


def _ready(known: _Known, waiting: dict[str, dict[str, Any]], done: dict[str, dict[str, Any] | None]
           ) -> Iterator[TraceRequest]:
    """Requests at the head of the queue whose end is known."""
    while waiting and (name := next(iter(waiting))) in done:
        start, end = waiting.pop(name), done.pop(name)
        if end is not None:
            yield _request(known, name, start, end)


def _request(known: _Known, name: str, start: dict[str, Any], end: dict[str, Any]) -> TraceRequest:
    try:
        result, length = end["result"], int(start["prompt_tokens"])
        at, reply = start["timestamp_unix_ms"] / 1000, int(result["completion_tokens"])
        hit = int(result["prefix_cache_hit_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"request {name} lacks {error} in the log") from None
    session, parent = start.get("session"), start.get("parent_response_id")
    response = str(start.get("response_id") or name)
    if parent in known.whole:
        before = known.whole[parent].part(0, min(length, len(known.whole[parent])))
    else:
        before = known.repeated(session, min(hit, length))
    prompt = before.joined(text(f"prompt of {response}", length - len(before)))
    made = text(f"reply of {response}", reply)
    known.whole[response] = prompt.joined(made)
    if parent is None:
        known.roots = [*known.roots[-_REMEMBERED:], (session, prompt)]
    return TraceRequest(response, at, prompt, made, parent if parent in known.whole else None, session,
                        bool(start.get("store", True)))
