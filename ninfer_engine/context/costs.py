"""What work costs, in nanoseconds: prefill (chunk, token and attention-pair terms) and transfers (batch and bytes).

`prefill_ns` prices work that is about to be done, whole chunks included. `potential` is the same cost with chunks
counted in fractions: a function of position whose differences are costs, Phi(b) - Phi(a) for computing [a, b). Future
loss is priced with it, which makes the price of removing a checkpoint exact and independent of where its heirs lie.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ninfer_engine.context.errors import PresetError
from ninfer_engine.context.solve import least_squares

TransferKind = Literal["d2h", "h2d", "d2d"]
_LEAST_SHARE = 8


@dataclass(frozen=True, slots=True)
class CostModel:
    """Cost terms in nanoseconds. A transfer costs `batch` once for each batch plus its bytes.

    chunk_ns: launching one prefill chunk of up to chunk_tokens. token_ns: one token. pair_ns: one attention pair of a
    query with a key at or before it. source: where the figures come from, reported in diagnostics.
    """

    chunk_ns: float
    token_ns: float
    pair_ns: float
    d2h_ns_per_byte: float
    h2d_ns_per_byte: float
    d2d_ns_per_byte: float
    batch_ns: float = 0.0
    chunk_tokens: int = 1024
    source: str = "preset"

    def prefill_ns(self, start: int, count: int) -> int:
        """Computing tokens [start, start + count) from a resumable frontier at `start`."""
        if count <= 0:
            return 0
        chunks = -(-count // self.chunk_tokens)
        return round(chunks * self.chunk_ns + count * self.token_ns + _pairs(start, count) * self.pair_ns)

    def potential(self, position: int) -> int:
        """Phi(position): cost of computing [0, position) with chunks counted in fractions."""
        per_token = self.chunk_ns / self.chunk_tokens + self.token_ns
        return round(position * per_token + _pairs(0, position) * self.pair_ns)

    def transfer_ns(self, kind: TransferKind, batches: int, size: int) -> int:
        """Moving `size` bytes in so many batches; nothing moved costs nothing."""
        if size <= 0:
            return 0
        rate = {"d2h": self.d2h_ns_per_byte, "h2d": self.h2d_ns_per_byte, "d2d": self.d2d_ns_per_byte}[kind]
        return round(batches * self.batch_ns + size * rate)


def _pairs(start: int, count: int) -> int:
    """Query-key pairs of causal attention for queries [start, start + count)."""
    return count * start + count * (count + 1) // 2


# 27B hybrid on an RTX 5090: shared field measurements, 30% high for cold prefills
HYBRID_27B_5090 = CostModel(
    chunk_ns=40.8e6,
    token_ns=0.236e6,
    pair_ns=7.1,
    d2h_ns_per_byte=0.021,
    h2d_ns_per_byte=0.019,
    d2d_ns_per_byte=0.0006,
    source="preset:hybrid-27b-5090",
)

# An order of magnitude for the tiny model on two CPU cores, for runs that skip calibration
TINY_CPU = CostModel(
    chunk_ns=3.0e6,
    token_ns=60e3,
    pair_ns=8.0,
    d2h_ns_per_byte=0.2,
    h2d_ns_per_byte=0.2,
    d2d_ns_per_byte=0.2,
    batch_ns=20e3,
    source="preset:tiny-cpu",
)

PRESETS = {"hybrid-27b-5090": HYBRID_27B_5090, "tiny-cpu": TINY_CPU}
_REQUIRED = ("chunk_ns", "token_ns", "pair_ns", "d2h_ns_per_byte", "h2d_ns_per_byte", "d2d_ns_per_byte")
_OPTIONAL = ("batch_ns", "chunk_tokens")


def from_preset(text: str) -> CostModel:
    """A cost model from the text of a presets file: a JSON object with the fields of CostModel. Raises PresetError."""
    try:
        values = json.loads(text)
    except ValueError as error:
        raise PresetError(f"the cost presets are not JSON: {error}") from error
    if not isinstance(values, dict):
        raise PresetError("the cost presets are not a JSON object")
    missing = [name for name in _REQUIRED if name not in values]
    unknown = sorted(set(values) - {*_REQUIRED, *_OPTIONAL, "source"})
    if missing or unknown:
        raise PresetError(f"the cost presets lack {missing} and do not know {unknown}")
    for name in (*_REQUIRED, *_OPTIONAL):
        value = values.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise PresetError(f"cost preset {name} is {value!r}, not a number of at least 0")
    chunk_tokens = int(values.get("chunk_tokens", 1024))
    if chunk_tokens < 1:
        raise PresetError(f"cost preset chunk_tokens is {chunk_tokens}, not at least 1")
    return CostModel(
        **{name: float(values[name]) for name in _REQUIRED},
        batch_ns=float(values.get("batch_ns", 0)),
        chunk_tokens=chunk_tokens,
        source=str(values.get("source", "preset:file")),
    )


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One measured prefill call of `count` tokens from `start`, `chunks` launches of the model."""

    start: int
    count: int
    chunks: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class TransferSample:
    """One measured transfer of `size` bytes in `batches` batches."""

    kind: TransferKind
    batches: int
    size: int
    elapsed_ns: int


def fit(prefill: Iterable[PrefillSample], transfers: Iterable[TransferSample], chunk_tokens: int = 1024) -> CostModel:
    """Calibrate by least squares on relative errors, no term below zero. A transfer direction without samples costs
    what the dearest measured one does. Raises PresetError when there are no prefill samples.

    On a busy machine a short sample may take as long as a long one. A token costs an eighth of its share of a chunk at
    least: if it cost nothing, going on from a deep frontier would promise no more than beginning at root.
    """
    rows, transfer_rows = list(prefill), list(transfers)
    if not rows:
        raise PresetError("calibration has no prefill samples")
    design = [
        [s.chunks / s.elapsed_ns, s.count / s.elapsed_ns, _pairs(s.start, s.count) / s.elapsed_ns]
        for s in rows
        if s.elapsed_ns > 0
    ]
    chunk_ns, token_ns, pair_ns = least_squares(design, [1.0] * len(design))
    token_ns = max(token_ns, chunk_ns / chunk_tokens / _LEAST_SHARE)
    rates: dict[str, float] = {}
    batch_ns = 0.0
    for kind in ("d2h", "h2d", "d2d"):
        mine = [s for s in transfer_rows if s.kind == kind and s.elapsed_ns > 0]
        if mine:
            batch, rate = least_squares(
                [[s.batches / s.elapsed_ns, s.size / s.elapsed_ns] for s in mine], [1.0] * len(mine)
            )
            rates[kind], batch_ns = rate, max(batch_ns, batch)
    dearest = max(rates.values(), default=0.0)
    return CostModel(
        chunk_ns=chunk_ns,
        token_ns=token_ns,
        pair_ns=pair_ns,
        d2h_ns_per_byte=rates.get("d2h", dearest),
        h2d_ns_per_byte=rates.get("h2d", dearest),
        d2d_ns_per_byte=rates.get("d2d", dearest),
        batch_ns=batch_ns,
        chunk_tokens=chunk_tokens,
        source="calibrated",
    )
