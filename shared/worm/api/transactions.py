"""Transactions by HTTP: several documents of one space change together, or none does.

An operation may name the version that the caller read. If the document has changed, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from worm.api.call import JSON, Call
from worm.api.problems import problem_of
from worm.api.routes import BRANCH, IDEMPOTENCY_KEY, Route
from worm.errors import Conflict, Invalid, UniqueViolation, show
from worm.formats import JsonObject, JsonValue
from worm.values import dataclass

if TYPE_CHECKING:  # `session.transaction()` imports it; few calls are transactions
    from worm.sdk import DocumentTransaction

OPERATIONS_MAX = 1000
MEMBERS = {"op", "model", "id", "document", "version"}


@dataclass(frozen=True, slots=True)
class AskedOperation:
    """One operation, checked. `has_version`: the caller requires a version; None: the document must not exist."""

    op: str
    model: str
    id: str | None
    document: JsonObject | None
    has_version: bool
    version: str | None

    @classmethod
    def of(cls, shape: JsonValue, at: str) -> AskedOperation:
        if not isinstance(shape, dict):
            raise Invalid(f"must be an object, not {show(shape)}", path=at)
        unknown = sorted(shape.keys() - MEMBERS)
        if unknown:
            raise Invalid("unknown member", path=f"{at}.{unknown[0]}", hint=f"known: {', '.join(sorted(MEMBERS))}")
        op, model, document = shape.get("op"), shape.get("model"), shape.get("document")
        if not isinstance(op, str) or op not in OPS:
            raise Invalid(f"must be one of {', '.join(OPS)}, not {show(op)}", path=f"{at}.op")
        if not isinstance(model, str):
            raise Invalid(f"must be the name of a model, not {show(model)}", path=f"{at}.model")
        for name in ("id", "version"):
            if not isinstance(shape.get(name), str | None):
                raise Invalid(f"must be text, not {show(shape[name])}", path=f"{at}.{name}")
        if (op == "save") != isinstance(document, dict):
            raise Invalid("must be an object for save, and left out otherwise", path=f"{at}.document")
        if op != "save" and shape.get("id") is None:
            raise Invalid("is missing", path=f"{at}.id")
        entity_id, version = (cast("str | None", shape.get(name)) for name in ("id", "version"))
        return cls(op, model, entity_id, cast("JsonObject | None", document), "version" in shape, version)

    @property
    def named(self) -> str | None:
        """The id; for save it may be in the document."""
        inside = None if self.document is None else self.document.get("id")
        return self.id if self.id is not None else None if inside is None else str(inside)


def _require(tx: DocumentTransaction, one: AskedOperation) -> None:
    """The required version. A document without an id is always new."""
    if one.named is None:
        if one.version is not None:
            raise Invalid("a document without an id has no version", path="version")
    elif one.has_version:
        tx.require(one.model, one.named, if_version=one.version, exists=one.version is not None)
    elif one.op == "require":
        tx.require(one.model, one.named)


def _save(tx: DocumentTransaction, one: AskedOperation) -> JsonObject:
    assert one.document is not None
    saved = tx.save(one.model, one.document, id=one.id)
    return {"op": one.op, "model": one.model, "id": saved.get("id", one.named), "document": dict(saved)}


def _delete(tx: DocumentTransaction, one: AskedOperation) -> JsonObject:
    return {"op": one.op, "model": one.model, "id": one.id, "wasThere": tx.delete(one.model, one.id)}


def _confirm(tx: DocumentTransaction, one: AskedOperation) -> JsonObject:
    return {"op": one.op, "model": one.model, "id": one.id}


OPS: Mapping[str, Callable[[DocumentTransaction, AskedOperation], JsonObject]] = {
    "save": _save,
    "delete": _delete,
    "require": _confirm,
}


def commit(call: Call) -> JsonObject:
    """`POST /v1/transactions`"""
    operations = _operations(call)
    has_conditions = any(one.has_version or one.op == "require" for one in operations)
    done: list[JsonValue] = []
    try:
        with call.on_branch().transaction(actor=call.identity.actor) as tx:
            for at, one in enumerate(operations):  # check what the caller read before anything is written
                with _naming(at):
                    _require(tx, one)
            for at, one in enumerate(operations):
                with _naming(at):
                    done.append(OPS[one.op](tx, one))
    except UniqueViolation:
        raise
    except Conflict as conflict:
        raise problem_of(conflict, has_precondition=has_conditions) from None
    return {"seq": tx.seq, "items": done}


@contextmanager
def _naming(at: int) -> Iterator[None]:
    """Adds the operation to the path of a mistake."""
    try:
        yield
    except Invalid as mistake:
        place = f"operations[{at}]"
        if mistake.mistakes:  # of the document
            place = f"{place}.document"
            mistake.mistakes = tuple((_joined(place, path), text) for path, text in mistake.mistakes)
        mistake.path = _joined(place, mistake.path)
        raise


def _joined(place: str, path: str | None) -> str:
    return f"{place}.{path}" if path and path != "$" else place


def _operations(call: Call) -> list[AskedOperation]:
    body = call.json_object()
    listed = body.get("operations")
    if body.keys() - {"operations"} or not isinstance(listed, list) or not 1 <= len(listed) <= OPERATIONS_MAX:
        raise Invalid(f"must be a list of 1 to {OPERATIONS_MAX:,} operations", path="operations")
    operations = [AskedOperation.of(one, f"operations[{at}]") for at, one in enumerate(listed)]
    for one in operations:
        call.check_model(one.model)
    return operations


_OPERATION: JsonObject = {
    "type": "object",
    "required": ["op", "model"],
    "properties": {
        "op": {"enum": list[JsonValue](OPS)},
        "model": {"type": "string"},
        "id": {"type": ["string", "null"]},
        "document": {"type": "object", "description": "For save: the whole document."},
        "version": {
            "type": ["string", "null"],
            "description": "The required version; null if the document must not exist. If left out, any version.",
        },
    },
    "additionalProperties": False,
}
ROUTES = (
    Route(
        "POST",
        "/v1/transactions",
        commit,
        "Change several documents of one space together, or none",
        scope="write",
        parameters=(BRANCH, IDEMPOTENCY_KEY),
        body={
            JSON: {
                "type": "object",
                "required": ["operations"],
                "properties": {
                    "operations": {
                        "type": "array",
                        "items": _OPERATION,
                        "minItems": 1,
                        "maxItems": OPERATIONS_MAX,
                    }
                },
                "additionalProperties": False,
            }
        },
        answer={
            "type": "object",
            "properties": {
                "seq": {"type": ["integer", "null"], "description": "The commit; null if nothing had to be written."},
                "items": {"type": "array", "items": {"type": "object"}},
            },
        },
        problems=(404, 409, 412, 422),
        models="filtered",
        tag="transactions",
        is_idempotent=True,
    ),
)
