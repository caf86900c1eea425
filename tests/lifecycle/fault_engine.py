"""A small server that speaks the engine's HTTP contract truthfully, except for the faults that it is told to have.

    with FaultEngine({Fault.WRONG_BRANCH}) as engine:
        httpx.get(engine.base_url + "/health")
        engine.restart()

`restart` ends one life and begins another on the same pretend disk, as a supervised process would.
"""

import json
import re
import secrets
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fault_model import Disk, Fault, Pools, PretendEngine, turn_tokens

RESPONSE_FIELDS = {"model", "input", "instructions", "previous_response_id", "store", "temperature", "top_p", "seed",
                   "max_output_tokens", "stream", "metadata", "cache_salt", "top_logprobs", "include",
                   "ninfer_session", "ninfer_request_id"}
MAX_CONTEXT = 131072
HEX64 = re.compile(r"^[0-9a-f]{64}$")
CROWDS = {Fault.LOSE_WHEN_AT_ONCE: 1, Fault.SLOW_WHEN_AT_ONCE: 1, Fault.REFUSE_EARLY: 8, Fault.OVERLOAD_500: 17}
REFUSALS = {Fault.REFUSE_EARLY: (429, "server_overloaded"), Fault.OVERLOAD_500: (500, "internal_error")}


class Refusal(Exception):  # noqa: N818 - it is an answer, not an error of this program
    """An error body."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # as many connections at once as a probe makes, and more


class FaultEngine:
    """The server and its lives. Thread-safe; every request runs alone, as on an engine with C = 1."""

    def __init__(self, faults: Iterable[Fault] = (), *, config_sha256: str = "c" * 64, catalog: int = 10_000,
                 restart_after: int = 9, model_sha256: str = "1" * 64, store_dir: Path | None = None,
                 api_key: str | None = None, pools: Pools | None = None) -> None:
        self.faults = frozenset(faults)
        self.api_key, self.pools = api_key, pools
        self.config_sha256, self.model_sha256 = config_sha256, model_sha256
        self.catalog, self.restart_after = catalog, restart_after
        self.disk = Disk(directory=store_dir)
        self.inside = self.replying = 0
        self.arrivals, self.arrived_at = threading.Condition(), 0.0
        self.slow_left = 8
        self.texts: set[str] = set()
        self.favourite: str | None = None
        self.served_at = 0.0
        self.life = self._new_life()
        self.released = threading.Event()
        self.server: ThreadingHTTPServer | None = None
        self.seen: list[dict[str, Any]] = []
        self.saves = 0

    def _new_life(self) -> PretendEngine:
        return PretendEngine(self.disk, self.faults, self.config_sha256, self.catalog, self.model_sha256, self.pools)

    @property
    def base_url(self) -> str:
        """Where it listens."""
        assert self.server is not None, "start it first"
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def start(self) -> None:
        """Listen on a free port."""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # headers and body in one packet: else each reply waits for a delayed acknowledgement

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Quiet."""

            def _answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                status, body = engine.handle(self.command, self.path, {k.lower(): v for k, v in self.headers.items()},
                                             raw)
                if status == 200 and self.path == "/v1/responses" and b'"stream"' in raw and json.loads(raw)["stream"]:
                    self._stream(body)
                    return
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(payload)))
                self.send_header("x-request-id", secrets.token_hex(8))
                self.end_headers()
                self.wfile.write(payload)

            def _stream(self, body: dict[str, Any]) -> None:
                """The reply piece by piece; the length is not known before its end, so the connection ends with it."""
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("connection", "close")
                self.end_headers()
                self.close_connection = True
                engine.replying += 1
                if Fault.STUTTER in engine.faults:
                    time.sleep(0.05)
                words = [word for item in body["output"] for word in item["content"][0]["text"].split()]
                for number, word in enumerate(words):
                    self._event({"type": "response.output_text.delta", "delta": word + " "})
                    if number == 1 and len(words) > 40 and Fault.STALL_IN_STREAM in engine.faults:
                        time.sleep(1.2)
                    if number == 1 and engine.replying > 1 and Fault.STUTTER in engine.faults:
                        time.sleep(1.3)
                engine.replying -= 1
                self.wfile.write(b": a comment\n\n")
                if Fault.CUT_STREAM not in engine.faults:
                    self._event({"type": f"response.{body['status']}", "response": body})

            def _event(self, event: dict[str, Any]) -> None:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()

            do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - names that the base class calls

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening; the disk stays."""
        self.released.set()
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            self.server = None

    def restart(self, kill: bool = False) -> None:
        """End this life and begin the next on the same disk. kill: without a chance to save."""
        if not kill:
            self.flush()
        if Fault.NEVER_RESTART not in self.faults:
            self.life = self._new_life()

    def flush(self) -> None:
        """What a graceful stop does: save every session."""
        if Fault.FORGET_ON_STOP not in self.faults:
            for session in {stored.session for stored in self.life.responses.values() if stored.session}:
                self.life.save(session)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    # -- routes ----------------------------------------------------------------------------------------------------

    def handle(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> tuple[int, dict[str, Any]]:
        """The answer to one request."""
        try:
            self._check_key(path, headers)
            body = json.loads(raw) if raw else {}
            if not isinstance(body, dict):
                raise Refusal(400, "invalid_request", "the body is no object")
            return 200, self._route(method, path.partition("?")[0], headers, body)
        except json.JSONDecodeError as error:
            return 400, _error("invalid_json", str(error))
        except Refusal as refusal:
            code = "" if Fault.NO_ERROR_CODES in self.faults else refusal.code
            return refusal.status, _error(code, refusal.message) if code else {"detail": refusal.message}

    def _check_key(self, path: str, headers: dict[str, str]) -> None:
        if self.api_key is None or path == "/health" or Fault.ANY_KEY in self.faults:
            return
        if headers.get("authorization") != f"Bearer {self.api_key}":
            raise Refusal(401, "invalid_api_key", "not this engine's key")

    def _route(  # noqa: PLR0911, PLR0912 - one answer a route
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> dict[str, Any]:
        session = headers.get("x-ninfer-session")
        match method, path.strip("/").split("/"):
            case "GET", ["health"]:
                return {"status": "ok"}
            case "GET", ["v1", "models"]:
                return {"object": "list", "data": [{"id": "pretend", "object": "model", "max_model_len": 131072}]}
            case "GET", ["v1", "models", name]:
                if name != "pretend":
                    raise Refusal(404, "model_not_found", name)
                return {"id": "pretend", "object": "model", "max_model_len": MAX_CONTEXT}
            case "POST", ["v1", "responses"]:
                return self._create(body, session)
            case "POST", ["v1", "responses", "input_tokens"]:
                return {"object": "response.input_tokens", "input_tokens": len(self._prompt(body, session))}
            case "GET", ["v1", "responses", response_id]:
                return self._stored(response_id, session).body
            case "GET", ["v1", "responses", response_id, "input_items"]:
                return {"object": "list", "data": [self._item(self._stored(response_id, session))]}
            case "DELETE", ["v1", "responses", response_id]:
                self._stored(response_id, session)
                self.life.forget(response_id)
                return {"id": response_id, "object": "response.deleted", "deleted": True}
            case "GET", ["v1", "ninfer", "status"]:
                return self.life.status()
            case "POST", ["v1", "ninfer", "checkpoints"]:
                return self._save(body)
            case "DELETE", ["v1", "ninfer", "checkpoints"]:
                there = body["session_sha256"] in self.disk.saved
                self.life.delete_session(body["session_sha256"])
                return {"session_sha256": body["session_sha256"], "deleted": there}
            case "GET", ["v1", "ninfer", "checkpoints", "status"]:
                return self._checkpoint_status(session or "")
            case "GET", ["v1", "ninfer", "checkpoints", sha, "status"]:
                return self._checkpoint_status(sha)
            case _:
                raise Refusal(404, "not_found", f"{method} {path}")

    def _stored(self, response_id: str, session: str | None) -> Any:
        stored = self.life.find(response_id, session)
        if stored is None:
            raise Refusal(404, "response_not_found", response_id)
        return stored

    def _item(self, stored: Any) -> dict[str, Any]:
        forgotten = Fault.FORGET_TEXT in self.faults and stored.session in self.life.restored_sessions
        text = "something else" if forgotten else stored.asked
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}

    def _parent(self, body: dict[str, Any], session: str | None) -> Any:
        parent_id = body.get("previous_response_id")
        if parent_id is None:
            return None
        parent = self.life.find(parent_id, session)
        if parent is None:
            if Fault.SLOW_FOREIGN_404 in self.faults and parent_id in self.life.responses:
                time.sleep(0.02)
            raise Refusal(404, "previous_response_not_found", parent_id)
        return parent

    def _prompt(self, body: dict[str, Any], session: str | None) -> list[int]:
        parent = self._parent(body, session or body.get("ninfer_session"))
        return [*(parent.tokens if parent else []), *turn_tokens(body["input"])]

    def _create(self, body: dict[str, Any], header_session: str | None) -> dict[str, Any]:
        session = _checked(body, header_session)
        self.seen.append(body)
        if Fault.RESTART_BY_ITSELF in self.faults and len(self.seen) == self.restart_after:
            self.life = self._new_life()
        if Fault.WEDGE in self.faults and "previous_response_id" in body:
            self.released.wait(60)
            raise Refusal(503, "engine_unavailable", "it was wedged")
        if Fault.SURROGATES in self.faults and "previous_response_id" in body:
            raise Refusal(500, "internal_error", "bad text \ud800 here")
        if Fault.ERROR_500 in self.faults and "previous_response_id" in body:
            raise Refusal(500, "internal_error", "a fault was asked for")
        if len(self._prompt(body, session)) + body.get("max_output_tokens", 0) > MAX_CONTEXT:
            raise Refusal(400, "context_length_exceeded", f"more than {MAX_CONTEXT} tokens")
        with self.arrivals:
            self.inside += 1
            self.arrived_at = time.monotonic()
            self.arrivals.notify_all()
            for fault in self.faults & CROWDS.keys():
                self._let_a_crowd_gather(CROWDS[fault])
        self._refuse_a_crowd()
        self._tell_by_its_time(body)
        crowded, before = self.inside > 1, self.life
        if Fault.SLOW_DOWN in self.faults:
            time.sleep(min(0.8, 0.02 * len(self.seen)))
        try:
            if Fault.ONE_CLIENT_FIRST in self.faults:
                self._wait_for_the_first(session)
            with self.life.lock:
                if crowded and Fault.SLOW_WHEN_AT_ONCE in self.faults and self.slow_left > 0:
                    self.slow_left -= 1
                    time.sleep(0.6)
                if crowded and Fault.LOSE_WHEN_AT_ONCE in self.faults:
                    before.checkpoints.clear()
                return self.life.respond(body, session, self._parent(body, session))
        finally:
            with self.arrivals:
                self.inside -= 1

    def _let_a_crowd_gather(self, crowd: int) -> None:
        """Requests that are sent at once meet, however slowly they arrive. The caller holds the lock."""
        while self.inside <= crowd:
            patience_s = 0.05 if self.inside == 1 else 0.5
            if not self.arrivals.wait(max(0.0, self.arrived_at + patience_s - time.monotonic())):
                return

    def _refuse_a_crowd(self) -> None:
        with self.arrivals:
            for fault, refusal in REFUSALS.items():
                if fault in self.faults and self.inside > CROWDS[fault]:
                    self.inside -= 1
                    raise Refusal(*refusal, "too many at once")

    def _tell_by_its_time(self, body: dict[str, Any]) -> None:
        """Salted texts share nothing by the record, and yet one that was seen before is answered sooner."""
        if Fault.TIMING_LEAK in self.faults and body.get("cache_salt"):
            if body["input"] not in self.texts:
                time.sleep(0.08)
            self.texts.add(body["input"])

    def _wait_for_the_first(self, session: str | None) -> None:
        """Whoever was served last goes on being served; others wait until it has been silent for a while."""
        while self.favourite not in (None, session) and time.monotonic() - self.served_at < 0.6:
            time.sleep(0.01)
        self.favourite, self.served_at = session, time.monotonic()

    def _save(self, body: dict[str, Any]) -> dict[str, Any]:
        if set(body) != {"session_sha256"}:
            raise Refusal(400, "unknown_parameter", "exactly session_sha256")
        session = body["session_sha256"]
        if Fault.SAVE_NEVER_AVAILABLE in self.faults:
            raise Refusal(404, "not_found", "no such route")
        with self.life.lock:
            saved = self.life.save(session)
        self.saves += 1
        if Fault.SAVE_ANSWERS_404 in self.faults:
            raise Refusal(404, "not_found", "no such route; it saves by itself")
        if saved is None:
            raise Refusal(409, "nothing_to_save", "nothing to save")
        return saved

    def _checkpoint_status(self, session: str) -> dict[str, Any]:
        records, _, generation = self.disk.saved.get(session, ([], [], 0))
        damaged = self.disk.damaged(session) and Fault.ACCEPT_DAMAGE not in self.faults
        hidden = damaged and Fault.HIDE_DAMAGE in self.faults
        return {"artifact_type": "ninfer_session_checkpoint_status", "session_sha256": session,
                "state": "missing" if hidden else "corrupt" if damaged else "available" if records else "missing",
                "generation": generation, "bytes": 1,
                "response_records": len(records), "frontier_tokens": max((len(r.tokens) for r in records), default=0)}


def _checked(body: dict[str, Any], header_session: str | None) -> str | None:
    """The session of a well-formed body. Raises Refusal."""
    unknown = set(body) - RESPONSE_FIELDS
    if unknown:
        raise Refusal(400, "unknown_parameter", f"unknown field {sorted(unknown)[0]}")
    session = body.get("ninfer_session") or header_session
    if (header_session and session != header_session) or (session and not HEX64.match(session)):
        raise Refusal(400, "invalid_ninfer_identity", "not one session of 64 hex digits")
    if not isinstance(body.get("input"), str) or not isinstance(body.get("temperature", 0), int | float):
        raise Refusal(400, "invalid_request", "input is a string, temperature a number")
    return session


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code, "param": None}}
