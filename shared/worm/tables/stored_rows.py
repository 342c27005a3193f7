"""The rows of one file of a table, kept as the bytes that were read: what a query does not need is never parsed.

Opening a file finds where each row starts and ends. The cells of a field are decoded for all rows in one pass when the
field is asked for, a whole row when the row is. Every value is the one that parsing the file would give.

It takes the package msgspec (extra `fast`), which is imported at the first file. Without it `is_available` is False and
readers parse files whole; the Lambda functions, which change tables and so need all of it, do that anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, lru_cache
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, cast

from worm.codec.field_path import MISSING, Missing
from worm.codec.sealed import is_intact
from worm.codec.strict_json import JsonValue, loads_own
from worm.collections.changes import Row
from worm.errors import Corrupt
from worm.tables.coded import Coded
from worm.tables.columns import Cell, descend, reader

if TYPE_CHECKING:
    from msgspec import Raw

HASH_BESIDE_BYTES = 1 << 20
"""From this size on a file is hashed while it is opened; below it the thread costs more than the hash."""
NAMES_MAX = 32
"""Looking a key up costs a comparison per wanted name; for more names a row is better parsed whole."""


@cache
def is_available() -> bool:
    """Is msgspec installed?"""
    return find_spec("msgspec") is not None


class _File(Protocol):
    """The members of a manifest file that concern readers; rows, seqs and etags as they are written."""

    version: int
    revision: int
    lastUpdated: str  # noqa: N815 - the member's name in the file
    fields: list[str]
    oplog: bool
    entities: dict[str, Raw]
    seqs: Raw
    etags: Raw


class StoredRows:
    """The rows of an intact manifest or partition. Decoded cells are kept, rows are not."""

    def __init__(self, body: bytes, key: str) -> None:
        self._key = key
        self._file = _opened(body, key)
        self.ids: Sequence[str] = list(self._file.entities)
        self._raws = list(self._file.entities.values())
        self._file.entities = {}
        self._cells: dict[str, list[Cell]] = {}

    @classmethod
    def of_root(cls, body: bytes, key: str, fields: Sequence[str] = ()) -> StoredRows | None:
        """A whole table. None where the root has to be parsed: without msgspec, when the table is spread over files, or
        when something is wrong, so that parsing says what. The cells of `fields` are decoded while a large one is
        hashed."""
        if not is_available():
            return None
        from msgspec import MsgspecError

        try:
            if len(body) < HASH_BESIDE_BYTES:
                return cls(body, key) if is_intact(body) else None
            with ThreadPoolExecutor(1, "worm-hash") as beside:  # hashing leaves the interpreter to the opening
                intact = beside.submit(is_intact, body)
                opened = cls(body, key)
                opened.prepare(fields)
            return opened if intact.result() else None
        except (Corrupt, MsgspecError, ValueError, RecursionError):  # also a root that names files: it has no rows
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
        return cast("dict[str, int]", loads_own(memoryview(self._file.seqs), self._key))

    @cached_property
    def etags(self) -> dict[str, str]:
        return cast("dict[str, str]", loads_own(memoryview(self._file.etags), self._key))

    def id(self, at: int) -> str:
        return self.ids[at]

    def row(self, at: int) -> Row:
        """Parsed anew: it is the caller's."""
        return loads_own(memoryview(self._raws[at]), self._key)

    def cells(self, field: str) -> list[Cell]:
        """What the field's path finds in each row."""
        self.prepare((field,))
        return self._cells[field]

    def coded(self, field: str) -> Coded | None:
        return None

    def prepare(self, fields: Iterable[str]) -> None:
        """Decode the cells of all these fields in one pass."""
        wanted = [field for field in fields if field not in self._cells]
        if wanted:
            self._cells |= self._decoded(wanted)

    def _decoded(self, fields: Sequence[str]) -> dict[str, list[Cell]]:
        names = tuple(dict.fromkeys(name for field in fields for name in (field, field.partition(".")[0])))
        decode = _row_decoder(names) if len(names) <= NAMES_MAX else None
        if decode is None:
            rows = list(map(self.row, range(len(self.ids))))
            return {field: list(map(reader(field), rows)) for field in fields}
        decoded = list(map(decode, self._raws))
        found = {name: list(map(attrgetter(_attribute(at)), decoded)) for at, name in enumerate(names)}
        return {field: with_descent(field, found) for field in fields}


def with_descent(field: str, found: Mapping[str, list[JsonValue | Missing]]) -> list[Cell]:
    """The cells of a field from those of its name and, where it is dotted, of the object that it may lead into."""
    first, *rest = field.split(".")
    if not rest:
        return cast("list[Cell]", found[field])
    return [
        descend(outer, rest) if cell is MISSING else cell
        for cell, outer in zip(found[field], found[first], strict=True)
    ]


def _attribute(at: int) -> str:
    return f"cell{at}"


def _opened(body: bytes, key: str) -> _File:
    import msgspec

    try:
        file = cast(_File, _file_decoder()(body))
    except msgspec.DecodeError as error:
        raise Corrupt(f"not a manifest: {error}", key=key, hint="`worm repair` builds it anew") from error
    if file.version != 1:
        raise Corrupt(f"manifest version {file.version!r}; this code reads version 1", key=key)
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
        ("etags", msgspec.Raw, msgspec.Raw(b"{}")),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("File", members)).decode


@lru_cache(maxsize=256)
def _row_decoder(names: tuple[str, ...]) -> Callable[[Raw], object] | None:
    """Rows to objects with an attribute per name, MISSING where the row has no such key; None for names that msgspec
    does not take (quotes, backslashes, control characters, lone surrogates)."""
    import msgspec

    try:
        members = [(_attribute(at), Any, msgspec.field(default=MISSING, name=name)) for at, name in enumerate(names)]
        return msgspec.json.Decoder(msgspec.defstruct("Cells", members, gc=False)).decode
    except ValueError:
        return None
