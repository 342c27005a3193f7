"""The state of a store as a fold over records: documents by namespace and `_id`, validation specs, secondary indexes.

Pure: nothing here knows where records come from. A writer asks `Draft` whether a change fits *before* it writes; the
fold applies the same check to what was written. So a log that breaks a rule counts as damaged, and is not accepted by
luck.
- A document is kept as its canonical bytes: nobody can change it from outside, and equal states are equal bytes.
- An index holds, for every value of a field, the ids of the documents that have it. Values are the same if their
  canonical bytes are; a document without the field is not in the index. Dots lead into objects.
- A *spec*, `{"fields": {…}, "strict": bool}` with the fields of schema.json, is checked when it is defined, and
  documents when they are written. Existing documents stay as they are, and the fold checks none: a log replays to what
  was written, whatever was defined later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from worm.errors import Conflict, Invalid, NotFound, show
from worm.formats import (
    MISSING,
    FieldsDef,
    JsonObject,
    JsonValue,
    Problem,
    dumps,
    field_value,
)
from worm.log.journal.records import (
    Abort,
    Begin,
    Change,
    Commit,
    CreateIndex,
    Define,
    Delete,
    Insert,
    Record,
    Replace,
    id_order,
)

IndexEntries = dict[bytes, set[bytes]]
_SHOWN = 5


class LogFold:
    """Folds records into a state, in the order of the log. A transaction counts at its commit; one that ends with an
    abort, or has no end, never counts. A begin of an open transaction restarts it: a writer that died left the first
    one."""

    def __init__(self) -> None:
        self.state = StoreState()
        self.records = 0
        self.committed = 0
        self.aborted = 0
        self.next_txn = 0
        self._dropped = 0
        self._open: dict[int, list[Change]] = {}

    @property
    def dangling(self) -> int:
        """Transactions without an end."""
        return self._dropped + len(self._open)

    def add(self, record: Record) -> None:
        """The next record. `Conflict`, `NotFound` or `Invalid` if it does not fit the records before it."""
        op, txn = record.op, record.txn
        if txn is None:
            if not isinstance(op, Begin | Commit | Abort):
                self._apply_one(op)
        else:
            self._add_of_transaction(op, txn)
        self.records += 1

    def _add_of_transaction(self, op: Change | Begin | Commit | Abort, txn: int) -> None:
        self.next_txn = max(self.next_txn, txn + 1)
        if isinstance(op, Begin):
            self._dropped += txn in self._open
            self._open[txn] = []
            return
        if txn not in self._open:
            raise Invalid(f"transaction {txn} has not begun")
        if isinstance(op, Commit):
            self._apply(self._open.pop(txn))
            self.committed += 1
        elif isinstance(op, Abort):
            del self._open[txn]
            self.aborted += 1
        else:
            self._open[txn].append(op)

    def _apply_one(self, change: Change) -> None:
        if isinstance(change, Insert | Replace | Delete):
            key = dumps(change.id)
            _check(change, key, self.state.has(change.ns, key))
        self.state.apply(change)

    def _apply(self, changes: list[Change]) -> None:
        draft = Draft(self.state)
        for change in changes:
            draft.add(change)
        for change in changes:
            self.state.apply(change)


class Draft:
    """Changes that become visible together. Each is checked against the state with the earlier ones applied.
    `Conflict`: the `_id` already exists; `NotFound`: it does not."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._documents: dict[tuple[str, bytes], bytes | None] = {}
        self._specs: dict[str, Spec] = {}
        self._indexes: set[tuple[str, str]] = set()
        self.changes: list[Change] = []

    def body(self, ns: str, id: bytes) -> bytes | None:
        place = (ns, id)
        return self._documents[place] if place in self._documents else self._state.body(ns, id)

    def spec(self, ns: str) -> Spec | None:
        return self._specs.get(ns) or self._state.spec(ns)

    def has_index(self, ns: str, name: str) -> bool:
        return (ns, name) in self._indexes or self._state.has_index(ns, name)

    def add(self, change: Change) -> None:
        if isinstance(change, Define):
            self._specs[change.ns] = compile_spec(change.spec, change.ns)
        elif isinstance(change, CreateIndex):
            self._indexes.add((change.ns, change.field))
        else:
            self._add_document(change)
        self.changes.append(change)

    def _add_document(self, change: Insert | Replace | Delete) -> None:
        key = dumps(change.id)
        _check(change, key, self.body(change.ns, key) is not None)
        self._documents[change.ns, key] = None if isinstance(change, Delete) else dumps(change.doc)


def _check(change: Insert | Replace | Delete, key: bytes, there: bool) -> None:
    if isinstance(change, Insert):
        if there:
            raise Conflict(f"{show(change.ns)} already has a document with _id {key.decode()}")
    elif not there:
        raise NotFound(f"{show(change.ns)} has no document with _id {key.decode()}")


