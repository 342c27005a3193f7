"""capture: document events → oplog entries and a change set."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics

from worm.workers.capture import Capture
from worm.workers.lambdas import PartialBatchAnswer, run_batch, session

logger = Logger()
metrics = Metrics()


@cache
def worker() -> Capture:
    return Capture(session())


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: Any) -> PartialBatchAnswer:
    return run_batch(event, worker().run, logger=logger, metrics=metrics)
