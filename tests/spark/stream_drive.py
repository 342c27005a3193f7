"""Run by test_stream_spark.py in a process of its own, which is killed at any time: two streaming queries.

    python -m tests.spark.stream_drive MASTER URL OTHER SCRATCH

One query writes the changes of the model at URL to SCRATCH, a file of JSON per batch. The other one replicates them to
OTHER. Both go on until there is a file SCRATCH/stop; then they report what is there, and end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame

from tests.spark.session import new_session
from worm.spark.source import register

LIMIT = 15
REPLICA = ("id", "after.*", "op = 'delete' AS _deleted")


def keep(scratch: Path) -> Callable[[DataFrame, int], None]:
    """A sink that is idempotent by itself: the file of a batch is replaced."""

    def write(frame: DataFrame, number: int) -> None:
        rows = [[row.id, row.seq, row.op] for row in frame.select("id", "seq", "op").collect()]
        draft = scratch / f"draft-{os.getpid()}"
        draft.write_text(json.dumps(rows))
        draft.rename(scratch / f"batch-{number:05d}.json")

    return write


def main(master: str, url: str, other: str, scratch: Path) -> None:
    spark = new_session(master, spark__task__maxFailures="8")
    register(spark)
    options = {"url": url, "model": "Thing", "changes": "true", "maxChangesPerTrigger": str(LIMIT)}
    changes = spark.readStream.format("worm").options(**options).load()
    kept = changes.writeStream.foreachBatch(keep(scratch)).option("checkpointLocation", f"{scratch}/kept")
    replica = changes.selectExpr(*REPLICA).writeStream.format("worm")
    sunk = replica.options(url=other, model="Thing").option("checkpointLocation", f"{scratch}/sunk")
    queries = [one.trigger(processingTime="100 milliseconds").start() for one in (kept, sunk)]
    while not (scratch / "stop").exists():
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure
        time.sleep(0.1)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
