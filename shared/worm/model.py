"""What people touch: `connect()`, `Worm`, `Model`. The verbs are in `worm.sdk`."""

from __future__ import annotations

from worm.sdk.bulk import Result
from worm.sdk.context import Maintenance
from worm.sdk.model import Model
from worm.sdk.session import Worm, connect, push
from worm.sdk.typed import TypedModel

__all__ = ["Maintenance", "Model", "Result", "TypedModel", "Worm", "connect", "push"]
