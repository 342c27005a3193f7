"""`schema_of`: what classes say is declared, what a schema cannot say is left open, and what they write always fits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

from worm.errors import Invalid
from worm.formats import Schema, StorageDef, load_schema
from worm.formats.strict_json import JsonValue, loads
from worm.sdk.class_schema import schema_of
from worm.sdk.classes import Document, FieldIndex, ManifestSettings, ModelSettings, Ref, SnapshotSettings
from worm.sdk.objects import dump


class Colour(Enum):
    """The docstring of a class is not the description of a field."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Address(BaseModel):
    """Where."""

    city: Annotated[str, FieldIndex()]
    zip: str | None = None


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Customer(Document):
    name: str = Field(min_length=1, max_length=100, description="Its full name")
    email: Annotated[str, FieldIndex(unique=True)]
    status: Literal["lead", "active"] = "lead"
    colour: Colour | None = None
    level: Level = Level.LOW
    total: Decimal = Decimal("1.5")
    exact: Annotated[Decimal, Field(json_schema_extra={"type": "string"})] = Decimal("1.50")
    born: date | None
    seen: datetime
    key: UUID
    took: timedelta = timedelta(days=1)
    tags: Annotated[list[str], FieldIndex(name="byTag")] = Field(default_factory=list)
    sizes: set[int] = Field(default={3})
    point: tuple[float, float] = (0, 0)
    pair: tuple[int, str] = (1, "x")
    address: Address | None = Field(default=None, description="Where it is")
    parent: Annotated[str, Ref("Customer")] | None = None
    others: list[Annotated[str, Ref("Customer")]] = Field(default=[])
    tree: Node | None = None
    counts: dict[str, int] = Field(default={})
    gaps: list[int | None] = Field(default=[])
    either: int | float = 1
    text: str | UUID = ""
    anything: Any = None
    mixed: int | str = 1
    vip: bool = False

    @computed_field
    def initials(self) -> str:
        return self.name[:1]


def fields_of(cls: type[BaseModel]) -> dict[str, JsonValue]:
    raw: Any = loads(schema_of([cls]).to_json())
    found: dict[str, JsonValue] = raw["models"][cls.__name__]["fields"]
    return found


def model_of(cls: type[BaseModel]) -> Mapping[str, JsonValue]:
    raw: Any = loads(schema_of([cls]).to_json())
    return {name: value for name, value in raw["models"][cls.__name__].items() if name != "fields"}


EXPECTED: dict[str, JsonValue] = {
    "name": {"type": "string", "required": True, "description": "Its full name"},
    "email": {"type": "string", "required": True},
    "status": {"type": "string", "enum": ["lead", "active"], "default": "lead"},
    "colour": {"type": "string", "enum": ["red", "blue"]},
    "level": {"type": "integer", "enum": [1, 2], "default": 1},
    "total": {"type": "number", "default": 1.5},
    "exact": {"type": "string", "default": "1.50"},
    "born": {"type": "datetime"},
    "seen": {"type": "datetime", "required": True},
    "key": {"type": "string", "required": True},
    "took": {"type": "string", "default": "P1D"},
    "tags": {"type": "array", "items": "string", "default": []},
    "sizes": {"type": "array", "items": "integer", "default": [3]},
    "point": {"type": "array", "items": "number", "default": [0, 0]},
    "pair": {"type": "array", "default": [1, "x"]},
    "address": {
        "type": "object",
        "description": "Where it is",
        "properties": {"city": {"type": "string", "required": True}, "zip": {"type": "string"}},
    },
    "parent": {"type": "ref", "model": "Customer"},
    "others": {"type": "array", "items": {"type": "ref", "model": "Customer"}, "default": []},
    "tree": {
        "type": "object",
        "properties": {
            "value": {"type": "integer", "required": True},
            "children": {"type": "array", "items": "object", "default": []},
        },
    },
    "counts": {"type": "object", "default": {}},
    "gaps": {"type": "array", "default": []},
    "either": {"type": "number", "default": 1},
    "text": {"type": "string", "default": ""},
    "vip": {"type": "boolean", "default": False},
    "initials": {"type": "string"},
}


