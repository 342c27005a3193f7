"""Parquet files: the content of the partitions of a partitioned manifest in the open columnar format, so that a scan
reads fewer bytes, and other engines read the same files. The partition `.worm.manifest/partition-3-<hash>.json` has the
Parquet file `.worm.lake/partition-3-<hash>.parquet`; its hash also covers the columns, so a file never changes.

They are never the source of truth. If one is missing or damaged, readers use the partition, and a rebuild writes it
again. They are written before the root names their partition, and deleted after no root has named it for a day.

Columns (`lake_columns`): the id, the declared fields with their types, `_seq`, `_etag`, and `_rest`, a JSON object with
everything that the typed columns cannot hold: fields that are not declared, nulls (an empty cell means a missing
field), and values of another type or range than the schema says. So no value is lost:

- `double`: the file says whether numbers without a fraction are integers. If both occur, `_exact_<name>` says which.
- `timestamp`: the file says how the texts are written: as `2026-01-31T12:00:00Z`, with milliseconds, or as
  `2026-01-31`. For anything else, `_exact_<name>` holds the texts themselves.
- `array`, `struct`: for other readers. Ours read `_exact_<name>`, the JSON text.

The file's metadata has the entry `worm`: JSON with what is known about ids without a row, and statistics. It ends with
the CRC-32 of all other bytes of the file, so damage is found before anything is decoded (`Corrupt`). With the same
version of arro3, equal content gives equal bytes.

arro3 is imported when the first file is written or read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from worm.collections import Row
from worm.formats import MISSING, TIME_FIELDS, FieldDef, JsonObject, JsonValue, Missing, ModelDef, dumps
from worm.tables.manifest import Manifest
from worm.values import dataclass

if TYPE_CHECKING:
    from arro3.core import Array, DataType

VERSION = 1
ID, SEQ, ETAG, REST, EXACT = "id", "_seq", "_etag", "_rest", "_exact_"
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_WHOLE_MAX = 2**53  # a double holds every integer up to this
_COMPRESSION = "zstd(1)"
_SAMPLE = 256
CRC_MARK = b'"crc32":"'
NO_CRC = b"00000000"
_BAD_IN_NAMES = frozenset(" ,;{}()\n\t=")
_STATS_COLUMNS, _STATS_TEXT = 64, 32
_LAST_CHARACTER = "\U0010ffff"
_SECONDS_LENGTH, _DATE_LENGTH = len("2026-01-31T12:00:00Z"), len("2026-01-31")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MICROSECOND = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_MICROSECOND = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)

Type: TypeAlias = Literal["string", "long", "double", "boolean", "timestamp", "array", "struct", "json"]
Cells: TypeAlias = "list[JsonValue | Missing]"


# Columns


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """The type of a column. `items`: of an array. `members`: of a struct. `json`: any value, as JSON text."""

    type: Type
    items: ColumnKind | None = None
    members: tuple[tuple[str, ColumnKind], ...] = ()

    @property
    def is_nested(self) -> bool:
        return self.type in ("array", "struct")


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A typed column: its name in the file, and the field of the row that it holds."""

    name: str
    field: str
    kind: ColumnKind


_SIMPLE: dict[str, ColumnKind] = {
    "string": ColumnKind("string"),
    "ref": ColumnKind("string"),
    "integer": ColumnKind("long"),
    "number": ColumnKind("double"),
    "boolean": ColumnKind("boolean"),
    "datetime": ColumnKind("timestamp"),
}


def lake_columns(definition: ModelDef) -> tuple[LakeColumn, ...]:
    """The typed columns of a model's rows, without the fixed ones. A path into an object has `_` for its dots. Fields
    with names that other engines refuse, or that differ only in case, have no column."""
    taken, found = {ID, SEQ, ETAG, REST}, list[LakeColumn]()
    for field in definition.table_fields():
        name = field.replace(".", "_")
        if name.lower() not in taken and not name.startswith(EXACT) and _BAD_IN_NAMES.isdisjoint(name):
            taken.add(name.lower())
            found.append(LakeColumn(name, field, _kind(_declared(definition, field))))
    return tuple(found)


def _declared(definition: ModelDef, field: str) -> FieldDef | None:
    if field in TIME_FIELDS and field not in definition.fields:
        return FieldDef(type="datetime")
    return definition.field_at(field)


def _kind(field: FieldDef | None) -> ColumnKind:
    """Arrays of scalars and objects with declared members keep their types; everything else nested is JSON."""
    if field is None:
        return ColumnKind("json")
    if field.type == "array" and field.items is not None and field.items.type in _SIMPLE:
        return ColumnKind("array", items=_SIMPLE[field.items.type])
    members = tuple((name, _kind(one)) for name, one in (field.properties or {}).items())
    names = {name.lower() for name, _ in members if _BAD_IN_NAMES.isdisjoint(name)}
    if members and len(names) == len(members):
        return ColumnKind("struct", members=members)
    return _SIMPLE.get(field.type, ColumnKind("json"))


