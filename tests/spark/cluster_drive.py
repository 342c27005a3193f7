"""Run by test_rebuild_cluster.py in a process of its own: rebuilds on separate executors, with faults in their tasks.

    python -m tests.spark.cluster_drive URL SCRATCH

Prints one line of JSON: per fault, whether the bytes are those of a rebuild without any.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Generic, TypeVar

from pyspark import TaskContext

from tests.spark.collection_room import Room
from tests.spark.session import CLUSTER, another_host, executor_pid, new_session
from worm.collections import division
from worm.spark import rebuild_job
from worm.tables.tasks import rebuild

T = TypeVar("T")
R = TypeVar("R")
W = TypeVar("W")
WAIT_SECONDS = 90.0


class Faulty(Generic[W, T, R]):
    """A task function that fails in one way, once."""

    def __init__(self, work: Callable[[W, T], R], fault: str, marker: str) -> None:
        self._work, self._fault, self._marker = work, fault, marker

    def __call__(self, where: W, item: T) -> R:
        context = TaskContext.get()
        assert context is not None
        is_chosen = context.partitionId() == 0 and self._is_first()
        if context.partitionId() == 0 and not is_chosen:
            Path(f"{self._marker}-again").touch()
        result = self._work(where, item)
        if is_chosen and self._fault == "failure":
            raise OSError("a task fails after its work")
        if is_chosen and self._fault == "kill":
            os.kill(executor_pid(), signal.SIGKILL)  # which this test started
        if is_chosen and self._fault == "speculation":
            until = time.monotonic() + WAIT_SECONDS
            while not self.happened and time.monotonic() < until:
                time.sleep(0.05)
        return result

    @property
    def happened(self) -> bool:
        """Was there a second attempt?"""
        return Path(f"{self._marker}-again").exists()

    def _is_first(self) -> bool:
        try:
            Path(self._marker).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def main(url: str, scratch: str) -> None:
    division.STEP, division.MARKS_PER_PORTION, division.PORTION_IDS = 5, 2, 10  # several tasks, as large ones have
    division.ROWS_PER_TASK = 20
    room = Room(url, threshold=30)
    room.fill(90)
    room.forget()
    room.rebuild_in_process()
    expected, claimed = room.derived(), room.claimed()
    spark = new_session(
        CLUSTER,
        spark__speculation="true",
        spark__speculation__multiplier="1.5",
        spark__speculation__quantile="0.5",
        spark__speculation__interval="100ms",
        spark__executor__memory="512m",
    )
    outcome: dict[str, bool] = {}
    stage, build = rebuild_job.stage, rebuild._build
    for fault in ("failure", "speculation", "kill"):
        room.forget()
        faulty_stage = Faulty(stage, fault, f"{scratch}/{fault}-stage")
        faulty_build = Faulty(build, fault, f"{scratch}/{fault}-build")
        rebuild_job.stage = faulty_stage  # type: ignore[assignment]
        rebuild._build = faulty_build  # type: ignore[assignment]
        with another_host(spark, Path(scratch)) if fault == "speculation" else nullcontext():
            rebuild_job.rebuild(spark, room.spec)
        happened = faulty_stage.happened and faulty_build.happened
        outcome[fault] = happened and room.derived() == expected and room.claimed() == claimed
    spark.stop()
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
