"""What people touch: `connect()`, `Worm`, `Model`.

A session (one `Worm`) remembers the etags of the documents that it read, so `save` is optimistic: a document that
changed since is a `Conflict`. It also remembers what it wrote, so its own queries see that before the workers do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from worm.clock import Clock, Ids, SystemClock, iso_millis
from worm.codec.strict_json import JsonValue, check_json, dumps_document
from worm.collections.changes import Change
from worm.collections.collection import Collection
from worm.collections.documents import write_metadata
from worm.collections.entries import Document, OplogEntry
from worm.collections.heads import Heads
from worm.collections.ids import SINGLETON_ID, check_id, new_id
from worm.collections.layout import StorageResolver
from worm.collections.push import PushReport, load_pushed_schema, push_schema
from worm.errors import CommitStateUnknown, Conflict, Invalid, NotFound
from worm.schema import Schema, load_schema
from worm.store.base import Gone, Lost, Store, Won
from worm.store.open import open_store
from worm.store.probe import ensure_safe
from worm.tables.query import Query, Row, query_table
from worm.tables.table import Table

Maintenance = Literal["inline", "events"]


def connect(
    url: str,
    *,
    schema: Mapping[str, object] | str | Path | Schema | None = None,
    endpoint_url: str | None = None,
    actor: str | None = None,
    maintenance: Maintenance | None = None,
    probe: bool = True,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Worm:
    """Open `s3://bucket[/prefix]`, a directory (`./data`, `file://…`) or `memory://name`.

    `schema` None reads the pushed one. `maintenance="events"` leaves history and tables to the deployed workers, so a
    save is one request; `"inline"` (default; or `WORM_MAINTENANCE`) does it at once. Before the first write the store
    is probed: one that ignores write conditions is refused.
    """
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, ids=ids, clock=clock)
    if schema is None:
        definition = load_pushed_schema(store)
    else:
        definition = schema if isinstance(schema, Schema) else load_schema(schema)
    mode = maintenance or os.environ.get("WORM_MAINTENANCE") or "inline"
    if mode not in ("inline", "events"):
        raise Invalid(f"maintenance must be 'inline' or 'events', not {mode!r}")
    return Worm(store, definition, actor=actor, maintenance=cast(Maintenance, mode), probe=probe, clock=clock, ids=ids)


def push(store: Store, schema: Schema, *, force: bool = False) -> PushReport:
    """Upload the schema and its sentinels, and start the tables of collections that have none."""
    ensure_safe(store)
    report = push_schema(store, schema, force=force)
    session = Worm(store, schema)
    for name in schema.models:
        session.model(name).table.complete()
    return report


class Worm:
    """One session on one bucket, prefix or directory."""

    def __init__(
        self,
        store: Store,
        schema: Schema,
        *,
        actor: str | None = None,
        maintenance: Maintenance = "inline",
        probe: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.store = store
        self.schema = schema
        self.resolver = StorageResolver(schema)
        self.actor = actor
        self.maintenance = maintenance
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self._must_probe = probe
        self._models: dict[str, Model] = {}

    def model(self, name: str) -> Model:
        """The model of the schema with this name."""
        if name not in self._models:
            collection = Collection(self.store, self.resolver, name, self.schema.model(name), self.clock, self.ids)
            self._models[name] = Model(self, collection)
        return self._models[name]

    def ensure_safe_store(self) -> None:
        """Refuse a store that ignores write conditions; asked once per session, before its first write."""
        if self._must_probe:
            ensure_safe(self.store, ids=self.ids)
            self._must_probe = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """A document as this session read or wrote it."""

    etag: str
    document: Document
    written: bool = False


class Model:
    """Documents of one model."""

    def __init__(self, session: Worm, collection: Collection) -> None:
        self._session = session
        self._collection = collection
        self.table = Table(collection)
        self._seen: dict[str, _Seen] = {}

    @property
    def name(self) -> str:
        return self._collection.name

    @property
    def mode(self) -> str:
        """`readonly`, `readwrite` or `append`."""
        return self._collection.definition.mode

    # Writing

    def create(self, data: Mapping[str, JsonValue], id: str | None = None) -> Document:
        """A new, checked document with id and times; not stored until `save`."""
        definition = self._collection.definition
        given = id if id is not None else data.get("id")
        if definition.is_singleton:
            entity_id = SINGLETON_ID
        else:
            entity_id = new_id(definition.id_type, self._session.ids) if given is None else str(given)
        check_id(definition.id_type, entity_id)
        now = iso_millis(self._session.clock.now())
        document: Document = {**definition.defaults(), **data, "id": entity_id}
        document.setdefault("createdAt", now)
        document.setdefault("updatedAt", now)
        check_json(document)
        definition.check_document(document, id=entity_id)
        return document

    def save(self, document: Mapping[str, JsonValue], *, actor: str | None = None) -> Document:
        """Store a document: create it, or update the one that this session read. `Conflict` if it changed since."""
        self._refuse_unless_writable()
        self._session.ensure_safe_store()
        entity_id = self._id_of(document)
        seen = self._seen.get(entity_id)
        if seen is not None and self.mode == "append":
            raise Invalid(f"{self.name} is append-only", key=self._collection.documents.key(entity_id))
        saved = self._stamped(document, seen)
        check_json(saved)
        self._collection.definition.check_document(saved, id=entity_id)
        written = self._put(entity_id, saved, seen, actor or self._session.actor)
        self._seen[entity_id] = _Seen(written.etag, saved, written=True)
        if self._session.maintenance == "inline":
            self._maintain(entity_id, seen)
        return dict(saved)

    def _put(self, entity_id: str, document: Document, seen: _Seen | None, actor: str | None) -> Won:
        key = self._collection.documents.key(entity_id)
        body = dumps_document(document)
        parent = None if seen is None else seen.etag
        metadata = write_metadata(actor=actor, parent=parent)
        store = self._session.store
        outcome: Won | Lost | Gone
        if parent is None:
            outcome = store.put_if_absent(key, body, metadata=metadata)
        else:
            outcome = store.put_if_match(key, body, parent, metadata=metadata)
        if isinstance(outcome, Won):
            return outcome
        if isinstance(outcome, Lost) and outcome.in_doubt:
            raise CommitStateUnknown(
                f"the write of {self.name} '{entity_id}' may have landed before another replaced it",
                key=key,
                hint="read the document and its history before saving again",
            )
        if parent is None:
            what = "exists already"
        else:
            what = f"{'was deleted' if isinstance(outcome, Gone) else 'changed'} since this session read it"
        raise Conflict(
            f"{self.name} '{entity_id}' {what}",
            key=key,
            expected=parent,
            found=None if isinstance(outcome, Gone) else outcome.current.etag,
            hint="read it again (find_by_id), apply your change to that, and save",
        )

    def _maintain(self, entity_id: str, parent: _Seen | None) -> None:
        """Do at once what the deployed workers would do after the event."""
        collection = self._collection
        if not collection.definition.oplog:
            self.table.fold_documents([entity_id])
            return
        heads = self.table.heads.read() or Heads(self.name)
        known = {} if parent is None else {parent.etag: parent.document}
        result = collection.reconciler(known).reconcile(entity_id, heads.get(entity_id))
        if result.rejected is not None:
            raise result.rejected
        if result.head is not None:
            self.table.fold([Change(entity_id, result.head, collection.row(result.state()))])

    def _stamped(self, document: Mapping[str, JsonValue], seen: _Seen | None) -> Document:
        now = iso_millis(self._session.clock.now())
        saved: Document = dict(document)
        if seen is None:
            saved.setdefault("createdAt", now)
            saved.setdefault("updatedAt", now)
        else:
            saved["updatedAt"] = now
        return saved

    def _id_of(self, document: Mapping[str, JsonValue]) -> str:
        if self._collection.definition.is_singleton:
            return SINGLETON_ID
        given = document.get("id")
        if given is None:
            raise Invalid("the document has no id", path="id", hint=f"make it with {self.name}.create(…)")
        return str(given)

    def _refuse_unless_writable(self) -> None:
        if self.mode == "readonly":
            raise Invalid(f"{self.name} is read-only")

    # Reading

    def find_by_id(self, id: str = SINGLETON_ID) -> Document | None:
        """The document as it is stored now, or None."""
        found = self._collection.documents.current(id)
        if found is None:
            self._seen.pop(id, None)
            return None
        document = self._collection.documents.parse(id, found)
        self._seen[id] = _Seen(found.etag, document)  # as stored: a raw upload need not carry its id
        return {"id": id, **document}

    def exists(self, id: str = SINGLETON_ID) -> bool:
        return self._session.store.head(self._collection.documents.key(id)) is not None

    def count(self, filter: Mapping[str, JsonValue] | None = None) -> int:
        return len(self.find_all(filter=filter))

    def find_all(
        self,
        *,
        filter: Mapping[str, JsonValue] | None = None,
        sort: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Row]:
        """Rows that match: from the manifest where it has all fields that are named, else from the documents."""
        query = Query.of(filter=filter, sort=sort, select=select, limit=limit, offset=offset)
        return query_table(self.table, query, overlay=self._own_writes())

    def get_history(self, id: str = SINGLETON_ID, *, limit: int | None = None) -> list[OplogEntry]:
        """The entries of a document's oplog, oldest first; with `limit`, the newest ones."""
        if not self._collection.definition.oplog:
            raise Invalid(f"{self.name} keeps no oplog", hint='set "oplog": true in the schema and push it')
        entries = list(self._collection.oplog.entries(id))
        if not entries:
            raise NotFound(f"{self.name} '{id}' has no history", key=self._collection.documents.key(id))
        return entries if limit is None else entries[-limit:]

    def _own_writes(self) -> dict[str, Document]:
        return {entity_id: seen.document for entity_id, seen in self._seen.items() if seen.written}
