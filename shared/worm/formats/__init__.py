"""Formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.formats import frames, shapes
    from worm.formats.csv_rows import JsonRow, csv_chunks, csv_text, json_line, spooled, unspooled, with_others
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
    from worm.formats.difference import Diff, FieldDiff, apply, diff, same
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
    from worm.formats.json_patch import PatchRefused, check_patch_document, patched
    from worm.formats.logs import (
        LogCompactReport,
        LogLine,
        LogProblem,
        LogRepairReport,
        LogTools,
        LogVerifyReport,
        check_name,
    )
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
        is_intact,
        loads,
        loads_document,
        loads_own,
        loads_own_array,
        normal,
        number_of,
        ordered,
        seal,
        type_name,
        unseal,
    )
else:
    __getattr__ = door(
        __name__,
        """
        csv_rows: JsonRow csv_chunks csv_text json_line spooled unspooled with_others
        definition: EVERYTHING_ELSE IndexDef JSON_SCHEMA LakeDef Layout ManifestDef Mode ModelDef ModelPath SCHEMA_URL
        definition: SYSTEM_FIELDS Schema SnapshotsDef StorageDef TIME_FIELDS checked_schema duration_seconds find_field
        definition: load_pushed load_schema model_name_problem parse_path undeclared_fields undeclared_notes
        difference: Diff FieldDiff apply diff same
        fields: Check FieldDef IdType SINGLETON_ID check_id check_safe compile_field compile_object escape_id
        fields: field_definition field_name_problems field_problems id_of id_problem id_segment id_shown id_text
        fields: is_datetime is_datetime_start needs_escape new_id segment_id segment_problem typed_problem unescaped
        frames:
        json_patch: PatchRefused check_patch_document patched
        logs: LogCompactReport LogLine LogProblem LogRepairReport LogTools LogVerifyReport check_name
        members: Definition Problem boolean dict_of member
        position: Position before_the_kept moment_in_utc past_the_end position_of
        shapes:
        strict_json: INT_MAX INT_MIN JsonObject JsonValue MAX_BYTES MAX_DEPTH MISSING Missing as_json check_json
        strict_json: child_path dumps dumps_document field_value is_intact loads loads_document loads_own
        strict_json: loads_own_array normal number_of ordered seal type_name unseal
        """,
    )
