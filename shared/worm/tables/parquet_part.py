"""Reading Parquet files (`parquet.py`): the rows of one file as a part, and the files of one model.

The rest of the library sees a file as a `ParquetPart`: every value is the same as in the parsed partition, and a row
has its keys in the same order. A file whose CRC-32 does not match is `Corrupt` when it is opened.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import orjson

from worm.collections import CUT, Row
from worm.errors import Corrupt
from worm.formats import MISSING, JsonObject, JsonValue, Missing, loads_own, shapes, type_name
from worm.store import Object, Store, in_parallel
from worm.tables.cells import CONTAINERS, Cell, copied, with_descent
from worm.tables.manifest import ETAGS, SEQS, Manifest
from worm.tables.parquet import (
    CRC_MARK,
    ETAG,
    EXACT,
    FORMS,
    ID,
    NO_CRC,
    REST,
    SEQ,
    VERSION,
    Cells,
    ColumnKind,
    LakeColumn,
    Type,
    array_of,
    encode_parquet,
    values_of,
    written,
)
from worm.tables.parts import Stamp, has_arrays
from worm.tables.root import Piece

if TYPE_CHECKING:
    from arro3.core import Array, Table

    from worm.tables.typed import Typed, TypedKind

REPAIR = "run `worm repair` to rebuild it"
OTHERS = shapes.record("what is known of ids without a row", {"seqs": SEQS, "etags": ETAGS})
META = shapes.record(
    "the description of a Parquet file that this version of worm reads",
    {
        "version": shapes.one_of(VERSION),
        "of": shapes.TEXT,
        "forms": shapes.object_of(shapes.one_of(*FORMS)),
        "others": OTHERS,
        "stats": shapes.OBJECT,
    },
    {"crc32": shapes.TEXT},
)
_TYPED: dict[Type, TypedKind] = {
    "string": "text",
    "long": "int",
    "double": "float",
    "boolean": "bool",
    "timestamp": "text",
}
_BATCH = 1 << 24  # rows: a file is one batch
_FEW_ROWS = 8  # below this share of the rows, each is decoded alone


class Decoded(Protocol):
    """The columns of an intact file. `about`: what we say about it ourselves, as JSON."""

    names: list[str]
    count: int
    about: bytes

    def column(self, name: str) -> Array: ...


class WholeFile:
    """Decodes all columns at once: arro3 cannot select some."""

    def __init__(self, body: bytes) -> None:
        from arro3.io import read_parquet

        reader = read_parquet(body, batch_size=_BATCH)
        self.about = reader.schema.metadata.get(b"worm", b"{}")
        self._table: Table = reader.read_all()
        self.names = self._table.column_names
        self.count = self._table.num_rows

    def column(self, name: str) -> Array:
        return self._table.column(name).combine_chunks()


class ParquetPart:
    """An intact Parquet file. A field is decoded when it is first used. `of`: the hash in the partition's name."""

    def __init__(
        self,
        body: bytes,
        key: str,
        of: str,
        columns: Sequence[LakeColumn],
        decode: Callable[[bytes], Decoded] = WholeFile,
    ) -> None:
        check_crc(body, key)
        self._file = decode(body)
        meta = loads_own(self._file.about, key)
        shapes.check(meta, META, key, hint=REPAIR)
        if meta["of"] != of:
            raise Corrupt(f"belongs to another partition: {meta['of']}", key=key, hint=REPAIR)
        self.count = self._file.count
        self.stats = cast(JsonObject, meta["stats"])
        self._key = key
        self._forms = cast("dict[str, str]", meta["forms"])
        self._others = cast("dict[str, JsonObject]", meta["others"])
        self._columns = {column.field: column for column in columns}
        self._kinds = {one.name: one.kind for one in columns if one.kind.type in ("long", "double", "boolean")}
        names = {ID, SEQ, ETAG, REST, *(column.name for column in columns)}
        names |= {EXACT + one.name for one in columns if _is_beside(one.kind, self._forms.get(one.name))}
        if not names <= set(self._file.names):
            raise Corrupt("it has other columns", key=key, hint=REPAIR)
        self._arrays: dict[str, Array] = {}
        self._cells: dict[str, Cells] = {}
        self._fields: dict[str, list[Cell]] = {}
        self._typed: dict[str, Typed | None] = {}
        self._rows_left = self.count // _FEW_ROWS

    @cached_property
    def ids(self) -> Sequence[str]:
        return values_of(self.array(ID))

    def id(self, at: int) -> str:
        return self.ids[at] if "ids" in self.__dict__ else cast(str, self.array(ID)[at].as_py())

    @cached_property
    def seqs(self) -> Mapping[str, int]:
        return cast("dict[str, int]", self._by_id(SEQ, "seqs"))

    @cached_property
    def etags(self) -> Mapping[str, str]:
        return cast("dict[str, str]", self._by_id(ETAG, "etags"))

    def stamp(self, at: int) -> Stamp:
        others, one = self._others["seqs"], self.id(at)
        seq, etag = self.array(SEQ)[at].as_py(), self.array(ETAG)[at].as_py()
        return cast(Stamp, (others.get(one) if seq is None else seq, etag))

    @property
    def cut(self) -> Sequence[int]:
        return [at for at, rest in self.rest.items() if CUT in rest]

    @cached_property
    def rest(self) -> Mapping[int, Row]:
        """By row, what the typed columns do not hold."""
        texts = self.array(REST)
        if texts.null_count == self.count:
            return {}
        found = {at: text for at, text in enumerate(values_of(texts)) if text is not None}
        return dict(zip(found, cast("list[Row]", self._parsed(found.values())), strict=True))

    @cached_property
    def inexact(self) -> frozenset[str]:
        """The fields that are in `rest` for some row."""
        return frozenset[str]().union(*self.rest.values())

    def array(self, name: str) -> Array:
        """A column of the file."""
        found = self._arrays.get(name)
        if found is None:
            kind = self._kinds.get(name, ColumnKind("string"))
            found = self._file.column(name) if self.count else array_of([], kind)
            self._arrays[name] = found
        return found

    def form(self, name: str) -> str | None:
        return self._forms.get(name)

    def column(self, field: str) -> LakeColumn | None:
        return self._columns.get(field)

    def cells(self, field: str) -> list[Cell]:
        """The cell of the field in each row."""
        found = self._fields.get(field)
        if found is None:
            names = (field, field.partition(".")[0])
            found = self._fields[field] = with_descent(field, {name: self._column(name) for name in names})
        return found

    def typed(self, field: str) -> Typed | None:
        """The cells as arrays, unless some of them are elsewhere too: in the rest, or in the object of a path."""
        if field not in self._typed:
            apart = self.inexact.union(self._columns if "." in field else ())
            is_plain = has_arrays() and field not in self.inexact and field.partition(".")[0] not in apart - {field}
            self._typed[field] = self._as_arrays(field) if is_plain else None
        return self._typed[field]

    def _as_arrays(self, field: str) -> Typed | None:
        from worm.tables.typed import Typed

        column = self._columns.get(field)
        if field == ID:
            return Typed("text", self.array(ID))
        kind = None if column is None else _TYPED.get(column.kind.type)
        if column is None or kind is None:
            return None
        name, form = column.name, self._forms.get(column.name)
        if kind == "float" and form is not None:
            return Typed("number", self.array(name))
        if EXACT + name in self._file.names:
            return Typed(kind, self.array(EXACT + name)) if kind == "text" else None
        if column.kind.type != "timestamp" or form is None:
            return Typed(kind, self.array(name))
        return Typed(kind, array_of(written(self.array(name), form), ColumnKind("string")))

    def exact(self, field: str, type: str | None) -> Array | None:
        if field in self.inexact or "." in field:
            return None
        if field == ID:
            return self.array(ID) if type == "string" else None
        column = self.column(field)
        if column is None or column.kind.type != type or (type == "timestamp" and self.form(column.name) is None):
            return None
        return self.array(column.name)

    def prepare(self, fields: Iterable[str]) -> None:
        """Decode the cells of these fields, unless arrays have them."""
        for field in fields:
            if self.typed(field) is None:
                self.cells(field)

    def names(self) -> set[str]:
        """The names of all columns, and those of the rest."""
        return {*self.inexact, *self._columns} - {CUT}

    def row(self, at: int) -> Row:
        """A row that the caller may change. After some rows, all columns are decoded and kept."""
        if self._rows_left > 0:
            self._rows_left -= 1
            cells = {field: self._decoded(column, at, 1)[0] for field, column in self._columns.items()}
        else:
            cells = {field: self._column(field)[at] for field in self._columns}
        cells |= self.rest.get(at, {})
        return {
            name: copied(cell) if type(cell) in CONTAINERS else cell
            for name, cell in sorted(cells.items())
            if not isinstance(cell, Missing)
        }

    def manifest(self, model: str) -> Manifest:
        """The whole content as in the partition."""
        self._rows_left = 0
        entities = {entity_id: self.row(at) for at, entity_id in enumerate(self.ids)}
        return Manifest(model, entities, dict(self.seqs), etags=dict(self.etags))

    def _column(self, field: str) -> Cells:
        found = self._cells.get(field)
        if found is None:
            column = self._columns.get(field)
            found = [MISSING] * self.count if column is None else self._decoded(column, 0, self.count)
            if field in self.inexact:
                for at, rest in self.rest.items():
                    found[at] = rest.get(field, found[at])
            self._cells[field] = found
        return found

    def _decoded(self, column: LakeColumn, start: int, count: int) -> Cells:
        name, kind = column.name, column.kind
        if kind.type == "json" or kind.is_nested:
            texts = self._slice(EXACT + name if kind.is_nested else name, start, count)
            parsed = iter(self._parsed(text for text in texts if text is not None))
            return [MISSING if text is None else next(parsed) for text in texts]
        if kind.type == "timestamp":
            form = self._forms.get(name)
            if form is None:
                return _missing_for_none(self._slice(EXACT + name, start, count))
            return _missing_for_none(written(self.array(name).slice(start, count), form))
        values = self._slice(name, start, count)
        if kind.type == "double":
            values = self._exact_numbers(name, values, start)
        return _missing_for_none(values)

    def _exact_numbers(self, name: str, numbers: list[float | None], start: int) -> list[float | int | None]:
        if self._forms.get(name) == "integers":
            return [int(one) if one is not None and one.is_integer() else one for one in numbers]
        if EXACT + name not in self._file.names:
            return list[float | int | None](numbers)
        whole = self._slice(EXACT + name, start, len(numbers))
        return [int(one) if one is not None and flag else one for one, flag in zip(numbers, whole, strict=True)]

    def _slice(self, name: str, start: int, count: int) -> list[Any]:
        return values_of(self.array(name).slice(start, count))

    def _parsed(self, texts: Iterable[object]) -> list[JsonValue]:
        return _array_of(f"[{','.join(cast('Iterable[str]', texts))}]".encode(), self._key)

    def _by_id(self, name: str, kind: str) -> dict[str, object]:
        cells = zip(self.ids, values_of(self.array(name)), strict=True)
        return {one: cell for one, cell in cells if cell is not None} | cast("dict[str, object]", self._others[kind])


