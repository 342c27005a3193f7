"""Metrics of CloudWatch: what queues, functions and workers report, a whole day in one request.

The names of metrics and dimensions are a contract with the template and the workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from worm.upkeep.deployment.aws import Aws, asking
from worm.upkeep.deployment.stack import FUNCTION, QUEUE, Stack
from worm.values import dataclass

NAMESPACE = "S3Worm"
PERIOD_SECONDS = 300
DAY = timedelta(days=1)

Series = Sequence[tuple[datetime, float]]
"""Starts of periods with their values, oldest first; periods without data are missing."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, and how the values of a period are combined."""

    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]
    stat: str = "Sum"


def queue_age(url: str) -> Metric:
    name = url.rpartition("/")[2]
    return Metric("AWS/SQS", "ApproximateAgeOfOldestMessage", (("QueueName", name),), "Maximum")


def of_function(function: str, name: str) -> Metric:
    return Metric("AWS/Lambda", name, (("FunctionName", function),))


def of_worker(stack: str, service: str, name: str, stat: str = "Sum") -> Metric:
    return Metric(NAMESPACE, name, (("stack", stack), ("service", service)), stat)


def asked_of(stack: Stack) -> list[Metric]:
    """The metrics of the checkup."""
    functions = stack.of_workers(FUNCTION)
    return [
        *(queue_age(url) for url in stack.of_workers(QUEUE).values()),
        *(
            of_function(one, name)
            for one in functions.values()
            for name in ("Errors", "Throttles", "Invocations", "Duration")
        ),
        *(of_worker(stack.name, one, name) for one in functions for name in ("WriteRequests", "ReadRequests")),
        of_worker(stack.name, "tables", "FreshnessSeconds", "Maximum"),
        of_worker(stack.name, "sweep", "FoundUnreported"),
        of_worker(stack.name, "sweep", "SweepUnfinished", "Maximum"),
    ]


def read_metrics(aws: Aws, metrics: Sequence[Metric], now: datetime) -> Mapping[Metric, Series]:
    """The last day of each metric."""
    queries = [
        {
            "Id": f"m{number}",
            "MetricStat": {
                "Metric": {
                    "Namespace": one.namespace,
                    "MetricName": one.name,
                    "Dimensions": [{"Name": name, "Value": value} for name, value in one.dimensions],
                },
                "Period": PERIOD_SECONDS,
                "Stat": one.stat,
            },
        }
        for number, one in enumerate(metrics)
    ]
    found: dict[str, list[tuple[datetime, float]]] = {}
    with asking("the metrics cannot be read", hint="your role needs cloudwatch:GetMetricData"):
        pages = aws.client("cloudwatch").get_paginator("get_metric_data")
        for page in pages.paginate(MetricDataQueries=queries, StartTime=now - DAY, EndTime=now):
            for result in page["MetricDataResults"]:
                points = zip(result["Timestamps"], result["Values"], strict=True)
                found.setdefault(result["Id"], []).extend(points)
    return {one: sorted(found.get(f"m{number}", [])) for number, one in enumerate(metrics)}
