"""A collection for the Spark suites: customers and their history, made by raw uploads and a sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tests.harness import DataPath, schema_of
from worm.collections.collection import Collection
from worm.collections.layout import SCHEMA_KEY
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.spark.cluster import JobSpec, job_spec
from worm.store.base import Store
from worm.store.open import open_store
from worm.tables.table import Table
from worm.tables.verify import VerifyReport, verify_collection
from worm.upkeep.session import Session, Settings
from worm.upkeep.sweep import Sweep

FIELDS = {
    "name": {"type": "string"},
    "status": {"type": "string"},
    "score": {"type": "number"},
    "email": {"type": "string"},
    "tags": {"type": "array", "items": "string"},
}
INDEXES = {
    "byStatus": {"field": "status"},
    "byEmail": {"field": "email", "unique": True},
    "byTag": {"field": "tags", "type": "multiValue"},
}
Document = Mapping[str, JsonValue]


@dataclass(frozen=True)
class _Spec:
    """The collection of a data path, as each task opens it."""

    path: DataPath
    model: str = "Customer"

    def collection(self) -> Collection:
        return self.path.collection


def spec_of(path: DataPath) -> JobSpec:
    """For tasks that run in this process."""
    return cast(JobSpec, _Spec(path))


def document(number: int, score: int = 0) -> Document:
    """Ids with dots, hyphens and colons in values, fields that are not declared; every 40th shares its e-mail address
    with its neighbour."""
    email = f"c{number - 1 if number % 40 == 7 else number}@example.com"
    tags: list[JsonValue] = [f"t{number % 7}", f"ü:{number % 3}"]
    found: dict[str, JsonValue] = {"name": f"Customer {number}", "status": f"s{number % 5}", "score": score}
    if number % 11:
        found["email"] = email
    if number % 13:
        found["tags"] = tags
    if number % 3:
        found |= {"vat": number, "a.b": [None, number]}
    return found


def customer_id(number: int) -> str:
    return ("c.{}", "c-{}", "d{}.x", "E_{}~")[number % 4].format(f"{number:04d}")


class Room:
    """A bucket at a url, its workers, and what is derived."""

    def __init__(
        self,
        url: str,
        *,
        endpoint_url: str | None = None,
        oplog: bool = True,
        threshold: int = 10_000,
        **customer: object,
    ) -> None:
        manifest = {"enabled": True, "partitionThreshold": threshold}
        more: dict[str, Any] = {"fields": FIELDS, "indexes": INDEXES, **customer}
        schema = schema_of(oplog=oplog, manifest=manifest, **more)
        self.url = url
        self.endpoint_url = endpoint_url
        self.store: Store = open_store(url, endpoint_url=endpoint_url)
        self.store.put(SCHEMA_KEY, load_schema(schema).to_json())
        self.workspace = Session(self.store, Settings("documents", threads=4))
        self.workspace.refresh()

    @property
    def spec(self) -> JobSpec:
        return job_spec(self.url, "Customer", self.endpoint_url)

    @property
    def table(self) -> Table:
        fresh = Session(open_store(self.url, endpoint_url=self.endpoint_url), Settings("documents", threads=4))
        fresh.refresh()
        return fresh.table("Customer")

    def key(self, entity_id: str) -> str:
        return f"org/customers/{entity_id}/profile.json"

    def put(self, numbers: Iterable[int], score: int = 0) -> None:
        for number in numbers:
            self.store.put(self.key(customer_id(number)), json.dumps(document(number, score)).encode())

    def remove(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.store.delete(self.key(customer_id(number)))

    def sweep(self) -> None:
        report = Sweep(self.workspace).run(lambda: math.inf, resume=False)[0]
        assert report.error is None, report.error
        assert report.problems == {}

    def fill(self, count: int) -> None:
        """Documents with some history, some of them deleted."""
        self.put(range(count))
        self.sweep()
        self.put(range(0, count, 9), score=1)
        self.remove(range(0, count, 17))
        self.sweep()

    def derived(self) -> dict[str, bytes]:
        """Every file that is derived, but claims (each of which is unlike any other) and staged files."""
        keys = [listed.key for listed in self.store.list("org/customers/.worm")]
        kept = [key for key in keys if "/.claims/" not in key and "/stage-" not in key]
        found = {key: self.store.get(key) for key in kept}
        return {key: one.body for key, one in found.items() if one is not None}

    def claimed(self) -> dict[str, str]:
        """Key of the claim → id."""
        keys = [listed.key for listed in self.store.list("org/customers/.worm.index/") if "/.claims/" in listed.key]
        found = {key: self.store.get(key) for key in keys}
        return {key: json.loads(one.body)["id"] for key, one in found.items() if one is not None}

    def forget(self) -> None:
        """Remove everything that is derived."""
        for listed in list(self.store.list("org/customers/.worm")):
            self.store.delete(listed.key)

    def rebuild_in_process(self) -> None:
        table = self.table
        manifest = table.rebuild()
        if manifest is not None:
            table.collection.claims.restore(manifest.entities)

    def verify(self) -> VerifyReport:
        return verify_collection(self.table.collection)
