"""The index of a layer: where its blocks are, and what it holds. It ends the object:

    index, sealed as blocks are | where the index begins, 8 bytes | magic, 8

so that a reader who knows nothing of an object finds the index by its last 16 bytes. The index is canonical JSON.
Blocks fill the object from its first byte up to the index, so their lengths say where they are.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, cast

from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own
from worm.pages.block import LSN_END, damaged, seal, unseal
from worm.pages.filters import KeyFilter

MAGIC = b"WORMLAY1"
FORMAT = 1
_TAIL = struct.Struct("<Q8s")
TAIL_BYTES = _TAIL.size
_INDEX_SIZE = 1000
_REF_SIZE = 400  # of a block in memory, beside the name of its page


class BlockRef(NamedTuple):
    """A block: its first version, and its place in the object."""

    page: str
    lsn: int
    offset: int
    length: int


class LayerCounts(NamedTuple):
    """What a layer holds. `high`: its last page; LSNs are 0 where there is no version."""

    versions: int
    pages: int
    raw_bytes: int
    high: str
    low_lsn: int
    high_lsn: int


def encode_index(firsts: Sequence[tuple[str, int]], lengths: Sequence[int], of: LayerCounts, names: KeyFilter) -> bytes:
    """The end of a layer, from the first byte of its index on."""
    shape: JsonObject = {
        "format": FORMAT,
        "versions": of.versions,
        "pages": of.pages,
        "rawBytes": of.raw_bytes,
        "high": of.high,
        "lsns": [of.low_lsn, of.high_lsn],
        "blocks": {
            "pages": [page for page, _ in firsts],
            "lsns": [lsn for _, lsn in firsts],
            "bytes": list(lengths),
        },
        "filter": names.encode(),
    }
    return seal(dumps(shape)) + _TAIL.pack(sum(lengths), MAGIC)


class LayerIndex:
    """An index that was read. `counts`: of the whole layer; `size`: bytes that it takes in memory, about."""

    __slots__ = ("_firsts", "blocks", "counts", "filter", "size")

    def __init__(self, blocks: Sequence[BlockRef], counts: LayerCounts, names: KeyFilter) -> None:
        self.blocks = blocks
        self.counts = counts
        self.filter = names
        self._firsts = [(ref.page, ref.lsn) for ref in blocks]
        self.size = _INDEX_SIZE + names.size + sum(_REF_SIZE + 4 * len(ref.page) for ref in blocks)

    @classmethod
    def decode(cls, body: bytes, key: str) -> LayerIndex:
        """From the end of the object `key`, exactly from the first byte of the index on."""
        last = len(body) - TAIL_BYTES
        if last < 0 or not body.endswith(MAGIC):
            raise damaged(f"its last {len(body)} bytes are not the end of a layer, or cut", key)
        start, _ = _TAIL.unpack_from(body, last)
        what = f"the index at byte {start}"
        shape = loads_own(unseal(memoryview(body)[:last], key, what), key)
        if shape.get("format") != FORMAT:
            raise damaged(f"{what} has format {shape.get('format')!r}; this code reads format {FORMAT}", key)
        try:
            index = _index(shape, key)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(f"{what} is none: {error!r}", key) from error
        end = index.blocks[-1].offset + index.blocks[-1].length if index.blocks else 0
        if end != start:
            raise damaged(f"{what} begins at byte {end}, its blocks say", key)
        return index

    def blocks_for(self, page: str) -> Sequence[BlockRef]:
        """The blocks that may hold versions of the page."""
        if page > self.counts.high:
            return ()
        return self.blocks[self._before((page, 1)) : bisect_left(self._firsts, (page, LSN_END))]

    def block_for(self, page: str, lsn: int) -> BlockRef | None:
        """The block that holds the newest version of the page up to the LSN, if the layer has one."""
        at = bisect_right(self._firsts, (page, lsn)) - 1
        return self.blocks[at] if at >= 0 and page <= self.counts.high else None

    def blocks_between(self, start: str, end: str | None) -> Sequence[BlockRef]:
        """The blocks that may hold pages from `start` on up to before `end`, or up to the last."""
        if start > self.counts.high or (end is not None and end <= start):
            return ()
        stop = len(self._firsts) if end is None else bisect_left(self._firsts, (end, 0))
        return self.blocks[self._before((start, 1)) : stop]

    def _before(self, place: tuple[str, int]) -> int:
        """The block in which the first version at or after the place may stand: one that begins before has the rest."""
        at = bisect_left(self._firsts, place)
        is_first = at < len(self._firsts) and self._firsts[at] == place
        return at if is_first else max(0, at - 1)


def _index(shape: JsonObject, key: str) -> LayerIndex:
    blocks = cast(JsonObject, shape["blocks"])
    pages, lsns, lengths = (cast("list[JsonValue]", blocks[name]) for name in ("pages", "lsns", "bytes"))
    if not set(map(type, pages)) <= {str} or not set(map(type, (*lsns, *lengths))) <= {int}:
        raise TypeError("a block has no first version, or no length")
    sizes = cast("list[int]", lengths)
    offsets = accumulate(sizes[:-1], initial=0)
    made = map(BlockRef, cast("list[str]", pages), cast("list[int]", lsns), offsets, sizes)
    refs = list(made)
    if not len(pages) == len(lsns) == len(lengths) == len(refs) or min(sizes, default=1) < 1:
        raise ValueError("its blocks are not of one number")
    if any((one.page, one.lsn) >= (other.page, other.lsn) for one, other in pairwise(refs)):
        raise ValueError("its blocks are not in order")
    low_lsn, high_lsn = cast("list[JsonValue]", shape["lsns"])
    counts = LayerCounts(
        _whole(shape["versions"]),
        _whole(shape["pages"]),
        _whole(shape["rawBytes"]),
        str(shape["high"]),
        _whole(low_lsn),
        _whole(high_lsn),
    )
    return LayerIndex(refs, counts, KeyFilter.decode(str(shape["filter"]), key))


def _whole(value: JsonValue) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value
