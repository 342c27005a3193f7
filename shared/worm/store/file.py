"""A store in plain files, one per document, that people can look at and edit: the embedded default of the SDK.

Same contract as S3: atomic, crash-safe, conditional across threads and processes (see `file_disk.py`). It keeps no
versions. The etag is the quoted MD5 of the content, so an edit by hand is seen as the change it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Invalid, WormError
from worm.store.base import (
    NOT_MODIFIED,
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
    same_version,
)
from worm.store.content import check_range
from worm.store.file_disk import Disk, DiskFile, as_worm_error
from worm.store.keys import check_prefix
from worm.store.metadata import check_metadata
from worm.store.writes import SettledWrites

LEFTOVER_AGE = timedelta(hours=1)


class FileStore(SettledWrites):
    """Documents under a directory. `fsync=False` gives up durability (not atomicity) for speed, for tests."""

    def __init__(
        self, root: str | Path, *, clock: Clock | None = None, ids: Ids | None = None, fsync: bool = True
    ) -> None:
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.requests = RequestCounter()
        self._disk = Disk(Path(root), fsync=fsync)
        self._disk.drop_leftovers(self.clock.now() - LEFTOVER_AGE)

    @property
    def root(self) -> Path:
        return self._disk.root

    @property
    def url(self) -> str:
        return self._disk.root.as_uri()

    @property
    def identity(self) -> str:
        return self.url

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        path = self._disk.path(key)
        self.requests.add("GET")
        if not same_version(version_id, None):
            return None
        with _translated(key):
            if max_bytes is not None and path.is_file() and path.stat().st_size > max_bytes:
                raise Invalid(f"the object has {path.stat().st_size} bytes, more than {max_bytes}", key=key)
            found = self._disk.read(key)
        if found is None:
            return None
        self.requests.add_bytes_read(len(found.body))
        return Object(key, found.etag, len(found.body), found.modified, None, found.metadata, found.body)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        found = self.get(key)
        return NOT_MODIFIED if found is not None and found.etag == etag else found

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._disk.path(key)
        check_range(key, start, length)
        self.requests.add("GET")
        with _translated(key):
            piece = self._disk.read_range(key, start, length)
        self.requests.add_bytes_read(len(piece or b""))
        return piece

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        def one(read: Read) -> Object | Exception | None:
            try:
                return self.get(read.key, version_id=read.version_id, max_bytes=max_bytes)
            except WormError as error:
                return error

        return [one(read) for read in reads]

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        self._disk.path(key)
        self.requests.add("HEAD")
        found = self._read(key) if same_version(version_id, None) else None
        if found is None:
            return None
        return ObjectInfo(key, found.etag, len(found.body), found.modified, None, found.metadata)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        checked = check_metadata(metadata, key)
        self._disk.path(key)
        self.requests.add("PUT", written=len(body))
        with _translated(key), self._disk.locked(key):
            return Won(self._disk.write(key, body, checked, self.clock.now()))

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        checked = check_metadata(metadata, key)
        self._disk.path(key)
        self.requests.add("PUT", written=len(body))
        with _translated(key), self._disk.locked(key):
            current = self._disk.read(key)
            refusal = _refusal(condition, current)
            if refusal is not None:
                return refusal
            return Attempt(AttemptOutcome.LANDED, self._disk.write(key, body, checked, self.clock.now()))

    def delete(self, key: str) -> None:
        self._disk.path(key)
        self.requests.add("DELETE")
        with _translated(key), self._disk.locked(key):
            self._disk.remove(key)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        self._disk.path(key)
        self.requests.add("DELETE")
        with _translated(key), self._disk.locked(key):
            current = self._disk.read(key)
            if current is None:
                return Attempt(AttemptOutcome.GONE, reason="the key does not exist")
            if current.etag != etag:
                return Attempt(AttemptOutcome.REFUSED, reason="the etag is another")
            self._disk.remove(key)
            return Attempt(AttemptOutcome.LANDED)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self.requests.add("LIST")
        return islice(self._list(check_prefix(prefix), (start_after or "").encode()), limit)

    def _list(self, prefix: str, after: bytes) -> Iterator[Listed]:
        with _translated(prefix):
            keys = self._disk.keys(prefix)
        for key in keys:
            found = self._read(key) if key.encode() > after else None
            if found is not None:
                yield Listed(key, found.etag, len(found.body), found.modified)

    def versions(self, key: str) -> Iterator[Version]:
        self._disk.path(key)
        self.requests.add("VERSIONS")
        found = self._read(key)
        if found is None:
            return iter(())
        return iter([Version(key, None, found.etag, len(found.body), found.modified, is_latest=True)])

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        self.requests.add("VERSIONS")
        return (
            Version(row.key, None, row.etag, row.size, row.last_modified, is_latest=True)
            for row in self._list(check_prefix(prefix), (start_after or "").encode())
        )

    def _read(self, key: str) -> DiskFile | None:
        with _translated(key):
            return self._disk.read(key)


def _refusal(condition: Condition, current: DiskFile | None) -> Attempt | None:
    """Why the write may not happen, or None."""
    if isinstance(condition, IfAbsent):
        return None if current is None else Attempt(AttemptOutcome.REFUSED, reason="the key exists")
    if current is None:
        return Attempt(AttemptOutcome.GONE, reason="the key does not exist")
    return None if current.etag == condition.etag else Attempt(AttemptOutcome.REFUSED, reason="the etag is another")


@contextlib.contextmanager
def _translated(key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_worm_error(error, key) from error
