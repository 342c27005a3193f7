"""Objects of a pydantic class as JSON documents: the names of fields, and their values.

Pydantic writes a Decimal as text. A document has numbers, so a Decimal becomes the number that reads back the same,
except where the schema declares a string. Everything else is as the class's own JSON mode has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import cast

from pydantic import AliasChoices, AliasPath, BaseModel

from worm.codec.strict_json import JsonValue, child_path, number_of
from worm.collections.entries import Document
from worm.errors import Invalid
from worm.schema import FieldDef


def names_of(cls: type[BaseModel]) -> tuple[dict[str, str], list[str], set[str]]:
    """The names in documents that a class writes, each with its attribute; those to ask for; and all that it reads.
    `Invalid` where an object would not get back what it wrote."""
    config = cls.model_config
    by_alias = config.get("validate_by_alias") is not False
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    written: dict[str, str] = {}
    wanted: list[str] = []
    read: set[str] = set()
    for name, field in cls.model_fields.items():
        writes = name if field.serialization_alias is None else field.serialization_alias
        paths = _paths(name, field.validation_alias) if by_alias else [[name]]
        reads = [*paths, *([[name]] if by_name else [])]
        if not field.exclude and not _is_read_back(writes, reads):
            raise Invalid(
                f"{cls.__name__}.{name} is written as '{writes}', but read from "
                + " or ".join(f"'{'.'.join(str(part) for part in path)}'" for path in reads),
                path=name,
                hint=f"Field(alias='{writes}'), or AliasChoices with '{writes}' before any AliasPath",
            )
        written[writes] = name
        wanted += [first for first in (writes, *(str(path[0]) for path in paths)) if first not in wanted]
        read |= {str(path[0]) for path in reads if len(path) == 1}
    return written, wanted, read


def _paths(name: str, alias: str | AliasPath | AliasChoices | None) -> list[list[str | int]]:
    """Where a field is read from, the first choice first."""
    if alias is None:
        return [[name]]
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [list(one.path) if isinstance(one, AliasPath) else [one] for one in choices]


def _is_read_back(writes: str, reads: Sequence[Sequence[str | int]]) -> bool:
    """A path into another value is not written, and so kept as it was: it must not go before what is written."""
    first = next((path for path in reads if len(path) > 1 or path[0] == writes), None)
    return first is not None and list(first) == [writes]


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
