"""The bytes of a block: versions of pages, sorted by page and LSN, that are read and kept together.

A *sealed* piece of a layer is a flag (1 byte: 0 stored, 1 deflated), its payload, and the CRC-32 of both (4). A
deflated payload says first how large it is when inflated (4), and no more is ever inflated. Inside, a block is columns,
so that one `unpack` reads all numbers:

    count, 4 bytes | marks, 8 each | lengths of data, 4 each | lengths of names, 2 each | names | data

A *mark* is twice the LSN, and one more where the version is a deletion. Numbers are little-endian, names UTF-8, whose
order by bytes is that of code points. Nothing is made of a version until it is asked for.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from worm.errors import Corrupt

PAGE_BYTES_MAX = 1024
LSN_END = 2**63
DATA_BYTES_MAX = 64 * 1024 * 1024
"""Of one version; also the most that a block is asked to hold."""
HINT = "layers are written once: the object was changed or cut in the store; an older version of it, or a copy, helps"
_STORED, _DEFLATED = 0, 1
_LEVEL = 1
_GROWTH_MAX = 1032  # what deflate can make of a byte
_NUMBER = struct.Struct("<I")
_SEAL_BYTES = 1 + _NUMBER.size
_RECORD_BYTES = 8 + 4 + 2
_VERSION_SIZE = 130  # of a record in memory, beside its bytes: its numbers, in lists
_BLOCK_SIZE = 600


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a page. `page`: 1 to 1024 bytes of UTF-8; `lsn`: 1 to 2^63-1; `data`: None where it is deleted."""

    page: str
    lsn: int
    data: bytes | None


def record_size(name: bytes, data: bytes | None) -> int:
    """What a version adds to a block before it is compressed."""
    return _RECORD_BYTES + len(name) + len(data or b"")


def encode_block(marks: Sequence[int], names: Sequence[bytes], data: Sequence[bytes]) -> bytes:
    """The block of these versions: of each its mark, its page and its bytes (none where it is deleted)."""
    count = len(marks)
    lengths = (*map(len, data), *map(len, names))
    numbers = struct.pack(f"<I{count}Q{count}I{count}H", count, *marks, *lengths)
    return seal(b"".join((numbers, *names, *data)))


class Block:
    """A block that was read. `size`: bytes that it takes in memory, about."""

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
            raise damaged(f"{_named(offset)} is none: {error}", key) from error
        self._marks: tuple[int, ...] = numbers[:count]
        self._name_ends = list(accumulate(numbers[2 * count :], initial=start))
        self._data_ends = list(accumulate(numbers[count : 2 * count], initial=self._name_ends[-1]))
        if self._data_ends[-1] != len(raw):
            what = f"{len(raw)} bytes where {self._data_ends[-1]} are due"
            raise damaged(f"{_named(offset)} is none: {what}", key)
        self.size = _BLOCK_SIZE + len(raw) + _VERSION_SIZE * count

    @classmethod
    def decode(cls, body: bytes, key: str, offset: int) -> Block:
        """From its bytes, exactly, which begin at `offset` of the object `key`."""
        return cls(unseal(body, key, _named(offset)), key, offset)

    def find(self, page: str, lsn: int) -> Version | None:
        """The newest version of the page up to the LSN, if it is here."""
        wanted = page.encode("utf-8", "surrogatepass")
        at = bisect_right(range(len(self._marks)), (wanted, 2 * lsn + 1), key=self._place) - 1
        return self._version(at, page) if at >= 0 and self._name(at) == wanted else None

    def versions(self) -> Sequence[Version]:
        """All, by page and LSN."""
        return [self._version(at, self._text(at)) for at in range(len(self._marks))]

    def _place(self, at: int) -> tuple[bytes, int]:
        """What versions are sorted by; calls nothing, since `find` needs it a dozen times."""
        return self._raw[self._name_ends[at] : self._name_ends[at + 1]], self._marks[at]

    def _name(self, at: int) -> bytes:
        return self._raw[self._name_ends[at] : self._name_ends[at + 1]]

    def _text(self, at: int) -> str:
        try:
            return self._name(at).decode()
        except UnicodeDecodeError as error:
            raise damaged(f"{_named(self._offset)} has a name that is not UTF-8: {error}", self._key) from error

    def _version(self, at: int, page: str) -> Version:
        mark = self._marks[at]
        data = None if mark & 1 else self._raw[self._data_ends[at] : self._data_ends[at + 1]]
        return Version(page, mark >> 1, data)


def _named(offset: int) -> str:
    return f"the block at byte {offset}"


def seal(raw: bytes) -> bytes:
    """With flag and CRC; deflated where that makes it smaller."""
    deflated = zlib.compress(raw, _LEVEL)
    if _NUMBER.size + len(deflated) < len(raw):
        body = b"".join((bytes((_DEFLATED,)), _NUMBER.pack(len(raw)), deflated))
    else:
        body = bytes((_STORED,)) + raw
    return body + _NUMBER.pack(binascii.crc32(body))


def unseal(body: bytes | memoryview, key: str, what: str) -> bytes:
    """What was sealed, once every byte of it was found to be as it was written. `what` and where it is, for errors."""
    view = memoryview(body)
    cut = len(view) - _NUMBER.size
    if cut < 1:
        raise damaged(f"{what} is cut: {len(view)} bytes are there", key)
    found, due = binascii.crc32(view[:cut]), _NUMBER.unpack_from(view, cut)[0]
    if found != due:
        raise damaged(f"{what} is damaged: CRC {found:08x}, it says {due:08x}", key)
    if view[0] == _STORED:
        return bytes(view[1:cut])
    if view[0] != _DEFLATED or cut < _SEAL_BYTES:
        raise damaged(f"{what} has the flag {view[0]}, which this code does not know", key)
    size = _NUMBER.unpack_from(view, 1)[0]
    if size > (cut - _SEAL_BYTES) * _GROWTH_MAX:
        raise damaged(f"{what} cannot be {size} bytes, as it says", key)
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(view[_SEAL_BYTES:cut], size + 1)
    except zlib.error as error:
        raise damaged(f"{what} cannot be inflated: {error}", key) from error
    if len(raw) != size or not inflater.eof or inflater.unused_data:
        raise damaged(f"{what} is not the {size} bytes that it says", key)
    return raw


def damaged(what: str, key: str) -> Corrupt:
    """The error for a layer that is not as it was written."""
    return Corrupt(what, key=key, hint=HINT)