def _arrow_type(kind: ColumnKind) -> DataType:
    from arro3.core import DataType, Field

    if kind.items is not None:
        return DataType.list(Field("element", _arrow_type(kind.items), nullable=True))
    if kind.members:
        return DataType.struct([Field(name, _arrow_type(one), nullable=True) for name, one in kind.members])
    if kind.type == "timestamp":
        return DataType.timestamp("us", tz="UTC")
    simple = {"long": DataType.int64, "double": DataType.float64, "boolean": DataType.bool}
    return simple.get(kind.type, DataType.string)()


# Writing


class _Draft:
    """The arrays of one file as they are made. `rest`: by row, what the typed columns cannot hold."""

    def __init__(self, ids: Sequence[str], rows: Sequence[Row], columns: Sequence[LakeColumn]) -> None:
        self.arrays: dict[str, Array] = {ID: array_of(ids, ColumnKind("string"))}
        self.forms: dict[str, str] = {}
        self._least, self._most, self._nulls = dict[str, JsonValue](), dict[str, JsonValue](), dict[str, JsonValue]()
        self._note(ID, [*ids[:1], *ids[-1:]])
        known = {column.field for column in columns}
        self.rest: list[Row] = [
            {} if row.keys() <= known else {name: row[name] for name in row if name not in known} for row in rows
        ]
        for column in columns:
            self._add(column, _cells_of(rows, column.field))
        self.stats: JsonObject = {
            "numRecords": len(rows),
            "minValues": self._least,
            "maxValues": self._most,
            "nullCount": self._nulls,
        }

    def _add(self, column: LakeColumn, cells: Cells) -> None:
        kind, name = column.kind, column.name
        if kind.is_nested:
            texts = [None if isinstance(cell, Missing) else dumps(cell).decode() for cell in cells]
            self.arrays[EXACT + name] = array_of(texts, ColumnKind("string"))
            self.arrays[name] = _nested(cells, kind)
            self._keep(column.field, cells, lambda at: cells[at] is not None and _is_held(cells[at], kind))
            return
        values = self._plain(column, cells)
        if kind.type == "json":
            self.add(name, list(map(_text, values)), ColumnKind("string"))
        elif kind.type == "timestamp":
            self._add_times(column, cast("list[str | None]", values))
        else:
            self.add(name, values, kind)
            if kind.type == "double":
                self._add_form(name, values)

    def add(self, name: str, values: Sequence[JsonValue], kind: ColumnKind) -> None:
        self.arrays[name] = array_of(values, kind)
        self._note(name, values)

    def _note(self, name: str, values: Sequence[JsonValue]) -> None:
        """The smallest and largest value of a column, for the statistics. They have all columns or the first ones:
        readers may take a column without statistics for one without values."""
        if len(self._nulls) == _STATS_COLUMNS:
            return
        self._nulls[name] = nulls = self.arrays[name].null_count
        found = cast("list[str]", [one for one in values if one is not None] if nulls else values)
        if found:
            least, most = min(found), max(found)
            self._least[name] = least[:_STATS_TEXT] if type(least) is str else least
            self._most[name] = _not_less(most) if type(most) is str else most

    def _keep(self, field: str, cells: Sequence[object], is_held: Callable[[int], bool]) -> None:
        """Other readers find in the rest what a column does not hold."""
        for at, cell in enumerate(cells):
            if not isinstance(cell, Missing) and not is_held(at):
                self.rest[at] = {**self.rest[at], field: cast(JsonValue, cell)}

    def _plain(self, column: LakeColumn, cells: Cells) -> list[JsonValue]:
        """The cells with None for missing ones. Those that do not fit are moved to the rest."""
        fits = _FITTING[column.kind.type]
        kinds = set(map(type, cells))
        if kinds <= fits.types | {Missing} and (fits.holds is None or int not in kinds or all(map(fits.holds, cells))):
            return cast("list[JsonValue]", [_or_none(one) for one in cells] if Missing in kinds else cells)
        values: list[JsonValue] = []
        for at, cell in enumerate(cells):
            is_fit = type(cell) in fits.types and (fits.holds is None or fits.holds(cell))
            if not is_fit and not isinstance(cell, Missing):
                self.rest[at] = {**self.rest[at], column.field: cell}
            values.append(cast(JsonValue, cell) if is_fit else None)
        return values

    def _add_form(self, name: str, values: list[JsonValue]) -> None:
        """Whether numbers without a fraction are integers."""
        kinds = set(map(type, values)) - {type(None)}
        if kinds <= {int}:
            self.forms[name] = "integers"
        elif kinds == {int, float}:
            if any(type(one) is float and one.is_integer() for one in values):
                self.arrays[EXACT + name] = array_of([type(one) is int for one in values], ColumnKind("boolean"))
            else:
                self.forms[name] = "integers"

    def _add_times(self, column: LakeColumn, texts: list[str | None]) -> None:
        name = column.name
        times = self.arrays[name] = _times(texts)
        form = _time_form(next((text for text in texts if text is not None), ""))
        if written(times, form) == texts:
            self.forms[name] = form
        else:
            self.arrays[EXACT + name] = array_of(texts, ColumnKind("string"))
        micros = values_of(times.cast(_arrow_type(ColumnKind("long"))))
        self._keep(column.field, texts, lambda at: texts[at] is None or micros[at] is not None)
        self._note(name, micros)
        if name in self._least:
            least, most = cast(int, self._least[name]), min(cast(int, self._most[name]) + 999, _LAST_MICROSECOND)
            self._least[name], self._most[name] = _milliseconds(least), _milliseconds(most)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """Which values a column holds exactly. `holds`: whether an integer is in its range."""

    types: frozenset[type]
    holds: Callable[[object], bool] | None = None


