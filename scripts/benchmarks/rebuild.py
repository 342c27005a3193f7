"""Building a table of 10,000 and 100,000 documents: the Spark job against reading them in other ways.

- `floor`: a listing, 32 threads of obstore GETs and `orjson.loads`, in one process.
- `spark_boto3`: a listing by boto3, `mapInPandas` with 16 threads of boto3 per task, `json.loads`.
- `spark_local_json`: `spark.read.json` over the same documents as files of the local disk, its schema given.
- `ours`: the rebuild job of a model without oplog: manifest, index, sentinel.
- `ours_oplog`: the same for a model with an oplog, which must read the newest entry of each document, too;
  `floor_oplog` makes only these requests. 10,000 documents only.

`--incremental COUNT` runs something else: a full rebuild of that many documents with an oplog, then an incremental one
after 1 % of them have changed, on a bucket that answers as fast as S3 does (`_seeded_s3.py`).

They take turns in one warm session, on one server that has the documents before anything is timed. `--server moto` is
slow enough to limit everybody; `--server rclone` shows the differences between clients.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import obstore
import orjson
from obstore.store import S3Store as RawBucket

from scripts.benchmarks import _customers as customers
from scripts.benchmarks._seeded_s3 import CHANGED_EVERY, requests_in, seeded_spec
from scripts.benchmarks._servers import CREDENTIALS, requests_of, serving
from worm.collections.entries import OplogEntry
from worm.collections.layout import SCHEMA_KEY
from worm.formats import load_schema
from worm.spark.cluster import job_spec
from worm.spark.rebuild_job import rebuild, rebuild_incrementally

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import SparkSession

BUCKET = "rebuild"
DOCUMENTS, FILE = "org/customers/", "/data.json"
OPLOG, ENTRY = ".oplog/customers/", "/0001.json"
THREADS = 32
BOTO3_THREADS = 16
WARM = 2_000
LARGE = 100_000
WHOLE_MAX = 10_000
FLOOR_MAX, BOTO3_MIN = 1.5, 2.5
INCREMENTAL_MAX = {"requests": 0.1, "seconds": 0.25}
ROOT = Path(__file__).resolve().parents[2]
# Small files cost a read, not the 4 MB that Spark assumes: otherwise it makes a task of every 30 of them.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.files.openCostInBytes": "16384",
}
Contestant = Callable[[], int]


def write_documents(bucket: Path, prefix: str, count: int, *, oplog: bool) -> None:
    """As files: a prefix of the bucket with its schema, and every document once more in one flat directory."""
    base, flat = bucket / prefix, bucket.parent.parent / f"flat-{prefix}"
    # The warm-up collection is partitioned, too: it loads what large ones need.
    shape = orjson.loads(customers.schema(WARM // 2 if count == WARM else WHOLE_MAX).to_json())
    shape["models"][customers.MODEL]["oplog"] = oplog
    for directory in (base / DOCUMENTS, base / OPLOG, flat):
        directory.mkdir(parents=True)
    (base / SCHEMA_KEY).write_bytes(load_schema(shape).to_json())
    for number in range(count):
        entity_id, document = customers.customer_id(number), customers.document(number)
        body = orjson.dumps(document)
        stored = _written(Path(f"{base}/{DOCUMENTS}{entity_id}{FILE}"), body)
        (flat / f"{number:07d}.json").hardlink_to(stored)
        if oplog:
            etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
            entry = OplogEntry(1, "create", "2025-01-01T00:00:00Z", snapshot=document, metadata={"etag": etag})
            _written(Path(f"{base}/{OPLOG}{entity_id}{ENTRY}"), entry.to_bytes())


def _written(path: Path, body: bytes) -> Path:
    path.parent.mkdir()
    path.write_bytes(body)
    return path


class Site:
    """One collection on the server, and its readers."""

    def __init__(self, spark: SparkSession, endpoint_url: str, scratch: Path, prefix: str) -> None:
        self._spark = spark
        self._endpoint_url = endpoint_url
        self._prefix = prefix
        self._flat = scratch / f"flat-{prefix}"
        self._raw = RawBucket(
            BUCKET,
            endpoint=endpoint_url,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": timedelta(seconds=60)},
        )

    def contestants(self, *, oplog: bool) -> dict[str, Contestant]:
        if oplog:
            return {"floor_oplog": self.floor_oplog, "ours_oplog": self.ours}
        return {
            "floor": self.floor,
            "ours": self.ours,
            "spark_boto3": self.spark_boto3,
            "spark_local_json": self.spark_local_json,
        }

    def ours(self) -> int:
        return rebuild(self._spark, job_spec(f"s3://{BUCKET}/{self._prefix}", customers.MODEL, self._endpoint_url)).live

    def floor(self) -> int:
        return self._parsed(self._listed(DOCUMENTS, FILE))

    def floor_oplog(self) -> int:
        entries = self._listed(OPLOG, ENTRY)
        ids = [path.split("/")[-2] for path in entries]
        self._parsed(entries)
        return self._parsed([f"{self._prefix}/{DOCUMENTS}{entity_id}{FILE}" for entity_id in ids])

    def spark_boto3(self) -> int:
        endpoint_url = self._endpoint_url
        pages = boto3.client("s3", endpoint_url=endpoint_url).get_paginator("list_objects_v2")
        listed = pages.paginate(Bucket=BUCKET, Prefix=f"{self._prefix}/{DOCUMENTS}")
        names = (one["Key"] for page in listed for one in page["Contents"])
        keys = [(name,) for name in names if name.endswith(FILE)]

        def read(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            import pandas

            client = boto3.client("s3", endpoint_url=endpoint_url)

            def name_of(key: str) -> str:
                document = json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
                return str(document["name"])

            for frame in frames:
                with ThreadPoolExecutor(BOTO3_THREADS) as pool:
                    yield pandas.DataFrame({"name": list(pool.map(name_of, frame["key"]))})

        rows = self._spark.createDataFrame(self._spark.sparkContext.parallelize(keys, 8), "key string")
        return rows.mapInPandas(read, "name string").count()

    def spark_local_json(self) -> int:
        from pyspark.sql.functions import count

        shape = ", ".join(f"`{name}` string" for name in (*customers.TABLE_FIELDS, "notes"))
        found = self._spark.read.schema(shape).json(str(self._flat)).agg(count("about").alias("n")).first()
        return 0 if found is None else int(found["n"])

    def _listed(self, directory: str, ending: str) -> list[str]:
        pages = obstore.list(self._raw, f"{self._prefix}/{directory}", chunk_size=1000)
        return [one["path"] for page in pages for one in page if one["path"].endswith(ending)]

    def _parsed(self, paths: list[str]) -> int:
        with ThreadPoolExecutor(THREADS) as pool:
            bodies = pool.map(lambda path: obstore.get(self._raw, path).bytes(), paths)
            return sum(isinstance(orjson.loads(memoryview(body)), dict) for body in bodies)


def measured(work: Contestant, count: int) -> float:
    start = time.perf_counter()
    done = work()
    taken = time.perf_counter() - start
    if done != count:
        raise RuntimeError(f"{done} of {count} documents")
    return taken


def timed(contestants: dict[str, Contestant], count: int, rounds: int) -> dict[str, float]:
    """Median seconds, in another order each round."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name in random.Random(turn).sample(list(contestants), len(contestants)):
            taken[name].append(measured(contestants[name], count))
            sys.stderr.write(f"{count} {name}: {taken[name][-1]:.2f} s\n")
    return {name: statistics.median(values) for name, values in taken.items()}


