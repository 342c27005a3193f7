"""The HTTP API: the verbs of the SDK as resources, for Lambda and for `worm serve` alike.

`Api` answers a call; `LocalApi` serves it on this machine. `tokens` are the read tokens of a bucket. Nothing here
decides more than the SDK does: each call runs one verb, and each error becomes a problem with its status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.api import csv_rows, tokens
    from worm.api.app import Api, failure_of
    from worm.api.call import ApiSettings
    from worm.api.credentials import DeployedCallers, Trust
    from worm.api.local import LocalApi
    from worm.api.opening import open_on_lambda
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
        tokens:
        """,
    )
