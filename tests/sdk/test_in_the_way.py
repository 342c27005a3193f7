"""A directory that somebody else uses too: a FIFO, a folder or a link lies where this library wants to write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.sdk.sessions import Bench
from worm.errors import Corrupt, Denied, Invalid, NotFound
from worm.store.file import FileStore
from worm.tables.table import Table

pytestmark = pytest.mark.timeout(30)  # a FIFO that somebody waits for

LINKS = ("link that leads out", "link to itself")
THINGS = ("fifo", "folder", *(pytest.param(one, marks=pytest.mark.slow) for one in LINKS))
DOCUMENT = "org/customers/a/profile.json"
NEXT_ENTRY = ".oplog/customers/a/0002.json"
DERIVED = {
    "manifest": "org/customers/.worm.manifest.json",
    "heads": "org/customers/.worm.heads.json",
    "index": "org/customers/.worm.index/status.json",
    "sentinel": "org/customers/.worm",
}


class Room(Bench):
    """Customers a and b in a directory, with one entry each."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__("file", tmp_path)
        self.customers().table.complete()
        for one in ("a", "b"):
            self.customers().insert({"id": one, "name": one, "status": "new"})

    def path(self, key: str) -> Path:
        assert isinstance(self.store, FileStore)
        return self.store.root / key

    def block(self, key: str, thing: str) -> None:
        path = self.path(key)
        path.unlink(missing_ok=True)
        if thing == "fifo":
            os.mkfifo(path)
        elif thing == "folder":
            path.mkdir()
            (path / "theirs.txt").write_text("theirs")
        else:
            path.symlink_to(path if thing == "link to itself" else "/etc/hostname")

    def clear(self, key: str) -> None:
        path = self.path(key)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def names(self) -> dict[str, object]:
        return {str(row["id"]): row["name"] for row in self.customers().find_all()}


@pytest.mark.parametrize("thing", THINGS)
def test_a_save_whose_entry_has_no_place_says_that_the_document_is_stored(thing: str, tmp_path: Path) -> None:
    """It said `Invalid`, as if nothing had been stored, and a caller saved it again."""
    room = Room(tmp_path)
    room.block(NEXT_ENTRY, thing)
    with pytest.raises(Corrupt, match="the change is stored, but its history is damaged") as caught:
        room.customers().patch("a", {"name": "A"})
    assert caught.value.is_stored
    assert caught.value.key == NEXT_ENTRY
    assert caught.value.hint
    assert room.customers().get("a")["name"] == "A"
    results = room.customers().upsert_many([{"id": one, "name": one * 2, "status": "new"} for one in ("a", "b")])
    assert [(one.id, one.error is not None and one.error.is_stored) for one in results] == [("a", True), ("b", False)]
    assert (room.ops("b"), room.names()["b"]) == (["create", "update"], "bb")
    (swept,) = room.session().sweep()
    assert list(swept.damaged) == ["a"]
    with pytest.raises(Corrupt, match="is stored") as caught:
        room.customers().delete("a")
    assert caught.value.is_stored
    assert room.customers().find_by_id("a") is None


@pytest.mark.parametrize("thing", THINGS)
def test_history_goes_on_where_nothing_is_in_the_way_any_more(thing: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.block(NEXT_ENTRY, thing)
    with pytest.raises(Corrupt):
        room.customers().patch("a", {"name": "A"})
    (report,) = room.session().repair()
    assert list(report.damaged) == ["a"]
    room.clear(NEXT_ENTRY)
    assert room.session().sweep()[0].problems == {}
    assert room.ops("a") == ["create", "update"]
    assert room.names() == {"a": "A", "b": "b"}
    room.assert_clean()


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("kind", DERIVED)
def test_a_table_whose_file_has_no_place_costs_no_document(kind: str, thing: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.block(DERIVED[kind], thing)
    with pytest.raises(Corrupt, match="the change is stored, but history and table are behind") as caught:
        room.customers().patch("a", {"name": "A"})
    assert caught.value.is_stored
    assert caught.value.key == DERIVED[kind]
    assert room.customers().get("a")["name"] == "A"
    assert room.ops("a") == ["create", "update"]
    assert room.names() == {"a": "A", "b": "b"}
    (swept,) = room.session().sweep()
    assert isinstance(swept.error, Corrupt) is (kind != "sentinel"), "that is not written where nothing changed"
    room.session().verify()
    with pytest.raises(Corrupt) as repaired:
        room.session().repair()
    assert repaired.value.key == DERIVED[kind]
    room.clear(DERIVED[kind])
    room.session().repair()
    room.assert_clean()


@pytest.mark.parametrize("thing", THINGS)
def test_what_lies_in_the_place_of_a_document_is_named_and_never_replaced(thing: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.block(DOCUMENT, thing)
    with pytest.raises((NotFound, Invalid), match="remove") as missing:
        room.customers().get("a")
    with pytest.raises((NotFound, Invalid)):
        room.customers().patch("a", {"name": "A"})
    with pytest.raises(Invalid) as taken:
        room.customers().upsert({"id": "a", "name": "A"})
    assert (missing.value.is_stored, taken.value.is_stored) == (False, False)
    room.customers().patch("b", {"name": "B"})
    assert room.names()["b"] == "B"
    assert room.ops("b") == ["create", "update"]
    room.session().sweep()
    room.session().verify()
    assert os.path.lexists(room.path(DOCUMENT))
    room.clear(DOCUMENT)
    room.customers().upsert({"id": "a", "name": "again"})
    room.session().repair()
    room.assert_clean()


@pytest.mark.parametrize("key", [".oplog/customers/a/0001.json", ".oplog/customers/a"], ids=["entry", "folder"])
def test_a_history_that_leads_out_of_the_store_is_damage_of_one_document(key: str, tmp_path: Path) -> None:
    """`worm repair` ended with `Invalid` for the whole model."""
    room = Room(tmp_path)
    outside = tmp_path / "outside"
    room.path(key).rename(outside)
    room.path(key).symlink_to(outside)
    with pytest.raises(Corrupt, match="leaves the store") as caught:
        room.customers().get_history("a")
    assert caught.value.key == ".oplog/customers/a/0001.json"
    (report,) = room.session().repair()
    assert list(report.damaged) == ["a"]
    assert room.names()["b"] == "b"
    room.path(key).unlink()
    outside.rename(room.path(key))
    room.session().repair()
    assert room.names() == {"a": "a", "b": "b"}
    room.assert_clean()


def test_a_failure_of_any_kind_after_the_document_is_stored_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role that may not write the table: `Denied`, and the document was stored all the same."""
    room = Room(tmp_path)

    def denied(*_: object) -> None:
        raise Denied("the store refused the request: 403", key=DERIVED["manifest"])

    monkeypatch.setattr(Table, "fold", denied)
    with pytest.raises(Denied, match="the change is stored") as caught:
        room.customers().patch("a", {"name": "A"})
    assert caught.value.is_stored
