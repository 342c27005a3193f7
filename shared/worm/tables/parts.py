"""Parts: the rows of one file or range of ids, in different representations.

There are three layers between the bytes of a table and a row: parts, the view of a table (`view.py`) that holds them,
and the columns (`columns.py`) that queries read.

- `ParsedPart`: rows in memory.
- `RawPart`: one JSON file, kept as the bytes that were read. Opening it finds where each row starts and ends. The cells
  of a field are decoded for all rows in one pass at its first use; a whole row is decoded when it is requested.
- `ParquetPart` (`parquet_part.py`): a Parquet file.
- `MergedPart`: a partition, and newer rows of its ids from deltas.
Each gives the values that parsing the JSON file gives.

A part has the cells of a field (`cells.py`), and may also have them as arrays (`typed.py`).

`RawPart` needs the package msgspec (extra `fast`), which is imported when the first file is opened. Without it,
`is_available` is False and readers parse whole files. The Lambda functions change tables and need all of each file, so
they parse it anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from worm.collections import CUT, REBUILT, Row
from worm.errors import Corrupt
from worm.formats import MISSING, loads_own, shapes
from worm.tables.cells import Cell, copied, reader, with_descent
from worm.tables.manifest import ETAGS, SEQS, Manifest
from worm.tables.sealed import is_intact

if TYPE_CHECKING:
    from arro3.core import Array
    from msgspec import Raw

    from worm.tables.typed import Typed


@cache
def has_arrays() -> bool:
    """Whether the packages of `typed.py` are installed."""
    return all(map(find_spec, ("numpy", "arro3.compute")))


# Kinds of parts

Stamp: TypeAlias = "tuple[int | None, str | None]"
"""The seq and etag of a row, if its table has them."""


class Part(Protocol):
    """Rows in the order of their ids."""

    @property
    def count(self) -> int:
        """The number of rows."""
        ...

    @property
    def ids(self) -> Sequence[str]: ...
    def id(self, at: int) -> str: ...
    @property
    def seqs(self) -> Mapping[str, int]: ...
    @property
    def etags(self) -> Mapping[str, str]: ...
    def row(self, at: int) -> Row:
        """A row that the caller may change."""
        ...

    def stamp(self, at: int) -> Stamp: ...
    @property
    def cut(self) -> Sequence[int]:
        """The positions of rows that lack values of their documents (`entries.CUT`), ascending."""
        ...

    def cells(self, field: str) -> list[Cell]:
        """The cell of the field in each row."""
        ...

    def typed(self, field: str) -> Typed | None:
        """The cells as arrays, if they are kept that way; also of the field `id`."""
        ...

    def exact(self, field: str, type: str | None) -> Array | None:
        """The column of a Parquet file, if it is of this type and has every value of the field as the row has it."""
        ...

    def prepare(self, fields: Iterable[str]) -> None:
        """Decode the cells of all these fields."""
        ...

    def names(self) -> set[str]:
        """The names in its rows, and perhaps some that no row has anymore."""
        ...


class ParsedPart:
    """Rows in memory: from a file that was parsed or that this process wrote, or from documents. `rows` belong to the
    caller."""

    def __init__(
        self,
        ids: Sequence[str],
        rows: Sequence[Row],
        seqs: Mapping[str, int] | None = None,
        etags: Mapping[str, str] | None = None,
    ) -> None:
        self.ids = ids
        self.rows = rows
        self.count = len(rows)
        self.seqs = seqs or {}
        self.etags = etags or {}

    @classmethod
    def of(cls, manifest: Manifest) -> ParsedPart:
        ids = sorted(manifest.entities)
        return cls(ids, list(map(manifest.entities.__getitem__, ids)), manifest.seqs, manifest.etags)

    def id(self, at: int) -> str:
        return self.ids[at]

    def row(self, at: int) -> Row:
        return {name: copied(value) for name, value in self.rows[at].items()}

    def stamp(self, at: int) -> Stamp:
        return self.seqs.get(self.ids[at]), self.etags.get(self.ids[at])

    @cached_property
    def cut(self) -> Sequence[int]:
        return [at for at, row in enumerate(self.rows) if CUT in row]

    def cells(self, field: str) -> list[Cell]:
        if "." not in field:
            try:
                return list(map(itemgetter(field), self.rows))  # fast, as long as every row has the field
            except KeyError:
                return [row.get(field, MISSING) for row in self.rows]
        return list(map(reader(field), self.rows))

    def typed(self, field: str) -> Typed | None:
        return None

    def exact(self, field: str, type: str | None) -> None:
        return None

    def prepare(self, fields: Iterable[str]) -> None:
        """Does nothing: the rows are in memory."""

    def names(self) -> set[str]:
        return set[str]().union(*self.rows)


class MergedPart:
    """A partition and newer rows of its ids from deltas. Positions count through both, the partition first."""

    def __init__(self, base: Part, newer: Manifest) -> None:
        self._base = base
        self._newer = newer
        self._fresh = ParsedPart.of(newer)
        both = [*base.ids, *self._fresh.ids]
        left = [at for at, entity_id in enumerate(base.ids) if entity_id not in newer.seqs]
        self._order = sorted([*left, *range(len(base.ids), len(both))], key=both.__getitem__)
        self.ids: Sequence[str] = list(map(both.__getitem__, self._order))

    @classmethod
    def of(cls, base: Part, delta: Manifest) -> Part:
        """Only newer rows count. A partition of a model without an oplog has no seqs: every row is newer."""
        if not delta.seqs:
            return base
        newer = [entity_id for entity_id, seq in delta.seqs.items() if seq > base.seqs.get(entity_id, 0)]
        return cls(base, delta.part(newer)) if newer else base

    @property
    def count(self) -> int:
        return len(self.ids)

    def id(self, at: int) -> str:
        return self.ids[at]

    @property
    def seqs(self) -> Mapping[str, int]:
        return {**self._base.seqs, **self._newer.seqs}

    @property
    def etags(self) -> Mapping[str, str]:
        left = {one: etag for one, etag in self._base.etags.items() if one not in self._newer.seqs}
        return {**left, **self._newer.etags}

    def row(self, at: int) -> Row:
        beyond = self._order[at] - len(self._base.ids)
        if beyond < 0:
            return self._base.row(self._order[at])
        return self._fresh.row(beyond)

    def stamp(self, at: int) -> Stamp:
        beyond = self._order[at] - len(self._base.ids)
        return self._base.stamp(self._order[at]) if beyond < 0 else self._fresh.stamp(beyond)

    @cached_property
    def cut(self) -> Sequence[int]:
        both = {*self._base.cut, *(len(self._base.ids) + at for at in self._fresh.cut)}
        return [at for at, place in enumerate(self._order) if place in both] if both else []

    def cells(self, field: str) -> list[Cell]:
        both = [*self._base.cells(field), *self._fresh.cells(field)]
        return list(map(both.__getitem__, self._order))

    def typed(self, field: str) -> Typed | None:
        base, fresh = self._base.typed(field), self._fresh
        return None if base is None else base.merged(fresh.ids if field == "id" else fresh.cells(field), self._order)

    def exact(self, field: str, type: str | None) -> None:
        return None

    def prepare(self, fields: Iterable[str]) -> None:
        self._base.prepare(fields)

    def names(self) -> set[str]:
        return self._base.names() | self._fresh.names()


HASH_BESIDE_BYTES = 1 << 20
"""From this size, a file is hashed while it is opened; below it, the thread costs more than the hash."""
NAMES_MAX = 32
"""Looking up a key costs one comparison per name; for more names, it is faster to parse the whole row."""


@cache
def is_available() -> bool:
    """Whether msgspec is installed."""
    return find_spec("msgspec") is not None


class _File(Protocol):
    """The members of a manifest file that readers need; rows, seqs and etags stay undecoded."""

    version: int
    revision: int
    lastUpdated: str  # noqa: N815 - the member's name in the file
    fields: list[str]
    oplog: bool
    cut: int
    entities: dict[str, Raw]
    seqs: Raw
    etags: Raw


class RawPart:
    """The rows of an intact manifest or partition. Decoded cells are kept, rows are not. Anything wrong in a manifest
    is `Corrupt` when the file is opened, or when the wrong cells, rows or seqs are used."""

    def __init__(self, body: bytes, key: str) -> None:
        self._key = key
        self._file = _opened(body, key)
        self.ids: Sequence[str] = list(self._file.entities)
        self._raws = list(self._file.entities.values())
        self._file.entities = {}
        self._cells: dict[str, list[Cell]] = {}

    @classmethod
    def of_root(cls, body: bytes, key: str, fields: Sequence[str] = ()) -> RawPart | None:
        """A table in one file. None if the root has to be parsed: without msgspec, if the table is partitioned, or if
        something is wrong, so that parsing reports it. The cells of `fields` are decoded while a large file is
        hashed."""
        if not is_available():
            return None
        try:
            if len(body) < HASH_BESIDE_BYTES:
                return cls(body, key) if is_intact(body) else None
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1, "worm-hash") as beside:  # hashing runs while the file is opened
                intact = beside.submit(is_intact, body)
                opened = cls(body, key)
                opened.prepare(fields)
            return opened if intact.result() else None
        except Corrupt:  # also a root that names files: it has no rows
            return None

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def revision(self) -> int:
        return self._file.revision

    @property
    def last_updated(self) -> str:
        return self._file.lastUpdated

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self._file.fields)

    @property
    def oplog(self) -> bool:
        return self._file.oplog

    @cached_property
    def seqs(self) -> dict[str, int]:
        found = loads_own(memoryview(self._file.seqs), self._key)
        shapes.check(found, SEQS, self._key, hint=REBUILT)
        return cast("dict[str, int]", found)

    @cached_property
    def etags(self) -> dict[str, str]:
        found = loads_own(memoryview(self._file.etags), self._key)
        shapes.check(found, ETAGS, self._key, hint=REBUILT)
        return cast("dict[str, str]", found)

    def id(self, at: int) -> str:
        return self.ids[at]

    def row(self, at: int) -> Row:
        """Parsed for each call, so the caller may change it."""
        return loads_own(memoryview(self._raws[at]), self._key)

    def stamp(self, at: int) -> Stamp:
        return self.seqs.get(self.ids[at]), self.etags.get(self.ids[at])

    @cached_property
    def cut(self) -> Sequence[int]:
        return [at for at in range(self.count) if CUT in self.row(at)] if self._file.cut else []

    def cells(self, field: str) -> list[Cell]:
        """The cell of the field in each row."""
        self.prepare((field,))
        return self._cells[field]

    def typed(self, field: str) -> Typed | None:
        return None

    def exact(self, field: str, type: str | None) -> None:
        return None

    def prepare(self, fields: Iterable[str]) -> None:
        """Decode the cells of all these fields in one pass."""
        wanted = [field for field in fields if field not in self._cells]
        if wanted:
            self._cells |= self._decoded(wanted)

    def names(self) -> set[str]:
        return set[str]().union(*map(self.row, range(self.count)))

    def _decoded(self, fields: Sequence[str]) -> dict[str, list[Cell]]:
        names = tuple(dict.fromkeys(name for field in fields for name in (field, field.partition(".")[0])))
        decode = _row_decoder(names) if len(names) <= NAMES_MAX else None
        if decode is None:
            rows = list(map(self.row, range(len(self.ids))))
            return {field: list(map(reader(field), rows)) for field in fields}
        try:
            decoded = list(map(decode, self._raws))
        except (ValueError, RecursionError) as error:  # every error of msgspec is a ValueError
            raise Corrupt(f"a row is not an object: {error}", key=self._key, hint=REBUILT) from error
        found = {name: list(map(attrgetter(_attribute(at)), decoded)) for at, name in enumerate(names)}
        return {field: with_descent(field, found) for field in fields}


def _attribute(at: int) -> str:
    return f"cell{at}"


def _opened(body: bytes, key: str) -> _File:
    try:
        file = cast(_File, _file_decoder()(body))
    except (ValueError, RecursionError) as error:  # every error of msgspec is a ValueError
        raise Corrupt(f"not a manifest: {error}", key=key, hint=REBUILT) from error
    if file.version != 1:
        raise Corrupt(
            f"not a manifest that this version of worm reads: version must be 1, not {file.version}",
            key=key,
            hint=REBUILT,
        )
    return file


@cache
def _file_decoder() -> Callable[[bytes], object]:
    import msgspec

    members: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        ("version", int),
        ("revision", int),
        ("lastUpdated", str),
        ("entities", dict[str, msgspec.Raw]),
        ("seqs", msgspec.Raw),
        ("fields", list[str], msgspec.field(default_factory=list)),
        ("oplog", bool, True),
        ("cut", int, 0),
        ("etags", msgspec.Raw, msgspec.Raw(b"{}")),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("File", members)).decode


@lru_cache(maxsize=256)
def _row_decoder(names: tuple[str, ...]) -> Callable[[Raw], object] | None:
    """Converts rows to objects with an attribute per name, MISSING if the row lacks the key. None for names that
    msgspec does not accept (quotes, backslashes, control characters, lone surrogates)."""
    import msgspec

    try:
        members = [(_attribute(at), Any, msgspec.field(default=MISSING, name=name)) for at, name in enumerate(names)]
        return msgspec.json.Decoder(msgspec.defstruct("Cells", members, gc=False)).decode
    except ValueError:
        return None
