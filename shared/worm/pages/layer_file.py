"""Layer files: sorted versions of pages in immutable objects, written in one piece and read by single blocks.

    block | block | … | index, sealed | where the index begins, 8 bytes | magic, 8

- A *block* holds versions of pages, sorted by page and LSN, that are read and kept together: about `block_bytes` before
  compression; a larger version has its own block. The versions of a page may be in several blocks, but always in one
  layer. A block is organized in columns, so that one `unpack` reads all numbers:

      count, 4 bytes | marks, 8 each | lengths of data, 4 each | lengths of names, 2 each | names | data

  A *mark* is twice the LSN, plus one if the version is a deletion. A version becomes an object only when it is
  requested.
- The *index* is canonical JSON: the first version and the length of each block, numbers about the layer, and a filter
  of its pages. Blocks fill the object from its first byte up to the index, so their lengths give their positions. A
  reader that knows nothing about an object finds the index through its last 16 bytes.
- Blocks and index are *sealed*: a flag (1 byte: 0 stored, 1 deflated), the payload, and the CRC-32 of both (4). A
  deflated payload starts with its inflated size (4), and no more than that is ever inflated.

Numbers are little-endian, names UTF-8, whose order by bytes is that of code points. With the same zlib, equal versions
and settings give equal bytes. Any damage is `Corrupt` when it is read.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, cast

from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, dumps, loads_own
from worm.pages.filters import BITS_PER_KEY_MAX, KeyFilter

PAGE_BYTES_MAX = 1024
LSN_END = 2**63
DATA_BYTES_MAX = 64 * 1024 * 1024
"""The limit of one version; also the maximum target size of a block."""
HINT = "layers never change: something changed or truncated the object; restore an older version of it, or a copy"
_STORED, _DEFLATED = 0, 1
_LEVEL = 1
_GROWTH_MAX = 1032  # the most bytes that deflate can make of one byte
_NUMBER = struct.Struct("<I")
_SEAL_BYTES = 1 + _NUMBER.size
_RECORD_BYTES = 8 + 4 + 2
_VERSION_SIZE = 130  # a record in memory without its bytes: its numbers, in lists
_BLOCK_SIZE = 600
MAGIC = b"WORMLAY1"
FORMAT = 1
_TAIL = struct.Struct("<Q8s")
TAIL_BYTES = _TAIL.size
_INDEX_SIZE = 1000
_REF_SIZE = 400  # a block in memory, without the name of its page


@dataclass(frozen=True, slots=True)
class PageVersion:
    """One version of a page. `page`: 1 to 1024 bytes of UTF-8; `lsn`: 1 to 2^63-1; `data`: None if it is deleted."""

    page: str
    lsn: int
    data: bytes | None


# Writing


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """A layer to store. `index_length`: from `index_offset` to the end. `low`, `high`: first and last page. The LSNs
    are the lowest and the highest of its versions, 0 if it has none. `raw_bytes`: of all pages' names and data.
    `digest`: SHA-256 of `body`, in hex. `filter`: the one inside its index."""

    body: bytes
    index_offset: int
    index_length: int
    low: str
    high: str
    low_lsn: int
    high_lsn: int
    versions: int
    pages: int
    raw_bytes: int
    digest: str
    filter: KeyFilter


def build_layers(
    versions: Iterable[PageVersion], *, target_bytes: int, block_bytes: int, bits_per_key: int
) -> Iterator[BuiltLayer]:
    """Layers of about `target_bytes`, one at a time: only one is in memory. Without versions, one empty layer.

    Versions must be sorted by page and LSN, without duplicates; otherwise `Invalid`. A new layer begins with the first
    page after the blocks of the last one have reached `target_bytes` (the unfinished block counts uncompressed).
    """
    if target_bytes < 1 or not 1 <= block_bytes <= DATA_BYTES_MAX or not 0 <= bits_per_key <= BITS_PER_KEY_MAX:
        raise Invalid(
            f"cannot write layers of {target_bytes} bytes in blocks of {block_bytes} with {bits_per_key} bits per key",
            hint=f"blocks can have up to {DATA_BYTES_MAX} bytes, and filters up to {BITS_PER_KEY_MAX} bits per key",
        )
    return _layers(versions, target_bytes, block_bytes, bits_per_key)


def _layers(
    versions: Iterable[PageVersion], target_bytes: int, block_bytes: int, bits_per_key: int
) -> Iterator[BuiltLayer]:
    building = _Building(block_bytes)
    page: str | None = None
    name, lsn = b"", 0
    for version in versions:
        if version.page != page:
            name = _checked_name(version.page, page)
            if building.body_bytes >= target_bytes:
                yield building.finish(bits_per_key)
                building = _Building(block_bytes)
            page, lsn = version.page, 0
            building.begin_page(page)
        if not lsn < version.lsn < LSN_END:
            raise Invalid(
                f"lsn {version.lsn} of the page {page!r} follows lsn {lsn}: LSNs must go up, from 1 to 2^63-1"
            )
        if version.data is not None and len(version.data) > DATA_BYTES_MAX:
            raise Invalid(f"the page {page!r} has {len(version.data)} bytes; the limit is {DATA_BYTES_MAX}")
        lsn = version.lsn
        building.add(name, lsn, version.data)
    yield building.finish(bits_per_key)


def _checked_name(page: str, before: str | None) -> bytes:
    """The name as UTF-8, or `Invalid`."""
    if page <= (before or ""):
        raise Invalid(f"the page {page!r} follows {before!r}: pages must be in order and have a name")
    try:
        name = page.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"the name of the page {page!r} contains a lone surrogate") from error
    if len(name) > PAGE_BYTES_MAX:
        raise Invalid(f"the name of the page {page!r} has {len(name)} bytes; the limit is {PAGE_BYTES_MAX}")
    return name


class _Building:
    """The layer that is being made: its finished blocks, and the columns of the next one."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._pages: list[str] = []
        self._blocks: list[bytes] = []
        self._firsts: list[tuple[str, int]] = []
        self._versions = self._raw_bytes = self._high_lsn = self._done_bytes = self._open_bytes = 0
        self._low_lsn = LSN_END
        self._marks: list[int] = []
        self._names: list[bytes] = []
        self._data: list[bytes] = []

    @property
    def body_bytes(self) -> int:
        return self._done_bytes + self._open_bytes

    def begin_page(self, page: str) -> None:
        self._pages.append(page)

    def add(self, name: bytes, lsn: int, data: bytes | None) -> None:
        size = _RECORD_BYTES + len(name) + len(data or b"")
        if self._marks and self._open_bytes + size > self._block_bytes:
            self._close_block()
        if not self._marks:
            self._firsts.append((self._pages[-1], lsn))
        self._marks.append(2 * lsn + (data is None))
        self._names.append(name)
        self._data.append(data or b"")
        self._open_bytes += size
        self._versions += 1
        self._raw_bytes += len(name) + len(data or b"")
        self._low_lsn = min(self._low_lsn, lsn)
        self._high_lsn = max(self._high_lsn, lsn)

    def _close_block(self) -> None:
        self._blocks.append(encode_block(self._marks, self._names, self._data))
        self._done_bytes += len(self._blocks[-1])
        self._marks, self._names, self._data, self._open_bytes = [], [], [], 0

    def finish(self, bits_per_key: int) -> BuiltLayer:
        if self._marks:
            self._close_block()
        pages, names = self._pages, KeyFilter.build(self._pages, bits_per_key)
        low_lsn = self._low_lsn if self._versions else 0
        high = pages[-1] if pages else ""
        counts = LayerCounts(self._versions, len(pages), self._raw_bytes, high, low_lsn, self._high_lsn)
        index = encode_index(self._firsts, [len(block) for block in self._blocks], counts, names)
        body = b"".join((*self._blocks, index))
        return BuiltLayer(
            body=body,
            index_offset=self._done_bytes,
            index_length=len(index),
            low=pages[0] if pages else "",
            high=high,
            low_lsn=low_lsn,
            high_lsn=self._high_lsn,
            versions=self._versions,
            pages=len(pages),
            raw_bytes=self._raw_bytes,
            digest=hashlib.sha256(body).hexdigest(),
            filter=names,
        )


