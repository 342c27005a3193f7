"""The bytes of a column file: what a partition of a manifest says, column by column and compressed.

    magic, 8 bytes | length of the header, 4 | CRC-32 of the header, 4 | header, JSON | blocks

A *block* holds the cells of one column as one JSON array, deflated; the header says in which order the blocks come and
how long they are, so that they fill the file exactly. Every `group` cells the compressor starts afresh, so a reader
inflates a column whole in one go, or only the group that a row stands in. Where a row may lack a field, each cell of
the column is in an array of its own, and an empty one says that there is none.

Equal content gives equal bytes wherever the same zlib compresses. Whatever is not as it was written is `Corrupt`: bytes
when the file is opened, a header that was written wrong at the latest when a column is inflated.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from worm.codec.field_path import MISSING, Missing
from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own, loads_own_array
from worm.errors import Corrupt
from worm.tables.manifest import Manifest

MAGIC = b"WORMCOL1"
GROUP = 128
"""Cells that are inflated to read one of them."""
REPAIR = "`worm repair` builds it anew"
_LEVEL = 6
_RAW = -zlib.MAX_WBITS  # no zlib header: a group in the middle has none either
_LENGTH_AT, _CRC_AT, _HEADER_AT = 8, 12, 16


@dataclass(frozen=True, slots=True)
class Block:
    """Where the cells of one column lie. `size`: when inflated; `optional`: may cells be missing?"""

    name: str
    start: int
    groups: tuple[int, ...]
    size: int
    crc: int
    optional: bool

    @property
    def length(self) -> int:
        return sum(self.groups)


@dataclass(frozen=True, slots=True)
class Contents:
    """The header. `of`: the hash in the name of the partition; `others`: ids without a row, with seq and etag."""

    of: str
    rows: int
    group: int
    ids: Block
    seqs: Block
    etags: Block
    others: Block
    fields: tuple[Block, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """In the order of the file."""
        return (self.ids, self.seqs, self.etags, self.others, *self.fields)


# Writing


def encode_columns(part: Manifest, of: str) -> bytes:
    """The column file of a partition whose name has the hash `of`."""
    ids = sorted(part.entities)
    rows = [part.entities[entity_id] for entity_id in ids]
    names = sorted(set[str]().union(*rows))
    others: JsonObject = {
        "seqs": {one: seq for one, seq in part.seqs.items() if one not in part.entities},
        "etags": {one: etag for one, etag in part.etags.items() if one not in part.entities},
    }
    own = {
        "ids": _packed(list(ids)),
        "seqs": _packed([part.seqs.get(one, MISSING) for one in ids]),
        "etags": _packed([part.etags.get(one, MISSING) for one in ids]),
        "others": _packed([others]),
    }
    fields = [(name, _packed([row.get(name, MISSING) for row in rows])) for name in names]
    header = dumps(
        {
            "version": 1,
            "of": of,
            "rows": len(ids),
            "group": GROUP,
            **{name: shape for name, (shape, _) in own.items()},
            "fields": [{"name": name, **shape} for name, (shape, _) in fields],
        }
    )
    front = MAGIC + len(header).to_bytes(4, "big") + zlib.crc32(header).to_bytes(4, "big")
    return b"".join((front, header, *(body for _, body in own.values()), *(body for _, (_, body) in fields)))


def _packed(cells: Sequence[JsonValue | Missing]) -> tuple[JsonObject, bytes]:
    """A block, and what the header says of it."""
    optional = any(cell is MISSING for cell in cells)
    values = [[] if cell is MISSING else [cell] for cell in cells] if optional else cells
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    groups: list[bytes] = []
    size = 0
    for start in range(0, len(values), GROUP):
        text = dumps(cast("list[JsonValue]", values[start : start + GROUP]))
        is_last = start + GROUP >= len(values)
        text = (b"," if start else b"[") + (text[1:] if is_last else text[1:-1])
        size += len(text)
        groups.append(packer.compress(text) + packer.flush(zlib.Z_FINISH if is_last else zlib.Z_FULL_FLUSH))
    body = b"".join(groups)
    shape: JsonObject = {"bytes": size, "crc32": zlib.crc32(body), "groups": [len(group) for group in groups]}
    if optional:
        shape["optional"] = True
    return shape, body


# Reading


def decode_header(body: bytes, key: str) -> Contents:
    """What is in the file, once every byte of it was found to be as it was written."""
    end = _HEADER_AT + int.from_bytes(body[_LENGTH_AT:_CRC_AT], "big")
    header = body[_HEADER_AT:end]
    if body[:_LENGTH_AT] != MAGIC or zlib.crc32(header) != int.from_bytes(body[_CRC_AT:_HEADER_AT], "big"):
        raise Corrupt("not a column file, or cut", key=key, hint=REPAIR)
    try:
        contents = _contents(loads_own(header, key), end)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"not the header of a column file: {error}", key=key, hint=REPAIR) from error
    last = contents.blocks[-1]
    if last.start + last.length != len(body):
        raise Corrupt(f"{len(body)} bytes are not what its header says", key=key, hint=REPAIR)
    view = memoryview(body)
    for block in contents.blocks:
        if zlib.crc32(view[block.start : block.start + block.length]) != block.crc:
            raise Corrupt(f"the block of {block.name!r} is damaged", key=key, hint=REPAIR)
    return contents


def _contents(shape: JsonObject, start: int) -> Contents:
    if shape["version"] != 1:
        raise ValueError(f"version {shape['version']!r}; this code reads version 1")
    names = ("ids", "seqs", "etags", "others")
    listed = [{"name": name, **cast(JsonObject, shape[name])} for name in names]
    listed += cast("list[JsonObject]", shape["fields"])
    blocks = []
    for one in listed:
        blocks.append(_block(one, start))
        start += blocks[-1].length
    rows, group = _whole(shape["rows"]), _whole(shape["group"])
    if not group or any(len(block.groups) != -(-rows // group) for block in (*blocks[:3], *blocks[4:])):
        raise ValueError("a column has too few groups, or too many")
    ids, seqs, etags, others, *fields = blocks
    return Contents(str(shape["of"]), rows, group, ids, seqs, etags, others, tuple(fields))


def _block(shape: JsonObject, start: int) -> Block:
    groups = tuple(cast("list[int]", shape["groups"]))
    if not set(map(type, groups)) <= {int}:  # lengths that are wrong give other cells, or none
        raise ValueError("a group has no length")
    optional = shape.get("optional") is True
    return Block(str(shape["name"]), start, groups, _whole(shape["bytes"]), _whole(shape["crc32"]), optional)


def _whole(value: JsonValue) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def cells_of(body: bytes, block: Block, count: int, key: str) -> list[JsonValue | Missing]:
    """All cells of a column."""
    if not block.groups:
        return []
    view = memoryview(body)[block.start : block.start + block.length]
    text = _inflated(view, block.size, key)
    if len(text) != block.size:
        raise Corrupt(f"{block.name!r} has another size than its header says", key=key, hint=REPAIR)
    return _parsed(text, block, count, key)


def group_of(body: bytes, block: Block, number: int, count: int, key: str) -> list[JsonValue | Missing]:
    """The cells of one group of a column."""
    start = block.start + sum(block.groups[:number])
    text = _inflated(memoryview(body)[start : start + block.groups[number]], block.size, key)
    is_last = number == len(block.groups) - 1
    return _parsed(b"[" + text[1:] + (b"" if is_last else b"]"), block, count, key)


def _inflated(view: memoryview, most: int, key: str) -> bytes:
    """No more than `most` bytes, whatever the block would grow to."""
    try:
        inflater = zlib.decompressobj(_RAW)
        text = inflater.decompress(view, most + 1)
    except zlib.error as error:
        raise Corrupt(f"cannot be inflated: {error}", key=key, hint=REPAIR) from error
    if len(text) > most:
        raise Corrupt("a column is larger than its header says", key=key, hint=REPAIR)
    return text


def _parsed(text: bytes, block: Block, count: int, key: str) -> list[JsonValue | Missing]:
    cells = loads_own_array(text, key)
    if len(cells) != count:
        raise Corrupt(f"{block.name!r} has {len(cells)} cells, not {count}", key=key, hint=REPAIR)
    if not block.optional:
        return cast("list[JsonValue | Missing]", cells)
    try:
        return [cast("list[JsonValue]", cell)[0] if cell else MISSING for cell in cells]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{block.name!r} has cells that are no arrays", key=key, hint=REPAIR) from error
