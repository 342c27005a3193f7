"""A collection: one model of the schema on one store, with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from worm.clock import Clock, Ids, SystemClock
from worm.collections.changes import Row, project
from worm.collections.claims import Claims
from worm.collections.companions import Recorded
from worm.collections.documents import MAX_DOCUMENT_BYTES, Documents, Origin
from worm.collections.entries import Document, Head, OplogEntry
from worm.collections.id_ranges import IdRange, Scan
from worm.collections.layout import ArchiveName, KeyInfo, KeyKind, StorageResolver
from worm.collections.oplog import Oplog
from worm.collections.reconcile import Reconciler
from worm.collections.snapshots import Snapshots
from worm.collections.space_log import LoggedClaims, SpaceLog, commit_of, entity_name
from worm.collections.trash import Trash
from worm.errors import Corrupt
from worm.schema import ModelDef
from worm.spaces.opening import OpenSpaces, database_id
from worm.store.base import Listed, Object, ObjectInfo, Store, Version

if TYPE_CHECKING:
    from worm.spaces.space import Space

OPLOG_KINDS = (KeyKind.OPLOG, KeyKind.TIME_MARK, KeyKind.ARCHIVE)
_EVERYTHING = IdRange()


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
    spaces: Callable[[str], Space | None] | None = None
    """Spaces that are open already; without it one is opened for reading when it is asked for."""

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
    def claims(self) -> Claims:
        if self.space_log is None:
            return Claims(self.documents, self.clock, self.ids)
        return LoggedClaims(self.documents, self.clock, self.ids, self.space_log)

    @cached_property
    def space_log(self) -> SpaceLog | None:
        """What the model's space says about its documents; None without a space."""
        name = self.definition.space
        return None if name is None else SpaceLog(self.name, partial(self.spaces or self._spaces.get, name))

    def applied(self) -> int:
        """The commit of the model's space up to which all are in the documents."""
        name = self.definition.space
        if name is None:
            return 0
        from worm.spaces.applied import applied_file  # for those who have spaces

        held = applied_file(self.store, database_id(name), clock=self.clock, ids=self.ids).read()
        return 0 if held is None else held.start(self.clock.now())

    @cached_property
    def _spaces(self) -> OpenSpaces:
        return OpenSpaces(self.store, self.clock, self.ids)

    @cached_property
    def path(self) -> str:
        return self.resolver.collection_path(self.name)

    def reconciler(self, known: Mapping[str, Document] | None = None) -> Reconciler:
        return Reconciler(self.documents, self.oplog, self.clock, known or {}, Keepers(self))

    def row(self, document: Document | None) -> Row | None:
        return None if document is None else project(document, self.definition.table_fields())

    def latest_versions(self, after: str | None = None, within: IdRange = _EVERYTHING) -> Iterator[tuple[str, Version]]:
        """Id and newest version (or delete marker) of every document key that has any: keys ascending where there is
        no range. `after`: only keys after this one."""
        previous: str | None = None
        for entity_id, version in self._versions(within.scans(self.path, beside_system_keys=True), within, after):
            if version.key != previous:
                yield entity_id, version
            previous = version.key

    def current_ids(self, within: IdRange = _EVERYTHING) -> Iterator[str]:
        """The ids of the documents that exist, from a listing."""
        for scan in within.scans(self.path, beside_system_keys=True):
            for listed in self.store.list(scan.prefix, start_after=scan.after):
                if scan.is_over(listed.key):
                    break
                info = self.resolver.parse(listed.key)
                if info.kind is KeyKind.DOCUMENT and info.model == self.name and info.id and info.id in within:
                    yield info.id

    def all_versions(self, within: IdRange = _EVERYTHING) -> dict[str, list[Version]]:
        """All versions of every document by id, newest first."""
        found: dict[str, list[Version]] = {}
        scans = [Scan(self.path)] if within.is_open else within.scans(self.path, beside_system_keys=True)
        for entity_id, version in self._versions(scans, within):
            found.setdefault(entity_id, []).append(version)
        return found

    def _versions(
        self, scans: Sequence[Scan], within: IdRange, after: str | None = None
    ) -> Iterator[tuple[str, Version]]:
        for scan in scans:
            start = max(after or "", scan.after or "")
            for version in self.store.list_versions(scan.prefix, start_after=start or None):
                if scan.is_over(version.key):
                    break
                info = self.resolver.parse(version.key)
                if info.kind is KeyKind.DOCUMENT and info.model == self.name and info.id and info.id in within:
                    yield info.id, version

    def recorded_seqs(self, within: IdRange = _EVERYTHING) -> dict[str, set[int]]:
        """The seqs of every entity that has an oplog, archived or not, from a listing (no entry is read)."""
        found = self._seqs_by_kind(within)
        recorded = found[KeyKind.OPLOG]
        for entity_id, archived in found[KeyKind.ARCHIVE].items():
            recorded.setdefault(entity_id, set()).update(archived)
        return recorded

    def unmarked(self, within: IdRange = _EVERYTHING) -> list[tuple[str, int]]:
        """Id and seq of the entries that are due a time mark and have none, from a listing. Those in an archive are
        due none."""
        seqs = self._seqs_by_kind(within)
        archived = seqs[KeyKind.ARCHIVE]
        single = {one: found - archived.get(one, set()) for one, found in seqs[KeyKind.OPLOG].items()}
        return self.oplog.marks.missing(single, seqs[KeyKind.TIME_MARK])

    def mark(self, entity_id: str, seq: int) -> None:
        """Write the time mark of an entry, if it is due one and missing."""
        entry = self.oplog.read(entity_id, seq)
        if entry is not None:
            self.oplog.marks.put(entity_id, entry)

    def _seqs_by_kind(self, within: IdRange = _EVERYTHING) -> dict[KeyKind, dict[str, set[int]]]:
        seqs: dict[KeyKind, dict[str, set[int]]] = {kind: {} for kind in OPLOG_KINDS}
        for info, _ in self.oplog_objects(within):
            packed = ArchiveName.parse(info.name or "") if info.kind is KeyKind.ARCHIVE else None
            found = {info.seq or 0} if packed is None else range(packed.first, packed.last + 1)
            seqs[info.kind].setdefault(info.id or "", set()).update(found)
        return seqs

    def oplog_objects(self, within: IdRange = _EVERYTHING) -> Iterator[tuple[KeyInfo, Listed]]:
        """Entries, archives and time marks, from a listing; all of one entity come together."""
        for listed in self._listed(self.resolver.oplog_root(self.name), within):
            info = self.resolver.parse(listed.key)
            if info.kind in OPLOG_KINDS and info.model == self.name and info.id and info.seq and info.id in within:
                yield info, listed

    def trashed_ids(self, within: IdRange = _EVERYTHING) -> Iterator[str]:
        """The ids that have a tombstone, from a listing."""
        for listed in self._listed(self.resolver.trash_root(self.name), within):
            info = self.resolver.parse(listed.key)
            if info.kind is KeyKind.TOMBSTONE and info.model == self.name and info.id and info.id in within:
                yield info.id

    def _listed(self, root: str, within: IdRange) -> Iterator[Listed]:
        """What lies in a system directory. The keys of a singleton lie among the system keys of its collection."""
        apart = root == self.path and not self.definition.is_singleton
        for scan in within.scans(root, beside_system_keys=apart):
            for listed in self.store.list(scan.prefix, start_after=scan.after):
                if scan.is_over(listed.key):
                    break
                yield listed


