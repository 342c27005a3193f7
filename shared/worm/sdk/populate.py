"""Populate: references replaced by the documents that they name.

A field of type `ref`, or an array of such, is given by name. Every distinct target is read once, all at the same time;
what is not there (any more) is None, in an array too. One level deep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

from worm.codec.strict_json import JsonValue
from worm.collections.changes import Row
from worm.collections.collection import Collection
from worm.collections.entries import Document
from worm.errors import Invalid
from worm.query.fetch import CHUNK, read_documents
from worm.schema import FieldDef, ModelDef

Find = Callable[[str], Collection]
"""The collection of a model."""


def populated_fields(definition: ModelDef, names: Sequence[str] | str | None) -> tuple[str, ...]:
    """The checked names, each once; `Invalid` for a field that refers to nothing."""
    listed = [names] if isinstance(names, str) else list(names or ())
    known = [name for name, field in definition.fields.items() if _target(field)]
    for name in listed:
        if name not in known:
            raise Invalid(
                f"{name!r} is no reference", path="populate", hint=f"references: {', '.join(known) or 'none'}"
            )
    return tuple(dict.fromkeys(listed))


def populate(definition: ModelDef, rows: Sequence[Row], names: Sequence[str], find: Find) -> None:
    """Replace the references in the rows."""
    wanted: dict[str, dict[str, Document | None]] = {}
    for name in names:
        targets = wanted.setdefault(_target(definition.fields[name]), {})
        for row in rows:
            targets.update(dict.fromkeys(_references(row.get(name))))
    for model, targets in wanted.items():
        targets.update(_read(find(model), sorted(targets)))
    for name in names:
        found = wanted[_target(definition.fields[name])]
        for row in rows:
            if name in row:
                row[name] = _replaced(row[name], found)


def _target(field: FieldDef) -> str:
    """The model that a field refers to; empty when it does not."""
    item = field.items if field.type == "array" and field.items is not None else field
    return item.model or "" if item.type == "ref" else ""


def _references(value: JsonValue) -> list[str]:
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


def _read(collection: Collection, ids: Sequence[str]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for start in range(0, len(ids), CHUNK):
        for one, document in read_documents(collection, ids[start : start + CHUNK]).items():
            found[one] = {"id": one, **document}
    return found


def _replaced(value: JsonValue, found: dict[str, Document | None]) -> JsonValue:
    """A copy for each place: the caller may change it."""
    if isinstance(value, list):
        return [_replaced(item, found) for item in value]
    return deepcopy(found.get(value)) if isinstance(value, str) else value
