"""Documents as objects of a pydantic class.

Reading and saving an object loses nothing of its document. Fields that its class does not declare are kept on the
object if its configuration allows extra fields; otherwise they are carried along with its provenance, but never
override the object's own values. An optional field that a document lacks stays absent: None is written as null only if
it was set.

Times are written as everywhere else: in UTC, with milliseconds. Pydantic writes a Decimal as text. A document has
numbers, so a Decimal becomes the number that reads back the same, except where the schema declares a string. Everything
else follows the class's own JSON mode. Values that did not change stay exactly as they are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Generic, TypeVar, cast

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError

from worm.collections import Document
from worm.errors import Invalid
from worm.formats import (
    SYSTEM_FIELDS,
    FieldDef,
    JsonValue,
    ModelDef,
    as_json,
    child_path,
    dumps,
    is_datetime,
    ordered,
    type_name,
)
from worm.sdk.document import ATTRIBUTE, DocumentDict, Provenance, bring_dict, provenance_of

M = TypeVar("M", bound=BaseModel)


class Objects(Generic[M]):
    """Documents are objects of one class."""

    is_plain = False

    def __init__(self, cls: type[M], definition: ModelDef) -> None:
        self._cls = cls
        self._extra = cls.model_config.get("extra") or "ignore"
        self._written, self._read = names_of(cls)
        computed = {field.alias or name for name, field in cls.model_computed_fields.items()}
        self._unread = computed - self._read
        self._fields = definition.fields
        if "id" not in self._written and self._extra != "allow" and not definition.is_singleton:
            raise Invalid(
                f"{cls.__name__} has no field id, so its objects cannot be saved",
                hint="declare it: id: str | None = None",
            )

    def load(self, document: DocumentDict) -> M:
        given: Document = dict(document)
        if self._extra == "forbid":
            unwelcome = (SYSTEM_FIELDS - self._read) | self._unread
            given = {name: value for name, value in given.items() if name not in unwelcome}
        made = self._validated(given)
        if made.model_extra:  # an alternative name, which a save would write over the field
            for name in self._read:
                made.model_extra.pop(name, None)
        carry_inside(made, given)
        self._mark(made, document)
        return made

    def dump(self, item: object) -> DocumentDict:
        made = self._made(item) if isinstance(item, Mapping) else item
        if not isinstance(made, self._cls):
            name = self._cls.__name__
            raise Invalid(
                f"a document must be an object of {name}, not {type_name(item)}", hint=f"{name}(…), or a dict"
            )
        origin = provenance_of(made)
        document = self._as_stored(origin, dump(made, self._fields))
        bring_inside(made, document)
        for alias, name in self._written.items():
            if document.get(alias, "") is None and name not in made.model_fields_set:
                del document[alias]
        if document.get("id", "") in (None, ""):
            document.pop("id", None)
        if origin is not None and self._extra != "allow":
            own = document.keys() | self._written.keys() | self._read
            document |= {name: value for name, value in origin.carried.items() if name not in own}
        return DocumentDict.of(document, origin)

    def check(self, document: Document) -> None:
        self.load(DocumentDict(document))

    def _as_stored(self, origin: Provenance | None, document: Document) -> Document:
        """Values that did not change stay as they are stored: a class may write a time or a number in a different
        form."""
        stored = None if origin is None else origin.document()
        if stored is None:
            return document
        try:
            same = dump(self.load(DocumentDict({"id": document.get("id"), **stored})), self._fields)
        except Invalid:
            return document  # the stored document does not fit the class, so the object was made another way
        for name, value in document.items():
            if name in stored and name in same and dumps(same[name]) == dumps(value):
                document[name] = stored[name]
        return document

    def bring(self, item: object, document: DocumentDict) -> None:
        if isinstance(item, DocumentDict):
            bring_dict(item, document)
        elif isinstance(item, self._cls):
            stored = self.load(document)
            for name in ("id", *SYSTEM_FIELDS):
                self._take_over(item, stored, name)
            self._mark(item, document)

    def refreshed(self, item: M, document: DocumentDict) -> M:
        stored = self.load(document)
        item.__dict__.update(stored.__dict__)
        if item.model_extra is not None:
            item.model_extra.clear()
            item.model_extra.update(stored.model_extra or {})
        item.model_fields_set.clear()
        item.model_fields_set.update(stored.model_fields_set)
        return item

    def _made(self, given: Mapping[str, object]) -> M:
        """For a dict. If it was read, it keeps the fields that the class does not declare, like an object that was
        read."""
        if isinstance(given, DocumentDict) and given.provenance is not None:
            return self.load(given)
        return self._validated(dict(given))

    def _take_over(self, item: M, stored: M, alias: str) -> None:
        """Sets what the store assigned: id and times, if the class has them."""
        name = self._written.get(alias)
        if name is not None:
            item.__dict__[name] = stored.__dict__[name]
            item.model_fields_set.add(name)
        elif item.model_extra is not None and stored.model_extra and alias in stored.model_extra:
            item.model_extra[alias] = stored.model_extra[alias]

    def _mark(self, item: M, document: DocumentDict) -> None:
        origin = document.provenance
        if origin is None:
            return
        known = self._written.keys() | self._read
        carried = {name: value for name, value in document.items() if name not in known}
        item.__dict__[ATTRIBUTE] = replace(origin, carried={} if self._extra == "allow" else carried)

    def _validated(self, given: Mapping[str, object]) -> M:
        try:
            return self._cls.model_validate(given)
        except ValidationError as mistake:
            first = mistake.errors()[0]
            path = ".".join(str(part) for part in first["loc"])
            entity_id, name = given.get("id"), self._cls.__name__
            which = "the document" if entity_id is None else f"document '{entity_id}'"
            hint = 'correct it, or use the model by its name: db.model("…") takes documents as they are'
            raise Invalid(f"{which} does not fit {name}: {first['msg']}", path=path, hint=hint) from mistake


# Objects inside an object

CARRIED = "__worm_carried__"
"""An object inside an object has its undeclared fields under this name."""


def carry_inside(value: object, stored: object) -> None:
    """Let every object below this one keep the stored fields that its class does not declare."""
    for inner, found in _pairs(value, stored):
        if isinstance(inner, BaseModel) and isinstance(found, dict) and inner.model_extra is None:
            known = {*names_of(type(inner), strict=False)[0], *names_of(type(inner), strict=False)[1]}
            carried = {name: item for name, item in found.items() if name not in known}
            if carried:
                inner.__dict__[CARRIED] = carried
        carry_inside(inner, found)


def bring_inside(value: object, written: object) -> None:
    """Add those fields to what is written."""
    for inner, found in _pairs(value, written):
        if isinstance(inner, BaseModel) and isinstance(found, dict):
            for name, item in inner.__dict__.get(CARRIED, {}).items():
                found.setdefault(name, deepcopy(item))
        bring_inside(inner, found)


def _pairs(value: object, document: object) -> Iterator[tuple[object, object]]:
    """The objects inside, each with its JSON value."""
    if isinstance(value, BaseModel) and isinstance(document, dict):
        for name, info in type(value).model_fields.items():
            names = [info.serialization_alias, info.alias, info.validation_alias, name]
            found = next((one for one in names if isinstance(one, str) and one in document), None)
            if found is not None:
                yield value.__dict__.get(name), document[found]
    elif isinstance(value, Mapping) and isinstance(document, dict):
        yield from ((item, document[name]) for name, item in value.items() if name in document)
    elif isinstance(value, list | tuple) and isinstance(document, list) and len(value) == len(document):
        yield from zip(value, document, strict=True)


@cache
def names_of(cls: type[BaseModel], *, strict: bool = True) -> tuple[dict[str, str], set[str]]:
    """The names in documents that a class writes, each with its attribute, and all names that it reads. `Invalid` if an
    object could not read back what it wrote, if that matters."""
    config = cls.model_config
    by_alias = config.get("validate_by_alias") is not False
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    written: dict[str, str] = {}
    read: set[str] = set()
    for name, field in cls.model_fields.items():
        writes = name if field.serialization_alias is None else field.serialization_alias
        paths = _paths(name, field.validation_alias) if by_alias else [[name]]
        reads = [*paths, *([[name]] if by_name else [])]
        if strict and not field.exclude and not _is_read_back(writes, reads):
            raise Invalid(
                f"{cls.__name__}.{name} is written as '{writes}', but read from "
                + " or ".join(f"'{'.'.join(str(part) for part in path)}'" for path in reads),
                path=name,
                hint=f"Field(alias='{writes}'), or AliasChoices with '{writes}' before any AliasPath",
            )
        written[writes] = name
        read |= {str(path[0]) for path in reads if len(path) == 1}
    return written, read


def _paths(name: str, alias: str | AliasPath | AliasChoices | None) -> list[list[str | int]]:
    """Where a field is read from, the first choice first."""
    if alias is None:
        return [[name]]
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return [list(one.path) if isinstance(one, AliasPath) else [one] for one in choices]


def _is_read_back(writes: str, reads: Sequence[Sequence[str | int]]) -> bool:
    """A path into another value is not written, so it stays as it was: it must not come before the written name."""
    first = next((path for path in reads if len(path) > 1 or path[0] == writes), None)
    return first is not None and list(first) == [writes]


def dump(item: BaseModel, fields: Mapping[str, FieldDef]) -> Document:
    """All fields of the object by their aliases. `fields` are the fields of the schema."""
    whole = FieldDef(type="object", properties=dict(fields))
    written = cast(JsonValue, item.model_dump(mode="json", by_alias=True, warnings="none"))
    return cast(Document, _numbered(written, item.model_dump(by_alias=True, warnings="none"), whole, ""))


def _numbered(written: JsonValue, value: object, field: FieldDef | None, path: str) -> JsonValue:
    """`written` is `value` in JSON mode; the two are walked together."""
    if isinstance(value, Decimal) and isinstance(written, str):
        return written if field is not None and field.type == "string" else cast(JsonValue, as_json(value, path))
    if isinstance(value, datetime) and isinstance(written, str) and is_datetime(written):
        return cast(JsonValue, as_json(value, path))
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
        return ordered(_numbered(one, texts.get(str(one)), of, child_path(path, at)) for at, one in enumerate(written))
    return written
