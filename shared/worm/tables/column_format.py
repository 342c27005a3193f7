"""The bytes of a column file: what a partition of a manifest says, column by column and compressed.

    magic, 8 bytes | length of the header, 4 | CRC-32 of the header, 4 | header, JSON | blocks

A *block* holds the cells of one column as one JSON array, deflated; the header says in which order the blocks come and
how long they are, so that they fill the file exactly. Every `group` cells the compressor starts afresh, so a reader
inflates a column whole in one go, or only the group that a row stands in. Where a row may lack a field, each cell of
the column is in an array of its own, and an empty one says that there is none. Where a column has few different values,
the array holds each of them once, and what follows it is a byte per row that says which; such a block is one group.

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
from worm.tables.coded import VALUES_MAX, Coded, are_scalars
from worm.tables.manifest import Manifest

MAGIC = b"WORMCOL1"
GROUP = 128
"""Cells that are inflated to read one of them."""
CODED_SHARE = 8
"""Rows for each value of a column that is stored by its values, at least."""
VERSION = 2
REPAIR = "`worm repair` builds it anew"
_LEVEL = 6
_RAW = -zlib.MAX_WBITS  # no zlib header: a group in the middle has none either
_LENGTH_AT, _CRC_AT, _HEADER_AT = 8, 12, 16


@dataclass(frozen=True, slots=True)
class Block:
    """Where the cells of one column lie. `size`: when inflated; `optional`: may cells be missing? `values`: how many
    bytes the array of different values has when inflated; 0 where the array is the cells."""

    name: str
    start: int
    groups: tuple[int, ...]
    size: int
    crc: int
    optional: bool
    values: int

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
            "version": VERSION,
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
    coded = Coded.of(cells, CODED_SHARE)
    texts = _texts(_wrapped(cells, optional)) if coded is None else [_coded_text(coded, optional)]
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW)
    last = len(texts) - 1
    packed = [
        packer.compress(text) + packer.flush(zlib.Z_FINISH if at == last else zlib.Z_FULL_FLUSH)
        for at, text in enumerate(texts)
    ]
    lengths: list[JsonValue] = [len(one) for one in packed]
    body = b"".join(packed)
    shape: JsonObject = {"bytes": sum(map(len, texts)), "crc32": zlib.crc32(body), "groups": lengths}
    if optional:
        shape["optional"] = True
    if coded is not None:
        shape["values"] = len(texts[0]) - len(cells)
    return shape, body


def _wrapped(cells: Sequence[JsonValue | Missing], optional: bool) -> list[JsonValue]:
    values = [[] if isinstance(cell, Missing) else [cell] for cell in cells] if optional else list(cells)
    return cast("list[JsonValue]", values)


def _texts(values: list[JsonValue]) -> list[bytes]:
    """One array, group by group."""
    texts = [dumps(values[start : start + GROUP])[1:-1] for start in range(0, len(values), GROUP)]
    return [(b"," if at else b"[") + text + (b"" if at < len(texts) - 1 else b"]") for at, text in enumerate(texts)]


def _coded_text(coded: Coded, optional: bool) -> bytes:
    return dumps(_wrapped(coded.values, optional)) + coded.codes


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
    if shape["version"] not in (1, VERSION):  # the first one had no codes
        raise ValueError(f"version {shape['version']!r}; this code reads versions 1 to {VERSION}")
    names = ("ids", "seqs", "etags", "others")
    listed = [{"name": name, **cast(JsonObject, shape[name])} for name in names]
    listed += cast("list[JsonObject]", shape["fields"])
    blocks = []
    for one in listed:
        blocks.append(_block(one, start))
        start += blocks[-1].length
    rows, group = _whole(shape["rows"]), _whole(shape["group"])
    ids, seqs, etags, others, *fields = blocks
    columns = (ids, seqs, etags, *fields)
    if not group or any(len(one.groups) != (1 if one.values else -(-rows // group)) for one in columns):
        raise ValueError("a column has too few groups, or too many")
    if ids.values:  # they are all different
        raise ValueError("ids are not stored by values")
    return Contents(str(shape["of"]), rows, group, ids, seqs, etags, others, tuple(fields))


def _block(shape: JsonObject, start: int) -> Block:
    groups = tuple(cast("list[int]", shape["groups"]))
    if not set(map(type, groups)) <= {int}:  # lengths that are wrong give other cells, or none
        raise ValueError("a group has no length")
    optional = shape.get("optional") is True
    size, crc, values = _whole(shape["bytes"]), _whole(shape["crc32"]), _whole(shape.get("values", 0))
    return Block(str(shape["name"]), start, groups, size, crc, optional, values)


def _whole(value: JsonValue) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def cells_of(body: bytes, block: Block, count: int, key: str) -> list[JsonValue | Missing]:
    """All cells of a column."""
    if not block.groups:
        return []
    if block.values:
        return cast("list[JsonValue | Missing]", coded_of(body, block, count, key).cells())
    return _parsed(_whole_text(body, block, key), block, count, key)


def _whole_text(body: bytes, block: Block, key: str) -> bytes:
    text = _inflated(memoryview(body)[block.start : block.start + block.length], block.size, key)
    if len(text) != block.size:
        raise Corrupt(f"{block.name!r} has another size than its header says", key=key, hint=REPAIR)
    return text


def coded_of(body: bytes, block: Block, count: int, key: str) -> Coded:
    """A column that is stored by its values."""
    text = _whole_text(body, block, key)
    values, codes = _unwrapped(loads_own_array(text[: block.values], key), block, key), text[block.values :]
    if len(values) > VALUES_MAX or not are_scalars(values):
        raise Corrupt(f"{block.name!r} has values that have no code", key=key, hint=REPAIR)
    if len(codes) != count or codes.translate(None, bytes(range(len(values)))):
        raise Corrupt(f"{block.name!r} has not one code of a value for each row", key=key, hint=REPAIR)
    return Coded(values, codes)


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
    return _unwrapped(cells, block, key)


def _unwrapped(cells: list[JsonValue], block: Block, key: str) -> list[JsonValue | Missing]:
    if not block.optional:
        return cast("list[JsonValue | Missing]", cells)
    try:
        return [cast("list[JsonValue]", cell)[0] if cell else MISSING for cell in cells]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{block.name!r} has cells that are no arrays", key=key, hint=REPAIR) from error
