"""How far a reader goes who follows one action through the code: which modules are entered, each of which should be a
step with a name, and how often a call goes from one module to another."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType

import pytest

import worm
from tests.api.client import Client, memory_session
from tests.harness import DataPath, schema_of
from tests.project.source_tree import WORM
from worm.api.app import Api
from worm.pages.db import PageDb, create_database
from worm.pages.reader import PageReader
from worm.sdk.document import DocumentDict
from worm.sdk.model import Model
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
from worm.store.open import open_store

NUMBERS = itertools.count()


class Walk:
    """What is called meanwhile in the library, in this thread and in those that it starts."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.changes: list[str] = []
        """For each call from one module to another: `a.py > b.py`."""
        self._known: dict[CodeType, str | None] = {}

    def _module(self, code: CodeType) -> str | None:
        """Of the library. The methods of values, and loading a name, are no step."""
        if code not in self._known:
            name = code.co_filename.removeprefix(f"{WORM}/")
            self._known[code] = None if name in (code.co_filename, "values.py", "doors.py") else name
        return self._known[code]

    def _caller(self, frame: FrameType) -> str | None:
        """The nearest module of the library: it is also the caller of what `sorted` or `functools` call for it."""
        before = frame.f_back
        while before is not None:
            module = self._module(before.f_code)
            if module is not None:
                return module
            before = before.f_back
        return None

    def enter(self, frame: FrameType, event: str, _: object) -> None:
        module = self._module(frame.f_code) if event == "call" else None
        if module is None:
            return
        self.modules.add(module)
        caller = self._caller(frame)
        if caller is not None and caller != module:
            self.changes.append(f"{caller} > {module}")


@contextmanager
def followed() -> Iterator[Walk]:
    walk = Walk()
    gc.disable()  # or it might finalize here what another test left
    threading.setprofile(walk.enter)
    sys.setprofile(walk.enter)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()


def _uploaded() -> DataPath:
    path = DataPath()
    path.put("a", {"id": "a", "name": "A", "status": "active"})
    return path


def upload_to_entry() -> Walk:
    path = _uploaded()
    with followed() as walk:
        path.run_capture()
    return walk


def change_set_to_manifest() -> Walk:
    path = _uploaded()
    path.run_capture()
    bodies = path.change_sets()
    path.new_workers(path.store)
    with followed() as walk:
        path.run_fold(bodies)
    return walk


def _stored() -> Model[DocumentDict]:
    """A model with one document, which is in its table."""
    db = worm.connect(f"memory://test-walks-{next(NUMBERS)}", schema=schema_of(), maintenance="inline")
    model = db.model("Customer")
    model.save(model.create({"name": "A", "status": "active"}, id="a"))
    return model


def save() -> Walk:
    model = _stored()
    document = model.get("a")
    document["status"] = "lead"
    with followed() as walk:
        model.save(document)
    return walk


def patch() -> Walk:
    model = _stored()
    with followed() as walk:
        model.patch("a", {"status": "lead"})
    return walk


def filtered_find_all() -> Walk:
    model = _stored()
    model.find_all(filter={"status": "active"})  # what is opened once is open
    with followed() as walk:
        assert len(model.find_all(filter={"status": "active"})) == 1
    return walk


def get_over_http() -> Walk:
    session = memory_session(schema_of())
    session.model("Customer").insert({"id": "a", "name": "A"})
    client = Client(Api(lambda: session))
    assert client.get("/v1/models/Customer/documents/a").status == 200
    with followed() as walk:
        assert client.get("/v1/models/Customer/documents/a").status == 200
    return walk


def space_commit() -> Walk:
    with open_space(f"memory://test-walks-{next(NUMBERS)}", "main") as space:
        space.transact([set_document("first", {})])
        with followed() as walk:
            space.transact([set_document("a", {"v": 1})])
    return walk


def page_at_an_lsn() -> Walk:
    store = open_store(f"memory://test-walks-{next(NUMBERS)}")
    create_database(store, "main")
    with PageDb.open(store, "main", name="writer") as db:
        first = db.write({"a": b"1"})
        db.write({"a": b"2"})
        db.flush()
    reader = PageReader.open(store, "main")
    with followed() as walk:
        assert reader.get_page("a", first) == b"1"
    return walk


LIMITS: list[tuple[Callable[[], Walk], int, int]] = [
    # what happens, the modules that it enters, and the calls from one to another
    (upload_to_entry, 27, 238),
    (change_set_to_manifest, 27, 357),
    (save, 40, 353),
    (patch, 42, 372),
    (filtered_find_all, 23, 93),
    (get_over_http, 24, 59),
    (space_commit, 23, 119),
    (page_at_an_lsn, 13, 35),
]
"""What is measured today. A change that shortens a walk lowers its limits; `pytest -rP` shows the numbers."""


@pytest.mark.parametrize(("action", "modules_max", "changes_max"), LIMITS, ids=[one[0].__name__ for one in LIMITS])
def test_a_walk_through_the_code_is_short(action: Callable[[], Walk], modules_max: int, changes_max: int) -> None:
    walk = action()
    print(f"{len(walk.modules)} modules, {len(walk.changes)} changes")
    assert len(walk.modules) <= modules_max, sorted(walk.modules)
    assert len(walk.changes) <= changes_max, Counter(walk.changes).most_common()
