"""Immutable files of a table, named by their content: `<stem>-<16 hex of the SHA-256>.json`.

Equal content has an equal name, so writing a file that already exists is not a conflict: it is the same file. A file
whose hash does not match its name is damaged. Files are deleted after the last root that named them: those of heads a
week later, others once they are a day old.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Generic, TypeVar, cast

from worm.clock import Clock, iso_seconds
from worm.errors import Corrupt, WormError
from worm.formats import JsonObject, dumps, loads_own, shapes
from worm.store import Object, Read, Store
from worm.tables.root import Piece
from worm.values import dataclass

T = TypeVar("T")
ORPHAN_AGE = timedelta(days=1)
KEPT = timedelta(days=7)
"""How long replaced files of heads stay, for readers of an earlier state (`changed.py`)."""
REPLACED = "_replaced.json"
STAGED = "stage-"
WAITING = shapes.record(
    "when files of heads were replaced",
    {},
    {
        "replaced": shapes.object_of(shapes.TIME),
        "named": shapes.list_of(shapes.TEXT),
        "runs": shapes.list_of(shapes.TIME),
    },
)
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
    found that no root names it. Its age says nothing: a file of any age may have been replaced just now. A file that is
    stored again waits from then on: a root may be about to name it. What a rebuild staged was never part of a table:
    its age decides. Returns the number of deleted files.

    A table that changes every second leaves a million files in a week, most of which lived for seconds. So `REPLACED`
    does not list what waits (see `Waiting`), and the listing is not held. Without `REPLACED`, files wait longer."""
    now, listing = clock.now(), iter(store.list(directory))
    first = next(listing, None)
    named = None if first is None else is_named()
    if first is None or named is None:
        return 0
    known = Waiting.read(store, directory + REPLACED)
    noted, seen, doomed, is_first = dict[str, str](), set[str](), list[str](), False
    for one in chain([first], listing):
        file = one.key.removeprefix(directory)
        if file in named:
            seen.add(file)
        elif file.startswith(STAGED):
            doomed += [file] if one.last_modified < now - ORPHAN_AGE else []
        elif file != REPLACED:
            since = known.since(file, iso_seconds(one.last_modified))
            if since is not None and since <= iso_seconds(now - KEPT):
                doomed.append(file)
            elif file in known.replaced or file in known.named:
                noted[file] = since or iso_seconds(now)
            else:
                is_first = is_first or since is None
    newer = is_named()  # again: a file may have been named during the listing
    if newer is None or dry_run:
        return 0 if newer is None else len(set(doomed) - newer)
    doomed = [file for file in doomed if file not in newer]
    for file in doomed:
        store.delete(directory + file)
    found = Waiting(noted, frozenset(seen | (newer - named)), known.runs_with(now) if is_first else known.runs)
    if found != known:
        store.put(directory + REPLACED, dumps(found.shape()))
    return len(doomed)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the last run left, so that the next one knows since when files wait. `named`: files that the root named.
    `replaced`: files that some run found named, and when a run first found that they no longer are. `runs`: when runs
    found other files that nothing names. Such a file was never named during a run, so it waits since the first run
    after it was stored. What waits since an earlier run than the last `KEPT` is deleted by now."""

    replaced: Mapping[str, str]
    named: frozenset[str]
    runs: tuple[str, ...]

    @classmethod
    def read(cls, store: Store, key: str) -> Waiting:
        found = store.get(key)
        try:
            shape = {} if found is None else loads_own(found.body, key=key)
            shapes.check(shape, WAITING, key)
        except Corrupt:  # the files wait as if they had just been replaced
            shape = {}
        replaced = cast("dict[str, str]", shape.get("replaced", {}))
        named, runs = (cast("list[str]", shape.get(name, [])) for name in ("named", "runs"))
        return cls(replaced, frozenset(named), tuple(sorted(runs)))

    def shape(self) -> JsonObject:
        return {"replaced": dict(self.replaced), "named": [*sorted(self.named)], "runs": [*self.runs]}

    def since(self, file: str, stored: str) -> str | None:
        """When a run first found that no root names the file; None: no run has found that yet. Equal seconds do not
        say which was first."""
        if self.replaced.get(file, "") > stored:
            return self.replaced[file]
        at = len(self.runs) if file in self.named else bisect_right(self.runs, stored)
        return self.runs[at] if at < len(self.runs) else None

    def runs_with(self, now: datetime) -> tuple[str, ...]:
        return (*self.runs[bisect_right(self.runs, iso_seconds(now - KEPT)) :], iso_seconds(now))
