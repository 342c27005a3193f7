"""How many modules a reader passes who follows one action through the code: each should be a step with a name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import worm
from tests.harness import DataPath, schema_of
from tests.project.source_tree import WORM
from worm.pages.db import PageDb, create_database
from worm.pages.reader import PageReader
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
from worm.store.open import open_store


@contextmanager
def followed() -> Iterator[set[str]]:
    """The modules of the library that are entered meanwhile, in this thread and in those that it starts."""
    entered: set[str] = set()
    root = f"{WORM}/"

    def enter(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(root) and name != f"{root}values.py":  # methods of values: no step
            entered.add(name.removeprefix(root))

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _uploaded() -> DataPath:
    path = DataPath()
    path.put("a", {"id": "a", "name": "A", "status": "active"})
    return path


def upload_to_entry() -> set[str]:
    path = _uploaded()
    with followed() as entered:
        path.run_capture()
    return entered


def change_set_to_manifest() -> set[str]:
    path = _uploaded()
    path.run_capture()
    bodies = path.change_sets()
    path.new_workers(path.store)
    with followed() as entered:
        path.run_fold(bodies)
    return entered


def filtered_find_all() -> set[str]:
    saved = worm.connect("memory://test-walks", schema=schema_of(), maintenance="inline").model("Customer")
    saved.save(saved.create({"name": "A", "status": "active"}, id="a"))
    model = worm.connect("memory://test-walks", schema=schema_of()).model("Customer")
    model.find_all(filter={"status": "active"})  # what is opened once is open
    with followed() as entered:
        assert len(model.find_all(filter={"status": "active"})) == 1
    return entered


def space_commit() -> set[str]:
    with open_space("memory://test-walks", "main") as space:
        space.transact([set_document("first", {})])
        with followed() as entered:
            space.transact([set_document("a", {"v": 1})])
    return entered


def page_at_an_lsn() -> set[str]:
    store = open_store("memory://test-walks-pages")
    create_database(store, "main")
    with PageDb.open(store, "main", name="writer") as db:
        first = db.write({"a": b"1"})
        db.write({"a": b"2"})
        db.flush()
    reader = PageReader.open(store, "main")
    with followed() as entered:
        assert reader.get_page("a", first) == b"1"
    return entered


@pytest.mark.parametrize(
    ("walk", "modules_max"),
    [
        (upload_to_entry, 27),
        (change_set_to_manifest, 27),
        (filtered_find_all, 23),
        (space_commit, 23),
        (page_at_an_lsn, 13),
    ],
)
def test_a_walk_through_the_code_passes_few_modules(walk: Callable[[], set[str]], modules_max: int) -> None:
    entered = walk()
    assert len(entered) <= modules_max, sorted(entered)
