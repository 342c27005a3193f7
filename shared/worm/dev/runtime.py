"""Functions as Lambda runs them: a pool of workers per function, started on demand, reused warm, never shared.

The environment of a process is Lambda's and the template's, not this machine's: nothing but PATH is inherited, so a
function cannot pass here thanks to a variable that production lacks.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from worm.dev.aws import Aws
from worm.dev.specs import FunctionSpec
from worm.dev.worker import Outcome, OutcomeKind, Worker


@dataclass(slots=True)
class FunctionCounts:
    """`records` were passed to the function; `records_ok` were processed; `records_failed` went back to the queue.
    `peak_mb`: the most memory that one of its processes had."""

    invocations: int = 0
    errors: int = 0
    timeouts: int = 0
    deaths: int = 0
    records: int = 0
    records_ok: int = 0
    records_failed: int = 0
    starts: int = 0
    peak_mb: float = field(default=0.0, compare=False)


def function_environment(spec: FunctionSpec, aws: Aws, home: Path) -> dict[str, str]:
    """What the process of a function sees."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in spec.layer_dirs),
        **spec.environment,
        **aws.environment(),
        "AWS_EXECUTION_ENV": f"AWS_Lambda_{python}",
        "AWS_LAMBDA_FUNCTION_NAME": spec.function_name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(spec.memory_mb),
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{spec.function_name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": "dev",
        "LAMBDA_TASK_ROOT": str(spec.code_dir),
        "_HANDLER": spec.handler,
        # There is no X-Ray daemon here.
        "POWERTOOLS_TRACE_DISABLED": "true",
        "AWS_XRAY_SDK_ENABLED": "false",
    }


class FunctionPool:
    """Runs one function, at most `concurrency_max` events at a time, each in its own process."""

    def __init__(
        self, spec: FunctionSpec, environment: Mapping[str, str], log_path: Path, concurrency_max: int
    ) -> None:
        self.spec = spec
        self.log_path = log_path
        self.concurrency_max = concurrency_max
        self._environment = environment
        self._slots = threading.BoundedSemaphore(concurrency_max)
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []
        self._counts = FunctionCounts()
        self._closed = False

    def invoke(self, event: object) -> Outcome:
        """Runs the function with the event in a free process; waits for one if all are busy."""
        payload = json.dumps(event).encode()
        with self._slots:
            worker = self._take()
            try:
                outcome = worker.invoke(payload)
            finally:
                self._give_back(worker)
        self._count(outcome)
        return outcome

    @property
    def running(self) -> int:
        with self._lock:
            return len(self._busy)

    def pids(self) -> list[int]:
        """Processes of this function, busy ones first."""
        with self._lock:
            return [worker.pid for worker in self._busy + self._idle if worker.alive]

    def kill_worker(self) -> int | None:
        """kill -9 one process, a busy one if there is one; returns its pid, or None if there is none."""
        with self._lock:
            alive = [worker for worker in self._busy + self._idle if worker.alive]
        if not alive:
            return None
        alive[0].kill()
        return alive[0].pid

    def add_records(self, ok: int, failed: int) -> None:
        with self._lock:
            self._counts.records += ok + failed
            self._counts.records_ok += ok
            self._counts.records_failed += failed

    def counts(self) -> FunctionCounts:
        with self._lock:
            return replace(self._counts)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            workers = self._idle + self._busy
            self._idle = []
        for worker in workers:
            worker.close()

    def _take(self) -> Worker:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self.spec.name} is closed")
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    self._busy.append(worker)
                    return worker
                worker.close()
            worker = Worker(self.spec, self._environment, self.log_path)
            self._counts.starts += 1
            self._busy.append(worker)
            return worker

    def _give_back(self, worker: Worker) -> None:
        with self._lock:
            self._busy.remove(worker)
            self._counts.peak_mb = max(self._counts.peak_mb, worker.peak_mb)
            reusable = worker.alive and not self._closed
            if reusable:
                self._idle.append(worker)
        if not reusable:
            worker.close()

    def _count(self, outcome: Outcome) -> None:
        with self._lock:
            self._counts.invocations += 1
            self._counts.errors += outcome.kind is not OutcomeKind.OK
            self._counts.timeouts += outcome.kind is OutcomeKind.TIMEOUT
            self._counts.deaths += outcome.kind is OutcomeKind.DIED
