"""Run by test_processes.py in a process of its own: write, read, verify, rebuild and export on separate executors.

    python -m tests.spark.jobs_drive URL ENDPOINT SCRATCH [STEP...]

In the write one task fails, the executor of another is killed, and a third lags behind until Spark runs a second
attempt beside it; each after a part of its rows is stored. In verify an executor is killed. The write is always done,
of the other steps those that are named (all). Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.export import main as export
from spark_jobs.verify import main as verify
from tests.spark.session import CLUSTER, another_host, executor_pid, new_session
from tests.spark.source_room import SourceRoom
from worm.collections import claim_slices
from worm.collections.claim_slices import Found, audit_slice
from worm.collections.claim_slices import Rows as ClaimRows
from worm.collections.collection import Collection
from worm.spark.cluster import JobSpec
from worm.tables.verify import verify_collection

FAULTS = ("lag", "kill", "failure")
ROWS, BATCH = 8, 2
PADDING = "x" * 40_000  # enough to fill the pipes between Spark and Python, so that rows move on before a task ends
WAIT_SECONDS = 90.0
INDEXES = {"byName": {"field": "name", "unique": True}, "byCount": {"field": "count"}}
SPECULATION = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__quantile": "0.25",
    "spark__speculation__minTaskRuntime": "100ms",
}


@dataclass(frozen=True)
class Rows:
    """The rows of the write: each task has a fault of its own, in its first attempt."""

    spec: JobSpec
    notes: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        part, attempt = task.partitionId(), task.attemptNumber()
        Path(self.notes, f"{FAULTS[part]}-{attempt}").touch()
        for _ in batches:
            pass
        for start in range(0, ROWS, BATCH):
            names = [f"p{part}.{number}" for number in range(start, start + BATCH)]
            columns = {"id": names, "name": names, "count": [part] * BATCH, "padding": [PADDING] * BATCH}
            yield pa.RecordBatch.from_pydict(columns)
            if attempt == 0 and start == ROWS // 2:
                self._fault(part)

    def _fault(self, part: int) -> None:
        prefix = f"org/things/p{part}."
        _wait(lambda: any(self.spec.store().list(prefix)))
        Path(self.notes, f"{FAULTS[part]}-stored").write_text(str(len(list(self.spec.store().list(prefix)))))
        if FAULTS[part] == "failure":
            raise ConnectionResetError("the first attempt fails")
        if FAULTS[part] == "kill":
            os.kill(executor_pid(), signal.SIGKILL)  # this test started it
        # The other attempt is under way when this one goes on.
        _wait(Path(self.notes, f"{FAULTS[part]}-1").exists)

    def frame(self, spark: SparkSession) -> DataFrame:
        numbers = spark.range(len(FAULTS), numPartitions=len(FAULTS))
        return numbers.mapInArrow(self, "id string, name string, count bigint, padding string")


@dataclass(frozen=True)
class KilledAudit:
    """The audit of claims, whose executor is killed once; with it goes what that executor kept of the earlier steps."""

    notes: str

    def __call__(self, collection: Collection, rows: ClaimRows, number: int, slices: int) -> Iterator[Found]:
        try:
            Path(self.notes, "audit-killed").touch(exist_ok=False)
        except FileExistsError:
            return audit_slice(collection, rows, number, slices)
        os.kill(executor_pid(), signal.SIGKILL)  # this test started it
        raise AssertionError("the executor lives")


def _wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def written(spark: SparkSession, room: SourceRoom, notes: Path) -> dict[str, object]:
    """Both modes; the faults come with the first."""
    options = room.options(batch=str(BATCH), actor="job:source")
    with another_host(spark, notes):
        Rows(room.spec, str(notes)).frame(spark).write.format("worm").options(**options).mode("append").save()
    appended = sorted({tuple(one) for one in room.histories().values()})
    changed = read(spark, room).where("count = 1").selectExpr("id", "count + 10 AS count")
    changed.write.format("worm").options(**options).mode("overwrite").save()
    return {
        "attempts": sorted(one.name for one in notes.glob("*-[0-9]")),
        "stored before the fault": sorted(int(one.read_text()) for one in notes.glob("*-stored")),
        "appended": appended,
        "operations": sorted(tuple(one) for one in room.histories().values()),
        "clean": verify_collection(room.spec.collection()).is_clean,
    }


def read(spark: SparkSession, room: SourceRoom, **options: str) -> DataFrame:
    return spark.read.format("worm").options(**room.options(partitions="3", **options)).load()


def verified(room: SourceRoom, command: list[str], notes: Path) -> dict[str, object]:
    """What is damaged is found, though an executor is killed, and repaired by a rebuild."""
    store = room.session.store
    store.put("org/things/p0.0/data.json", b'{"name": "unrecorded", "count": 7}')
    for listed in list(store.list("org/things/.worm.index/")):
        store.delete(listed.key)
    claim_slices.audit_slice = KilledAudit(str(notes))
    codes = [verify([*command, "--out", f"file://{notes}"])]
    claim_slices.audit_slice = audit_slice
    told = json.loads(Path(notes, "report.json").read_text())
    codes.append(verify([*command, "--fix"]))
    clean = verify_collection(room.spec.collection()).is_clean
    killed = Path(notes, "audit-killed").exists()
    return {"codes": codes, "killed": killed, "kinds": told["models"][0]["kinds"], "clean": clean}


def exported(spark: SparkSession, command: list[str], notes: Path) -> list[int]:
    out = f"file://{notes}/export"
    return [export([*command, "--out", out, "--filter", "count>1"]), spark.read.parquet(out).count()]


def updates(spark: SparkSession, room: SourceRoom) -> int:
    return read(spark, room, history="true", filter='{"count": 11}').where("op = 'update'").count()


def main(url: str, endpoint_url: str, scratch: str, *steps: str) -> None:
    room = SourceRoom(url, endpoint_url=endpoint_url, indexes=INDEXES)
    notes = Path(scratch, "notes")
    notes.mkdir(parents=True)
    command = ["--url", url, "--endpoint-url", endpoint_url, "--model", "Thing"]
    spark = new_session(CLUSTER, spark__sql__execution__arrow__maxRecordsPerBatch=str(BATCH), **SPECULATION)
    others: dict[str, Callable[[], object]] = {
        "verified": lambda: verified(room, command, notes),
        "exported": lambda: exported(spark, command, notes),
        "updates": lambda: updates(spark, room),
    }
    try:
        result: dict[str, object] = {"spark": pyspark.__version__, "written": written(spark, room, notes)}
        result.update({step: others[step]() for step in steps or others})
    finally:
        spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
