"""Rules that hold between definitions: places do not overlap, names point at something that exists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from worm.codec.strict_json import child_path
from worm.errors import Invalid
from worm.schema.definition import SYSTEM_FIELDS, IndexDef, ModelDef
from worm.schema.fields import FieldDef, Problem, field_name_problems, field_problems
from worm.schema.idtypes import id_problem

_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


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


def find_field(fields: Mapping[str, FieldDef], dotted: str) -> tuple[bool, FieldDef | None]:
    """Whether a (dotted) name is allowed by the definitions, and its definition where it is declared."""
    if dotted in SYSTEM_FIELDS and dotted not in fields:
        return True, None
    head, *rest = dotted.split(".")
    field = fields.get(head)
    for name in rest:
        if field is None or field.type != "object" or not name:
            return False, None
        if field.properties is None:
            return True, None
        field = field.properties.get(name)
    return field is not None, field


def undeclared_fields(model: ModelDef, names: Iterable[str]) -> list[str]:
    """Those of the (dotted) names that the schema does not declare. `Invalid` where the model is strict and no document
    can have one: it is mistyped. Objects inside a document are not strict, and filters look through arrays."""
    unknown = [name for name in dict.fromkeys(names) if not find_field(model.fields, name)[0]]
    for name in unknown if model.strict else ():
        if not _is_possible(model.fields, name):
            known = ", ".join(("id", *(one for one in model.fields if one != "id")))
            raise Invalid(f"{model.name} has no field {name!r}; it has {known}")
    return unknown


def _is_possible(fields: Mapping[str, FieldDef], dotted: str) -> bool:
    """Can a document of a strict model with these fields have something there?"""
    head, *rest = dotted.split(".")
    field = fields.get(head)
    if field is None:
        return False
    for name in rest:
        while field is not None and field.type == "array":
            field = field.items
        if field is not None and field.type != "object":
            return False
        field = None if field is None or field.properties is None else field.properties.get(name)
    return True


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
