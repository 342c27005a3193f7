"""The HTTP API: the verbs of the SDK as resources, for Lambda and for `worm serve` alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.api import csv_rows
    from worm.api.app import Api, failure_of
    from worm.api.call import ApiSettings
    from worm.api.credentials import DeployedCallers, Trust
    from worm.api.local import LocalApi
    from worm.api.opening import open_on_lambda
    from worm.api.tokens import DAYS, DAYS_MAX, Token, create_token, list_tokens, revoke_token
else:
    __getattr__ = door(
        __name__,
        """
        app: Api failure_of
        call: ApiSettings
        credentials: DeployedCallers Trust
        csv_rows:
        local: LocalApi
        opening: open_on_lambda
        tokens: DAYS DAYS_MAX Token create_token list_tokens revoke_token
        """,
    )