_FITTING: dict[Type, _Fitting] = {
    "string": _Fitting(frozenset({str})),
    "timestamp": _Fitting(frozenset({str})),
    "boolean": _Fitting(frozenset({bool})),
    "json": _Fitting(frozenset({str, int, float, bool, list, dict})),
    "long": _Fitting(frozenset({int}), lambda one: type(one) is not int or _LONG_MIN <= one <= _LONG_MAX),
    "double": _Fitting(frozenset({int, float}), lambda one: type(one) is not int or abs(one) <= _WHOLE_MAX),
}


def _cells_of(rows: Sequence[Row], field: str) -> Cells:
    try:
        return list(map(itemgetter(field), rows))  # fast, as long as every row has the field
    except KeyError:
        return [row.get(field, MISSING) for row in rows]


def _or_none(cell: JsonValue | Missing) -> JsonValue:
    return None if isinstance(cell, Missing) else cell


_TIME_FORMS: dict[str, Callable[[str], str]] = {
    "seconds": lambda text: text,
    "milliseconds": lambda text: text if len(text) != _SECONDS_LENGTH else f"{text[:-1]}.000Z",
    "date": lambda text: text[:_DATE_LENGTH],
}
"""How a time is written, from `2026-01-31T12:00:00Z` with as many digits of a fraction as it needs."""
FORMS = ("integers", *_TIME_FORMS)


def _time_form(text: str) -> str:
    return "date" if len(text) == _DATE_LENGTH else "milliseconds" if "." in text else "seconds"


def written(times: Array, form: str) -> list[str | None]:
    """The texts of times."""
    from arro3.core import DataType

    texts = values_of(times.cast(DataType.string()))
    if form == "seconds":
        return texts
    write = _TIME_FORMS[form]
    return [None if text is None else write(text) for text in texts]


def values_of(array: Array) -> list[Any]:
    """The values as Python objects, None for empty cells."""
    return cast("list[Any]", array.to_pylist())


def array_of(values: Sequence[object], kind: ColumnKind) -> Array:
    from arro3.core import Array

    return Array(values, type=_arrow_type(kind))


def _times(texts: Sequence[str | None]) -> Array:
    """The times from the year 1 to the year 9999 in UTC, which all readers can show. Everything else is empty."""
    times, long = _arrow_type(ColumnKind("timestamp")), _arrow_type(ColumnKind("long"))
    found = array_of(texts, ColumnKind("string")).cast(times)
    micros = values_of(found.cast(long))
    is_told = [text is None or _is_shown(one) for text, one in zip(texts, micros, strict=True)]
    if all(is_told):
        return found
    told = zip(texts, micros, is_told, strict=True)
    return array_of(
        [one if is_right or text is None else _moment(text) for text, one, is_right in told], ColumnKind("long")
    ).cast(times)


def _is_shown(micros: int | None) -> bool:
    return micros is not None and _FIRST_MICROSECOND <= micros <= _LAST_MICROSECOND


