"""A bucket of any number of customers with the latencies of S3, for benchmarks of jobs over a million documents.

Documents and oplog entries are made when they are read; what the job writes is kept in a directory. Every request takes
as long as one to S3 (`_virtual_s3.Limits`), with 32 connections for reads of many objects. Each process notes the
number of its requests in a file, so that the requests of all executors can be added up. Every hundredth customer has a
second entry, if `changed` is set: nothing in the table knows it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from scripts.benchmarks import _customers as customers
from scripts.benchmarks._virtual_s3 import Limits
from worm.collections.collection import Collection
from worm.collections.entries import Document, OplogEntry
from worm.collections.layout import StorageResolver
from worm.formats.strict_json import dumps
from worm.spark.cluster import JobSpec
from worm.store.base import Listed, Object, Read, RequestCounter, Version, content_etag
from worm.store.file import FileStore

CONNECTIONS = 32
PAGE = 1000
CHANGED_EVERY = 100
MODIFIED = datetime(2025, 6, 1, tzinfo=UTC)
DOCUMENTS, FILE = "org/customers/", "/data.json"
OPLOG = ".oplog/customers/"
LIMITS = Limits()
SECONDS = {"LIST": LIMITS.list_seconds, "VERSIONS": LIMITS.list_seconds, "PUT": LIMITS.put_seconds}
SLEEP_SECONDS = 0.01


class PacedCounter(RequestCounter):
    """Counts requests and waits for them. Short waits are added up, because none takes less than a millisecond."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self._note = notes / f"{os.getpid()}-{id(self)}.json"
        self.at_work = threading.local()

    def add(self, kind: str, *, read: int = 0, written: int = 0) -> None:
        super().add(kind, read=read, written=written)
        lanes = getattr(self.at_work, "lanes", 1)
        owed = getattr(self.at_work, "owed", 0.0) + SECONDS.get(kind, LIMITS.get_seconds) / lanes
        if owed >= SLEEP_SECONDS:
            self._note.write_text(json.dumps(self.snapshot()))
            time.sleep(owed)
            owed = 0.0
        self.at_work.owed = owed


def requests_in(notes: Path) -> Counter[str]:
    """The requests of all processes so far."""
    total: Counter[str] = Counter()
    for path in notes.iterdir():
        total.update(json.loads(path.read_text() or "{}"))
    return total


@dataclass(frozen=True, slots=True)
class _Keys(Sequence[str]):
    """All keys of a kind, in order, without holding them."""

    root: str
    endings: tuple[str, ...]
    size: int

    def __len__(self) -> int:
        return self.size * len(self.endings)

    def __getitem__(self, at: int) -> str:  # type: ignore[override]  # no slices
        number, ending = divmod(at, len(self.endings))
        return f"{self.root}{customers.customer_id(number)}{self.endings[ending]}"


class SeededBucket(FileStore):
    """`count` customers, each created once, and some of them changed."""

    def __init__(self, root: Path, notes: Path, count: int, *, changed: bool) -> None:
        super().__init__(root, durability="process")
        self.requests = self._paced = PacedCounter(notes)
        self._changed = changed
        self._keys = [
            _Keys(DOCUMENTS, (FILE,), count),
            _Keys(OPLOG, ("/0001.json", "/0002.json") if changed else ("/0001.json",), count),
        ]

    def _seqs(self, number: int) -> int:
        return 2 if self._changed and number % CHANGED_EVERY == 0 else 1

    def _document(self, number: int, seq: int) -> Document:
        return {**customers.document(number), **customers.row(number, seq)}

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        root = next((keys.root for keys in self._keys if key.startswith(f"{keys.root}customer-")), None)
        if root is None:
            return super().get(key, version_id=version_id, max_bytes=max_bytes)
        self.requests.add("GET")
        name, _, file = key.removeprefix(root).partition("/")
        number = int(name.removeprefix("customer-"))
        newest = self._seqs(number)
        seq = newest if root == DOCUMENTS else int(file.removesuffix(".json"))
        if seq > newest:
            return None
        body = dumps(self._document(number, seq))
        if root == OPLOG:
            document = self._document(number, seq)
            etag, op = content_etag(body), "create" if seq == 1 else "update"
            moment = customers.moment(seq)
            entry = OplogEntry(seq, op, moment, snapshot=document, metadata={"etag": etag})  # type: ignore[arg-type]  # a literal
            body = entry.to_bytes()
        return Object(key, content_etag(body), len(body), MODIFIED, None, {}, body)

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        self._paced.at_work.lanes = min(CONNECTIONS, max(1, len(reads)))
        try:
            return super().get_many(reads, max_bytes=max_bytes)
        finally:
            self._paced.at_work.lanes = 1

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        written = super().list(prefix, start_after=start_after)
        return islice(chain(written, self._seeded(prefix, start_after or "", "LIST")), limit)

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        yield from super().list_versions(prefix, start_after=start_after)
        for one in self._seeded(prefix, start_after or "", "VERSIONS"):
            yield Version(one.key, None, one.etag, one.size, one.last_modified, is_latest=True)

    def _seeded(self, prefix: str, after: str, kind: str) -> Iterator[Listed]:
        """The first page is counted by the listing of what was written."""
        keys = next((keys for keys in self._keys if prefix.startswith(keys.root)), None)
        listed = 0
        for at in range(
            0 if keys is None else max(bisect_left(keys, prefix), bisect_right(keys, after)), len(keys or ())
        ):
            assert keys is not None
            if not keys[at].startswith(prefix):
                return
            if at % len(keys.endings) >= self._seqs(at // len(keys.endings)):
                continue
            if listed and listed % PAGE == 0:
                self.requests.add(kind)
            listed += 1
            yield Listed(keys[at], '"listed"', 600, MODIFIED)


@dataclass(frozen=True, slots=True)
class SeededSpec(JobSpec):
    """A spec whose URL is the directory of what is written."""

    notes: str = ""
    count: int = 0
    changed: bool = False

    def collection(self) -> Collection:
        return _opened(self)


@lru_cache(maxsize=2)
def _opened(spec: SeededSpec) -> Collection:
    schema = spec.schema()
    store = SeededBucket(Path(spec.url), Path(spec.notes), spec.count, changed=spec.changed)
    return Collection(store, StorageResolver(schema), spec.model, schema.model(spec.model))


def seeded_spec(scratch: Path, count: int, *, changed: bool) -> SeededSpec:
    notes = scratch / "requests"
    notes.mkdir(exist_ok=True)
    schema = customers.schema().to_json().decode()
    return SeededSpec(str(scratch / "bucket"), None, customers.MODEL, schema, str(notes), count, changed)
