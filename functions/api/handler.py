"""api: HTTP calls by a Function URL or an HTTP API (payload format 2.0) → the verbs of the SDK."""

from __future__ import annotations

import os
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers

from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.api.opening import open_on_lambda

logger = Logger()
copy_config_to_registered_loggers(logger, include={"worm"})
api = Api(open_on_lambda, ApiSettings.from_environment(os.environ))


@logger.inject_lambda_context
def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return api.handle(event, context)
