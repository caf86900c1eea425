"""Asking over HTTP, one request or several at once: server-sent events with the time of each.

A plain reader, so that asking costs little beside answering.
"""

import http.client
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.peer_engines.engine import Said, Together

TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Event:
    """One event and the seconds from sending the request to its arrival."""

    at_s: float
    body: dict[str, Any]


def stream(base_url: str, path: str, body: dict[str, Any]) -> tuple[list[Event], float]:
    """Every event of one POST, read apart only when all have come; and the seconds until the last.

    Raises RuntimeError with the server's words when it refuses.
    """
    sent = json.dumps(body).encode()
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=TIMEOUT_S)
    started = time.perf_counter()
    connection.request("POST", path, sent, {"content-type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"POST {path}: {reply.status} {reply.read(500).decode(errors='replace')}")
    lines: list[tuple[float, bytes]] = []
    while line := reply.readline():
        if line.startswith(b"data:"):
            lines.append((time.perf_counter() - started, line[5:].strip()))
    total = time.perf_counter() - started
    connection.close()
    return [Event(at, json.loads(data)) for at, data in lines if data != b"[DONE]"], total


def post(base_url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reply to one POST. Raises RuntimeError with the server's words when it refuses."""
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=TIMEOUT_S)
    connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
    reply = connection.getresponse()
    said = reply.read()
    connection.close()
    if reply.status != 200:
        raise RuntimeError(f"POST {path}: {reply.status} {said[:500].decode(errors='replace')}")
    found: dict[str, Any] = json.loads(said)
    return found


def all_at_once(ask: Callable[[str], Said], texts: Sequence[str]) -> Together:
    """`ask` of every text, each in a thread of its own, all at the same time."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(texts)) as pool:
        replies = list(pool.map(ask, texts))
    return Together(time.perf_counter() - started, tuple(reply.reused for reply in replies))
