"""purge: by schedule, expired trash and superfluous snapshots go."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit

from worm.maintenance.purge import Purge
from worm.workers.lambdas import seconds_left, session

logger = Logger()
metrics = Metrics()


@cache
def worker() -> Purge:
    return Purge(session())


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: Any) -> list[dict[str, Any]]:
    reports = worker().run(seconds_left(context), event.get("models"), dry_run=event.get("dryRun") is True)
    for report in reports:
        logger.info("purged", report=report.summary(), problems=report.problems)
        metrics.add_metric("Purged", MetricUnit.Count, len(report.purged))
        metrics.add_metric("Pruned", MetricUnit.Count, len(report.pruned))
        metrics.add_metric("PurgeProblems", MetricUnit.Count, len(report.problems))
    return [report.summary() for report in reports]
