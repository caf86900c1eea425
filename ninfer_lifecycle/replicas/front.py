"""The address of a deployment of several replicas: a proxy that sends each request to the replica it belongs to.

It keeps no state that matters: replicas are found by name (Docker's DNS gives every task's own address), and who holds
a response is asked of them. So any number of fronts may stand behind the routing mesh, which may give a request to any
of them. Runs in a container as one file (`bundle`): standard library and h11, which the file brings along.

    python3 front.pyz NAME PORT LISTEN      such as tasks.ninfer-tiny 8080 8080
"""

import asyncio
import json
import logging
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import h11

from ninfer_lifecycle.releases.proxy import Chosen, Door, NoEngineError, Pipe, TooLargeError
from ninfer_lifecycle.replicas.affinity import Belongs, belongs, preferred
from ninfer_lifecycle.replicas.holders import Holders, connect

log = logging.getLogger("ninfer.front")
HOLD_S = 10.0
MOST_BODY = 64 * 2**20
"""What an engine reads of a request at most."""
_LOOK_UP_S = 1.0
_RETRY_S = 0.2
_DRAIN_S = 30.0
_PASSED_ON = {b"authorization", b"x-api-key", b"x-ninfer-session"}

LookUp = Callable[[], Awaitable[Sequence[str]]]


class Front(Door):
    """Serves the replicas that `look_up` names, each "address:port". Replies say which one answered and why:
    x-ninfer-replica, and x-ninfer-pinned holder, session or any.
    """

    def __init__(self, look_up: LookUp, hold_s: float = HOLD_S) -> None:
        super().__init__()
        self._look_up, self._hold_s = look_up, hold_s
        self.holders = Holders()

    async def choose(self, client: Pipe, request: h11.Request) -> Chosen:
        """See Door. The body is read first: it may name a response to go on from."""
        body = await _body(client)
        headers = {name.lower(): value for name, value in request.headers}
        wanted = belongs(request.target, headers.get(b"x-ninfer-session"), body)
        passed = [(name, value) for name, value in headers.items() if name in _PASSED_ON]
        if wanted.session is not None and b"x-ninfer-session" not in headers:
            passed.append((b"x-ninfer-session", wanted.session.encode()))
        ends = time.monotonic() + self._hold_s
        while True:
            replicas = await self._look_up()
            if replicas:
                replica, why = await self._place(wanted, replicas, passed)
                try:
                    return Chosen(replica, await connect(replica), body,
                                  ((b"x-ninfer-replica", replica.encode()), (b"x-ninfer-pinned", why)))
                except (OSError, TimeoutError):
                    self.holders.forget(wanted)
            if time.monotonic() >= ends:
                raise NoEngineError("no replica can be reached" if replicas else "there is no replica")
            await asyncio.sleep(_RETRY_S)

    async def _place(self, wanted: Belongs, replicas: Sequence[str], headers: list[tuple[bytes, bytes]]
                     ) -> tuple[str, bytes]:
        holder = await self.holders.find(wanted, replicas, headers)
        if holder is not None:
            return holder, b"holder"
        if wanted.session is not None:
            return preferred(wanted.session, replicas), b"session"
        least = min(self.in_flight[name] for name in replicas)
        return random.choice([name for name in replicas if self.in_flight[name] == least]), b"any"  # noqa: S311


class ByName:
    """The tasks behind a DNS name, looked up at most once a second. An unknown name is no replica."""

    def __init__(self, name: str, port: int) -> None:
        self._name, self._port = name, port
        self._at, self._found, self._lock = float("-inf"), tuple[str, ...](), asyncio.Lock()

    async def __call__(self) -> Sequence[str]:
        async with self._lock:
            if time.monotonic() - self._at >= _LOOK_UP_S:
                try:
                    answers = await asyncio.get_running_loop().getaddrinfo(
                        self._name, self._port, family=socket.AF_INET, type=socket.SOCK_STREAM)
                    self._found = tuple(sorted({f"{one[4][0]}:{self._port}" for one in answers}))
                except OSError:
                    self._found = ()
                self._at = time.monotonic()
            return self._found


async def _body(client: Pipe) -> bytes:
    """All of it. Raises TooLargeError beyond what an engine would read."""
    parts, size = list[bytes](), 0
    while not isinstance(event := await client.next_event(), h11.EndOfMessage):
        if not isinstance(event, h11.Data):
            raise ConnectionAbortedError  # the client went
        parts.append(bytes(event.data))
        size += len(parts[-1])
        if size > MOST_BODY:
            raise TooLargeError(f"a request is at most {MOST_BODY >> 20} MiB")
    return b"".join(parts)


async def serve(front: Front, port: int) -> None:
    """Serve until SIGTERM; then finish what is on its way."""
    server = await asyncio.start_server(front.client, "0.0.0.0", port)  # noqa: S104 - in a network of its own
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    log.info("%s", json.dumps({"listens": port}))
    await ended.wait()
    server.close()
    ends = time.monotonic() + _DRAIN_S
    while sum(front.in_flight.values()) and time.monotonic() < ends:
        await asyncio.sleep(0.02)


async def _main(name: str, port: int, listen: int) -> None:
    await serve(Front(ByName(name, port)), listen)


def main(arguments: Sequence[str]) -> int:
    """The process."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    name, port, listen = arguments
    asyncio.run(_main(name, int(port), int(listen)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
