"""A table of any size under one root: one file while it is small, partitions and deltas when it is large.

The root is one key, changed only by compare-and-swap, in either form; so a split, a merge of deltas and the way back
are one swap each, and a reader sees the table before or after it. Everything else is immutable (`pieces.py`).
`layout.py` computes the result of a change; `Tree.publish` stores it: new files first, then the root that names them. A
writer that loses the race for the root leaves files that no root names; they are collected later.

Folding a partitioned table writes one delta and the root. To keep reads and the root small:
- `DELTAS_MAX` deltas of one level are merged into one of the next level;
- when the deltas hold a quarter of the bytes of the base, they are merged into the base.
So the number of times that a change is written does not depend on the size of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Generic

from worm.collections import Collection, Heads
from worm.errors import Corrupt
from worm.formats import JsonValue, dumps_document
from worm.store import CasFile, in_parallel
from worm.tables.index import CUT_KEY, PART, IndexFiles
from worm.tables.layout import (
    FOLD_BYTES,
    PARTITION_BYTES,
    SPREAD_BYTES,
    Edit,
    EditStream,
    HeadsLayout,
    Layout,
    ManifestLayout,
    NewFiles,
    News,
    T,
    folded,
    formed,
    merged_deltas,
    rebased,
    remade,
)
from worm.tables.manifest import MadeRows, Manifest
from worm.tables.parquet import lake_columns
from worm.tables.parquet_part import ParquetFiles
from worm.tables.pieces import NewFile, Pieces, collect_orphans, collect_replaced
from worm.tables.root import By, Counted, Piece, Root, check, covering, cut, decode_directory
from worm.values import dataclass

BASE_SHARE = 4
DELTAS_MAX = 8
READ_ATTEMPTS = 5
PARQUET_PREFIX = "partition-"
PIECES_MAX = 256


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A partitioned table in memory: the base with the deltas merged into it."""

    base: tuple[str, ...]
    deltas: set[str]
    whole: T
    revision: int

    def goes_on(self, root: Root[T], keeps_seqs: bool) -> bool:
        """Whether it is part of what this root names. A rebuilt table counts its revisions from the start. Without
        seqs, nothing undoes the content of a delta that is in the base by now, or nowhere."""
        named = {piece.file for piece in root.deltas}
        return root.revision >= self.revision and (keeps_seqs or self.deltas <= named)


