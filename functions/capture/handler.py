"""capture: document events → oplog entries and a change set."""

from __future__ import annotations

from typing import Any

from worm.upkeep import Capture, Function, PartialBatchAnswer, seconds_left

function = Function(Capture)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> PartialBatchAnswer:
    left = seconds_left(context)
    return function.run_batch(event, lambda messages: function.worker.run(messages, left))
