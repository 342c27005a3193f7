"""Validation specs of namespaces: `{"fields": {…}, "strict": bool}`, with the fields of schema.json.

A spec is checked when it is defined; documents are checked when they are written. Documents that were there before stay
as they are: a log replays to what was written, whatever was defined later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field, ValidationError

from worm.codec.strict_json import JsonObject, JsonValue, child_path
from worm.errors import Invalid
from worm.schema.fields import Check, Definition, FieldDef, Problem, compile_object, field_name_problems, field_problems

_SHOWN = 5


class SpecDef(Definition):
    """The shape of a spec."""

    fields: dict[str, FieldDef] = Field(default_factory=dict)
    strict: bool = False


class _EveryName(dict[str, object]):
    """A `ref` may name any namespace, there or not: nothing says in which order they are defined."""

    def __contains__(self, name: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec and the check that it comes to."""

    raw: JsonObject
    check: Check

    def require(self, doc: Mapping[str, JsonValue], ns: str) -> None:
        """`Invalid`, with every broken rule, for a document that breaks one."""
        problems: list[Problem] = []
        self.check(dict(doc), "", problems)
        if problems:
            raise _invalid(f"the document breaks the spec of {ns!r}", problems)


def compile_spec(raw: JsonObject, ns: str) -> Spec:
    """The spec, or `Invalid` with every mistake in it."""
    try:
        spec = SpecDef.model_validate(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise _invalid(f"spec of {ns!r}", [Problem(_path(one["loc"]), one["msg"]) for one in found]) from error
    problems: list[Problem] = []
    for name, field in spec.fields.items():
        problems += field_name_problems(name, "fields")
        problems += field_problems(field, child_path("fields", name), _EveryName())
    if problems:
        raise _invalid(f"spec of {ns!r}", problems)
    return Spec(raw, compile_object(spec.fields, strict=spec.strict, always=frozenset(("_id",))))


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path = child_path(path, part)
    return path or "$"


def _invalid(what: str, problems: list[Problem]) -> Invalid:
    more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    told = "; ".join(map(str, problems[:_SHOWN]))
    return Invalid(f"{what}: {told}{more}")
