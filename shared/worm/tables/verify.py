"""verify: recompute everything derived from the source, and name every difference.

Shares no cache with any writer. Reads, per model: all object versions (listing), all oplog entries, all documents, and
the stored manifest, indexes and heads. For a model with oplog it checks that
- seqs are dense from 1, archived ones included, and every object version has exactly one entry (or is named as skipped
  by one);
- replaying the entries gives the current document exactly;
- manifest and indexes are, byte for byte, what folding the entries gives; heads name the newest entries;
- column files say what their partitions say;
- no two documents have one unique value, and every claim of one is held by a document that has it;
- documents of a model in a space are of the commits that its log has. A document that is of no commit is somebody's
  own, and one that is missing was deleted by hand or by its own commit: both stay until the next commit writes them.
A document that breaks its schema is no difference: it is listed as `rejected`, with the reason, or as `outgrown` where
it was valid when it was written, and the schema has changed since.

In append mode every document was written once and is still there. The store's conditions alone cannot promise that (a
put-if-absent succeeds again behind a delete marker), so listings of versions and entries tell what really happened:
- `append-overwritten`: a document has more than one version, or its oplog more than one entry;
- `append-deleted`: a delete marker lies on a document, on top or between versions;
- `append-removed`: the oplog knows a document of which no version is left.
On a store without versions only the oplog tells of an overwrite, once it is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from worm.codec.diff import apply as apply_diff
from worm.codec.strict_json import dumps
from worm.collections.claims import audit_claims
from worm.collections.collection import Collection
from worm.collections.entries import Change, Document, Head, Heads, OplogEntry
from worm.collections.id_ranges import IdRange
from worm.errors import Corrupt, Invalid
from worm.store.base import NULL_VERSION, Object, Version
from worm.tables.build import build_manifest, empty_manifest
from worm.tables.index import Index, IndexFiles
from worm.tables.manifest import Manifest
from worm.tables.root import Root
from worm.tables.table import Table


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the source says. `kind` is stable, for scripts."""

    kind: str
    model: str
    key: str
    detail: str


def audit_append(collection: Collection, within: IdRange | None = None) -> list[Difference]:
    """What contradicts write-once, keys ascending; nothing for a model that is not in append mode. Reads only."""
    if collection.definition.mode != "append":
        return []
    versions = collection.all_versions(within or IdRange())
    seqs = collection.recorded_seqs(within or IdRange()) if collection.definition.oplog else {}
    found: list[Difference] = []
    for entity_id in sorted({*versions, *seqs}):
        key = collection.documents.key(entity_id)
        for kind, detail in _findings(versions.get(entity_id, []), len(seqs.get(entity_id, ()))):
            found.append(Difference(kind, collection.name, key, detail))
    return found


def _findings(versions: list[Version], entries: int) -> Iterator[tuple[str, str]]:
    bodies = [version for version in versions if not version.is_delete_marker]
    markers = len(versions) - len(bodies)
    if len(bodies) > 1:
        yield "append-overwritten", f"{len(bodies)} versions instead of one"
    elif entries > 1:
        yield "append-overwritten", f"{entries} oplog entries instead of one"
    if markers:
        yield "append-deleted", f"{markers} delete marker{'s' if markers > 1 else ''}"
    if not bodies:
        yield "append-removed", "no version is left"


__all__ = ["Difference", "VerifyReport", "verify_collection"]

DETAILS_MAX = 5
THREADS = 16
REPAIR = "`worm repair` rebuilds it"
KEPT = "entries are never rewritten: put an earlier version of the object back"


