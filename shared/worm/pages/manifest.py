"""What the root says of pages: branches, their live layers, what is applied, what may still be read.

One root decides for all branches, so that a flush, a compaction, a collection and a new branch are ordered by
compare-and-swap of one object. It is the member `pages` of `manifest.json` (`journal/root.py`).

LSNs are those of the database: a branch's own log counts from 1, and `base`, where it was forked, is added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from worm.clock import Clock, Ids
from worm.codec.strict_json import JsonObject
from worm.errors import Corrupt, Fenced, NotFound, SnapshotExpired
from worm.log.keys import DbKeys
from worm.log.root import BY_HAND, Root, root_file
from worm.pages.config import PageConfig
from worm.store.base import Store

MEMBER = "pages"
MAIN = "main"
MARKS_MAX = 512
Count = Annotated[int, Field(ge=0)]


class _Part(BaseModel):
    """A part of the root."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Layer(_Part):
    """A live layer. `path` is below the database's directory. `level`: 0 flushed, 1 merged, 2 image.

    Of a delta, `low` to `high` are the pages that it has, and the LSNs are those that it has. An image says what is in
    every page from `start` up to `end` (None: to the last) as of `high_lsn`; what it does not have does not exist.
    """

    path: str
    level: Annotated[int, Field(ge=0, le=2)]
    low: str
    high: str
    low_lsn: Count
    high_lsn: Count
    size: Count
    index: Count
    sha256: str
    pages: Count
    versions: Count
    raw: Count
    start: str = ""
    end: str | None = None
    filter: str | None = None

    @property
    def is_image(self) -> bool:
        return self.level == 2

    def spans(self, page: str) -> bool:
        """May it know something about the page?"""
        if self.level == 2:
            return self.start <= page and (self.end is None or page < self.end)
        return self.low <= page <= self.high

    def overlaps(self, start: str, end: str | None) -> bool:
        """Does it touch the pages from `start` up to `end`?"""
        if self.level == 2:
            return (end is None or self.start < end) and (self.end is None or start < self.end)
        return (end is None or self.low < end) and start <= self.high


class Mark(_Part):
    """At this time of the store the log was written up to this LSN and slot."""

    ms: int
    lsn: Count
    slot: Count


class Dropped(_Part):
    """A layer that no read needs any more; deleted when it is old enough."""

    path: str
    ms: int


class Pin(_Part):
    """A reader needs this LSN until then (milliseconds of the store's time)."""

    branch: str
    lsn: Count
    until: int


class Written(_Part):
    """Bytes since the beginning: pages as they were written, and what was stored for them."""

    applied: Count = 0
    flushed: Count = 0
    merged: Count = 0
    images: Count = 0


