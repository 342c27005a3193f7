"""Immutable files of a table, named by their content: `<stem>-<16 hex of the SHA-256>.json`.

Equal content has an equal name, so writing a file that already exists is not a conflict: it is the same file. A file
whose hash does not match its name is damaged. Files are deleted after the last root that named them: those of heads a
week later, others once they are a day old.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar, cast

from worm.clock import Clock, iso_seconds
from worm.codec.shapes import TIME, check_shape, object_of
from worm.codec.strict_json import JsonObject, dumps, loads_own
from worm.errors import Corrupt, WormError
from worm.store.base import Object, Read, Store
from worm.tables.root import Piece
from worm.values import dataclass

T = TypeVar("T")
ORPHAN_AGE = timedelta(days=1)
KEPT = timedelta(days=7)
"""How long replaced files of heads stay, for readers of an earlier state (`changed.py`)."""
REPLACED = "_replaced.json"
STAGED = "stage-"
HASH_DIGITS = 16


@dataclass(frozen=True, slots=True)
class NewFile(Generic[T]):
    """A file before it is stored: its description in a root, its bytes, and their meaning. `beside`: the bytes of its
    Parquet file, if that is not known to be stored either."""

    piece: Piece
    body: bytes
    value: T
    beside: bytes | None = None


def new_file(stem: str, body: bytes, value: T, *, count: int, start: str = "", level: int = 0) -> NewFile[T]:
    file = f"{stem}-{hashlib.sha256(body).hexdigest()[:HASH_DIGITS]}.json"
    return NewFile(Piece(file, count, len(body), start, level), body, value)


class Pieces(Generic[T]):
    """The files of one directory. Files that were read or written stay parsed until `keep` forgets them."""

    def __init__(self, store: Store, directory: str, decode: Callable[[bytes, str], T]) -> None:
        self.directory = directory
        self._store = store
        self._decode = decode
        self._known: dict[str, T] = {}

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._known)

    def key(self, file: str) -> str:
        return self.directory + file

    def put(self, new: NewFile[T]) -> Piece:
        """Write the file unless it is known to exist. Unconditional: any earlier writer wrote the same bytes."""
        file = new.piece.file
        if file not in self._known:
            self._store.put(self.key(file), new.body)
            self._known[file] = new.value
        return new.piece

    def get(self, files: Sequence[str]) -> list[T]:
        """Concurrent reads of those not known yet; `Corrupt` if one is gone or damaged."""
        unknown = [file for file in dict.fromkeys(files) if file not in self._known]
        found = self._store.get_many([Read(self.key(file)) for file in unknown])
        for file, item in zip(unknown, found, strict=True):
            if isinstance(item, Exception):
                raise item
            self._known[file] = self._parsed(file, item)
        return [self._known[file] for file in files]

    def missing(self, files: Iterable[str]) -> int:
        """How many of them would have to be read."""
        return sum(file not in self._known for file in files)

    def listed(self, prefix: str = "") -> set[str]:
        """The existing files."""
        return {one.key.removeprefix(self.directory) for one in self._store.list(self.directory + prefix)}

    def keep(self, files: set[str]) -> None:
        """Forget all others."""
        self._known = {file: value for file, value in self._known.items() if file in files}

    def collect(self, prefix: str, is_named: Callable[[], set[str] | None], clock: Clock, dry_run: bool) -> int:
        """Delete files that no root names. Returns the number."""
        return collect_orphans(self._store, self.directory, prefix, is_named, clock, dry_run)

    def gone(self, file: str) -> WormError:
        """The error for a file that does not exist."""
        return Corrupt("a file of the table is gone", key=self.key(file), hint="run `worm repair` to rebuild it")

    def _parsed(self, file: str, found: Object | None) -> T:
        if found is None:
            raise self.gone(file)
        if not file.endswith(f"-{hashlib.sha256(found.body).hexdigest()[:HASH_DIGITS]}.json"):
            raise Corrupt("its content does not match its name", key=found.key, hint="run `worm repair` to rebuild it")
        return self._decode(found.body, found.key)


def collect_orphans(
    store: Store, directory: str, prefix: str, is_named: Callable[[], set[str] | None], clock: Clock, dry_run: bool
) -> int:
    """Delete files that no root names and that are older than the slowest possible writer. Returns the number.

    The root is read after the listing: a listed file that it does not name will not be named soon. Without a root
    (`is_named` gives None), nothing is deleted: a writer may be about to write one.
    """
    before = clock.now() - ORPHAN_AGE
    listed = [one for one in store.list(directory + prefix) if one.last_modified < before]
    if not listed:
        return 0
    named = is_named()
    if named is None:
        return 0
    orphans = [one.key for one in listed if one.key.removeprefix(directory) not in named]
    for key in () if dry_run else orphans:
        store.delete(key)
    return len(orphans)


def collect_replaced(
    store: Store, directory: str, is_named: Callable[[], set[str] | None], clock: Clock, dry_run: bool
) -> int:
    """`collect_orphans` for files that readers of an earlier state need: a file is deleted `KEPT` after a run first
    found that no root names it. Its age says nothing: a file of any age may have been replaced just now. `REPLACED` has
    the files that wait and since when; without it, they wait longer. A file that is stored again waits from then on: a
    root may be about to name it. What a rebuild staged was never part of a table: its age decides. Returns the number
    of deleted files."""
    listed = {one.key.removeprefix(directory): one for one in store.list(directory)}
    named = is_named() if listed else None
    if named is None:
        return 0
    since, now = _waiting(store, directory + REPLACED), clock.now()
    unnamed = sorted(listed.keys() - named - {REPLACED})
    waiting = {
        file: max(since.get(file, iso_seconds(now)), iso_seconds(listed[file].last_modified))
        for file in unnamed
        if not file.startswith(STAGED)
    }
    doomed = {file for file, moment in waiting.items() if moment <= iso_seconds(now - KEPT)}
    staged = (file for file in unnamed if file.startswith(STAGED))
    doomed |= {file for file in staged if listed[file].last_modified < now - ORPHAN_AGE}
    if dry_run:
        return len(doomed)
    for file in sorted(doomed):
        store.delete(directory + file)
    left: JsonObject = {file: moment for file, moment in waiting.items() if file not in doomed}
    if left != since:
        store.put(directory + REPLACED, dumps(left))
    return len(doomed)


def _waiting(store: Store, key: str) -> dict[str, str]:
    found = store.get(key)
    try:
        shape = {} if found is None else loads_own(found.body, key=key)
        check_shape(shape, object_of(TIME), key)
    except Corrupt:  # the files wait as if they had just been replaced
        return {}
    return cast("dict[str, str]", shape)
