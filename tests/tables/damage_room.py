"""A small collection with every kind of file that this library writes beside documents, and wrong forms of each file.

A *mutant* of a file is what somebody who knows the format may write: valid JSON, its checksum right, the name of an
immutable file too; but one member is missing, of another type or of another size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.harness import created
from tests.sdk.sessions import Bench
from worm.formats.strict_json import JsonObject, JsonValue, dumps
from worm.store.memory import MemoryStore
from worm.tables import layout, tree
from worm.upkeep.session import Session, Settings
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

FOLDER = "org/customers/"
MANIFEST, HEADS = f"{FOLDER}.worm.manifest.json", f"{FOLDER}.worm.heads.json"
CURSOR = ".worm.sweep/Customer.json"
CUSTOMER: dict[str, object] = {
    "softDelete": True,
    "snapshots": {"enabled": True, "every": 2},
    "fields": {
        "name": {"type": "string"},
        "status": {"type": "string"},
        "score": {"type": "number"},
        "email": {"type": "string"},
        "text": {"type": "string"},
        "tags": {"type": "array", "items": "string"},
    },
    "manifest": {"enabled": True, "maxFieldBytes": 1024, "maxRowBytes": 2048},
    "indexes": {
        "byStatus": {"field": "status"},
        "byEmail": {"field": "email", "unique": True},
        "byTag": {"field": "tags", "type": "multiValue"},
    },
}
SPREAD: dict[str, object] = {"enabled": True, "maxFieldBytes": 1024, "maxRowBytes": 2048, "partitionThreshold": 4}


class Room(Bench):
    """Customers a to e that were changed and one that is in trash; `spread`: their table is spread over files."""

    def __init__(self, *, spread: bool = False, **customer: object) -> None:
        manifest = {"manifest": SPREAD} if spread else {}
        super().__init__("memory-versioned", Path(), **{**CUSTOMER, **manifest, **customer})
        customers = self.customers()
        customers.table.complete()
        for number, one in enumerate("abcdef"):
            self.tick()
            tags, status = ["x", one], "active" if number % 2 else "new"
            new = {"id": one, "name": one, "score": number, "status": status, "tags": tags, "email": f"{one}@acme.com"}
            customers.insert(new)
        self.tick()
        customers.patch("a", {"score": 10, "text": "long " * 300})
        customers.delete("f")
        self.events = [created(f"{FOLDER}{one}/profile.json") for one in ("raw", "a")]
        self.store.put(f"{FOLDER}raw/profile.json", b'{"name": "raw", "status": "new"}')
        self.store.put(CURSOR, dumps({"version": 1, "after": ""}))
        self.capture()
        assert self.fold().failed == {}
        self.session().push()

    def fork(self) -> Room:
        """Another room that holds the same."""
        assert isinstance(self.store, MemoryStore)
        forked, store = copy(self), copy(self.store)
        store._history = {key: list(history) for key, history in self.store._history.items()}
        forked.store = store
        return forked

    def worker(self) -> Session:
        return Session(self.store, Settings("documents", threads=1), ids=self.ids, clock=self.clock)

    def capture(self) -> BatchOutcome:
        return Capture(self.worker()).run([Message(f"m{at}", body) for at, body in enumerate(self.events)])

    def fold(self) -> BatchOutcome:
        keys = [listed.key for listed in self.store.list(".worm.changes/")]
        return Fold(self.worker()).run([Message(f"m{at}", created(key)) for at, key in enumerate(keys)])

    def sweep(self, *, resume: bool = False) -> list[object]:
        return [*Sweep(self.worker()).run(lambda: 60.0, resume=resume)]

    def body(self, key: str) -> bytes:
        found = self.store.get(key)
        assert found is not None, key
        return found.body

    def find(self, start: str, end: str = "") -> str:
        """The first key that starts and ends so."""
        return next(listed.key for listed in self.store.list(start) if listed.key.endswith(end))


def spread_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables have all kinds of files: directories, parts of heads, deltas that stay."""
    monkeypatch.setattr(layout, "INLINE_PARTITIONS", 1)
    monkeypatch.setattr(layout, "HEADS_PER_PART", 3)
    monkeypatch.setattr(tree, "BASE_SHARE", 0)


