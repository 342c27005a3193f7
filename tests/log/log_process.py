"""A process that writes a commit log, for the tests that stop and kill such processes.

    python -m tests.log.log_process URL DB NAME COUNT      commits transactions `NAME-1` to `NAME-COUNT`
    python -m tests.log.log_process serve                  starts such processes by fork, as told on stdin

It prints `open EPOCH`, then `ack N LSN` for each commit, at last `done`, or the error that ended it: `Fenced`,
`CommitStateUnknown` and so on. Every line is out before anything else happens.

Where it dies or stops is told by the environment, and belongs to this program, not to the product:
`WORM_CRASH_AT=POINT:N` (kill -9 of itself) and `WORM_STOP_AT=POINT:N` (SIGSTOP, until SIGCONT). POINT is `before-lease`
or `after-lease`, `before-put` or `after-put`, counting writes of slots (1 is the fence, 2 the first commit), or
`after-ack`, counting acks.
`WORM_GC_MIN_AGE` is `gc_min_age_seconds`, `WORM_PACE` a wait between commits in seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import IO

from tests.log.witness import records
from worm.clock import SystemClock
from worm.errors import WormError
from worm.log.config import LogConfig
from worm.log.writer import LogWriter
from worm.store.base import Attempt, Condition
from worm.store.file import FileStore
from worm.store.s3 import S3Store


class Points:
    """The named points, and what happens there."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        named = {signal.SIGKILL: "WORM_CRASH_AT", signal.SIGSTOP: "WORM_STOP_AT"}
        self._signals = {environment[name]: number for number, name in named.items() if name in environment}
        self._passed: Counter[str] = Counter()

    def around(self, key: str, attempt: Callable[[], Attempt]) -> Attempt:
        """The points before and after a conditional write."""
        kind = "put" if "/log/" in key else "lease" if key.endswith("lease.json") else "other"
        self.reach(f"before-{kind}")
        outcome = attempt()
        self.reach(f"after-{kind}")
        return outcome

    def reach(self, point: str) -> None:
        self._passed[point] += 1
        number = self._signals.get(f"{point}:{self._passed[point]}")
        if number is not None:
            os.kill(os.getpid(), number)


class PointedFiles(FileStore):
    """A directory, with points before and after each conditional write."""

    points: Points

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        return self.points.around(key, lambda: super(PointedFiles, self).attempt_put(key, body, condition, metadata))


class PointedS3(S3Store):
    """A bucket, with points before and after each conditional write."""

    points: Points

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        return self.points.around(key, lambda: super(PointedS3, self).attempt_put(key, body, condition, metadata))


def open_pointed(url: str, points: Points) -> PointedFiles | PointedS3:
    store: PointedFiles | PointedS3
    if url.startswith("s3://"):
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        store = PointedS3(bucket, prefix)
    else:
        store = PointedFiles(url, durability="process")
    store.points = points
    return store


def write(url: str, db_id: str, name: str, count: int, environment: Mapping[str, str]) -> None:
    points = Points(environment)
    config = LogConfig(gc_min_age_seconds=float(environment.get("WORM_GC_MIN_AGE", "3600")))
    try:
        writer = LogWriter.open(open_pointed(url, points), db_id, config=config, name=name, clock=SystemClock())
        print("open", writer.epoch, flush=True)
        for number in range(1, count + 1):
            lsn = writer.append_wal(records(number, size=2), txn=f"{name}-{number}")
            print("ack", number, lsn, flush=True)
            points.reach("after-ack")
            time.sleep(float(environment.get("WORM_PACE", "0")))
    except WormError as error:
        print(type(error).__name__, error, flush=True)
        return
    print("done", flush=True)


def serve(orders: IO[str]) -> None:
    """One JSON order a line, one JSON answer a line. Nothing of a store's client is made here, so a fork is safe."""
    for line in orders:
        order = json.loads(line)
        if order["do"] == "start":
            answer: object = _start(order["arguments"], order["environment"], order["output"])
        else:
            answer = _wait(int(order["pid"]))
        print(json.dumps(answer), flush=True)


def _start(arguments: list[str], environment: dict[str, str], output: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.environ.update(environment)
        target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(target, sys.stdout.fileno())
        url, db_id, name, count = arguments
        write(url, db_id, name, int(count), environment)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(70)  # never back into the server's loop


def _wait(pid: int) -> tuple[int, str]:
    """Which child (any: -1) ended, and how, or that it stopped."""
    pid, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return pid, "stopped"
    return pid, f"killed {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exited {os.WEXITSTATUS(status)}"


def main(arguments: list[str]) -> None:
    if arguments == ["serve"]:
        serve(sys.stdin)
    else:
        url, db_id, name, count = arguments
        write(url, db_id, name, int(count), os.environ)


if __name__ == "__main__":
    main(sys.argv[1:])
