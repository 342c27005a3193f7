"""Framed NDJSON: one record per line, `<canonical-json>\\t<CRC-32 of the JSON bytes, 8 lowercase hex digits>\\n`.

Canonical JSON escapes tabs and newlines inside strings, so neither can occur in a record.
- *torn tail*: bytes after the last newline, whatever they are (half a record, half a UTF-8 character, garbage). A
  writer that died left them behind. They are reported separately (`Torn`, always the last item) and never taken for a
  record.
- A complete line that is wrong in any way is `Corrupt`, with the object, the line and the byte offset where it begins.

Reading is a stream: it holds one line and one chunk of the source at a time. For each record, `decode` does only what
is necessary. Only if the one comparison that every good line passes fails does it find out what is wrong with the line.
"""

from __future__ import annotations

import binascii
import io
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import orjson

from worm.errors import Corrupt
from worm.formats.strict_json import JsonObject, dumps, type_name
from worm.values import dataclass

LINE_MAX = 64 * 1024 * 1024
_CRC_DIGITS = 8
_SUFFIX = _CRC_DIGITS + 2  # the tab, the digits and the newline


class Frame(NamedTuple):
    """One record: its value, its canonical bytes, and where its line begins (lines count from 1, offsets from 0)."""

    value: JsonObject
    body: bytes
    line: int
    offset: int

    @property
    def end(self) -> End:
        """Where the next line begins."""
        return End(self.line, self.offset + len(self.body) + _SUFFIX)


@dataclass(frozen=True, slots=True)
class Torn:
    """Bytes after the last newline."""

    line: int
    offset: int
    size: int


class End(NamedTuple):
    """A position: the number of complete lines and bytes before it."""

    lines: int
    offset: int


BEGIN = End(0, 0)


def frame(body: bytes) -> bytes:
    """The line for a record, given its canonical bytes."""
    return b"%b\t%08x\n" % (body, binascii.crc32(body))


def encode(value: JsonObject) -> bytes:
    """The line of a record."""
    body = dumps(value)
    return b"%b\t%08x\n" % (body, binascii.crc32(body))


def encode_parsed(value: JsonObject) -> bytes:
    """The same for a record that was parsed from JSON: it cannot contain NaN, so the check for that is skipped. The
    check takes as long as all the rest."""
    body = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return b"%b\t%08x\n" % (body, binascii.crc32(body))


def decode(
    source: bytes | Iterable[bytes],
    *,
    key: str,
    first_lsn: int | None = None,
    line_max: int = LINE_MAX,
    after: End = BEGIN,
) -> Iterator[Frame | Torn]:
    """The records of an object in order, then `Torn` if it does not end with a newline. `key` names it in errors.

    With `first_lsn`, every record must have the member `lsn`, counting up from that number without a gap. `after` is
    the position of the source, if it does not start at the object's beginning.
    """
    crc32, loads, new, cut = binascii.crc32, orjson.loads, tuple.__new__, -_SUFFIX
    offset, first = after.offset, after.lines + 1
    for number, line in enumerate(_lines(source, key, line_max), start=first):
        body = line[:cut]
        if line[cut:] != b"\t%08x\n" % crc32(body) or not body:
            if not line.endswith(b"\n"):
                yield Torn(number, offset, len(line))
                return
            raise _corrupt(_wrong(line), key, number, offset)
        try:
            value = loads(body)
        except orjson.JSONDecodeError as error:
            raise _corrupt(f"is not valid JSON: {error}", key, number, offset) from error
        if value.__class__ is not dict:
            raise _corrupt(f"must hold a JSON object, not {type_name(value)}", key, number, offset)
        if first_lsn is not None:
            lsn = value.get("lsn")
            if lsn.__class__ is not int or lsn != first_lsn + number - first:
                raise _corrupt(f"has lsn {lsn!r} instead of {first_lsn + number - first}", key, number, offset)
        yield new(Frame, (value, body, number, offset))  # as Frame(…), in two thirds of the time
        offset += len(line)


def decode_whole(body: bytes, *, key: str, first_lsn: int | None = None) -> list[Frame]:
    """The records of an object that was written in one piece: here a torn tail is damage, too."""
    frames: list[Frame] = []
    for item in decode(body, key=key, first_lsn=first_lsn):
        if isinstance(item, Torn):
            raise _corrupt(
                f"ends in the middle of a record (after {item.size} bytes of it)", key, item.line, item.offset
            )
        frames.append(item)
    return frames


def damage(what: str, key: str, at: Frame) -> Corrupt:
    """The error for a record with a correct frame and wrong content."""
    return _corrupt(what, key, at.line, at.offset)


def _lines(source: bytes | Iterable[bytes], key: str, line_max: int) -> Iterator[bytes]:
    """Lines with their newlines; the last one may have none."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    return chain.from_iterable(_complete_lines(source, key, line_max))


def _complete_lines(source: Iterable[bytes], key: str, line_max: int) -> Iterator[Iterable[bytes]]:
    """For every chunk, the lines that end in it, the first one with its part from earlier chunks; at the end, the
    rest."""
    pending: list[bytes] = []
    waiting = 0
    for chunk in source:
        end = chunk.rfind(b"\n") + 1
        if end and pending:
            first = chunk.find(b"\n") + 1
            yield (b"".join((*pending, chunk[:first])),)
            pending, waiting = [], 0
            yield io.BytesIO(chunk[first:end])
        elif end:
            yield io.BytesIO(chunk[:end])
        if end < len(chunk):
            pending.append(chunk[end:])
            waiting += len(chunk) - end
            if waiting > line_max:
                raise Corrupt(f"a line is longer than {line_max} bytes", key=key)
    if pending:
        yield (b"".join(pending),)


def _wrong(line: bytes) -> str:
    """Why a complete line is not a framed record."""
    body, tab, digits = line[:-_SUFFIX], line[-_SUFFIX : -_CRC_DIGITS - 1], line[-_CRC_DIGITS - 1 : -1]
    if tab != b"\t" or not body:
        return "is not a framed record"
    return f"has CRC {binascii.crc32(body):08x}, but says {digits!r}"


def _corrupt(what: str, key: str, number: int, offset: int) -> Corrupt:
    return Corrupt(f"line {number} (byte {offset}) {what}", key=key)
