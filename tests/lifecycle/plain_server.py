"""A pretend plain completions server with a truthful prefix cache, in the dialect of either family."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from fault_model import tokenize


class PlainServer:
    """llama: reuse in `timings.cache_n`; vllm: in `usage.prompt_tokens_details`; silent: reported nowhere.

    keep: how many sequences its cache holds, oldest given up first; 0: no reuse at all.
    """

    def __init__(self, dialect: Literal["llama", "vllm", "silent"], keep: int = 1000) -> None:
        self.dialect, self.keep = dialect, keep
        self.sequences: list[list[int]] = []
        self.prompts: list[list[int]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Quiet."""

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    self._send(200, {"data": [{"id": "plain", "max_model_len": 100_000}]})
                else:
                    self._send(404, {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/tokenize":
                    self._send(200, {"tokens": tokenize(body["content"])})
                else:
                    events = server.complete(body)
                    payload = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
                    self._send(200, payload)

            def _send(self, status: int, body: dict[str, Any] | str) -> None:
                payload = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def complete(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of one streamed completion."""
        prompt = body["prompt"]
        self.prompts.append(prompt)
        cached = min(len(prompt) - 1, max((shared(prompt, known) for known in self.sequences), default=0))
        said = [f" w{len(self.prompts)}x{n}" for n in range(body["max_tokens"])]
        self.sequences = [*self.sequences, [*prompt, *tokenize("".join(said))]][-self.keep:] if self.keep else []
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": len(said),
                                 "total_tokens": len(prompt) + len(said)}
        last: dict[str, Any] = {"choices": [], "usage": usage}
        if self.dialect == "vllm":
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        elif self.dialect == "llama":
            last["timings"] = {"cache_n": cached, "prompt_n": len(prompt) - cached}
        return [*({"choices": [{"text": word}]} for word in said), last]

    def __enter__(self) -> Self:
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.http.shutdown()
        self.http.server_close()


def shared(one: list[int], other: list[int]) -> int:
    """Length of the common head."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
