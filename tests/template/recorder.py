"""A store that keeps what is asked of it: the action that S3 checks, and the key (of a listing its prefix)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.workers.pages_room import HookedStore
from worm.store.base import Attempt, Condition, Listed, NotModified, Object, ObjectInfo, Read, Version, Won

Request = tuple[str, str]
GET, PUT, DELETE, LIST = "s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"
GET_VERSION, LIST_VERSIONS = "s3:GetObjectVersion", "s3:ListBucketVersions"


class Recorder(HookedStore):
    """Keeps what is asked of it: the action that S3 checks, and the key (of a listing its prefix)."""

    requests_seen: list[Request] | None = None

    def _saw(self, action: str, *keys: str) -> None:
        if self.requests_seen is not None:
            self.requests_seen += [(action, key) for key in keys]

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        self._saw(GET if version_id is None else GET_VERSION, key)
        return super().get(key, version_id=version_id, max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        self._saw(GET, key)
        return super().get_if_changed(key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._saw(GET, key)
        return super().get_range(key, start, length)

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        for read in reads:
            self._saw(GET if read.version_id is None else GET_VERSION, read.key)
        return super().get_many(reads, max_bytes=max_bytes)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        self._saw(GET if version_id is None else GET_VERSION, key)
        return super().head(key, version_id=version_id)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._saw(PUT, key)
        return super().put(key, body, metadata=metadata)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._saw(PUT, key)
        return super().attempt_put(key, body, condition, metadata)

    def delete(self, key: str) -> None:
        self._saw(DELETE, key)
        super().delete(key)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        self._saw(DELETE, key)
        return super().attempt_delete(key, etag)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self._saw(LIST, prefix)
        return super().list(prefix, start_after=start_after, limit=limit)

    def versions(self, key: str) -> Iterator[Version]:
        self._saw(LIST_VERSIONS, key)
        return super().versions(key)
