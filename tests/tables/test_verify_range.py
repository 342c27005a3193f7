"""What verify says of the trash of a range, beside others who work on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness import DataPath, schema_of
from worm.collections.id_ranges import IdRange
from worm.formats import load_schema
from worm.sdk.database import Model, Worm
from worm.store.base import ObjectInfo
from worm.tables.tasks.verify_range import verify_range


@pytest.fixture
def path() -> DataPath:
    return DataPath(schema_of(softDelete=True), versioned=False)


def trashed(path: DataPath) -> Model:
    """`a`, deleted."""
    session = Worm(path.store, load_schema(dict(path.schema)), probe=False, clock=path.clock, ids=path.ids, actor="ann")
    model = session.model("Customer")
    model.save(model.create({"name": "x"}, id="a"))
    path.clock.advance(5)
    model.delete("a")
    return model


def of_trash(path: DataPath) -> list[str]:
    report = verify_range(path.collection, IdRange()).report
    return [one.kind for one in report.differences if one.kind.startswith("trash-")]


def after_looking_for(path: DataPath, key: str, act: Callable[[], object]) -> Callable[..., ObjectInfo | None]:
    """A `head` that lets somebody act right after it found nothing under the key."""
    look, acted = path.store.head, list[str]()

    def head(wanted: str, *, version_id: str | None = None) -> ObjectInfo | None:
        found = look(wanted, version_id=version_id)
        if wanted == key and found is None and not acted:
            acted.append(key)
            act()
        return found

    return head


def test_a_document_that_is_restored_meanwhile_is_not_lost(path: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trashed(path)
    racing = after_looking_for(path, path.key("a"), lambda: model.restore("a"))
    monkeypatch.setattr(path.store, "head", racing)

    assert of_trash(path) == []
    assert model.find_by_id("a") is not None
    assert list(path.collection.trashed_ids()) == []


def test_a_tombstone_that_breaks_meanwhile_is_told(path: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    trashed(path)
    trash = path.collection.trash
    path.store.delete(trash.copy_key("a"))
    racing = after_looking_for(path, trash.copy_key("a"), lambda: path.store.put(trash.tombstone_key("a"), b"{}"))
    monkeypatch.setattr(path.store, "head", racing)

    assert of_trash(path) == ["trash-damaged"]


def test_what_is_lost_is_told(path: DataPath) -> None:
    trashed(path)
    assert of_trash(path) == []
    path.store.delete(path.collection.trash.copy_key("a"))

    assert of_trash(path) == ["trash-copy-missing"]
