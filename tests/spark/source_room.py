"""A model with a field of every kind, its session, and what the data source must show of it.

What tasks do is tested in this process, on a store in memory; that Spark carries it, on a directory or on moto.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from worm.formats import load_schema
from worm.formats.strict_json import JsonObject, JsonValue, dumps
from worm.sdk.database import Model, Worm, connect, push
from worm.spark.cluster import JobSpec
from worm.spark.source import register
from worm.spark.source.options import ReadOptions, Target, WriteOptions
from worm.spark.source.reader import WormReader
from worm.spark.source.rows import Reading
from worm.spark.source.schema import schema_of
from worm.spark.source.writer import Writing, Written, write_rows
from worm.store.open import open_store

if TYPE_CHECKING:
    from worm.upkeep.session import Maintenance

FIELDS: dict[str, object] = {
    "name": {"type": "string"},
    "count": {"type": "integer"},
    "score": {"type": "number"},
    "active": {"type": "boolean"},
    "since": {"type": "datetime"},
    "tags": {"type": "array", "items": "string"},
    "visits": {"type": "array", "items": "datetime"},
    "address": {"type": "object", "properties": {"city": {"type": "string"}, "floor": {"type": "integer"}}},
    "anything": {"type": "object"},
    "mixed": {"type": "array"},
}
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMES = ["2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00", "2026-02-03T04:05:06.789Z"]
FILTERS: list[JsonObject] = [
    {},
    {"name": "n1"},
    {"name": None},
    {"name": {"$startsWith": "n"}},
    {"count": {"$gte": 2}},
    {"count": {"$exists": False}},
    {"score": {"$lt": 1.5}},
    {"active": True},
    {"active": {"$ne": True}},
    {"since": {"$gt": "2026-01-01"}},
    {"tags": "a"},
    {"tags": {"$contains": "b"}},
    {"address.city": {"$in": ["Bonn", "Köln"]}},
    {"anything": {"$ne": None}},
    {"$or": [{"count": 1}, {"$not": {"name": "n2"}}]},
    {"$and": [{"id": {"$gt": "c"}}, {"id": {"$lt": "d"}}]},
    {"extra": 1},
]


def random_document(rng: random.Random) -> JsonObject:
    """Every field may be missing, null or there."""
    choices: dict[str, list[JsonValue]] = {
        "name": ["n1", "n2", "=SUM(1)", "ü:/ .x", ""],
        "count": [0, 1, 2, -3, 2**62],
        "score": [0, 1.5, -2.25, 1e300],
        "active": [True, False],
        "since": [*TIMES],
        "tags": [[], ["a"], ["a", "b"], ["", "x,y"]],
        "visits": [[], [*TIMES[1:3]]],
        "address": [{}, {"city": "Bonn"}, {"city": "Köln", "floor": 3, "more": 1}],
        "anything": [{}, {"deep": [1, {"x": None}]}],
        "mixed": [[1, "1", None, {"a": 2}], ["t"]],
        "extra": [1],
    }
    values = {name: rng.choice(known) for name, known in choices.items()}
    kept = {name: value for name, value in values.items() if rng.random() < 0.7}
    return {name: None if rng.random() < 0.1 else value for name, value in kept.items()}


def random_id(rng: random.Random, number: int) -> str:
    """Dots and hyphens, which sort before the slash of a key, and ids that others begin with."""
    return rng.choice(["c{}", "c{}.json", "c{}-x", "_c{}", "d{}~.tmp"]).format(number % 40 if number % 3 else number)


class SourceRoom:
    """A bucket at a url."""

    def __init__(
        self,
        url: str,
        *,
        endpoint_url: str | None = None,
        layout: str = "root",
        maintenance: Maintenance = "inline",
        **model: object,
    ) -> None:
        self.url, self.endpoint_url = url, endpoint_url
        definition: dict[str, object] = {
            "path": "#org/@things/(id:string)",
            "fields": FIELDS,
            "oplog": True,
            "softDelete": True,
            "snapshots": {"every": 3},
            "manifest": {"enabled": True},
        }
        shape = {"version": "1.0", "storage": {"layout": layout}, "models": {"Thing": {**definition, **model}}}
        push(open_store(url, endpoint_url=endpoint_url), load_schema(shape))
        self.session: Worm = connect(url, endpoint_url=endpoint_url, maintenance=maintenance)

    @property
    def things(self) -> Model:
        return self.session.model("Thing")

    @property
    def spec(self) -> JobSpec:
        """Made here: for a store in memory nobody else makes one."""
        return JobSpec(self.url, self.endpoint_url, "Thing", self.session.schema.to_json().decode())

    @property
    def target(self) -> Target:
        return Target(self.url, "Thing", self.endpoint_url)

    def _elsewhere(self, options: Mapping[str, str]) -> dict[str, str]:
        """Checked as if the bucket were one that other processes can open."""
        return {"url": "file:///elsewhere", "model": "Thing", **options}

    def options(self, **options: str) -> dict[str, str]:
        endpoint = {} if self.endpoint_url is None else {"endpoint_url": self.endpoint_url}
        return {"url": self.url, "model": "Thing", **endpoint, **options}

    # Reading

    def reader(self, schema: StructType | None = None, read_from: str = "documents", **options: str) -> WormReader:
        """With the option `from`, which is a keyword here."""
        given = {"from": read_from, "partitions": "4", **options}
        read = replace(ReadOptions.of(self._elsewhere(given)), target=self.target)
        chosen = schema if schema is not None else schema_of(self.spec.collection().definition, read.kind)
        return WormReader(Reading(self.spec, read, chosen, self.session.clock.now()))

    def rows(
        self, *, schema: StructType | None = None, read_from: str = "documents", **options: str
    ) -> list[dict[str, object]]:
        """What the tasks of a read would give, in this process."""
        reader = self.reader(schema, read_from, **options)
        return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]

    def frame(self, spark: SparkSession, **options: str) -> DataFrame:
        register(spark)
        return spark.read.format("worm").options(**self.options(**{"partitions": "2", **options})).load()

    # Writing

    def writing(self, *, overwrite: bool = False, start: datetime = START, **options: str) -> Writing:
        chosen = replace(WriteOptions.of(self._elsewhere(options)), target=self.target)
        return Writing(self.spec, chosen, overwrite, start)

    def write(self, rows: Iterable[Mapping[str, object]], writing: Writing | None = None) -> Written:
        """One attempt of one task, in this process."""
        return write_rows(writing or self.writing(), iter(rows))

    def histories(self) -> dict[str, list[str]]:
        """The operations of every entity."""
        ids = self.session.model("Thing")._collection.recorded_seqs()
        return {one: [entry.op for entry in self.things.get_history(one)] for one in sorted(ids)}


def shown(row: Mapping[str, JsonValue]) -> dict[str, object]:
    """A row of the SDK as the data source must show it: written here once more, apart from the code under test."""
    cells: dict[str, object] = {"id": row["id"]}
    for name, field in {**FIELDS, "createdAt": {"type": "datetime"}, "updatedAt": {"type": "datetime"}}.items():
        value, kind = row.get(name), cast("dict[str, str]", field)["type"]
        if value is None:
            cells[name] = None
        elif kind == "datetime":
            cells[name] = moment(value)
        elif kind == "number":
            cells[name] = float(cast(float, value))
        elif name == "visits":
            cells[name] = [moment(one) for one in cast("list[JsonValue]", value)]
        elif name == "mixed":
            cells[name] = [text(one) for one in cast("list[JsonValue]", value)]
        elif name == "address":
            found = cast("dict[str, JsonValue]", value)
            cells[name] = {"city": found.get("city"), "floor": found.get("floor")}
        else:
            cells[name] = dumps(value).decode() if name == "anything" else value
    return cells


def moment(value: JsonValue) -> datetime:
    found = datetime.fromisoformat(str(value))
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def text(value: JsonValue) -> str | None:
    return value if value is None or isinstance(value, str) else dumps(value).decode()


def memory_url() -> str:
    return f"memory://{uuid.uuid4()}"


def by_id(rows: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    return sorted(map(dict, rows), key=lambda row: (str(row["id"]), str(row.get("seq", ""))))
