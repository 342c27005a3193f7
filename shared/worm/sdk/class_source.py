"""`source_of`: a Python module with a class for each model of a schema. `schema_of` turns these classes back into the
schema.

An attribute has the name of its field, unless Python, pydantic or `Document` uses that name: then it gets an underscore
and an alias. Objects with declared properties become separate classes, which keep undeclared members. An optional field
may be null, so its type includes `| None`. What a type cannot express (an enum of floats, a default of a required
field) goes into `json_schema_extra`, which `schema_of` reads.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import cast

from worm.formats import FieldDef, IndexDef, JsonValue, LakeDef, ManifestDef, ModelDef, Schema, SnapshotsDef
from worm.sdk.classes import REQUIRED_MARK, Document, ManifestSettings, ModelSettings, SnapshotSettings

_TYPES = {"string": "str", "number": "float", "integer": "int", "boolean": "bool", "datetime": "datetime"}
_IMPORTED = {"Annotated", "Any", "BaseModel", "ClassVar", "ConfigDict", "Field", "Literal", "annotations", "datetime"}
_USED = _IMPORTED | {"worm", "str", "float", "int", "bool", "list", "dict", "lambda", "UUID"}
_TAKEN = _USED | set(dir(Document)) | {"version", "seq", "model", "created_at", "updated_at", "id"}
_IDS = {"int": "[int]", "uuid": "[UUID]"}
_SETTINGS = ("file", "mode", "oplog", "soft_delete", "trash_ttl_days", "archive_after", "strict", "space")
_INDENT = "    "
_HEAD = '''"""Models of a schema, written by `worm schema types`."""

from __future__ import annotations
'''


def source_of(schema: Schema) -> str:
    """The module as text."""
    return _Source(schema).text()


class _Source:
    """The classes in the order in which Python needs them: a nested one before the one that uses it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._taken = set(schema.models) | _USED
        self._blocks: list[str] = []

    def text(self) -> str:
        for model in self._schema.models.values():
            self._write_model(model)
        body = "\n\n\n".join(self._blocks)
        return f"{_HEAD}{_imports(body)}\n\n\n{body}\n"

    def _write_model(self, model: ModelDef) -> None:
        is_usable = model.name.isidentifier() and not keyword.iskeyword(model.name) and model.name not in _USED
        name = model.name if is_usable else self._class_name(f"{model.name}Model")
        lines = [] if is_usable else [f"worm_model: ClassVar[str] = {_literal(model.name)}"]
        lines += _settings(model, name)
        fields = self._fields(model.fields, name)
        if fields:
            lines += ["", *fields]
        base = f"worm.Document{_IDS.get(model.id_type or '', '')}"
        self._blocks.append(_block(f"class {name}({base}):", lines))

    def _fields(self, fields: Mapping[str, FieldDef], owner: str) -> list[str]:
        attributes: set[str] = set()
        lines = []
        for name, field in fields.items():
            if owner in self._schema.models and name == "id":
                continue
            attribute = _attribute(name, attributes)
            attributes.add(attribute)
            lines.append(self._line(attribute, name, field, owner))
        return lines

    def _line(self, attribute: str, name: str, field: FieldDef, owner: str) -> str:
        type_, extra = self._type(field, f"{owner}{_title(name)}")
        options: list[str] = []
        default = _default(field, extra)
        if default is not None:
            options.append(default)
        if attribute != name:
            options.append(f"alias={_literal(name)}")
        options += _said(field, extra)
        if default is None and field.required:
            value = f" = Field({', '.join(options)})" if options else ""
            return f"{attribute}: {type_}{value}"
        is_plain = len(options) == 1 and "validate_default" not in options[0]
        value = options[0].removeprefix("default=") if is_plain else f"Field({', '.join(options)})"
        return f"{attribute}: {type_}{'' if field.required else ' | None'} = {value}"

    def _type(self, field: FieldDef, name: str) -> tuple[str, dict[str, JsonValue]]:
        """The annotation, and what it cannot express."""
        if field.enum is not None and field.type in ("string", "integer", "boolean", "datetime", "ref"):
            literal = f"Literal[{', '.join(map(_literal, field.enum))}]"
            if field.type == "ref":
                literal = f"Annotated[{literal}, worm.Ref({_literal(field.model)})]"
            return literal, {"format": "date-time"} if field.type == "datetime" else {}
        extra: dict[str, JsonValue] = {} if field.enum is None else {"enum": cast(JsonValue, field.enum)}
        if field.enum is not None and field.type == "number":
            return "int | float", extra
        if field.type == "array":
            return f"list[{'Any' if field.items is None else self._item(field.items, name)}]", extra
        if field.type == "object":
            return "dict[str, Any]" if field.properties is None else self._nested(field.properties, name), extra
        if field.type == "ref":
            return f"Annotated[str, worm.Ref({_literal(field.model)})]", extra
        return _TYPES[field.type], extra

    def _item(self, field: FieldDef, name: str) -> str:
        type_, extra = self._type(field, name)
        said = _said(field, extra)
        return f"Annotated[{type_}, Field({', '.join(said)})]" if said else type_

    def _nested(self, properties: Mapping[str, FieldDef], wanted: str) -> str:
        name = self._class_name(wanted)
        lines = ['model_config = ConfigDict(extra="allow")', "", *self._fields(properties, name)]
        self._blocks.append(_block(f"class {name}(BaseModel):", lines if properties else lines[:1]))
        return name

    def _class_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._taken:
            name, number = f"{wanted}{number}", number + 1
        self._taken.add(name)
        return name


