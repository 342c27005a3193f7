"""Formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.formats import frames, shapes
    from worm.formats.definition import (
        EVERYTHING_ELSE,
        SYSTEM_FIELDS,
        TIME_FIELDS,
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
        duration_seconds,
        load_schema,
    )
    from worm.formats.fields import FieldDef, FieldsDef, is_datetime
    from worm.formats.ids import (
        SINGLETON_ID,
        IdType,
        check_safe,
        escape_id,
        id_problem,
        id_segment,
        needs_escape,
        segment_id,
        segment_problem,
        unescaped,
    )
    from worm.formats.members import Problem
    from worm.formats.position import Position, before_the_kept, moment_in_utc, past_the_end, position_of
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
        loads,
        loads_document,
        loads_own,
        normal,
        ordered,
        same,
        type_name,
    )
else:
    __getattr__ = door(
        __name__,
        """
        definition: EVERYTHING_ELSE IndexDef LakeDef Layout ManifestDef Mode ModelDef ModelPath SYSTEM_FIELDS Schema
        definition: SnapshotsDef StorageDef TIME_FIELDS duration_seconds load_schema
        fields: FieldDef FieldsDef is_datetime
        frames:
        ids: IdType SINGLETON_ID check_safe escape_id id_problem id_segment needs_escape segment_id segment_problem
        ids: unescaped
        members: Problem
        position: Position before_the_kept moment_in_utc past_the_end position_of
        shapes:
        strict_json: JsonObject JsonValue MAX_BYTES MAX_DEPTH MISSING Missing as_json check_json child_path dumps
        strict_json: dumps_document field_value loads loads_document loads_own normal ordered same type_name
        """,
    )