class Tree(Generic[T]):
    """One root and its files. Not thread-safe."""

    def __init__(self, collection: Collection, key: str, directory: str, layout: Layout[T]) -> None:
        self.key = key
        self.collection = collection
        self.layout = layout
        self.damage: Corrupt | None = None
        self.file: CasFile[Root[T]] = CasFile(
            collection.store, key, layout.decode_root, _encode, ids=collection.ids, clock=collection.clock
        )
        self.pieces: Pieces[T] = Pieces(collection.store, directory, layout.decode)
        self._directories: Pieces[tuple[Piece, ...]] = Pieces(collection.store, directory, decode_directory)
        self._loaded: Loaded[T] | None = None
        self._delta: tuple[tuple[str, ...], T] | None = None

    # Hooks for trees with additional files

    def forget(self) -> None:
        """Forget what we read or wrote: none of it counts as stored."""
        self._loaded = self._delta = None
        self.pieces.keep(set())
        self._directories.keep(set())

    def before_base(self, root: Root[T] | None) -> None:
        """Called before a new base is made: a replaced file that is needed again may be deleted by now."""

    # Reading

    def root(self) -> Root[T] | None:
        """One conditional GET."""
        found = self.file.read()
        self.damage = self.file.held.damage
        self._met(found)
        return found

    @property
    def held_spread(self) -> Root[T] | None:
        """The root as it was last read or written, if the table is partitioned. No request."""
        root = self.file.held.value
        return root if root is not None and root.is_spread else None

    def _met(self, root: Root[T] | None) -> None:
        """If the table is not partitioned, files that we remember may be deleted at any time."""
        if root is None or not root.is_spread:
            self.forget()

    def is_stale(self, made: MadeRows) -> bool:
        return self.layout.is_stale(made)

    def read(self) -> T | None:
        """The whole table; None if there is none or it is damaged (`damage` says which)."""
        for _ in range(READ_ATTEMPTS):
            root = self.root()
            if root is None or not root.is_spread:
                return None if root is None else root.whole
            etag = self.file.held.etag
            try:
                return self.load(root)
            except Corrupt as damage:
                self.root()
                if self.file.held.etag == etag:  # otherwise it was replaced while we read, and its files may be gone
                    self.damage = damage
                    return None
        return None

    def load(self, root: Root[T]) -> T:
        """All partitions and deltas, merged; unchanged files are not read again."""
        partitions = self.partitions(root)
        base = tuple(piece.file for piece in partitions)
        loaded = self._loaded
        if loaded is None or loaded.base != base or not loaded.goes_on(root, self.layout.keeps_seqs):
            loaded = Loaded(base, set(), self.layout.joined(self.pieces.get(base)), root.revision)
        news = [piece.file for piece in root.deltas if piece.file not in loaded.deltas]
        if news:
            whole = loaded.whole.merged(self.pieces.get(news))
            loaded = Loaded(base, loaded.deltas | set(news), whole, root.revision)
        self._loaded = loaded
        self.pieces.keep({*base, *(piece.file for piece in root.deltas)})
        return self.layout.finished(loaded.whole, root)

    def parts(self, root: Root[Counted]) -> Iterator[T]:
        """The table partition by partition, in the order of ids, holding one at a time."""
        delta = self.delta(root)
        partitions = self.partitions(root)
        slices = cut(delta.ids(), [piece.start for piece in partitions])
        for piece, touched in zip(partitions, slices, strict=True):
            (part,) = self.pieces.get([piece.file])
            yield part.merged([delta.part(touched)])
            self.pieces.keep({one.file for one in root.deltas})

    def among(self, ids: Iterable[str]) -> T | None:
        """What the table knows about some ids, and maybe others. None if there is none, or if it is damaged
        (`damage`)."""
        try:
            return self._among(ids)
        except Corrupt as damage:
            self.damage = damage
            return None

    def _among(self, ids: Iterable[str]) -> T | None:
        root = self.root()
        if root is None or not root.is_spread:
            return None if root is None else root.whole
        wanted = [piece.file for piece in covering(self.partitions(root), ids)]
        deltas = {piece.file for piece in root.deltas}
        if len(self.pieces) > PIECES_MAX:
            self.pieces.keep({*wanted, *deltas})
        return self.layout.joined(self.pieces.get(wanted)).merged([self.delta(root)])

    def delta(self, root: Root[Counted]) -> T:
        """All deltas as one."""
        files = tuple(piece.file for piece in root.deltas)
        if self._delta is None or self._delta[0] != files:
            self._delta = files, self.layout.joined(()).merged(self.pieces.get(files))
        return self._delta[1]

    def partitions(self, root: Root[Counted]) -> Sequence[Piece]:
        return root.partitions if root.directory is None else self._directories.get([root.directory.file])[0]

    def knows_partitions(self, root: Root[Counted]) -> bool:
        """Whether `partitions` can answer without a request."""
        return root.directory is None or not self._directories.missing([root.directory.file])

    def keep(self, root: Root[Counted], files: set[str]) -> None:
        """Forget what was read, except for these files and the directory of the root."""
        self.pieces.keep(files)
        self._directories.keep(set() if root.directory is None else {root.directory.file})

    # Publishing

    def publish(self, change: Callable[[Root[T] | None], Edit[T] | EditStream[T] | None]) -> Root[T] | None:
        """Apply a change until it is stored, or until there is nothing to change. Returns the root that is stored now.

        Each attempt reads what the change needs, computes the result, stores the files that are not known to be stored,
        and swaps the root. If it loses the race, it starts again from the newer root.
        """

        def swapped(root: Root[T] | None) -> Root[T] | None:
            self._met(root)
            made = change(root)
            if made is None:
                return None
            edit = self.stored(made)
            if edit.root.is_spread and edit.root == root:
                return None
            check(root, edit.root, edit.by, listed=self._listed(edit), key=self.key)
            return edit.root

        return self.file.update(swapped)

    def stored(self, made: Edit[T] | EditStream[T], keep: set[str] | None = None) -> Edit[T]:
        """Store the files of a change, and those of a stream as they come. `keep`: files whose content stays in memory
        (None: all)."""
        if isinstance(made, Edit):
            self._store(made.files)
            return made
        while True:
            try:
                self._store(next(made))
            except StopIteration as end:
                edit: Edit[T] = end.value
                return edit
            if keep is not None:
                self.pieces.keep(keep)

    def _store(self, files: NewFiles[T]) -> None:
        in_parallel(self.put_file, files.pieces)
        if files.directory is not None:
            self._directories.keep({self._directories.put(files.directory).file})

    def put_file(self, new: NewFile[T]) -> Piece:
        return self.pieces.put(new)

    def put(self, stem: str, part: T, *, start: str = "", level: int = 0) -> Piece:
        return self.put_file(self.layout.new_file(stem, part, start=start, level=level))

    def _listed(self, edit: Edit[T]) -> Sequence[Piece]:
        """The partitions of a new base; for an unchanged base, only those that the root itself names."""
        is_new = edit.by in ("base", "source") and self.knows_partitions(edit.root)
        return self.partitions(edit.root) if is_new else edit.root.partitions

    # Changes

    def fold(self, read: Callable[[], News[T]], build: Callable[[T | None], T]) -> tuple[Root[T], bool]:
        """`read` returns the current news of the fold. `build` makes the table from its source if there is none or it
        is stale. Returns the root that is stored now, and whether its base was rebuilt: from the source, or because one
        file would have been rewritten for a small change. For a partitioned table, only the root is read."""
        is_new = False

        def change(root: Root[T] | None) -> Edit[T] | EditStream[T] | None:
            nonlocal is_new
            is_new = root is None or self.is_stale(root)
            if root is not None and not is_new:
                news = read()
                is_new = self._is_much_larger(root, news)
                return self._spread(root, news) if is_new else folded(self.layout, root, news)
            built, news = build(self._held_whole(root)), read()
            return self._formed(news.onto(built) or built, root, "source")

        stored = self.publish(change)
        assert stored is not None
        if stored.is_spread:
            self._keep_some(stored)
        return stored, is_new

    def _is_much_larger(self, root: Root[T], news: News[T]) -> bool:
        """Whether it is one file, and much larger than the news of a fold."""
        size = self.file.held.size
        return not root.is_spread and size > max(FOLD_BYTES, BASE_SHARE * len(news.delta(0).encode()))

    def _spread(self, root: Root[T], news: News[T]) -> EditStream[T] | None:
        """The table with the news, partitioned, so that the next folds need not rewrite it."""
        whole = None if root.whole is None else news.onto(root.whole)
        return None if whole is None else self._formed(whole, root, "base", spread=True)

    def _keep_some(self, root: Root[T]) -> None:
        """What stays parsed from one fold to the next: everything of a small table; only the newest deltas of a large
        one, which are merged soon."""
        if root.size <= PARTITION_BYTES:
            listed = self.partitions(root) if self.knows_partitions(root) else ()
            self.pieces.keep({*root.files(), *(piece.file for piece in listed)})
            return
        newest = list(reversed(root.deltas))
        sizes = accumulate(piece.size for piece in newest)
        self.pieces.keep({piece.file for piece, size in zip(newest, sizes, strict=True) if size <= PARTITION_BYTES})
        self._loaded = self._delta = None

    def update(self, wish: Callable[[T | None], T | None]) -> T | None:
        """Change the whole table, in either form, as its source says; `wish` returns None if it already matches. A
        partitioned table is left without deltas. Returns the table as it is stored now."""
        result: T | None = None

        def change(root: Root[T] | None) -> EditStream[T] | None:
            nonlocal result
            stored = self._held_whole(root)
            wanted = wish(stored)
            result = stored if wanted is None else wanted
            if result is None or (wanted is None and root is not None and not root.is_spread):
                return None
            return self._formed(result, root, "source")

        self.publish(change)
        return result

    def tidy(self, *, is_quiet: bool = False, force: bool = False, bytes_max: int | None = None) -> bool:
        """Split, merge deltas, merge them into the base, or go back to one file: whatever is due, one swap each.

        `is_quiet`: a table that is small enough becomes one file. `force`: merge every delta too.
        `bytes_max`: leave a larger base to a process with more time. Returns whether the base was rebuilt.
        """
        root = self.file.held.value if self.file.held.etag is not None else self.root()
        if root is not None and root.whole is not None:
            is_large = self.file.held.size > SPREAD_BYTES
            return (is_large or root.whole.known > self.layout.threshold) and self._split()
        self._merge_deltas()
        root = self.held_spread
        if root is None:
            return False
        is_quiet = is_quiet or force
        is_due = force or root.delta_size * BASE_SHARE >= root.base_size
        is_small = bytes_max is None or root.size <= bytes_max
        if not is_small or (not (is_quiet and self.layout.may_be_whole(root)) and not (root.deltas and is_due)):
            return False
        return self._merge_base(root, is_quiet=is_quiet)

    def reform(self) -> bool:
        """Rebuild the base, whether or not that is due. False if another writer was faster."""
        root = self.root()
        return root is not None and root.is_spread and self._merge_base(root, is_quiet=True)

    def reformed(self, root: Root[T], *, is_quiet: bool) -> Root[T]:
        """The root with every delta merged into the base; its files are stored as they come (`layout.EditStream`). The
        result is one file if the table is quiet and small enough, or so small that every fold may rewrite it."""
        layout = self.layout
        ids, weights = list[str](), list[int]()
        for part in self.parts(root):
            some = layout.finished(part, root).ids()
            ids += some
            weights += map(part.weight, some)
        if (is_quiet or root.size <= FOLD_BYTES) and layout.is_whole(len(ids), sum(weights)):
            return self.stored(self._formed(self.load(root), root, "base")).root
        starts = layout.starts(ids, weights, self.carried(root))
        self.before_base(self.file.held.value)
        return self.stored(remade(layout, root, self.parts(root), starts), keep=root.files()).root

    def _formed(self, whole: T, root: Root[T] | None, by: By, *, spread: bool = False) -> EditStream[T]:
        """The root for this table, from what is in memory."""
        self.before_base(self.file.held.value)
        return formed(self.layout, whole, root, self.carried(root), by, spread=spread)

    def _split(self) -> bool:
        def grown(root: Root[T] | None) -> EditStream[T] | None:
            whole = None if root is None else root.whole
            if whole is None:
                return None
            weight = sum(map(whole.weight, whole.ids()))
            is_small = self.layout.is_whole(whole.known, weight)
            return None if is_small else self._formed(whole, root, "base")

        stored = self.publish(grown)
        return stored is not None and stored.is_spread

    def _merge_deltas(self) -> None:
        """While a level is full, merge it into one delta of the next level. A delta that would be too large is left to
        the next base."""
        while (root := self.held_spread) is not None and (full := root.full_level(DELTAS_MAX)):
            if sum(piece.size for piece in full) > PARTITION_BYTES:
                return
            first, *others = self.pieces.get([piece.file for piece in full])
            merged = self.layout.new_file("delta", first.merged(others), level=full[0].level + 1)
            self.publish(partial(merged_deltas, gone=full, merged=merged))

    def _merge_base(self, start: Root[T], *, is_quiet: bool) -> bool:
        """Make a new base from the base and the deltas of `start`. False if another writer was faster."""
        base = self.reformed(start, is_quiet=is_quiet)
        is_ours = False

        def change(root: Root[T] | None) -> Edit[T] | None:
            nonlocal is_ours
            edit = rebased(self.layout, root, start, base)
            is_ours = edit is not None
            return edit

        self.publish(change)
        return is_ours

    def _held_whole(self, root: Root[T] | None) -> T | None:
        if root is None or not root.is_spread:
            return None if root is None else root.whole
        try:
            return self.load(root)
        except Corrupt as damage:
            self.damage = damage
            return None

    def carried(self, root: Root[T] | None) -> list[str]:
        """The first ids of the existing partitions."""
        try:
            return [] if root is None else [piece.start for piece in self.partitions(root)]
        except Corrupt:
            return []

    # Missing files, and files that no root names

    def lacks_files(self, root: Root[T]) -> bool:
        """Whether a file that the root names is gone, or it is unknown which files it names. Lists the directory."""
        try:
            partitions = self.partitions(root)
        except Corrupt:
            return True
        wanted = {piece.file for piece in partitions} | root.files()
        return not wanted <= self.pieces.listed()

    def collect(self, dry_run: bool) -> int:
        """Delete files that no root names."""
        return self.pieces.collect("", self.named, self.collection.clock, dry_run)

    def named(self) -> set[str] | None:
        """The files that the root names; None: there is no root."""
        root = self.root()
        if root is None:
            return None
        if not root.is_spread:
            return set()
        try:
            partitions = self.partitions(root)
        except Corrupt:
            return None  # nothing is deleted while the named files are unknown
        return root.files() | {piece.file for piece in partitions} | {"_meta.json"}