def _block(head: str, lines: list[str]) -> str:
    indented = [f"{_INDENT}{line}" if line else "" for line in lines]
    return "\n".join([head, *(indented or [f"{_INDENT}pass"])])


def _default(field: FieldDef, extra: dict[str, JsonValue]) -> str | None:
    """The default as an argument of `Field`; None if the field is required and so has none."""
    if field.default is None:
        return None if field.required else "default=None"
    if field.required:
        extra[REQUIRED_MARK] = True
    needs_class = field.type in ("array", "object") or (field.type == "datetime" and field.enum is None)
    return f"default={_literal(field.default)}" + (", validate_default=True" if needs_class else "")


def _said(field: FieldDef, extra: Mapping[str, JsonValue]) -> list[str]:
    said = [] if field.description is None else [f"description={_literal(field.description)}"]
    return [*said, f"json_schema_extra={_literal(dict(extra))}"] if extra else said


def _literal(value: object) -> str:
    """Python for a JSON value, with double quotes where they need no escape."""
    if isinstance(value, str):
        shown = repr(value)
        return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in shown and "\\'" not in shown else shown
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)


def _attribute(name: str, taken: set[str]) -> str:
    """A name that Python and pydantic accept, and that no other field of the class has."""
    found = "".join(one if one.isalnum() or one == "_" else "_" for one in name).lstrip("_") or "field"
    if not found.isidentifier() or found.startswith(("model_dump", "model_validate", "worm_")):
        found = f"field_{found}"
    if not found.isidentifier():
        found = "field"
    if keyword.iskeyword(found) or found in _TAKEN:
        found = f"{found}_"
    base, number = found, 2
    while found in taken:
        found, number = f"{base}{number}", number + 1
    return found


def _title(name: str) -> str:
    words = "".join(one if one.isascii() and one.isalnum() else " " for one in name).split()
    return "".join(word[:1].upper() + word[1:] for word in words) or "Field"


def _settings(model: ModelDef, name: str) -> list[str]:
    usual = ModelSettings()
    given = [f"path={_literal(model.path)}"]
    given += [
        f"{one}={_literal(getattr(model, one))}" for one in _SETTINGS if getattr(model, one) != getattr(usual, one)
    ]
    given += _part("snapshots", model.snapshots, SnapshotSettings(), is_usual=False)
    given += _part("manifest", model.manifest, ManifestSettings(), is_usual=True)
    if model.lake is not None:
        given.append(f"lake={'True' if model.lake == LakeDef() else _literal(model.lake.every)}")
    if model.indexes:
        shown = [f"{_literal(key)}: {_index(one)}" for key, one in model.indexes.items()]
        inner = ", ".join(shown) if len(shown) == 1 else "".join(f"\n{_INDENT * 3}{one}," for one in shown)
        given.append(f"indexes={{{inner}}}" if len(shown) == 1 else f"indexes={{{inner}\n{_INDENT * 2}}}")
    if sum(map(len, given)) <= 70:
        return [f"worm_settings = worm.ModelSettings({', '.join(given)})"]
    return ["worm_settings = worm.ModelSettings(", *(f"{_INDENT}{one}," for one in given), ")"]


def _part(
    name: str, part: SnapshotsDef | ManifestDef, usual: SnapshotSettings | ManifestSettings, *, is_usual: bool
) -> list[str]:
    names = [one for one in type(usual).__dataclass_fields__ if getattr(part, one) != getattr(usual, one)]
    if names and part.enabled:
        said = ", ".join(f"{one}={_literal(getattr(part, one))}" for one in names)
        return [f"{name}=worm.{type(usual).__name__}({said})"]
    return [] if part.enabled is is_usual else [f"{name}={part.enabled}"]


def _index(index: IndexDef) -> str:
    said = (["unique=True"] if index.unique else []) + (["multi_value=True"] if index.type == "multiValue" else [])
    return f"worm.Index({', '.join([_literal(index.field), *said])})"


def _imports(body: str) -> str:
    """The lines for what the classes use."""

    words = set(re.findall(r"\w+", body))

    def used(*names: str) -> list[str]:
        return [name for name in names if name in words]

    lines = []
    if "datetime" in words:
        lines.append("from datetime import datetime")
    typing = used("Annotated", "Any", "ClassVar", "Literal")
    if typing:
        lines.append(f"from typing import {', '.join(typing)}")
    if "UUID" in words:
        lines.append("from uuid import UUID")
    pydantic = used("BaseModel", "ConfigDict", "Field")
    if pydantic:
        lines += [*([""] if lines else []), f"from pydantic import {', '.join(pydantic)}"]
    return "\n".join(["", *lines, "", "import worm"] if lines else ["", "import worm"])
