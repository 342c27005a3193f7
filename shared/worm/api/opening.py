"""The session of a Lambda function: its bucket and prefix from the environment, and the pushed schema.

Writes leave history and tables to the workers of the same stack.
"""

from __future__ import annotations

from worm.clock import Ids, SystemClock
from worm.sdk import Worm
from worm.store import S3Store
from worm.upkeep import Settings, load_pushed_schema


def open_on_lambda() -> Worm:
    settings, clock = Settings.from_environment(), SystemClock()
    ids = Ids.system(clock)
    store = S3Store(settings.bucket, settings.prefix, role=settings.role, ids=ids, clock=clock)
    return Worm(store, load_pushed_schema(store), maintenance="events", clock=clock, ids=ids)