def _encode(root: Root[T]) -> bytes:
    return root.encode() if root.whole is None else root.whole.encode()


class ManifestTree(Tree[Manifest]):
    """`.worm.manifest.json` and `.worm.manifest/`, Parquet files of its partitions, and the indexes."""

    def __init__(self, collection: Collection) -> None:
        resolver, name = collection.resolver, collection.name
        key, directory = resolver.manifest_key(name), resolver.manifest_dir(name)
        self.parquet = ParquetFiles(collection.store, resolver.lake_dir(name), lake_columns(collection.definition))
        self.indexes = [IndexFiles(collection, index) for index in collection.definition.indexes.values()]
        super().__init__(collection, key, directory, ManifestLayout(collection.definition, self.parquet.drafted))

    def put_file(self, new: NewFile[Manifest]) -> Piece:
        super().put_file(new)
        if new.beside is not None:
            self.parquet.put(new.piece.file, new.beside)
        return new.piece

    def _store(self, files: NewFiles[Manifest]) -> None:
        super()._store(files)
        for new in files.indexes:
            next(one for one in self.indexes if one.definition.field == new.index.field).put(new)

    def before_base(self, root: Root[Manifest] | None) -> None:
        self.parquet.keep(self.partitions(root) if root is not None and self.knows_partitions(root) else ())
        for files in self.indexes:
            files.pieces.keep(set() if root is None else root.index_files(files.definition.field))

    def reformed(self, root: Root[Manifest], *, is_quiet: bool) -> Root[Manifest]:
        """A merge keeps the Parquet files of unchanged partitions."""
        self.parquet.learn(self.partitions(root))
        return super().reformed(root, is_quiet=is_quiet)

    def forget(self) -> None:
        super().forget()
        self.parquet.keep(())
        for files in self.indexes:
            files.pieces.keep(set())

    def lookup(self, files: IndexFiles, root: Root[Manifest], keys: Sequence[str]) -> set[str] | None:
        """The ids under the entry keys; None if the root has no such index, or if a value is common. If no rows were
        cut, no part is read for them."""
        known, definition = root.indexes.get(files.definition.field), files.definition
        if known is None or known.type != definition.type:
            return None
        delta = self.delta(root)
        files.pieces.keep({part.file for part in known.parts})
        found: set[str] = set()
        stored = [key for key in keys if key != CUT_KEY or root.cut]
        for part in files.read_parts(covering(known.parts, stored)):
            if any(key in part.common for key in stored):
                return None
            found.update(entity_id for key in keys for entity_id in part.ids_under(key))
        found.difference_update(delta.seqs)
        newer = files.index_of_delta(delta)
        found.update(entity_id for key in keys for entity_id in newer.ids_under(key))
        return found

    def has_all_indexes(self, root: Root[Manifest]) -> bool:
        """Whether the base has exactly the indexes that the schema declares."""
        declared = {one.definition.field: (one.definition.type, one.definition.unique) for one in self.indexes}
        return declared == {field: (one.type, one.unique) for field, one in root.indexes.items()}

    def lacks_files(self, root: Root[Manifest]) -> bool:
        return (
            super().lacks_files(root)
            or not self.parquet.files(self.partitions(root)) <= self.parquet.listed()
            or any(not root.index_files(one.definition.field) <= one.pieces.listed(f"{PART}-") for one in self.indexes)
        )

    def audit_parquet(self, root: Root[Manifest]) -> Iterator[tuple[str, str, str]]:
        """The differences between Parquet files and their partitions: kind, key, detail."""
        pieces = [piece for piece in self.partitions(root) if piece.parquet]
        return self.parquet.audit(pieces, self.pieces.get([piece.file for piece in pieces]))

    def base(self, root: Root[Manifest]) -> Manifest:
        """The partitions without the deltas: the index parts cover exactly these."""
        return self.layout.joined(self.pieces.get([piece.file for piece in self.partitions(root)]))

    def collect(self, dry_run: bool) -> int:
        orphans, clock = super().collect(dry_run), self.collection.clock
        for files in self.indexes:
            named = partial(self.named_parts, files.definition.field)
            orphans += files.pieces.collect(f"{PART}-", named, clock, dry_run)
        parquet = self.parquet
        if self.collection.definition.lake is not None:  # the log of the Delta table names more of them (`lake.upkeep`)
            return orphans
        return orphans + collect_orphans(
            self.collection.store, parquet.directory, PARQUET_PREFIX, self.named_parquet, clock, dry_run
        )

    def named_parquet(self) -> set[str] | None:
        """The Parquet files of the partitions that the root names; None: there is no root, or it is unknown."""
        root = self.root()
        try:
            return None if root is None else self.parquet.files(self.partitions(root)) if root.is_spread else set()
        except Corrupt:
            return None

    def named_parts(self, field: str) -> set[str] | None:
        """The files of an index that the root names; None: there is no root."""
        root = self.root()
        return None if root is None else root.index_files(field)

    def describe(self) -> bytes | None:
        """`_meta.json`, for people and their tools: how the manifest is partitioned."""
        root = self.held_spread
        if root is None:
            return None
        partitions: list[JsonValue] = [piece.shape() for piece in self.partitions(root)]
        return dumps_document(
            {
                "partitionCount": len(partitions),
                "partitionBy": "id_range",
                "totalCount": root.count,
                "lastUpdated": root.last_updated,
                "partitions": partitions,
            }
        )


class HeadsTree(Tree[Heads]):
    """`.worm.heads.json` and `.worm.heads/`. Only hints: damage costs requests, not answers."""

    def __init__(self, collection: Collection) -> None:
        resolver, name = collection.resolver, collection.name
        layout = HeadsLayout(collection.definition)
        super().__init__(collection, resolver.heads_key(name), resolver.heads_dir(name), layout)

    def named(self) -> set[str] | None:
        """Also the copy of a table in one file that a state of it may name (`changed.py`): while the table does not
        change, its readers do not store the copy again."""
        named, root = super().named(), self.file.held.value
        if named is None or root is None or root.whole is None:
            return named
        return {self.layout.partition(0, "", root.whole).piece.file}

    def collect(self, dry_run: bool) -> int:
        store, clock = self.collection.store, self.collection.clock
        return collect_replaced(store, self.pieces.directory, self.named, clock, dry_run)
