"""Runs the decoder for sequences: one prefill chunk of one, or one decode step of many. Knows no policy."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from contextlib import contextmanager

import torch
from torch import Tensor

from ninfer_engine.kernels.cache_layout import NO_SLOT, KVTensors, StateTensors
from ninfer_engine.kernels.row_products import choose_product
from ninfer_engine.model.decoder import Decoder
from ninfer_engine.runtime.sequence import Sequence

_WARM_UP_STEPS = 3  # TorchScript watches the first run, rewrites at the second, and is itself at the third


class Executor:
    """The decoder with the pools that it reads and writes. concurrency: most sequences of a decode step; with one there
    are no neighbours that a row would have to be kept from."""

    def __init__(self, decoder: Decoder, kv: KVTensors, states: StateTensors, concurrency: int = 1) -> None:
        self._mm = choose_product(kv.keys[0].device if kv.keys else torch.device("cpu"), concurrency)
        self._decode_threads = max(1, torch.get_num_threads() - 1)
        self._decoder = decoder
        self.draw = decoder.kernels.sample
        self._kv = kv
        self._states = states

    def prefill(self, sequence: Sequence, count: int, between: Callable[[], None] | None = None) -> None:
        """Compute the next `count` prompt tokens. The first kernel of a resumed sequence reads its anchor's slot.
        between: called between two layers; it may `decode` other sequences."""
        start = sequence.computed
        tokens = torch.tensor(sequence.tokens[start : start + count], dtype=torch.int64)
        self._decoder.prefill(tokens, start, self._kv, sequence.device_pages, self._states,
                              sequence.source_slot, sequence.slot, want_logits=False, between=between)
        self._advance(sequence, count)

    def decode(self, sequences: Many[Sequence]) -> Tensor:
        """One token for each sequence; returns logits [len(sequences), vocab] fp32, row for row."""
        with self._sparing_a_cpu():
            logits = self._decoder.decode(
                [sequence.tokens[sequence.computed] for sequence in sequences],
                [sequence.computed for sequence in sequences],
                self._kv,
                [sequence.device_pages for sequence in sequences],
                self._states,
                [sequence.source_slot for sequence in sequences],
                [sequence.slot for sequence in sequences],
                self._mm,
            )
        for sequence in sequences:
            self._advance(sequence, 1)
        return logits

    def warm_up(self, pages: Many[int], slots: Many[int]) -> None:
        """A few decode steps of one sequence and of several that nobody waits for: TorchScript settles during them.

        pages, slots: one a sequence, device indices that nothing else uses. Side effect: overwrites them.
        """
        with self._sparing_a_cpu():
            for rows in sorted({1, len(slots)}):
                for _ in range(_WARM_UP_STEPS):
                    self._decoder.decode([0] * rows, [0] * rows, self._kv, [[page] for page in pages[:rows]],
                                         self._states, [NO_SLOT] * rows, slots[:rows], self._mm)
            for _ in range(_WARM_UP_STEPS):
                self._decoder.decode([0], [0], self._kv, [pages[:1]], self._states, slots[:1], slots[:1], self._mm)

    @contextmanager
    def _sparing_a_cpu(self) -> Iterator[None]:
        """One thread fewer: the server sends tokens meanwhile, and an operator waits for its slowest thread."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._decode_threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    @staticmethod
    def _advance(sequence: Sequence, count: int) -> None:
        sequence.computed += count
        sequence.source_slot = sequence.slot