def test_every_field_that_a_schema_can_say_is_declared() -> None:
    assert fields_of(Customer) == EXPECTED


def test_a_class_without_settings_gets_sensible_ones() -> None:
    assert model_of(Customer) == {
        "path": "@customers/(id:string)",
        "oplog": True,
        "manifest": {"enabled": True},
        "indexes": {
            "byEmail": {"field": "email", "unique": True},
            "byTag": {"field": "tags", "type": "multiValue"},
            "byAddressCity": {"field": "address.city"},
        },
    }


def test_what_a_class_writes_fits_its_schema() -> None:
    schema = schema_of([Customer])
    small = Customer(id="a", name="A", email="a@b", born=None, seen=datetime(2026, 1, 1, tzinfo=UTC), key=UUID(int=1))
    large = small.model_copy(
        update={
            "born": date(2000, 1, 1),
            "seen": datetime(2026, 1, 1, 1, 2, 3, 123456, tzinfo=UTC),
            "address": Address(city="X"),
            "tree": Node(value=1, children=[Node(value=2)]),
            "gaps": [None, 1],
            "mixed": "x",
            "colour": Colour.RED,
            "pair": (2, "y"),
            "exact": Decimal("0.12345678901234567890"),
        }
    )
    for one in (small, large):
        document = dump(one, schema.model("Customer").fields)
        assert schema.model("Customer").validate_document(document) == []
    assert dump(large, schema.model("Customer").fields)["exact"] == "0.12345678901234567890"


def test_all_settings_reach_the_schema() -> None:
    class Event(Document):
        worm_settings = ModelSettings(
            path="#org/@events/(id:ulid)",
            file="event.json",
            mode="append",
            soft_delete=True,
            trash_ttl_days=7,
            archive_after="30d",
            lake="1h",
            snapshots=SnapshotSettings(every=5, max_age="1d", max_count=3),
            manifest=ManifestSettings(
                fields=["kind"], extra=False, max_field_bytes=9, partition_threshold=5, max_partitions=2
            ),
            indexes={"byKind": FieldIndex("kind", unique=True), "byDay": "day"},
            strict=True,
            space="main",
        )
        kind: str
        day: str = ""

    assert model_of(Event) == {
        "path": "#org/@events/(id:ulid)",
        "file": "event.json",
        "mode": "append",
        "oplog": True,
        "softDelete": True,
        "trashTtlDays": 7,
        "archiveAfter": "30d",
        "snapshots": {"enabled": True, "every": 5, "maxAge": "1d", "maxCount": 3},
        "manifest": {
            "enabled": True,
            "fields": ["kind"],
            "extra": False,
            "maxFieldBytes": 9,
            "partitionThreshold": 5,
            "maxPartitions": 2,
        },
        "indexes": {"byKind": {"field": "kind", "unique": True}, "byDay": {"field": "day"}},
        "lake": {"format": "delta", "every": "1h"},
        "strict": True,
        "space": "main",
    }


def test_the_type_of_the_id_is_that_of_the_class() -> None:
    class Number(Document[int]):
        pass

    class Random(Document[UUID]):
        pass

    class Redeclared(BaseModel):
        id: int

    class Slugged(Document):
        worm_settings = ModelSettings(id="slug")

    class Settings(Document):
        worm_settings = ModelSettings(singleton=True, manifest=False, oplog=False)

    schema = schema_of([Number, Random, Redeclared, Slugged, Settings])
    assert {name: model.path for name, model in schema.models.items()} == {
        "Number": "@numbers/(id:int)",
        "Random": "@randoms/(id:uuid)",
        "Redeclared": "@redeclareds/(id:int)",
        "Slugged": "@sluggeds/(id:slug)",
        "Settings": "@settings",
    }
    assert (schema.models["Settings"].oplog, schema.models["Settings"].manifest.enabled) == (False, False)


def test_plain_classes_of_pydantic_are_models_too() -> None:
    class Order(BaseModel):
        worm_model: ClassVar[str] = "PurchaseOrder"
        model_config = ConfigDict(alias_generator=to_camel)
        id: str
        order_no: int
        created_at: datetime | None = None

    assert schema_of([Order]) == load_schema(
        {
            "version": "1.0",
            "models": {
                "PurchaseOrder": {
                    "path": "@purchase-orders/(id:string)",
                    "oplog": True,
                    "manifest": {"enabled": True},
                    "fields": {"orderNo": {"type": "integer", "required": True}, "createdAt": {"type": "datetime"}},
                }
            },
        }
    )


