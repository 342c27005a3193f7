"""`worm.aconnect`: the same verbs as coroutines. Written by scripts/generate_async.py; do not edit.

Each coroutine runs its verb in a thread of the session's pool. The code, its guarantees and its requests are the same,
and the event loop is never blocked. Each call costs one thread switch: some tens of microseconds.

Cancellation leaves no half-done work. A verb that has not started does not run. A verb that has started runs to its end
in its thread, although nobody waits for it. `aclose()` waits for those verbs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar, Unpack, overload

from pydantic import BaseModel

from worm.clock import Clock, Ids
from worm.collections import Diff, Document, FieldDiff, OplogEntry
from worm.errors import Invalid, show
from worm.forks import in_child
from worm.formats import SINGLETON_ID, JsonObject, JsonValue, Position, Schema
from worm.query import Percentiles, Plan, Sort
from worm.sdk.access import D, Result
from worm.sdk.database import Worm, connect
from worm.sdk.document import About, DocumentDict
from worm.sdk.feed import ChangeRows
from worm.sdk.merging import BranchChange, MergeResult
from worm.sdk.migrating import MigrationReport
from worm.sdk.migration_rules import Change, Rule
from worm.sdk.model import Model
from worm.sdk.past import CHANGED_MAX
from worm.sdk.reading import Fields
from worm.sdk.restoring import RestoreReport
from worm.sdk.rows import Rows
from worm.sdk.searching import HistoryEntry, HistoryRows
from worm.sdk.sql import DuckConnection, DuckRelation, Params, SqlRows
from worm.sdk.transacting import DocumentTransaction, ModelName
from worm.sdk.upkeep import Names
from worm.spaces import Branch, Materialized, Policy
from worm.store import Durability
from worm.tables import IndexStatus, Lake, LakeStatus, ManifestStatus, Progress, Publication, VerifyReport, silent
from worm.upkeep import Maintenance, ModelProgress, PurgeReport, PushPlan, PushReport, RepairReport, SweepReport, Why

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
THREADS = 32


class _Pool:
    """Threads for the calls of one session."""

    def __init__(self, threads: object) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise Invalid(f"must be a whole number of 1 or more, not {show(threads)}", path="threads")
        self._count = threads
        self.is_closed = False
        self._begin()
        in_child(self._begin)

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="worm-async")

    async def run(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.is_closed:
            raise Invalid("the session is closed", hint="open another: worm.aconnect(…)")
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    async def each(self, make: Callable[[], Iterator[R]]) -> AsyncIterator[R]:
        """Yield the items one by one. Each is fetched in a thread."""
        items = await self.run(make)
        while found := await self.run(list, islice(items, 1)):
            yield found[0]

    async def close(self) -> None:
        self.is_closed = True
        await asyncio.get_running_loop().run_in_executor(None, partial(self._threads.shutdown, wait=True))


class AsyncModel(Generic[D]):
    """The documents of one model; see `worm.sdk.model.Model`."""

    def __init__(self, model: Model[D], pool: _Pool) -> None:
        self._model = model
        self._pool = pool

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def mode(self) -> str:
        return self._model.mode

    def __repr__(self) -> str:
        return f"<Async{repr(self._model)[1:]}"

    async def create(self, data: D | Mapping[str, object], id: object = None) -> D:
        """A new, checked document with id and times; not stored until `save` or `insert`."""
        return await self._pool.run(self._model.create, data, id)

    async def insert(self, document: D | Mapping[str, object], **about: Unpack[About]) -> D:
        """Store a new document, with the schema's defaults. Without an id it gets one. `Conflict` if it exists."""
        return await self._pool.run(self._model.insert, document, **about)

    async def save(self, document: D | Mapping[str, object], **about: Unpack[About]) -> D:
        """Store a document: over the version that it came from, or as a new document. `Conflict` if another writer was
        first. A document without changes is not written.

        The result has the new version. The object that you passed has it too, so you can go on changing and saving it.
        """
        return await self._pool.run(self._model.save, document, **about)

    async def replace(
        self, document: D | Mapping[str, object], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Replace the stored document with this one: the stored version must be `if_version` if you pass it. `NotFound`
        if it does not exist. A stored document that is broken is replaced as well."""
        return await self._pool.run(self._model.replace, document, if_version=if_version, **about)

    async def upsert(self, document: D | Mapping[str, object], **about: Unpack[About]) -> D:
        """Store a document regardless of what is stored: create it with the schema's defaults, or replace the existing
        one."""
        return await self._pool.run(self._model.upsert, document, **about)

    async def delete(self, id: object = SINGLETON_ID, *, if_version: str | None = None, **about: Unpack[About]) -> bool:
        """Delete the current document, or version `if_version` of it. False if it does not exist, `Conflict` if it
        changes in the meantime or has another version.

        With `softDelete` it goes to trash first. Its history stays in both cases.
        """
        return await self._pool.run(self._model.delete, id, if_version=if_version, **about)

    async def save_many(
        self, documents: Sequence[D | Mapping[str, object]], *, progress: Progress = silent, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`save` for each. If two documents have the same id, the second fails with `Invalid`. `progress` is called
        after each unit with the number of finished documents and the total."""
        return await self._pool.run(self._model.save_many, documents, progress=progress, **about)

    async def insert_many(
        self, documents: Sequence[D | Mapping[str, object]], *, progress: Progress = silent, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`insert` for each."""
        return await self._pool.run(self._model.insert_many, documents, progress=progress, **about)

    async def upsert_many(
        self, documents: Sequence[D | Mapping[str, object]], *, progress: Progress = silent, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`upsert` for each. `created` shows which documents are new, `unchanged` which were already stored."""
        return await self._pool.run(self._model.upsert_many, documents, progress=progress, **about)

    async def patch(
        self, id: object, changes: Mapping[str, object], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Merge fields into the stored document (RFC 7396): objects are merged, None removes a field, anything else
        replaces. To store null: `update(id, {"$set": {"field": None}})`."""
        return await self._pool.run(self._model.patch, id, changes, if_version=if_version, **about)

    async def update(
        self, id: object, operators: Mapping[str, object], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Change fields with `$set`, `$unset`, `$inc`, `$push`, `$pull`, `$addToSet`, with dotted paths."""
        return await self._pool.run(self._model.update, id, operators, if_version=if_version, **about)

    async def modify(
        self, id: object, function: Callable[[D], D | None], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Read the document, let the function change it (in place, or by returning a new one), and save it. If another
        writer is faster, the function is called again with the newer document, so it must have no side effects."""
        return await self._pool.run(self._model.modify, id, function, if_version=if_version, **about)

    async def refresh(self, document: D) -> D:
        """Read the document again: the object that you pass is updated to the stored state, and returned. `NotFound` if
        it was deleted."""
        return await self._pool.run(self._model.refresh, document)

    async def update_many(
        self,
        filter: Mapping[str, object] | None,
        operators: Mapping[str, object],
        *,
        dry_run: bool = False,
        **about: Unpack[About],
    ) -> list[Result[D]]:
        """`update` for each document that matches at the moment it is changed. `document` is the result, or None if it
        no longer matched. `dry_run` changes nothing and shows the results."""
        return await self._pool.run(self._model.update_many, filter, operators, dry_run=dry_run, **about)

    async def delete_many(
        self, which: Mapping[str, object] | Sequence[object], *, dry_run: bool = False, **about: Unpack[About]
    ) -> list[Result[D]]:
        """`delete` for each of the ids, or for each document that matches the filter at the moment it is deleted.
        `document` is the deleted one. `dry_run` deletes nothing and shows what would be deleted."""
        return await self._pool.run(self._model.delete_many, which, dry_run=dry_run, **about)

    async def get(self, id: object = SINGLETON_ID) -> D:
        """The document as it is stored now; `NotFound` if it does not exist."""
        return await self._pool.run(self._model.get, id)

    async def find_by_id(self, id: object = SINGLETON_ID) -> D | None:
        """The document as it is stored now, or None."""
        return await self._pool.run(self._model.find_by_id, id)

    async def find_one(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> D | None:
        """The first document that matches, or None."""
        return await self._pool.run(self._model.find_one, filter, sort=sort, at=at, max_changed=max_changed)

    async def find_many(self, ids: Sequence[object], *, at: Position | None = None) -> list[Result[D]]:
        """`find_by_id` for each; with `at`, as they were at that moment (for a single document, use `get_at`)."""
        return await self._pool.run(self._model.find_many, ids, at=at)

    async def exists(self, id: object = SINGLETON_ID) -> bool:
        """Whether there is such a document."""
        return await self._pool.run(self._model.exists, id)

    @overload
    async def find_all(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
    ) -> Rows[D]: ...

    @overload
    async def find_all(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
    ) -> Rows[DocumentDict]: ...

    async def find_all(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
    ) -> Rows[D] | Rows[DocumentDict]:
        """Documents that match, found in the cheapest way (see docs/planner.md), or with the given `strategy`.

        Without `select` you get whole documents, which you can change and save. With it you get rows of these fields.
        Rows are dicts even if the model has a class, because a partial document cannot be validated. `populate`
        replaces references by the documents that they name. `cursor` is the cursor of the previous page.

        With `at`, you get the collection as it was at a moment: a time, or a commit of the model's space. These rows
        cannot be saved. It costs one lookup for each document that changed since then, up to `max_changed` (None: no
        limit); `explain` shows how many (docs/history.md).

        Writes, restores and deletes of this session are visible at once, even before the workers have folded them.
        """
        return await self._pool.run(
            self._model.find_all,
            filter,
            sort=sort,
            select=select,
            limit=limit,
            offset=offset,
            cursor=cursor,
            populate=populate,
            at=at,
            max_changed=max_changed,
            strategy=strategy,
        )

    async def explain(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        strategy: str | None = None,
        analyze: bool = False,
    ) -> Plan:
        """How `find_all` would answer, why, and what it would cost. `analyze` also runs the query and adds the measured
        cost."""
        return await self._pool.run(
            self._model.explain,
            filter,
            sort=sort,
            select=select,
            limit=limit,
            offset=offset,
            cursor=cursor,
            populate=populate,
            at=at,
            max_changed=max_changed,
            strategy=strategy,
            analyze=analyze,
        )

    @overload
    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: None = None,
        batch_size: int = 1000,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> AsyncIterator[Rows[D]]: ...

    @overload
    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: Sequence[str],
        batch_size: int = 1000,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> AsyncIterator[Rows[DocumentDict]]: ...

    def find_batches(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        select: Sequence[str] | None = None,
        batch_size: int = 1000,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> AsyncIterator[Rows[D]] | AsyncIterator[Rows[DocumentDict]]:
        """Rows in batches, for collections that do not fit into memory: one partition of the table is held at a time.

        Rows come in the order of ids; own writes that the table lacks come last, and so do, with `at`, documents that
        changed since that moment. `plan` of a batch says how it was found.
        """
        return self._pool.each(
            partial(
                self._model.find_batches, filter, select=select, batch_size=batch_size, at=at, max_changed=max_changed
            )
        )

    async def to_duckdb(self, connection: DuckConnection | None = None, *, name: str | None = None) -> DuckRelation:
        """All rows as a relation of DuckDB, which is also a view of the connection (None: a new one, in memory). The
        view is called like the model, or `name`, and keeps the rows of this moment. `pip install 's3worm[sql]'`."""
        return await self._pool.run(self._model.to_duckdb, connection, name=name)

    async def count(
        self,
        filter: Mapping[str, object] | None = None,
        *,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> int:
        """How many documents match (without a filter: all); with `at`, how many matched then."""
        return await self._pool.run(self._model.count, filter, at=at, max_changed=max_changed)

    async def aggregate(
        self,
        *,
        count: bool = False,
        sum: Fields | None = None,
        avg: Fields | None = None,
        min: Fields | None = None,
        max: Fields | None = None,
        percentiles: Percentiles | None = None,
        group_by: Fields | None = None,
        having: Mapping[str, object] | None = None,
        filter: Mapping[str, object] | None = None,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> dict[str, JsonValue]:
        """Totals of the documents that match, overall or by group: `{"count": 3}`, `{"groups": {"active": {…}}}`. With
        `at`, as of then.

        A list of fields gives an object per field: `sum=["total", "tax"]` gives `{"sum": {"total": 40, "tax": 6}}`.
        """
        return await self._pool.run(
            self._model.aggregate,
            count=count,
            sum=sum,
            avg=avg,
            min=min,
            max=max,
            percentiles=percentiles,
            group_by=group_by,
            having=having,
            filter=filter,
            at=at,
            max_changed=max_changed,
        )

    async def distinct(
        self,
        field: str,
        filter: Mapping[str, object] | None = None,
        *,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
    ) -> list[JsonValue]:
        """The distinct values of a field in the documents that match, sorted; for arrays, their elements. With `at`, as
        of then."""
        return await self._pool.run(self._model.distinct, field, filter, at=at, max_changed=max_changed)

    async def get_history(
        self, id: object = SINGLETON_ID, *, limit: int | None = None, before_seq: int | None = None
    ) -> HistoryRows[OplogEntry]:
        """Entries of a document's oplog, oldest first. With `limit`, you get the newest ones before `before_seq`. It
        takes one request per entry, however long the history is. `Corrupt` if entries are missing."""
        return await self._pool.run(self._model.get_history, id, limit=limit, before_seq=before_seq)

    async def get_at(
        self, id: object = SINGLETON_ID, *, seq: int | None = None, time: datetime | str | None = None
    ) -> D | None:
        """The document after entry `seq`, or as of a time; None if it was deleted then. Its `seq` says which entry that
        is (pass it to `rollback`). You can save it only if it is still the current version.

        Times have whole seconds, as in S3: all entries of that second count. Text without a zone is UTC. `NotFound` if
        there is no such entry, or none up to that time.

        By seq it takes at most 1 + `snapshots.every` requests, by time one more, however long the history is. If a time
        mark is missing there (docs/decisions/0008), it takes twice that plus the logarithm of the distance to the next
        one.
        """
        return await self._pool.run(self._model.get_at, id, seq=seq, time=time)

    async def diff(self, id: object, seq_a: int, seq_b: int) -> FieldDiff:
        """The fields that differ between two entries, as in an oplog entry: `{"name": ["Acme", "Acme Inc"]}`. A missing
        field is None, like null; `diff_between` distinguishes the two."""
        return await self._pool.run(self._model.diff, id, seq_a, seq_b)

    async def diff_between(self, id: object, seq_a: int, seq_b: int) -> Diff:
        """`diff`, with `absent`: which of its Nones mean "no such field". A deleted document has no fields."""
        return await self._pool.run(self._model.diff_between, id, seq_a, seq_b)

    async def rollback(
        self, id: object = SINGLETON_ID, *, to_seq: int, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Save the document of an earlier entry again, with the current time as `updatedAt`. This also restores a
        deleted document. It appends an entry; history is never rewritten. `Conflict` if the document changes in the
        meantime, or is not at `if_version`."""
        return await self._pool.run(self._model.rollback, id, to_seq=to_seq, if_version=if_version, **about)

    async def snapshot(self, id: object = SINGLETON_ID) -> JsonObject:
        """Keep a full copy of the document as it is now. Returns `{"ts", "size", "seq"}`; `ts` is its name. Taking the
        same state again changes nothing. `Unavailable` until the workers have recorded the newest version. Without an
        oplog, the stored version is copied and `seq` is None."""
        return await self._pool.run(self._model.snapshot, id)

    async def list_snapshots(self, id: object = SINGLETON_ID) -> list[JsonObject]:
        """The snapshots of a document, oldest first: `[{"ts": "2026-02-24T12:00:00Z", "size": 1234}, …]`."""
        return await self._pool.run(self._model.list_snapshots, id)

    async def restore_snapshot(
        self, id: object, ts: str, *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Save the document of a snapshot again, like `rollback` with an entry."""
        return await self._pool.run(self._model.restore_snapshot, id, ts, if_version=if_version, **about)

    async def list_trashed(self) -> list[JsonObject]:
        """The deleted documents that can be restored: their ids and the contents of their tombstones."""
        return await self._pool.run(self._model.list_trashed)

    async def restore(self, id: object = SINGLETON_ID, *, if_version: str | None = None, **about: Unpack[About]) -> D:
        """Restore a deleted document, exactly as it was. `NotFound` if it is not in trash or has expired; `Conflict` if
        the id was created again, or if the version in trash is not `if_version`; `UniqueViolation` if another document
        now has one of its unique values. In these cases nothing is overwritten, and the document stays in trash. Append
        mode allows restoring: the document is created again with put-if-absent."""
        return await self._pool.run(self._model.restore, id, if_version=if_version, **about)

    async def purge(self, id: object = SINGLETON_ID) -> bool:
        """Remove a deleted document from trash permanently; its history stays. False if it is not in trash, `Conflict`
        while it is being restored."""
        return await self._pool.run(self._model.purge, id)

    async def purge_expired(self) -> list[str]:
        """Purge all documents past their `ttl`, and return the ids."""
        return await self._pool.run(self._model.purge_expired)

    async def get_manifest_status(self) -> ManifestStatus:
        """Does the manifest exist, is it fresh, how large is it? It lists the documents to find out."""
        return await self._pool.run(self._model.get_manifest_status)

    async def get_index_status(self) -> list[IndexStatus]:
        """Every declared index, in the order of the schema."""
        return await self._pool.run(self._model.get_index_status)

    async def build_manifest(self, *, progress: Progress = silent) -> ManifestStatus:
        """Rebuild manifest, indexes, heads and claims from the documents, while others may write. A second build
        changes nothing."""
        return await self._pool.run(self._model.build_manifest, progress=progress)

    async def invalidate_manifest(self) -> None:
        """Remove the manifest. The next query of this session builds it again, and so does the next fold or sweep;
        until then other sessions read the documents."""
        return await self._pool.run(self._model.invalidate_manifest)

    async def build_indexes(self) -> list[IndexStatus]:
        """Rebuild all indexes from the manifest, which is built first if it does not exist."""
        return await self._pool.run(self._model.build_indexes)

    async def build_index(self, name: str) -> IndexStatus:
        """Rebuild one index, by its name in the schema or by its field."""
        return await self._pool.run(self._model.build_index, name)

    async def publish(self) -> Publication:
        """Publish the table as a new version of its Delta table, if anything has changed since the last one. Readers of
        earlier versions are not disturbed. The schema must have `lake` for the model."""
        return await self._pool.run(self._model.publish)

    async def get_lake_status(self) -> LakeStatus:
        """Where the Delta table is, its newest version, and whether it is up to date. It lists the files."""
        return await self._pool.run(self._model.get_lake_status)

    async def vacuum(self, *, retention_days: int = Lake.RETENTION_DAYS, dry_run: bool = False) -> list[str]:
        """Delete files of the Delta table that no version of the last days needs. Returns their keys."""
        return await self._pool.run(self._model.vacuum, retention_days=retention_days, dry_run=dry_run)


class AsyncTransaction:
    """`async with db.transaction() as tx`; see `worm.sdk.transacting`."""

    def __init__(self, transaction: DocumentTransaction, pool: _Pool) -> None:
        self._transaction = transaction
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self._transaction)[1:].removeprefix('Document')}"

    @property
    def seq(self) -> int | None:
        return self._transaction.seq

    async def __aenter__(self) -> Self:
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.run(self._transaction.__exit__, kind, error, trace)

    @overload
    async def get(self, model: type[M], id: object = SINGLETON_ID) -> M | None: ...

    @overload
    async def get(self, model: Model[D], id: object = SINGLETON_ID) -> D | None: ...

    @overload
    async def get(self, model: str, id: object = SINGLETON_ID) -> DocumentDict | None: ...

    async def get(self, model: ModelName, id: object = SINGLETON_ID) -> object | None:
        """The document, with what this transaction did to it; None if it does not exist."""
        return await self._pool.run(self._transaction.get, model, id)

    async def save(
        self, model: ModelName, document: Mapping[str, object] | BaseModel, *, id: object = None
    ) -> Document:
        """Create the document, or replace the existing one. Without an id it gets one. You get the document as it will
        be stored; `Invalid` if the schema or the access mode refuses it."""
        return await self._pool.run(self._transaction.save, model, document, id=id)

    async def require(
        self, model: ModelName, id: object = SINGLETON_ID, *, if_version: str | None = None, exists: bool = True
    ) -> None:
        """Require that the document exists, with version `if_version` if given, when the transaction is committed; or,
        with `exists=False`, that it does not. `Conflict` otherwise. Nothing is written."""
        return await self._pool.run(self._transaction.require, model, id, if_version=if_version, exists=exists)

    async def delete(self, model: ModelName, id: object = SINGLETON_ID) -> bool:
        """Delete the document; False if it does not exist."""
        return await self._pool.run(self._transaction.delete, model, id)


class AsyncWorm:
    """A session; see `worm.sdk.database.Worm`. `sync` is the blocking session that does the work."""

    def __init__(self, worm: Worm, pool: _Pool) -> None:
        self._worm = self.sync = worm
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Async{repr(self._worm)[1:]}"

    @overload
    def model(self, name: str) -> AsyncModel[DocumentDict]: ...
    @overload
    def model(self, name: type[M]) -> AsyncModel[M]: ...
    def model(self, name: str | type[M]) -> AsyncModel[DocumentDict] | AsyncModel[M]:
        if isinstance(name, str):
            return AsyncModel(self._worm.model(name), self._pool)
        return AsyncModel(self._worm.model(name), self._pool)

    def transaction(self, *, actor: str | None = None) -> AsyncTransaction:
        return AsyncTransaction(self._worm.transaction(actor=actor), self._pool)

    async def branch(self, name: str) -> AsyncWorm:
        """A session on a branch, for models in a space. It ends with this session: do not close it."""
        return AsyncWorm(await self._pool.run(self._worm.branch, name), self._pool)

    async def aclose(self) -> None:
        """Wait for the running calls, then release all resources."""
        if not self._pool.is_closed:
            await self._pool.run(self._worm.close)
            await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def ensure_safe_store(self) -> None:
        return await self._pool.run(self._worm.ensure_safe_store)

    async def look_for_abandoned(self) -> None:
        """Once per session: fold what a killed session left behind. With `inline`, this finishes before it returns."""
        return await self._pool.run(self._worm.look_for_abandoned)

    async def flush(self) -> list[SweepReport]:
        """Bring history and tables up to date with everything that this session has saved. With `maintenance="events"`,
        this sweeps the models that the session used and returns the reports. The first failure is raised."""
        return await self._pool.run(self._worm.flush)

    async def history(
        self,
        *,
        model: str | type[BaseModel] | Sequence[str] | None = None,
        actor: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        op: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        limit: int | None = 100,
        cursor: str | None = None,
    ) -> HistoryRows[HistoryEntry]:
        """Entries of all documents of one model, of several, or of all models with an oplog, newest first.

        `reason` matches part of the reason, ignoring case. `metadata` names values that an entry must have. Times are
        as for `get_at`. `limit=None` returns all. With `since`, only documents that changed since then are read
        (docs/history.md).
        """
        return await self._pool.run(
            self._worm.history,
            model=model,
            actor=actor,
            since=since,
            until=until,
            op=op,
            reason=reason,
            metadata=metadata,
            limit=limit,
            cursor=cursor,
        )

    async def changes(
        self,
        after: str | None = None,
        *,
        model: str | type[BaseModel] | Sequence[str] | None = None,
        limit: int = 100,
        wait: float = 0,
    ) -> ChangeRows:
        """New entries of all documents of one model, of several, or of all models with an oplog, since the answer whose
        `cursor` you pass as `after`. Without `after`, you get the current cursor and no entries.

        Every entry is reported once it is in the tables, however late that is. Entries of one document come in order.
        `wait` is the number of seconds to wait for new entries. An unchanged model costs one conditional GET
        (docs/history.md).
        """
        return await self._pool.run(self._worm.changes, after, model=model, limit=limit, wait=wait)

    async def sql(
        self,
        statement: str,
        params: Params | None = None,
        *,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        memory_limit: str = "1GB",
        timeout: float | None = 30,
        max_rows: int | None = 1000000,
    ) -> SqlRows:
        """The rows of a SELECT over models, by DuckDB. A model is a table with a column for each field; writes of this
        session are in it. `params` has the values of `?` and `$1` (a list) or of `$name` (an object).

        A statement only reads, and only models: it changes nothing, and reaches neither files nor the network. With
        `at`, the models are as they were then. The statement may run for `timeout` seconds with `memory_limit` of
        memory; reading the models counts for neither. `pip install 's3worm[sql]'` (docs/how-to/sql.md).
        """
        return await self._pool.run(
            self._worm.sql,
            statement,
            params,
            at=at,
            max_changed=max_changed,
            memory_limit=memory_limit,
            timeout=timeout,
            max_rows=max_rows,
        )

    async def migrate(
        self,
        model: str,
        change: Change | Sequence[Rule] | Sequence[Mapping[str, JsonValue]],
        *,
        filter: Mapping[str, object] | None = None,
        dry_run: bool = False,
        restart: bool = False,
        progress: Progress = silent,
        **about: Unpack[About],
    ) -> MigrationReport:
        """Change the documents of a model, all or only those that match, by rules (`worm.sdk.migration_rules`, or their
        JSON) or by a function. Each change is a save with history, as `worm migrate` does. Run it again after an
        interruption."""
        return await self._pool.run(
            self._worm.migrate,
            model,
            change,
            filter=filter,
            dry_run=dry_run,
            restart=restart,
            progress=progress,
            **about,
        )

    async def restore(
        self,
        *,
        at: Position,
        models: str | Sequence[str] | None = None,
        dry_run: bool = False,
        max_changed: int | None = CHANGED_MAX,
        progress: Progress = silent,
        **about: Unpack[About],
    ) -> RestoreReport:
        """Restore whole models (None: all) to a moment: a time, or a commit of their space. Each document that differs
        is saved as it was, with history; documents that did not exist then are deleted. `dry_run` lists the changes. An
        error of one document does not stop the others; the report has it. Run it again after an interruption."""
        return await self._pool.run(
            self._worm.restore,
            at=at,
            models=models,
            dry_run=dry_run,
            max_changed=max_changed,
            progress=progress,
            **about,
        )

    async def materialize(self, space: str) -> Materialized:
        """Do what the apply worker does after a commit: update the documents to match the log."""
        return await self._pool.run(self._worm.materialize, space)

    async def create_branch(
        self, name: str, *, at: Position | None = None, parent: str = "main", space: str | None = None
    ) -> None:
        """Create a branch that begins as its parent is now, or as it was at a commit or a time. It is created in the
        space of the models, in all of their spaces, or in `space`. `Conflict` if the name is used."""
        return await self._pool.run(self._worm.create_branch, name, at=at, parent=parent, space=space)

    async def branches(self, *, space: str | None = None) -> list[Branch]:
        """All branches, the main one first, including deleted ones; of the space of the models, or of `space`."""
        return await self._pool.run(self._worm.branches, space=space)

    async def delete_branch(self, name: str, *, space: str | None = None) -> None:
        """Delete a branch: it takes no more commits, and can still be read. `Conflict` while other branches depend on
        it."""
        return await self._pool.run(self._worm.delete_branch, name, space=space)

    async def undelete_branch(self, name: str, *, space: str | None = None) -> None:
        """Restore a deleted branch: it takes commits again."""
        return await self._pool.run(self._worm.undelete_branch, name, space=space)

    async def diff(self, branch: str, *, into: str = "main") -> list[BranchChange]:
        """Show what merging the branch would change, by model, document and field. Conflicts are marked."""
        return await self._pool.run(self._worm.diff, branch, into=into)

    async def merge(
        self,
        branch: str,
        *,
        into: str = "main",
        policy: Policy = "fail",
        dry_run: bool = False,
        check_references: bool = True,
        **about: Unpack[About],
    ) -> list[MergeResult]:
        """Merge the changes of a branch into another one. You get a result for each space that has the branch.

        The result is checked before anything is committed: schema, unique values, references. A change on both sides is
        a `MergeConflict`, unless a policy decides: `ours` (the state of `into`), `theirs`, `fields` (changes to
        different fields are combined), `fields-ours`, `fields-theirs`, or a function of base, ours and theirs. A large
        merge makes several commits; if it is interrupted, call it again. `dry_run` changes nothing.
        """
        return await self._pool.run(
            self._worm.merge,
            branch,
            into=into,
            policy=policy,
            dry_run=dry_run,
            check_references=check_references,
            **about,
        )

    async def push(
        self,
        *,
        force: bool = False,
        adopt: bool = True,
        sample: int | None = None,
        planned: Callable[[PushPlan], None] = lambda plan: None,
        progress: ModelProgress = lambda model, done, total: None,
    ) -> PushReport:
        """Make the schema of this session the schema of the location, and adopt existing documents, as `worm push`
        does. `Invalid` if documents would be left behind or would no longer fit, unless you pass `force`."""
        return await self._pool.run(
            self._worm.push, force=force, adopt=adopt, sample=sample, planned=planned, progress=progress
        )

    async def plan_push(
        self, *, sample: int | None = None, progress: ModelProgress = lambda model, done, total: None
    ) -> PushPlan:
        """What `push` would do, as `worm push --dry-run` shows it. Reads only."""
        return await self._pool.run(self._worm.plan_push, sample=sample, progress=progress)

    async def verify(self, models: Names = None) -> list[VerifyReport]:
        """Compare all derived data with the documents, as `worm verify` does. Reads only."""
        return await self._pool.run(self._worm.verify, models)

    async def repair(self, models: Names = None) -> list[RepairReport]:
        """Repair all derived data from the documents, as `worm repair` does."""
        return await self._pool.run(self._worm.repair, models)

    async def why(self, key: str) -> Why:
        """What happened to an upload under this key, and what to do about it, as `worm why` shows it. Reads only."""
        return await self._pool.run(self._worm.why, key)

    async def sweep(self, models: Names = None) -> list[SweepReport]:
        """Record and fold changes that no event reported, as the function `sweep` does on a schedule, without its time
        limit."""
        return await self._pool.run(self._worm.sweep, models)

    async def prune(self, models: Names = None, *, dry_run: bool = False) -> list[PurgeReport]:
        """Remove expired trash, snapshots beyond `maxAge` and `maxCount`, and replaced table files, as `worm prune` and
        the function `purge` do. For all models, this also removes answers that the HTTP API kept for more than a day;
        if there are some, the last report (of `.worm.api`) names them."""
        return await self._pool.run(self._worm.prune, models, dry_run=dry_run)


class _Connecting:
    """The result of `aconnect`: await it, or enter it with `async with`."""

    def __init__(self, make: Callable[[], Worm], threads: int) -> None:
        self._make = make
        self._pool = _Pool(threads)
        self._open: AsyncWorm | None = None

    def __await__(self) -> Generator[object, None, AsyncWorm]:
        return self._connected().__await__()

    async def _connected(self) -> AsyncWorm:
        return AsyncWorm(await self._pool.run(self._make), self._pool)

    async def __aenter__(self) -> AsyncWorm:
        self._open = await self._connected()
        return self._open

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            await self._open.aclose()


def aconnect(
    url: str,
    *,
    schema: Mapping[str, object] | str | Path | Schema | None = None,
    models: Sequence[type[BaseModel]] | None = None,
    endpoint_url: str | None = None,
    actor: str | None = None,
    reason: str | None = None,
    maintenance: Maintenance | None = None,
    probe: bool = True,
    clock: Clock | None = None,
    ids: Ids | None = None,
    durability: Durability | None = None,
    threads: int = THREADS,
) -> _Connecting:
    """`connect` for programs with an event loop. Use `async with worm.aconnect(url) as db`, or `db = await
    worm.aconnect(url)` and `await db.aclose()` at the end. `threads` is the number of calls that run at the same time.

    Examples:
        >>> import asyncio
        >>> async def main():
        ...     async with worm.aconnect("./data") as db:
        ...         return await db.model("Customer").count()
        >>> asyncio.run(main())
        2
    """
    return _Connecting(
        partial(
            connect,
            url,
            schema=schema,
            models=models,
            endpoint_url=endpoint_url,
            actor=actor,
            reason=reason,
            maintenance=maintenance,
            probe=probe,
            clock=clock,
            ids=ids,
            durability=durability,
        ),
        threads,
    )
