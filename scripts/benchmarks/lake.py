"""What it costs to publish 100 changes of 100,000 rows as a version of a Delta table, against deltalake's merge.

The same 100 changes are made to our table and to one that deltalake keeps, in turns, on one embedded moto: next to each
other (in one partition) and scattered (over all partitions). Ours is the publish by a new process; the fold of the
changes comes before it. deltalake merges them by id into a table of the same rows; appending them, which leaves the old
rows, is its lower bound. `ratio` is ours to theirs, below 1 if we are ahead.

Goal: at most 6 requests and 2 for each changed partition.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial

import deltalake
import pyarrow as pa

from scripts.benchmarks import _customers as customers
from scripts.benchmarks._turns import embedded_s3, milliseconds
from worm.dev.aws import Aws
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.s3 import S3Store
from worm.tables.lake.lake import Lake
from worm.tables.lake.publish import Publication

BUCKET = "lake"
CHANGED = 100
REQUESTS_MAX = 6
PER_PARTITION = 2


class Ours:
    """A table with its Delta table, in the bucket."""

    def __init__(self, aws: Aws, count: int) -> None:
        shape = json.loads(customers.schema().to_json())
        shape["models"][customers.MODEL]["lake"] = {"every": "1h"}
        self._aws = aws
        self._schema = load_schema(shape)
        self._writes = customers.Writes()
        manifest = customers.manifest(count, self._schema)
        self._table = self.session().model(customers.MODEL).table
        self._table.manifest.update(lambda _: manifest)
        self.lake().publish()

    def session(self) -> Worm:
        return Worm(S3Store(BUCKET, "ours", endpoint_url=self._aws.endpoint_url), self._schema, probe=False)

    def lake(self) -> Lake:
        """That of a new process."""
        return self.session().lake(customers.MODEL)

    def fold(self, numbers: Sequence[int]) -> None:
        """On a table whose earlier changes are merged and published."""
        self._table.tidy(force=True)
        self.lake().publish()
        self._table.fold(list(self._writes.changes(numbers)))


class Theirs:
    """The same rows in a table of deltalake."""

    def __init__(self, aws: Aws, count: int) -> None:
        self._options = {"AWS_ENDPOINT_URL": aws.endpoint_url, "AWS_ALLOW_HTTP": "true", **aws.credentials}
        self._options |= {"AWS_REGION": aws.region, "conditional_put": "etag"}
        for name in ("merge", "append"):
            deltalake.write_deltalake(self._url(name), self.rows(range(count)), storage_options=self._options)

    def _url(self, name: str) -> str:
        return f"s3://{BUCKET}/delta-{name}"

    def rows(self, numbers: Sequence[int], seq: int = 1) -> pa.Table:
        found = [{"id": customers.customer_id(one), **customers.row(one, seq)} for one in numbers]
        return pa.Table.from_pylist(found)

    def merge(self, changed: pa.Table) -> None:
        table = deltalake.DeltaTable(self._url("merge"), storage_options=self._options)
        merger = table.merge(changed, "old.id = new.id", source_alias="new", target_alias="old")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def append(self, changed: pa.Table) -> None:
        deltalake.write_deltalake(self._url("append"), changed, mode="append", storage_options=self._options)


def measured(ours: Ours, theirs: Theirs, numbers: Sequence[int], rounds: int) -> dict[str, object]:
    taken: dict[str, list[float]] = {"publish": [], "merge": [], "append": []}
    requests, written, found = dict[str, int](), 0, Publication(0, 0, 0, 0)
    for turn in range(rounds):
        ours.fold(numbers)
        changed = theirs.rows(numbers, turn + 2)
        lake = ours.lake()
        before = lake.store.requests.bytes_written

        def publish(lake: Lake = lake) -> None:
            nonlocal found
            found = lake.publish()

        with lake.store.requests.measure() as spent:
            taken["publish"].append(milliseconds(publish))
        requests = requests or spent  # of the first turn: later ones may write a checkpoint
        written = lake.store.requests.bytes_written - before
        taken["merge"].append(milliseconds(partial(theirs.merge, changed)))
        taken["append"].append(milliseconds(partial(theirs.append, changed)))
    times = {name: round(statistics.median(values), 1) for name, values in taken.items()}
    allowed = REQUESTS_MAX + PER_PARTITION * found.added
    return {
        "requests": requests,
        "requests_allowed": allowed,
        "goal_requests_met": requests["total"] <= allowed,
        "changed_partitions": found.added,
        "written_bytes": written,
        "median_ms": times,
        "ratio_to_merge": round(times["publish"] / times["merge"], 2),
        "ratio_to_append": round(times["publish"] / times["append"], 2),
    }


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="bench lake")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(arguments)
    with embedded_s3(BUCKET) as aws:
        ours, theirs = Ours(aws, asked.rows), Theirs(aws, asked.rows)
        cases = {
            "next_to_each_other": range(asked.rows // 3, asked.rows // 3 + CHANGED),
            "scattered": range(0, asked.rows, asked.rows // CHANGED),
        }
        results: dict[str, object] = {"rows": asked.rows, "changes": CHANGED}
        for name, numbers in cases.items():
            print(f"lake: {name}", file=sys.stderr)
            results[name] = measured(ours, theirs, numbers, asked.rounds)
        return results
