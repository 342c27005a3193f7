"""Documents that are too large for a call: the caller gets a URL and uploads to S3 itself.

The URL is for one object under one condition. Its signature covers the condition, and the metadata that says who
uploads and why. So a leaked URL cannot overwrite anything else, and cannot be used twice: the condition no longer
holds. Nothing is checked before the upload. Capture records it like any upload, or rejects it if it breaks the schema.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

from worm.api.call import Call
from worm.api.documents import condition_of
from worm.api.preconditions import Tags, not_matching
from worm.api.problems import HttpProblem
from worm.api.routes import IF_MATCH, IF_NONE_MATCH, REASON, WORM_REASON, Route
from worm.clock import iso_seconds
from worm.collections import Collection, DocumentVersion, origins
from worm.errors import Invalid
from worm.formats import JsonObject
from worm.sdk import note_of_write
from worm.store import IfAbsent, IfMatch, is_remote

if TYPE_CHECKING:
    from worm.store import S3Store

UPLOAD_SECONDS = 15 * 60


def begin_upload(call: Call) -> JsonObject:
    """`POST /v1/models/{model}/documents/{id}/upload`"""
    session, collection = call.session, call.session.collection(call.model.name)
    store, tags = _bucket(call, collection), condition_of(call)
    _check_mode(collection, is_new=tags is None)
    session.ensure_safe_store()
    about = call.about
    metadata = origins.author_metadata(about["actor"], note_of_write(about))
    entity_id = collection.definition.id_of(call.parameters["id"])
    condition = _condition(collection, entity_id, tags)
    expires = session.clock.now() + timedelta(seconds=UPLOAD_SECONDS)
    key = collection.documents.key(entity_id)
    url, headers = store.upload_link(key, condition, metadata, seconds=UPLOAD_SECONDS)
    return {"url": url, "method": "PUT", "headers": {**headers}, "expiresAt": iso_seconds(expires)}


def _bucket(call: Call, collection: Collection) -> S3Store:
    """The store, if uploads can write documents of this model."""
    store = call.session.store
    if not is_remote(store):
        hint = "PUT the document itself: here a call may be just as large"
        raise HttpProblem(501, "no-bucket", "uploads need a bucket", hint=hint)
    if collection.definition.space is not None:
        what = f"documents of {collection.name} are written by commits of the space '{collection.definition.space}'"
        hint = "PUT the document itself; if it is too large for a call, save it with the SDK"
        raise HttpProblem(422, "in-space", what, hint=hint)
    return cast("S3Store", store)


def _check_mode(collection: Collection, *, is_new: bool) -> None:
    mode = collection.definition.mode
    if mode == "readonly" or (mode == "append" and not is_new):
        raise Invalid(f"{collection.name} is {'read-only' if mode == 'readonly' else 'append-only'}")


def _condition(collection: Collection, entity_id: str, tags: Tags | None) -> IfAbsent | IfMatch:
    """The condition of the upload, if it holds now."""
    found = collection.documents.store.head(collection.documents.key(entity_id))
    named = f"{collection.name} '{entity_id}'"
    if tags is None:
        if found is not None:
            raise not_matching(f"{named} exists already")
        return IfAbsent()
    if found is None:
        raise not_matching(f"{named} does not exist")
    if not tags.is_any and not any(_etag(collection, entity_id, one) == found.etag for one in tags.versions):
        raise not_matching(f"{named} has a different version")
    return IfMatch(found.etag)


def _etag(collection: Collection, entity_id: str, version: str) -> str | None:
    """The etag of the object; None if the version has none. A row of a query has only its seq."""
    try:
        at = DocumentVersion.decode(version)
    except Invalid:
        return None
    if at.etag is not None or at.seq is None:
        return at.etag
    entry = collection.oplog.read(entity_id, at.seq)
    return None if entry is None else entry.etag


_TEXT: JsonObject = {"type": "string"}
ROUTES = (
    Route(
        "POST",
        "/v1/models/{model}/documents/{id}/upload",
        begin_upload,
        "Get an S3 URL for uploading a document that is too large for a call",
        scope="write",
        parameters=(REASON, WORM_REASON, IF_MATCH, IF_NONE_MATCH),
        answer={
            "type": "object",
            "required": ["url", "method", "headers", "expiresAt"],
            "properties": {
                "url": _TEXT,
                "method": {"const": "PUT"},
                "headers": {"type": "object", "additionalProperties": _TEXT},
                "expiresAt": {"type": "string", "format": "date-time"},
            },
        },
        problems=(404, 412, 422, 428, 501),
        description=(
            "Send the document to `url` with `method` and all of `headers`, before `expiresAt`. S3 answers 412 if the "
            "condition no longer holds. The document is checked after the upload; `/v1/why` shows the result."
        ),
        tag="documents",
    ),
)
