"""Documents by id: read, create, replace, change, delete.

Only the caller's own condition protects a write: `PUT` needs one, `PATCH` and `DELETE` may have one. Without one, a
change applies to the current document and loses no other change; a replacement could overwrite anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from urllib.parse import quote

from worm.api.call import JSON, Call, HttpAnswer, json_answer
from worm.api.json_patch import PatchRefused, check_patch_document, patched
from worm.api.preconditions import (
    Tags,
    check_is_one_of,
    etag_of,
    is_fresh,
    not_matching,
    tags_of,
    under_condition,
    version_of,
)
from worm.api.problems import HttpProblem
from worm.api.routes import (
    BRANCH,
    DOCUMENT,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    REASON,
    WORM_REASON,
    Route,
)
from worm.errors import Invalid, NotFound
from worm.formats import JsonObject, JsonValue
from worm.sdk import DocumentDict, Model, check_operators, check_patch

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
OPERATORS = "application/vnd.worm.update+json"
LINK_SECONDS = 60
PATCHES = (MERGE_PATCH, JSON_PATCH, OPERATORS)


def shape_of(document: DocumentDict) -> JsonObject:
    """A document as it appears in answers."""
    origin = document.provenance
    entity_id = str(document["id"]) if origin is None else origin.id
    return {"id": entity_id, "version": version_of(document), "seq": document.seq, "document": document}


def document_answer(document: DocumentDict, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
    """With its ETag."""
    shape = shape_of(document)
    return json_answer(shape, status, {**_headers(shape["version"]), **(headers or {})})


def _headers(version: JsonValue) -> dict[str, str]:
    tag = {"ETag": etag_of(version)} if isinstance(version, str) else {}
    return {"Cache-Control": "no-cache", **tag}


def get_document(call: Call) -> HttpAnswer:
    model = call.model
    document = model.get(call.parameters["id"])
    if call.has_precondition:
        version = version_of(document)
        check_is_one_of(call, version)
        if is_fresh(call, version):
            return HttpAnswer(304, _headers(version))
    answer = document_answer(document)
    most = call.settings.max_answer_bytes
    if most is not None and isinstance(answer.body, bytes) and len(answer.body) > most:
        return _elsewhere(call, model, document) or answer
    return answer


def _elsewhere(call: Call, model: Model[DocumentDict], document: DocumentDict) -> HttpAnswer | None:
    """If a function cannot return a document because of its size, S3 serves it. Not for a model in a space: its log may
    be ahead of the object."""
    from worm.store import S3Store

    store, origin = call.session.store, document.provenance
    is_object = call.session.schema.model(model.name).space is None
    if not isinstance(store, S3Store) or origin is None or not is_object:
        return None
    key = call.session.collection(model.name).documents.key(origin.id)
    link = store.link(key, version_id=origin.at.version_id, seconds=LINK_SECONDS)
    return HttpAnswer(303, {**_headers(version_of(document)), "Location": link})


def create_document(call: Call) -> HttpAnswer:
    tags = tags_of(call, "If-None-Match")
    if tags is not None and not tags.is_any:
        raise _only_star()
    document = call.model.insert(call.json_object(), **call.about)
    return document_answer(document, 201, {"Location": _place(call, str(document["id"]))})


def _place(call: Call, entity_id: str) -> str:
    """The path of a document, encoded for a header: an HTTP API decodes the path of the call. Anything before `/v1` is
    the name of a stage."""
    stage, model = call.path.partition("/v1/")[0], call.parameters["model"]
    return f"{stage}/v1/models/{quote(model, safe='')}/documents/{quote(entity_id, safe='')}"


def condition_of(call: Call) -> Tags | None:
    """The version that a replacement may replace; None: no document may exist. One of the two headers is required."""
    is_match, is_none = tags_of(call, "If-Match"), tags_of(call, "If-None-Match")
    if is_match is None and is_none is None:
        hint = (
            'send If-Match: "<version>" to replace that version, If-Match: * to replace any, If-None-Match: * to create'
        )
        raise HttpProblem(428, "precondition-required", "a replacement needs a condition", hint=hint)
    if is_match is not None and is_none is not None:
        raise HttpProblem(
            400, "malformed-header", "If-Match and If-None-Match exclude each other", hint="send only one of them"
        )
    if is_none is not None and not is_none.is_any:
        raise _only_star()
    return is_match


def replace_document(call: Call) -> HttpAnswer:
    is_match = condition_of(call)
    model, document = call.model, _named(call, call.json_object())
    if is_match is None:
        place = _place(call, call.parameters["id"])
        return document_answer(model.insert(document, **call.about), 201, {"Location": place})
    return document_answer(
        under_condition(is_match, lambda version: model.replace(document, if_version=version, **call.about))
    )


def change_document(call: Call) -> HttpAnswer:
    kind = call.media_type
    if kind not in PATCHES:
        what = f"PATCH takes {', '.join(PATCHES)}"
        raise HttpProblem(415, "unsupported-media-type", what, headers={"Accept-Patch": ", ".join(PATCHES)})
    model, tags = call.model, tags_of(call, "If-Match")
    body = call.json((kind,))
    if kind == JSON_PATCH:
        return document_answer(_json_patched(call, model, tags))
    if not isinstance(body, dict):
        raise Invalid("a change must be a JSON object")
    _check_change(kind, body)
    verb = model.patch if kind == MERGE_PATCH else model.update
    entity_id, about = call.parameters["id"], call.about
    return document_answer(under_condition(tags, lambda version: verb(entity_id, body, if_version=version, **about)))


def _check_change(kind: str, body: JsonObject) -> None:
    """Errors about a whole change name an argument of the SDK, which the body does not have."""
    check, argument = (check_patch, "changes") if kind == MERGE_PATCH else (check_operators, "update")
    try:
        check(body)
    except Invalid as mistake:
        if mistake.path == argument:
            mistake.message, mistake.path = mistake.message.removeprefix(f"{argument}: "), None
        raise


def _json_patched(call: Call, model: Model[DocumentDict], tags: Tags | None) -> DocumentDict:
    try:
        operations = check_patch_document(call.json((JSON_PATCH,)))
    except Invalid as mistake:
        raise HttpProblem(400, "malformed-patch", mistake.message) from None

    def change(document: DocumentDict) -> None:
        after = patched(dict(document), operations)
        if not isinstance(after, dict):
            raise Invalid("the result of the patch is not a JSON object")
        document.clear()
        document.update(after)

    entity_id, about = call.parameters["id"], call.about
    try:
        return under_condition(tags, lambda version: model.modify(entity_id, change, if_version=version, **about))
    except PatchRefused as refused:
        slug = "test-failed" if refused.is_test else "patch-failed"
        raise HttpProblem(422, slug, refused.message, pointer=refused.pointer) from None


def delete_document(call: Call) -> HttpAnswer:
    model, entity_id, tags = call.model, call.parameters["id"], tags_of(call, "If-Match")
    delete = partial(model.delete, entity_id, **call.about)
    if under_condition(tags, lambda version: delete(if_version=version)):
        return HttpAnswer(204)
    if tags is not None:
        raise not_matching(f"{model.name} '{entity_id}' does not exist")
    raise NotFound(f"{model.name} '{entity_id}' does not exist")


def _named(call: Call, document: JsonObject) -> JsonObject:
    """The document with the id of the path; its own id must be the same."""
    given, wanted = document.get("id"), call.parameters["id"]
    if given is not None and (isinstance(given, bool) or not isinstance(given, str | int) or str(given) != wanted):
        raise Invalid(f"must be the id in the path, {wanted!r}", path="id")
    return document if given is not None else {**document, "id": wanted}


def _only_star() -> HttpProblem:
    return HttpProblem(
        400, "malformed-header", "If-None-Match of a write must be *", hint="with *, the call only creates"
    )


_CONTENT: JsonObject = {"type": "object", "description": "The document. Its model defines the fields."}
_PATH = "/v1/models/{model}/documents/{id}"
_ABOUT = (BRANCH, REASON, WORM_REASON)
ROUTES = (
    Route(
        "GET",
        _PATH,
        get_document,
        "Read one document as it is stored now",
        parameters=(BRANCH, IF_MATCH, IF_NONE_MATCH),
        answer=DOCUMENT,
        problems=(303, 304, 404, 412),
        description="303: the document is larger than a function may return. `Location` serves it for one minute.",
        tag="documents",
    ),
    Route(
        "POST",
        "/v1/models/{model}/documents",
        create_document,
        "Create a document; without an id it gets one",
        scope="write",
        parameters=(*_ABOUT, IF_NONE_MATCH, IDEMPOTENCY_KEY),
        body={JSON: _CONTENT},
        answer=DOCUMENT,
        status=201,
        problems=(404, 409, 412, 422),
        tag="documents",
        is_idempotent=True,
    ),
    Route(
        "PUT",
        _PATH,
        replace_document,
        "Replace a document, or create it, under a condition",
        scope="write",
        parameters=(*_ABOUT, IF_MATCH, IF_NONE_MATCH),
        body={JSON: _CONTENT},
        answer=DOCUMENT,
        problems=(201, 404, 409, 412, 422, 428),
        tag="documents",
    ),
    Route(
        "PATCH",
        _PATH,
        change_document,
        "Change fields: merge patch, JSON patch, or update operators",
        scope="write",
        parameters=(*_ABOUT, IF_MATCH, IDEMPOTENCY_KEY),
        body={
            MERGE_PATCH: {"type": "object", "description": "RFC 7396: null removes a field."},
            JSON_PATCH: {"type": "array", "items": {"type": "object"}, "description": "RFC 6902."},
            OPERATORS: {"type": "object", "description": "$set, $unset, $inc, $push, $pull, $addToSet."},
        },
        answer=DOCUMENT,
        problems=(404, 409, 412, 422),
        tag="documents",
        is_idempotent=True,
    ),
    Route(
        "DELETE",
        _PATH,
        delete_document,
        "Delete a document; with softDelete it goes to trash",
        scope="write",
        parameters=(*_ABOUT, IF_MATCH),
        status=204,
        problems=(404, 412),
        tag="documents",
    ),
)
