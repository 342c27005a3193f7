"""A table of any size under one root: a whole file while it is small, spread over partitions and deltas when it is not.

The root is one key, changed only by compare-and-swap, in either form; so a split, a merge of deltas and the way back
are one flip each, and a reader sees the table before it or after it. Everything else is immutable (`pieces.py`).

Folding a spread table writes one delta and the root. To keep reads and the root small:
- `DELTAS_MAX` deltas of one level are merged into one of the next level;
- when the deltas hold a quarter of the bytes of the base, they are merged into the base.
Each change is thus written a number of times that does not depend on the size of the table.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Generic

from worm.collections.collection import Collection
from worm.errors import Corrupt
from worm.store.cas import CasFile
from worm.tables.forming import formed, reformed
from worm.tables.keyed import Folding, Gathering, Keyed, Loaded, T
from worm.tables.pieces import Pieces
from worm.tables.settling import merge_base, merge_deltas
from worm.tables.spread import Piece, Spread, covering, cut, decode_directory, encode_directory

BASE_SHARE = 4
READ_ATTEMPTS = 5
PIECES_MAX = 256


class Tree(Generic[T]):
    """One root and its files. Not for several threads at once."""

    stem = "partition"
    keeps_seqs = True
    writers = 2

    def __init__(self, collection: Collection, key: str, directory: str) -> None:
        self.key = key
        self.collection = collection
        self.damage: Corrupt | None = None
        self.file: CasFile[T | Spread] = CasFile(
            collection.store, key, self.decode_root, _encode, ids=collection.ids, clock=collection.clock
        )
        self.pieces: Pieces[T] = Pieces(collection.store, directory, self.decode_piece)
        self._directories: Pieces[tuple[Piece, ...]] = Pieces(collection.store, directory, decode_directory)
        self._loaded: Loaded[T] | None = None
        self._delta: tuple[tuple[str, ...], T] | None = None

    # What a kind of tree says

    @abstractmethod
    def decode_root(self, body: bytes, key: str) -> T | Spread: ...
    @abstractmethod
    def decode_piece(self, body: bytes, key: str) -> T: ...
    @abstractmethod
    def joined(self, parts: Iterable[T]) -> T: ...
    @abstractmethod
    def ranges(self, count: int) -> tuple[int, int]:
        """How many partitions are wanted for so many ids, and how many there may be."""

    @property
    @abstractmethod
    def threshold(self) -> int:
        """The count past which the table is spread."""

    def is_stale(self, root: T | Spread) -> bool:
        return False

    def finished(self, whole: T, root: Spread) -> T:
        """The merged table with what only the root knows."""
        return whole

    def gathering(self) -> Gathering[T]:
        """What belongs to a base beside its partitions (indexes), gathered while they are written."""
        return Gathering()

    def next_revision(self, root: Spread) -> int:
        return root.revision

    def beside(self, partitions: Iterable[Piece]) -> set[str]:
        """Files that lie beside the partitions, under names of their own."""
        return set()

    # Reading

    def root(self) -> T | Spread | None:
        """One conditional GET."""
        found = self.file.read()
        self.damage = self.file.held.damage
        self._met(found)
        return found

    def _met(self, root: T | Spread | None) -> None:
        """Where the table is not spread, files that we remember may be deleted any time."""
        if not isinstance(root, Spread):
            self.forget()

    def forget(self) -> None:
        """Nothing that we read or wrote before is taken for stored."""
        self._loaded = self._delta = None
        self.pieces.keep(set())
        self._directories.keep(set())

    def read(self) -> T | None:
        """The whole table; None where there is none or it is damaged (`damage` says which)."""
        for _ in range(READ_ATTEMPTS):
            root = self.root()
            if not isinstance(root, Spread):
                return root
            etag = self.file.held.etag
            try:
                return self.load(root)
            except Corrupt as damage:
                self.root()
                if self.file.held.etag == etag:  # else it was replaced while we read, and its files may be gone
                    self.damage = damage
                    return None
        return None

    def load(self, root: Spread) -> T:
        """All partitions and deltas, merged; what did not change since the last time is not read again."""
        partitions = self.partitions(root)
        base = tuple(piece.file for piece in partitions)
        loaded = self._loaded
        if loaded is None or loaded.base != base or not loaded.goes_on(root, self.keeps_seqs):
            loaded = Loaded(base, set(), self.joined(self.pieces.get(base)), root.revision)
        news = [piece.file for piece in root.deltas if piece.file not in loaded.deltas]
        if news:
            whole = loaded.whole.merged(self.pieces.get(news))
            loaded = Loaded(base, loaded.deltas | set(news), whole, root.revision)
        self._loaded = loaded
        self.pieces.keep({*base, *(piece.file for piece in root.deltas)})
        return self.finished(loaded.whole, root)

    def parts(self, root: Spread) -> Iterator[T]:
        """The table partition by partition, in the order of ids, holding one at a time."""
        delta = self.delta(root)
        partitions = self.partitions(root)
        slices = cut(delta.ids(), [piece.start for piece in partitions])
        for piece, touched in zip(partitions, slices, strict=True):
            (part,) = self.pieces.get([piece.file])
            yield part.merged([delta.part(touched)])
            self.pieces.keep({one.file for one in root.deltas})

    def among(self, ids: Iterable[str]) -> T | None:
        """What the table knows of some ids, at least."""
        root = self.root()
        if not isinstance(root, Spread):
            return root
        wanted = [piece.file for piece in covering(self.partitions(root), ids)]
        deltas = {piece.file for piece in root.deltas}
        if len(self.pieces) > PIECES_MAX:
            self.pieces.keep({*wanted, *deltas})
        return self.joined(self.pieces.get(wanted)).merged([self.delta(root)])

    def delta(self, root: Spread) -> T:
        """All deltas as one."""
        files = tuple(piece.file for piece in root.deltas)
        if self._delta is None or self._delta[0] != files:
            self._delta = files, self.joined(()).merged(self.pieces.get(files))
        return self._delta[1]

    def partitions(self, root: Spread) -> Sequence[Piece]:
        return root.partitions if root.directory is None else self._directories.get([root.directory.file])[0]

    def knows_partitions(self, root: Spread) -> bool:
        """Can `partitions` tell without a request?"""
        return root.directory is None or not self._directories.missing([root.directory.file])

    def requests(self, root: Spread) -> int:
        """How many files `load` has to read."""
        if root.directory is not None and not self.knows_partitions(root):
            return 1 + root.directory.count + len(root.deltas)
        partitions = tuple(piece.file for piece in self.partitions(root))
        loaded = self._loaded
        deltas = [piece.file for piece in root.deltas]
        if loaded is None or loaded.base != partitions:
            return self.pieces.missing((*partitions, *deltas))
        return self.pieces.missing(file for file in deltas if file not in loaded.deltas)

    # Writing

    def fold(self, fold: Folding[T]) -> T | None:
        """Returns the table where it is whole; of a spread one nothing but the root is read."""

        def change(root: T | Spread | None) -> T | Spread | None:
            self._met(root)
            if root is None:
                return self.formed(fold.anew(None), None)
            if self.is_stale(root):
                return self.formed(fold.anew(self._held_whole(root)), root)
            if not isinstance(root, Spread):
                return fold.onto(root)
            revision = self.next_revision(root)
            delta = fold.delta(revision)
            return root.with_delta(self.put("delta", delta), delta.last_updated, revision)

        stored = self.file.update(change)
        if not isinstance(stored, Spread):
            return stored
        listed = self.partitions(stored) if self.knows_partitions(stored) else ()
        self.pieces.keep({*stored.files(), *(piece.file for piece in listed)})
        return None

    def update(self, change: Callable[[T | None], T | None]) -> T | None:
        """Change the whole table, whatever its form; `change` gives None when it says what it should. A spread one is
        left without deltas. Returns the table as it is stored now."""
        result: T | None = None

        def changed(root: T | Spread | None) -> T | Spread | None:
            nonlocal result
            self._met(root)
            stored = self._held_whole(root)
            wanted = change(stored)
            result = stored if wanted is None else wanted
            if result is None or (wanted is None and not isinstance(root, Spread)):
                return None
            formed = self.formed(result, root)
            return None if isinstance(formed, Spread) and formed == root else formed

        self.file.update(changed)
        return result

    def settle(self, *, force: bool = False, bytes_max: int | None = None) -> bool:
        """Split, merge deltas, merge them into the base, or go back to a whole file: what is due, one flip each.

        `force`: merge every delta. `bytes_max`: leave a base that is larger to somebody with more time. Returns whether
        the base was made anew.
        """
        root = self.file.held.value if self.file.held.etag is not None else self.root()
        if root is not None and not isinstance(root, Spread):
            return root.known > self.threshold and self._split()
        merge_deltas(self)
        root = self.file.held.value
        if not isinstance(root, Spread) or not root.deltas:
            return False
        due = force or root.delta_size * BASE_SHARE >= root.base_size
        is_small = bytes_max is None or root.base_size + root.delta_size <= bytes_max
        return due and is_small and merge_base(self, root)

    def formed(self, whole: T, root: T | Spread | None) -> T | Spread:
        """The root for this table: itself, or a spread one, whose files are written."""
        return formed(self, whole, root)

    def reformed(self, root: Spread) -> T | Spread:
        """The root with every delta merged into the base."""
        return reformed(self, root)

    def reform(self) -> bool:
        """Make the base anew, whether or not that is due. False when another was quicker."""
        root = self.root()
        return isinstance(root, Spread) and merge_base(self, root)

    def lacks_files(self, root: Spread) -> bool:
        """Is a file gone that the root names? Lists the directory."""
        partitions = self.partitions(root)
        wanted = {piece.file for piece in partitions} | root.files() | self.beside(partitions)
        return not wanted <= self.pieces.listed()

    def collect(self, dry_run: bool) -> int:
        """Delete files that no root names any more."""
        return self.pieces.collect("", self._named, self.collection.clock, dry_run)

    def _named(self) -> set[str] | None:
        root = self.root()
        if root is None:
            return None
        if not isinstance(root, Spread):
            return set()
        partitions = self.partitions(root)
        return root.files() | {piece.file for piece in partitions} | self.beside(partitions) | {"_meta.json"}

    def put_directory(self, pieces: Sequence[Piece]) -> Piece:
        body = encode_directory(self.collection.name, pieces)
        directory = self._directories.put("directory", body, tuple(pieces), count=len(pieces))
        self._directories.keep({directory.file})
        return replace(directory, columns=sum(piece.columns for piece in pieces))

    def put(self, stem: str, part: T, *, start: str = "", level: int = 0) -> Piece:
        return self.pieces.put(stem, part.encode(), part, count=part.count, start=start, level=level)

    def _held_whole(self, root: T | Spread | None) -> T | None:
        if not isinstance(root, Spread):
            return root
        try:
            return self.load(root)
        except Corrupt as damage:
            self.damage = damage
            return None

    def carried(self, root: T | Spread | None) -> list[str]:
        if not isinstance(root, Spread):
            return []
        try:
            return [piece.start for piece in self.partitions(root)]
        except Corrupt:
            return []

    # Settling

    def _split(self) -> bool:
        stored = self.file.update(lambda root: None if root is None or isinstance(root, Spread) else self._grown(root))
        return isinstance(stored, Spread)

    def _grown(self, whole: T) -> T | Spread | None:
        formed = self.formed(whole, whole)
        return formed if isinstance(formed, Spread) else None


def _encode(root: Keyed | Spread) -> bytes:
    return root.encode()
