"""The session that all calls of a process share, and how it follows the pushed schema.

A warm process lives for hours, and somebody may push a new schema in the meantime. At most every few seconds a call
checks for one with a conditional GET. If it changed, a session with the new schema replaces the old one, which is
closed when its last call has ended. A call with a streamed answer ends with the last piece.

It knows nothing about HTTP.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from worm import forks
from worm.collections import layout
from worm.errors import WormError
from worm.formats import Schema, load_pushed
from worm.sdk import Worm
from worm.store import NotModified

REFRESH_SECONDS = 5.0
log = logging.getLogger("worm.api")


class _Open:
    """A session, and how many calls use it."""

    def __init__(self, session: Worm) -> None:
        self.session = session
        self.calls = 0
        self.is_replaced = False


class SessionLease:
    """The use of the session by one call, from `take` to `close`; also a context manager."""

    def __init__(self, shared: SharedSession, opened: _Open) -> None:
        self._shared, self._opened = shared, opened
        self._is_closed = False

    @property
    def session(self) -> Worm:
        return self._opened.session

    def is_outdated(self) -> bool:
        """Has another session replaced it? For long calls; checks for a new schema, as every call does."""
        self._shared.refresh()
        return self._opened.is_replaced

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._shared.give_back(self._opened)

    def __enter__(self) -> Worm:
        return self.session

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedSession:
    """The first call runs `open_session`. This object then owns the session."""

    def __init__(self, open_session: Callable[[], Worm]) -> None:
        self._open_session = open_session
        self._lock = forks.new_lock()
        self._refreshing = forks.new_lock()
        self._current: _Open | None = None
        self._left: list[_Open] = []
        self._etag: str | None = None
        self._looked_at = 0.0

    def lease(self) -> SessionLease:
        """The session for one call."""
        self.refresh()
        with self._lock:
            opened = self._opened()
            opened.calls += 1
        return SessionLease(self, opened)

    def give_back(self, opened: _Open) -> None:
        with self._lock:
            opened.calls -= 1
            is_left = opened.is_replaced and opened.calls == 0
            if is_left and opened in self._left:
                self._left.remove(opened)
        if is_left:
            _close(opened.session)

    def close(self) -> None:
        """Closes even sessions in use, because the process ends. A call that continues anyway closes its session
        again."""
        with self._lock:
            opened = [*self._left, *([] if self._current is None else [self._current])]
            self._current, self._left = None, []
            for one in opened:
                one.is_replaced = True
        for one in opened:
            one.session.close()

    def _opened(self) -> _Open:
        if self._current is None:
            self._current = _Open(self._open_session())
            self._looked_at = self._current.session.clock.monotonic()
        return self._current

    def refresh(self) -> None:
        """One call checks; the others continue with the current session."""
        current = self._current
        if current is None or current.session.clock.monotonic() - self._looked_at < REFRESH_SECONDS:
            return
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            self._looked_at = current.session.clock.monotonic()
            self._follow(current)
        except WormError as error:  # the next check may succeed, and the current schema is still valid
            log.warning("the pushed schema could not be read: %s", error)
        finally:
            self._refreshing.release()

    def _follow(self, current: _Open) -> None:
        found = current.session.store.get_if_changed(layout.SCHEMA_KEY, self._etag)
        if found is None or isinstance(found, NotModified):
            return  # never pushed, or deleted: the session keeps its schema
        schema = load_pushed(found.body, layout.SCHEMA_KEY)
        self._etag = found.etag
        if schema != current.session.schema:
            self._replace(current, schema)

    def _replace(self, old: _Open, schema: Schema) -> None:
        session, settings = old.session, old.session.settings
        new = Worm(
            session.store,
            schema,
            actor=settings.actor,
            reason=settings.reason,
            maintenance=settings.maintenance,
            clock=session.clock,
            ids=session.ids,
        )
        with self._lock:
            self._current = _Open(new)
            old.is_replaced = True
            is_left = old.calls == 0
            if not is_left:
                self._left.append(old)
        if is_left:
            _close(session)


def _close(session: Worm) -> None:
    """A call with an answer must not fail because of unfinished work of others."""
    try:
        session.close()
    except WormError as error:
        log.warning("a session with the previous schema could not be closed: %s", error)