@dataclass
class VerifyReport:
    """What verifying one model found."""

    model: str
    documents: int = 0
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    outgrown: dict[str, str] = field(default_factory=dict)
    """Documents that fitted the schema when they were written and do not fit today's, with the reason."""

    @property
    def is_clean(self) -> bool:
        return not self.differences

    def differ(self, kind: str, key: str, detail: str) -> None:
        self.differences.append(Difference(kind, self.model, key, detail))

    def add(self, other: VerifyReport) -> None:
        self.documents += other.documents
        self.entries += other.entries
        self.differences += other.differences
        self.rejected.update(other.rejected)
        self.outgrown.update(other.outgrown)

    def judged(self, collection: Collection, entity_id: str, found: Object) -> Document | None:
        """The document of a stored object, with a note where it does not fit the schema; None: it is rejected."""
        try:
            return collection.documents.parse(entity_id, found)
        except Invalid as mistake:
            document = collection.documents.recorded(found) if collection.was_accepted(entity_id, found) else None
            noted = self.rejected if document is None else self.outgrown
            noted[found.key] = mistake.message
            return document


def verify_collection(collection: Collection) -> VerifyReport:
    """Verify one model. Reads only."""
    report = VerifyReport(collection.name)
    table = Table(collection)
    if collection.definition.oplog:
        changes = verify_entities(collection, report)
        expected = empty_manifest(collection).folded(changes) or empty_manifest(collection)
        _verify_heads(table, changes, report)
    else:
        judge = partial(report.judged, collection)
        expected = build_manifest(collection, carry=table.manifest.read(), judge=judge)
        report.documents = len(expected.etags)
    if table.is_kept:
        _verify_files(table, expected, report)
    for found in audit_claims(collection.claims, expected.entities):
        report.differ(found.kind, found.key, found.detail)
    if collection.definition.mode == "append":
        report.differences += audit_append(collection)
    for kind, key, detail in collection.origins.audit():
        report.differ(kind, key, detail)
    return report


# Entities


def verify_entities(collection: Collection, report: VerifyReport, within: IdRange | None = None) -> list[Change]:
    """Check documents against their oplogs. Returns the newest state of those whose oplog can be read."""
    versions = collection.all_versions(within or IdRange())
    seqs = collection.recorded_seqs(within or IdRange())
    ids = sorted({*versions, *seqs})
    changes: list[Change] = []
    with ThreadPoolExecutor(THREADS) as pool:
        checks = [_Entity(collection, one, versions.get(one, []), seqs.get(one, set())) for one in ids]
        for change, found in pool.map(_Entity.check, checks):
            report.add(found)
            if change is not None:
                changes.append(change)
    return changes


