"""tables: change sets → manifest, indexes and heads."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics

from worm.workers.lambdas import PartialBatchAnswer, run_batch, session
from worm.workers.tables import Fold

logger = Logger()
metrics = Metrics()


@cache
def worker() -> Fold:
    return Fold(session())


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: Any) -> PartialBatchAnswer:
    return run_batch(event, worker().run, logger=logger, metrics=metrics)
