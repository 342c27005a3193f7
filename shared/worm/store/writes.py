"""The settled writes every store inherits: one attempt is the store's business, its meaning is `resolve.py`'s."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from worm.clock import Clock, Ids
from worm.store.base import Attempt, Condition, Gone, IfAbsent, IfMatch, Lost, Object, Won
from worm.store.keys import check_key
from worm.store.metadata import check_metadata
from worm.store.resolve import resolve_delete, resolve_put


class SettledWrites(ABC):
    """Put-if-absent, put-if-match and delete-if-match in terms of attempts and reads."""

    clock: Clock
    ids: Ids

    @abstractmethod
    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None: ...

    @abstractmethod
    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt: ...

    @abstractmethod
    def attempt_delete(self, key: str, etag: str) -> Attempt: ...

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        checked = check_metadata(metadata, check_key(key))
        return resolve_put(self, key, body, IfAbsent(), checked, ids=self.ids, clock=self.clock)

    def put_if_match(
        self, key: str, body: bytes, etag: str, *, metadata: Mapping[str, str] | None = None
    ) -> Won | Lost | Gone:
        checked = check_metadata(metadata, check_key(key))
        return resolve_put(self, key, body, IfMatch(etag), checked, ids=self.ids, clock=self.clock)

    def delete_if_match(self, key: str, etag: str) -> Won | Lost | Gone:
        return resolve_delete(self, check_key(key), etag, ids=self.ids, clock=self.clock)
