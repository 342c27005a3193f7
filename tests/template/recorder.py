"""A store in memory that keeps what S3Store would ask of S3, as the calls of a role.

That it is what S3Store asks is proved on moto (test_roles.py). Here a clock can be turned and single writes can fail,
so a few seconds are enough for all that workers do in a year.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from tests.workers.pages_room import HookedStore
from worm.dev.iam import Call
from worm.store.base import (
    Attempt,
    AttemptOutcome,
    Condition,
    IfAbsent,
    Listed,
    NotModified,
    Object,
    ObjectInfo,
    Version,
    Won,
)
from worm.store.s3 import derived_kind

BUCKET = "worm-dev-documentbucket"
ETAG = '"etag"'
STATUS = {AttemptOutcome.LANDED: 200, AttemptOutcome.REFUSED: 412, AttemptOutcome.GONE: 404}


class Recorder(HookedStore):
    """While a role is `acting`, every request is a call of this role."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.role = ""
        self.calls: set[Call] = set()

    @contextmanager
    def acting(self, role: str) -> Iterator[None]:
        self.role = role
        try:
            yield
        finally:
            self.role = ""

    def _saw(
        self,
        method: str,
        key: str = "",
        *,
        status: int = 200,
        version: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        if self.role:
            asked = {**(query or {}), **({} if version is None else {"versionId": version})}
            path = f"/{BUCKET}/{quote(key)}?{urlencode(asked)}".replace("/?", "?")
            self.calls.update(Call.of_s3(self.role, method, path, headers or {}, status=status))

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        found = super().get(key, version_id=version_id, max_bytes=max_bytes)
        self._saw("GET", key, version=version_id, status=404 if found is None else 200)
        return found

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        found = super().get_if_changed(key, etag)
        if etag is not None:
            status = 404 if found is None else 304 if isinstance(found, NotModified) else 200
            self._saw("GET", key, status=status, headers={"If-None-Match": etag})
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        found = super().get_range(key, start, length)
        self._saw("GET", key, status=404 if found is None else 206)
        return found

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        found = super().head(key, version_id=version_id)
        self._saw("HEAD", key, version=version_id, status=404 if found is None else 200)
        return found

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._saw("PUT", key, headers=_tags(key))
        return super().put(key, body, metadata=metadata)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        found = super().attempt_put(key, body, condition, metadata)
        header = {"If-None-Match": "*"} if isinstance(condition, IfAbsent) else {"If-Match": condition.etag}
        self._saw("PUT", key, status=STATUS[found.outcome], headers={**header, **_tags(key)})
        return found

    def delete(self, key: str) -> None:
        self._saw("DELETE", key, status=204)
        super().delete(key)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        found = super().attempt_delete(key, etag)
        self._saw("DELETE", key, status=STATUS[found.outcome], headers={"If-Match": etag})
        return found

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self._saw("GET", query={"list-type": "2", "prefix": prefix})
        return super().list(prefix, start_after=start_after, limit=limit)

    def versions(self, key: str) -> Iterator[Version]:
        self._saw("GET", query={"versions": "", "prefix": key})
        return super().versions(key)

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        self._saw("GET", query={"versions": "", "prefix": prefix})
        return super().list_versions(prefix, start_after=start_after)


def _tags(key: str) -> dict[str, str]:
    """As the store tags what can be rebuilt."""
    return {"x-amz-tagging": "worm=derived"} if derived_kind(key) else {}
