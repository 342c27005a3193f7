"""Formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.formats import frames, shapes
    from worm.formats.definition import (
        EVERYTHING_ELSE,
        JSON_SCHEMA,
        SCHEMA_URL,
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
        checked_schema,
        duration_seconds,
        find_field,
        load_pushed,
        load_schema,
        model_name_problem,
        parse_path,
        undeclared_fields,
        undeclared_notes,
    )
    from worm.formats.fields import (
        SINGLETON_ID,
        Check,
        FieldDef,
        IdType,
        check_id,
        check_safe,
        compile_field,
        compile_object,
        escape_id,
        field_definition,
        field_name_problems,
        field_problems,
        id_of,
        id_problem,
        id_segment,
        id_shown,
        id_text,
        is_datetime,
        is_datetime_start,
        needs_escape,
        new_id,
        segment_id,
        segment_problem,
        typed_problem,
        unescaped,
    )
    from worm.formats.frames import Torn
    from worm.formats.members import Definition, Problem, boolean, dict_of, member
    from worm.formats.position import Position, before_the_kept, moment_in_utc, past_the_end, position_of
    from worm.formats.strict_json import (
        INT_MAX,
        INT_MIN,
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
        number_of,
        ordered,
        same,
        type_name,
    )
else:
    __getattr__ = door(
        __name__,
        """
        definition: EVERYTHING_ELSE IndexDef JSON_SCHEMA LakeDef Layout ManifestDef Mode ModelDef ModelPath SCHEMA_URL
        definition: SYSTEM_FIELDS Schema SnapshotsDef StorageDef TIME_FIELDS checked_schema duration_seconds find_field
        definition: load_pushed load_schema model_name_problem parse_path undeclared_fields undeclared_notes
        fields: Check FieldDef IdType SINGLETON_ID check_id check_safe compile_field compile_object escape_id
        fields: field_definition field_name_problems field_problems id_of id_problem id_segment id_shown id_text
        fields: is_datetime is_datetime_start needs_escape new_id segment_id segment_problem typed_problem unescaped
        frames:
        frames: Torn
        members: Definition Problem boolean dict_of member
        position: Position before_the_kept moment_in_utc past_the_end position_of
        shapes:
        strict_json: INT_MAX INT_MIN JsonObject JsonValue MAX_BYTES MAX_DEPTH MISSING Missing as_json check_json
        strict_json: child_path dumps dumps_document field_value loads loads_document loads_own normal number_of ordered
        strict_json: same type_name
        """,
    )
