"""What every layer needs to know of the chunk or batch that is being computed."""

from dataclasses import dataclass

from ninfer_engine.kernels.cache_layout import KVTensors, StateTensors
from ninfer_engine.kernels.pages import HistoryPlan, PageTable, TokenRun
from ninfer_engine.kernels.rotary import Angles
from ninfer_engine.kernels.row_products import PRODUCTS, Product


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """One chunk of one sequence. start: position of its first token; runs: where its keys and values go."""

    kv: KVTensors
    states: StateTensors
    start: int
    table: PageTable
    runs: list[TokenRun]
    angles: Angles
    src_slot: int
    dst_slot: int


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token of each of b sequences. runs: one a sequence, in order; histories include the new token. mm: the matrix
    product for its rows, one of `kernels.row_products`."""

    mm: Product
    kv: KVTensors
    states: StateTensors
    runs: list[TokenRun]
    histories: list[HistoryPlan]
    angles: Angles
    src_slots: list[int]
    dst_slots: list[int]

    @property
    def kind(self) -> int:
        """Which of the products `mm` is."""
        return PRODUCTS.index(self.mm)
