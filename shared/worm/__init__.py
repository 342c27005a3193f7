"""S3WORM: plain JSON documents in your own S3 bucket become a database.

    import worm
    db = worm.connect("./data", schema="schema.json")

The names below are imported when they are first used: a Lambda handler that imports `worm.workers` pays for nothing
that it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worm import errors as errors
    from worm.aio import aconnect as aconnect
    from worm.codec.strict_json import MISSING as MISSING
    from worm.model import Model as Model
    from worm.model import Worm as Worm
    from worm.model import connect as connect

    __version__: str

__all__ = ["MISSING", "Model", "Worm", "__version__", "aconnect", "connect", "errors"]

_HOMES = {
    "MISSING": ("worm.codec.strict_json", "MISSING"),
    "Model": ("worm.model", "Model"),
    "Worm": ("worm.model", "Worm"),
    "aconnect": ("worm.aio", "aconnect"),
    "connect": ("worm.model", "connect"),
    "__version__": ("worm.version", "VERSION"),
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("worm.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'worm' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found: object = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
