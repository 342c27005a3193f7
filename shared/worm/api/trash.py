"""Trash by HTTP: list, restore and purge deleted documents."""

from __future__ import annotations

from datetime import timedelta

from worm.api.call import Call, HttpAnswer
from worm.api.documents import document_answer
from worm.api.histories import (
    CURSOR_PARAMETER,
    LIMIT,
    LIMIT_MAX,
    LIMIT_PARAMETER,
    MODEL_PARAMETER,
    NAME,
    TEXT,
    items_of,
)
from worm.api.preconditions import tags_of, under_condition
from worm.api.routes import BRANCH, DOCUMENT, IDEMPOTENCY_KEY, IF_MATCH, REASON, WORM_REASON, Route
from worm.clock import iso_seconds, moment_of
from worm.errors import Invalid, NotFound
from worm.formats import JsonObject


def list_trash(call: Call) -> JsonObject:
    """`GET /v1/trash`: by model and id."""
    limit = call.query.number("limit", LIMIT, least=1, most=LIMIT_MAX)
    after = _place(call.query.one("cursor"))
    session, found = call.on_branch(), list[JsonObject]()
    for name in sorted(_names(call)):
        if after is None or name >= after[0]:
            found += [_shape(name, one) for one in session.model(name).list_trashed()]
    found.sort(key=_of)
    items = [one for one in found if after is None or _of(one) > after]
    cursor = "{}/{}".format(*_of(items[limit - 1])) if len(items) > limit else None
    return {"items": [*items[:limit]], "cursor": cursor}


def _of(item: JsonObject) -> tuple[str, str]:
    return str(item["model"]), str(item["id"])


def _place(cursor: str | None) -> tuple[str, str] | None:
    if cursor is None:
        return None
    model, found, entity_id = cursor.partition("/")
    if not found:
        raise Invalid(
            "this is not the cursor of a list of trash", path="cursor", hint="use the `cursor` of the previous answer"
        )
    return model, entity_id


def _names(call: Call) -> list[str]:
    """The requested models, or all models with trash."""
    named = call.query.all("model")
    for name in named:
        call.check_model(name)
        if not call.session.schema.model(name).soft_delete:
            raise Invalid(f"{name} has no trash", path="model", hint='set "softDelete": true in the schema and push it')
    is_branch = call.query.one("branch") not in (None, "main")
    return named or [
        name
        for name, known in call.session.schema.models.items()
        if known.soft_delete and call.identity.sees(name) and (known.space is not None or not is_branch)
    ]


def _shape(model: str, trashed: JsonObject) -> JsonObject:
    """`expiresAt` null: it is kept until it is purged."""
    deleted, days = moment_of(str(trashed["deletedAt"])), trashed.get("ttl")
    expires = None
    if deleted is not None and isinstance(days, int) and days > 0:
        expires = iso_seconds(deleted + timedelta(days=days))
    return {
        "model": model,
        "id": trashed["id"],
        "deletedAt": trashed["deletedAt"],
        "deletedBy": trashed.get("deletedBy"),
        "expiresAt": expires,
        "reason": trashed.get("reason"),
    }


def restore(call: Call) -> HttpAnswer:
    """`POST /v1/trash/{model}/{id}/restore`"""
    model, entity_id = call.model, call.parameters["id"]
    tags = tags_of(call, "If-Match")
    return document_answer(
        under_condition(tags, lambda version: model.restore(entity_id, if_version=version, **call.about))
    )


def purge(call: Call) -> HttpAnswer:
    """`DELETE /v1/trash/{model}/{id}`"""
    model, entity_id = call.model, call.parameters["id"]
    model._require_trash()
    model.check_removing()
    if not model.purge(entity_id):
        raise NotFound(f"{model.name} '{entity_id}' is not in trash")
    return HttpAnswer(204)


_ITEM: JsonObject = {
    "model": TEXT,
    "id": TEXT,
    "deletedAt": TEXT,
    "deletedBy": NAME,
    "expiresAt": NAME,
    "reason": NAME,
}
ROUTES = (
    Route(
        "GET",
        "/v1/trash",
        list_trash,
        "List deleted documents that can be restored",
        parameters=(MODEL_PARAMETER, LIMIT_PARAMETER, CURSOR_PARAMETER, BRANCH),
        answer=items_of(_ITEM, cursor=NAME),
        models="filtered",
        tag="trash",
    ),
    Route(
        "POST",
        "/v1/trash/{model}/{id}/restore",
        restore,
        "Restore a deleted document; nothing is overwritten",
        scope="write",
        parameters=(BRANCH, REASON, WORM_REASON, IF_MATCH, IDEMPOTENCY_KEY),
        answer=DOCUMENT,
        problems=(404, 409, 412, 422),
        tag="trash",
        is_idempotent=True,
    ),
    Route(
        "DELETE",
        "/v1/trash/{model}/{id}",
        purge,
        "Remove a deleted document permanently; its history stays",
        scope="admin",
        status=204,
        problems=(404, 409),
        tag="trash",
    ),
)
