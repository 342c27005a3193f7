"""A collection that exists only as a seed: documents and oplog entries are made when they are read, and only what is
written is kept, in a directory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from tests.harness import schema_of
from worm.clock import iso_seconds
from worm.collections.collection import Collection
from worm.collections.entries import OplogEntry
from worm.collections.layout import StorageResolver
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue, dumps
from worm.spark.cluster import JobSpec
from worm.store.base import Listed, Object, Read, Version
from worm.store.file import FileStore

MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)
DOCUMENTS, FILE = "org/customers/", "/profile.json"
OPLOG, ENTRY = ".oplog/customers/", "/0001.json"
KINDS = ((OPLOG, ENTRY), (DOCUMENTS, FILE))
SIZE = 400
FIELDS = {"name": {"type": "string"}, "status": {"type": "string"}, "about": {"type": "string"}}
INDEXES = {"byStatus": {"field": "status"}, "byName": {"field": "name"}}


@dataclass(frozen=True, slots=True)
class _Keys(Sequence[str]):
    """All keys of a kind, in order, without holding them."""

    root: str
    ending: str
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> str:  # type: ignore[override]  # no slices
        return f"{self.root}c{number:08d}{self.ending}"


class SeededStore(FileStore):
    """`count` customers, each created once; a row has about 350 bytes."""

    def __init__(self, root: Path, count: int) -> None:
        super().__init__(root, durability="process")
        self._numbers = range(count)

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        number = self._number(key)
        if number is None:
            return super().get(key, version_id=version_id, max_bytes=max_bytes)
        etag, document = _etag(number), _document(number)
        if key.endswith(FILE):
            return Object(key, etag, SIZE, MODIFIED, None, {}, dumps(document))
        entry = OplogEntry(1, "create", iso_seconds(MODIFIED), snapshot=document, metadata={"etag": etag})
        return Object(key, f"{etag}e", SIZE, MODIFIED, None, {}, entry.to_bytes())

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        return [self.get(read.key, version_id=read.version_id, max_bytes=max_bytes) for read in reads]

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        written = super().list(prefix, start_after=start_after)  # system keys sort before the ids
        return islice(chain(written, self._seeded(prefix, start_after or "")), limit)

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        yield from super().list_versions(prefix, start_after=start_after)
        for listed in self._seeded(prefix, start_after or ""):
            yield Version(listed.key, None, listed.etag, listed.size, listed.last_modified, is_latest=True)

    def _seeded(self, prefix: str, after: str) -> Iterator[Listed]:
        for root, ending in KINDS:
            if prefix.startswith(root):
                keys = _Keys(root, ending, len(self._numbers))
                for number in range(max(bisect_left(keys, prefix), bisect_right(keys, after)), len(keys)):
                    if not keys[number].startswith(prefix):
                        return
                    yield Listed(keys[number], _etag(number), SIZE, MODIFIED)

    def _number(self, key: str) -> int | None:
        for root, ending in KINDS:
            if key.startswith(f"{root}c") and key.endswith(ending):
                return int(key[len(root) + 1 : -len(ending)])
        return None


def _etag(number: int) -> str:
    return f'"{number * 2_654_435_761:032x}"'


def _document(number: int) -> dict[str, JsonValue]:
    scattered = number * 2_654_435_761 % 2**32
    return {"name": f"Customer {scattered:010d}", "status": f"s{number % 7}", "about": f"{scattered:010d} " * 25}


@dataclass(frozen=True, slots=True)
class SeededSpec(JobSpec):
    """A spec whose url is the directory of what is written."""

    count: int = 0

    def collection(self) -> Collection:
        return _opened(self)


@lru_cache(maxsize=1)
def _opened(spec: SeededSpec) -> Collection:
    schema = spec.schema()
    store = SeededStore(Path(spec.url), spec.count)
    return Collection(store, StorageResolver(schema), spec.model, schema.model(spec.model))


def seeded_spec(directory: Path, count: int) -> SeededSpec:
    schema = schema_of(fields=FIELDS, indexes=INDEXES, oplog=True, manifest={"enabled": True})
    return SeededSpec(str(directory), None, "Customer", load_schema(schema).to_json().decode(), count)