@dataclass(frozen=True)
class Keepers:
    """Keeps time marks, snapshots and trash beside the oplog, as the model's definition asks."""

    collection: Collection

    def deletion(self, entity_id: str, deleted: Head) -> Origin:
        committed = self._committed_deletion(entity_id, deleted)
        if committed is not None:
            return committed
        if not self.collection.definition.soft_delete:
            return Origin()
        try:
            tombstone = self.collection.trash.tombstone(entity_id)
        except Corrupt:
            return Origin()  # the trash itself reports it; the history only lacks a name
        return Origin(tombstone.deleted_by) if tombstone is not None and tombstone.etag == deleted.etag else Origin()

    def _committed_deletion(self, entity_id: str, deleted: Head) -> Origin | None:
        """The commit that deleted what was recorded last, where it was a commit."""
        log = self.collection.space_log
        last = None if log is None else self.collection.oplog.read(entity_id, deleted.seq)
        seq = None if last is None else last.metadata.get("commitSeq")
        if log is None or not isinstance(seq, int):
            return None if log is None else log.deletion(entity_id, 0)
        # With versions no commit is passed over: another one in between says that this deletion was not by a commit.
        return log.deletion(entity_id, seq, is_exact=deleted.version_id is not None)

    def commit_of(self, entity_id: str, found: ObjectInfo) -> int | None:
        collection = self.collection
        is_logged = collection.definition.space is not None
        return commit_of(found, entity_name(collection.name, entity_id)) if is_logged else None

    def is_late(self, entity_id: str, found: Object, head: Head | None) -> bool:
        log, commit = self.collection.space_log, self.commit_of(entity_id, found)
        if log is None or commit is None or (head is not None and head.live):
            return False
        last = None if head is None else self.collection.oplog.read(entity_id, head.seq)
        deleted = None if last is None else last.metadata.get("commitSeq")
        if isinstance(deleted, int):
            return commit < deleted and log.deletion(entity_id, commit) is not None
        # Without versions the delete may have gone by unseen. With them it stands before the object, recorded by now.
        return found.version_id is None and self._has_come_back(entity_id, found, commit, log)

    def _has_come_back(self, entity_id: str, found: Object, commit: int, log: SpaceLog) -> bool:
        """Is the object there, though the commit that deleted it is in the documents?"""
        collection, state = self.collection, log.read(entity_id)
        if state is None or state.exists or not commit < state.seq <= collection.applied():
            return False
        stored = collection.store.head(found.key)
        return stored is not None and stored.etag == found.etag and self.commit_of(entity_id, stored) == commit

    def mark(self, entity_id: str, entry: OplogEntry) -> None:
        self.collection.oplog.marks.put(entity_id, entry)

    def follow(self, recorded: Recorded) -> None:
        collection, entry = self.collection, recorded.entry
        if recorded.after is not None:
            if collection.snapshots.is_due(entry.seq):
                collection.snapshots.take(recorded.id, entry.seq, entry.ts, recorded.after)
        elif collection.definition.soft_delete and recorded.before is not None:
            self._put_into_trash(recorded, recorded.before)

    def _put_into_trash(self, recorded: Recorded, document: Document) -> None:
        """What lay under the key when it was deleted: the recorded document, or an invalid one that was put over it."""
        collection, entry, previous = self.collection, recorded.entry, recorded.previous
        etag, version_id = (None, None) if previous is None else (previous.etag, previous.version_id)
        body: bytes | None = None
        skipped = entry.metadata.get("skipped")
        newest = skipped[-1] if isinstance(skipped, list) and skipped else None
        if isinstance(newest, dict) and isinstance(newest.get("versionId"), str):
            found = collection.store.get(collection.documents.key(recorded.id), version_id=str(newest["versionId"]))
            if found is not None:
                body, etag, version_id = found.body, found.etag, found.version_id
        collection.trash.rescue(
            recorded.id,
            document,
            body=body,
            etag=etag or "",
            version_id=version_id,
            deleted_by=entry.actor,
            deleted_at=entry.ts,
            is_recorded=lambda other: self._is_recorded(recorded, other),
        )

    def _is_recorded(self, recorded: Recorded, etag: str) -> bool:
        """Does one of the entries before this one name the etag?"""
        oplog = self.collection.oplog
        return any(entry.etag == etag for entry in oplog.page(recorded.id, recorded.entry.seq, oplog.every))
