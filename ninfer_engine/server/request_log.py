"""The request log (`--request-log-jsonl`): one JSON object a line, for dashboards and `ninfer simulate --from-log`.

Holds ids, counts and times; no prompt text and no keys. Lines are made and written by a thread of its own, so that
neither that work nor a slow disk delays a reply; `close` returns when every line is on disk.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from ninfer_engine.contract.diagnostics import LogEvent
from ninfer_engine.runtime.api import Finished, GenerationRequest
from ninfer_engine.server.json_reply import json_bytes

logger = logging.getLogger("ninfer.server")


class RequestLog:
    """Writes lines in the order of the calls. With path None every call does nothing."""

    def __init__(self, path: Path | None, server_instance_id: str, now_ms: Callable[[], int] | None = None) -> None:
        self._instance = server_instance_id
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._lines: queue.SimpleQueue[dict[str, Any] | threading.Event | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._torn = False  # the file may end in half a line
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab", buffering=0)
            self._writer = threading.Thread(target=self._write, args=(file,), name="request-log", daemon=True)
            self._writer.start()

    def server_start(self, **fields: Any) -> None:
        """The server is about to listen; `fields` say what it serves."""
        self._add(LogEvent.SERVER_START, None, fields)

    def request_start(self, request: GenerationRequest, route: str, stream: bool) -> None:
        """A request was valid and went to the engine."""
        self._add(LogEvent.REQUEST_START, request.request_id, {
            "route": route, "stream": stream, "store": request.store, "session": request.session,
            "response_id": request.response_id, "parent_response_id": request.parent_response_id,
            "prompt_tokens": len(request.tokens), "max_new_tokens": request.sampling.max_new_tokens,
        })

    def request_done(self, request_id: str, finished: Finished, prepare_s: float) -> None:
        """A request ran to its end. prepare_s: from its arrival until the engine had it, which the engine's queue time
        includes; here the two stand apart."""
        if self._writer is None:
            return
        timings = finished.log_timings
        apart = {"prepare": prepare_s, "queue": max(0.0, timings.queue - prepare_s)}
        self._add(LogEvent.REQUEST_DONE, request_id, {
            "result": finished.log_result,
            "timings_seconds": timings.model_copy(update=apart),
            "materialization": finished.log_materialization,
        })

    def request_rejected(self, request_id: str, route: str, code: str, status: int) -> None:
        """A request was refused, by the server or by the engine."""
        self._add(LogEvent.REQUEST_REJECTED, request_id, {"route": route, "code": code, "http_status": status})

    def request_error(self, request_id: str, route: str, code: str) -> None:
        """A request ended early: cancelled, its client gone, or a fault."""
        self._add(LogEvent.REQUEST_ERROR, request_id, {"route": route, "code": code})

    def flush(self) -> None:
        """Return when every line so far has been handed to the operating system."""
        if self._writer is not None and self._writer.is_alive():
            passed = threading.Event()
            self._lines.put(passed)
            passed.wait()

    def close(self) -> None:
        """Write what is left and stop. Later calls are lost."""
        if self._writer is not None:
            self._lines.put(None)
            self._writer.join()

    def _add(self, event: LogEvent, request_id: str | None, fields: dict[str, Any]) -> None:
        if self._writer is None:
            return
        line = {"event": event.value, "timestamp_unix_ms": self._now_ms(), "server_instance_id": self._instance}
        if request_id is not None:
            line["request_id"] = request_id
        self._lines.put(line | fields)

    def _write(self, file: FileIO) -> None:
        with file:
            while (line := self._lines.get()) is not None:
                if isinstance(line, threading.Event):
                    line.set()
                else:
                    self._write_line(file, line)

    def _write_line(self, file: FileIO, line: dict[str, Any]) -> None:
        rest = memoryview((b"\n" if self._torn else b"") + json_bytes(line) + b"\n")
        try:
            while rest:
                rest = rest[file.write(rest) :]
            self._torn = False
        except OSError as error:
            # A full disk costs lines, never the server; the next line that fits begins afresh.
            self._torn = True
            logger.error("request log line lost", extra={"errno": error.errno})
