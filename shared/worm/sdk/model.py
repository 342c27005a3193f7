"""`Model` and `TypedModel`: everything that can be done with the documents of one model.

The verbs of a `Model` are in five modules: `writing` (create, save, patch, delete, many at once), `reading` (by id, by
query, totals), `history` (the past, rollback, snapshots), `trashing` (restore, purge) and `tabling` (manifest and
indexes). All stand on `access`: checked ids, one conditional write, one read, maintenance after it.

A session remembers the etags of the documents that it read, so `save` is optimistic: a document that changed since is a
`Conflict`. It also remembers what it wrote, so its own queries see that before the workers do. Safe across threads.

`TypedModel` has the same verbs for objects of a pydantic class: `db.model(Customer)`. The model's name is the class
attribute `worm_model`, or the name of the class. Nothing of a document is lost by reading and saving it: fields that
the class does not declare are kept on the object if its configuration allows extra fields, else they are carried over
from the document as the session read it, but never over what the object itself says. An optional field that a document
lacks stays lacking: None is written as null only where it was set. A Decimal is stored as a number (see `objects.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from worm.codec.diff import Diff, FieldDiff
from worm.codec.strict_json import JsonObject, JsonValue, Missing
from worm.collections.entries import Document, OplogEntry
from worm.errors import Invalid
from worm.query.needs import row_fields
from worm.query.planner import Plan
from worm.query.query import Row
from worm.schema import ModelDef
from worm.schema.definition import SYSTEM_FIELDS
from worm.schema.fields import SINGLETON_ID
from worm.sdk.access import Result
from worm.sdk.history import History
from worm.sdk.objects import dump, names_of
from worm.sdk.reading import Fields, Reading, Sort
from worm.sdk.rows import Rows
from worm.sdk.tabling import IndexStatus, ManifestStatus, Tabling
from worm.sdk.trashing import Trashing
from worm.sdk.writing import Writing
from worm.tables.build import Progress, silent


class Model(Writing, Reading, History, Trashing, Tabling):
    """Documents of one model: plain dicts with `id`, `createdAt`, `updatedAt`."""


M = TypeVar("M", bound=BaseModel)


def model_name(cls: type[BaseModel]) -> str:
    return str(getattr(cls, "worm_model", cls.__name__))


class TypedModel(Generic[M]):
    """`Model` whose documents are objects of one class. `untyped` is the model that works on dicts."""

    def __init__(self, untyped: Model, cls: type[M]) -> None:
        self.untyped = untyped
        self._cls = cls
        self._extra = cls.model_config.get("extra") or "ignore"
        self._holds_all = self._extra == "allow"
        self._written, self._wanted, self._read = names_of(cls)
        computed = {field.alias or name for name, field in cls.model_computed_fields.items()}
        self._unread = computed - self._read
        definition = untyped.table.collection.definition
        if "id" not in self._written and self._extra != "allow" and not definition.is_singleton:
            raise Invalid(
                f"{cls.__name__} has no field id, so its objects cannot be saved", hint="id: str | None = None"
            )
        self._fields = definition.fields
        self._select = self._needed(definition)

    @property
    def name(self) -> str:
        return self.untyped.name

    @property
    def mode(self) -> str:
        return self.untyped.mode

    # Writing

    def create(self, data: M | Mapping[str, JsonValue], id: str | None = None) -> M:
        """A new, checked object with an id; not stored until `save`."""
        given = self._dumped(data) if isinstance(data, BaseModel) else dict(data)
        if given.get("id", "") is None:
            del given["id"]
        return self._typed(self.untyped.create(given, id=id))

    def save(self, document: M, *, actor: str | None = None) -> M:
        return self._typed(self.untyped.save(self._document(document), actor=actor))

    def patch(self, id: str, changes: Mapping[str, JsonValue | Missing], *, actor: str | None = None) -> M:
        return self._typed(self.untyped.patch(id, changes, actor=actor))

    def delete(self, id: str = SINGLETON_ID, *, actor: str | None = None) -> bool:
        return self.untyped.delete(id, actor=actor)

    def save_many(self, documents: Sequence[M], *, actor: str | None = None) -> list[Result[M]]:
        return self._results(self.untyped.save_many([self._document(one) for one in documents], actor=actor))

    def delete_many(self, ids: Sequence[str], *, actor: str | None = None) -> list[Result[M]]:
        return self._results(self.untyped.delete_many(ids, actor=actor))

    # Reading

    def find_by_id(self, id: str = SINGLETON_ID) -> M | None:
        return self._maybe(self.untyped.find_by_id(id))

    def find_many(self, ids: Sequence[str]) -> list[Result[M]]:
        return self._results(self.untyped.find_many(ids))

    def exists(self, id: str = SINGLETON_ID) -> bool:
        return self.untyped.exists(id)

    def count(self, filter: Mapping[str, object] | None = None) -> int:
        return self.untyped.count(filter)

    def find_all(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        strategy: str | None = None,
        _strategy: str | None = None,
    ) -> Rows[M | Row]:
        """Objects; with `select` or `populate` the rows as dicts, because a part of a document makes no object."""
        is_whole = select is None and not populate
        rows = self.untyped.find_all(
            filter=filter,
            sort=sort,
            select=self._select if is_whole else select,
            limit=limit,
            offset=offset,
            cursor=cursor,
            populate=populate,
            strategy=strategy or _strategy,
            whole=is_whole and self._holds_all,
        )
        return self._typed_rows(rows, is_whole=is_whole)

    def find_batches(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        select: Sequence[str] | None = None,
        batch_size: int = 1000,
    ) -> Iterator[Rows[M | Row]]:
        """As `find_all`, in batches."""
        is_whole = select is None
        batches = self.untyped.find_batches(
            filter=filter,
            select=self._select if is_whole else select,
            batch_size=batch_size,
            whole=is_whole and self._holds_all,
        )
        return (self._typed_rows(rows, is_whole=is_whole) for rows in batches)

    def aggregate(
        self,
        *,
        count: bool = False,
        sum: str | None = None,
        avg: str | None = None,
        min: str | None = None,
        max: str | None = None,
        group_by: Fields | None = None,
        filter: Mapping[str, object] | None = None,
    ) -> dict[str, JsonValue]:
        return self.untyped.aggregate(count=count, sum=sum, avg=avg, min=min, max=max, group_by=group_by, filter=filter)

    def explain(
        self,
        *,
        filter: Mapping[str, object] | None = None,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        populate: Fields | None = None,
        strategy: str | None = None,
        _strategy: str | None = None,
        analyze: bool = False,
    ) -> Plan:
        is_whole = select is None and not populate
        return self.untyped.explain(
            filter=filter,
            sort=sort,
            select=self._select if is_whole else select,
            limit=limit,
            offset=offset,
            cursor=cursor,
            populate=populate,
            strategy=strategy or _strategy,
            analyze=analyze,
            whole=is_whole and self._holds_all,
        )

    # The table

    def get_manifest_status(self) -> ManifestStatus:
        return self.untyped.get_manifest_status()

    def get_index_status(self) -> list[IndexStatus]:
        return self.untyped.get_index_status()

    def build_manifest(self, *, progress: Progress = silent) -> ManifestStatus:
        return self.untyped.build_manifest(progress=progress)

    def invalidate_manifest(self) -> None:
        self.untyped.invalidate_manifest()

    def build_indexes(self) -> list[IndexStatus]:
        return self.untyped.build_indexes()

    def build_index(self, name: str) -> IndexStatus:
        return self.untyped.build_index(name)

    # History, snapshots, trash

    def get_history(
        self, id: str = SINGLETON_ID, *, limit: int | None = None, before_seq: int | None = None
    ) -> list[OplogEntry]:
        return self.untyped.get_history(id, limit=limit, before_seq=before_seq)

    def get_at(self, id: str = SINGLETON_ID, *, seq: int | None = None, time: datetime | str | None = None) -> M | None:
        return self._maybe(self.untyped.get_at(id, seq=seq, time=time))

    def diff(self, id: str, seq_a: int, seq_b: int) -> FieldDiff:
        return self.untyped.diff(id, seq_a, seq_b)

    def diff_between(self, id: str, seq_a: int, seq_b: int) -> Diff:
        return self.untyped.diff_between(id, seq_a, seq_b)

    def rollback(self, id: str = SINGLETON_ID, *, to_seq: int, actor: str | None = None) -> M:
        return self._typed(self.untyped.rollback(id, to_seq=to_seq, actor=actor))

    def snapshot(self, id: str = SINGLETON_ID) -> JsonObject:
        return self.untyped.snapshot(id)

    def list_snapshots(self, id: str = SINGLETON_ID) -> list[JsonObject]:
        return self.untyped.list_snapshots(id)

    def restore_snapshot(self, id: str, ts: str, *, actor: str | None = None) -> M:
        return self._typed(self.untyped.restore_snapshot(id, ts, actor=actor))

    def list_trashed(self) -> list[JsonObject]:
        return self.untyped.list_trashed()

    def restore(self, id: str = SINGLETON_ID, *, actor: str | None = None) -> M:
        return self._typed(self.untyped.restore(id, actor=actor))

    def purge(self, id: str = SINGLETON_ID) -> bool:
        return self.untyped.purge(id)

    def purge_expired(self) -> list[str]:
        return self.untyped.purge_expired()

    # Objects and documents

    def _needed(self, definition: ModelDef) -> list[str] | None:
        """The fields to ask for, so that a row makes an object as the whole document would; None: rows are whole, or
        have all that the class knows, or must be whole, because its objects hold everything."""
        rows = row_fields(definition)
        wanted = [name for name in self._wanted if name != "id"]
        is_enough = rows is None or definition.strict or set(wanted) <= set(rows)
        return None if is_enough or self._holds_all else wanted

    def _typed(self, document: Mapping[str, JsonValue]) -> M:
        given = dict(document)
        if self._extra == "forbid":
            unwelcome = (SYSTEM_FIELDS - self._read) | self._unread
            given = {name: value for name, value in given.items() if name not in unwelcome}
        try:
            typed = self._cls.model_validate(given)
        except ValidationError as mistake:
            first = mistake.errors()[0]
            path = ".".join(str(part) for part in first["loc"])
            raise Invalid(f"no {self._cls.__name__}: {first['msg']}", path=path) from mistake
        if typed.model_extra:  # another choice of a name, which a save would put over the field
            for name in self._read:
                typed.model_extra.pop(name, None)
        return typed

    def _typed_rows(self, rows: Rows[Row], *, is_whole: bool) -> Rows[M | Row]:
        if not is_whole:
            return cast("Rows[M | Row]", rows)
        return cast("Rows[M | Row]", rows.with_items([self._typed(row) for row in rows]))

    def _maybe(self, document: Document | None) -> M | None:
        return None if document is None else self._typed(document)

    def _document(self, item: M) -> Document:
        document = self._dumped(item)
        if self._extra != "allow":
            carried = self.untyped.remembered(str(document.get("id", SINGLETON_ID)))
            own = document.keys() | self._written.keys() | self._read
            document |= {name: value for name, value in carried.items() if name not in own}
        return document

    def _dumped(self, item: BaseModel) -> Document:
        document = dump(item, self._fields)
        for alias, name in self._written.items():
            if document.get(alias, "") is None and name not in item.model_fields_set:
                del document[alias]
        return document

    def _results(self, results: Sequence[Result[Document]]) -> list[Result[M]]:
        typed: list[Result[M]] = []
        for one in results:
            try:
                typed.append(Result(one.id, self._maybe(one.document), one.error))
            except Invalid as mistake:
                typed.append(Result(one.id, None, mistake))
        return typed