def encode_block(marks: Sequence[int], names: Sequence[bytes], data: Sequence[bytes]) -> bytes:
    """The block of these versions. Each has its mark, its page and its bytes (none if it is deleted)."""
    count = len(marks)
    lengths = (*map(len, data), *map(len, names))
    numbers = struct.pack(f"<I{count}Q{count}I{count}H", count, *marks, *lengths)
    return seal(b"".join((numbers, *names, *data)))


def encode_index(firsts: Sequence[tuple[str, int]], lengths: Sequence[int], of: LayerCounts, names: KeyFilter) -> bytes:
    """The end of a layer, starting with the first byte of its index."""
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


# Reading


class BlockRef(NamedTuple):
    """A block: its first version, and its place in the object."""

    page: str
    lsn: int
    offset: int
    length: int


class LayerCounts(NamedTuple):
    """What a layer holds. `high`: its last page; LSNs are 0 if there is no version."""

    versions: int
    pages: int
    raw_bytes: int
    high: str
    low_lsn: int
    high_lsn: int


class LayerIndex:
    """An index that was read. `counts`: of the whole layer; `size`: its approximate bytes in memory."""

    __slots__ = ("_firsts", "blocks", "counts", "filter", "size")

    def __init__(self, blocks: Sequence[BlockRef], counts: LayerCounts, names: KeyFilter) -> None:
        self.blocks = blocks
        self.counts = counts
        self.filter = names
        self._firsts = [(ref.page, ref.lsn) for ref in blocks]
        self.size = _INDEX_SIZE + names.size + sum(_REF_SIZE + 4 * len(ref.page) for ref in blocks)

    @classmethod
    def decode(cls, body: bytes, key: str) -> LayerIndex:
        """From the end of the object `key`, starting exactly with the first byte of the index."""
        last = len(body) - TAIL_BYTES
        if last < 0 or not body.endswith(MAGIC):
            raise damaged(f"its last {len(body)} bytes are not the end of a layer, or are truncated", key)
        start, _ = _TAIL.unpack_from(body, last)
        what = f"the index at byte {start}"
        shape = loads_own(unseal(memoryview(body)[:last], key, what), key)
        if shape.get("format") != FORMAT:
            raise damaged(f"{what} has format {shape.get('format')!r}; this version of worm reads format {FORMAT}", key)
        try:
            index = _index(shape, key)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(f"{what} is not an index: {error!r}", key) from error
        end = index.blocks[-1].offset + index.blocks[-1].length if index.blocks else 0
        if end != start:
            raise damaged(f"{what} should begin at byte {end}, according to its blocks", key)
        return index

    def block_for(self, page: str, lsn: int) -> BlockRef | None:
        """The block that holds the newest version of the page up to the LSN, if the layer has one."""
        at = bisect_right(self._firsts, (page, lsn)) - 1
        return self.blocks[at] if at >= 0 and page <= self.counts.high else None

    def blocks_between(self, start: str, end: str | None) -> Sequence[BlockRef]:
        """The blocks that may hold pages from `start` to before `end`, or to the last page."""
        if start > self.counts.high or (end is not None and end <= start):
            return ()
        stop = len(self._firsts) if end is None else bisect_left(self._firsts, (end, 0))
        return self.blocks[self._before((start, 1)) : stop]

    def _before(self, place: tuple[str, int]) -> int:
        """The block that may have the first version at or after the place: it may begin before the place."""
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
        raise ValueError("its lists of blocks differ in length")
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
        raise ValueError(f"{value!r} is not a number")
    return value


