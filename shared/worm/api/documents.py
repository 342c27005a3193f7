"""Documents by id.

A module of its own because it has the endpoints of one noun; `app.py` only lists such modules.
"""

from __future__ import annotations

from urllib.parse import quote

from worm.api.call import Call, HttpAnswer, json_answer
from worm.api.routes import Route
from worm.codec.strict_json import JsonObject
from worm.sdk.document import DocumentDict


def shape_of(document: DocumentDict) -> JsonObject:
    """A document as answers have it."""
    return {"id": document.get("id"), "version": document.version, "seq": document.seq, "document": dict(document)}


def etag_of(version: str) -> str:
    """A version as an ETag: strong, and with what ETags cannot hold percent-encoded."""
    return f'"{quote(version, safe="!#$&()*+,-./:;<=>?@[]^_`{|}~")}"'


def document_answer(document: DocumentDict, status: int = 200) -> HttpAnswer:
    headers = {"Cache-Control": "no-cache"}
    if document.version is not None:
        headers["ETag"] = etag_of(document.version)
    return json_answer(shape_of(document), status, headers)


def get_document(call: Call) -> HttpAnswer:
    """`GET /v1/models/{model}/documents/{id}`"""
    return document_answer(call.model.get(call.parameters["id"]))


ROUTES = (Route("GET", "/v1/models/{model}/documents/{id}", get_document, "One document"),)
