"""Copying what was read of a session to its pages and images."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ninfer_engine.memory.images import ImageId
from ninfer_engine.memory.pages import PageId
from ninfer_engine.runtime.driver import CacheDriver


class Filling:
    """Copies verified rows to their pages and images, from several threads; tells how far it is."""

    def __init__(self, driver: CacheDriver, pages: Mapping[bytes, PageId], images: Mapping[bytes, ImageId],
                 tell: Callable[[int, int], None]) -> None:
        self._driver = driver
        self._pages = pages
        self._images = images
        self._tell = tell
        self._lock = threading.Lock()
        self._total = len(pages) * driver.pages.page_bytes + len(images) * driver.images.image_bytes
        self.started = time.perf_counter_ns()
        self.done = 0
        tell(0, self._total)

    def place(self, names: Sequence[bytes], rows: NDArray[np.uint8]) -> None:
        """Take what is wanted of these rows."""
        tensor = torch.from_numpy(rows)
        coming = [index for index, name in enumerate(names) if name in self._pages]
        if coming:
            some = tensor if len(coming) == len(names) else tensor[coming]
            self._driver.pages.import_rows([self._pages[names[index]] for index in coming], some)
        pictures = [index for index, name in enumerate(names) if name in self._images]
        for index in pictures:
            self._driver.images.import_row(self._images[names[index]], tensor[index])
        with self._lock:
            self.done += (len(coming) + len(pictures)) * rows.shape[1]
            self._tell(self.done, self._total)
