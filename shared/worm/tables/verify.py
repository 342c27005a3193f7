"""verify: recompute everything that is derived from the source, and report every difference.

Shares no cache with any writer. Reads, per model: all object versions (listing), all oplog entries, all documents, and
the stored manifest, indexes and heads. For a model with oplog it checks that
- seqs are dense from 1, archived ones included, and every object version has exactly one entry (or is named as skipped
  by one);
- replaying the entries gives the current document exactly;
- manifest and indexes are, byte for byte, what folding the entries gives; heads name the newest entries;
- Parquet files match their partitions;
- no two documents share a unique value, and every claim belongs to a document that has the value;
- documents of a model in a space come from the commits in its log. A document without a commit was put there by
  somebody, and a missing one was deleted by hand or by its own commit: both stay until the next commit writes them.

A document that violates its schema is not a difference: it is listed as `rejected`, with the reason, or as `outgrown`
if it was valid when it was written and the schema has changed since then.

In append mode, every document was written once and still exists. The store's conditions alone cannot guarantee that (a
put-if-absent succeeds again after a delete marker), so listings of versions and entries show what really happened:
- `append-overwritten`: a document has more than one version, or its oplog more than one entry;
- `append-deleted`: a document has a delete marker, as its newest version or between versions;
- `append-removed`: the oplog knows a document, but none of its versions is left.
On a store without versions, only the oplog shows an overwrite, once it is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from worm.collections import Change, Collection, Document, Head, Heads, IdRange, OplogEntry, Seqs, origins
from worm.errors import Corrupt, Invalid
from worm.formats import dumps
from worm.store import NULL_VERSION, Object, Version
from worm.tables.build import Progress, build_manifest, empty_manifest, entity_changes, silent
from worm.tables.index import Index, IndexFiles
from worm.tables.manifest import Manifest
from worm.tables.root import Root
from worm.tables.table import Table


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from the source. `kind` is stable, for scripts."""

    kind: str
    model: str
    key: str
    detail: str


def audit_append(collection: Collection, within: IdRange | None = None) -> list[Difference]:
    """Violations of write-once, keys ascending; empty for a model that is not in append mode. It only reads."""
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
REPAIR = "run `worm repair` to rebuild it"
EXPLAINED = "run `worm why` on this key to see what to do"


@dataclass
class VerifyReport:
    """The result of verifying one model."""

    model: str
    documents: int = 0
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)
    outgrown: dict[str, str] = field(default_factory=dict)
    """Documents that fitted the schema when they were written, but do not fit today's, with the reason."""
    kept: dict[str, str] = field(default_factory=dict)
    """Documents that somebody restored although the log of their space has something else, with what the log has."""

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
        self.kept.update(other.kept)

    def judged(self, collection: Collection, entity_id: str, found: Object) -> Document | None:
        """The document of a stored object, with a note if it does not fit the schema. None: it is rejected."""
        try:
            return collection.documents.parse(entity_id, found)
        except Invalid as mistake:
            document = collection.documents.recorded(found) if collection.was_accepted(entity_id, found) else None
            noted = self.rejected if document is None else self.outgrown
            noted[found.key] = mistake.message
            return document


def verify_collection(collection: Collection, progress: Progress = silent) -> VerifyReport:
    """Verify one model. It only reads."""
    report = VerifyReport(collection.name)
    table = Table(collection)
    if collection.definition.oplog:
        changes = verify_entities(collection, report, progress=progress)
        expected = empty_manifest(collection).folded(changes) or empty_manifest(collection)
        if any(change.damage is not None for change in changes) and table.is_kept:
            # The time of a document that was served before may be later than all current ones.
            stored = table.manifest.root()
            newest = max(expected.last_updated, "" if stored is None else stored.last_updated)
            expected = replace(expected, last_updated=newest)
        _verify_heads(table, changes, report)
    else:
        judge = partial(report.judged, collection)
        expected = build_manifest(collection, carry=table.manifest.read(), judge=judge, progress=progress)
        report.documents = len(expected.etags)
    if table.is_kept:
        _verify_files(table, expected, report)
    for found in collection.claims.audit(expected.entities):
        report.differ(found.kind, found.key, found.detail)
    if collection.definition.mode == "append":
        report.differences += audit_append(collection)
    for kind, key, detail in collection.origins.audit():
        if kind == origins.KEPT:
            report.kept[key] = detail
        else:
            report.differ(kind, key, detail)
    return report


# Entities


def verify_entities(
    collection: Collection, report: VerifyReport, within: IdRange | None = None, progress: Progress = silent
) -> list[Change]:
    """Check documents against their oplogs. Returns the newest state of each, as a rebuild sees it."""
    versions = collection.all_versions(within or IdRange())
    seqs = collection.recorded_seqs(within or IdRange())
    ids = sorted({*versions, *seqs})
    changes: list[Change] = []
    doubtful: list[str] = []
    with ThreadPoolExecutor(THREADS) as pool:
        checks = [_Entity(collection, one, versions.get(one, []), seqs.get(one, Seqs())) for one in ids]
        for done, (change, found) in enumerate(pool.map(_Entity.check, checks), start=1):
            progress(done, len(ids))
            report.add(found)
            if change is not None:
                changes.append(change)
            elif ids[done - 1] in seqs:
                doubtful.append(ids[done - 1])
    changes += entity_changes(collection, doubtful)
    return sorted(changes, key=lambda change: change.id)


