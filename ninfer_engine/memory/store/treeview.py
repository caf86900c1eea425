"""One commit of the database, read by descriptor: LMDB's tree without LMDB's memory map.

py-lmdb touches every byte of a value through the map before it hands the value out, so a failing sector or a file cut
short would end the engine. Here each page comes through `DataFile`, bounds are checked, and what does not fit is
StoreCorruptError. A read transaction of LMDB stays open meanwhile: it keeps the commit's pages from being used again.

Source of the layout: LMDB 0.9 (MDB_DATA_VERSION 1), structures MDB_meta, MDB_db, MDB_page and MDB_node of mdb.c, on a
little-endian machine of 64 bits. Tables with several values a key are not read; there are none here.
"""

import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ninfer_engine.memory.store.datafile import DataFile, Extent
from ninfer_engine.memory.store.errors import StoreCorruptError

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<II16x48s48sQQ")  # magic, version, free pages, main tree, last page, transaction
_TABLE = struct.Struct("<IHHQQQQQ")
_HEADER = struct.Struct("<Q2xHHH")  # page number, flags, end of the node pointers, start of the nodes
_NODE = struct.Struct("<HHHH")
_HEADER_BYTES, _NODE_BYTES = 16, 8
_BRANCH, _LEAF, _PACKED_LEAF = 0x01, 0x02, 0x20
_BIG, _SUBTABLE, _SEVERAL = 0x01, 0x02, 0x04
_EMPTY = 2**64 - 1
_MOST_LEVELS = 32
_KEPT_PAGES = 256


class Table(NamedTuple):
    """A tree's root in one commit. depth: levels, 0 when empty; pages: of the tree and of large values."""

    depth: int
    entries: int
    root: int
    pages: int


@dataclass(frozen=True, slots=True)
class _Page:
    number: int
    leaf: bool
    data: bytes
    nodes: tuple[int, ...]
    keys: list[bytes]


