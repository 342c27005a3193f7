"""SAM's own rules: how Globals are merged, and what the events of a function mean."""

from __future__ import annotations

import json
from collections.abc import Mapping

from worm.dev.cfn import Node
from worm.dev.schedule import parse_schedule
from worm.dev.specs import EventSourceSpec, ScheduleSpec, SparkJobSpec
from worm.errors import Invalid

_START_JOB_RUN = ":aws-sdk:emrserverless:startJobRun"
_TIMEOUT_MINUTES = 720  # EMR Serverless's own default


def event_source_spec(function: str, queue_arn: str, values: Mapping[str, Node], path: str) -> EventSourceSpec:
    concurrency = values.get("ScalingConfig", {}).get("MaximumConcurrency")
    if "FilterCriteria" in values:
        raise Invalid("is not supported by the embedded AWS: filter in the rule", path=f"{path}.FilterCriteria")
    return EventSourceSpec(
        function=function,
        queue_arn=queue_arn,
        batch_size=int(values.get("BatchSize", 10)),
        window_seconds=float(values.get("MaximumBatchingWindowInSeconds", 0)),
        report_batch_item_failures="ReportBatchItemFailures" in values.get("FunctionResponseTypes", ()),
        concurrency_max=None if concurrency is None else int(concurrency),
    )


def schedule_spec(
    default_name: str, values: Mapping[str, Node], arn: str, function: str | None, path: str
) -> ScheduleSpec:
    expression = str(values.get("ScheduleExpression", values.get("Schedule", "")))
    zone = str(values.get("ScheduleExpressionTimezone", "UTC"))
    try:
        schedule = parse_schedule(expression, timezone=zone)
    except Invalid as error:
        raise Invalid(error.message, path=path) from error
    enabled = values.get("State", "ENABLED") == "ENABLED" and flag(values.get("Enabled", True))
    payload = values.get("Input")
    text = payload if payload is None or isinstance(payload, str) else json.dumps(payload)
    job = spark_job_spec(text, path) if arn.endswith(_START_JOB_RUN) else None
    return ScheduleSpec(str(values.get("Name", default_name)), expression, schedule, arn, function, text, enabled, job)


def spark_job_spec(text: str | None, path: str) -> SparkJobSpec:
    """The job run that a StartJobRun requests. The entry point of all jobs takes the job's name first."""
    try:
        asked = json.loads(text or "{}")
        name, *arguments = asked["JobDriver"]["SparkSubmit"]["EntryPointArguments"]
        minutes = float(asked.get("ExecutionTimeoutMinutes", _TIMEOUT_MINUTES))
        return SparkJobSpec(str(asked["ApplicationId"]), str(name), tuple(map(str, arguments)), 60 * minutes)
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"is not a Spark job run ({error!r})", path=f"{path}.Properties.Target.Input") from error


def merge(shared: Mapping[str, Node], own: Mapping[str, Node]) -> dict[str, Node]:
    """SAM's Globals: maps are merged, lists are appended, other values are replaced by the resource's own."""
    merged = dict(shared)
    for key, value in own.items():
        base = merged.get(key)
        if isinstance(base, dict) and isinstance(value, dict) and not _is_intrinsic(base) and not _is_intrinsic(value):
            merged[key] = merge(base, value)
        elif isinstance(base, list) and isinstance(value, list):
            merged[key] = base + value
        else:
            merged[key] = value
    return merged


def _is_intrinsic(node: Mapping[str, Node]) -> bool:
    return len(node) == 1 and next(iter(node)).startswith(("Fn::", "Ref"))


def without(values: Mapping[str, Node], *names: str) -> dict[str, Node]:
    return {key: value for key, value in values.items() if key not in names}


def flag(value: Node) -> bool:
    return value is True or str(value).lower() == "true"


def text_of(value: Node) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
