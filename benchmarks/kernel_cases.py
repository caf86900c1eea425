"""One case an operation and a way to use it: its inputs, the call, and what it must move and compute at least.

`gpu_check` runs them on a GPU or in the interpreter, `kernels_aot` compiles them from tensors without storage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernel_inputs import Maker, Shape, Sizes
from ninfer_engine.kernels.cache_layout import PAGE_TOKENS, KVTensors
from ninfer_engine.kernels.dispatch import Kernels
from ninfer_engine.kernels.gated_delta import CHUNK, DeltaInputs
from ninfer_engine.kernels.paged_attention import plan_decode, plan_prefill
from ninfer_engine.kernels.pages import PageTable, page_table, token_runs
from ninfer_engine.kernels.quantised import quantise
from ninfer_engine.kernels.rotary import inverse_frequencies, rotary_angles
from ninfer_engine.kernels.sampling import Filters

EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """inputs: what `call` takes after the kernels; it returns everything that must agree, changed state included.

    moved: bytes that must be read and written at least; flops: multiplications and additions of the products.
    """

    name: str
    operation: str
    inputs: tuple[Any, ...]
    call: Callable[..., tuple[Tensor, ...]]
    moved: int
    flops: int = 0


def cases(shape: Shape, sizes: Sizes, maker: Maker) -> Iterator[Case]:
    """Every operation at least once; inputs are made when a case is reached."""
    yield from _norm_cases(shape, sizes.chunk, maker)
    yield from _linear_cases(shape, sizes, maker)
    yield from _attention_cases(shape, sizes, maker)
    yield from _expert_cases(shape, sizes, maker)
    yield _sampling_case(shape, sizes.batch, maker)


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _norm_cases(shape: Shape, n: int, maker: Maker) -> Iterator[Case]:
    x, residual = maker.normal(n, shape.hidden), maker.normal(n, shape.hidden, salt=1)
    weight = maker.normal(shape.hidden, dtype=torch.float32, salt=2)
    yield Case("rms_norm", "rms_norm", (x, weight), lambda k, *a: (k.rms_norm(*a, EPS),), 2 * _bytes(x))
    yield Case(
        "rms_norm with residual", "add_rms_norm", (x, residual, weight),
        lambda k, *a: tuple(k.add_rms_norm(*a, EPS)), 4 * _bytes(x),
    )  # fmt: skip
    joined = shape.heads + shape.kv_heads
    projected = maker.normal(n, joined + shape.kv_heads, shape.head_dim, salt=3)
    heads = projected[:, :joined]  # rows are strided, as a slice of a fused projection is
    head_weight = maker.normal(joined, shape.head_dim, dtype=torch.float32, salt=4)
    yield Case(
        "rms_norm of heads", "rms_norm", (heads, head_weight), lambda k, *a: (k.rms_norm(*a, EPS),), 2 * _bytes(heads)
    )
    frequencies = inverse_frequencies(shape.rotary, 1e7).to(maker.device)
    angles = rotary_angles(torch.arange(n, device=maker.device), frequencies)
    yield Case(
        "rotary", "apply_rotary_", (heads.contiguous(), angles), lambda k, *a: (k.apply_rotary_(*a),),
        2 * _bytes(heads[..., : shape.rotary]),
    )  # fmt: skip
    values = maker.normal(n, shape.value_heads, shape.linear_dim, dtype=torch.float32, salt=5)
    gate = maker.normal(n, shape.value_heads, shape.linear_dim, salt=6)
    value_weight = maker.normal(shape.linear_dim, dtype=torch.float32, salt=7)
    yield Case(
        "gated rms_norm", "gated_rms_norm", (values, gate, value_weight),
        lambda k, *a: (k.gated_rms_norm(*a, EPS),), _bytes(values) + 2 * _bytes(gate),
    )  # fmt: skip
    gate_up = maker.normal(n, 2 * shape.width, salt=8)
    yield Case("swiglu", "swiglu", (gate_up,), lambda k, *a: (k.swiglu(*a),), _bytes(gate_up) * 3 // 2)


def delta_inputs(shape: Shape, n: int, maker: Maker) -> DeltaInputs:
    """Random inputs of one linear layer for n tokens."""
    return DeltaInputs(
        maker.normal(n, 2, shape.key_heads, shape.linear_dim, salt=1),
        maker.normal(n, shape.value_heads, shape.linear_dim, salt=2),
        maker.uniform(n, shape.value_heads, salt=3).pow(4).mul(-3),
        maker.uniform(n, shape.value_heads, salt=4),
    )


def _linear_cases(shape: Shape, sizes: Sizes, maker: Maker) -> Iterator[Case]:
    def with_state(operation: str) -> Callable[..., tuple[Tensor, ...]]:
        def call(kernels: Kernels, first: Any, second: Any, state: Tensor, src: Any, dst: Any) -> tuple[Tensor, ...]:
            arguments = (first, state) if second is None else (first, second, state)
            return getattr(kernels, operation)(*arguments, src, dst), state

        return call

    b, channels = sizes.batch, shape.conv_channels
    sources, targets = list(range(b)), list(range(b, 2 * b))
    x, weight = maker.normal(sizes.chunk, channels), maker.normal(channels, shape.conv_width, salt=1)
    tails = maker.normal(2 * b, channels, shape.conv_width - 1, dtype=torch.float32, salt=2)
    yield Case("conv prefill", "conv_prefill", (x, weight, tails, 0, 1), with_state("conv_prefill"), 2 * _bytes(x))
    yield Case(
        "conv decode", "conv_decode", (x[:b], weight, tails, sources, targets), with_state("conv_decode"),
        2 * _bytes(x[:b]) + _bytes(tails, weight),
    )  # fmt: skip
    inputs = delta_inputs(shape, sizes.chunk, maker)
    state = maker.normal(2 * b, shape.value_heads, shape.linear_dim, shape.linear_dim, dtype=torch.float32, salt=5)
    dim, out_bytes = shape.linear_dim, inputs.v.numel() * 4
    # A chunk: scores twice, the inverse applied twice, three products with the state or the updates, one update.
    per_head = 2 * CHUNK * CHUNK * dim * 5 + 2 * CHUNK * dim * dim * 3
    yield Case(
        "delta rule prefill", "gated_delta_prefill", (inputs, None, state, 0, 1), with_state("gated_delta_prefill"),
        _bytes(*inputs) + out_bytes, per_head * shape.value_heads * -(-sizes.chunk // CHUNK),
    )  # fmt: skip
    yield Case(
        "delta rule decode", "gated_delta_decode",
        (DeltaInputs(*(t[:b] for t in inputs)), None, state, sources, targets),
        with_state("gated_delta_decode"), _bytes(state),
    )  # fmt: skip


def as_int8(kv: KVTensors) -> KVTensors:
    """The same keys and values as int8 with scales."""
    parts = [quantise(pool) for pool in (*kv.keys, *kv.values)]
    keys, values = parts
    return KVTensors([keys.numbers], [values.numbers], [keys.scale], [values.scale])


def _attention_cases(shape: Shape, sizes: Sizes, maker: Maker) -> Iterator[Case]:
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    pages = -(-(sizes.context + sizes.chunk) // PAGE_TOKENS)
    pool = (kv_heads, sizes.batch * pages * PAGE_TOKENS, dim)
    kv = KVTensors([maker.normal(*pool, salt=1)], [maker.normal(*pool, salt=2)])
    order = torch.randperm(sizes.batch * pages, generator=torch.Generator().manual_seed(0)).tolist()
    q = maker.normal(sizes.chunk, heads, dim, salt=3)
    k, v = maker.normal(sizes.chunk, kv_heads, dim, salt=4), maker.normal(sizes.chunk, kv_heads, dim, salt=5)
    keys, values = (pool[0][:, : pages * PAGE_TOKENS].contiguous() for pool in (kv.keys, kv.values))
    small = KVTensors([keys], [values])
    runs = token_runs(page_table(sorted(range(pages), reverse=True)), sizes.context, sizes.chunk)
    for name, target in (("store keys and values", small), ("store keys and values as int8", as_int8(small))):
        moved = _bytes(k, v) + 2 * k.numel() * target.keys[0].element_size()
        yield Case(name, "store_kv", (target, k, v, runs), _stored, moved)
    for suffix, stored in (("", kv), (", int8", as_int8(kv))):
        yield from _prefill_cases(shape, sizes, suffix, (q, k, v), stored, page_table(order[:pages]))
        for b in (1, sizes.batch):
            lengths = [max(1, sizes.context - 17 * row) for row in range(b)]
            tables = [page_table(order[row * pages : (row + 1) * pages]) for row in range(b)]
            plans = [plan_decode(table, n) for table, n in zip(tables, lengths, strict=True)]
            yield Case(
                f"decode attention, {b} row{'s' if b > 1 else ''}{suffix}", "decode_attention", (q[:b], stored, plans),
                lambda kernels, q, kv, plans: (kernels.decode_attention(q, kv, 0, plans),),
                sum(lengths) * _token_bytes(stored), 4 * sum(lengths) * heads * dim,
            )  # fmt: skip


def _stored(kernels: Kernels, kv: KVTensors, k: Tensor, v: Tensor, runs: Any) -> tuple[Tensor, ...]:
    kernels.store_kv(kv, 0, k, v, runs)
    return tuple(kv.tensors)


def _token_bytes(kv: KVTensors) -> int:
    """Bytes of one token's keys, values and scales in one layer."""
    return _bytes(*kv.tensors) // kv.keys[0].shape[1]


