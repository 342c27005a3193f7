"""The root of a page store, read and swapped: `manifest.json` of the database with its member `pages` parsed.

One object decides for all branches and for the log of main. So a flush, a compaction, a collection, a new branch and a
raised boundary are ordered by compare-and-swap (`store/cas.py`). Invariants are checked before each of them: those of
the log by `log/invariants.py`, those of the pages by `invariants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from worm import forks
from worm.clock import Clock, Ids
from worm.errors import Corrupt, Fenced, NotFound
from worm.log import DatabaseKind, DbKeys, LogFiles, LogRoot, hints
from worm.pages.invariants import PAGES
from worm.pages.manifest import MEMBER, Pages, pages_of
from worm.store import CasFile, Invariant, Rules, Store


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The whole object, and what it says about pages; None: the database has only a log."""

    root: LogRoot
    pages: Pages | None

    @classmethod
    def decode(cls, body: bytes, key: str) -> _Manifest:
        root = LogRoot.decode(body, key)
        return cls(root, pages_of(root, key))

    def encode(self) -> bytes:
        return self.root.encode()

    def with_pages(self, pages: Pages) -> _Manifest:
        return _Manifest(replace(self.root, members={**self.root.members, MEMBER: pages.encode()}), pages)


def _numbered(current: _Manifest | None, new: _Manifest, put_id: str) -> _Manifest:
    before = None if current is None else current.root
    return replace(new, root=LogFiles.numbered(before, new.root, put_id))


def _of_root(holds: Invariant[LogRoot]) -> Invariant[_Manifest]:
    def asked(current: _Manifest, new: _Manifest) -> bool:
        return holds(current.root, new.root)

    asked.__name__ = holds.__name__
    return asked


def _of_pages(holds: Invariant[Pages]) -> Invariant[_Manifest]:
    def asked(current: _Manifest, new: _Manifest) -> bool:
        before = Pages(branches={}) if current.pages is None else current.pages
        return new.pages is not None and holds(before, new.pages)

    asked.__name__ = holds.__name__
    return asked


_RULES = Rules(
    is_derived=False,
    blank=_Manifest(LogRoot(), None),
    numbered=_numbered,
    invariants=(*map(_of_root, LogFiles.INVARIANTS), *map(_of_pages, PAGES)),
)


class PagesRoot:
    """The root of a page store. Thread-safe. With `kind`, another kind is refused (`Invalid`)."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock, ids: Ids, kind: DatabaseKind | None = None) -> None:
        self.keys = DbKeys(db_id)
        self._store = store
        self._clock, self._ids = clock, ids
        self._kind = kind
        self._file: CasFile[_Manifest] = CasFile(
            store, self.keys.root, _Manifest.decode, _Manifest.encode, ids=ids, clock=clock, rules=_RULES
        )
        self._files = LogFiles(store, self.keys, clock=clock, ids=ids)
        self._lock = forks.new_rlock()

    def read(self) -> Pages:
        """One conditional GET."""
        with self._lock:
            return self._there(self._file.read())

    def find(self) -> Pages | None:
        """Like `read`; None if there is no page store, or a deleted one. `Corrupt` if only its root is gone."""
        with self._lock:
            found = self._file.read()
            if found is None:
                self._files.is_blank(self._file.read)
            return None if found is None or found.root.deleted else found.pages

    def branch_of(self, keys: DbKeys) -> tuple[str, int] | None:
        """Name and applied slot of the branch with this log; None if there is none, or no page store at all."""
        pages = self.find()
        found = {} if pages is None else pages.branches
        return next(((name, one.slot) for name, one in found.items() if one.id == keys.branch), None)

    @property
    def kind(self) -> DatabaseKind:
        """The kind as it was last read: no request."""
        with self._lock:
            found = self._file.held.value
            return "pages" if found is None else found.root.kind

    def read_root(self) -> LogRoot | None:
        """The whole root, as the log sees it. One conditional GET."""
        with self._lock:
            found = self._file.read()
            return None if found is None else found.root

    def known(self) -> Pages:
        """The root as it was last read by any caller: no request."""
        with self._lock:
            return self._there(self._file.held.value)

    def create(self, pages: Pages, kind: DatabaseKind = "pages") -> bool:
        """Create the root. False: there is already one. A copy of it is kept for a repair."""
        with self._lock:
            found = self._file.read()
            if found is None and self._files.is_blank(self._file.read):
                made = _Manifest(LogRoot(kind=kind), None).with_pages(pages)
                stored = self._file.update(lambda there: made if there is None else None)
                if stored is not None and stored.pages == pages:
                    self._store.put_if_absent(self.keys.backup, stored.encode())
                    return True
            self._there(self._file.held.value, kind)
            return False

    def back_up(self) -> Pages:
        """Write a copy of the current root, unless there is a newer copy; returns its pages."""

        def newer(kept: LogRoot | None) -> LogRoot | None:
            return None if kept is not None and kept.version >= root.version else root

        with self._lock:
            found = self._file.read()
            pages = self._there(found)
            root = LogRoot() if found is None else found.root
            backup = CasFile(
                self._store, self.keys.backup, LogRoot.decode, LogRoot.encode, ids=self._ids, clock=self._clock
            )
            backup.update(newer)
            return pages

    def store_time(self) -> datetime:
        """The current time of the store."""
        return self._files.store_time()

    def change(self, change: Callable[[Pages], Pages | None]) -> Pages:
        """Apply the change until it is stored; None means nothing to do. It must be idempotent. Returns the stored
        pages."""

        def changed(found: _Manifest | None) -> _Manifest | None:
            before = self._there(found)
            after = change(before)
            return None if after is None or found is None else found.with_pages(after)

        with self._lock:
            return self._there(self._file.update(changed))

    @contextmanager
    def while_there(self, name: str, branch_id: str) -> Iterator[None]:
        """For work on the log of a branch. When a branch is deleted, its log disappears piece by piece. That looks like
        damage, but is `Fenced`."""
        try:
            yield
        except Corrupt as damage:
            found = self.read().branches.get(name)
            if found is not None and found.id == branch_id:
                raise
            raise Fenced(f"branch {name!r} was deleted or reset", key=self.keys.root) from damage

    def _there(self, found: _Manifest | None, kind: DatabaseKind | None = None) -> Pages:
        if found is None:
            self._files.is_blank(self._file.read)
            hint = "create one with `worm db create`"
            raise NotFound(f"there is no page store {self.keys.db_id!r}", key=self.keys.root, hint=hint)
        wanted = kind or self._kind
        if wanted is not None:
            found.root.check(wanted, self.keys.root)
        found.root.check_there(self.keys.root)
        if found.pages is None:
            found.root.check("pages", self.keys.root)
            raise Corrupt("the root of a page store lacks its pages", key=self.keys.root, hint=hints.BY_HAND)
        return found.pages
