"""apply: segments of commit logs → delta layers of page stores, documents of models in spaces."""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger, Metrics

from worm.workers.apply import Apply
from worm.workers.lambdas import PartialBatchAnswer, run_batch, seconds_left, session

logger = Logger()
metrics = Metrics()


@cache
def worker() -> Apply:
    return Apply(session())


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: Any) -> PartialBatchAnswer:
    left = seconds_left(context)
    return run_batch(event, lambda messages: worker().run(messages, left), logger=logger, metrics=metrics)
