"""From page tables to runs of memory: where a sequence's tokens lie, in logical order.

History is cut into blocks of a fixed number of tokens counted from position zero. Arithmetic follows these logical
blocks only; where the pages lie decides whether a block is read in place or gathered first, never what is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer_engine.kernels.cache_layout import PAGE_TOKENS

PageTable = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenRun:
    """`count` tokens of a chunk, from `offset` in the chunk on, that lie at physical rows `row` onwards."""

    offset: int
    row: int
    count: int


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Neighbouring logical blocks of `tokens` tokens each, computed by one call.

    row: physical row of the first token when all of the run is contiguous; else None, and `pages` lists the pages of
    the single block that must be gathered.
    """

    blocks: int
    tokens: int
    row: int | None
    pages: PageTable

    def pieces(self, most: int) -> list["BlockRun"]:
        """The run in shorter runs of at most `most` tokens each, or of one block where a block is longer."""
        step = max(1, most // self.tokens)
        if self.row is None or self.blocks <= step:
            return [self]
        pages = self.tokens // PAGE_TOKENS
        return [
            BlockRun(min(step, self.blocks - first), self.tokens, self.row + first * self.tokens,
                     self.pages[first * pages : (first + step) * pages])
            for first in range(0, self.blocks, step)
        ]


@dataclass(frozen=True, slots=True)
class HistoryPlan:
    """Block runs in logical order, in groups whose partial results are merged together (a bound on scratch memory)."""

    groups: tuple[tuple[BlockRun, ...], ...]


def page_table(pages: Sequence[int] | PageTable) -> PageTable:
    """The page table as an array; entry i is the physical page of logical page i. An array is returned as it is."""
    return np.asarray(pages, dtype=np.int64)


def token_runs(table: PageTable, start: int, count: int) -> list[TokenRun]:
    """Physical runs of positions start .. start + count; neighbouring pages that are contiguous become one run."""
    runs: list[TokenRun] = []
    position, end = start, start + count
    while position < end:
        first = position // PAGE_TOKENS
        last = first
        while (last + 1) * PAGE_TOKENS < end and table[last + 1] == table[last] + 1:
            last += 1
        stop = min(end, (last + 1) * PAGE_TOKENS)
        row = int(table[first]) * PAGE_TOKENS + position % PAGE_TOKENS
        runs.append(TokenRun(position - start, row, stop - position))
        position = stop
    return runs


def plan_history(table: PageTable, tokens: int, block_tokens: int, group_blocks: int) -> HistoryPlan:
    """Cut positions 0 .. tokens into blocks, at most `group_blocks` a group; the last block may be short."""
    pages_per_block = block_tokens // PAGE_TOKENS
    full, tail = divmod(tokens, block_tokens)
    starts, whole = _contiguous_blocks(table, full, pages_per_block)
    groups: list[tuple[BlockRun, ...]] = []
    for first in range(0, full, group_blocks):
        last = min(first + group_blocks, full)
        groups.append(tuple(_runs_of_group(table, starts, whole, first, last, block_tokens)))
    if tail:
        groups.append((_tail_run(table, full * pages_per_block, tail),))
        if len(groups) > 1 and full % group_blocks:
            tail_group = groups.pop()
            groups[-1] = groups[-1] + tail_group
    return HistoryPlan(tuple(groups))


def _contiguous_blocks(table: PageTable, full: int, pages_per_block: int) -> tuple[PageTable, list[bool]]:
    """First page of each full block, and whether the block's pages follow one another."""
    if full == 0:
        return table[:0], []
    grid = table[: full * pages_per_block].reshape(full, pages_per_block)
    starts = grid[:, 0]
    whole = (grid == starts[:, None] + np.arange(pages_per_block)).all(axis=1)
    return starts, whole.tolist()


def _runs_of_group(
    table: PageTable, starts: PageTable, whole: list[bool], first: int, last: int, block_tokens: int
) -> list[BlockRun]:
    pages_per_block = block_tokens // PAGE_TOKENS
    runs: list[BlockRun] = []
    block = first
    while block < last:
        stop = block + 1
        while whole[block] and stop < last and whole[stop] and starts[stop] == starts[stop - 1] + pages_per_block:
            stop += 1
        pages = table[block * pages_per_block : stop * pages_per_block]
        row = int(starts[block]) * PAGE_TOKENS if whole[block] else None
        runs.append(BlockRun(stop - block, block_tokens, row, pages))
        block = stop
    return runs


def _tail_run(table: PageTable, first_page: int, tail: int) -> BlockRun:
    pages = table[first_page : first_page + -(-tail // PAGE_TOKENS)]
    first = int(pages[0])
    contiguous = pages.tolist() == list(range(first, first + len(pages)))
    return BlockRun(1, tail, first * PAGE_TOKENS if contiguous else None, pages)