class Branch(_Part):
    """One line of history. `id` is the name of its directory, empty for main. `slot` and `lsn`: applied up to there.
    Below `horizon` only pinned states and forks can be read. `closing`: it is being deleted, and nobody may write."""

    id: str = ""
    parent: str | None = None
    base: Count = 0
    slot: Count = 0
    lsn: Count = 0
    horizon: Count = 0
    closing: bool = False
    created: str = ""
    layers: tuple[Layer, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    marks: tuple[Mark, ...] = ()
    written: Written = Written()

    def marked(self, mark: Mark) -> tuple[Mark, ...]:
        """The marks with a new one. Times never go back; when there are too many, every other old one goes."""
        newest = self.marks[-1].ms if self.marks else 0
        marks = (*self.marks, mark.model_copy(update={"ms": max(mark.ms, newest)}))
        if len(marks) > MARKS_MAX:
            half = MARKS_MAX // 2
            marks = (*marks[:half:2], *marks[half:])
        return marks


class Pages(_Part):
    """The whole."""

    format: Literal[1] = 1
    config: PageConfig = PageConfig()
    branches: Mapping[str, Branch] = {MAIN: Branch()}
    pins: Mapping[str, Pin] = {}
    compaction: Count = 0

    def branch(self, name: str) -> Branch:
        found = self.branches.get(name)
        if found is None:
            known = ", ".join(sorted(self.branches))
            raise NotFound(f"there is no branch {name!r}", hint=f"there are: {known}")
        return found

    def with_branch(self, name: str, branch: Branch) -> Pages:
        return self.model_copy(update={"branches": {**self.branches, name: branch}})

    def children(self, name: str) -> dict[str, Branch]:
        return {child: branch for child, branch in self.branches.items() if branch.parent == name}

    def lineage(self, name: str, lsn: int) -> Iterator[tuple[str, Branch, int]]:
        """The branch and its ancestors, each with the LSN up to which it counts for a read at `lsn`."""
        current: str | None = name
        while current is not None:
            branch = self.branch(current)
            if lsn > branch.base or branch.parent is None:
                yield current, branch, lsn
            lsn = min(lsn, branch.base)
            current = branch.parent

    def points(self, name: str) -> set[int]:
        """LSNs of a branch that must stay readable whatever its horizon: forks and pins."""
        forks = {branch.base for branch in self.children(name).values()}
        return forks | {pin.lsn for pin in self.pins.values() if pin.branch == name}

    def check_readable(self, name: str, lsn: int) -> None:
        """`SnapshotExpired` if what the read needs may be gone."""
        for current, branch, at in self.lineage(name, lsn):
            if at < branch.horizon and at not in self.points(current):
                raise SnapshotExpired(
                    f"LSN {lsn} of branch {name!r} is not kept: {current!r} is readable from LSN {branch.horizon} on",
                    hint="`pitr_window_seconds` says how long the past is kept; a pin keeps one state longer",
                )

    def encode(self) -> JsonObject:
        shape: JsonObject = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {**shape, "format": self.format}


def pages_of(root: Root | None, key: str) -> Pages | None:
    """The pages of a root; None if there are none: no database, or one that has only a log."""
    shape = None if root is None else root.members.get(MEMBER)
    if shape is None:
        return None
    try:
        return Pages.model_validate(shape, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise Corrupt(f"its pages are not readable: {where}: {first['msg']}", key=key, hint=BY_HAND) from error


class PagesRoot:
    """The root of a page store, read and changed. For several threads."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock, ids: Ids) -> None:
        self.keys = DbKeys(db_id)
        self._file = root_file(store, self.keys, clock=clock, ids=ids)
        self._known: tuple[int, Pages | None] = (-1, None)
        self._lock = RLock()

    def read(self) -> Pages:
        """One conditional GET."""
        with self._lock:
            return self._there(self._parsed(self._file.read()))

    def known(self) -> Pages:
        """As it was read last, by whoever did: no request."""
        with self._lock:
            return self._there(self._known[1])

    def read_root(self) -> Root | None:
        """The whole of it. One conditional GET."""
        with self._lock:
            root = self._file.read()
            self._parsed(root)
            return root

    def find(self) -> Pages | None:
        """Like `read`; None where there is no page store."""
        with self._lock:
            return self._parsed(self._file.read())

    def create(self, pages: Pages) -> bool:
        """False: there is one already."""
        created = False

        def added(root: Root | None) -> Root | None:
            nonlocal created
            before = pages_of(root, self.keys.root)
            created = created or before is None
            if before is not None:
                return None
            known = root or Root()
            return replace(known, members={**known.members, MEMBER: pages.encode()})

        with self._lock:
            self._file.update(added)
        return created

    def change(self, change: Callable[[Pages], Pages | None]) -> Pages:
        """Change it until that is stored; None: nothing to do. The change must be idempotent. Returns what is there."""

        def changed(root: Root | None) -> Root | None:
            before = self._there(pages_of(root, self.keys.root))
            after = change(before)
            if after is None or root is None:
                return None
            return replace(root, members={**root.members, MEMBER: after.encode()})

        with self._lock:
            return self._there(self._parsed(self._file.update(changed)))

    @contextmanager
    def while_there(self, name: str, branch_id: str) -> Iterator[None]:
        """For work on the log of a branch. When a branch is deleted, its log goes piece by piece. That looks like
        damage, and is `Fenced`."""
        try:
            yield
        except Corrupt as damage:
            found = self.read().branches.get(name)
            if found is not None and found.id == branch_id:
                raise
            raise Fenced(f"branch {name!r} was deleted or reset", key=self.keys.root) from damage

    def _parsed(self, root: Root | None) -> Pages | None:
        version = -1 if root is None else root.version
        if version != self._known[0] or version == -1:
            self._known = (version, pages_of(root, self.keys.root))
        return self._known[1]

    def _there(self, pages: Pages | None) -> Pages:
        if pages is None:
            raise NotFound(
                f"there is no page store {self.keys.db_id!r}",
                key=self.keys.root,
                hint="`worm db create` makes one",
            )
        return pages
