"""protocol: a compact conformance list of the HTTP contract; each line is a request and the answer it must get."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ninfer_lifecycle.client import HttpReply
from ninfer_lifecycle.probes.parts import Act, Part, Threads, begin
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.profiles.schema import ProbeSection

RESPONSES = "/v1/responses"
TOKENS = 200


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the list. `{id}` in the path and the parent stands for a stored response of the session."""

    name: str
    method: str
    path: str
    status: int
    code: str | None = None
    body: Mapping[str, Any] | bytes | None = None
    as_owner: bool = True


def _ask(**changes: Any) -> dict[str, Any]:
    return {"input": "Say one word.", "max_output_tokens": 1, "temperature": 0, "store": False, **changes}


LINES: tuple[Line, ...] = (
    Line("health", "GET", "/health", 200),
    Line("models", "GET", "/v1/models", 200),
    Line("unknown_model", "GET", "/v1/models/no-such-model", 404, "model_not_found"),
    Line("unknown_route", "GET", "/v1/ninfer/no-such-route", 404),
    Line("read_response", "GET", RESPONSES + "/{id}", 200),
    Line("read_unknown_response", "GET", RESPONSES + "/resp_none", 404, "response_not_found"),
    Line("read_without_session", "GET", RESPONSES + "/{id}", 404, "response_not_found", as_owner=False),
    Line("create", "POST", RESPONSES, 200, body=_ask()),
    Line("continue", "POST", RESPONSES, 200, body=_ask(previous_response_id="{id}")),
    Line("unknown_parent", "POST", RESPONSES, 404, "previous_response_not_found",
         _ask(previous_response_id="resp_none")),
    Line("unknown_field", "POST", RESPONSES, 400, "unknown_parameter", _ask(no_such_field=1)),
    Line("bad_json", "POST", RESPONSES, 400, "invalid_json", b'{"input": '),
    Line("no_object", "POST", RESPONSES, 400, None, b"[1, 2]"),
    Line("wrong_type", "POST", RESPONSES, 400, None, _ask(temperature="warm")),
    Line("no_input", "POST", RESPONSES, 400, None, {"max_output_tokens": 1}),
    Line("too_long", "POST", RESPONSES, 400, "context_length_exceeded", _ask(max_output_tokens=1, input="{long}")),
    Line("bad_session", "POST", RESPONSES, 400, "invalid_ninfer_identity", _ask(ninfer_session="short")),
    Line("count_tokens", "POST", RESPONSES + "/input_tokens", 200, body={"input": "Say one word."}),
    Line("status", "GET", "/v1/ninfer/status", 200),
    Line("checkpoint_unknown_field", "POST", "/v1/ninfer/checkpoints", 400, "unknown_parameter",
         {"session_sha256": "0" * 64, "force": True}),
    Line("checkpoint_of_nobody", "POST", "/v1/ninfer/checkpoints", 409, "nothing_to_save",
         {"session_sha256": "0" * 64}, as_owner=False),
    Line("delete_unknown_response", "DELETE", RESPONSES + "/resp_none", 404, "response_not_found"),
)


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    threads = Threads()

    def check(run: ProbeRun) -> None:
        own = threads.named["own"] = begin(run, "protocol", TOKENS, section.base_output_tokens)
        for line in LINES:
            reply = _send(run, line, own.response_id or "", own.session)
            run.fact("protocol.status", int(reply.status == line.status), "equal", 1,
                     f"{line.name}: HTTP {reply.status}, required {line.status}")
            code = _code_of(reply)
            if line.status >= 400:
                right = code is not None and line.code in {None, code}
                run.fact("protocol.error_body", int(right), "equal", 1,
                         f"{line.name}: code {code}, required {line.code or 'any'}")
            run.fact("protocol.request_id", int("x-request-id" in {name.lower() for name in reply.headers}), "equal", 1,
                     f"{line.name}: header x-request-id")
        run.refresh()

    def accounting(run: ProbeRun) -> None:
        own = threads.get("own")
        with run.waiting():
            reply = run.client.create_response({"model": run.model, **_ask(previous_response_id=own.response_id)},
                                               own.session)
        usage, record = reply.usage, reply.ninfer
        adds = usage is not None and record is not None and (
            record.reused_tokens + record.computed_tokens == usage.input_tokens
            and usage.input_tokens_details.cached_tokens == record.reused_tokens)
        run.fact("protocol.tokens_add_up", int(adds), "equal", 1, "reused + computed = input, cached = reused")
        last = run.refresh().cache.last_selection
        run.fact("protocol.status_is_already_true",
                 None if last is None or record is None else int(last.frontier_tokens == record.frontier_tokens),
                 "equal", 1, "whether the status tells of a request when its reply arrives")

    return Act("conformance list", TOKENS * 4, check), Act("accounting of one request", TOKENS, accounting)


def _send(run: ProbeRun, line: Line, response_id: str, session: str) -> HttpReply:
    headers = {"X-NInfer-Session": session} if line.as_owner and line.name != "bad_session" else {}
    body = line.body
    content = body if body is None or isinstance(body, bytes) else _filled(run, line, body, response_id)
    with run.waiting():
        return run.client.raw(line.method, line.path.replace("{id}", response_id), content, headers, timeout_s=60)


def _filled(run: ProbeRun, line: Line, body: Mapping[str, Any], response_id: str) -> bytes:
    named = {**body, "model": run.model} if line.path.startswith(RESPONSES) else dict(body)
    if named.get("previous_response_id") == "{id}":
        named["previous_response_id"] = response_id
    if named.get("input") == "{long}":
        # Digits and blanks: at least one token for two characters in every tokenizer that splits digits.
        named["input"] = "7 " * run.status.runtime.max_context
    return json.dumps(named).encode()


def _code_of(reply: HttpReply) -> str | None:
    try:
        return str(json.loads(reply.body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


PROTOCOL = Part("protocol", "Does the engine answer as the HTTP contract says, errors included?", _steps)
