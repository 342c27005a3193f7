"""A table: the manifest, indexes and heads of one collection, and the fold that keeps them up to date.

Order of writes: manifest, indexes, heads. Each is one compare-and-swap per batch, each idempotent by itself:
- manifest and heads apply a change only if its seq is newer than theirs;
- an index is computed from a manifest and written only if its stored revision is lower;
- heads come last: everything in them has reached manifest and indexes.
A crash between two of them leaves the batch's messages in the queue, and folding them again finishes the work.

A table larger than `partitionThreshold` is spread over files (`tree.py`). Its fold writes one delta to the manifest,
which the indexes share, and one to the heads. Merges that are due follow right after it, if they are small enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import cast

from worm.collections import Change, Collection, Heads
from worm.errors import Corrupt, Denied, Invalid, Unavailable
from worm.formats import IndexDef, JsonValue, loads_own, shapes
from worm.store import CasFile, in_chunks
from worm.tables.build import (
    DocumentNews,
    Progress,
    RecordedNews,
    build_manifest,
    entity_changes,
    heads_anew,
    manifest_anew,
    read_rows,
    recorded_changes,
    silent,
    whole_heads,
)
from worm.tables.index import CUT_KEY, Index, IndexFiles, entry_key
from worm.tables.manifest import Manifest, is_stale
from worm.tables.parts import RawPart
from worm.tables.root import Counted, whole_root
from worm.tables.tree import HeadsTree, ManifestTree
from worm.tables.view import PartFiles, TableView

COUNTED = shapes.record("a sentinel", {}, {"count": shapes.WHOLE})
ROUNDS_MAX = 10
HEADS_BYTES_MAX = 128 << 20
"""About a million heads, which take 630 MB of memory, and as many ids of the oplog beside them."""
UNKNOWN_AT_ONCE = 5_000
Mapped = Callable[[Callable[[str], str | None], Iterable[str]], Iterable[str | None]]
"""As `map` does, in order."""


class Table:
    """Derived files of one collection, cached by etag. For one thread at a time (`Session.table_lock`)."""

    TIDY_BYTES_MAX = 64 << 20
    """A worker merges bases up to this size right after its fold."""
    SWEEP_BYTES_MAX = 512 << 20
    """The sweep merges larger ones, as far as its memory allows (about four times the base); even larger ones are left
    to rebuilds."""
    RUSH_BYTES_MAX = 8 << 20
    """While many change sets wait, a worker only merges bases up to this size: a merge takes as long as many folds, and
    two workers on one table would both do it. Deltas of a larger base are merged when the rush is over."""

    def __init__(self, collection: Collection) -> None:
        self._begin(collection)

    def begin_again(self) -> None:
        """Called in a forked child: another thread of the parent may have been in the middle of a change."""
        collection = self.collection
        self.__dict__.clear()
        self._begin(collection)

    def _begin(self, collection: Collection) -> None:
        self.collection = collection
        self._definition = collection.definition
        self.heads = HeadsTree(collection)
        self._view: TableView | None = None
        self._is_invalidated = False
        self._distrusted: str | None = None
        """The etag of a manifest that a reader found damaged."""
        self.told_behind: str | None = None
        """The etag of a manifest that a status check found to be behind: only a listing shows that."""
        self.lacks_saves = False
        """Whether others have saved what the table lacks and this session may not write."""
        self.damaged: dict[str, Corrupt] = {}
        """Why histories cannot be continued, by id, as the last rebuild found. Their documents are served."""

    # Capture only reads heads; the rest is created for the first fold or query.

    @cached_property
    def manifest(self) -> ManifestTree:
        return ManifestTree(self.collection)

    @cached_property
    def sentinel(self) -> CasFile[bytes]:
        return self._plain(self.collection.resolver.collection_sentinel_key(self.collection.name))

    def sentinel_count(self) -> int | None:
        """The number of documents according to the collection's sentinel, as of the last fold; only for estimates. None
        if no fold maintains it, or if it is damaged: it is only a note."""
        if not self.collection.definition.oplog and not self.is_kept:
            return None
        stored, key = self.sentinel.read(), self.sentinel.key
        try:
            shape = {} if stored is None else loads_own(stored, key)
            shapes.check(shape, COUNTED, key)
        except Corrupt:
            return None
        return cast("int | None", shape.get("count"))

    @cached_property
    def _meta(self) -> CasFile[bytes]:
        return self._plain(self.manifest.pieces.key("_meta.json"))

    @cached_property
    def _part_files(self) -> PartFiles:
        return PartFiles(self.manifest)

    @property
    def indexes(self) -> list[IndexFiles]:
        return self.manifest.indexes

    @property
    def is_kept(self) -> bool:
        """Whether folds maintain the manifest."""
        return self._definition.folds_manifest

    @property
    def attempts(self) -> int:
        """How many compare-and-swaps this table has tried."""
        files = [one.file for one in self.indexes]
        return self.manifest.file.attempts + self.heads.file.attempts + sum(file.attempts for file in files)

    def conflicts(self) -> dict[str, list[str]]:
        """By unique field, the entry keys that several documents have, as of the last fold or merge."""
        found = {files.definition.field: sorted(files.conflicts()) for files in self.indexes}
        return {field: keys for field, keys in found.items() if keys}

    # Reading

    def view(self, fields: Sequence[str] = ()) -> TableView | None:
        """The table as of now: one conditional GET. None if there is none, or if it is damaged, stale or behind.
        `fields`: the fields that will be used first. A view may turn out to be damaged later: then call `distrust`."""
        if not self._definition.keeps_manifest or self.lacks_saves:
            return None
        if self._is_invalidated:
            self.rebuild()
            self._is_invalidated = False
        file = self.manifest.file
        file.refresh()
        if self._view is None or self._view.etag != file.etag:
            self._view = self._opened(file.undecoded, fields)
        view = self._view
        if view is None or view.etag == self._distrusted or is_stale(self._definition, view):
            return None
        return view if self._definition.manifest.auto_update or not self._is_behind(view) else None

    def distrust(self, damage: Corrupt) -> bool:
        """Called after a reader of the view found damage: there is no view until the manifest changes. False: the
        damage is not in the manifest."""
        tree = self.manifest
        is_of_manifest = damage.key is not None and damage.key.startswith((tree.key, tree.pieces.directory))
        if is_of_manifest:
            tree.damage, self._distrusted = damage, tree.file.etag
        return is_of_manifest

    def _opened(self, body: bytes | None, fields: Sequence[str]) -> TableView | None:
        """The view of the manifest that was read last. A manifest in one file is not parsed for that, but opened as
        bytes."""
        tree = self.manifest
        stored = None if body is None else RawPart.of_root(body, tree.key, fields)
        if body is not None and stored is not None:
            tree.damage = None
            root = whole_root(self.collection.name, stored, stored.fields, stored.oplog)
            return TableView(tree, self._part_files, root, tree.file.etag, len(body))
        held = tree.file.held
        tree.damage = held.damage
        return None if held.value is None else TableView(tree, self._part_files, held.value, held.etag, held.size)

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str] | None:
        """The ids of the rows that have one of the values in the indexed field; None: the index cannot answer now."""
        files = next((one for one in self.indexes if one.definition == index), None)
        if files is None or self.lacks_saves or not self._definition.manifest.auto_update:
            return None
        keys = (*dict.fromkeys(map(entry_key, values)), CUT_KEY)
        is_open = self.manifest.file.undecoded is not None  # a manifest in one file; no parsing needed to know that
        if is_open or self.manifest.held_spread is None:
            found = files.file.read()
            if found is not None and not found.partitioned:
                same = (found.type, found.unique) == (index.type, index.unique)
                is_behind = self._view is not None and found.revision < self._view.revision
                return {one for key in keys for one in found.ids_under(key)} if same and not is_behind else None
        return self._ids_in_parts(files, keys)

    def _ids_in_parts(self, files: IndexFiles, keys: Sequence[str]) -> set[str] | None:
        root = self.manifest.root()
        if root is None or not root.is_spread or self.manifest.is_stale(root):
            return None
        try:
            return self.manifest.lookup(files, root, keys)
        except Corrupt as damage:  # the planner scans instead; `worm verify` and `worm repair` report it
            self.manifest.damage = damage
            return None

    def _is_behind(self, view: TableView) -> bool:
        """Without `autoUpdate`: whether anything changed since the manifest was built."""
        if self._definition.oplog:
            heads = (self.heads.read() or Heads(self.collection.name)).heads
            return view.seqs != {one: head.seq for one, head in heads.items() if one not in view.etags}
        latest = self.collection.latest_versions()
        return view.etags != {one: version.etag for one, version in latest if not version.is_delete_marker}

    # Folding

    def fold(self, changes: Sequence[Change], *, bytes_max: int = TIDY_BYTES_MAX, builds: bool = True) -> None:
        """Fold recorded changes of a model with an oplog. A base larger than `bytes_max` is not merged. `builds` False:
        neither is one with files that are gone or damaged, and it is not built again."""
        if self.is_kept:
            self._fold_rows(changes)
            self.tidy(bytes_max=bytes_max, builds=builds)
        news_of_heads = RecordedNews(Heads(self.collection.name), changes)
        heads, _ = self.heads.fold(lambda: news_of_heads, lambda stored: self._first_heads(changes))
        self._tidy_heads(bytes_max, builds=builds)
        if not heads.is_spread:
            self.keep_sentinel(heads)

    def _fold_rows(self, changes: Sequence[Change]) -> None:
        news = RecordedNews(Manifest(self.collection.name), changes)
        root, is_new = self.manifest.fold(lambda: news, lambda stored: build_manifest(self.collection))
        if root.whole is not None:
            self._fold_indexes(root.whole)
        elif is_new:
            self.follow()

    def tidy_folded(self, *, bytes_max: int) -> None:
        """After a fold that left larger bases alone: do the due merges of manifest and heads."""
        if self.is_kept:
            self.tidy(bytes_max=bytes_max)
        self._tidy_heads(bytes_max)

    def _first_heads(self, changes: Sequence[Change]) -> Heads:
        """If there are no heads: find out whether these changes are all there is, or the file was lost."""
        seqs: dict[str, int] = {}
        for change in changes:
            seqs[change.id] = max(seqs.get(change.id, 0), 0 if change.head is None else change.head.seq)
        listed = ((info.id or "", info.seq or 0) for info, _ in self.collection.oplog_objects())
        is_partial = any(entity_id not in seqs or seq > seqs[entity_id] for entity_id, seq in listed)
        return Heads(self.collection.name, partial=is_partial)

    def serve(self, ids: Iterable[str], *, bytes_max: int = TIDY_BYTES_MAX) -> None:
        """Update the rows of damaged entities as a rebuild would: from their current documents. A partitioned table is
        rebuilt for that if it is not larger than `bytes_max`; a larger one is updated by the next rebuild."""
        damaged = sorted(set(ids))
        if not self.is_kept or not damaged:
            return
        root = self.manifest.root()
        if root is None or self.manifest.is_stale(root) or (root.is_spread and root.size > bytes_max):
            return
        known = self.manifest.among(damaged)
        if known is not None and known.folded(entity_changes(self.collection, damaged)) is not None:
            self.manifest.update(
                lambda stored: None if stored is None else stored.folded(entity_changes(self.collection, damaged))
            )
            self.follow()

    def complete_heads(self) -> None:
        """After the file was lost and all documents were read: add the entities that the documents could not show,
        because none of their versions is left."""
        root = self.heads.file.held.value
        stored = self.heads.read() if root is not None and root.size <= HEADS_BYTES_MAX else None
        if stored is None or not stored.partial:
            return  # larger heads stay partial until the next rebuild
        missing = self.collection.recorded_seqs().keys() - {*stored.heads, *stored.damaged}
        changes = entity_changes(self.collection, missing)
        if self.is_kept and not self.must_be_built():
            self._fold_unknown(changes)
        self.heads.update(lambda stored: None if stored is None else whole_heads(stored, changes))

    def _fold_unknown(self, changes: Sequence[Change]) -> None:
        """Fold those of the changes that the manifest lacks: a process may have died between an entry and its fold, and
        nothing would find it once the heads have the entry."""
        for some in in_chunks((change for change in changes if change.head is not None), UNKNOWN_AT_ONCE):
            known = self.manifest.among(change.id for change in some)
            seqs = {} if known is None else known.seqs
            newer = [one for one in some if one.head is not None and one.head.seq > seqs.get(one.id, 0)]
            if newer:
                self._fold_rows(newer)
            if self.manifest.held_spread is not None:
                self.manifest.pieces.keep(set())

    def fold_documents(
        self,
        ids: Iterable[str],
        mapped: Mapped = map,
        denied: dict[str, Denied] | None = None,
        *,
        builds: bool = True,
    ) -> None:
        """Fold current documents of a model without an oplog. Documents that changed in the meantime are folded
        again. `mapped` asks for their etags, one after the other or in parallel. `denied`: see `read_rows`. `builds`:
        see `fold`."""
        pending = set(ids)
        if not self.is_kept:
            return
        for _ in range(ROUNDS_MAX):
            pending = self._fold_current(pending, mapped, denied, builds)
            if not pending:
                return
        raise Unavailable(
            f"documents changed during each of {ROUNDS_MAX} folds",
            key=self.manifest.key,
            hint="try again; the queue retries by itself",
        )

    def _fold_current(self, ids: set[str], mapped: Mapped, denied: dict[str, Denied] | None, builds: bool) -> set[str]:
        """Fold the documents as they are now; returns the ids that changed in the meantime."""
        etags: dict[str, str | None] = {}

        def read() -> DocumentNews:
            rows = read_rows(self.collection, ids, denied=denied)
            etags.update({entity_id: found.etag for entity_id, found in rows.items()})
            return DocumentNews(self.collection.name, rows)

        root, is_new = self.manifest.fold(read, lambda stored: build_manifest(self.collection, carry=stored))
        if root.whole is not None:
            # A new manifest counts its revisions from the start: an old index would look newer than it is.
            (self._replace_indexes if is_new else self._fold_indexes)(root.whole)
        elif is_new:
            self.follow()
        self.tidy(bytes_max=self.TIDY_BYTES_MAX, builds=builds)
        if not root.is_spread:
            self.keep_sentinel(root)
        found = zip(etags.items(), mapped(self._etag, etags), strict=True)
        return {entity_id for (entity_id, etag), now in found if now != etag}

    def tidy(
        self, *, is_quiet: bool = False, force: bool = False, bytes_max: int | None = None, builds: bool = True
    ) -> bool:
        """Do the due splits and merges of the manifest's files. `force`: leave no delta. False: one of its files is
        gone or damaged, so the table must be built from the source, but `builds` is False."""
        try:
            is_new = self.manifest.tidy(is_quiet=is_quiet, force=force, bytes_max=bytes_max)
        except Corrupt:
            if builds:
                self.rebuild()
            return builds
        if is_new:
            self.follow()
        return True

    def _tidy_heads(self, bytes_max: int, *, is_quiet: bool = False, builds: bool = True) -> None:
        try:
            self.heads.tidy(is_quiet=is_quiet, bytes_max=bytes_max)
        except Corrupt:  # only hints, so they must not block anything
            if builds:
                self._rebuild_lost_heads()

    # Building

    def rebuild(self, progress: Progress = silent) -> Manifest | None:
        """Rebuild manifest, indexes and heads from the source, while folds go on. Rows without a source disappear."""
        self.manifest.forget()
        self.heads.forget()
        if not self._definition.oplog:
            return self._rebuild_from_documents(progress)
        changes = list(recorded_changes(self.collection, progress))
        self.damaged = {change.id: change.damage for change in changes if change.damage is not None}
        manifest = self.rebuild_manifest(changes) if self._definition.keeps_manifest else None
        self.rebuild_heads(changes)
        return manifest

    def rebuild_manifest(self, changes: Sequence[Change]) -> Manifest:
        """Rebuild manifest and indexes from the newest state of every entity in the source."""
        manifest = self.manifest.update(lambda stored: manifest_anew(self.collection, stored, changes))
        assert manifest is not None
        self.follow()
        return manifest

    def rebuild_heads(self, changes: Sequence[Change]) -> None:
        self.keep_sentinel(self.heads.update(lambda stored: heads_anew(self.collection, stored, changes)))

    def _rebuild_lost_heads(self) -> None:
        """With the manifest: it may lack entries, and nothing would find them once the heads have them."""
        if self.is_kept:
            self.rebuild()
        else:
            self.heads.forget()
            self.rebuild_heads(list(recorded_changes(self.collection)))

    def complete(self, *, builds: bool = True, lists: bool = True) -> bool:
        """Create what is missing and do due merges; existing files are left to the folds. `lists`: look for files that
        somebody deleted. `builds` False: a table that must be built from the source is left as it is, and the result is
        False."""
        is_whole = not self.is_kept or self._complete_manifest(builds, lists)
        if self.is_kept and is_whole:
            is_whole = self.tidy(is_quiet=True, bytes_max=self.SWEEP_BYTES_MAX, builds=builds)
        root = self.heads.held_spread
        if root is not None:
            lacks = lists and self.heads.lacks_files(root)
            if lacks and builds:
                self._rebuild_lost_heads()
            is_whole = is_whole and (builds or not lacks)
            self._tidy_heads(self.SWEEP_BYTES_MAX, is_quiet=True, builds=builds)
        return is_whole

    def must_be_built(self) -> bool:
        """Whether a fold would build the manifest from the source: there is none, or the schema changed."""
        root = self.manifest.root() if self.is_kept else None
        return self.is_kept and (root is None or self.manifest.is_stale(root))

    def _complete_manifest(self, builds: bool, lists: bool) -> bool:
        root = self.manifest.root()
        lacks = root is not None and root.is_spread and lists and self.manifest.lacks_files(root)
        if root is None or lacks or self.manifest.is_stale(root):
            if builds:
                self.rebuild()
            return builds
        if root.whole is not None:
            # The revision does not change with the row of a damaged entity, so it cannot show that the index is
            # outdated.
            (self._replace_indexes if root.whole.etags and root.oplog else self._fold_indexes)(root.whole)
            self._revive_indexes(root.whole)
            self._lower_indexes(root.whole)
        elif not self.manifest.has_all_indexes(root) or any(files.is_whole() for files in self.indexes):
            self.manifest.reform()
            self.follow()
        else:
            self._describe()
        return True

    def collect(self, *, dry_run: bool = False) -> int:
        """Delete files that no root has named for a day. Returns the number."""
        orphans = self.manifest.collect(dry_run) if self._definition.keeps_manifest else 0
        return orphans + (self.heads.collect(dry_run) if self._definition.oplog else 0)

    def rebuild_index(self, files: IndexFiles) -> Index:
        """Rebuild one index from the manifest, which is built if there is none."""
        manifest = self.manifest.read()
        if manifest is None or self.manifest.is_stale(manifest):
            manifest = self.rebuild()
            assert manifest is not None
        elif self.manifest.held_spread is not None:
            self.manifest.forget()
            self.manifest.update(lambda stored: None)
        else:
            self._replace_indexes(manifest, [files])
        return Index.of(manifest, files.definition)

    def invalidate(self) -> None:
        """Remove the manifest: our next query, or the next fold or sweep of any process, rebuilds it."""
        self.collection.store.delete(self.manifest.key)
        self._is_invalidated = True

    def _rebuild_from_documents(self, progress: Progress) -> Manifest | None:
        if not self._definition.keeps_manifest:
            return None

        def anew(stored: Manifest | None) -> Manifest | None:
            built = build_manifest(self.collection, carry=stored, progress=progress)
            return None if built is stored else built

        manifest = self.manifest.update(anew)
        assert manifest is not None
        self.follow()
        return manifest

    # What follows the manifest

    def follow(self) -> None:
        """Called after the manifest was rebuilt, in one file or partitioned."""
        root = self.manifest.file.held.value
        if root is not None and root.whole is not None:
            self._replace_indexes(root.whole)
        else:
            self._describe()
        self.keep_sentinel(root)

    def _fold_indexes(self, manifest: Manifest) -> None:
        """Write the index files that belong to an older manifest."""
        for files in self.indexes:
            files.fold(manifest)

    def _replace_indexes(self, manifest: Manifest, indexes: Sequence[IndexFiles] | None = None) -> None:
        """After a rebuild, an index may even have to go back (a row without a source raised its revision). A concurrent
        fold may have written a newer index before us, so the manifest is checked again."""
        for files in self.indexes if indexes is None else indexes:
            files.replace(manifest)
        newest = self.manifest.root()
        if newest is not None and newest.whole is not None and newest.revision != manifest.revision:
            self._fold_indexes(newest.whole)

    def _revive_indexes(self, manifest: Manifest) -> None:
        """For a table that became one file again, if a process died before it updated the indexes. If the table is
        partitioned again by now, the file of the index must say so again."""
        for files in self.indexes:
            stub = files.file.held.value
            if stub is not None and stub.partitioned and stub.revision <= manifest.revision:
                self._replace_indexes(manifest, [files])
                self.manifest.root()
                if self.manifest.held_spread is not None:
                    files.stub(stub)

    def _lower_indexes(self, manifest: Manifest) -> None:
        """For a table that was built again, if a process died before it updated the indexes. Without an oplog, a table
        counts its revisions from the start, so an old index looks newer than it is."""
        held = [files.file.held.value for files in self.indexes]
        if any(index is not None and index.revision > manifest.revision for index in held):
            self._replace_indexes(manifest)

    def _describe(self) -> None:
        wanted = self.manifest.describe()
        self._meta.update(lambda stored: None if stored == wanted else wanted)

    def keep_sentinel(self, counted: Counted | None) -> None:
        """Count and time, for people who look into the bucket; nothing depends on them. For a partitioned table, they
        are as of the last merge."""
        if counted is not None:
            wanted = self.collection.resolver.collection_sentinel(
                self.collection.name, count=counted.count, last_modified=counted.last_updated or None
            )
            self.sentinel.update(lambda stored: None if stored == wanted else wanted)

    def _etag(self, entity_id: str) -> str | None:
        """As `read_rows` sees it: a document that cannot be a valid one, because of its size or because the store
        refuses to send it, counts as absent."""
        try:
            info = self.collection.store.head(self.collection.documents.key(entity_id))
        except Invalid:
            return None
        return None if info is None or info.size > self.collection.max_bytes else info.etag

    def _plain(self, key: str) -> CasFile[bytes]:
        store, ids, clock = self.collection.store, self.collection.ids, self.collection.clock
        return CasFile(store, key, lambda body, _: body, lambda body: body, ids=ids, clock=clock)
