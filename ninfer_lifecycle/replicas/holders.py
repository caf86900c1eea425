"""Who holds a response or a session: asked of the replicas, not remembered by anybody who could be restarted.

Each replica is asked with the client's own credentials, so a front holds no key, and whoever may not read a response
does not learn where it is. What was learnt is kept for speed only: forget it, and it is asked again.
"""

import asyncio
import contextlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import h11

from ninfer_lifecycle.releases.proxy import Pipe
from ninfer_lifecycle.replicas.affinity import Belongs

CONNECT_S = 2.0
_ASK_S = 5.0
_REMEMBERED = 100_000
_FRESH_S = 5.0
"""How long an answer is taken for true: a new task may get the address of an old one."""
_MOST_BYTES = 2**20

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Told:
    """A reply to a question of our own. status 0: there was none."""

    status: int
    body: bytes


async def connect(replica: str) -> Pipe:
    """A new connection to "address:port". Raises OSError and TimeoutError."""
    host, _, port = replica.rpartition(":")
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), CONNECT_S)
    return Pipe(reader, writer, h11.Connection(h11.CLIENT))


async def ask(replica: str, target: str, headers: Headers) -> Told:
    """One GET. A replica that cannot be reached, or says nothing in time, has told nothing."""
    pipe: Pipe | None = None
    try:
        async with asyncio.timeout(_ASK_S):
            pipe = await connect(replica)
            await pipe.send(h11.Request(method="GET", target=target, headers=[
                (b"Host", replica.encode()), (b"Connection", b"close"), *headers]))
            await pipe.send(h11.EndOfMessage())
            status, body = 0, b""
            while not isinstance(event := await pipe.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data) and len(body) < _MOST_BYTES:
                    body += bytes(event.data)
            return Told(status, body)
    except (OSError, TimeoutError, h11.ProtocolError, ValueError):
        return Told(0, b"")
    finally:
        if pipe is not None:
            with contextlib.suppress(Exception):
                pipe.close()


class Holders:
    """Where things are. `find` asks all replicas at once, and only what is not known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self.asked = 0

    async def find(self, wanted: Belongs, replicas: Sequence[str], headers: Headers) -> str | None:
        """The replica that holds the response, or failing that the one whose store has the session; None: nobody.

        headers: the client's credentials and session.
        """
        if wanted.response is not None:
            found = await self._holder(f"response {wanted.response}", replicas, f"/v1/responses/{wanted.response}",
                                       headers, _is_there)
            if found is not None:
                return found
        if wanted.session is not None:
            return await self._holder(f"session {wanted.session}", replicas,
                                      f"/v1/ninfer/checkpoints/{wanted.session}/status", headers, _is_available)
        return None

    def forget(self, wanted: Belongs) -> None:
        """What was known of it turned out to be so no more."""
        self._known.pop(f"response {wanted.response}", None)
        self._known.pop(f"session {wanted.session}", None)

    async def _holder(self, what: str, replicas: Sequence[str], target: str, headers: Headers,
                      holds: Callable[[Told], bool]) -> str | None:
        known, until = self._known.get(what, ("", 0.0))
        if known in replicas and self._clock() < until:
            return known
        self.asked += 1
        told = await asyncio.gather(*(ask(replica, target, headers) for replica in replicas))
        found = [replica for replica, one in zip(replicas, told, strict=True) if holds(one)]
        if not found:
            return None
        self._known[what] = found[0], self._clock() + _FRESH_S
        self._known.move_to_end(what)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return found[0]


def _is_there(told: Told) -> bool:
    return told.status == 200


def _is_available(told: Told) -> bool:
    if told.status != 200:
        return False
    try:
        return bool(json.loads(told.body).get("state") == "available")
    except (ValueError, AttributeError):
        return False
