"""Packs old oplog entries of cold entities into archives (`Archive` of `worm.collections.oplog`).

*Cold*: the newest entry is older than the retention window, `archiveAfter` of the schema. All entries of a cold entity
are packed, except the newest `every` + 1 and those after the last checkpoint before them. Entry 1 is packed too, but
stays: it shows a writer without any hint that there is a history.

Order of writes, per archive: the archive, by put-if-absent; it is read back and compared with every entry, byte for
byte; its time mark; then the time marks of its entries and the entries themselves are deleted, each only if it is
unchanged since the comparison. A crash leaves some entries both single and archived, which reads the same; the next run
finishes the work. Concurrent runs and writers do no harm: writers only append, and archives of the same entries are
equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from worm.clock import iso_seconds
from worm.collections import layout
from worm.collections.collection import Collection
from worm.collections.entries import OplogEntry
from worm.collections.id_ranges import IdRange
from worm.collections.layout import ArchiveName, KeyKind
from worm.collections.oplog import MIN_AGE, Archive
from worm.collections.trash import delete_unchanged
from worm.collections.walks import IdSource, IdWalk, Objects, oplogs_of
from worm.errors import Corrupt, Invalid, WormError
from worm.formats import JsonObject, dumps, frames, loads_own
from worm.store import Listed, Object, Read, in_chunks

ENTRIES_MAX = 1000
BYTES_MAX = 4 * 1024 * 1024
BLOCK_MAX = 16 * 1024 * 1024
FRAME_BYTES = len(frames.frame(b""))
CHUNK = 64
FEWEST = 4
"""Fewer entries are not worth an archive and its mark."""
PROBLEMS_MAX = 100


class _Overtaken(Exception):
    """Another run archived the entity since it was listed."""


@dataclass
class ArchiveReport:
    """The result of a run (in a dry run: what it would do). `problems` has reasons by id. `rest`: what is left of the
    range, if it has too many ids for one run."""

    model: str
    entities: int = 0
    cold: int = 0
    compacted: int = 0
    archives: int = 0
    entries: int = 0
    removed: int = 0
    bytes_removed: int = 0
    bytes_archived: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    rest: tuple[IdRange, ...] = ()

    def add(self, other: ArchiveReport) -> None:
        for name in ("entities", "cold", "compacted", "archives", "entries", "removed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bytes_removed += other.bytes_removed
        self.bytes_archived += other.bytes_archived
        for entity_id, reason in other.problems.items():
            if len(self.problems) < PROBLEMS_MAX:
                self.problems[entity_id] = reason

    def summary(self) -> JsonObject:
        return {
            "model": self.model,
            "entities": self.entities,
            "cold": self.cold,
            "compacted": self.compacted,
            "archives": self.archives,
            "entries": self.entries,
            "objects_removed": self.removed,
            "bytes_saved": self.bytes_removed - self.bytes_archived,
            "problems": dict(self.problems),
        }


@dataclass
class OplogListing:
    """The keys of one entity's oplog: single entries, archives, and time marks of single entries, by seq."""

    id: str
    entries: dict[int, Listed] = field(default_factory=dict)
    archives: list[ArchiveName] = field(default_factory=list)
    marks: dict[int, list[Listed]] = field(default_factory=dict)


