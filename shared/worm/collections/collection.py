"""A collection: one model of the schema on one store, with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice

from worm.clock import Clock, Ids, SystemClock
from worm.collections.claims import Claims
from worm.collections.documents import MAX_DOCUMENT_BYTES, Documents
from worm.collections.entries import Change, Document, Head, Row, cut_row, project, table_row
from worm.collections.id_ranges import IdRange, KnownIds, Scan, known_ids, plan_ranges
from worm.collections.layout import KeyInfo, KeyKind, StorageResolver
from worm.collections.oplog import Oplog, Seqs
from worm.collections.origins import Origins, PlainOrigins, is_written_by_us
from worm.collections.reconcile import UNLISTED, Reconciled, Reconciler, Sighting, Survey, as_version
from worm.collections.snapshots import Snapshots
from worm.collections.trash import Trash
from worm.errors import Corrupt, Invalid
from worm.formats import ModelDef
from worm.store import Listed, Object, Store, Version

OPLOG_KINDS = (KeyKind.OPLOG, KeyKind.TIME_MARK, KeyKind.ARCHIVE)
_EVERYTHING = IdRange()


@dataclass(frozen=True)
class EntityOutcome:
    """The outcome of reconciling one entity. `change` is set if the table needs an update."""

    change: Change | None = None
    appended: int = 0
    error: Exception | None = None
    damage: Corrupt | None = None
    """The error, if the history cannot be continued. The table then serves the document."""
    is_late: bool = False
    """The document came back after a commit had deleted it, so it is not a change. Capture has no permission to delete
    it; the sweep does."""
    is_mended: bool = False


@dataclass
class Collection:
    """Documents, oplog and keys of one model."""

    store: Store
    resolver: StorageResolver
    name: str
    definition: ModelDef
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=Ids.system)
    max_bytes: int = MAX_DOCUMENT_BYTES
    origins_of: Callable[[Collection], Origins] | None = None
    """For a model in a space: the port to its log (`collections/origins.py`)."""

    @cached_property
    def documents(self) -> Documents:
        return Documents(self.store, self.resolver, self.name, self.definition, self.max_bytes)

    @cached_property
    def oplog(self) -> Oplog:
        return Oplog(
            self.store,
            self.resolver,
            self.name,
            every=self.definition.snapshots.every,
            has_archives=self.definition.archive_after is not None,
            clock=self.clock,
        )

    @cached_property
    def snapshots(self) -> Snapshots:
        return Snapshots(self.store, self.resolver, self.name, self.definition)

    @cached_property
    def trash(self) -> Trash:
        return Trash(self.documents, self.clock)

    @cached_property
    def origins(self) -> Origins:
        """Where changes come from. A model in a space needs the origins that ask its log: without them, an object that
        a commit deleted would count again."""
        if self.origins_of is not None:
            return self.origins_of(self)
        if self.definition.space is not None:
            raise Invalid(
                f"{self.name} is in the space '{self.definition.space}'",
                hint="open it with worm.upkeep.Session",
            )
        return PlainOrigins(self.definition, self.trash)

    @cached_property
    def claims(self) -> Claims:
        return Claims(self.documents, self.clock, self.ids, self.origins.truth)

    @cached_property
    def path(self) -> str:
        return self.resolver.collection_path(self.name)

    def reconciler(self, known: Mapping[str, Document] | None = None) -> Reconciler:
        return Reconciler(self.documents, self.oplog, self.snapshots, self.trash, self.origins, self.clock, known or {})

    def reconcile(
        self,
        entity_id: str,
        hint: Head | None,
        folded: Head | None,
        sightings: Iterable[Sighting] = (),
        *,
        recheck: bool = False,
        survey: Survey = UNLISTED,
    ) -> EntityOutcome:
        """Reconcile one entity. `folded` is what the table knows about it, `survey` what a listing showed. Never
        raises: an error is part of the outcome."""
        try:
            result = self.reconciler().reconcile(entity_id, hint, tuple(sightings), recheck=recheck, survey=survey)
            failure = result.rejected or result.unkept
            return EntityOutcome(self._news(result, folded), result.appended, failure, is_late=result.is_late)
        except Exception as error:  # noqa: BLE001 - one bad entity must not fail the others; reported with it
            return EntityOutcome(error=error, damage=self.damage_of(entity_id, error))

    def damage_of(self, entity_id: str, error: Exception) -> Corrupt | None:
        """The error, if it concerns the entity's own history and not a space or the trash."""
        is_own = (getattr(error, "key", None) or "").startswith(self.resolver.oplog_path(self.name, entity_id))
        return error if isinstance(error, Corrupt) and is_own else None

    def _news(self, result: Reconciled, folded: Head | None) -> Change | None:
        if result.head is None or (folded is not None and folded.seq >= result.head.seq):
            return None
        return Change(result.id, result.head, self.row(result.state()))

    def document_of(self, entity_id: str, found: Object) -> Document:
        """The document of a stored object: one that fits the schema now, or did when it was written. Otherwise
        `Invalid` with every error."""
        try:
            return self.documents.parse(entity_id, found)
        except Invalid:
            document = self.documents.recorded(found) if self.was_accepted(entity_id, found) else None
            if document is None:
                raise
            return document

    def was_accepted(self, entity_id: str, found: Object) -> bool:
        """Whether the object is known to have been a valid document, whatever the schema says today.

        Without an oplog, our SDK must have written it. With one, there are two ways: its newest entry records this very
        version, or our SDK has written the object since then and it breaks no rule that the recorded document does not
        break. With a damaged oplog, our SDK must have written it. Only called for objects that fail the check: finding
        the end of an oplog takes a few reads.
        """
        if not self.definition.oplog:
            return is_written_by_us(found)
        try:
            return self._was_recorded(entity_id, found)
        except Corrupt:  # the recorded state is unknown: the document itself says who wrote it
            return is_written_by_us(found)

    def _was_recorded(self, entity_id: str, found: Object) -> bool:
        tail = self.oplog.tail(entity_id)
        if tail is None:
            return False
        if Head.of(tail).names(as_version(found)) or not is_written_by_us(found):
            return Head.of(tail).names(as_version(found))
        before = tail.snapshot if tail.op == "delete" else self.oplog.state_at(entity_id, tail.seq)
        try:
            self.documents.parse(entity_id, found, lambda: before)
        except Invalid:
            return False
        return before is not None

    def keep_snapshot(self, entity_id: str) -> None:
        """Take the snapshot of the version that is stored now, if the model keeps snapshots without an oplog. An
        invalid document gets none."""
        if not self.snapshots.are_of_versions:
            return
        try:
            found = self.documents.current(entity_id)
            document = None if found is None else self.document_of(entity_id, found)
        except Invalid:
            return
        if found is not None and document is not None:
            self.snapshots.take_version(entity_id, found, document)

    def row(self, document: Document | None) -> Row | None:
        """The row of the manifest, without values that are too large."""
        if document is None:
            return None
        limits, fields = self.definition.manifest, self.definition.table_fields()
        return cut_row(self.uncut_row(document), fields, limits.max_field_bytes, limits.max_row_bytes)

    def uncut_row(self, document: Document) -> Row:
        """The row without a size limit."""
        make = table_row if self.definition.keeps_whole_rows else project
        return make(document, self.definition.table_fields())

    def as_row(self, entity_id: str, document: Document) -> Row:
        """The document with the id of its key. If there is a table, a dotted name means a path, so a field with a dot
        in its own name is kept apart, as in rows of the manifest."""
        definition = self.definition
        if definition.keeps_manifest and any("." in name for name in document):
            return {"id": entity_id, **table_row(document, definition.table_fields())}
        row: Row = {"id": entity_id, **document}
        row["id"] = entity_id  # a document may write an int id as a number
        return row

    def latest_versions(self, after: str | None = None, within: IdRange = _EVERYTHING) -> Iterator[tuple[str, Version]]:
        """The id and the newest version (or delete marker) of every document key that has one: keys ascending if there
        is no range. `after`: only keys after this one."""
        return ((entity_id, version) for entity_id, version, _ in self.newest_versions(after, within))

    def newest_versions(
        self,
        after: str | None = None,
        within: IdRange = _EVERYTHING,
        scans: Sequence[Scan] | None = None,
        goes_on: Callable[[str], bool] = lambda key: True,
    ) -> Iterator[tuple[str, Version, bool]]:
        """`latest_versions`, and whether the key has no other version. `scans`: only a part of the range's scans.
        `goes_on` is called with the key of every version that is listed, also of objects that are no documents. If it
        returns False, the listing ends before this version."""
        wanted = within.scans(self.path, beside_system_keys=True) if scans is None else scans
        versions = self.listed_versions(wanted, within, after, goes_on)
        for _, of_key in groupby(versions, key=lambda found: found[1].key):
            (entity_id, version), *others = islice(of_key, 2)
            yield entity_id, version, not others

    def known_ids(self) -> KnownIds:
        """What its table knows about the ids; only a hint."""
        return known_ids(self)

    def ranges(self, wanted: int) -> list[IdRange]:
        """About `wanted` ranges of about the same size, found with few requests (see `plan_ranges`)."""
        return plan_ranges(self, wanted)

    def current_ids(self, within: IdRange = _EVERYTHING, scans: Sequence[Scan] | None = None) -> Iterator[str]:
        """The ids of the documents that exist, from a listing. `scans`: only a part of the range's scans."""
        for listed in self._listed(within.scans(self.path, beside_system_keys=True) if scans is None else scans):
            info = self.resolver.parse(listed.key)
            if info.kind is KeyKind.DOCUMENT and info.model == self.name and info.id and info.id in within:
                yield info.id

    def all_versions(self, within: IdRange = _EVERYTHING) -> dict[str, list[Version]]:
        """All versions of every document by id, newest first."""
        found: dict[str, list[Version]] = {}
        scans = [Scan(self.path)] if within.is_open else within.scans(self.path, beside_system_keys=True)
        for entity_id, version in self.listed_versions(scans, within):
            found.setdefault(entity_id, []).append(version)
        return found

    def listed_versions(
        self,
        scans: Sequence[Scan],
        within: IdRange,
        after: str | None = None,
        goes_on: Callable[[str], bool] = lambda key: True,
    ) -> Iterator[tuple[str, Version]]:
        """The id and every version of the documents that scans of a range show; those of one document together."""
        for scan in scans:
            start = max(after or "", scan.after or "")
            for version in self.store.list_versions(scan.prefix, start_after=start or None):
                if scan.is_over(version.key):
                    break
                if not goes_on(version.key):
                    return
                info = self.resolver.parse(version.key)
                if info.kind is KeyKind.DOCUMENT and info.model == self.name and info.id and info.id in within:
                    yield info.id, version

    def recorded_seqs(self, within: IdRange = _EVERYTHING) -> dict[str, Seqs]:
        """The seqs of every entity that has an oplog, archived or not, from a listing (no entry is read)."""
        return self._recorded(within, {})

    def unmarked(self, within: IdRange = _EVERYTHING) -> list[tuple[str, int]]:
        """The id and seq of entries that should have a time mark but have none, from a listing."""
        marked: dict[str, set[int]] = {}
        return self.oplog.marks.missing(self._recorded(within, marked), marked)

    def mark(self, entity_id: str, seq: int) -> None:
        """Write the time mark of an entry, if it should have one and it is missing."""
        entry = self.oplog.read(entity_id, seq)
        if entry is not None:
            self.oplog.marks.put(entity_id, entry)

    def _recorded(self, within: IdRange, marked: dict[str, set[int]]) -> dict[str, Seqs]:
        """What the listing shows of every entity; the seqs of its time marks go into `marked`."""
        recorded: dict[str, Seqs] = {}
        for info, _ in self.oplog_objects(within):
            entity_id = info.id or ""
            if info.kind is KeyKind.TIME_MARK:
                marked.setdefault(entity_id, set()).add(info.seq or 0)
            else:
                recorded.setdefault(entity_id, Seqs()).add(info)
        return recorded

    def oplog_objects(
        self, within: IdRange = _EVERYTHING, scans: Sequence[Scan] | None = None
    ) -> Iterator[tuple[KeyInfo, Listed]]:
        """Entries, archives and time marks, from a listing; all objects of one entity come together. `scans`: only a
        part of the range's scans."""
        root = self.resolver.oplog_root(self.name)
        for listed in self._listed(self._scans(root, within) if scans is None else scans):
            info = self.resolver.parse(listed.key)
            if info.kind in OPLOG_KINDS and info.model == self.name and info.id and info.seq and info.id in within:
                yield info, listed

    def trashed_ids(self, within: IdRange = _EVERYTHING) -> Iterator[str]:
        """The ids that have a tombstone, from a listing."""
        for listed in self._listed(self._scans(self.resolver.trash_root(self.name), within)):
            info = self.resolver.parse(listed.key)
            if info.kind is KeyKind.TOMBSTONE and info.model == self.name and info.id and info.id in within:
                yield info.id

    def _scans(self, root: str, within: IdRange) -> list[Scan]:
        """Of a system directory. The keys of a singleton are among the system keys of its collection."""
        return within.scans(root, beside_system_keys=root == self.path and not self.definition.is_singleton)

    def _listed(self, scans: Sequence[Scan]) -> Iterator[Listed]:
        for scan in scans:
            for listed in self.store.list(scan.prefix, start_after=scan.after):
                if scan.is_over(listed.key):
                    break
                yield listed
