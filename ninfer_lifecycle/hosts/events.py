"""One listener to a daemon's events for all containers of a host: a death is known when it happens, not at a next poll.

An event is a hint that wakes whoever waits; what it means is read from the container. So a stream that breaks, or a
daemon that loses events, delays the news by one poll and falsifies nothing.
"""

import threading
import time
from collections.abc import Callable

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.daemon import Daemon, EventStream

_AGAIN_S = 0.25
_JOIN_S = 5.0


class EventWatch:
    """Listens from `begin` on, in a thread of its own, until `close`."""

    def __init__(self, daemon: Daemon, unix_s: Callable[[], float] = time.time) -> None:
        self._daemon, self._unix_s = daemon, unix_s
        self._news = threading.Condition()
        self._died: set[str] = set()
        self._out_of_memory: set[str] = set()
        self._closing = threading.Event()
        self._stream: EventStream | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Listen from now on; no effect when it does already."""
        if self._thread is None:
            since = int(self._unix_s()) - 1
            self._thread = threading.Thread(target=self._listen, args=(since,), name="ninfer-events", daemon=True)
            self._thread.start()

    def new_life(self, container: str) -> None:
        """Forget what was heard of a container: it is about to be started."""
        with self._news:
            self._died.discard(container)
            self._out_of_memory.discard(container)

    def has_died(self, container: str) -> bool:
        """Whether an end of this life was announced."""
        with self._news:
            return container in self._died

    def ran_out_of_memory(self, container: str) -> bool:
        """Whether the daemon announced that this life ran out of memory."""
        with self._news:
            return container in self._out_of_memory

    def wait_for_death(self, container: str, within_s: float) -> bool:
        """Return as soon as an end is announced, or after `within_s`; whether it was."""
        with self._news:
            return self._news.wait_for(lambda: container in self._died, max(0.0, within_s))

    def close(self) -> None:
        """Stop listening; the thread and its connection are gone on return."""
        self._closing.set()
        ends = time.monotonic() + _JOIN_S
        while self._thread is not None and self._thread.is_alive() and time.monotonic() < ends:
            if (stream := self._stream) is not None:
                stream.close()
            self._thread.join(0.1)

    def _listen(self, since_s: int) -> None:
        while not self._closing.is_set():
            try:
                self._stream = self._daemon.events(since_s)
                for event in self._stream:
                    since_s = max(since_s, event.time_ns // 1_000_000_000)
                    with self._news:
                        (self._out_of_memory if event.action == "oom" else self._died).add(event.container_id)
                        self._news.notify_all()
                    if self._closing.is_set():
                        break
            except HostError:
                pass  # a daemon that is away: whoever asks it for anything else is told
            if self._stream is not None:
                self._stream.close()
            self._closing.wait(_AGAIN_S)
