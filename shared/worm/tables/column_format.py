"""Column files: the content of the partitions of a partitioned manifest, column by column and compressed, so that a
scan reads fewer bytes. `partition-3-<hash>.columns` is beside `partition-3-<hash>.json`.

They are never the source of truth. If one is missing or damaged, readers use the partition, and a rebuild writes it
again. They are written before the root names their partition, and deleted after no root has named it for a day.

    magic, 8 bytes | length of the header, 4 | CRC-32 of the header, 4 | header, JSON | blocks

A *block* holds the cells of one column as one JSON array, deflated. The header gives the order and the lengths of the
blocks, so that they fill the file exactly. After every `group` cells, the compressor starts over. So a reader can
inflate a whole column in one call, or only the group that contains a row. If rows may lack a field, each cell of the
column is in its own array, and an empty array means that there is no value. If a column has few distinct values, the
array holds each of them once; after it comes one byte per row that selects the value. Such a block is one group.

With the same zlib, equal content gives equal bytes. Any damage is `Corrupt`: changed bytes are found when the file is
opened, and a wrong header at the latest when a column is inflated.

The rest of the library sees a file as a `ColumnPart`: every value is the same as in the parsed partition, and a row has
its keys in the same order. Reading needs only zlib and orjson.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import TypeAlias, TypeGuard, cast

from worm.codec.shapes import FLAG, TEXT, WHOLE, Kind, check_shape, list_of, one_of, record, whole_number
from worm.codec.strict_json import MISSING, JsonObject, JsonValue, Missing, dumps, loads_own, loads_own_array
from worm.collections.entries import CUT, Row
from worm.errors import Corrupt
from worm.store.base import Store
from worm.store.parallel import in_parallel
from worm.tables.manifest import ETAGS, SEQS, Manifest
from worm.tables.parts import CONTAINERS, Cell, Stamp, copied, with_descent
from worm.tables.root import Piece
from worm.values import dataclass

MAGIC = b"WORMCOL1"
GROUP = 128
"""How many cells are inflated to read one of them."""
CODED_SHARE = 8
"""The minimum number of rows per value for a column that is stored by its values."""
COLUMNS_MAX = 1000
"""Documents may have any fields, so rows may have any number of different names. If there are more than this, a
partition has no column file, because it would need a cell for each name in every row."""
VERSION = 2
REPAIR = "run `worm repair` to rebuild it"
_LEVEL = 6
_RAW = -zlib.MAX_WBITS  # no zlib header: a group in the middle has none either
_LENGTH_AT, _CRC_AT, _HEADER_AT = 8, 12, 16
_CELL_BYTES = 4  # brackets and comma around an optional cell
_REST_BYTES = 64
_DEFLATE_MAX = 1032  # one deflated byte never becomes more bytes than this
_BLOCK = {"bytes": WHOLE, "crc32": WHOLE, "groups": list_of(WHOLE)}, {"optional": FLAG, "values": WHOLE}
_COLUMN = record("a column", *_BLOCK)
HEADER = record(
    "the header of a column file that this version of worm reads",
    {
        "version": one_of(1, VERSION),  # the first one had no codes
        "of": TEXT,
        "rows": WHOLE,
        "group": whole_number(1),
        "ids": _COLUMN,
        "seqs": _COLUMN,
        "etags": _COLUMN,
        "others": _COLUMN,
        "fields": list_of(record("a column", {"name": TEXT, **_BLOCK[0]}, _BLOCK[1])),
    },
)
OTHERS = record("what is known of ids without a row", {"seqs": SEQS, "etags": ETAGS})

Cells: TypeAlias = "list[JsonValue | Missing]"


Scalar: TypeAlias = "str | int | bool | Missing | None"
VALUES_MAX = 256
_SCALARS = frozenset({str, int, bool, type(None), Missing})


@dataclass(frozen=True, slots=True)
class Coded:
    """A column with few distinct values: each of them once, and for every row a byte with its position. So a condition
    is tested once per value instead of once per row."""

    values: Sequence[Scalar]
    codes: bytes

    @classmethod
    def of(cls, cells: Sequence[JsonValue | Missing], share: int) -> Coded | None:
        """None if some cells are not scalars, or if there is more than one distinct value per `share` cells."""
        most = min(VALUES_MAX, len(cells) // share)
        if not most or not are_scalars(cells) or len(set(cells[: 2 * most])) > most:  # most columns exceed this early
            return None
        numbers = _numbered(cells)
        return cls(list(numbers), bytes(map(numbers.__getitem__, cells))) if len(numbers) <= most else None

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded | None:
        """Combines several columns; None if they have too many values together."""
        values = [value for part in parts for value in part.values]
        numbers = _numbered(values)
        if len(numbers) > VALUES_MAX or not are_scalars(values):
            return None
        tables = (_table(map(numbers.__getitem__, part.values)) for part in parts)
        codes = [part.codes.translate(table) for part, table in zip(parts, tables, strict=True)]
        return cls(list(numbers), b"".join(codes))

    def cells(self, start: int = 0, end: int | None = None) -> list[Scalar]:
        """The values of the rows."""
        return list(map(self.values.__getitem__, self.codes[start:end]))

    def where(self, holds: Callable[[Scalar], bool], candidates: Sequence[int]) -> list[int]:
        """The candidates whose values match. They are ascending; a range means all rows."""
        marks = self.codes.translate(_table(map(holds, self.values)))
        is_whole = isinstance(candidates, range)
        return list(compress(candidates, marks if is_whole else map(marks.__getitem__, candidates)))


def are_scalars(cells: Iterable[object]) -> TypeGuard[Sequence[Scalar]]:
    """Whether they are equal in Python exactly if they are equal as JSON. So no floats (0.0 and -0.0), and not both
    booleans and integers (true and 1)."""
    kinds = set(map(type, cells))
    return kinds <= _SCALARS and not kinds >= {bool, int}


def _numbered(values: Iterable[Scalar]) -> dict[Scalar, int]:
    """The distinct values in order of appearance."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _table(numbers: Iterable[int]) -> bytes:
    return bytes(numbers).ljust(VALUES_MAX, b"\0")


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Where the cells of one column are. `size`: when inflated. `optional`: whether cells may be missing. `values`: the
    inflated bytes of the array of distinct values; 0 if the array holds the cells."""

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
    ids: ColumnBlock
    seqs: ColumnBlock
    etags: ColumnBlock
    others: ColumnBlock
    fields: tuple[ColumnBlock, ...]

    @property
    def blocks(self) -> tuple[ColumnBlock, ...]:
        """The blocks in the order of the file."""
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
    """A block, and its description in the header."""
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
    """The text of one array, group by group."""
    texts = [dumps(values[start : start + GROUP])[1:-1] for start in range(0, len(values), GROUP)]
    return [(b"," if at else b"[") + text + (b"" if at < len(texts) - 1 else b"]") for at, text in enumerate(texts)]


def _coded_text(coded: Coded, optional: bool) -> bytes:
    return dumps(_wrapped(coded.values, optional)) + coded.codes


# Reading


def decode_header(body: bytes, key: str) -> Contents:
    """The content of the file, after every byte was checked."""
    end = _HEADER_AT + int.from_bytes(body[_LENGTH_AT:_CRC_AT], "big")
    header = body[_HEADER_AT:end]
    if body[:_LENGTH_AT] != MAGIC or zlib.crc32(header) != int.from_bytes(body[_CRC_AT:_HEADER_AT], "big"):
        raise Corrupt("not a column file, or truncated", key=key, hint=REPAIR)
    shape = loads_own(header, key)
    check_shape(shape, HEADER, key, hint=REPAIR)
    contents = _contents(shape, end)
    columns = (one for one in contents.blocks if one is not contents.others)
    if any(len(one.groups) != (1 if one.values else -(-contents.rows // contents.group)) for one in columns):
        raise Corrupt("a column has the wrong number of groups", key=key, hint=REPAIR)
    if contents.ids.values or contents.rows > _DEFLATE_MAX * contents.ids.length:
        raise Corrupt("it does not have one id for each row", key=key, hint=REPAIR)
    last = contents.blocks[-1]
    if last.start + last.length != len(body):
        raise Corrupt(f"its {len(body)} bytes do not match its header", key=key, hint=REPAIR)
    view = memoryview(body)
    for block in contents.blocks:
        if zlib.crc32(view[block.start : block.start + block.length]) != block.crc:
            raise Corrupt(f"the block of {block.name!r} is damaged", key=key, hint=REPAIR)
    return contents


def _contents(shape: JsonObject, start: int) -> Contents:
    names = ("ids", "seqs", "etags", "others")
    listed = [{"name": name, **cast(JsonObject, shape[name])} for name in names]
    listed += cast("list[JsonObject]", shape["fields"])
    blocks = []
    for one in listed:
        blocks.append(_block(one, start))
        start += blocks[-1].length
    rows, group = cast(int, shape["rows"]), cast(int, shape["group"])
    ids, seqs, etags, others, *fields = blocks
    return Contents(cast(str, shape["of"]), rows, group, ids, seqs, etags, others, tuple(fields))


def _block(shape: JsonObject, start: int) -> ColumnBlock:
    return ColumnBlock(
        name=cast(str, shape["name"]),
        start=start,
        groups=tuple(cast("list[int]", shape["groups"])),
        size=cast(int, shape["bytes"]),
        crc=cast(int, shape["crc32"]),
        optional=shape.get("optional") is True,
        values=cast(int, shape.get("values", 0)),
    )


def cells_of(body: bytes, block: ColumnBlock, count: int, key: str) -> Cells:
    """All cells of a column."""
    if not block.groups:
        return []
    if block.values:
        return cast(Cells, coded_of(body, block, count, key).cells())
    return _parsed(_whole_text(body, block, key), block, count, key)


def _whole_text(body: bytes, block: ColumnBlock, key: str) -> bytes:
    text = _inflated(memoryview(body)[block.start : block.start + block.length], block.size, key)
    if len(text) != block.size:
        raise Corrupt(f"the size of {block.name!r} does not match its header", key=key, hint=REPAIR)
    return text


def coded_of(body: bytes, block: ColumnBlock, count: int, key: str) -> Coded:
    """A column that is stored by its values."""
    text = _whole_text(body, block, key)
    values, codes = _unwrapped(loads_own_array(text[: block.values], key), block, key), text[block.values :]
    if len(values) > VALUES_MAX or not are_scalars(values):
        raise Corrupt(f"{block.name!r} has values without a code", key=key, hint=REPAIR)
    if len(codes) != count or codes.translate(None, bytes(range(len(values)))):
        raise Corrupt(f"{block.name!r} does not have one code for each row", key=key, hint=REPAIR)
    return Coded(values, codes)


def group_of(body: bytes, block: ColumnBlock, number: int, count: int, key: str) -> Cells:
    """The cells of one group of a column."""
    start = block.start + sum(block.groups[:number])
    text = _inflated(memoryview(body)[start : start + block.groups[number]], block.size, key)
    is_last = number == len(block.groups) - 1
    return _parsed(b"[" + text[1:] + (b"" if is_last else b"]"), block, count, key)


def _inflated(view: memoryview, most: int, key: str) -> bytes:
    """Inflates at most `most` bytes, however large the block would become."""
    try:
        inflater = zlib.decompressobj(_RAW)
        text = inflater.decompress(view, most + 1)
    except zlib.error as error:
        raise Corrupt(f"cannot be decompressed: {error}", key=key, hint=REPAIR) from error
    if len(text) > most:
        raise Corrupt("a column is larger than its header says", key=key, hint=REPAIR)
    return text


def _parsed(text: bytes, block: ColumnBlock, count: int, key: str) -> Cells:
    cells = loads_own_array(text, key)
    if len(cells) != count:
        raise Corrupt(f"{block.name!r} has {len(cells)} cells, not {count}", key=key, hint=REPAIR)
    return _unwrapped(cells, block, key)


def _unwrapped(cells: list[JsonValue], block: ColumnBlock, key: str) -> Cells:
    if not block.optional:
        return cast(Cells, cells)
    if not set(map(type, cells)) <= {list}:
        raise Corrupt(f"{block.name!r} has cells that are not arrays", key=key, hint=REPAIR)
    return [cell[0] if cell else MISSING for cell in cast("list[list[JsonValue]]", cells)]


# The rows of a file


class ColumnPart:
    """An intact column file. A field is inflated and parsed when it is first used, a row with its group. `of`: the hash
    in the partition's name. `size`: the bytes of the partition. No column can be much larger than that, so nothing
    larger is inflated."""

    def __init__(self, body: bytes, key: str, of: str, size: int) -> None:
        self._body = body
        self._key = key
        self._contents = contents = decode_header(body, key)
        if contents.of != of:
            raise Corrupt(f"belongs to another partition: {contents.of}", key=key, hint=REPAIR)
        if any(block.size > size + _CELL_BYTES * contents.rows + _REST_BYTES for block in contents.blocks):
            raise Corrupt("a column would be larger than its partition", key=key, hint=REPAIR)
        self._blocks = {block.name: block for block in contents.fields}
        self._cells: dict[str, Cells] = {}
        self._coded: dict[str, Coded] = {}
        self._fields: dict[str, list[Cell]] = {}
        self._group: tuple[int, list[tuple[str, Cells]]] = (-1, [])
        self._groups_left = self._id_groups_left = len(contents.ids.groups)

    @property
    def count(self) -> int:
        return self._contents.rows

    @cached_property
    def ids(self) -> Sequence[str]:
        return self._as_ids(self._inflated(self._contents.ids))

    def id(self, at: int) -> str:
        """Parses its group. After as many groups as there are, all ids are parsed and kept."""
        if "ids" in self.__dict__ or self._id_groups_left <= 0:
            return self.ids[at]
        self._id_groups_left -= 1
        number, place = divmod(at, self._contents.group)
        return self._as_ids(self._inflated_group(self._contents.ids, number))[place]

    @cached_property
    def seqs(self) -> Mapping[str, int]:
        return cast("dict[str, int]", self._by_id(self._contents.seqs, SEQS))

    @cached_property
    def etags(self) -> Mapping[str, str]:
        return cast("dict[str, str]", self._by_id(self._contents.etags, ETAGS))

    def cells(self, field: str) -> list[Cell]:
        """The cell of the field in each row."""
        found = self._fields.get(field)
        if found is None:
            names = (field, field.partition(".")[0])
            found = self._fields[field] = with_descent(field, {name: self._column(name) for name in names})
        return found

    def typed(self, field: str) -> None:
        return None

    def coded(self, field: str) -> Coded | None:
        """The cells by their values, if they are stored that way. Not for a path, which may lead into an object."""
        block = self._blocks.get(field)
        return None if block is None or not block.values or "." in field else self._by_values(block)

    def prepare(self, fields: Iterable[str]) -> None:
        """Decode the cells of these fields."""
        for field in fields:
            if self.coded(field) is None:
                self.cells(field)

    def row(self, at: int) -> Row:
        """A row that the caller may change. After as many groups as there are, all columns are parsed and kept."""
        number, place = divmod(at, self._contents.group)
        if self._groups_left <= 0:
            return _row([(name, self._column(name)) for name in self._blocks], at)
        held, columns = self._group
        if held != number:
            self._groups_left -= 1
            columns = [(block.name, self._part(block, number)) for block in self._contents.fields]
            self._group = number, columns
        return _row(columns, place)

    def stamp(self, at: int) -> Stamp:
        seq, etag = self._stamps[0][at], self._stamps[1][at]
        return seq if isinstance(seq, int) else None, etag if isinstance(etag, str) else None

    @cached_property
    def cut(self) -> Sequence[int]:
        cells = self._column(CUT) if CUT in self._blocks else []
        return [at for at, cell in enumerate(cells) if not isinstance(cell, Missing)]

    @cached_property
    def _stamps(self) -> tuple[Cells, Cells]:
        return self._inflated(self._contents.seqs), self._inflated(self._contents.etags)

    def manifest(self, model: str) -> Manifest:
        """The whole content as in the partition. Columns must be the same as a whole and group by group."""
        columns = [(block.name, self._column(block.name)) for block in self._contents.fields]
        for block, (name, cells) in zip(self._contents.fields, columns, strict=True):
            groups = range(0 if block.values else len(block.groups))
            if groups and [cell for number in groups for cell in self._inflated_group(block, number)] != cells:
                raise Corrupt(f"the groups of {name!r} do not match the column", key=self._key, hint=REPAIR)
        entities = {entity_id: _row(columns, at) for at, entity_id in enumerate(self.ids)}
        return Manifest(model, entities, dict(self.seqs), etags=dict(self.etags))

    def _column(self, name: str) -> Cells:
        found = self._cells.get(name)
        if found is None:
            block = self._blocks.get(name)
            if block is None:
                found = [MISSING] * self.count
            else:
                found = cast(Cells, self._by_values(block).cells()) if block.values else self._inflated(block)
            self._cells[name] = found
        return found

    def _part(self, block: ColumnBlock, number: int) -> Cells:
        """One group of a column, taken from the whole column if that is loaded."""
        whole, start = self._cells.get(block.name), number * self._contents.group
        end = start + self._contents.group
        if whole is None and block.values:
            return cast(Cells, self._by_values(block).cells(start, end))
        return self._inflated_group(block, number) if whole is None else whole[start:end]

    def _by_values(self, block: ColumnBlock) -> Coded:
        found = self._coded.get(block.name)
        if found is None:
            found = self._coded[block.name] = coded_of(self._body, block, self.count, self._key)
        return found

    def _inflated_group(self, block: ColumnBlock, number: int) -> Cells:
        count = min(self._contents.group, self._contents.rows - number * self._contents.group)
        return group_of(self._body, block, number, count, self._key)

    def _inflated(self, block: ColumnBlock) -> Cells:
        return cells_of(self._body, block, self._contents.rows, self._key)

    def _as_ids(self, cells: Cells) -> list[str]:
        check_shape(cells, list_of(TEXT), self._key, hint=REPAIR)
        return cast("list[str]", cells)

    def _by_id(self, block: ColumnBlock, kind: Kind) -> dict[str, JsonValue]:
        cells = zip(self.ids, self._inflated(block), strict=True)
        found = {one: cell for one, cell in cells if not isinstance(cell, Missing)}
        check_shape(found, kind, self._key, hint=REPAIR)
        (others,) = cells_of(self._body, self._contents.others, 1, self._key)
        check_shape(others, OTHERS, self._key, hint=REPAIR)
        return found | cast("dict[str, JsonObject]", others)[block.name]


def _row(columns: Iterable[tuple[str, Cells]], at: int) -> Row:
    return {
        name: copied(cell) if type(cell) in CONTAINERS else cell
        for name, cells in columns
        if not isinstance(cell := cells[at], Missing)
    }


# Files

READERS = 32
_PARTITION, _COLUMNS = ".json", ".columns"


def column_file(file: str) -> str:
    """The name of the column file of a partition."""
    return file.removesuffix(_PARTITION) + _COLUMNS


def column_files(pieces: Iterable[Piece]) -> set[str]:
    """The column files that must exist."""
    return {column_file(piece.file) for piece in pieces if piece.columns}


class ColumnFiles:
    """The column files of one directory."""

    def __init__(self, store: Store, directory: str) -> None:
        self._store = store
        self._directory = directory
        self._sizes: dict[str, int] = {}

    def drafted(self, file: str, part: Manifest) -> tuple[int, bytes | None]:
        """The size of the column file of a partition, and its bytes unless it is known to exist. Deltas have none: they
        are small and always read completely."""
        if not file.startswith("partition-"):
            return 0, None
        if file in self._sizes:
            return self._sizes[file], None
        if len(set[str]().union(*part.entities.values())) > COLUMNS_MAX:
            return 0, None
        body = encode_columns(part, _hash(file))
        return len(body), body

    def put(self, file: str, body: bytes) -> None:
        """Unconditional: any earlier writer wrote the same bytes, and this replaces a damaged file."""
        self._store.put(self._key(file), body)
        self._sizes[file] = len(body)

    def learn(self, pieces: Iterable[Piece]) -> None:
        """A root names these, so their column files exist."""
        self._sizes |= {piece.file: piece.columns for piece in pieces if piece.columns}

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Forget all other files."""
        named = {piece.file for piece in pieces}
        self._sizes = {file: size for file, size in self._sizes.items() if file in named}

    def get(self, pieces: Sequence[Piece], fields: Sequence[str] = ()) -> list[ColumnPart | Corrupt]:
        """Concurrent reads; `Corrupt` in place of a file that is gone or damaged. The thread that read a file checks it
        and decodes the cells of the fields, while others wait for theirs."""
        return in_parallel(lambda piece: self._read(piece, fields), pieces, READERS)

    def audit(self, pieces: Iterable[Piece], partitions: Iterable[Manifest]) -> Iterator[tuple[str, str, str]]:
        """The differences between column files and their partitions: kind, key, detail."""
        for piece, partition in zip(pieces, partitions, strict=True):
            key = self._key(piece.file)
            try:
                (rows,) = self.get([piece])
                if isinstance(rows, Corrupt):
                    raise rows
                if rows.manifest(partition.model).encode() != partition.encode():
                    yield "columns-differ", key, f"does not match its partition ({REPAIR})"
            except Corrupt as damage:
                yield "columns-damaged", key, f"{damage.message} ({REPAIR})"

    def _read(self, piece: Piece, fields: Sequence[str]) -> ColumnPart | Corrupt:
        key = self._key(piece.file)
        found = self._store.get(key)
        if found is None:
            return Corrupt("the column file is gone", key=key, hint=REPAIR)
        try:
            rows = ColumnPart(found.body, key, _hash(piece.file), piece.size)
            rows.prepare(fields)
        except Corrupt as damage:
            return damage
        return rows

    def _key(self, file: str) -> str:
        return self._directory + column_file(file)


def _hash(file: str) -> str:
    return file.removesuffix(_PARTITION).rpartition("-")[2]
