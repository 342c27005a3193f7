"""Run by test_rebuild_memory.py and the benchmark `verify` in its own process: a job on a large collection, and its
peaks of memory.

    python -m tests.spark.memory_drive COUNT SCRATCH [rebuild|verify]

One executor, a process of its own, with two tasks at a time. Before `verify`, the collection is rebuilt in a session
that is not measured. Prints one line of JSON, memory in MB.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.seeded_room import SeededSpec, seeded_spec
from tests.spark.session import new_session
from worm.spark.rebuild_job import rebuild
from worm.spark.verify_job import verify

PAUSE_SECONDS = 0.25


class Watch(threading.Thread):
    """Looks at the processes of the executor all the time: `most` is the largest sum of what they held at one moment,
    `peaks` has the peak of each of the Python workers."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.peaks: dict[int, int] = {}
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(PAUSE_SECONDS):
            self._look()

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _look(self) -> None:
        total = 0
        for pid in _descendants(os.getpid()):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                is_worker = b"pyspark.daemon" in command or b"pyspark/daemon" in command
                if not is_worker and b"CoarseGrainedExecutorBackend" not in command:
                    continue
                total += memory(pid, "VmRSS")
                if is_worker:
                    self.peaks[pid] = memory(pid, "VmHWM")
            except (FileNotFoundError, ProcessLookupError, LookupError):
                continue  # it ended while we looked
        self.most = max(self.most, total)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found[1:]


def memory(pid: int | str, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = next((int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{name}:")), None)
    if found is None:
        raise LookupError(f"process {pid} has no {name} any more")
    return found


def rebuilt(spark: SparkSession, spec: SeededSpec) -> dict[str, object]:
    report = rebuild(spark, spec)
    return {"live": report.live, "partitions": report.partitions}


def verified(spark: SparkSession, spec: SeededSpec) -> dict[str, object]:
    report = verify(spark, spec)
    return {"live": report.documents, "entries": report.entries, "kinds": report.kinds, "shown": report.shown[:3]}


def session() -> SparkSession:
    spark = new_session("local-cluster[1,2,1024]", spark__executor__memory="768m", spark__driver__memory="512m")
    spark.range(2).count()
    return spark


def main(count: int, scratch: Path, job: str = "rebuild") -> None:
    spec = seeded_spec(scratch / "bucket", count)
    if job == "verify":
        spark = session()
        rebuilt(spark, spec)
        spark.stop()
    spark = session()
    watch = Watch()
    watch.start()
    before, start = memory("self", "VmHWM"), time.monotonic()
    told = (verified if job == "verify" else rebuilt)(spark, spec)
    seconds, after = time.monotonic() - start, memory("self", "VmHWM")
    watch.stop()
    spark.stop()
    told |= {
        "seconds": round(seconds),
        "executor": watch.most,
        "workers": sorted(watch.peaks.values()),
        "driver_grew": after - before,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