class Archiver:
    """Packs the old entries of one collection's entities. `now` and the window decide what is old."""

    def __init__(
        self, collection: Collection, *, now: datetime, older_than: timedelta | None = None, dry_run: bool = True
    ) -> None:
        seconds = collection.definition.archive_seconds
        if seconds is None:
            raise Invalid(
                f"{collection.name} has no `archiveAfter` in its schema",
                hint='add one ("90d") and push the schema, so that every reader and writer looks for archives',
            )
        window = timedelta(seconds=seconds) if older_than is None else older_than
        if window < max(timedelta(seconds=seconds), MIN_AGE):
            raise Invalid(
                f"{collection.name} must keep single entries for {collection.definition.archive_after}",
                hint="choose a longer --older-than, or a shorter `archiveAfter` in the schema",
            )
        self._model = collection.name
        self._collection = collection
        self._oplog = collection.oplog
        self._store = collection.store
        self._cutoff = iso_seconds(now - window)
        self._dry_run = dry_run

    def run(self, within: IdRange | None = None, *, threads: int = 16) -> ArchiveReport:
        """Archive the entities of a range (default: all, however many). One that fails is a problem; the others
        continue."""
        source, report = oplogs(self._collection), ArchiveReport(self._model)
        walk = IdWalk(source, IdRange(), sys.maxsize) if within is None else IdWalk(source, within)
        with ThreadPoolExecutor(threads) as pool:
            for chunk in in_chunks((one for part in walk for one in part.values()), CHUNK):
                for one in pool.map(self.entity, chunk) if threads > 1 else map(self.entity, chunk):
                    report.add(one)
        report.rest = walk.rest
        return report

    def entity(self, listing: OplogListing) -> ArchiveReport:
        """Compact one entity, if it is cold."""
        report = ArchiveReport(self._model, entities=1)
        try:
            if self._is_cold(listing):
                report.cold = 1
                for name in listing.archives:
                    self._finish(listing, name, report)
                for seqs in list(self._due(listing)):
                    self._compact(listing, seqs, report)
        except _Overtaken:
            report = ArchiveReport(self._model, entities=1, cold=1)
        except WormError as problem:
            report.problems[listing.id] = str(problem)
        report.compacted = int(report.removed > 0)
        return report

    def pack(self, entity_id: str, seqs: range) -> tuple[Archive, list[Object]]:
        """Write and verify the archive of these entries, and its time mark. Deletes nothing."""
        originals = self._originals(entity_id, seqs)
        body = b"".join(frames.frame(original.body) for original in originals)
        name = ArchiveName(seqs[0], seqs[-1], layout.digest_of(body))
        self._store.put_if_absent(self._oplog.archives.key(entity_id, name), body)
        archive = self._loaded(entity_id, name)
        self._oplog.marks.put_archive(entity_id, name, archive.entries[0].ts)
        return archive, originals

    # What is due

    def _is_cold(self, listing: OplogListing) -> bool:
        """Decided by the times in the listing if they show that it is not cold, otherwise by the newest entry
        itself."""
        newest = max(listing.entries, default=0)
        if newest < FEWEST or iso_seconds(listing.entries[newest].last_modified) > self._cutoff:
            return False
        tail = self._oplog.tail(listing.id, at_least=newest)
        return tail is not None and tail.seq == newest and tail.ts <= self._cutoff

    def _due(self, listing: OplogListing) -> Iterator[range]:
        """The seqs of each archive that is due. They end before a checkpoint, so that the entries after them give the
        state without them."""
        every = self._oplog.every
        first = max((name.last for name in listing.archives), default=0) + 1
        end = max(listing.entries) - every - 1
        end -= (end + 1) % every
        while end - first + 1 >= FEWEST:
            last, size = first - 1, 0
            for stop in range(first - first % every + every - 1, end + 1, every):
                block = sum(self._listed(listing, seq).size for seq in range(last + 1, stop + 1))
                if block > BLOCK_MAX:
                    end = last  # reading one entry of it would cost more than many objects do
                    break
                if last >= first and (stop - first >= ENTRIES_MAX or size + block > BYTES_MAX):
                    break
                last, size = stop, size + block
            if last < first:
                return
            yield range(first, last + 1)
            first = last + 1

    def _listed(self, listing: OplogListing, seq: int) -> Listed:
        found = listing.entries.get(seq)
        if found is None:
            raise self._gap(listing.id, seq)
        return found

    # Doing it

    def _compact(self, listing: OplogListing, seqs: range, report: ArchiveReport) -> None:
        report.archives += 1
        report.entries += len(seqs)
        report.bytes_archived += sum(listing.entries[seq].size + FRAME_BYTES for seq in seqs)
        if not self._dry_run:
            archive, originals = self.pack(listing.id, seqs)
            self._remove(archive, originals, listing.marks)
        self._count(listing, seqs, report)

    def _finish(self, listing: OplogListing, name: ArchiveName, report: ArchiveReport) -> None:
        """Delete the entries and marks that a dead run archived, but did not delete."""
        seqs = sorted(seq for seq in {*listing.entries, *listing.marks} if seq in name)
        left = [seq for seq in seqs if seq > 1 and seq in listing.entries]
        if not left and not any(seq in listing.marks for seq in seqs):
            return
        if not self._dry_run:
            archive = self._loaded(listing.id, name)
            self._oplog.marks.put_archive(listing.id, name, archive.entries[0].ts)
            found = self._store.get_many([Read(listing.entries[seq].key) for seq in left])
            self._remove(archive, [item for item in found if item is not None], listing.marks)
        self._count(listing, seqs, report)

    def _remove(
        self, archive: Archive, originals: Sequence[Object | Exception], marks: Mapping[int, Sequence[Listed]]
    ) -> None:
        """Delete what the archive holds, if it holds all of it: first the time marks, then the entries except entry
        1."""
        archived = dict(zip(range(archive.name.first, archive.name.last + 1), archive.bodies, strict=True))
        equal: list[tuple[int, Object]] = []
        for original in originals:
            if isinstance(original, Exception):
                raise original
            seq = OplogEntry.from_bytes(original.body, original.key).seq
            if archived.get(seq) != original.body:
                raise Corrupt(f"differs from entry {seq} in {archive.key}", key=original.key, hint="run `worm verify`")
            equal.append((seq, original))
        for seq in archived:
            for mark in marks.get(seq, ()):
                self._store.delete(mark.key)
        for seq, original in equal:
            if seq > 1:
                delete_unchanged(self._store, original.key, original.etag, original.version_id)

    def _count(self, listing: OplogListing, seqs: Iterable[int], report: ArchiveReport) -> None:
        """Add it to the report, and remove it from the listing."""
        for seq in seqs:
            removed = listing.marks.pop(seq, [])
            removed += [listing.entries.pop(seq)] if seq > 1 and seq in listing.entries else []
            report.removed += len(removed)
            report.bytes_removed += sum(one.size for one in removed)

    def _originals(self, entity_id: str, seqs: range) -> list[Object]:
        originals: list[Object] = []
        found = self._store.get_many([Read(self._oplog.key(entity_id, seq)) for seq in seqs])
        for seq, item in zip(seqs, found, strict=True):
            if isinstance(item, Exception):
                raise item
            if item is None and any(seq in name for name in self._oplog.archives.names(entity_id)):
                raise _Overtaken
            if item is None:
                raise self._gap(entity_id, seq)
            shape = loads_own(item.body, key=item.key)
            if OplogEntry.from_shape(shape, item.key).seq != seq or dumps(shape) != item.body:
                raise Corrupt(f"is not entry {seq} as worm writes it, so it was not archived", key=item.key)
            originals.append(item)
        return originals

    def _loaded(self, entity_id: str, name: ArchiveName) -> Archive:
        """The archive as it is stored: `Corrupt` unless every line matches the name and the CRCs."""
        archive = self._oplog.archives.load(entity_id, name)
        if archive is None:
            raise Corrupt("an archive is gone", key=self._oplog.archives.key(entity_id, name))
        return archive

    def _gap(self, entity_id: str, seq: int) -> Corrupt:
        return Corrupt("a gap in the oplog", key=self._oplog.key(entity_id, seq), hint="run `worm verify`")


def oplogs(collection: Collection) -> IdSource[OplogListing]:
    """The oplogs of a collection, from a listing."""
    return oplogs_of(collection, _listing)


def _listing(entity_id: str, objects: Objects) -> OplogListing:
    listing = OplogListing(entity_id)
    for info, listed in objects:
        name = ArchiveName.parse(info.name or "") if info.kind is KeyKind.ARCHIVE else None
        if name is not None:
            listing.archives.append(name)
        elif info.seq is not None and info.kind is KeyKind.OPLOG:
            listing.entries[info.seq] = listed
        elif info.seq is not None and ArchiveName.of_mark(info.name or "") is None:
            listing.marks.setdefault(info.seq, []).append(listed)
    return listing
