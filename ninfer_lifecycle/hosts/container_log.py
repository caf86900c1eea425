"""A container's output on this machine: one reader, which writes every entry once and takes a broken stream up again.

The daemon keeps only the last of it, and nothing once the container is removed. The reader remembers the time of the
last entry that it wrote, and how many it wrote of that time; a stream that it opens anew begins with that second, and
what is known of it is left out.
"""

import threading
import time
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.container import is_running
from ninfer_lifecycle.hosts.daemon import ContainerGoneError, Daemon, LogStream

MAX_BYTES = 128 * 2**20
"""When the file is larger it becomes FILE.1, in place of an earlier one: a flood cannot fill the disk."""
_AGAIN_S = 0.1
_JOIN_S = 5.0


class LogKeeper:
    """Copies one container's output to `file`, over all its lives. mode: "wb" begins the file anew."""

    def __init__(self, daemon: Daemon, container: str, file: Path, mode: Literal["ab", "wb"] = "ab",
                 max_bytes: int = MAX_BYTES) -> None:
        self._daemon, self._container, self._path, self._mode = daemon, container, file, mode
        self._max_bytes = max_bytes
        self._last, self._count, self._complete = b"", 0, False
        self._stopping = threading.Event()
        self._stream: LogStream | None = None
        self._thread: threading.Thread | None = None
        self.failed: OSError | None = None

    def follow(self) -> None:
        """Read the life that has begun, in a thread that ends with it."""
        self._join(0.0)
        self._stopping.clear()
        self._complete = False
        self._thread = threading.Thread(target=self._run, name=f"ninfer-log-{self._container[:12]}", daemon=True)
        self._thread.start()

    def settle(self, within_s: float = _JOIN_S) -> None:
        """The container has ended: return when all that was followed is written, or after `within_s`."""
        self._join(within_s)

    def finish(self, within_s: float = _JOIN_S) -> None:
        """The container goes: write what is not written yet, also of a container that was not followed."""
        self._join(within_s)
        if not self._complete and self.failed is None:
            self.follow()
            self._join(within_s)

    def stop(self) -> None:
        """Stop reading a container that lives on."""
        self._join(0.0)

    def _join(self, within_s: float) -> None:
        if self._thread is None:
            return
        self._thread.join(within_s)
        self._stopping.set()
        ends = time.monotonic() + _JOIN_S
        while self._thread.is_alive() and time.monotonic() < ends:
            if (stream := self._stream) is not None:
                stream.close()
            self._thread.join(0.05)
        self._thread = None

    def _run(self) -> None:
        try:
            with _Sink(self._path, self._mode, self._max_bytes) as sink:
                self._mode = "ab"
                self._copy(sink)
        except OSError as error:
            self.failed = error  # a full disk here must not end a run: the daemon still holds the last lines

    def _copy(self, sink: "_Sink") -> None:
        while not self._stopping.is_set():
            over = False
            try:
                # Asked before reading: what is read after an end is all there is.
                over = not is_running(self._daemon.inspect(self._container))
                self._stream = self._daemon.logs(self._container, _unix_s(self._last), follow=not over)
                self._write(self._stream, sink)
            except ContainerGoneError:
                self._complete = True  # there is no more to read
                return
            except HostError:
                over = False  # the daemon is away: it may come back
            finally:
                if self._stream is not None:
                    self._stream.close()
            if over:
                self._complete = True
                return
            self._stopping.wait(_AGAIN_S)

    def _write(self, stream: LogStream, sink: "_Sink") -> None:
        """Write what is new. Entries up to the last one written are known, unless the daemon's clock went back."""
        last, known = self._last, self._count
        catching_up = bool(last)
        for entry in stream:
            at, _, text = entry.partition(b" ")
            if catching_up and (at < last or (at == last and known > 0)):
                known -= at == last
                continue
            catching_up = False
            sink.write(text)
            self._count = self._count + 1 if at == self._last else 1
            self._last = at
            if self._stopping.is_set():
                return


class _Sink:
    """The file; what is beyond its size goes to a fresh one and the old one stays beside it."""

    def __init__(self, path: Path, mode: str, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._file: BinaryIO = path.open(mode)  # type: ignore[assignment]  # "ab" or "wb"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._file.close()

    def write(self, text: bytes) -> None:
        """Write at once: another process may read along."""
        if self._file.tell() >= self._max_bytes:
            self._file.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("wb")
        self._file.write(text)
        self._file.flush()


def _unix_s(at: bytes) -> int | None:
    """Whole unix seconds of an entry's time; None for none, or one that cannot be read: everything is asked for."""
    try:
        return int(datetime.fromisoformat(at[:19].decode("ascii") + "+00:00").timestamp()) if at else None
    except ValueError:
        return None
