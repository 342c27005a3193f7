"""The two trees of a table: the manifest with its indexes, and the heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from worm.codec.sealed import unseal
from worm.codec.strict_json import JsonValue, dumps_document, loads_own
from worm.collections.collection import Collection
from worm.collections.heads import Heads
from worm.errors import Corrupt
from worm.schema import IndexDef, ModelDef
from worm.store.cas import CasFile
from worm.tables.build import is_stale
from worm.tables.column_files import ColumnFiles, column_files
from worm.tables.index import Index, IndexEntries
from worm.tables.keyed import Gathering
from worm.tables.manifest import Manifest
from worm.tables.pieces import Pieces
from worm.tables.spread import IndexPieces, Piece, Spread, balanced_starts, covering, cut, is_spread
from worm.tables.tree import Tree

POSTINGS_PER_PART = 20_000
HEADS_PER_PART = 1000
HEADS_PARTS_MAX = 100_000
_PART = "part"


class IndexFiles:
    """One index: its file, and the parts of its entries while the table is spread."""

    def __init__(self, collection: Collection, definition: IndexDef) -> None:
        resolver, name = collection.resolver, collection.name
        self.definition = definition
        self.file: CasFile[Index] = CasFile(
            collection.store,
            resolver.index_key(name, definition.field),
            Index.decode,
            Index.encode,
            ids=collection.ids,
            clock=collection.clock,
        )
        self._conflicts: set[str] = set()
        self._of_delta: tuple[Manifest, Index] | None = None
        directory = resolver.index_key(name, definition.field).removesuffix(".json") + "/"
        self.pieces: Pieces[Index] = Pieces(collection.store, directory, Index.decode)

    @property
    def key(self) -> str:
        return self.file.key

    def conflicts(self) -> set[str]:
        """Entry keys that several documents have, as of what was written last. No request."""
        held = self.file.held.value
        return self._conflicts if held is None or held.partitioned else set(held.conflicts)

    def spread(self, index: Index, parts_max: int) -> IndexPieces:
        """Write the entries as parts."""
        self._conflicts = set(index.conflicts)
        keys = sorted(index.entries)
        starts = balanced_starts(keys, parts_wanted(index.postings, parts_max), parts_max)
        parts = (index.part(one) for one in cut(keys, starts))
        pieces = [
            self.put_part(number, start, part) for number, (start, part) in enumerate(zip(starts, parts, strict=True))
        ]
        self.pieces.keep({piece.file for piece in pieces})
        return IndexPieces(index.type, index.unique, tuple(pieces))

    def index_of_delta(self, delta: Manifest) -> Index:
        """What the deltas say, computed once per delta."""
        if self._of_delta is None or self._of_delta[0] is not delta:
            self._of_delta = delta, Index.of(delta, self.definition)
        return self._of_delta[1]

    def put_part(self, number: int, start: str, part: Index) -> Piece:
        return self.pieces.put(f"{_PART}-{number}", part.encode(), part, count=len(part.entries), start=start)

    def read_parts(self, pieces: Sequence[Piece]) -> list[Index]:
        return self.pieces.get([piece.file for piece in pieces])

    def joined(self, root: Spread) -> Index | None:
        """The index of the base, put together from its parts."""
        known = root.indexes.get(self.definition.field)
        if known is None:
            return None
        whole = Index(root.model, self.definition.field, known.type, known.unique, "", 0, {})
        for part in self.read_parts(known.parts):
            whole.entries.update(part.entries)
            whole.conflicts.update(part.conflicts)
        return whole

    def stub(self, index: Index, *, is_split: bool = True) -> None:
        """Before the table is spread, or an index of a spread one is made: whoever reads the index from now on asks the
        table's root. A split raises the revision, so that no fold of before it brings the entries back."""

        def change(stored: Index | None) -> Index | None:
            is_stub = stored is not None and stored.partitioned
            is_newer = stored is not None and stored.revision >= index.revision
            return None if is_stub and (is_newer or not is_split) else index.stub()

        self.file.update(change)

    def is_whole(self) -> bool:
        """Does its file hold entries? Of a spread table it must not: readers would believe them."""
        stored = self.file.read()
        return stored is not None and not stored.partitioned


