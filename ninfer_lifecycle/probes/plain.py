"""A plain OpenAI-compatible server (vLLM, llama.cpp), asked as if it kept responses: the prober keeps them instead.

Prompts go as token ids, so that a conversation goes on from the very tokens that the server saw and said. Witnesses of
reuse are what its usage reports and the time to the first token; everything else that such a server does not report
(path, work counter, life of the process) stays unreported. It keeps nothing durable, and is not asked to.
"""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from ninfer_engine.contract.checkpoints import CheckpointStatus, DeleteReply, SaveReply
from ninfer_engine.contract.status import Cache, Identity, Restore, Runtime, Scheduler, StatusDocument
from ninfer_lifecycle.client import (
    EngineClient,
    EngineDeadlineError,
    EngineProtocolError,
    EngineReplyError,
    EngineUnreachableError,
    ResponseReply,
    StreamedReply,
)

UNREPORTED = "unreported"


@dataclass(frozen=True, slots=True)
class _Kept:
    session: str | None
    tokens: tuple[int, ...]
    body: ResponseReply


class PlainEngine(EngineClient):
    """The calls of EngineClient that a fan-out needs, carried out with /tokenize and /v1/completions.

    Raises what EngineClient raises. Saves and deletes of checkpoints answer 501: there is nothing to ask for.
    """

    _model = ""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        super().__init__(base_url, api_key)
        # A connection a request: some of these servers close one that a request is just being sent on.
        self._http.headers["Connection"] = "close"
        self._kept: dict[str, _Kept] = {}

    def status(self, timeout_s: float | None = None) -> StatusDocument:
        """A document in which everything is unreported but the model's name and length."""
        card = self.models()[0]
        self._model = card.id
        return StatusDocument(
            identity=Identity(
                deployment_profile=None, model_id=card.id, model_artifact_sha256=UNREPORTED, binary_sha256=UNREPORTED,
                config_sha256=None, build_profile=UNREPORTED, engine_version=UNREPORTED, device=UNREPORTED,
                server_instance_id=UNREPORTED),
            runtime=Runtime(public_model_id=card.id, max_context=card.max_model_len or 0, kv_capacity_mode="auto",
                            kv_capacity_tokens=0, kv_cache=UNREPORTED, speculative_backend=UNREPORTED),
            scheduler=Scheduler(max_concurrency=1, max_pending_requests=0), cache=Cache(), restore=Restore())

    def input_tokens(self, body: Mapping[str, Any], session: str | None = None) -> int:
        """Tokens of the prompt that this input would be."""
        return len(self._prompt(body))

    def create_response(
        self, body: Mapping[str, Any], session: str | None = None, timeout_s: float | None = None
    ) -> ResponseReply:
        """One completion, streamed, so that the first token's time is seen; kept when `store` is set."""
        prompt = self._prompt(body)
        done = self._complete(prompt, body, timeout_s or self.deadlines.generate_s)
        reply = ResponseReply.model_validate({
            "id": f"plain_{secrets.token_hex(12)}", "status": "completed", "usage": _usage(done.usage),
            "output": [{"type": "message", "content": [{"type": "output_text", "text": done.text}]}],
            "first_token_s": done.arrivals_s[0] if done.arrivals_s else None, "arrivals_s": done.arrivals_s})
        if body.get("store", True):
            said = self._tokenize(done.text, first=False)
            self._kept[reply.id] = _Kept(session, (*prompt, *said), reply)
        return reply

    def stream_response(
        self, body: Mapping[str, Any], session: str | None = None, timeout_s: float | None = None,
        on_output: Callable[[], None] = lambda: None,
    ) -> StreamedReply:
        """The same completion with the time of each piece: every one is streamed. on_output: once, at the end."""
        reply = self.create_response(body, session, timeout_s)
        on_output()
        return StreamedReply(reply, tuple((reply.model_extra or {})["arrivals_s"]))

    def get_response(self, response_id: str, session: str | None = None) -> ResponseReply:
        """A kept response of that session."""
        return self._found(response_id, session, "response_not_found").body

    def delete_response(self, response_id: str, session: str | None = None) -> bool:
        """Forget a kept response."""
        self._found(response_id, session, "response_not_found")
        del self._kept[response_id]
        return True

    def save(self, session: str, timeout_s: float | None = None) -> SaveReply:
        """Not there."""
        raise _nothing_durable()

    def checkpoint_status(self, session: str) -> CheckpointStatus:
        """Not there."""
        raise _nothing_durable()

    def delete_checkpoint(self, session: str) -> DeleteReply:
        """Not there."""
        raise _nothing_durable()

    def _found(self, response_id: str, session: str | None, code: str) -> _Kept:
        kept = self._kept.get(response_id)
        if kept is None or kept.session != session:
            raise EngineReplyError(404, code, f"no response {response_id}")
        return kept

    def _prompt(self, body: Mapping[str, Any]) -> tuple[int, ...]:
        parent_id = body.get("previous_response_id")
        if parent_id is None:
            return self._tokenize(str(body["input"]), first=True)
        parent = self._found(str(parent_id), body.get("ninfer_session"), "previous_response_not_found")
        return (*parent.tokens, *self._tokenize("\n" + str(body["input"]) + "\n", first=False))

    def _tokenize(self, text: str, *, first: bool) -> tuple[int, ...]:
        """Token ids by the server itself. The two families name the text and the switch differently; both are sent."""
        if not text:
            return ()
        sent = {"model": self._model, "content": text, "prompt": text, "add_special": first,
                "add_special_tokens": first}
        reply = self.raw("POST", "/tokenize", json.dumps(sent).encode())
        try:
            return tuple(int(token) for token in json.loads(reply.body)["tokens"])
        except (ValueError, KeyError, TypeError):
            raise EngineProtocolError(f"POST /tokenize answers {reply.status} without tokens",
                                      "token-exact prompts need a server with /tokenize (llama.cpp, vLLM)") from None

    def _complete(self, prompt: tuple[int, ...], body: Mapping[str, Any], timeout_s: float) -> "_Completion":
        sent = {"model": body["model"], "prompt": prompt, "max_tokens": body["max_output_tokens"], "temperature": 0,
                "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": True}
        started = time.monotonic()
        completion = _Completion()
        try:
            with self._http.stream("POST", "/v1/completions", json=sent, timeout=timeout_s) as reply:
                if reply.status_code != 200:
                    said = reply.read()[:200].decode(errors="replace")
                    raise EngineReplyError(reply.status_code, None, f"/v1/completions: {said}")
                for line in reply.iter_lines():
                    if line.startswith("data:") and line.strip() != "data: [DONE]":
                        completion.take(json.loads(line[5:]), time.monotonic() - started)
                    if time.monotonic() - started > timeout_s:
                        raise EngineDeadlineError(f"POST /v1/completions: not whole after {timeout_s:g} s")
        except httpx.TimeoutException as error:
            raise EngineDeadlineError(f"POST /v1/completions: no reply within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise EngineUnreachableError(f"POST /v1/completions: {error}") from error
        return completion


@dataclass
class _Completion:
    """A streamed completion as it arrives; usage None: the server did not report any."""

    text: str = ""
    usage: Mapping[str, Any] | None = None
    arrivals_s: list[float] = field(default_factory=list)

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """One event of the stream."""
        for choice in event.get("choices") or ():
            self.text += choice.get("text") or ""
            self.arrivals_s.append(at_s)
        reported = event.get("usage")
        if reported:
            self.usage = {**reported, "timings": event.get("timings") or {}}


def _usage(reported: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Usage under the names of a response; cached tokens from either family's place, absent where neither has it."""
    if reported is None:
        return None
    details = reported.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", reported["timings"].get("cache_n"))
    return {"input_tokens": reported["prompt_tokens"], "output_tokens": reported["completion_tokens"],
            "total_tokens": reported["total_tokens"],
            "input_tokens_details": {} if cached is None else {"cached_tokens": cached}}


def _nothing_durable() -> EngineReplyError:
    return EngineReplyError(501, "not_implemented", "a plain server keeps no sessions to save")
