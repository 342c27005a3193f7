"""Turns at the log of a space, and what is on its way there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from weakref import WeakValueDictionary

from worm.errors import Fenced, WormError
from worm.pages.db import PageDb
from worm.pages.reader import PageReader
from worm.spaces.page_writes import Pages
from worm.store.base import Store


class Turns:
    """Whose turn it is in this process, however often the space is open in it. Who comes after somebody else waits for
    that one's commits: taking over the log would only make them fail."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[object, Future[int] | None] = (None, None)

    @contextmanager
    def taken(self, owner: object) -> Iterator[None]:
        with self._lock:
            before, commit = self._last
            if before is not owner and commit is not None:
                wait([commit])
            yield

    def sent(self, owner: object, commit: Future[int] | None) -> None:
        self._last = (owner, commit)


class Lane:
    """A writer, and the pages that are on their way to its log. A turn reads those over what is there; what is not on
    its way any more is known to the writer, so it is asked after them. Turns of a lane follow each other.

    When one commit fails the lane is over: those behind it were decided on it, and must not be made.
    """

    def __init__(self, writer: PageDb) -> None:
        self.writer = writer
        self.has_committed = False
        self._pages: Pages = {}
        self._count = 0
        self._last: Future[int] | None = None
        self._lock = threading.Lock()

    def send(self, pages: Pages) -> Future[int] | None:
        """What a turn has to wait for: its own commit, or the last one that it may have read from."""
        if pages:
            sent = self.writer.submit(pages)
            with self._lock:
                self._pages |= pages
                self._count += 1
            self._last = sent
            sent.add_done_callback(self._arrived)
        return self._last

    def is_over(self) -> bool:
        """Is there anything in the log that this writer did not write, or was a commit not made? What was decided on
        its pages counts for nothing then. Waits for what is on its way, and looks at the log. For who has the turn."""
        if self._last is not None:
            wait([self._last])
        if self.writer.stopped is None:
            PageReader.refresh(self.writer)
        return self.writer.stopped is not None or self.writer.is_overtaken

    def get(self, pages: Sequence[str]) -> Mapping[str, bytes | None]:
        with self._lock:
            found = {page: self._pages[page] for page in pages if page in self._pages}
        rest = [page for page in pages if page not in found]
        return (dict(self.writer.get_pages(rest)) if rest else {}) | found

    def scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]:
        with self._lock:
            pending = {page: data for page, data in self._pages.items() if start <= page < end}
        found = {version.page: version.data for version in self.writer.scan(start, end)} | pending
        yield from sorted((page, data) for page, data in found.items() if data is not None)

    def _arrived(self, commit: Future[int]) -> None:
        """In the writer's memory, or lost. Called before the writer begins with the next ones."""
        error = None if commit.cancelled() else commit.exception()
        if commit.cancelled() or error is not None:
            self.writer.stop(error if isinstance(error, WormError) else Fenced("a commit before this one was not made"))
            return  # its pages stay: a turn that has read some of them must not meet another state half-way
        with self._lock:
            self.has_committed = True
            self._count -= 1
            if self._count == 0:
                self._pages.clear()


_turns: WeakValueDictionary[tuple[str, str], Turns] = WeakValueDictionary()
_turns_lock = threading.Lock()


def turns_of(store: Store, db_id: str) -> Turns:
    """Turns of one process follow each other, however often a space is open in it."""
    with _turns_lock:
        key = (store.identity, db_id)
        lock = _turns.get(key)
        if lock is None:
            lock = _turns[key] = Turns()
        return lock
