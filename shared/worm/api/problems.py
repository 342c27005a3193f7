"""Errors in the format of RFC 9457: `application/problem+json`.

| Error | Status |
|---|---|
| `Invalid` | 422; 400 if the mistake is in the query or in the syntax of the body; 500 if it is in stored data |
| `UniqueViolation` | 409, with `field` and `holder` |
| `NotFound` | 404 |
| `Conflict` | 412 if the caller gave a precondition, else 409 |
| `Denied` | 403 |
| `Expired` | 410 |
| `CommitStateUnknown` | 503, `mayHaveLanded`, without `Retry-After`: check before you try again |
| `Unavailable`, `Fenced` | 503 with `Retry-After` |
| `UnsafeStore` | 501 |
| `Corrupt`, anything else | 500 |

A problem that is not an error of the library (a path that does not exist, a missing precondition) is a `HttpProblem`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from worm.errors import (
    CommitStateUnknown,
    Conflict,
    Corrupt,
    Denied,
    Expired,
    Fenced,
    Hint,
    Invalid,
    NotFound,
    Unavailable,
    UniqueViolation,
    UnsafeStore,
    WormError,
)
from worm.formats import JsonObject, JsonValue

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = "2"
NO_HEADERS: Mapping[str, str] = {}
MISTAKES_MAX = 100
PYTHON = re.compile(r"[A-Za-z_]\w*\(|\bdb\.|\btx\.")
"""A call of the SDK, which means nothing to a caller of the API."""
_SEGMENT = re.compile(r'\["(?:[^"\\]|\\.)*"\]|\[[^\]"]*\]|[^.\[\]]+')


class HttpProblem(Exception):
    """An answer that is a refusal. `members` are further members of the problem."""

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
        **members: JsonValue,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.slug = slug
        self.detail = detail
        self.headers = headers
        told = hint_of(hint)
        self.members: JsonObject = {**({} if told is None else {"hint": told}), **members}

    def shape(self, request_id: str = "") -> JsonObject:
        known: JsonObject = {
            "type": f"urn:worm:{self.slug}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        return {**known, "requestId": request_id} if request_id else known


def hint_of(hint: str | None) -> str | None:
    """A hint for callers of the API; none if it is only for programs."""
    told = hint.http if isinstance(hint, Hint) else hint
    return None if told is None or PYTHON.search(told) else str(told)


KINDS: Mapping[type[WormError], tuple[int, str]] = {
    UniqueViolation: (409, "unique-violation"),
    Invalid: (422, "invalid"),
    NotFound: (404, "not-found"),
    Conflict: (409, "conflict"),
    Denied: (403, "denied"),
    Expired: (410, "expired"),
    CommitStateUnknown: (503, "commit-state-unknown"),
    Unavailable: (503, "unavailable"),
    Fenced: (503, "fenced"),
    UnsafeStore: (501, "unsafe-store"),
    Corrupt: (500, "corrupt"),
}
"""The first match counts."""


def problem_of(error: WormError, *, has_precondition: bool = False, invalid: int = 422) -> HttpProblem:
    """`has_precondition`: the caller required a version. `invalid`: the status of `Invalid`."""
    status, slug = next((known for kind, known in KINDS.items() if isinstance(error, kind)), (500, "internal"))
    if isinstance(error, Invalid) and error.is_of_stored:
        status, slug = 500, "stored-document-invalid"
    elif slug == "invalid":
        status = invalid
    elif slug == "conflict" and has_precondition:
        status, slug = 412, "precondition-failed"
    retries = status == 503 and slug != "commit-state-unknown" and not error.is_stored
    headers = {"Retry-After": RETRY_SECONDS} if retries else {}
    return HttpProblem(status, slug, error.message, hint=error.hint, headers=headers, **_facts(error))


def _facts(error: WormError) -> JsonObject:
    """Further members for this kind of error."""
    facts: JsonObject = {"key": error.key}
    if isinstance(error, UniqueViolation):
        facts |= {"field": error.field, "holder": error.holder, "pointer": pointer_of(error.field)}
    elif isinstance(error, Invalid) and error.path:
        facts |= _place(error.path)
    if isinstance(error, Invalid) and error.mistakes:
        facts["errors"] = [{**_place(path), "detail": text} for path, text in error.mistakes[:MISTAKES_MAX]]
    if isinstance(error, CommitStateUnknown):
        facts["mayHaveLanded"] = True
    if error.is_stored:
        facts["isStored"] = True
    if error.request_id:
        facts["storeRequestId"] = error.request_id
    return {name: fact for name, fact in facts.items() if fact is not None}


def _place(path: str) -> JsonObject:
    """The place of a mistake. `$` is the whole document."""
    return {"pointer": ""} if path in ("", "$") else {"field": path, "pointer": pointer_of(path)}


def pointer_of(path: str) -> str:
    """The JSON pointer (RFC 6901) of a path as errors write it: `address.city`, `tags[2]`, `tags["odd name"]`."""
    segments = [_name(one) for one in _SEGMENT.findall(path)]
    return "".join(f"/{one.replace('~', '~0').replace('/', '~1')}" for one in segments)


def _name(segment: str) -> str:
    if not segment.startswith("["):
        return segment
    return str(json.loads(segment[1:-1])) if segment.startswith('["') else segment[1:-1]
