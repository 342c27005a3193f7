"""The root of a page store, read and swapped: `manifest.json` of the database with its member `pages` parsed.

One object decides for all branches and for the log of main. So a flush, a compaction, a collection, a new branch and a
raised boundary are ordered by compare-and-swap (`store/cas.py`), and what always holds is asked before each of them: of
the log's part by `log/invariants.py`, of the pages by `invariants.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import RLock

from worm.clock import Clock, Ids
from worm.errors import Corrupt, Fenced, NotFound
from worm.log import fence
from worm.log.invariants import ROOT
from worm.log.keys import DbKeys
from worm.log.root import LogRoot
from worm.pages.invariants import PAGES
from worm.pages.manifest import MEMBER, Pages, pages_of
from worm.store.base import Store
from worm.store.cas import CasFile, Invariant, Rules


@dataclass(frozen=True, slots=True)
class _Manifest:
    """The whole object, and what it says of pages; None: the database has only a log."""

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
    return replace(new, root=fence.numbered(before, new.root, put_id))


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
    invariants=(*map(_of_root, ROOT), *map(_of_pages, PAGES)),
)


class PagesRoot:
    """The root of a page store. For several threads."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock, ids: Ids) -> None:
        self.keys = DbKeys(db_id)
        self._file: CasFile[_Manifest] = CasFile(
            store, self.keys.root, _Manifest.decode, _Manifest.encode, ids=ids, clock=clock, rules=_RULES
        )
        self._lock = RLock()

    def read(self) -> Pages:
        """One conditional GET."""
        return self._there(self.find())

    def find(self) -> Pages | None:
        """Like `read`; None where there is no page store."""
        with self._lock:
            found = self._file.read()
            return None if found is None else found.pages

    def read_root(self) -> LogRoot | None:
        """All of it, as the log sees it. One conditional GET."""
        with self._lock:
            found = self._file.read()
            return None if found is None else found.root

    def known(self) -> Pages:
        """As it was read last, by whoever did: no request."""
        with self._lock:
            found = self._file.held.value
            return self._there(None if found is None else found.pages)

    def create(self, pages: Pages) -> bool:
        """False: there is one already."""
        created = False

        def added(found: _Manifest | None) -> _Manifest | None:
            nonlocal created
            if found is not None and found.pages is not None:
                return None
            created = True
            return (found or _Manifest(LogRoot(), None)).with_pages(pages)

        with self._lock:
            self._file.update(added)
        return created

    def change(self, change: Callable[[Pages], Pages | None]) -> Pages:
        """Change it until that is stored; None: nothing to do. The change must be idempotent. Returns what is there."""

        def changed(found: _Manifest | None) -> _Manifest | None:
            before = self._there(None if found is None else found.pages)
            after = change(before)
            return None if after is None or found is None else found.with_pages(after)

        with self._lock:
            found = self._file.update(changed)
            return self._there(None if found is None else found.pages)

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

    def _there(self, pages: Pages | None) -> Pages:
        if pages is None:
            raise NotFound(
                f"there is no page store {self.keys.db_id!r}",
                key=self.keys.root,
                hint="`worm db create` makes one",
            )
        return pages