def test_a_field_that_is_read_from_several_places_is_not_required_in_one() -> None:
    class Chosen(Document):
        model_config = ConfigDict(populate_by_name=True)
        full_name: str = Field(alias="fullName")

    class Nested(BaseModel):
        name: str = Field(validation_alias=AliasChoices("name", "title"))

    class Outer(Document):
        inner: Nested

    assert fields_of(Chosen) == {"fullName": {"type": "string"}}
    assert fields_of(Outer)["inner"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": True,
    }


def test_storage_is_said_beside_the_classes() -> None:
    class Thing(Document):
        pass

    assert schema_of([Thing], storage=StorageDef(layout="inline")).storage.layout == "inline"
    assert schema_of([Thing]).storage == StorageDef()


def _class(**namespace: Any) -> type[BaseModel]:
    annotations = namespace.pop("fields", {})
    made = type("Made", (Document,), {"__module__": __name__, "__annotations__": annotations, **namespace})
    assert issubclass(made, BaseModel)
    return made


REFUSED: dict[str, tuple[type[BaseModel], str]] = {
    "strict, but not declarable": (
        _class(worm_settings=ModelSettings(strict=True), fields={"x": "Any", "y": "int | str"}),
        "Made is strict, but its schema cannot declare x, y",
    ),
    "index without type": (_class(fields={"x": Annotated[Any, FieldIndex()]}), "Made.x has an index, but not a single"),
    "index in a list": (_class(fields={"x": list[Address]}), "Made has an index inside a list"),
    "index names a field": (
        _class(fields={"x": Annotated[str, FieldIndex("y")]}),
        "names a field, but it already annotates",
    ),
    "index without field": (
        _class(worm_settings=ModelSettings(indexes={"byX": FieldIndex()})),
        "byX of Made does not name a field",
    ),
    "unknown field": (_class(worm_settings=ModelSettings(indexes={"byX": "x"})), "unknown field 'x'"),
    "same name": (
        _class(fields={"x": Annotated[str, FieldIndex()]}, worm_settings=ModelSettings(indexes={"byX": "id"})),
        "Made has two indexes named byX",
    ),
    "number as reference": (_class(fields={"x": Annotated[int, Ref("Made")]}), "with a value that is not text"),
    "unknown model": (_class(fields={"x": Annotated[str, Ref("Other")]}), "unknown model 'Other'"),
    "path": (_class(worm_settings=ModelSettings(path="made")), "Made.worm_settings.path: must name its collection"),
    "path and id": (
        _class(worm_settings=ModelSettings(path="@m/(id:int)", id="int")),
        "Made has a path, which already defines",
    ),
    "duration": (_class(worm_settings=ModelSettings(archive_after="soon")), "models.Made.archiveAfter"),
    "not defined": (_class(fields={"x": "Nowhere"}), "Made is incomplete"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_model_is_refused_with_the_reason(case: str) -> None:
    cls, message = REFUSED[case]
    with pytest.raises(Invalid) as caught:
        schema_of([cls])
    assert message in caught.value.message


def test_the_path_must_have_the_ids_of_the_class() -> None:
    class Number(Document[int]):
        worm_settings = ModelSettings(path="@numbers/(id:slug)")

    with pytest.raises(Invalid, match="has ids of type slug, but its class uses another type"):
        schema_of([Number])


def test_no_class_and_no_two_of_a_name_and_nothing_else() -> None:
    with pytest.raises(Invalid, match="at least one model"):
        schema_of([])
    with pytest.raises(Invalid, match="two classes define the model Made"):
        schema_of([_class(), _class()])
    with pytest.raises(Invalid, match="is not a pydantic class"):
        schema_of([dict])  # type: ignore[list-item]


def test_a_schema_of_classes_is_a_schema() -> None:
    schema = schema_of([Customer])
    assert isinstance(schema, Schema)
    assert load_schema(schema.to_json()) == schema
