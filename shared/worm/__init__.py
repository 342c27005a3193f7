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
    from worm.sdk.class_schema import schema_of as schema_of
    from worm.sdk.classes import Document as Document
    from worm.sdk.classes import FieldIndex as Index
    from worm.sdk.classes import ManifestSettings as ManifestSettings
    from worm.sdk.classes import ModelSettings as ModelSettings
    from worm.sdk.classes import Ref as Ref
    from worm.sdk.classes import SnapshotSettings as SnapshotSettings

    __version__: str

__all__ = [
    "MISSING",
    "Document",
    "Index",
    "ManifestSettings",
    "Model",
    "ModelSettings",
    "Ref",
    "SnapshotSettings",
    "Worm",
    "__version__",
    "aconnect",
    "connect",
    "errors",
    "schema_of",
]

_HOMES = {
    "MISSING": ("worm.codec.strict_json", "MISSING"),
    "Document": ("worm.sdk.classes", "Document"),
    "Index": ("worm.sdk.classes", "FieldIndex"),
    "ManifestSettings": ("worm.sdk.classes", "ManifestSettings"),
    "Model": ("worm.model", "Model"),
    "ModelSettings": ("worm.sdk.classes", "ModelSettings"),
    "Ref": ("worm.sdk.classes", "Ref"),
    "SnapshotSettings": ("worm.sdk.classes", "SnapshotSettings"),
    "Worm": ("worm.model", "Worm"),
    "aconnect": ("worm.aio", "aconnect"),
    "connect": ("worm.model", "connect"),
    "schema_of": ("worm.sdk.class_schema", "schema_of"),
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
