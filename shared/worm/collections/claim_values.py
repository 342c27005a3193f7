"""Unique values of documents, and the claim: the object that reserves one of them for one document.

Two values are the same if the index has the same entry for them: `1` and `1.0` are, `1` and `"1"` are not. Null and a
missing field are no values: any number of documents may lack one. A value that is an array or an object (of a field
that the schema does not declare closely) counts as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import cast

from worm.codec.field_path import Missing, field_value
from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own
from worm.errors import Corrupt, UniqueViolation
from worm.schema import IndexDef, ModelDef

REPAIR = "`worm repair` writes it anew"
_WHOLE_FLOATS_BELOW = 2**53


@dataclass(frozen=True)
class UniqueValue:
    """A value that one document of the model may have, in one field."""

    field: str
    value: JsonValue

    @cached_property
    def canonical(self) -> bytes:
        value = self.value
        if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_FLOATS_BELOW:
            value = int(value)
        return dumps(value)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes: the name of the claim."""
        return sha256(self.canonical).hexdigest()

    @property
    def text(self) -> str:
        """As errors show it: a string in quotes, anything else as canonical JSON."""
        return f"'{self.value}'" if isinstance(self.value, str) else self.canonical.decode()

    def is_in(self, document: Mapping[str, JsonValue] | None) -> bool:
        """Does the document (or row) have this value?"""
        found = None if document is None else unique_value(self.field, document)
        return found is not None and found.canonical == self.canonical

    def taken_by(self, holder: str, *, hint: str | None = None) -> UniqueViolation:
        to_do = hint or "choose another value, or change that document first"
        return UniqueViolation(self.field, self.value, holder, shown=self.text, hint=to_do)


def unique_indexes(definition: ModelDef) -> list[IndexDef]:
    """By field name. Everybody claims in this order, so that of two writers that want the same two values one gets the
    first and with it, as far as these two go, all."""
    return sorted((index for index in definition.indexes.values() if index.unique), key=lambda index: index.field)


def unique_value(field: str, document: Mapping[str, JsonValue]) -> UniqueValue | None:
    value = field_value(document, field)
    return None if value is None or isinstance(value, Missing) else UniqueValue(field, value)


def unique_values(definition: ModelDef, document: Mapping[str, JsonValue] | None) -> list[UniqueValue]:
    """The unique values of a document or a row, in the order of claiming."""
    if document is None:
        return []
    found = (unique_value(index.field, document) for index in unique_indexes(definition))
    return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Claim:
    """The body of a claim. `claim` is a random name of this write, so that bytes under compare-and-swap never repeat;
    `over` is the document that it was taken from."""

    id: str
    value: JsonValue
    claim: str
    over: str | None = None

    def to_bytes(self) -> bytes:
        shape: JsonObject = {"version": 1, "id": self.id, "value": self.value, "claim": self.claim}
        return dumps(shape if self.over is None else {**shape, "over": self.over})

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Claim:
        """`Corrupt`, naming the key, when it is not one. Members that we do not know are ignored."""
        try:
            shape = loads_own(body, key=key)
        except Corrupt as damage:
            damage.hint = REPAIR
            raise
        if shape.get("version") != 1:
            raise Corrupt(f"claim version {shape.get('version')!r}; this code reads version 1", key=key, hint=REPAIR)
        texts = (shape.get("id"), shape.get("claim"), shape.get("over", ""))
        if "value" not in shape or not all(isinstance(text, str) for text in texts):
            raise Corrupt("not a claim: id, value and claim must be there", key=key, hint=REPAIR)
        return cls(str(texts[0]), shape["value"], str(texts[1]), cast("str | None", shape.get("over")))