def _prefill_cases(
    shape: Shape, sizes: Sizes, suffix: str, chunk: tuple[Tensor, Tensor, Tensor], kv: KVTensors, table: PageTable
) -> Iterator[Case]:
    q, k, v = chunk
    for name, start, m, n in (
        ("prefill attention at root", 0, sizes.chunk, sizes.chunk),
        ("prefill attention after history", sizes.context, sizes.chunk, sizes.chunk),
        ("prefill attention of a fork", sizes.context, sizes.suffix, sizes.suffix),
        ("prefill attention, last token wanted", sizes.context, 1, sizes.chunk),
    ):
        plan = plan_prefill(table, start, shape.kv_heads, m * shape.heads // shape.kv_heads, shape.head_dim)
        pairs = m * start + (m * (m + 1) // 2 if m == n else n)
        yield Case(
            name + suffix, "prefill_attention", (q[n - m : n], k[:n], v[:n], kv, plan),
            lambda kernels, q, k, v, kv, plan: (kernels.prefill_attention(q, k, v, kv, 0, plan),),
            2 * _bytes(q[:m]) + _bytes(k[:n], v[:n]) + start * _token_bytes(kv),
            4 * pairs * shape.heads * shape.head_dim,
        )  # fmt: skip


def _expert_cases(shape: Shape, sizes: Sizes, maker: Maker) -> Iterator[Case]:
    scores = maker.normal(sizes.chunk, shape.experts, dtype=torch.float32, salt=1)
    yield Case(
        "route to experts", "route", (scores,), lambda k, *a: tuple(k.route(*a, shape.top, True)),
        _bytes(scores) + sizes.chunk * shape.top * 12,
    )  # fmt: skip
    hidden, width = shape.expert_hidden, shape.expert_width
    gate_up = maker.normal(shape.experts, 2 * width, hidden, salt=2).div_(hidden**0.5)
    down = maker.normal(shape.experts, hidden, width, salt=3).div_(width**0.5)
    for name, n in (("experts prefill", sizes.chunk), ("experts decode", sizes.batch)):
        x = maker.normal(n, hidden, salt=4)
        shares, chosen = scores[:n].softmax(-1).topk(shape.top, -1)
        used = min(shape.experts, n * shape.top)
        yield Case(
            name, "expert_mlp", (x, chosen, shares.to(x.dtype), gate_up, down),
            lambda k, *a: (k.expert_mlp(*a, torch.mm),),
            2 * _bytes(x) + used * _bytes(gate_up[0], down[0]), 6 * n * shape.top * hidden * width,
        )  # fmt: skip


def _sampling_case(shape: Shape, b: int, maker: Maker) -> Case:
    logits = maker.normal(b, shape.vocab, dtype=torch.float32, salt=1).mul_(3)

    def row(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor([values[index % len(values)] for index in range(b)], dtype=dtype, device=maker.device)

    filters = Filters(
        row([0.7, 1.0, 0.0, 1.3], torch.float64), row([40, 0, 0, 5], torch.int64),
        row([0.9, 0.95, 1.0, 1.0], torch.float64), row([0.0, 0.05, 0.0, 0.0], torch.float64),
    )  # fmt: skip
    uniforms = maker.uniform(b, dtype=torch.float64, salt=2)
    return Case("sample", "sample", (logits, filters, uniforms), lambda k, *a: (k.sample(*a),), _bytes(logits))
