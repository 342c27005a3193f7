"""Layer files: sorted versions of pages in immutable objects, made at once and read by single blocks.

    block | block | … | index (`layer_index.py`)

A block (`block.py`) holds about `block_bytes` before compression; a version larger than that has one of its own. The
versions of a page may stand in several blocks, and always in one layer. Equal versions and settings give equal bytes
wherever the same zlib compresses. Whatever is not as it was written is `Corrupt` when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from worm.errors import Invalid
from worm.pages.block import (
    DATA_BYTES_MAX,
    LSN_END,
    PAGE_BYTES_MAX,
    Block,
    Version,
    encode_block,
    record_size,
)
from worm.pages.filters import BITS_PER_KEY_MAX, KeyFilter
from worm.pages.layer_index import TAIL_BYTES, BlockRef, LayerCounts, LayerIndex, encode_index

__all__ = [
    "Block",
    "BlockRef",
    "BuiltLayer",
    "DATA_BYTES_MAX",
    "LayerIndex",
    "PAGE_BYTES_MAX",
    "TAIL_BYTES",
    "Version",
    "build_layers",
]


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """A layer to be stored. `index_length`: from `index_offset` to the end; `low`, `high`: first and last page; the
    LSNs are the least and the greatest of its versions, 0 where it has none; `raw_bytes`: of all pages' names and data;
    `digest`: SHA-256 of `body`, in hex; `filter`: the one inside its index."""

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
    versions: Iterable[Version], *, target_bytes: int, block_bytes: int, bits_per_key: int
) -> Iterator[BuiltLayer]:
    """Layers of about `target_bytes`, one at a time: only one is in memory. Of no versions, one empty layer.

    Versions come sorted by page and LSN, none twice, else `Invalid`. A new layer begins with the first page after the
    blocks of the last one, the unfinished one as it is before compression, have reached `target_bytes`.
    """
    if target_bytes < 1 or not 1 <= block_bytes <= DATA_BYTES_MAX or not 0 <= bits_per_key <= BITS_PER_KEY_MAX:
        raise Invalid(
            f"no layers of {target_bytes} bytes in blocks of {block_bytes} with {bits_per_key} bits per key",
            hint=f"blocks have up to {DATA_BYTES_MAX} bytes, filters up to {BITS_PER_KEY_MAX} bits per key",
        )
    return _layers(versions, target_bytes, block_bytes, bits_per_key)


def _layers(
    versions: Iterable[Version], target_bytes: int, block_bytes: int, bits_per_key: int
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
            raise Invalid(f"lsn {version.lsn} of the page {page!r} after lsn {lsn}: they go up, from 1 to 2^63-1")
        if version.data is not None and len(version.data) > DATA_BYTES_MAX:
            raise Invalid(f"the page {page!r} has {len(version.data)} bytes, more than {DATA_BYTES_MAX}")
        lsn = version.lsn
        building.add(name, lsn, version.data)
    yield building.finish(bits_per_key)


def _checked_name(page: str, before: str | None) -> bytes:
    """Its UTF-8, or `Invalid`."""
    if page <= (before or ""):
        raise Invalid(f"the page {page!r} after {before!r}: pages go up and have a name")
    try:
        name = page.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"the page {page!r} has a lone surrogate") from error
    if len(name) > PAGE_BYTES_MAX:
        raise Invalid(f"the page {page!r} has a name of {len(name)} bytes, more than {PAGE_BYTES_MAX}")
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
        size = record_size(name, data)
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
