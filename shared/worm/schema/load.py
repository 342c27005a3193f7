"""The way in: JSON text, file or dict to a checked `Schema`, with every mistake listed at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from worm.codec.strict_json import JsonValue, check_json, child_path, loads, type_name
from worm.errors import Invalid, NotFound
from worm.schema.crosscheck import cross_check
from worm.schema.definition import ModelDef, Schema, invalid
from worm.schema.fields import Problem

SCHEMA_BYTES_MAX = 1024 * 1024


def load_schema(source: Mapping[str, object] | bytes | str | Path) -> Schema:
    """Load from a dict, from JSON bytes, or from the path of a file. `Invalid` names the JSON path of each mistake."""
    raw = _read(source)
    if not isinstance(raw, dict):
        raise Invalid(f"a schema must be a JSON object, not {type_name(raw)}")
    problems: list[Problem] = []
    schema: Schema | None = None
    try:
        schema = Schema.model_validate(raw)
    except ValidationError as error:
        problems += _problems(error, "")
    raw_models = raw.get("models")
    known = raw_models if isinstance(raw_models, dict) else {}
    models = schema.models if schema else _well_formed(known)
    if schema and not schema.models:
        problems.append(Problem("models", "must define at least one model"))
    problems += cross_check(models, known)
    if problems or schema is None:
        raise invalid("schema", problems)
    return schema


def _read(source: Mapping[str, object] | bytes | str | Path) -> JsonValue:
    if isinstance(source, bytes):
        return loads(source, max_bytes=SCHEMA_BYTES_MAX)
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            body = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFound(f"no schema file {path}", hint="`worm import` makes one from existing documents") from error
        except OSError as error:
            raise Invalid(f"cannot read schema file {path}: {error.strerror}") from error
        try:
            return loads(body, max_bytes=SCHEMA_BYTES_MAX)
        except Invalid as error:
            raise Invalid(f"{path}: {error.message}", hint=error.hint) from error
    return check_json(dict(source))


def _well_formed(raw_models: Mapping[str, JsonValue]) -> dict[str, ModelDef]:
    """The models that can be checked further although another one has a mistake."""
    models: dict[str, ModelDef] = {}
    for name, raw in raw_models.items():
        try:
            models[name] = ModelDef.model_validate(raw)
        except ValidationError:
            continue  # reported by the validation of the whole schema
    return models


def _problems(error: ValidationError, path: str) -> list[Problem]:
    problems = []
    for detail in error.errors(include_url=False, include_context=False, include_input=True):
        where = path
        for part in detail["loc"]:
            where = child_path(where, part)
        problems.append(Problem(where or "$", _message(detail["type"], detail["msg"], detail["input"])))
    return problems


def _message(kind: str, message: str, found: object) -> str:
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return "unknown field"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "model_type":
        return f"must be an object, not {type_name(found)}"
    text = message.removeprefix("Input should be ")
    if text == message:
        return message
    return f"must be {text.removeprefix('a valid ')}, not {_shown(found)}"


def _shown(found: object) -> str:
    return f"{found!r}" if isinstance(found, str | int | float | bool) and len(repr(found)) <= 60 else type_name(found)
