"""The embedded AWS as one thing: `with Environment(template) as env:`.

It starts what the template describes, runs its functions, and stops everything by process id, whatever happens in
between. The work directory (logs of functions and emulator) is temporary unless one is given. It differs from
production only in speed: `window_seconds` may shorten the batching window, `retry_seconds` the time until a failed
message is delivered again, and `concurrency_limit` the number of processes of one function.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from worm.clock import Clock, SystemClock
from worm.dev.aws import LOOPBACK, Aws, existing_endpoint, start_localstack, start_moto
from worm.dev.faults import FaultPolicy
from worm.dev.poller import Poller
from worm.dev.provision import MadeQueue, Provisioned, provision
from worm.dev.queues import depth, move, peek
from worm.dev.runtime import FunctionCounts, FunctionPool, function_environment
from worm.dev.schedule import ScheduleRunner, schedule_event
from worm.dev.spark import LocalSpark
from worm.dev.specs import Template
from worm.dev.template import DEFAULT_REGION, read_template
from worm.dev.worker import Outcome, OutcomeKind
from worm.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

_log = logging.getLogger("worm.dev")

QUIET_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """The remaining work: messages waiting and in flight, events held back by a fault policy, invocations running."""

    waiting: int
    in_flight: int
    events_pending: int
    running: int

    @property
    def left(self) -> int:
        return self.waiting + self.in_flight + self.events_pending + self.running


@dataclass(frozen=True, slots=True)
class Counts:
    """Since the start: by function, and S3 requests by role and kind (`other` is everybody without a role)."""

    functions: Mapping[str, FunctionCounts]
    requests: Mapping[str, Mapping[str, int]]
    events: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to start the environment; see the module's description for the three settings that change speed. `host` and
    `port` are where moto listens (port 0: any free port)."""

    aws: Literal["moto", "localstack"] = "moto"
    endpoint_url: str | None = None
    region: str = DEFAULT_REGION
    parameters: Mapping[str, str] | None = None
    window_seconds: float | None = None
    retry_seconds: int = 1
    concurrency_limit: int = 4
    run_schedules: bool = True
    work_dir: Path | None = None
    host: str = LOOPBACK
    port: int = 0
    localstack_venv: Path | None = None


