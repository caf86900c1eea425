"""Small pools for the tests of memory: odd shapes on purpose, distinct bytes everywhere."""

import torch

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors, StateTensors
from ninfer_engine.memory.images import StateImages
from ninfer_engine.memory.pages import DevicePages

KV_HEADS, HEAD_DIM, FULL_LAYERS = 2, 6, 2


def make_pages(total: int, host_pages: int = 0, dtype: torch.dtype = torch.float32) -> DevicePages:
    """A CPU pool of `total` device pages and `host_pages` host pages, filled with random figures."""
    generator = torch.Generator().manual_seed(7)

    def tensor() -> torch.Tensor:
        return torch.randn(KV_HEADS, total * PAGE_TOKENS, HEAD_DIM, generator=generator).to(dtype)

    tensors = KVTensors([tensor() for _ in range(FULL_LAYERS)], [tensor() for _ in range(FULL_LAYERS)])
    page_bytes = 2 * FULL_LAYERS * KV_HEADS * PAGE_TOKENS * HEAD_DIM * dtype.itemsize
    return DevicePages(tensors, host_pages * page_bytes)


def make_images(slots: int, host_slots: int, layers: int = 2) -> StateImages:
    """A CPU pool of `slots` device slots, filled with random figures. The conv tail is bf16 and of odd length."""
    generator = torch.Generator().manual_seed(11)
    recurrent = [torch.randn(slots, 2, 4, 3, generator=generator) for _ in range(layers)]
    conv = [torch.randn(slots, 5, 3, generator=generator).to(torch.bfloat16) for _ in range(layers)]
    return StateImages(StateTensors(recurrent, conv), host_slots)
