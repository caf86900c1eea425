"""Running the app on a real socket: bound before it is announced, stopped gracefully."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn

from ninfer_engine.server.app import App
from ninfer_engine.server.context import Context
from ninfer_engine.server.protocol import JsonErrorsProtocol
from ninfer_engine.server.runs import EndedBy

logger = logging.getLogger("ninfer.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EngineDiedError(Exception):
    """The engine stopped serving for good; the process must end so that whoever watches it can start another. wedged:
    its thread lives, but hangs in a step."""

    def __init__(self, message: str, *, wedged: bool) -> None:
        super().__init__(message)
        self.wedged = wedged


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stop may take, and a silent engine. drain_s: what running requests get to finish in. died_s: an engine
    that is not healthy for so long is dead."""

    drain_s: float = 30.0
    died_s: float = 5.0


class Server(uvicorn.Server):
    """uvicorn that announces its address, drains runs within a limit, then closes the engine.

    The order of a stop: no new connections; running requests may finish for `drain_s`; then they are cancelled; then
    `close` runs in a thread (it saves live sessions), however long that takes; then the request log is flushed. When
    the engine has died, nothing can finish and nothing is saved: `engine_died` is set and `close` is not called.
    """

    def __init__(self, config: uvicorn.Config, context: Context, patience: Patience, close: Callable[[], None]) -> None:
        super().__init__(config)
        self._context = context
        self._patience = patience
        self._close = close
        self._unhealthy_since: float | None = None
        self.engine_died = False
        self.engine_wedged = False
        self.address: tuple[str, int] | None = None
        self.ready = threading.Event()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to stop."""
        return await super().on_tick(counter) or self._engine_is_dead()

    def _engine_is_dead(self) -> bool:
        if self._context.engine.healthy():
            self._unhealthy_since = None
            return False
        now = time.monotonic()
        self._unhealthy_since = self._unhealthy_since or now
        self.engine_died = now - self._unhealthy_since > self._patience.died_s
        if self.engine_died:
            self.engine_wedged = self._context.engine.wedged()
            logger.critical("the engine is wedged; the server ends" if self.engine_wedged
                            else "the engine is dead; the server ends")
        return self.engine_died

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where in one JSON line on standard output."""
        await super().startup(sockets)
        assert sockets, "serve binds the socket"  # noqa: S101
        host, port = sockets[0].getsockname()[:2]
        self.address = (host, port)
        shown = f"[{host}]" if ":" in host else host
        line = {"event": "listening", "host": host, "port": port, "url": f"http://{shown}:{port}"}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as the class says."""
        drain = asyncio.create_task(self._cancel_stragglers())
        await super().shutdown(sockets)
        drain.cancel()
        self._context.runs.cancel_all(EndedBy.SHUTDOWN)
        try:
            if not self.engine_died:
                await asyncio.to_thread(self._close)
        finally:
            await asyncio.to_thread(self._context.log.close)

    async def _cancel_stragglers(self) -> None:
        await asyncio.sleep(0 if self.engine_died else self._patience.drain_s)
        self._context.runs.cancel_all(EndedBy.SHUTDOWN)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGTERM and SIGINT, and return normally afterwards: a graceful stop is not a death by signal."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free one. Raises OSError when the address cannot be had.

    Its connections send at once (TCP_NODELAY, which they inherit): head and body of a reply are two writes, and the
    second would else wait 40 ms for the client's delayed acknowledgement.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=1024)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def make_server(app: App, close: Callable[[], None], patience: Patience = Patience()) -> Server:
    """A server that is not running yet; `server.run(sockets=[bind(...)])` runs it."""
    config = uvicorn.Config(
        app,
        http=JsonErrorsProtocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here looks at the client's address
        timeout_graceful_shutdown=int(patience.drain_s) + 10,
    )
    return Server(config, app.context, patience, close)


def serve(
    app: App,
    host: str,
    port: int,
    close: Callable[[], None] = lambda: None,
    patience: Patience = Patience(),
) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully. close: saves live sessions and stops the engine; called
    once, when no request runs any more. Raises OSError when the address cannot be had, EngineDiedError."""
    server = make_server(app, close, patience)
    server.run(sockets=[bind(host, port)])
    if server.engine_wedged:
        raise EngineDiedError("the engine hung in a step: start the server again, and report what it ran", wedged=True)
    if server.engine_died:
        raise EngineDiedError("the engine died: see the log above for its fault, and start the server again",
                              wedged=False)
