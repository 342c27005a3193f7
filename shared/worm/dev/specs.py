"""What the embedded AWS has to create, as plain values. template.py makes them; everything else here uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worm.dev.cfn import Node
from worm.dev.schedule import Schedule
from worm.errors import NotFound

PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
"""The folder that holds `worm`: that of the layer in a checkout, otherwise site-packages."""


@dataclass(frozen=True, slots=True)
class BucketSpec:
    logical_id: str
    name: str
    versioning: bool
    event_bridge: bool
    lifecycle_rules: tuple[Mapping[str, Node], ...]
    public_access_block: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """`attributes` are those of CreateQueue as text; redrive is separate because it names another queue."""

    logical_id: str
    name: str
    arn: str
    attributes: Mapping[str, str]
    dead_letter_arn: str | None = None
    receive_count_max: int = 0
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class RuleTarget:
    id: str
    arn: str


@dataclass(frozen=True, slots=True)
class RuleSpec:
    logical_id: str
    name: str
    event_pattern: str
    enabled: bool
    targets: tuple[RuleTarget, ...]


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    logical_id: str
    name: str
    function_name: str
    arn: str
    code_dir: Path
    handler: str
    environment: Mapping[str, str]
    timeout_seconds: int
    memory_mb: int
    layer_dirs: tuple[Path, ...]
    reserved_concurrency: int | None
    tmp_mb: int = 512


@dataclass(frozen=True, slots=True)
class EventSourceSpec:
    function: str
    queue_arn: str
    batch_size: int
    window_seconds: float
    report_batch_item_failures: bool
    concurrency_max: int | None


@dataclass(frozen=True, slots=True)
class SparkJobSpec:
    """A job run of EMR Serverless: `arguments` are those after the job's name."""

    application: str
    name: str
    arguments: tuple[str, ...]
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """`function` is None for a target that is not a function of this template; it may then be a Spark `job`."""

    name: str
    expression: str
    schedule: Schedule
    target_arn: str
    function: str | None
    input: str | None
    enabled: bool
    job: SparkJobSpec | None = None


@dataclass(frozen=True, slots=True)
class Template:
    path: Path
    region: str
    buckets: tuple[BucketSpec, ...]
    queues: tuple[QueueSpec, ...]
    rules: tuple[RuleSpec, ...]
    functions: tuple[FunctionSpec, ...]
    event_sources: tuple[EventSourceSpec, ...]
    schedules: tuple[ScheduleSpec, ...]
    outputs: Mapping[str, str]
    """The layers of the template itself; nested templates get them through parameters."""

    def function(self, name: str) -> FunctionSpec:
        """By folder name, logical id or FunctionName."""
        for spec in self.functions:
            if name in (spec.name, spec.logical_id, spec.function_name):
                return spec
        raise NotFound(
            f"the template has no function {name}", hint=f"the functions are {[f.name for f in self.functions]}"
        )

    def queue(self, arn: str) -> QueueSpec:
        for spec in self.queues:
            if spec.arn == arn:
                return spec
        raise NotFound(f"the template has no queue {arn}")

    def schedule(self, name: str) -> ScheduleSpec:
        """By its name, or that of its function or job."""
        for spec in self.schedules:
            if name in (spec.name, spec.function, spec.job and spec.job.name):
                return spec
        raise NotFound(
            f"the template has no schedule {name}", hint=f"the schedules are {[spec.name for spec in self.schedules]}"
        )
