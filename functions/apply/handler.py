"""apply: segments of commit logs → delta layers of page stores, documents of models in spaces."""

from __future__ import annotations

from typing import Any

from worm.upkeep import Apply, Function, PartialBatchAnswer, seconds_left

function = Function(Apply)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> PartialBatchAnswer:
    left = seconds_left(context)
    return function.run_batch(event, lambda messages: function.worker.run(messages, left))
