"""schema.json: the models, where their documents are, and what is kept about them.

Uses the codec room for strict JSON; imports nothing that talks to storage.
"""

from __future__ import annotations

from worm.schema.definition import (
    IndexDef,
    LakeDef,
    Layout,
    ManifestDef,
    Mode,
    ModelDef,
    ModelPath,
    Schema,
    SnapshotsDef,
    StorageDef,
    load_pushed,
    load_schema,
)
from worm.schema.fields import FieldDef, IdType
from worm.schema.members import Problem

__all__ = [
    "FieldDef",
    "IdType",
    "IndexDef",
    "LakeDef",
    "Layout",
    "ManifestDef",
    "Mode",
    "ModelDef",
    "ModelPath",
    "Problem",
    "Schema",
    "SnapshotsDef",
    "StorageDef",
    "load_pushed",
    "load_schema",
]