class Environment:
    """The embedded AWS. `start` (or `with`) before use, `stop` after."""

    def __init__(self, template: Path, settings: Settings | None = None, *, clock: Clock | None = None) -> None:
        self.settings = settings or Settings()
        if self.settings.aws not in ("moto", "localstack"):
            raise Invalid(f"unknown AWS emulator: {self.settings.aws}", hint="use moto or localstack")
        if find_spec("runtime_client") is None:
            missing = (
                "Lambda functions cannot run here: the compiled part of AWS's runtime client exists for Linux only"
            )
            raise Unavailable(missing, hint="use Linux, a Linux container, or WSL")
        self.template: Template = read_template(
            template, parameters=self.settings.parameters, region=self.settings.region
        )
        self._clock = clock or SystemClock()
        self._pools: dict[str, FunctionPool] = {}
        self._pollers: dict[str, Poller] = {}
        self._cleanup = ExitStack()
        self._started = False

    # --- lifecycle

    def start(self) -> Environment:
        with ExitStack() as stack:
            self.work_dir = self._make_work_dir(stack)
            self.aws = self._start_aws()
            stack.callback(self.aws.stop)
            self.spark = LocalSpark(self.aws, self.template.path.parent, self.work_dir)
            stack.callback(self.spark.stop)
            self._made: Provisioned = provision(self.aws, self.template)
            self._sqs: SQSClient = self.aws.sqs()
            stack.callback(self._stop_workers)
            self._start_workers()
            if self.settings.run_schedules:
                self._start_schedules(stack)
            self._cleanup = stack.pop_all()
        self._started = True
        return self

    def stop(self) -> None:
        """Stops everything that was started; a second call does nothing."""
        self._started = False
        self._cleanup.close()

    def __enter__(self) -> Environment:
        return self if self._started else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- properties

    @property
    def endpoint_url(self) -> str:
        return self.aws.endpoint_url

    @property
    def bucket(self) -> str:
        """The bucket of the functions: the template's, or an existing one (`ExistingBucketName`)."""
        (bucket,) = {spec.environment["WORM_BUCKET"] for spec in self.template.functions}
        return bucket

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a shell or a process that uses this environment."""
        return {**self.aws.environment(), "WORM_BUCKET": self.bucket}

    @property
    def counts(self) -> Counts:
        functions = {name: pool.counts() for name, pool in self._pools.items()}
        return Counts(functions, self.aws.requests_by_role(), self.aws.deliveries())

    def log_path(self, function: str) -> Path:
        """The file with everything that the function printed."""
        return self._pool(function).log_path

    # --- waiting

    def progress(self) -> Progress:
        waiting = in_flight = 0
        for source in self.template.event_sources:
            made = self._made.queues[source.queue_arn]
            visible, hidden = depth(self._sqs, made.url)
            waiting += visible
            in_flight += hidden
        running = sum(pool.running for pool in self._pools.values())
        batches = sum(poller.batches for poller in self._pollers.values())
        return Progress(waiting, in_flight, self.aws.deliveries()["pending"], max(running, batches))

    def wait_quiet(self, timeout_seconds: float, progress: Callable[[Progress], None] | None = None) -> float:
        """Blocks until nothing is waiting, in flight or running for the endpoint's settle time. Returns the seconds it
        took.

        A worker's events are in the next queue before its own message is deleted, so work is never invisible in two
        checks in a row unless there is none.
        """
        started = time.monotonic()
        quiet_since: float | None = None
        invocations = -1
        while True:
            state = self.progress()
            if progress is not None:
                progress(state)
            now = time.monotonic()
            done = sum(pool.counts().invocations for pool in self._pools.values())
            if state.left or done != invocations:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = now
            elif now - quiet_since >= self.aws.settle_seconds:
                return now - started
            invocations = done
            if now - started > timeout_seconds:
                raise Unavailable(
                    f"the queues are not empty after {timeout_seconds:g} s: {state}",
                    hint=f"see the logs in {self.work_dir}",
                )
            time.sleep(QUIET_POLL_SECONDS)

    # --- functions

    def pids(self, function: str) -> list[int]:
        return self._pool(function).pids()

    def kill_worker(self, function: str) -> int | None:
        """kill -9 one process of the function, a busy one if there is one; returns its pid or None."""
        return self._pool(function).kill_worker()

    def invoke(self, function: str, event: object) -> Outcome:
        """Runs the function once, bypassing its queue."""
        return self._pool(function).invoke(event)

    def fire(self, schedule: str) -> Outcome:
        """Fires a schedule now, by its name or that of its function or Spark job; waits for the outcome."""
        spec = self.template.schedule(schedule)
        if spec.job is not None:
            return self.spark.run(spec.job)
        if spec.function is None:
            raise NotFound(f"schedule {spec.name} targets {spec.target_arn}, which does not run here")
        return self.invoke(
            spec.function, schedule_event(spec.name, spec.input, self._clock.now(), self.settings.region)
        )

    def set_faults(self, policy: FaultPolicy) -> None:
        self.aws.set_faults(policy)

    # --- dead letters

    def dlq_messages(self, function: str) -> list[MessageTypeDef]:
        """The messages in the function's dead-letter queue; they stay there."""
        return peek(self._sqs, self._dead_letters(function).url)

    def redrive(self, function: str) -> int:
        """Moves the dead letters back to the function's queue; returns the number."""
        return move(self._sqs, self._dead_letters(function).url, self._queue(function).url)

    # ---

    def _make_work_dir(self, stack: ExitStack) -> Path:
        if self.settings.work_dir is not None:
            self.settings.work_dir.mkdir(parents=True, exist_ok=True)
            return self.settings.work_dir
        folder = Path(tempfile.mkdtemp(prefix="worm-dev-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _start_aws(self) -> Aws:
        settings = self.settings
        if settings.endpoint_url is not None:
            return existing_endpoint(settings.endpoint_url, settings.region)
        if settings.aws == "moto":
            return start_moto(self.work_dir, settings.region, host=settings.host, port=settings.port)
        venv = settings.localstack_venv or self.template.path.parent / ".venv-localstack"
        return start_localstack(self.work_dir, settings.region, venv)

    def _start_workers(self) -> None:
        limits = {source.function: source.concurrency_max for source in self.template.event_sources}
        for spec in self.template.functions:
            wanted = limits.get(spec.name) or spec.reserved_concurrency or self.settings.concurrency_limit
            concurrency = max(1, min(wanted, self.settings.concurrency_limit))
            variables = function_environment(spec, self.aws.in_role(spec.name), self.work_dir)
            self._pools[spec.name] = FunctionPool(spec, variables, self.work_dir / f"{spec.name}.log", concurrency)
        for source in self.template.event_sources:
            poller = Poller(
                source,
                self._made.queues[source.queue_arn],
                self._pools[source.function],
                self.aws.in_role(source.function).sqs(),
                self.settings.region,
                window_seconds=self.settings.window_seconds,
                retry_seconds=self.settings.retry_seconds,
            )
            self._pollers[source.function] = poller
            poller.start()

    def _stop_workers(self) -> None:
        for poller in self._pollers.values():
            poller.stop()
        for pool in self._pools.values():
            pool.close()
        for poller in self._pollers.values():
            poller.join()

    def _start_schedules(self, stack: ExitStack) -> None:
        runs_here = [spec for spec in self.template.schedules if spec.enabled and spec.function is not None]

        def fire(name: str, moment: datetime) -> None:
            threading.Thread(target=self._fire_and_log, args=(name,), name=f"fire-{name}", daemon=True).start()

        runner = ScheduleRunner({spec.name: spec.schedule for spec in runs_here}, fire, self._clock)
        runner.start()
        stack.callback(runner.stop)

    def _fire_and_log(self, schedule: str) -> None:
        outcome = self.fire(schedule)
        if outcome.kind is not OutcomeKind.OK:
            _log.warning("schedule %s failed (%s): %s", schedule, outcome.kind.value, outcome.error)

    def _pool(self, function: str) -> FunctionPool:
        return self._pools[self.template.function(function).name]

    def _queue(self, function: str) -> MadeQueue:
        name = self.template.function(function).name
        for source in self.template.event_sources:
            if source.function == name:
                return self._made.queues[source.queue_arn]
        raise NotFound(f"{function} has no queue")

    def _dead_letters(self, function: str) -> MadeQueue:
        arn = self._queue(function).spec.dead_letter_arn
        if arn is None:
            raise NotFound(f"the queue of {function} has no dead-letter queue")
        return self._made.queues[arn]
