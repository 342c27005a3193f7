"""`worm.Document`: ids of every type, what an object knows of its origin, names of collections."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from worm.collections.documents import DocumentVersion
from worm.errors import Invalid
from worm.formats.definition import ManifestDef, ModelDef, ModelPath, SnapshotsDef
from worm.formats.strict_json import JsonValue
from worm.sdk.classes import (
    Document,
    ManifestSettings,
    ModelSettings,
    SnapshotSettings,
    settings_of,
)
from worm.sdk.document import ATTRIBUTE, Provenance
from worm.sdk.shapes import model_name


class Customer(Document):
    name: str
    status: str = "lead"


class Numbered(Document[int]):
    total: float = 0


class Unique(Document[UUID]):
    pass


class Release(Document):
    """With fields that have the names of what every object knows."""

    version: int = 3  # type: ignore[assignment]  # a type of its own
    model: str | None = "T"


class Frozen(Document):
    model_config = ConfigDict(frozen=True)

    name: str


class Holding(Document):
    model_config = ConfigDict(extra="allow")


class Either(BaseModel):
    one: Customer | Numbered


VERSION = DocumentVersion("etag", None, None, 7).encode()


def read(item: Any) -> Any:
    """The object as a verb returns it."""
    carried: dict[str, JsonValue] = {"createdAt": "2026-01-01T00:00:00.000Z"}
    item.__dict__[ATTRIBUTE] = Provenance("Customer", "a", DocumentVersion("etag", None, None, 7), carried=carried)
    return item


def test_a_new_object_has_an_id_only_if_it_was_given() -> None:
    assert Customer(name="Acme").id is None  # until it is inserted
    assert Customer(id="acme", name="Acme").id == "acme"
    assert Numbered(id=7).id == 7
    assert Unique(id=UUID(int=1)).model_dump(mode="json") == {"id": "00000000-0000-0000-0000-000000000001"}
    with pytest.raises(ValidationError):
        Customer.model_validate({"id": 7, "name": "Acme"})
    with pytest.raises(ValidationError):
        Numbered.model_validate({"id": "acme"})


def test_a_new_object_comes_from_nowhere() -> None:
    new = Customer(name="Acme")
    assert (new.version, new.seq, new.model, new.created_at, new.updated_at) == (None, None, None, None, None)
    with pytest.raises(AttributeError, match="no attribute 'versions'"):
        new.versions  # type: ignore[attr-defined]  # noqa: B018


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "model_copy": lambda item: item.model_copy(),
    "deep model_copy": lambda item: item.model_copy(deep=True),
    "model_copy with changes": lambda item: item.model_copy(update={"status": "lead"}),
    "pickle": lambda item: pickle.loads(pickle.dumps(item)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_knows_where_it_came_from(how: str) -> None:
    copied = COPIES[how](read(Customer(id="a", name="Acme")))
    assert (copied.version, copied.seq, copied.model) == (VERSION, 7, "Customer")
    assert (copied.created_at, copied.updated_at) == (datetime(2026, 1, 1, tzinfo=UTC), None)
    assert copied == Customer(id="a", name="Acme")


def test_the_origin_is_neither_dumped_nor_compared_nor_shown() -> None:
    plain, found = Customer(id="a", name="Acme"), read(Customer(id="a", name="Acme"))
    assert found == plain
    assert plain == found
    assert repr(found) == repr(plain)
    assert dict(found) == dict(plain)
    assert found.model_dump() == plain.model_dump() == {"id": "a", "name": "Acme", "status": "lead"}
    assert found.model_dump_json() == plain.model_dump_json()
    assert found.model_fields_set == {"id", "name"}
    assert found != Customer(id="a", name="Other")
    assert hash(read(Frozen(id="a", name="x"))) == hash(Frozen(id="a", name="x"))
    found.name = "Acme Inc"
    assert found.version == VERSION


def test_an_object_inside_another_is_dumped_without_its_origin() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holder = Either(one=read(Customer(id="a", name="Acme")))
        assert holder.model_dump(mode="json") == {"one": {"id": "a", "name": "Acme", "status": "lead"}}
        assert Customer(name="Acme").model_dump(mode="json")["id"] is None


def test_a_field_of_the_class_wins() -> None:
    release = read(Release(id="a"))
    assert (release.version, release.model, release.seq) == (3, "T", 7)
    release.version = 4
    assert release.version == 4
    assert "version" not in Release.model_construct(id="a", _fields_set=set()).model_fields_set


def test_times_are_known_wherever_the_object_holds_them() -> None:
    made = Holding.model_validate({"id": "a", "updatedAt": "2026-01-02T00:00:00.000Z", "createdAt": 3})
    assert (made.created_at, made.updated_at) == (None, datetime(2026, 1, 2, tzinfo=UTC))


def test_a_model_has_the_name_of_its_class_or_its_own() -> None:
    class Client(Document):
        worm_model: ClassVar[str] = "Customer"

    assert (model_name(Customer), model_name(Client)) == ("Customer", "Customer")


def test_settings_are_inherited_and_checked() -> None:
    class Quiet(Document):
        worm_settings = ModelSettings(oplog=False)

    class Loud(Quiet):
        pass

    class Wrong(BaseModel):
        worm_settings: ClassVar[dict[str, bool]] = {"oplog": True}

    assert settings_of(Loud).oplog is False
    assert settings_of(Customer) == settings_of(BaseModel) == ModelSettings()
    with pytest.raises(Invalid, match=r"Wrong.worm_settings must be a ModelSettings, not dict"):
        settings_of(Wrong)


def test_settings_say_everything_that_a_schema_says_of_a_model() -> None:
    def names(cls: type[Any]) -> set[str]:
        return {one.name for one in fields(cls)}

    assert names(ModelSettings) == {*ModelDef.members} - {"fields"} | {"id", "singleton"}
    assert names(SnapshotSettings) == {*SnapshotsDef.members} - {"enabled"}
    assert names(ManifestSettings) == {*ManifestDef.members} - {"enabled"}
    for settings, definition in ((SnapshotSettings(), SnapshotsDef()), (ManifestSettings(), ManifestDef())):
        for one in fields(settings):
            assert getattr(settings, one.name) == getattr(definition, one.name)


@pytest.mark.parametrize(
    ("name", "collection"),
    [
        ("Customer", "customers"),
        ("Company", "companies"),
        ("Address", "addresses"),
        ("Box", "boxes"),
        ("Branch", "branches"),
        ("Key", "keys"),
        ("OrderLine", "order-lines"),
        ("HTTPRequest", "http-requests"),
        ("Person", "people"),
        ("Version2", "version2s"),
        ("audit_entry", "audit-entries"),
        ("Y", "ys"),
    ],
)
def test_a_collection_is_named_for_its_class(name: str, collection: str) -> None:
    assert ModelPath.usual_collection(name, singleton=False) == collection


def test_the_collection_of_a_singleton_is_not_made_plural() -> None:
    assert ModelPath.usual_collection("OrgSettings", singleton=True) == "org-settings"
