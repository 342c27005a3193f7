"""A store in the memory of this process, with S3's semantics: for tests, simulations and `memory://` urls.

Etags are quoted MD5s, times are whole seconds of the given clock, and with `versioned=True` every write is a version
and a delete is a marker, as in a versioned bucket. One lock makes every call atomic.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice, takewhile
from typing import ClassVar

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import Invalid
from worm.store.base import (
    NOT_MODIFIED,
    NULL_VERSION,
    Attempt,
    AttemptOutcome,
    Condition,
    IfAbsent,
    Listed,
    NotModified,
    Object,
    ObjectInfo,
    Read,
    RequestCounter,
    Version,
    Won,
    about_to_read,
    check_key,
    check_metadata,
    check_prefix,
    check_range,
    content_etag,
    same_version,
    whole_seconds,
)
from worm.store.resolve import ResolvedWrites
from worm.values import dataclass


@dataclass(frozen=True, slots=True)
class _Stored:
    """One version of a key; a delete marker has no body."""

    version_id: str | None
    last_modified: datetime
    etag: str = ""
    body: bytes | None = None
    metadata: Mapping[str, str] | None = None


_History = list[_Stored]


class MemoryStore(ResolvedWrites):
    """Objects in a dict; see the module header."""

    _named: ClassVar[dict[str, MemoryStore]] = {}
    _named_lock: ClassVar[threading.Lock] = forks.new_lock()

    def __init__(
        self, name: str = "", *, versioned: bool = False, clock: Clock | None = None, ids: Ids | None = None
    ) -> None:
        self.name = name
        self.versioned = versioned
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.requests = RequestCounter()
        self._lock = forks.new_rlock()
        self._history: dict[str, list[_Stored]] = {}
        self._keys: list[bytes] = []  # the keys of the history, in S3's order
        self._writes = 0

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """The store of `memory://name`: all callers in this process share it."""
        with cls._named_lock:
            if name not in cls._named:
                cls._named[name] = cls(name)
            return cls._named[name]

    @property
    def url(self) -> str:
        return f"memory://{self.name}"

    @property
    def identity(self) -> str:
        return self.url

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        stored = self._find(check_key(key), version_id)
        self.requests.add("GET")
        if stored is None or stored.body is None:
            return None
        if max_bytes is not None and len(stored.body) > max_bytes:
            raise Invalid(f"the object has {len(stored.body)} bytes, more than {max_bytes}", key=key)
        about_to_read(len(stored.body))
        self.requests.add_bytes_read(len(stored.body))
        return _as_object(key, stored, stored.body)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        stored = self._find(check_key(key), None)
        if stored is not None and stored.body is not None and stored.etag == etag:
            self.requests.add("GET")
            return NOT_MODIFIED
        return self.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        check_range(check_key(key), start, length)
        stored = self._find(key, None)
        self.requests.add("GET")
        if stored is None or stored.body is None:
            return None
        piece = stored.body[start : start + length]
        self.requests.add_bytes_read(len(piece))
        return piece

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        return [self._get_or_error(read, max_bytes) for read in reads]

    def _get_or_error(self, read: Read, max_bytes: int | None) -> Object | Exception | None:
        try:
            return self.get(read.key, version_id=read.version_id, max_bytes=max_bytes)
        except Invalid as error:
            return error

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        stored = self._find(check_key(key), version_id)
        self.requests.add("HEAD")
        if stored is None or stored.body is None:
            return None
        return ObjectInfo(
            key, stored.etag, len(stored.body), stored.last_modified, stored.version_id, dict(stored.metadata or {})
        )

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        checked = check_metadata(metadata, check_key(key))
        self.requests.add("PUT", written=len(body))
        with self._lock:
            stored = self._store(key, body, checked)
        return Won(stored.etag, stored.version_id)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        checked = check_metadata(metadata, check_key(key))
        self.requests.add("PUT", written=len(body))
        with self._lock:
            current = self._find(key, None)
            etag = current.etag if current is not None else ""
            if isinstance(condition, IfAbsent):
                if etag:
                    return Attempt(AttemptOutcome.REFUSED, reason="412: the key exists")
            elif not etag:
                return Attempt(AttemptOutcome.GONE, reason="404: the key does not exist")
            elif etag != condition.etag:
                return Attempt(AttemptOutcome.REFUSED, reason="412: the etag differs")
            stored = self._store(key, body, checked)
        return Attempt(AttemptOutcome.LANDED, stored.etag, stored.version_id)

    def forget_version(self, key: str, version_id: str | None) -> None:
        """Remove one version or marker for good, as a lifecycle rule or an administrator does."""
        with self._lock:
            kept = [stored for stored in self._history.get(key, []) if stored.version_id != version_id]
            if kept:
                self._history_of(key)[:] = kept
            else:
                self._history.pop(key, None)

    def delete(self, key: str) -> None:
        check_key(key)
        self.requests.add("DELETE")
        with self._lock:
            self._remove(key)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        check_key(key)
        self.requests.add("DELETE")
        with self._lock:
            current = self._find(key, None)
            if current is None or current.body is None:
                return Attempt(AttemptOutcome.GONE, reason="404: the key does not exist")
            if current.etag != etag:
                return Attempt(AttemptOutcome.REFUSED, reason="412: the etag differs")
            return Attempt(AttemptOutcome.LANDED, version_id=self._remove(key))

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self.requests.add("LIST")
        with self._lock:
            rows = [
                Listed(key, history[-1].etag, len(history[-1].body), history[-1].last_modified)
                for key, history in self._under(prefix, start_after)
                if history[-1].body is not None
            ]
        return iter(rows[:limit])

    def versions(self, key: str) -> Iterator[Version]:
        check_key(key)
        self.requests.add("VERSIONS")
        with self._lock:
            return iter(_as_versions(key, self._history.get(key, [])))

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        self.requests.add("VERSIONS")
        with self._lock:
            rows = [row for key, history in self._under(prefix, start_after) for row in _as_versions(key, history)]
        return iter(rows)

    def _under(self, prefix: str, start_after: str | None) -> Sequence[tuple[str, Sequence[_Stored]]]:
        start, after = check_prefix(prefix).encode(), (start_after or "").encode()
        if len(self._keys) != len(self._history):  # a test replaced the history
            self._keys = sorted(map(str.encode, self._history))
        at = max(bisect_left(self._keys, start), bisect_right(self._keys, after) if after else 0)
        keys = takewhile(lambda key: key.startswith(start), islice(self._keys, at, None))
        return [(key, self._history[key]) for key in map(bytes.decode, keys)]

    def _find(self, key: str, version_id: str | None) -> _Stored | None:
        with self._lock:
            history = self._history.get(key, [])
            if version_id is None:
                return history[-1] if history else None
            return next((stored for stored in history if same_version(stored.version_id, version_id)), None)

    def _store(self, key: str, body: bytes, metadata: Mapping[str, str]) -> _Stored:
        stored = _Stored(
            self._next_version_id(), whole_seconds(self.clock.now()), content_etag(body), bytes(body), metadata
        )
        history = self._history_of(key)
        if not self.versioned:
            history.clear()
        history.append(stored)
        return stored

    def _history_of(self, key: str) -> _History:
        if key not in self._history:
            self._history[key] = []
            insort(self._keys, key.encode())
        return self._history[key]

    def _remove(self, key: str) -> str | None:
        if not self.versioned:
            if self._history.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key.encode())]
            return None
        marker = _Stored(self._next_version_id(), whole_seconds(self.clock.now()))
        self._history_of(key).append(marker)
        return marker.version_id

    def _next_version_id(self) -> str | None:
        if not self.versioned:
            return None
        self._writes += 1
        return f"v{self._writes:08d}"


def _as_object(key: str, stored: _Stored, body: bytes) -> Object:
    return Object(
        key=key,
        etag=stored.etag,
        size=len(body),
        last_modified=stored.last_modified,
        version_id=stored.version_id,
        metadata=dict(stored.metadata or {}),
        body=body,
    )


def _as_versions(key: str, history: Sequence[_Stored]) -> list[Version]:
    return [
        Version(
            key=key,
            version_id=stored.version_id if age == 0 else stored.version_id or NULL_VERSION,
            etag=stored.etag,
            size=len(stored.body or b""),
            last_modified=stored.last_modified,
            is_latest=age == 0,
            is_delete_marker=stored.body is None,
        )
        for age, stored in enumerate(reversed(history))
    ]