class _Entity:
    """The check of one entity."""

    def __init__(self, collection: Collection, entity_id: str, versions: Sequence[Version], seqs: set[int]) -> None:
        self._collection = collection
        self._id = entity_id
        self._versions = versions
        self._seqs = seqs
        self._report = VerifyReport(collection.name)

    def check(self) -> tuple[Change | None, VerifyReport]:
        live = bool(self._versions) and not self._versions[0].is_delete_marker
        self._report.documents = int(live)
        gaps = self._gaps()
        if gaps and self._collection.definition.archive_after is not None:
            self._seqs = self._collection.recorded_seqs(IdRange(self._id, f"{self._id}0")).get(self._id, set())
            gaps = self._gaps()  # unless it was archived between two pages of the listing
        if gaps:
            self._report.differ("oplog-gap", self._collection.oplog.key(self._id, gaps[0]), f"no entry {gaps[0]}")
            return None, self._report
        try:
            entries = list(self._collection.oplog.entries(self._id, last=len(self._seqs))) if self._seqs else []
            state = self._replay(entries)
        except Corrupt as damage:
            self._report.differ("oplog-corrupt", damage.key or "", f"{damage.message} ({KEPT})")
            return None, self._report
        self._report.entries = len(entries)
        self._check_archives()
        self._check_versions(entries)
        self._check_current(state)
        change = Change(self._id, Head.of(entries[-1]), self._collection.row(state)) if entries else None
        return change, self._report

    def _gaps(self) -> list[int]:
        return sorted(set(range(1, max(self._seqs, default=0) + 1)) - self._seqs)

    def _check_archives(self) -> None:
        """Archives that are not needed to read the history, because single entries are still there, are checked too.
        Only a history of more than `every` entries has any."""
        oplog = self._collection.oplog
        if len(self._seqs) <= oplog.every:
            return
        for damage in oplog.archives.differences(self._id):
            self._report.differ("archive-differs", damage.key or "", damage.message)
        for name in oplog.archives.names(self._id) if self._collection.definition.archive_after is None else ():
            what = 'the schema has no archiveAfter, so nobody looks for it: push it with archiveAfter "never"'
            self._report.differ("archive-unknown", oplog.archives.key(self._id, name), what)

    def _replay(self, entries: Sequence[OplogEntry]) -> Document | None:
        state: Document | None = None
        for entry in entries:
            key = self._collection.oplog.key(self._id, entry.seq)
            if entry.op == "delete" and (state is None or dumps(entry.snapshot or {}) != dumps(state)):
                raise Corrupt("the snapshot of a delete is not the document before it", key=key)
            self._check_checkpoint(entry, state, key)
            state = entry.applied_to(state, key)
        return state

    def _check_checkpoint(self, entry: OplogEntry, before: Document | None, key: str) -> None:
        if entry.op == "update" and entry.snapshot is not None and before is not None:
            after = apply_diff(before, entry.diff or {}, entry.absent or {})
            if dumps(after) != dumps(entry.snapshot):
                raise Corrupt("the document and the diff of a checkpoint say different things", key=key)

    def _check_versions(self, entries: Sequence[OplogEntry]) -> None:
        """Every version that changed something is named by exactly one entry, or by one as skipped."""
        named = Counter(entry.version_id or NULL_VERSION for entry in entries if not entry.metadata.get("reverted"))
        skipped = {name for entry in entries for name in _skipped(entry)}
        by_version, exists, head = {entry.version_id: entry for entry in entries}, False, None
        for version in reversed(self._versions):
            name = version.version_id
            if name is None:
                continue  # the store keeps no versions: only the current document can be checked
            if named[name] > 1:
                self._report.differ("version-twice", version.key, f"version {name} has {named[name]} entries")
            marks_nothing = version.is_delete_marker and not exists
            if named[name] == 0 and name not in skipped and not marks_nothing:
                if self._is_invalid(version) or self._is_late(version, head):
                    continue
                self._report.differ("version-unrecorded", version.key, f"version {name} has no oplog entry")
            exists = exists if name in skipped else not version.is_delete_marker
            head = Head.of(by_version[name]) if name in by_version else head

    def _is_invalid(self, version: Version) -> bool:
        try:
            return not version.is_delete_marker and self._document(version) is None
        except Invalid:
            return True

    def _is_late(self, version: Version, head: Head | None) -> bool:
        """A write that landed after the commit that deleted the document: not part of the history."""
        found = None if version.is_delete_marker else self._collection.documents.version(version)
        return found is not None and self._collection.origins.is_late(self._id, found, head)

    def _document(self, version: Version) -> Document | None:
        found = self._collection.documents.version(version)
        return None if found is None else self._collection.documents.parse(self._id, found)

    def _check_current(self, state: Document | None) -> None:
        """The newest version and the replay say the same; an invalid newest version counts for nothing."""
        if not self._versions or self._versions[0].is_delete_marker:
            if state is not None:
                key = self._collection.documents.key(self._id)
                self._report.differ("deletion-unrecorded", key, "the document is gone, its oplog says it is there")
            return
        latest = self._versions[0]
        try:
            found = self._collection.documents.version(latest)
        except Invalid as reason:
            self._report.rejected[latest.key] = reason.message
            return
        document = None if found is None else self._report.judged(self._collection, self._id, found)
        if latest.key in self._report.rejected:
            return
        if state is None:
            self._report.differ("document-unrecorded", latest.key, "the oplog does not know the document")
        elif document is not None and dumps(document) != dumps(state):
            self._report.differ("replay-differs", latest.key, "replaying the oplog does not give the document")


def _skipped(entry: OplogEntry) -> list[str]:
    listed = entry.metadata.get("skipped")
    items = listed if isinstance(listed, list) else []
    return [str(item["versionId"]) for item in items if isinstance(item, dict)]


