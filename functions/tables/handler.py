"""tables: change sets → manifest, indexes and heads."""

from __future__ import annotations

from typing import Any

from worm.upkeep import Fold, Function, PartialBatchAnswer, seconds_left

function = Function(Fold)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> PartialBatchAnswer:
    left = seconds_left(context)
    return function.run_batch(event, lambda messages: function.worker.run(messages, left))
