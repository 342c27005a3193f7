"""Ids of documents: checking them against a model's type, making new ones. The rules are in `worm.schema.fields`."""

from __future__ import annotations

from worm.clock import Ids
from worm.codec.strict_json import JsonValue
from worm.errors import Invalid
from worm.schema.fields import SINGLETON_ID, IdType, id_problem, segment_problem

__all__ = ["SINGLETON_ID", "check_id", "check_safe", "id_text", "new_id", "typed_problem"]

_INT_ID_BITS = 53  # what a JavaScript reader of the document can hold exactly


def check_id(id_type: IdType | None, id: str) -> str:
    """Return the id, or raise `Invalid` with the reason. `id_type` None is a singleton."""
    problem = typed_problem(id_type, id)
    if problem:
        raise Invalid(f"id {id!r} {problem}")
    return id


def id_text(id_type: IdType | None, value: JsonValue) -> str:
    """The id that the field `id` of a document says: text, in a model with whole numbers as ids also such a number."""
    if isinstance(value, str):
        return value
    if id_type == "int" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    wanted = "a whole number or its digits as a string" if id_type == "int" else "a string"
    raise Invalid(f"must be {wanted}, not {value!r}", path="id")


def typed_problem(id_type: IdType | None, id: str) -> str | None:
    """Why `id` is no id of this type, or None."""
    if id_type is None:
        return None if id == SINGLETON_ID else f"must be {SINGLETON_ID!r}, the model has a single document"
    if id == SINGLETON_ID:
        return "is reserved for the only document of a singleton"
    return id_problem(id_type, id)


def check_safe(id: str) -> str:
    """Return the id when it can be a key segment whatever its type, or raise `Invalid`."""
    problem = segment_problem(id)
    if problem:
        raise Invalid(f"id {id!r} {problem}")
    return id


def new_id(id_type: IdType | None, ids: Ids) -> str:
    """A new random id of the type. ULIDs and ids made from them sort by the time they were made."""
    if id_type is None:
        return SINGLETON_ID
    if id_type == "uuid":
        return ids.uuid()
    if id_type == "int":
        return str(ids.rng.getrandbits(_INT_ID_BITS))
    return ids.ulid() if id_type == "ulid" else ids.ulid().lower()
