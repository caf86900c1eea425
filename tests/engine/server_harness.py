"""A real server on a real socket over the fake engine, with the tiny model's tokenizer and chat template."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fake_engine import INSTANCE, FakeEngine
from tokenizers import Tokenizer as HfTokenizer

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.model.chat import ChatTemplate
from ninfer_engine.model.tiny_tokenizer import END_OF_TURN, chat_template, tokenizer_document
from ninfer_engine.model.tokenizer import Tokenizer
from ninfer_engine.runtime.api import GenerationRequest
from ninfer_engine.server.app import App, create_app
from ninfer_engine.server.context import Limits
from ninfer_engine.server.model import ServedModel
from ninfer_engine.server.request_log import RequestLog
from ninfer_engine.server.serve import Patience, bind, make_server

SESSION, OTHER = "a" * 64, "b" * 64
MODEL = "tiny"


def tiny_model(template: str | None = None) -> ServedModel:
    """The tiny model's text side, with another chat template if one is given."""
    hf = HfTokenizer.from_str(json.dumps(tokenizer_document(512)))
    end = hf.token_to_id(END_OF_TURN)
    assert end is not None
    eos = frozenset({end})
    return ServedModel(MODEL, Tokenizer(hf, eos), ChatTemplate(template or chat_template(), frozenset({END_OF_TURN})),
                       created=1)


@dataclass
class Says:
    """A script: the reply is `text`, then the end of turn unless `cut`."""

    model: ServedModel
    text: str = "fine"
    cut: bool = False
    turns: list[GenerationRequest] = field(default_factory=list)

    def __call__(self, request: GenerationRequest) -> list[int]:
        tokens = self.model.tokenizer.encode(self.text)
        return tokens if self.cut else [*tokens, *self.model.eos_token_ids]


@dataclass
class Reached:
    """A running server as clients see it."""

    http: httpx.Client
    address: tuple[str, int]

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def create(self, text: Any = "hello", status: int = 200, /, **fields: Any) -> dict[str, Any]:
        """POST /v1/responses; the reply's JSON."""
        return self.post("/v1/responses", status, input=text, **fields)

    def post(
        self, path: str, status: int = 200, headers: dict[str, str] | None = None, /, **body: Any
    ) -> dict[str, Any]:
        """POST with the model filled in; the reply's JSON."""
        reply = self.http.post(path, json={"model": MODEL, **body}, headers=headers)
        assert reply.status_code == status, reply.text
        made: dict[str, Any] = reply.json()
        return made

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a whole stream, `[DONE]` left out."""
        with self.http.stream("POST", path, json={"model": MODEL, "stream": True, **body}) as reply:
            assert reply.status_code == 200, reply.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def socket(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(self.address, timeout=20)

    def raw(self, request: bytes) -> bytes:
        """Send bytes, read until the server closes or one reply is whole enough to judge."""
        with self.socket() as raw:
            raw.sendall(request)
            found = b""
            while b"\r\n\r\n" not in found or not found.rstrip().endswith(b"}"):
                piece = raw.recv(65536)
                if not piece:
                    break
                found += piece
            return found


@dataclass
class Served(Reached):
    """A running server over the fake engine, and everything behind it."""

    engine: FakeEngine
    says: Says
    model: ServedModel
    log: RequestLog
    log_path: Path

    def lines(self) -> list[dict[str, Any]]:
        """The request log so far."""
        self.log.flush()
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]


@contextlib.contextmanager
def serving(app: App, close: Callable[[], None]) -> Iterator[tuple[str, int]]:
    """An app on a socket of its own, in a thread that is stopped at the end; where it listens."""
    server = make_server(app, close, Patience(drain_s=5, died_s=600))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bind("127.0.0.1", 0)]}, daemon=True)
    thread.start()
    assert server.ready.wait(60)
    assert server.address is not None
    yield server.address
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@contextlib.contextmanager
def running(
    tmp_path: Path, api_key: str | None = None, limits: Limits | None = None, template: str | None = None, **flags: Any
) -> Iterator[Served]:
    """A server in a thread, stopped at the end."""
    model = tiny_model(template)
    says = Says(model)
    engine = FakeEngine(says)
    log_path = tmp_path / "requests.jsonl"
    log = RequestLog(log_path, INSTANCE)
    app = create_app(engine, model, EngineFlags(model=MODEL, **flags), api_key, log, limits=limits)
    with serving(app, engine.close) as address:
        with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=20) as client:
            yield Served(client, address, engine, says, model, log, log_path)
        engine.release.set()
    assert engine.closed == 1
