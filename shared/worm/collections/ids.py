"""Ids of documents: checking them against a model's type, making new ones. The rules are in `worm.schema.idtypes`."""

from __future__ import annotations

from worm.clock import Ids
from worm.errors import Invalid
from worm.schema.idtypes import IdType, id_problem, segment_problem

SINGLETON_ID = "_"
"""The id of a singleton's only document."""

_INT_ID_BITS = 53  # what a JavaScript reader of the document can hold exactly


def check_id(id_type: IdType | None, id: str) -> str:
    """Return the id, or raise `Invalid` with the reason. `id_type` None is a singleton."""
    problem = typed_problem(id_type, id)
    if problem:
        raise Invalid(f"id {id!r} {problem}")
    return id


def typed_problem(id_type: IdType | None, id: str) -> str | None:
    """Why `id` is no id of this type, or None."""
    if id_type is None:
        return None if id == SINGLETON_ID else f"must be {SINGLETON_ID!r}, the model has a single document"
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