def parts_wanted(postings: int, parts_max: int) -> int:
    """Into how many parts an index is cut that has so many pairs of a value and an id."""
    return min(parts_max, -(-postings // POSTINGS_PER_PART))


class IndexGathering(Gathering[Manifest]):
    """The indexes of a new base."""

    def __init__(self, indexes: Sequence[IndexFiles], model: ModelDef) -> None:
        self._gathered = [(files, IndexEntries(files.definition)) for files in indexes]
        self._model = model

    def add(self, part: Manifest) -> None:
        for _, entries in self._gathered:
            entries.add(part.entities)

    def completed(self, root: Spread, *, is_split: bool) -> Spread:
        indexes: dict[str, IndexPieces] = {}
        for files, entries in self._gathered:
            index = entries.index(root.model, root.last_updated, root.revision)
            files.stub(index, is_split=is_split)
            indexes[files.definition.field] = files.spread(index, self._model.manifest.max_partitions)
        return replace(root, indexes=indexes, fields=self._model.table_fields(), oplog=self._model.oplog)


class ManifestTree(Tree[Manifest]):
    """`.worm.manifest.json` and `.worm.manifest/`."""

    def __init__(self, collection: Collection) -> None:
        resolver, name = collection.resolver, collection.name
        super().__init__(collection, resolver.manifest_key(name), resolver.manifest_dir(name))
        self.columns = ColumnFiles(collection.store, self.pieces.directory)
        self.pieces.beside = self.columns.put
        self.indexes = [IndexFiles(collection, index) for index in collection.definition.indexes.values()]
        self._settings = collection.definition.manifest
        self.keeps_seqs = collection.definition.oplog

    def decode_root(self, body: bytes, key: str) -> Manifest | Spread:
        shape = unseal(body, key)
        return Spread.of_shape(shape, key) if is_spread(shape) else Manifest.of_shape(shape, key)

    def decode_piece(self, body: bytes, key: str) -> Manifest:
        return Manifest.decode(body, key)

    def joined(self, parts: Iterable[Manifest]) -> Manifest:
        return Manifest.joined(self.collection.name, parts)

    @property
    def threshold(self) -> int:
        return self._settings.partition_threshold

    def ranges(self, count: int) -> tuple[int, int]:
        maximum = self._settings.max_partitions
        return min(maximum, max(2, round(count / self.threshold))), maximum

    def is_stale(self, root: Manifest | Spread) -> bool:
        return is_stale(self.collection, root)

    def finished(self, whole: Manifest, root: Spread) -> Manifest:
        known = replace(whole, fields=root.fields, last_updated=root.last_updated, oplog=root.oplog)
        return known if self.keeps_seqs else replace(known, seqs={}, revision=root.revision)

    def next_revision(self, root: Spread) -> int:
        return root.revision if self.keeps_seqs else root.revision + 1

    def gathering(self) -> Gathering[Manifest]:
        root = self.file.held.value
        is_known = isinstance(root, Spread) and self.knows_partitions(root)
        # What was replaced and is wanted again may be deleted by now.
        self.columns.keep(self.partitions(root) if isinstance(root, Spread) and is_known else ())
        for files in self.indexes:
            files.pieces.keep(set() if root is None else self._index_files(root, files.definition.field))
        return IndexGathering(self.indexes, self.collection.definition)

    def beside(self, partitions: Iterable[Piece]) -> set[str]:
        return column_files(partitions)

    def reformed(self, root: Spread) -> Manifest | Spread:
        """A merge leaves the column files of partitions that stay as they are."""
        self.columns.learn(self.partitions(root))
        return super().reformed(root)

    def forget(self) -> None:
        super().forget()
        self.columns.keep(())
        for files in self.indexes:
            files.pieces.keep(set())

    def lookup(self, files: IndexFiles, root: Spread, keys: Sequence[str]) -> set[str] | None:
        """The ids under the entry keys; None when the root has no such index."""
        known, definition = root.indexes.get(files.definition.field), files.definition
        if known is None or known.type != definition.type:
            return None
        delta = self.delta(root)
        files.pieces.keep({part.file for part in known.parts})
        found: set[str] = set()
        for part in files.read_parts(covering(known.parts, keys)):
            found.update(entity_id for key in keys for entity_id in part.ids_under(key))
        found.difference_update(delta.seqs)
        newer = files.index_of_delta(delta)
        found.update(entity_id for key in keys for entity_id in newer.ids_under(key))
        return found

    def has_all_indexes(self, root: Spread) -> bool:
        """Does the base have exactly the indexes that the schema declares?"""
        declared = {one.definition.field: (one.definition.type, one.definition.unique) for one in self.indexes}
        return declared == {field: (one.type, one.unique) for field, one in root.indexes.items()}

    def lacks_files(self, root: Spread) -> bool:
        if super().lacks_files(root):
            return True
        wanted = {one.definition.field: self._index_files(root, one.definition.field) for one in self.indexes}
        return any(not wanted[one.definition.field] <= one.pieces.listed(f"{_PART}-") for one in self.indexes)

    def audit_columns(self, root: Spread) -> Iterator[tuple[str, str, str]]:
        """What differs between column files and their partitions: kind, key, detail."""
        pieces = [piece for piece in self.partitions(root) if piece.columns]
        return self.columns.audit(pieces, self.pieces.get([piece.file for piece in pieces]))

    def base(self, root: Spread) -> Manifest:
        """The partitions without the deltas: what the parts of the indexes are of."""
        return self.joined(self.pieces.get([piece.file for piece in self.partitions(root)]))

    def collect(self, dry_run: bool) -> int:
        orphans = super().collect(dry_run)
        for files in self.indexes:
            named = partial(self._named_parts, files.definition.field)
            orphans += files.pieces.collect(f"{_PART}-", named, self.collection.clock, dry_run)
        return orphans

    def _named_parts(self, field: str) -> set[str] | None:
        root = self.root()
        return None if root is None else self._index_files(root, field)

    def _index_files(self, root: Manifest | Spread, field: str) -> set[str]:
        pieces = root.indexes.get(field) if isinstance(root, Spread) else None
        return set() if pieces is None else {part.file for part in pieces.parts}

    def describe(self) -> bytes | None:
        """`_meta.json`, for people and their tools: how the manifest is partitioned."""
        root = self.file.held.value
        if not isinstance(root, Spread):
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

    stem = "heads"
    writers = 16

    def __init__(self, collection: Collection) -> None:
        resolver, name = collection.resolver, collection.name
        super().__init__(collection, resolver.heads_key(name), resolver.heads_dir(name))

    def decode_root(self, body: bytes, key: str) -> Heads | Spread:
        shape = loads_own(body, key=key)
        return Spread.of_shape(unseal(body, key), key) if is_spread(shape) else Heads.of_shape(shape, key)

    def decode_piece(self, body: bytes, key: str) -> Heads:
        return Heads.decode(body, key)

    def joined(self, parts: Iterable[Heads]) -> Heads:
        return Heads.joined(self.collection.name, parts)

    @property
    def threshold(self) -> int:
        return self.collection.definition.manifest.partition_threshold

    def ranges(self, count: int) -> tuple[int, int]:
        return -(-count // HEADS_PER_PART), HEADS_PARTS_MAX

    def among(self, ids: Iterable[str]) -> Heads | None:
        try:
            return super().among(ids)
        except Corrupt as damage:
            self.damage = damage
            return None