class Block:
    """A block that was read. `size`: its approximate bytes in memory."""

    __slots__ = ("_data_ends", "_key", "_marks", "_name_ends", "_offset", "_raw", "size")

    def __init__(self, raw: bytes, key: str, offset: int) -> None:
        self._raw, self._key, self._offset = raw, key, offset
        try:
            (count,) = _NUMBER.unpack_from(raw)
            start = _NUMBER.size + count * _RECORD_BYTES
            if not count or start > len(raw):
                raise ValueError(f"{count} versions in {len(raw)} bytes")
            numbers = struct.unpack_from(f"<{count}Q{count}I{count}H", raw, _NUMBER.size)
        except (ValueError, struct.error) as error:
            raise damaged(f"{_named(offset)} is not a block: {error}", key) from error
        self._marks: tuple[int, ...] = numbers[:count]
        self._name_ends = list(accumulate(numbers[2 * count :], initial=start))
        self._data_ends = list(accumulate(numbers[count : 2 * count], initial=self._name_ends[-1]))
        if self._data_ends[-1] != len(raw):
            what = f"it has {len(raw)} bytes instead of {self._data_ends[-1]}"
            raise damaged(f"{_named(offset)} is not a block: {what}", key)
        self.size = _BLOCK_SIZE + len(raw) + _VERSION_SIZE * count

    @classmethod
    def decode(cls, body: bytes, key: str, offset: int) -> Block:
        """From its bytes, exactly, which begin at `offset` of the object `key`."""
        return cls(unseal(body, key, _named(offset)), key, offset)

    def find(self, page: str, lsn: int) -> PageVersion | None:
        """The newest version of the page up to the LSN, if it is here."""
        wanted = page.encode("utf-8", "surrogatepass")
        at = bisect_right(range(len(self._marks)), (wanted, 2 * lsn + 1), key=self._place) - 1
        return self._version(at, page) if at >= 0 and self._name(at) == wanted else None

    def versions(self) -> Sequence[PageVersion]:
        """All, by page and LSN."""
        return [self._version(at, self._text(at)) for at in range(len(self._marks))]

    def _place(self, at: int) -> tuple[bytes, int]:
        """The sort key of a version. It makes no calls, because `find` needs it a dozen times."""
        return self._raw[self._name_ends[at] : self._name_ends[at + 1]], self._marks[at]

    def _name(self, at: int) -> bytes:
        return self._raw[self._name_ends[at] : self._name_ends[at + 1]]

    def _text(self, at: int) -> str:
        try:
            return self._name(at).decode()
        except UnicodeDecodeError as error:
            raise damaged(f"{_named(self._offset)} has a name that is not UTF-8: {error}", self._key) from error

    def _version(self, at: int, page: str) -> PageVersion:
        mark = self._marks[at]
        data = None if mark & 1 else self._raw[self._data_ends[at] : self._data_ends[at + 1]]
        return PageVersion(page, mark >> 1, data)


