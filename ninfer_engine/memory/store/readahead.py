"""Reading a list of objects in order while the next ones are already being read and verified."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

_THREADS = min(8, max(2, os.cpu_count() or 2))  # one core verifies about 1.5 GB/s, disks read faster
_GROUP_BYTES = 1 << 20  # small objects go to a thread in groups, so that handing over costs little


def read_ahead(
    read: Callable[[bytes], bytearray], digests: Sequence[bytes], ahead_bytes: int
) -> Iterator[tuple[bytes, bytearray]]:
    """Yield (digest, read(digest)) in order. Reads are started up to about `ahead_bytes` before their turn, judged by
    the size of the last one that came; an error of `read` is raised at its group's turn."""
    rest = iter(digests)
    waiting: deque[tuple[list[bytes], Future[list[bytearray]]]] = deque()
    size, groups = 1, _THREADS

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="store-read") as pool:
        try:
            while True:
                while len(waiting) < groups and (group := list(islice(rest, size))):
                    waiting.append((group, pool.submit(_read_group, read, group)))
                if not waiting:
                    return
                group, future = waiting.popleft()
                yield from zip(group, done := future.result(), strict=True)
                size = max(1, _GROUP_BYTES // max(1, len(done[-1])))
                groups = max(_THREADS, min(64, ahead_bytes // max(1, size * len(done[-1]))))
                del done, future
        finally:
            for _, future in waiting:
                future.cancel()


def _read_group(read: Callable[[bytes], bytearray], group: list[bytes]) -> list[bytearray]:
    return [read(digest) for digest in group]