class _Entity:
    """The check of one entity."""

    def __init__(self, collection: Collection, entity_id: str, versions: Sequence[Version], seqs: Seqs) -> None:
        self._collection = collection
        self._id = entity_id
        self._versions = versions
        self._seqs = seqs
        self._report = VerifyReport(collection.name)

    def check(self) -> tuple[Change | None, VerifyReport]:
        live = bool(self._versions) and not self._versions[0].is_delete_marker
        self._report.documents = int(live)
        if self._missing() is not None:
            self._seqs = self._collection.oplog.seqs(self._id)  # it may have been archived between two pages
        missing, key = self._missing(), self._collection.oplog.key
        if missing is not None:
            first, last = missing
            what = f"no entry {first}" if first == last else f"no entries {first} to {last}"
            self._report.differ("oplog-gap", key(self._id, min(first, OplogEntry.SEQ_MAX)), f"{what} ({EXPLAINED})")
            self._check_archives()
            return None, self._report
        try:
            last = max(self._seqs.single, default=0)
            entries = list(self._collection.oplog.entries(self._id, last=last)) if last else []
            state = self._replay(entries)
        except Corrupt as damage:
            self._report.differ("oplog-corrupt", damage.key or key(self._id, 1), f"{damage.message} ({EXPLAINED})")
            return None, self._report
        self._report.entries = len(entries)
        self._check_archives()
        self._check_versions(entries)
        self._check_current(state)
        change = Change(self._id, Head.of(entries[-1]), self._collection.row(state)) if entries else None
        return change, self._report

    def _missing(self) -> tuple[int, int] | None:
        """The first gap. Archives count if the schema allows them."""
        has_archives = self._collection.definition.archive_after is not None
        return (self._seqs if has_archives else Seqs(self._seqs.single)).missing

    def _check_archives(self) -> None:
        """Archives that are not needed to read the history, because single entries still exist, are checked too. Only a
        history of more than `every` entries can have archives of ours."""
        oplog = self._collection.oplog
        if len(self._seqs.single) <= oplog.every and not self._seqs.archives:
            return
        for damage in oplog.archives.differences(self._id):
            self._report.differ("archive-differs", damage.key or "", damage.message)
        for name in oplog.archives.names(self._id) if self._collection.definition.archive_after is None else ():
            what = 'the schema has no archiveAfter, so nothing reads it: push the schema with archiveAfter "never"'
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
            after = entry.changed(before, key)
            if dumps(after) != dumps(entry.snapshot):
                raise Corrupt("the document and the diff of a checkpoint disagree", key=key)

    def _check_versions(self, entries: Sequence[OplogEntry]) -> None:
        """Exactly one entry names every version that changed something, or one entry names it as skipped."""
        named = Counter(entry.exact_name for entry in entries if not entry.metadata.get("reverted"))
        skipped = {name for entry in entries for name in _skipped(entry)}
        for version, around in self._surroundings(entries):
            name = version.version_id
            if name is None:
                continue  # the store keeps no versions: only the current document can be checked
            known = named[version.exact_name]
            if known > 1 and name != NULL_VERSION:
                self._report.differ("version-twice", version.key, f"version {name} has {known} entries")
            if known == 0 and name not in skipped and not self._needs_no_entry(version, around):
                self._report.differ("version-unrecorded", version.key, f"version {name} has no oplog entry")

    def _surroundings(self, entries: Sequence[OplogEntry]) -> Iterator[tuple[Version, Sequence[OplogEntry]]]:
        """The versions, oldest first. For each, the last entry for an earlier version (none if there is no such
        version), and the entries after that one, up to the first for a later version. One of these was the newest when
        capture saw the version."""
        first: dict[tuple[str, str], int] = {}
        for at, entry in enumerate(entries):
            first.setdefault(entry.exact_name, at)
        last = {entry.exact_name: at for at, entry in enumerate(entries)}
        ends = [len(entries)]
        for version in self._versions:
            ends.append(first.get(version.exact_name, ends[-1]))
        start = len(entries)
        for version, end in zip(reversed(self._versions), reversed(ends[:-1]), strict=True):
            yield version, entries[start:end]
            start = last.get(version.exact_name, start)

    def _needs_no_entry(self, version: Version, around: Sequence[OplogEntry]) -> bool:
        """Whether capture would have skipped it. A delete marker changes nothing if the history has no document, or has
        deleted it."""
        if version.is_delete_marker:
            return not around or any(entry.op == "delete" for entry in around)
        return self._is_invalid(version) or self._is_late(version, Head.of(around[0]) if around else None)

    def _is_invalid(self, version: Version) -> bool:
        try:
            return not version.is_delete_marker and self._document(version) is None
        except Invalid:
            return True

    def _is_late(self, version: Version, head: Head | None) -> bool:
        """Whether the write landed after the commit that deleted the document. It is then not part of the history."""
        found = None if version.is_delete_marker else self._collection.documents.version(version)
        return found is not None and self._collection.origins.standing(self._id, found, head).is_late

    def _document(self, version: Version) -> Document | None:
        found = self._collection.documents.version(version)
        return None if found is None else self._collection.documents.parse(self._id, found)

    def _check_current(self, state: Document | None) -> None:
        """The newest version and the replay must agree; an invalid newest version does not count."""
        if not self._versions or self._versions[0].is_delete_marker:
            if state is not None:
                key = self._collection.documents.key(self._id)
                self._report.differ("deletion-unrecorded", key, "the document is gone, but its oplog says it exists")
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
    return [str(item.get("versionId")) for item in items if isinstance(item, dict)]


