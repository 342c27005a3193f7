"""A million rows, for the benchmark `query`: the filtered scan against deltalake and DuckDB, the memory that it takes,
and totals by group against DuckDB.

DuckDB reads our own Parquet files, through a dataset of PyArrow: its client for S3 is an extension, which it would have
to download. The memory is what a new process needs for one scan beyond what it had before (imports, client), compared
to the size of the same rows as an Arrow table. For totals, both have the rows in memory: ours as after any query, those
of DuckDB as an Arrow table. Sums of ours are exact, those of DuckDB are of floats.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import S3FileSystem

from scripts.benchmarks import _customers as customers
from scripts.benchmarks._contestants import LIMIT, Delta
from scripts.benchmarks._turns import check_answers, medians, rounded
from worm.dev.aws import Aws
from worm.sdk.database import Model
from worm.store.s3 import S3Store

COUNT = 1_000_000
BATCH = 50_000
MEMORY_MAX = 1.5
GROUP_MAX = 2.0
GROUPED = "SELECT city, count(*), sum(amount), avg(score) FROM rows GROUP BY city ORDER BY city"


def arrow_rows(count: int) -> pa.Table:
    ranges = (range(start, min(start + BATCH, count)) for start in range(0, count, BATCH))
    made = (pa.Table.from_pylist([{"id": customers.customer_id(n), **customers.row(n)} for n in one]) for one in ranges)
    return pa.concat_tables(made).combine_chunks()


def scan(model: Model) -> list[str]:
    """The first of the active customers, by name."""
    rows = model.find_all(filter={"status": "active"}, sort="name", limit=LIMIT, select=customers.TABLE_FIELDS)
    return [str(row["id"]) for row in rows]


def cold(bucket: str, prefix: str, endpoint_url: str) -> list[str]:
    store = S3Store(bucket, prefix, endpoint_url=endpoint_url)
    return scan(customers.session(store, customers.schema()))


class OwnParquet:
    """DuckDB over the Parquet files of the table."""

    def __init__(self, aws: Aws, bucket: str, prefix: str) -> None:
        import duckdb  # here, because it prints a list of leaks at the end of every process that imported it

        self._connection = duckdb.connect()
        self._place = f"{bucket}/{prefix}/org/customers/.worm.lake"
        self._aws = aws

    def query(self) -> list[str]:
        keys = self._aws.credentials
        files = S3FileSystem(
            access_key=keys["AWS_ACCESS_KEY_ID"],
            secret_key=keys["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=self._aws.endpoint_url.removeprefix("http://"),
            scheme="http",
            region=self._aws.region,
        )
        rows = ds.dataset(self._place, filesystem=files, format="parquet")
        self._connection.register("rows", rows)
        query = f"SELECT * FROM rows WHERE status = 'active' ORDER BY name LIMIT {LIMIT}"
        found: pa.Table = self._connection.sql(query).to_arrow_table()
        return [row["id"] for row in found.to_pylist()]

    def grouped(self, table: pa.Table) -> object:
        self._connection.register("rows", table)
        return self._connection.sql(GROUPED).fetchall()


def measure(aws: Aws, bucket: str, repeats: int, count: int = COUNT) -> dict[str, object]:
    prefix, wanted = f"{count}-million", customers.schema()
    place = (bucket, prefix, aws.endpoint_url)
    seeding = customers.session(S3Store(bucket, prefix, endpoint_url=aws.endpoint_url), wanted)
    seeding.table.manifest.update(lambda _: customers.manifest(count, wanted))
    seeding.table.complete()
    del seeding
    again = customers.session(S3Store(bucket, prefix, endpoint_url=aws.endpoint_url), wanted)
    table, duckdb = arrow_rows(count), OwnParquet(aws, bucket, prefix)
    delta = Delta(aws, f"s3://{bucket}/{prefix}-delta", table)
    scans = {
        "scan_cold_new_client": lambda: cold(*place),
        "scan_repeated": lambda: scan(again),
        "deltalake_opening": delta.opening,
        "deltalake_open_handle": delta.on_open_handle,
        "duckdb_own_parquet": duckdb.query,
    }
    check_answers({"": "deltalake_opening"}, scans)
    totals = {
        "group_by": lambda: again.aggregate(count=True, sum="amount", avg="score", group_by="city"),
        "duckdb_group_by": lambda: duckdb.grouped(table),
    }
    times = medians(scans, repeats, is_warm=True) | medians(totals, repeats)
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-m", "scripts.benchmarks._million", *place]
    memory = (
        json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True, env=path).stdout)
        / table.nbytes
    )
    pairs = {
        ("scan_cold_new_client", "deltalake_opening"): 1.0,
        ("scan_cold_new_client", "duckdb_own_parquet"): 1.0,
        ("scan_repeated", "deltalake_open_handle"): 0.25,
        ("group_by", "duckdb_group_by"): GROUP_MAX,
    }
    ratios = {f"{one} / {other}": times[one] / times[other] for one, other in pairs}
    limits = zip(ratios.items(), pairs.values(), strict=True)
    goals = {f"{name} is at most {most}": ratio <= most for (name, ratio), most in limits}
    return {
        "arrow_bytes": table.nbytes,
        "milliseconds": rounded(times),
        "ratio": rounded({**ratios, "memory of a cold scan / Arrow": memory}),
        "goals": {**goals, f"memory of a cold scan is at most {MEMORY_MAX} x the Arrow table": memory <= MEMORY_MAX},
    }


def _resident(member: str) -> int:
    """`VmRSS`: the memory of this process, `VmHWM`: at its peak. `getrusage` has the peak of the parent before."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(member))


def _peak(bucket: str, prefix: str, endpoint_url: str) -> int:
    """The bytes that a scan takes at most, beyond what the process had before."""
    store = S3Store(bucket, prefix, endpoint_url=endpoint_url)
    store.get("nothing")

    for module in ("worm.tables.parquet_part", "worm.tables.typed"):  # what packages take is not the scan's
        import_module(module)
    before = _resident("VmRSS")
    cold(bucket, prefix, endpoint_url)
    return _resident("VmHWM") - before


if __name__ == "__main__":
    print(_peak(*sys.argv[1:]))
