"""Prefills a prompt in a process of its own and prints, in bytes, how far its memory rose above what stood before:
`python prefill_peak.py MODEL TOKENS CHUNK`.

The caches are zeroed mappings that nothing has touched, so what the prompt's keys and values take is part of the rise.
"""

import json
import sys
from pathlib import Path

import torch

from ninfer_engine.kernels.cache_layout import NO_SLOT, PAGE_TOKENS, KVTensors, StateTensors
from ninfer_engine.memory.packing import zeros
from ninfer_engine.model.loader import load_model


def resident(field: str) -> int:
    """A size of /proc/self/status in bytes: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main(path: str, tokens: int, chunk: int) -> None:
    model = load_model(Path(path))
    shapes, cpu = model.decoder.cache_shapes, torch.device("cpu")
    count = -(-tokens // PAGE_TOKENS)

    def pool() -> list[torch.Tensor]:
        return [zeros((shapes.kv_heads, count * PAGE_TOKENS, shapes.head_dim), torch.float32, cpu)
                for _ in range(shapes.full_layers)]

    def state(shape: tuple[int, ...]) -> list[torch.Tensor]:
        return [zeros((1, *shape), torch.float32, cpu) for _ in range(shapes.linear_layers)]

    kv, states = KVTensors(pool(), pool()), StateTensors(state(shapes.recurrent_shape), state(shapes.conv_shape))
    prompt = torch.randint(0, 500, (tokens,), generator=torch.Generator().manual_seed(0))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts from here
    before = resident("VmRSS")
    for start in range(0, tokens, chunk):
        part = prompt[start : start + chunk]
        model.decoder.prefill(part, start, kv, range(count), states, 0 if start else NO_SLOT, 0, want_logits=False)
    sys.stdout.write(json.dumps({"rise": resident("VmHWM") - before, "kv": count * shapes.page_bytes("fp32")}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
