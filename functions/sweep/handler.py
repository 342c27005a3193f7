"""sweep: by schedule, what no event reported → documents of models in spaces, oplog entries and tables."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from worm.maintenance.sweep import Sweep
from worm.workers.lambdas import seconds_left, session

logger = Logger()
metrics = Metrics()


@cache
def worker() -> Sweep:
    return Sweep(session())


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: Any) -> list[dict[str, Any]]:
    reports = worker().run(seconds_left(context), event.get("models"))
    for report in reports:
        logger.info("swept", report=report.summary(), problems=report.problems)
        metrics.add_metric("Swept", MetricUnit.Count, report.reconciled)
        metrics.add_metric("FoundUnreported", MetricUnit.Count, report.recorded)
        metrics.add_metric("Materialized", MetricUnit.Count, report.materialized)
    for report in reports:
        if report.error is not None:
            raise report.error  # the others are swept; this one shows as a failed invocation
    return [report.summary() for report in reports]
