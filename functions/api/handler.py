"""api: HTTP calls from a Function URL or an HTTP API (payload format 2.0) → the verbs of the SDK."""

from __future__ import annotations

import os
from typing import Any

from worm.api import Api, ApiSettings, DeployedCallers, Trust, failure_of, open_on_lambda
from worm.upkeep import Reporting

function = Reporting()
callers = DeployedCallers(Trust.from_environment(os.environ))
api = Api(open_on_lambda, ApiSettings.from_environment(os.environ), callers)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    answer = api.handle(event, context)
    failure = failure_of(answer)
    if failure is not None:
        function.count("Failures", 1)
        function.logger.error("call failed", extra={**failure, "path": event.get("rawPath")})
    return answer