def ratios_of(seconds: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for ours in ("ours", "ours_oplog"):
        for floor in ("floor", "spark_local_json", "floor_oplog"):
            if {ours, floor} <= set(seconds) and ("oplog" in ours) == ("oplog" in floor):
                found[f"{ours} / {floor}"] = seconds[ours] / seconds[floor]
    if "spark_boto3" in seconds:
        found["spark_boto3 / ours"] = seconds["spark_boto3"] / seconds["ours"]
    return _rounded(found)


def requests_per_document(url: str, contestants: dict[str, Contestant]) -> dict[str, float]:
    """As counted by moto, including listings."""
    found: dict[str, float] = {}
    for name, work in contestants.items():
        before = sum(requests_of(url).values())
        work()
        found[name] = round((sum(requests_of(url).values()) - before) / WARM, 3)
    return found


def run(spark: SparkSession, server: str, counts: list[int], rounds: int) -> dict[str, object]:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as name:
        scratch = Path(name)
        bucket = scratch / "buckets" / BUCKET
        with_oplog = [count for count in counts if count < LARGE]
        for oplog, several in ((False, [WARM, *counts]), (True, [WARM, *with_oplog])):
            for count in dict.fromkeys(several):
                write_documents(bucket, _prefix(count, oplog=oplog), count, oplog=oplog)
        with serving(server, scratch / "buckets") as url:
            for oplog in (False, True):
                contestants = Site(spark, url, scratch, _prefix(WARM, oplog=oplog)).contestants(oplog=oplog)
                for work in contestants.values():
                    measured(work, WARM)
                if server == "moto":
                    key = "requests per document, with oplog" if oplog else "requests per document"
                    results[key] = requests_per_document(url, contestants)
            for count in counts:
                contestants = Site(spark, url, scratch, _prefix(count, oplog=False)).contestants(oplog=False)
                is_slow = server == "moto" and count >= LARGE
                if is_slow:
                    del contestants["spark_boto3"]  # it alone would take minutes, and shows no more than at 10,000
                taken = timed(contestants, count, 1 if count >= LARGE else rounds)
                if count in with_oplog:
                    site = Site(spark, url, scratch, _prefix(count, oplog=True))
                    taken |= timed(site.contestants(oplog=True), count, rounds)
                results[f"{count} documents"] = {"seconds": _rounded(taken), "ratios": ratios_of(taken)}
    return results


def run_incremental(spark: SparkSession, count: int) -> dict[str, object]:
    """Requests and seconds of a full rebuild, and of an incremental one with 1 % of changes."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as name:
        scratch = Path(name)
        rebuild(spark, seeded_spec(_made(scratch / "warm"), WARM, changed=False))
        for what, changed, work in (("full", False, rebuild), ("incremental", True, rebuild_incrementally)):
            spec = seeded_spec(_made(scratch / "cold"), count, changed=changed)
            before, start = requests_in(Path(spec.notes)), time.perf_counter()
            report = work(spark, spec)
            seconds = time.perf_counter() - start
            if report.live != count or report.changed != (count // CHANGED_EVERY if changed else 0):
                raise RuntimeError(report.summary())
            requests = requests_in(Path(spec.notes)) - before
            found[what] = {"seconds": round(seconds, 1), "requests": requests.total(), **requests}
            sys.stderr.write(f"{count} {what}: {found[what]}\n")
    ratios = {name: found["incremental"][name] / found["full"][name] for name in INCREMENTAL_MAX}
    goals = {
        f"incremental / full, {name}: at most {most}": ratios[name] <= most for name, most in INCREMENTAL_MAX.items()
    }
    return {
        "documents": count,
        **found,
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "goals": goals,
    }


def _made(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    return directory


def _prefix(count: int, *, oplog: bool) -> str:
    return f"{count}-oplog" if oplog else str(count)


def _rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.items()}


def main(arguments: list[str]) -> dict[str, object]:
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(prog="scripts/bench rebuild")
    parser.add_argument("--server", choices=("moto", "rclone"), default="moto")
    parser.add_argument("--quick", action="store_true", help="10,000 documents only, one round")
    parser.add_argument("--count", type=int, action="append", help="other numbers of documents; repeatable")
    parser.add_argument("--incremental", type=int, metavar="COUNT", help="full against incremental, and nothing else")
    chosen = parser.parse_args(arguments)
    counts = chosen.count or ([10_000] if chosen.quick else [10_000, LARGE])
    os.environ.update(CREDENTIALS)  # before the session, which passes them to its Python workers
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "shared"), str(ROOT)])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        if chosen.incremental:
            return run_incremental(spark, chosen.incremental)
        results = run(spark, chosen.server, counts, 1 if chosen.quick else 3)
    finally:
        spark.stop()
    goals = {"ours / floor": f"at most {FLOOR_MAX}", "spark_boto3 / ours": f"at least {BOTO3_MIN}"}
    return {"server": chosen.server, "goals": goals, **results}