def _moment(text: str) -> int | None:
    """The microseconds of a time that Arrow does not read, such as one without seconds."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    micros = (moment - _EPOCH) // timedelta(microseconds=1)
    return micros if _is_shown(micros) else None


def _nested(cells: Sequence[object], kind: ColumnKind) -> Array:
    """What fits of nested values, for other readers. What does not fit is empty."""
    from arro3.core import Array, DataType, Field, list_array, struct_array

    if kind.items is None and not kind.members:
        found = [_text(cell) if kind.type == "json" else _fitted(cell, kind) for cell in cells]
        return _times(cast("list[str | None]", found)) if kind.type == "timestamp" else array_of(found, kind)
    expected = list if kind.items is not None else dict
    absent = Array([type(cell) is not expected for cell in cells], type=DataType.bool())
    if kind.items is not None:
        items, offsets = list[object](), [0]
        for cell in cells:
            items += cell if isinstance(cell, list) else ()
            offsets.append(len(items))
        starts = Array(offsets, type=DataType.int32())
        return list_array(starts, _nested(items, kind.items), type=_arrow_type(kind), mask=absent)
    members = [
        (_nested([cell.get(name) if isinstance(cell, dict) else None for cell in cells], one), name, one)
        for name, one in kind.members
    ]
    fields = [Field(name, _arrow_type(one), nullable=True) for _, name, one in members]
    return struct_array([array for array, _, _ in members], fields=fields, mask=absent)


def _is_held(value: object, kind: ColumnKind) -> bool:
    """Whether a nested column shows all of a value. Null and missing members look the same."""
    if value is None or kind.type == "json":
        return True
    if kind.items is not None:
        items = kind.items
        return isinstance(value, list) and all(_is_held(one, items) for one in value)
    if kind.members:
        kinds = dict(kind.members)
        return isinstance(value, dict) and all(
            name in kinds and _is_held(one, kinds[name]) for name, one in value.items()
        )
    is_fit = _fitted(value, kind) is not None
    return is_fit and (kind.type != "timestamp" or _moment(cast(str, value)) is not None)


def _not_less(text: str) -> str:
    """A short text that sorts after all that start as this one does, or the text itself if it is short."""
    end = _STATS_TEXT
    while end < len(text) and text[end] == _LAST_CHARACTER:
        end += 1
    return text if end >= len(text) else text[:end] + _LAST_CHARACTER


def _text(value: object) -> str | None:
    return None if value is None else dumps(cast(JsonValue, value)).decode()


def _fitted(value: object, kind: ColumnKind) -> object:
    fits = _FITTING[kind.type]
    return value if type(value) in fits.types and (fits.holds is None or fits.holds(value)) else None


def encode_parquet(part: Manifest, columns: Sequence[LakeColumn], of: str) -> bytes:
    """The Parquet file of a partition whose name has the hash `of`."""
    from arro3.core import Table
    from arro3.io import write_parquet

    ids = sorted(part.entities)
    draft = _Draft(ids, [part.entities[one] for one in ids], columns)
    seqs = [seq if (seq := part.seqs.get(one)) is not None and seq <= _LONG_MAX else None for one in ids]
    draft.add(SEQ, seqs, ColumnKind("long"))
    draft.add(ETAG, [part.etags.get(one) for one in ids], ColumnKind("string"))
    draft.add(REST, [dumps(one).decode() if one else None for one in draft.rest], ColumnKind("string"))
    names = [ID, *(column.name for column in columns), SEQ, ETAG, REST]
    names += [name for name in draft.arrays if name.startswith(EXACT)]
    meta: JsonObject = {
        "version": VERSION,
        "of": of,
        "forms": cast(JsonObject, draft.forms),
        "others": {
            "seqs": {one: seq for one, seq in part.seqs.items() if one not in part.entities or seq > _LONG_MAX},
            "etags": {one: etag for one, etag in part.etags.items() if one not in part.entities},
        },
        "stats": draft.stats,
    }
    sealed = dumps(meta).removesuffix(b"}") + b"," + CRC_MARK + NO_CRC + b'"}'
    file = BytesIO()
    nested = {column.name for column in columns if column.kind.is_nested}
    varied = [name for name in names if name not in nested and not _repeats(draft.arrays[name])]
    write_parquet(
        Table.from_arrays([draft.arrays[name] for name in names], names=names),
        file,
        compression=_COMPRESSION,
        column_dictionary_enabled=dict.fromkeys(varied, False),
        key_value_metadata={"worm": sealed.decode()},
        skip_arrow_metadata=True,
    )
    body = file.getvalue()
    return _with_crc(body, b"%08x" % zlib.crc32(body))


def _repeats(array: Array) -> bool:
    """Whether values repeat so that a dictionary saves space, as far as the first rows show."""
    first = values_of(array.slice(0, min(_SAMPLE, len(array))))
    return 2 * len(set(first)) <= len(first)


def _with_crc(body: bytes, crc: bytes) -> bytes:
    start = body.rindex(CRC_MARK) + len(CRC_MARK)
    return body[:start] + crc + body[start + len(crc) :]


def _milliseconds(micros: int) -> str:
    """Rounded down, as readers of Delta tables expect."""
    moment = _EPOCH + timedelta(milliseconds=micros // 1000)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
