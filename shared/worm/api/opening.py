"""The session of a Lambda function: its bucket and prefix from the environment, and the pushed schema.

Writes leave history and tables to the workers of the same stack.

It is a separate module because `worm serve` opens its session in a different way.
"""

from __future__ import annotations

from worm.clock import Ids, SystemClock
from worm.collections.push import load_pushed_schema
from worm.model import Worm
from worm.session import Settings
from worm.store.s3 import S3Store


def open_on_lambda() -> Worm:
    settings, clock = Settings.from_environment(), SystemClock()
    ids = Ids.system(clock)
    store = S3Store(settings.bucket, settings.prefix, role=settings.role, ids=ids, clock=clock)
    return Worm(store, load_pushed_schema(store), maintenance="events", clock=clock, ids=ids)