# Tables


def _verify_files(table: Table, expected: Manifest, report: VerifyReport) -> None:
    stored = table.manifest.read()
    if stored is None:
        report.differ(*absence("manifest", table.manifest.key, table.manifest.damage))
    elif stored.encode() != expected.encode():
        report.differ("manifest-differs", table.manifest.key, explain_rows(stored, expected))
    root = table.manifest.held_spread
    if root is not None and stored is not None:
        for found in table.manifest.audit_columns(root):
            report.differ(*found)
    base = table.manifest.base(root) if root is not None and stored is not None else expected
    for files in table.indexes:
        wanted = Index.of(base, files.definition)
        if root is not None:
            _verify_parts(files, root, wanted, report)
        else:
            verify_index(files, wanted, report)


def verify_index(files: IndexFiles, wanted: Index, report: VerifyReport) -> None:
    """The file of an index of a whole table."""
    index = files.file.read()
    if index is None:
        report.differ(*absence("index", files.key, files.file.held.damage))
    elif index.encode() != wanted.encode():
        report.differ("index-differs", files.key, explain_index(index, wanted))


def _verify_parts(files: IndexFiles, root: Root[Manifest], wanted: Index, report: VerifyReport) -> None:
    """The parts of an index say what the partitions of the manifest say; the deltas belong to both."""
    if files.is_whole():
        report.differ(*beside_parts(files))
        return
    try:
        index = files.joined(root)
    except Corrupt as damage:
        report.differ(*absence("index", files.key, damage))
        return
    if index is None:
        report.differ(*absence("index", files.key, None))
    elif index != replace(wanted, last_updated="", revision=0):
        report.differ("index-differs", files.key, explain_index(index, wanted))


def beside_parts(files: IndexFiles) -> tuple[str, str, str]:
    """Kind, key and detail of an index file that is whole, though the table is not."""
    return "index-differs", files.key, f"holds entries, though the table is partitioned ({REPAIR})"


def explain_index(index: Index, wanted: Index) -> str:
    keys = {*index.entries, *wanted.entries}
    wrong = [key for key in keys if index.entries.get(key) != wanted.entries.get(key)]
    shown = ", ".join(sorted(wrong)[:DETAILS_MAX]) or f"revision {index.revision}, expected {wanted.revision}"
    return f"{differing(len(wrong), 'value')}: {shown}"


def differing(number: int, noun: str) -> str:
    """`1 row differs`, `2 rows differ`."""
    return f"1 {noun} differs" if number == 1 else f"{number} {noun}s differ"


def absence(what: str, key: str, damage: Corrupt | None) -> tuple[str, str, str]:
    """Kind, key and detail of something that is not there, or cannot be read."""
    if damage is None:
        return f"{what}-missing", key, f"there is no {what} ({REPAIR})"
    return f"{what}-damaged", damage.key or key, f"{damage.message} ({REPAIR})"


def explain_rows(stored: Manifest, expected: Manifest) -> str:
    ids = {*stored.entities, *expected.entities, *stored.seqs, *expected.seqs}
    wrong = [
        one
        for one in sorted(ids)
        if stored.seqs.get(one) != expected.seqs.get(one) or stored.entities.get(one) != expected.entities.get(one)
    ]
    if not wrong:
        return f"lastUpdated {stored.last_updated}, revision {stored.revision}: not as rebuilt"
    return f"{differing(len(wrong), 'row')}: {', '.join(wrong[:DETAILS_MAX])}"


def _verify_heads(table: Table, changes: Sequence[Change], report: VerifyReport) -> None:
    stored = table.heads.read() or Heads(table.collection.name)
    expected = {change.id: change.head for change in changes if change.head is not None}
    wrong = [one for one in {*stored.heads, *expected} if stored.heads.get(one) != expected.get(one)]
    if wrong:
        shown = ", ".join(sorted(wrong)[:DETAILS_MAX])
        report.differ("heads-differ", table.heads.key, f"{differing(len(wrong), 'head')}: {shown}")
