"""The way in: JSON text, file or dict to a checked `Schema`, with every mistake listed at once.

Each definition is checked by itself first; then the rules that hold between definitions: places do not overlap, and
names point at something that exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from worm.codec.strict_json import JsonValue, check_json, child_path, loads, type_name
from worm.errors import Invalid, NotFound
from worm.schema.definition import IndexDef, ModelDef, Schema, find_field, invalid
from worm.schema.fields import FieldDef, Problem, field_name_problems, field_problems, id_problem

_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
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


def cross_check(models: Mapping[str, ModelDef], known: Mapping[str, object]) -> list[Problem]:
    """Every mistake between or inside well-formed models. `known` holds all model names, well-formed or not."""
    problems: list[Problem] = []
    for name, model in models.items():
        path = child_path("models", name)
        if not _MODEL_NAME.fullmatch(name):
            problems.append(Problem(path, "a model name must be a letter followed by letters, digits or _"))
        for field_name, field in model.fields.items():
            fields_path = child_path(path, "fields")
            problems += field_name_problems(field_name, fields_path)
            problems += field_problems(field, child_path(fields_path, field_name), known)
        problems += _manifest_problems(model, path)
        if model.archive_after is not None and not model.oplog:
            problems.append(Problem(f"{path}.archiveAfter", "needs oplog: true, there is nothing to archive without"))
        problems += _index_problems(model, path)
    return problems + _place_problems(models)


def _manifest_problems(model: ModelDef, path: str) -> list[Problem]:
    problems: list[Problem] = []
    for at, name in enumerate(model.manifest.fields or ()):
        if not find_field(model.fields, name)[0]:
            where = child_path(f"{path}.manifest.fields", at)
            problems.append(Problem(where, f"unknown field {name!r}, known: {_known(model)}"))
    return problems


def _index_problems(model: ModelDef, path: str) -> list[Problem]:
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    for name, index in model.indexes.items():
        where = child_path(f"{path}.indexes", name)
        if index.field in owner:
            message = f"field {index.field!r} already has the index {owner[index.field]!r}"
            problems.append(Problem(f"{where}.field", message))
        owner.setdefault(index.field, name)
        exists, field = find_field(model.fields, index.field)
        if not exists:
            problems.append(Problem(f"{where}.field", f"unknown field {index.field!r}, known: {_known(model)}"))
        elif field is not None:
            problems += _index_type_problems(index, field, where)
        if index.unique and index.type == "multiValue":
            problems.append(Problem(f"{where}.unique", "a multiValue index cannot be unique"))
    return problems


def _index_type_problems(index: IndexDef, field: FieldDef, where: str) -> list[Problem]:
    if index.type == "multiValue" and field.type != "array":
        return [Problem(f"{where}.type", f"multiValue needs an array field, {index.field!r} is {field.type}")]
    if index.type == "standard" and field.type in ("array", "object"):
        hint = ', use "type": "multiValue"' if field.type == "array" else ""
        return [Problem(f"{where}.field", f"{index.field!r} is {field.type} and has no single value{hint}")]
    return []


def _place_problems(models: Mapping[str, ModelDef]) -> list[Problem]:
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    for name, model in models.items():
        path = f"{child_path('models', name)}.path"
        if model.collection in owner:
            message = f"collection {model.collection!r} is already the one of model {owner[model.collection]}"
            problems.append(Problem(path, f"{message}; system directories are named by collection"))
        owner.setdefault(model.collection, name)
        for other_name, other in models.items():
            inside = _entity_inside(other, model)
            if other_name != name and inside:
                message = f"{model.location.directory!r} is also the document {inside!r} of model {other_name}"
                problems.append(Problem(path, message))
    return problems


def _entity_inside(outer: ModelDef, inner: ModelDef) -> str | None:
    """The id of `outer` whose directory is, or contains, the directory of `inner`."""
    prefix = f"{outer.location.directory}/"
    if outer.id_type is None or not inner.location.directory.startswith(prefix):
        return None
    segment = inner.location.directory[len(prefix) :].split("/")[0]
    return None if id_problem(outer.id_type, segment) else segment


def _known(model: ModelDef) -> str:
    return ", ".join(model.fields) or "none"
