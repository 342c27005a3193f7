"""The formats of this library: strict and canonical JSON, schema.json, ids, positions in a history.

Reading refuses what two readers could interpret differently; writing gives the same bytes in every process. Damage of
an *own object*, one that this library wrote, is `Corrupt` with its key; a mistake in a *document* is `Invalid` with its
path. Nothing here sends a request or knows a store.

- `shapes`: what stored JSON must look like.
- `frames`: lines of JSON with a checksum, for logs.
- *encoded id*: the part of a key that represents an id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.formats import frames, shapes
    from worm.formats.definition import (
        SYSTEM_FIELDS,
        TIME_FIELDS,
        IndexDef,
        LakeDef,
        ManifestDef,
        Mode,
        ModelDef,
        ModelPath,
        Schema,
        SnapshotsDef,
        StorageDef,
        duration_seconds,
        load_pushed,
        load_schema,
    )
    from worm.formats.fields import (
        SINGLETON_ID,
        FieldDef,
        FieldsDef,
        IdType,
        check_safe,
        decode_id,
        encode_id,
        escape_id,
        id_problem,
        is_datetime,
        path_name_problem,
        unescape_id,
    )
    from worm.formats.members import Problem
    from worm.formats.position import Position, moment_in_utc, position_of
    from worm.formats.strict_json import (
        MAX_BYTES,
        MAX_DEPTH,
        MISSING,
        JsonObject,
        JsonValue,
        Missing,
        as_json,
        check_json,
        child_path,
        dumps,
        dumps_document,
        field_value,
        in_order,
        loads,
        loads_document,
        loads_own,
        normal,
        same,
        type_name,
    )
else:
    __getattr__ = door(
        __name__,
        """
        definition: IndexDef LakeDef ManifestDef Mode ModelDef ModelPath SYSTEM_FIELDS Schema SnapshotsDef StorageDef
        definition: TIME_FIELDS duration_seconds load_pushed load_schema
        fields: FieldDef FieldsDef IdType SINGLETON_ID check_safe decode_id encode_id escape_id id_problem is_datetime
        fields: path_name_problem unescape_id
        frames:
        members: Problem
        position: Position moment_in_utc position_of
        shapes:
        strict_json: JsonObject JsonValue MAX_BYTES MAX_DEPTH MISSING Missing as_json check_json child_path dumps
        strict_json: dumps_document field_value in_order loads loads_document loads_own normal same type_name
        """,
    )