class TreeView:
    """A commit as sorted tables of bytes; one thread at a time, `file` any number of them. Every method raises
    StoreCorruptError and OSError."""

    def __init__(self, file: DataFile, transaction: int) -> None:
        self.file = file
        self.page_bytes, self.last_page, self._free, main = _commit(file, transaction)
        self._pages: OrderedDict[int, _Page] = OrderedDict()
        self.tables: dict[str, Table] = {}
        for key, value in self._nodes(main):
            if isinstance(value, bytes) and len(value) == _TABLE.size:
                self.tables[key.decode(errors="replace")] = _table(value)

    def find(self, table: str, key: bytes) -> "bytes | Extent | None":
        """The value of `key`; where it lies when it has pages of its own; None when there is none."""
        page = self._leaf_of(self._table(table), key)
        if page is None:
            return None
        index = bisect_left(page.keys, key)
        return self._value(page, index) if index < len(page.keys) and page.keys[index] == key else None

    def find_many(self, table: str, keys: Sequence[bytes]) -> "dict[bytes, bytes | Extent]":
        """As `find`, for many keys; those that are not there are left out."""
        tree, found = self._table(table), {}
        page: _Page | None = None
        for key in sorted(keys):
            index = bisect_left(page.keys, key) if page is not None else 0
            if page is None or index == 0 or index == len(page.keys):
                page = self._leaf_of(tree, key)
                if page is None:
                    return {}
                index = bisect_left(page.keys, key)
            if index < len(page.keys) and page.keys[index] == key:
                found[key] = self._value(page, index)
        return found

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value's bytes, or None."""
        value = self.find(table, key)
        return self.file.bytes_at(*value) if isinstance(value, Extent) else value

    def keys(self, table: str, start: bytes = b"") -> Iterator[bytes]:
        """Keys from `start` on, in order."""
        tree = self._table(table)
        for page in self._leaves(tree.root, tree.depth, start):
            yield from page.keys[bisect_left(page.keys, start):]

    def touch(self) -> None:
        """Read every page that LMDB itself may go through when it writes, so that one that cannot be read is an error
        here and is in the system's cache there."""
        for table in (self._free, *self.tables.values()):
            level = [table.root] if table.depth else []
            for _ in range(1, table.depth):
                level = [child for number in level for child in self._children(self._page(number, leaf=False))]
            self.file.touch(sorted(number * self.page_bytes for number in level), self.page_bytes)
        for _, value in self._nodes(self._free):
            if isinstance(value, Extent):
                self.file.bytes_at(*value)

    def touch_values(self, values: Sequence[Extent]) -> None:
        """Read the first page of each of these, for the same reason."""
        self.file.touch([value.offset - _HEADER_BYTES for value in values], self.page_bytes)

    # --- inside -------------------------------------------------------------------------------------------------

    def _table(self, name: str) -> Table:
        return self.tables.get(name, Table(0, 0, _EMPTY, 0))

    def _nodes(self, tree: Table) -> "Iterator[tuple[bytes, bytes | Extent]]":
        for page in self._leaves(tree.root, tree.depth, b""):
            for index, key in enumerate(page.keys):
                yield key, self._value(page, index)

    def _leaves(self, root: int, depth: int, start: bytes) -> Iterator[_Page]:
        if depth == 0:
            return
        page = self._page(root, leaf=depth == 1)
        if page.leaf:
            yield page
            return
        first = max(0, bisect_right(page.keys, start) - 1)
        for index, child in enumerate(self._children(page)[first:]):
            yield from self._leaves(child, depth - 1, start if index == 0 else b"")

    def _leaf_of(self, tree: Table, key: bytes) -> _Page | None:
        if tree.depth == 0:
            return None
        page = self._page(tree.root, leaf=tree.depth == 1)
        for level in range(tree.depth - 1, 0, -1):
            index = max(0, bisect_right(page.keys, key) - 1)
            page = self._page(self._child(page, page.nodes[index]), leaf=level == 1)
        return page

    def _page(self, number: int, *, leaf: bool) -> _Page:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = self._parse(number)
            if len(self._pages) > _KEPT_PAGES:
                self._pages.popitem(last=False)
        if page.leaf != leaf:
            raise _damaged(number)
        return page

    def _parse(self, number: int) -> _Page:
        data = self.file.bytes_at(number * self.page_bytes, self.page_bytes)
        own, flags, lower, upper = _HEADER.unpack_from(data)
        kind = flags & (_BRANCH | _LEAF | _PACKED_LEAF)
        if own != number or kind not in (_BRANCH, _LEAF) or not _HEADER_BYTES < lower <= upper <= self.page_bytes:
            raise _damaged(number)
        nodes = struct.unpack_from(f"<{(lower - _HEADER_BYTES) // 2}H", data, _HEADER_BYTES)
        keys = []
        for at in nodes:
            if not upper <= at <= self.page_bytes - _NODE_BYTES:
                raise _damaged(number)
            size = _NODE.unpack_from(data, at)[3]
            keys.append(data[at + _NODE_BYTES:at + _NODE_BYTES + size])
        return _Page(number, kind == _LEAF, data, nodes, keys)

    def _children(self, page: _Page) -> list[int]:
        return [self._child(page, at) for at in page.nodes]

    @staticmethod
    def _child(page: _Page, at: int) -> int:
        low, high, top, _ = _NODE.unpack_from(page.data, at)
        return int(low | high << 16 | top << 32)

    def _value(self, page: _Page, index: int) -> bytes | Extent:
        at = page.nodes[index]
        low, high, flags, key_bytes = _NODE.unpack_from(page.data, at)
        size, start = low | high << 16, at + _NODE_BYTES + key_bytes
        stored = 8 if flags & _BIG else size
        if flags & _SEVERAL or start + stored > self.page_bytes:
            raise _damaged(page.number)
        if flags & _BIG:
            first = int.from_bytes(page.data[start:start + 8], "little")
            return Extent(first * self.page_bytes + _HEADER_BYTES, size)
        return page.data[start:start + size]


def _commit(file: DataFile, transaction: int) -> tuple[int, int, Table, Table]:
    """Page size, last page, list of free pages and main tree of a commit; the file tells of the last two commits.
    Raises CommitGoneError for an earlier one."""
    first = file.bytes_at(0, 512)
    page_bytes = int.from_bytes(first[40:44], "little")
    if page_bytes not in (4096, 8192, 16384, 32768, 65536):
        raise _damaged(0)
    for head in (first, file.bytes_at(page_bytes, 512)):
        magic, version, free, main, last, number = _META.unpack_from(head, _HEADER_BYTES)
        if (magic, version) != (_MAGIC, _VERSION):
            raise StoreCorruptError("the store's file is not of LMDB's first format")
        if number == transaction:
            return page_bytes, last, _table(free), _table(main)
    raise CommitGoneError


class CommitGoneError(Exception):
    """Two commits came between: begin again."""


def _damaged(number: int) -> StoreCorruptError:
    return StoreCorruptError(f"page {number} of the store's file is damaged: stop the engine and run "
                             "`ninfer-engine store repair`")


def _table(data: bytes) -> Table:
    _, _, depth, branches, leaves, large, entries, root = _TABLE.unpack(data)
    if depth > _MOST_LEVELS or (depth == 0) != (root == _EMPTY):
        raise StoreCorruptError("a table of the store's file is damaged")
    return Table(depth, entries, root, branches + leaves + large)