# Mutants

DEEP: JsonValue = 1
for _ in range(200):
    DEEP = [DEEP]
GONE = object()
OTHERS: tuple[object, ...] = (
    *(GONE, None, True, "x", "../../x", "", -1, 0, 1, 10**18, 2**64 - 1, 1.5, [], {}, [1], ["x"], [None], [[]]),
    *({"x": 1}, {"x": {}}, [{}], {"": None}, [5, None, None, True, "x"], {"../x": {"../x": "x"}}, DEEP),
)
"""What takes the place of a member."""
Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`shape` as it is now, with another value at one path."""

    path: Path_
    value: object
    shape: JsonObject

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))} = {'gone' if self.value is GONE else repr(self.value)[:60]}"


def mutants(shape: JsonObject, every: int = 1) -> Iterator[Mutant]:
    """Of every member, at any depth, every other value; of which only every so-manieth."""
    return islice(_all_mutants(shape), 0, None, every)


def _all_mutants(shape: JsonObject) -> Iterator[Mutant]:
    for path in _paths(shape):
        for value in OTHERS:
            changed = _changed(shape, path, value)
            if changed != shape:
                yield Mutant(path, value, changed)
        if isinstance(path[-1], str):
            renamed = _changed(shape, path, GONE)
            _at(renamed, path[:-1])["../\x00"] = _at(shape, path)
            yield Mutant(path, "renamed", renamed)


def _paths(value: JsonValue, path: Path_ = ()) -> Iterator[Path_]:
    inner: Sequence[tuple[str | int, JsonValue]] = ()
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    for step, part in inner:
        yield (*path, step)
        yield from _paths(part, (*path, step))


def _at(shape: JsonObject, path: Path_) -> Any:
    found: Any = shape
    for step in path:
        found = found[step]
    return found


def _changed(shape: JsonObject, path: Path_, value: object) -> JsonObject:
    changed = deepcopy(shape)
    inner = _at(changed, path[:-1])
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return changed


# Files

PIECE = re.compile(r"(?P<folder>.*/)(?P<stem>[a-z]+(-[0-9]+)?)-[0-9a-f]{16}\.json")


def shape_of(body: bytes) -> JsonObject:
    """What a file says, without its checksum."""
    shape: JsonObject = orjson.loads(body)
    return {name: value for name, value in shape.items() if name != "checksum"}


def encoded(old: bytes, shape: JsonObject) -> bytes:
    """Another shape in the place of that of a file, with a checksum where the file has one."""
    text = orjson.dumps(shape, option=orjson.OPT_SORT_KEYS)
    if b'"checksum":' not in old:
        return text
    checksum: JsonObject = {"checksum": f"sha256:{sha256(text).hexdigest()}"}
    rest = b"," + text[1:] if shape else b"}"
    return orjson.dumps(checksum)[:-1] + rest


def write(room: Room, key: str, shape: JsonObject) -> bytes:
    """As somebody would who knows the format: an immutable file gets the name that its bytes give it now, and what
    names it names that."""
    old = room.body(key)
    body, piece = encoded(old, shape), PIECE.fullmatch(key)
    if piece is None:
        room.store.put(key, body)
        return body
    digest = sha256(body).hexdigest()[:16]
    new = f"{piece['folder']}{piece['stem']}-{digest}.json"
    room.store.put(new, body)
    _rename(room, key.rpartition("/")[2], new.rpartition("/")[2], len(body))
    return body


def _rename(room: Room, old: str, new: str, size: int) -> None:
    for listed in list(room.store.list(FOLDER)):
        body = room.body(listed.key)
        if old.encode() in body and not listed.key.endswith("/_meta.json"):
            shape = _with_name(shape_of(body), old, new, size)
            assert isinstance(shape, dict)
            write(room, listed.key, shape)


def _with_name(value: JsonValue, old: str, new: str, size: int) -> JsonValue:
    if isinstance(value, dict):
        named = {name: _with_name(part, old, new, size) for name, part in value.items()}
        return named | {"file": new, "bytes": size} if value.get("file") == old else named
    return [_with_name(part, old, new, size) for part in value] if isinstance(value, list) else value
