"""An object of a pydantic class as a JSON document.

Pydantic writes a Decimal as text. A document has numbers, so a Decimal becomes the number that reads back the same,
except where the schema declares a string. Everything else is as the class's own JSON mode has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import cast

from pydantic import BaseModel

from worm.codec.strict_json import JsonValue, child_path, number_of
from worm.collections.entries import Document
from worm.schema import FieldDef


def dump(item: BaseModel, fields: Mapping[str, FieldDef]) -> Document:
    """All fields of the object by their aliases. `fields` are those of the schema."""
    whole = FieldDef(type="object", properties=dict(fields))
    written = cast(JsonValue, item.model_dump(mode="json", by_alias=True))
    return cast(Document, _numbered(written, item.model_dump(by_alias=True), whole, ""))


def _numbered(written: JsonValue, value: object, field: FieldDef | None, path: str) -> JsonValue:
    """`written` is `value` in JSON mode; the two are walked together."""
    if isinstance(value, Decimal) and isinstance(written, str):
        return written if field is not None and field.type == "string" else number_of(value, path)
    if isinstance(value, Mapping) and isinstance(written, dict) and len(value) == len(written):
        known = (field.properties if field is not None else None) or {}
        return {
            name: _numbered(one, item, known.get(name), child_path(path, name))
            for (name, one), item in zip(written.items(), value.values(), strict=True)
        }
    if isinstance(value, list | tuple) and isinstance(written, list) and len(value) == len(written):
        of = None if field is None else field.items
        pairs = enumerate(zip(written, value, strict=True))
        return [_numbered(one, item, of, child_path(path, at)) for at, (one, item) in pairs]
    if isinstance(value, set | frozenset) and isinstance(written, list):
        of = None if field is None else field.items
        texts = {str(item): item for item in value if isinstance(item, Decimal)}
        return [_numbered(one, texts.get(str(one)), of, child_path(path, at)) for at, one in enumerate(written)]
    return written