# Tables


def _verify_files(table: Table, expected: Manifest, report: VerifyReport) -> None:
    stored = table.manifest.read()
    if stored is None:
        report.differ(*absence("manifest", table.manifest.key, table.manifest.damage))
    elif stored.encode() != expected.encode():
        report.differ("manifest-differs", table.manifest.key, explain_rows(stored, expected))
    root = table.manifest.held_spread
    if root is not None and stored is not None:
        for found in table.manifest.audit_parquet(root):
            report.differ(*found)
    base = table.manifest.base(root) if root is not None and stored is not None else expected
    for files in table.indexes:
        wanted = Index.of(base, files.definition)
        if root is not None:
            _verify_parts(files, root, wanted.without_common(), report)
        else:
            verify_index(files, wanted, report)


def verify_index(files: IndexFiles, wanted: Index, report: VerifyReport) -> None:
    """Check the index file of a table in one file."""
    index = files.file.read()
    if index is None:
        report.differ(*absence("index", files.key, files.file.held.damage))
    elif index.encode() != wanted.encode():
        report.differ("index-differs", files.key, explain_index(index, wanted))


def _verify_parts(files: IndexFiles, root: Root[Manifest], wanted: Index, report: VerifyReport) -> None:
    """The parts of an index must match the partitions of the manifest; the deltas belong to both."""
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
    """The kind, key and detail for an index file that has entries although the table is partitioned."""
    return "index-differs", files.key, f"has entries although the table is partitioned ({REPAIR})"


def explain_index(index: Index, wanted: Index) -> str:
    wrong = [key for key in index.keys | wanted.keys if _under(index, key) != _under(wanted, key)]
    shown = ", ".join(sorted(wrong)[:DETAILS_MAX]) or f"revision {index.revision}, expected {wanted.revision}"
    return f"{differing(len(wrong), 'value')}: {shown}"


def _under(index: Index, key: str) -> object:
    return index.entries.get(key), index.common.get(key)


def differing(number: int, noun: str) -> str:
    """`1 row differs`, `2 rows differ`."""
    return f"1 {noun} differs" if number == 1 else f"{number} {noun}s differ"


def absence(what: str, key: str, damage: Corrupt | None) -> tuple[str, str, str]:
    """The kind, key and detail for a file that is missing or cannot be read."""
    if damage is None:
        return f"{what}-missing", key, f"there is no {what} ({REPAIR})"
    return f"{what}-damaged", damage.key or key, f"{damage.message} ({REPAIR})"


def explain_rows(stored: Manifest, expected: Manifest) -> str:
    wrong = [
        one
        for one in sorted({*stored.ids(), *expected.ids()})
        if stored.seqs.get(one) != expected.seqs.get(one)
        or stored.entities.get(one) != expected.entities.get(one)
        or stored.etags.get(one) != expected.etags.get(one)
    ]
    if not wrong:
        return f"lastUpdated {stored.last_updated}, revision {stored.revision} differ from the rebuilt ones"
    return f"{differing(len(wrong), 'row')}: {', '.join(wrong[:DETAILS_MAX])}"


def _verify_heads(table: Table, changes: Sequence[Change], report: VerifyReport) -> None:
    stored = table.heads.read() or Heads(table.collection.name)
    if table.heads.damage is not None:
        report.differ(*absence("heads", table.heads.key, table.heads.damage))
        return
    expected = Heads(table.collection.name).folded(changes) or Heads(table.collection.name)
    wrong = wrong_heads(stored, expected)
    if wrong:
        shown = ", ".join(sorted(wrong)[:DETAILS_MAX])
        report.differ("heads-differ", table.heads.key, f"{differing(len(wrong), 'head')}: {shown}")


def wrong_heads(stored: Heads, expected: Heads) -> list[str]:
    """The ids whose heads are wrong. A head of a damaged entity does no harm: it is only a hint."""
    ids = {*stored.heads, *expected.heads} - expected.damaged
    return [one for one in ids if stored.heads.get(one) != expected.heads.get(one)]
