"""push: uploads a schema, and adopts the existing documents.

*Adopting* a model gives every valid document what a save would have given it: an entry in its oplog, a row in its
table, claims of its unique values, and a place in the count of the collection's sentinel. Documents that break the
schema are left as they are, with the reason. If several documents have the same unique value, the first gets the claim,
and the conflict is reported; saves of the others are refused from then on.

Adopting is reconciling: it looks at what is there and adds what is missing. So the next push, even of the same schema,
finishes an interrupted one, and it is safe while workers run. If nothing is missing, it costs a listing of the
collection's versions and one of each unique index's claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from worm.clock import iso_seconds
from worm.collections import Collection, Heads, Row, layout
from worm.errors import Invalid, WormError, show
from worm.formats import Schema
from worm.store import Read, Store, check_store, in_chunks
from worm.tables import Manifest, Table, build_manifest
from worm.upkeep.push_plan import ModelProgress, PushPlan, ScanScope, plan_over, unwatched
from worm.upkeep.pushed_schema import Adopted, PushReport, push_over
from worm.upkeep.session import Session
from worm.upkeep.sweep import Sweep

CHUNK = 500


def push(
    store: Store,
    schema: Schema,
    *,
    force: bool = False,
    adopt: bool = True,
    sample: int | None = None,
    planned: Callable[[PushPlan], None] = lambda plan: None,
    progress: ModelProgress = unwatched,
) -> PushReport:
    """Push the schema to the store: upload it with its sentinels, create the tables of collections that have none, and
    adopt existing documents. See `push_session`.

    Examples:
        >>> report = worm.push(worm.open_store("memory://pushed"), worm.schema_of([Customer]))
        >>> sorted(worm.connect("memory://pushed").schema.models)
        ['Customer']
    """
    check_store(store)
    session = Session(store, schema=Schema.require(schema))
    for name, function in (("planned", planned), ("progress", progress)):
        if not callable(function):
            raise Invalid(f"takes a function, not {show(function)}", path=name)
    return push_session(session, force=force, adopt=adopt, sample=sample, planned=planned, progress=progress)


def push_session(
    session: Session,
    *,
    force: bool = False,
    adopt: bool = True,
    sample: int | None = None,
    planned: Callable[[PushPlan], None] = lambda plan: None,
    progress: ModelProgress = unwatched,
) -> PushReport:
    """Push the schema of a session. `Invalid` if documents would be left behind or would no longer fit: `force` pushes
    anyway, and checks no documents. At most `sample` documents of each model are checked. `planned` is called with the
    plan before the push. `adopt` False leaves existing documents to the sweep or `worm repair`."""
    session.ensure_safe_store()
    store, schema = session.store, session.schema
    current = store.get(layout.SCHEMA_KEY)
    if not force:
        plan = plan_over(store, current, schema, ScanScope(sample, check_new=False, progress=progress))
        refusal = plan.refusal()
        if refusal is not None:
            raise refusal
        planned(plan)
    report = push_over(store, current, schema, force=force)
    if not adopt:
        for name in schema.models:
            session.table(name).complete()
        return report
    return replace(report, adopted=adopt_models(session, schema.models, changed=report.changed, progress=progress))


def adopt_models(
    session: Session, models: Iterable[str], *, changed: Iterable[str] = (), progress: ModelProgress = unwatched
) -> tuple[Adopted, ...]:
    """Adopt the documents of all of them; then the first failure, if any, is raised. `changed`: models whose documents
    may fit now although they did not before, or the other way round."""
    altered, done, failures = set(changed), list[Adopted](), list[WormError]()
    for name in models:
        try:
            adoption = _Adoption(session, name, name in altered, progress)
            done.append(adoption.run())
            failures += adoption.failures
        except WormError as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return tuple(done)


class _Adoption:
    """The documents of one model."""

    def __init__(self, session: Session, name: str, is_changed: bool, progress: ModelProgress) -> None:
        self._session = session
        self._table: Table = session.table(name)
        self._collection: Collection = self._table.collection
        self._is_changed = is_changed
        self._progress = progress
        self._report = Adopted(name)
        self.failures: list[WormError] = []

    def run(self) -> Adopted:
        name, total = self._report.model, self._total()
        swept = Sweep(self._session).run(
            lambda: math.inf, [name], resume=False, progress=lambda done: self._progress(name, done, total)
        )[0]
        self.failures = [error for error in (swept.error, swept.failure) if error is not None]
        self._report.recorded = swept.recorded
        self._report.damaged = dict(swept.damaged)
        for entity_id, reason in swept.problems.items():
            self._report.problems[self._collection.documents.key(entity_id)] = reason
        manifest = self._kept_manifest()
        self._count(manifest)
        if self._collection.claims.are_needed:
            self._claim(build_manifest(self._collection).entities if manifest is None else manifest.entities)
        return self._report

    def _total(self) -> int | None:
        """A separate listing, only to show a progress bar."""
        return None if self._progress is unwatched else sum(1 for _ in self._collection.current_ids())

    def _kept_manifest(self) -> Manifest | None:
        """The table's rows; None if they are not maintained."""
        if not self._table.is_kept:
            return None
        if self._collection.definition.oplog:
            manifest = self._table.manifest.read()
        else:
            manifest = self._fold_again()
        if manifest is not None:
            self._report.rows = manifest.count
        return manifest

    def _fold_again(self) -> Manifest | None:
        """Without an oplog a document is not read again while its etag is unchanged, even if the schema changes."""
        if self._is_changed:
            self._table.rebuild()
        manifest = self._table.manifest.read()
        rejected = [] if manifest is None else sorted(set(manifest.etags) - set(manifest.entities))
        self._explain(rejected)
        valid = [one for one in rejected if self._collection.documents.key(one) not in self._report.problems]
        if valid:
            self._table.fold_documents(valid)
            manifest = self._table.manifest.read()
        return manifest

    def _explain(self, ids: Iterable[str]) -> None:
        """Why they have no row."""
        for chunk in in_chunks(ids, CHUNK):
            reads = [Read(self._collection.documents.key(one)) for one in chunk]
            found = self._collection.store.get_many(reads, max_bytes=self._collection.max_bytes)
            for entity_id, item in zip(chunk, found, strict=True):
                try:
                    if isinstance(item, Exception):
                        raise item
                    if item is not None:
                        self._collection.document_of(entity_id, item)
                except Invalid as mistake:
                    self._report.problems[self._collection.documents.key(entity_id)] = mistake.message

    def _count(self, manifest: Manifest | None) -> None:
        """The sentinel has the number of documents, even for a model without history and table."""
        counted: Manifest | Heads | None = manifest
        if self._collection.definition.oplog:
            counted = self._table.heads.read() or Heads(self._report.model)
        elif counted is None:
            listed = {one: found for one, found in self._collection.latest_versions() if not found.is_delete_marker}
            newest = max((found.last_modified for found in listed.values()), default=None)
            rows: dict[str, Row] = {one: {} for one in listed}
            counted = Manifest(self._report.model, rows, last_updated="" if newest is None else iso_seconds(newest))
        self._report.documents = counted.count
        self._table.keep_sentinel(counted)

    def _claim(self, rows: Mapping[str, Row]) -> None:
        claimed = self._collection.claims.claim_unclaimed(rows)
        self._report.claimed = len(claimed.written)
        self._report.conflicts = [found.detail for found in claimed.conflicts]
