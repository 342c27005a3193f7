"""compact: by schedule, page stores are applied, compacted and cleaned of what no read needs."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from worm.workers.compact import Compact
from worm.workers.lambdas import seconds_left, session

logger = Logger()
metrics = Metrics()


@cache
def worker() -> Compact:
    return Compact(session())


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: Any) -> list[dict[str, Any]]:
    reports = worker().run(seconds_left(context), event.get("databases"))
    metrics.add_metric("Databases", MetricUnit.Count, len(reports))
    for report in reports:
        logger.info("compacted", report=report.summary())
        metrics.add_metric("FoundUnapplied", MetricUnit.Count, report.applied)
        metrics.add_metric("Merged", MetricUnit.Count, report.merged)
        metrics.add_metric("Images", MetricUnit.Count, report.images)
        metrics.add_metric("Collected", MetricUnit.Count, report.deleted + report.slots)
        metrics.add_metric("Overtaken", MetricUnit.Count, report.overtaken)
        metrics.add_metric("CompactFailures", MetricUnit.Count, int(report.error is not None))
    failed = [report for report in reports if report.error is not None]
    for report in failed:
        logger.error("not compacted", database=report.database, reason=str(report.error), exc_info=report.error)
    for report in failed:
        if report.error is not None:
            raise report.error  # the others are done; this one shows as a failed invocation
    return [report.summary() for report in reports]