def _array_of(body: bytes, key: str) -> list[JsonValue]:
    """The items of a JSON array that this library wrote. `Corrupt`, naming the key, if it is not one."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"not valid JSON: {error}", key=key) from error
    if not isinstance(value, list):
        raise Corrupt(f"must hold a JSON array, not {type_name(value)}", key=key)
    return value


def _is_beside(kind: ColumnKind, form: str | None) -> bool:
    """Whether the exact values must be in their own column."""
    return kind.is_nested or (kind.type == "timestamp" and form is None)


def check_crc(body: bytes, key: str) -> None:
    """`Corrupt` unless every byte is as it was written."""
    start = body.rfind(CRC_MARK) + len(CRC_MARK)
    end = start + len(NO_CRC)
    crc = zlib.crc32(memoryview(body)[end:], zlib.crc32(NO_CRC, zlib.crc32(memoryview(body)[:start])))
    if start < len(CRC_MARK) or body[start:end] != b"%08x" % crc:
        raise Corrupt("not a Parquet file of this table, or damaged", key=key, hint=REPAIR)


def _missing_for_none(values: Sequence[object]) -> Cells:
    if None not in values:
        return cast(Cells, values)
    return [MISSING if value is None else cast(JsonValue, value) for value in values]


# Files

READERS = 32
_PARTITION, _PARQUET = ".json", ".parquet"


class ParquetFiles:
    """The Parquet files of one model. `directory`: where they are. `decode`: how they are read."""

    def __init__(self, store: Store, directory: str, columns: Sequence[LakeColumn]) -> None:
        self.decode: Callable[[bytes], Decoded] = WholeFile
        self.directory = directory
        self.columns = columns
        self._store = store
        self._sizes: dict[str, int] = {}
        self._form = hashlib.sha256(repr((VERSION, columns)).encode()).hexdigest()

    def file(self, partition: str) -> str:
        """The name of the Parquet file of a partition."""
        stem, _, of = partition.removesuffix(_PARTITION).rpartition("-")
        return f"{stem}-{hashlib.sha256(f'{of}{self._form}'.encode()).hexdigest()[: len(of)]}{_PARQUET}"

    def files(self, pieces: Iterable[Piece]) -> set[str]:
        """The Parquet files that must exist."""
        return {self.file(piece.file) for piece in pieces if piece.parquet}

    def listed(self) -> set[str]:
        """The existing files."""
        return {one.key.removeprefix(self.directory) for one in self._store.list(f"{self.directory}partition-")}

    def drafted(self, file: str, part: Manifest) -> tuple[int, bytes | None]:
        """The size of the Parquet file of a partition, and its bytes unless it is known to exist. Deltas have none:
        they are small and always read completely."""
        if not file.startswith("partition-"):
            return 0, None
        if file in self._sizes:
            return self._sizes[file], None
        body = encode_parquet(part, self.columns, _hash(file))
        return len(body), body

    def put(self, file: str, body: bytes) -> None:
        """Unconditional: any earlier writer wrote the same content, and this replaces a damaged file."""
        self._store.put(self._key(file), body)
        self._sizes[file] = len(body)

    def learn(self, pieces: Iterable[Piece]) -> None:
        """A root names these, so their Parquet files exist."""
        self._sizes |= {piece.file: piece.parquet for piece in pieces if piece.parquet}

    def keep(self, pieces: Iterable[Piece]) -> None:
        """Forget all other files."""
        named = {piece.file for piece in pieces}
        self._sizes = {file: size for file, size in self._sizes.items() if file in named}

    def get(self, pieces: Sequence[Piece], fields: Sequence[str] = ()) -> list[ParquetPart | Corrupt]:
        """Concurrent reads; `Corrupt` in place of a file that is gone or damaged. A file is checked and decoded when it
        arrives, by one of a few threads: the memory of a file is several times its size, and each thread keeps some."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(os.cpu_count(), "worm-decode") as decoders:

            def read(piece: Piece) -> ParquetPart | Corrupt:
                found = self._store.get(self._key(piece.file))
                try:
                    decoding = decoders.submit(self._decoded, piece, found, fields)
                except RuntimeError:  # the interpreter is shutting down and starts no more threads
                    return self._decoded(piece, found, fields)
                return decoding.result()

            return in_parallel(read, pieces, READERS)

    def audit(self, pieces: Iterable[Piece], partitions: Iterable[Manifest]) -> Iterator[tuple[str, str, str]]:
        """The differences between Parquet files and their partitions: kind, key, detail."""
        for piece, partition in zip(pieces, partitions, strict=True):
            key = self._key(piece.file)
            (rows,) = self.get([piece])
            if isinstance(rows, Corrupt):
                yield "parquet-damaged", key, f"{rows.message} ({REPAIR})"
            elif rows.manifest(partition.model).encode() != partition.encode():
                yield "parquet-differs", key, f"does not match its partition ({REPAIR})"

    def _decoded(self, piece: Piece, found: Object | None, fields: Sequence[str]) -> ParquetPart | Corrupt:
        key = self._key(piece.file)
        if found is None:
            return Corrupt("the Parquet file is gone", key=key, hint=REPAIR)
        try:
            rows = ParquetPart(found.body, key, _hash(piece.file), self.columns, self.decode)
            rows.prepare(fields)
        except Corrupt as damage:
            return damage
        return rows

    def _key(self, partition: str) -> str:
        return self.directory + self.file(partition)


def _hash(file: str) -> str:
    return file.removesuffix(_PARTITION).rpartition("-")[2]