class StoreState:
    """The current state according to the log."""

    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}

    @property
    def documents(self) -> int:
        return sum(len(one.documents) for one in self.namespaces.values())

    def has(self, ns: str, id: bytes) -> bool:
        found = self.namespaces.get(ns)
        return found is not None and id in found.documents

    def body(self, ns: str, id: bytes) -> bytes | None:
        found = self.namespaces.get(ns)
        return None if found is None else found.documents.get(id)

    def spec(self, ns: str) -> Spec | None:
        found = self.namespaces.get(ns)
        return None if found is None else found.spec

    def has_index(self, ns: str, name: str) -> bool:
        found = self.namespaces.get(ns)
        return found is not None and name in found.indexes

    def scan(self, ns: str) -> list[bytes]:
        """The canonical documents of a namespace in the order of their ids."""
        found = self.namespaces.get(ns)
        return [] if found is None else [found.documents[key] for key in in_order(found.documents)]

    def find(self, ns: str, name: str, value: JsonValue) -> list[bytes]:
        """The documents with this value of an indexed field; `NotFound` without an index."""
        found = self.namespaces.get(ns)
        if found is None or name not in found.indexes:
            raise NotFound(f"{show(ns)} has no index on {show(name)}", hint="create one with create_index")
        return [found.documents[key] for key in in_order(found.indexes[name].get(dumps(value), ()))]

    def apply(self, change: Change) -> None:
        """Apply one change that is known to fit."""
        space = self.namespaces.setdefault(change.ns, Namespace())
        if isinstance(change, Insert | Replace):
            space.put(dumps(change.id), change.doc, dumps(change.doc))
        elif isinstance(change, Delete):
            space.remove(dumps(change.id))
        elif isinstance(change, Define):
            space.spec = compile_spec(change.spec, change.ns)
        else:
            space.create_index(change.field)
        if not space.documents and not space.indexes and space.spec is None:
            del self.namespaces[change.ns]

    def differences(self, other: StoreState) -> list[str]:
        """The differences from the other one, a line each; empty if they are equal."""
        found: list[str] = []
        for ns in sorted({*self.namespaces, *other.namespaces}):
            mine, theirs = self.namespaces.get(ns, Namespace()), other.namespaces.get(ns, Namespace())
            keys = {*mine.documents, *theirs.documents}
            changed = [key for key in keys if mine.documents.get(key) != theirs.documents.get(key)]
            found += [f"{ns}: document {key.decode()}" for key in in_order(changed)]
            if (mine.spec and dumps(mine.spec.raw)) != (theirs.spec and dumps(theirs.spec.raw)):
                found.append(f"{ns}: spec")
            names = sorted({*mine.indexes, *theirs.indexes})
            found += [f"{ns}: index on {name}" for name in names if mine.indexes.get(name) != theirs.indexes.get(name)]
        return found


def in_order(ids: Iterable[bytes]) -> list[bytes]:
    """Canonical ids in the order of their values."""
    return sorted(ids, key=lambda one: id_order(orjson.loads(one)))


def minimal(state: StoreState) -> Iterator[Change]:
    """The minimal list of changes that gives this state, always in the same order: specs, then indexes, by name;
    then every document, by namespace and `_id`."""
    names = sorted(state.namespaces, key=str.encode)
    for ns in names:
        spec = state.namespaces[ns].spec
        if spec is not None:
            yield Define(ns, spec.raw)
    for ns in names:
        for name in sorted(state.namespaces[ns].indexes, key=str.encode):
            yield CreateIndex(ns, name)
    for ns in names:
        for body in state.scan(ns):
            doc: JsonObject = orjson.loads(body)
            yield Insert(ns, doc["_id"], doc)


@dataclass(slots=True)
class Namespace:
    """`documents`: canonical id → canonical document. `indexes`: field → canonical value → canonical ids."""

    documents: dict[bytes, bytes] = field(default_factory=dict)
    spec: Spec | None = None
    indexes: dict[str, IndexEntries] = field(default_factory=dict)

    def put(self, id: bytes, doc: JsonObject, body: bytes) -> None:
        if self.indexes:
            self._forget(id)
            for name, entries in self.indexes.items():
                _add(entries, doc, name, id)
        self.documents[id] = body

    def remove(self, id: bytes) -> None:
        if self.indexes:
            self._forget(id)
        del self.documents[id]

    def create_index(self, name: str) -> None:
        if name in self.indexes:
            return
        entries: IndexEntries = {}
        for key, body in self.documents.items():
            _add(entries, orjson.loads(body), name, key)
        self.indexes[name] = entries

    def _forget(self, id: bytes) -> None:
        body = self.documents.get(id)
        if body is None:
            return
        doc: JsonObject = orjson.loads(body)
        for name, entries in self.indexes.items():
            value = field_value(doc, name)
            if value is not MISSING:
                key = dumps(value)
                entries[key].discard(id)
                if not entries[key]:
                    del entries[key]


def _add(entries: IndexEntries, doc: JsonObject, name: str, id: bytes) -> None:
    value = field_value(doc, name)
    if value is not MISSING:
        entries.setdefault(dumps(value), set()).add(id)


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec and its compiled check."""

    raw: JsonObject
    problems_of: Callable[[JsonValue], list[Problem]]

    def require(self, doc: Mapping[str, JsonValue], ns: str) -> None:
        """Raise `Invalid`, with every broken rule, for a document that breaks one."""
        problems = self.problems_of(dict(doc))
        if problems:
            raise _invalid(f"the document violates the spec of {show(ns)}", problems)


def compile_spec(raw: JsonObject, ns: str) -> Spec:
    """The spec, or `Invalid` with every error in it."""
    problems: list[Problem] = []
    spec = FieldsDef.read(raw, "", problems)
    problems = problems or spec.mistakes()
    if problems:
        raise _invalid(f"spec of {show(ns)}", problems)
    return Spec(raw, spec.check("_id"))


def _invalid(what: str, problems: list[Problem]) -> Invalid:
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    told = "; ".join(map(str, problems[:_SHOWN]))
    return Invalid(f"{what}: {told}{more}")
