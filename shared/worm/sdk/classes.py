"""`Document`, the base of classes that are models, and the settings of its model.

    class Customer(worm.Document):
        worm_settings = worm.ModelSettings(soft_delete=True)

        name: str
        email: Annotated[str, worm.Index(unique=True)]
        owner: Annotated[str, worm.Ref("User")]

`worm_settings` can express everything that schema.json can say about a model. A class without it gets a collection
named after the class, an oplog and a manifest. `Index` and `Ref` mark fields. They are part of the JSON schema of the
class, as members whose names start with `x-worm-`, so they work wherever pydantic accepts an annotation: in unions, in
nested classes.

An object's origin (`version`, `created_at`, …) is read from its provenance (see `document`). These attributes are not
fields: they are neither dumped nor compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import TypeVar

from worm.clock import moment_of
from worm.errors import Invalid, show
from worm.formats import IdType, Mode
from worm.sdk.document import provenance_of
from worm.sdk.html import document_html
from worm.sdk.shapes import model_name

INDEX_MARK = "x-worm-index"
REF_MARK = "x-worm-ref"
REQUIRED_MARK = "x-worm-required"

_ATTRIBUTES = ("version", "seq", "model")
_TIMES = {"created_at": "createdAt", "updated_at": "updatedAt"}

Id = TypeVar("Id", default=str)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotSettings:
    """Full copies of documents: one every `every` oplog entries, pruned by age and count.

    Examples:
        >>> class Contract(worm.Document):
        ...     worm_settings = worm.ModelSettings(snapshots=worm.SnapshotSettings(every=10))
        ...     text: str
        >>> worm.schema_of([Contract]).model("Contract").snapshots.every
        10
    """

    every: int = 10
    max_age: str = "30d"
    max_count: int = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestSettings:
    """The table of the collection. Without `fields` it has all fields; with `extra`, undeclared ones too. Values larger
    than `max_field_bytes`, and the largest values of a row above `max_row_bytes`, are kept in the documents only.

    Examples:
        >>> class Article(worm.Document):
        ...     worm_settings = worm.ModelSettings(manifest=worm.ManifestSettings(fields=["title"]))
        ...     title: str
        ...     body: str
        >>> worm.schema_of([Article]).model("Article").manifest.fields
        ['title']
    """

    fields: list[str] | None = None
    extra: bool = True
    auto_update: bool = True
    partition_threshold: int = 10_000
    max_partitions: int = 16
    max_field_bytes: int = 32 << 10
    max_row_bytes: int = 128 << 10


@dataclass(frozen=True, slots=True)
class FieldIndex:
    """`worm.Index`: an index of the annotated field, or, in `ModelSettings.indexes`, of the field that it names.

    The index is named `by` plus the field (`byEmail`) unless you pass `name`. An index of a list has an entry for each
    member; set `multi_value` if the type does not show that it is a list.

    Examples:
        >>> from typing import Annotated
        >>> class Person(worm.Document):
        ...     email: Annotated[str, worm.Index(unique=True)]
        >>> list(worm.schema_of([Person]).model("Person").indexes)
        ['byEmail']
    """

    field: str | None = None
    _: KW_ONLY
    unique: bool = False
    multi_value: bool | None = None
    name: str | None = None

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        if self.field is not None:
            raise Invalid(
                f"Index({show(self.field)}) names a field, but it already annotates one",
                hint="write Index() in an annotation, or put Index(field) into ModelSettings.indexes",
            )
        mark = {"name": self.name, "unique": self.unique, "multiValue": self.multi_value}
        return {**handler(schema), INDEX_MARK: mark}


Index = FieldIndex
"""As programs know it."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The annotated text is the id of a document of another model: `Annotated[str, worm.Ref(Customer)]`.

    Examples:
        >>> from typing import Annotated
        >>> class Order(worm.Document):
        ...     customer: Annotated[str, worm.Ref(Customer)]
        >>> worm.schema_of([Customer, Order]).model("Order").fields["customer"].type
        'ref'
    """

    to: str | type[BaseModel]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), REF_MARK: self.to if isinstance(self.to, str) else model_name(self.to)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """Settings of a model: what schema.json says about it besides its fields.

    `path` is the whole path, `#org/@customers/(id:slug)`. Without one, documents are in a collection named after the
    class: `Customer` in `customers`, `OrderLine` in `order-lines`. `id` is then the type of ids if the class only says
    `str`, and `singleton` makes a model with one document. `lake` publishes the table as a Delta table: every 15
    minutes, or as often as it says (`"1h"`).

    Examples:
        >>> class Event(worm.Document):
        ...     worm_settings = worm.ModelSettings(path="#log/@events/(id:ulid)", mode="append")
        ...     text: str
        >>> worm.schema_of([Event]).model("Event").mode
        'append'
    """

    path: str | None = None
    id: IdType | None = None
    singleton: bool = False
    file: str = "data.json"
    mode: Mode = "readwrite"
    oplog: bool = True
    soft_delete: bool = False
    trash_ttl_days: int = 30
    archive_after: str | None = None
    snapshots: bool | SnapshotSettings = False
    manifest: bool | ManifestSettings = True
    indexes: Mapping[str, str | FieldIndex] = field(default_factory=dict)
    lake: bool | str = False
    strict: bool = False
    space: str | None = None


class Document(BaseModel, Generic[Id]):
    """The base of classes that are models. Ids are text, or integers and UUIDs with `Document[int]` and
    `Document[UUID]`.

    You may leave out the `id` of a new object: `insert` chooses one. Until then it is None, regardless of its type.

    Examples:
        >>> class Order(worm.Document):
        ...     customer: str
        ...     total: float = 0
        >>> Order(customer="acme", total=12.5).total
        12.5
    """

    worm_settings: ClassVar[ModelSettings] = ModelSettings()

    def _repr_html_(self) -> str:
        fields, known = self.model_dump(mode="json", by_alias=True), provenance_of(self)
        if known is None:
            return document_html(fields, model=model_name(type(self)))
        return document_html(fields, model=known.model, version=known.version, seq=known.seq)

    if TYPE_CHECKING:
        id: Id = cast(Any, None)

        @property
        def version(self) -> str | None:
            """The version that the object was read or written as; a save is conditional on it. None for a new
            object."""

        @property
        def seq(self) -> int | None:
            """The number of its last oplog entry, if known."""

        @property
        def model(self) -> str | None:
            """The name of the model that it came from."""

        @property
        def created_at(self) -> datetime | None:
            """When the document was created."""

        @property
        def updated_at(self) -> datetime | None:
            """When the document was last written."""

    else:
        id: Id | None = None

        def __getattr__(self, name: str) -> object:
            """Called only for names that are neither fields nor set, so that a class may have a field `version`."""
            if name in type(self).model_fields:
                return super().__getattr__(name)
            if name in _ATTRIBUTES:
                return getattr(provenance_of(self), name, None)
            if name in _TIMES:
                return _time_of(self, _TIMES[name])
            return super().__getattr__(name)


def _time_of(item: Document[Any], name: str) -> datetime | None:
    """The value of a field that the class does not declare: carried along, or held as an extra field."""
    origin = provenance_of(item)
    found = (item.model_extra or {}).get(name) or (None if origin is None else origin.carried.get(name))
    return moment_of(found) if isinstance(found, str) else None


def settings_of(cls: type[BaseModel]) -> ModelSettings:
    found = getattr(cls, "worm_settings", None) or ModelSettings()
    if not isinstance(found, ModelSettings):
        raise Invalid(f"{cls.__name__}.worm_settings must be a ModelSettings, not {type(found).__name__}")
    for name, (kinds, wanted) in _KINDS.items():
        value = getattr(found, name)
        if not isinstance(value, kinds):
            raise Invalid(f"must be {wanted}, not {show(value)}", path=f"{cls.__name__}.worm_settings.{name}")
    return found


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "path": ((str, NoneType), "text such as '#org/@orders/(id:slug)'"),
    "id": ((str, NoneType), "the name of a type of ids"),
    "snapshots": ((bool, SnapshotSettings), "True, False or a SnapshotSettings"),
    "manifest": ((bool, ManifestSettings), "True, False or a ManifestSettings"),
    "indexes": ((Mapping,), "an object of indexes by name"),
}
"""Settings that are read here; the schema checks all others."""