def _named(offset: int) -> str:
    return f"the block at byte {offset}"


# Seals


def seal(raw: bytes) -> bytes:
    """The payload with flag and CRC, deflated if that makes it smaller."""
    deflated = zlib.compress(raw, _LEVEL)
    if _NUMBER.size + len(deflated) < len(raw):
        body = b"".join((bytes((_DEFLATED,)), _NUMBER.pack(len(raw)), deflated))
    else:
        body = bytes((_STORED,)) + raw
    return body + _NUMBER.pack(binascii.crc32(body))


def unseal(body: bytes | memoryview, key: str, what: str) -> bytes:
    """The payload, after every byte was checked. `what` and its place are for errors."""
    view = memoryview(body)
    cut = len(view) - _NUMBER.size
    if cut < 1:
        raise damaged(f"{what} is truncated: it has {len(view)} bytes", key)
    found, due = binascii.crc32(view[:cut]), _NUMBER.unpack_from(view, cut)[0]
    if found != due:
        raise damaged(f"{what} is damaged: it has CRC {found:08x} instead of {due:08x}", key)
    if view[0] == _STORED:
        return bytes(view[1:cut])
    if view[0] != _DEFLATED or cut < _SEAL_BYTES:
        raise damaged(f"{what} has the unknown flag {view[0]}", key)
    size = _NUMBER.unpack_from(view, 1)[0]
    if size > (cut - _SEAL_BYTES) * _GROWTH_MAX:
        raise damaged(f"{what} says that it has {size} bytes, which is not possible", key)
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(view[_SEAL_BYTES:cut], size + 1)
    except zlib.error as error:
        raise damaged(f"{what} cannot be decompressed: {error}", key) from error
    if len(raw) != size or not inflater.eof or inflater.unused_data:
        raise damaged(f"{what} does not have the {size} bytes that it should have", key)
    return raw


def damaged(what: str, key: str) -> Corrupt:
    """The error for a damaged layer."""
    return Corrupt(what, key=key, hint=HINT)
