"""`If-Match` and `If-None-Match` (RFC 9110): the only conditions of a write. The session's memory is not one.

An ETag is the version of a document in quotes. A version that this library did not issue matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote, unquote

from worm.api.call import Call
from worm.api.problems import HttpProblem
from worm.collections import DocumentVersion
from worm.errors import Conflict, Invalid, NotFound, show
from worm.sdk import DocumentDict
from worm.values import dataclass

R = TypeVar("R")
_TAG = re.compile(r'[ \t]*(W/)?"([\x21\x23-\x7e\x80-\U0010ffff]*)"[ \t]*(?:,|\Z)')
_SAFE = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
TAGS_MAX = 20


@dataclass(frozen=True, slots=True)
class Tags:
    """The versions in a condition, or any. `weak`: versions that were marked as weak."""

    is_any: bool = False
    versions: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()


def version_of(document: DocumentDict) -> str | None:
    """One text per state, unlike versions of the SDK: in a space only the commit counts, whether or not the object that
    follows from it is known. None for a partial document, or for one of the past: it cannot be saved."""
    origin = document.provenance
    if origin is None or origin.partial or origin.as_of:
        return None
    at = origin.at
    return (at if at.commit is None else DocumentVersion(commit=at.commit)).encode()


def etag_of(version: str) -> str:
    """A strong ETag; characters that ETags cannot contain are percent-encoded."""
    return f'"{quote(version, safe=_SAFE)}"'


def tags_of(call: Call, header: str) -> Tags | None:
    """None if the caller does not send it."""
    text = call.header(header)
    if text is None:
        return None
    if text.strip() == "*":
        return Tags(is_any=True)
    at, strong, weak = 0, list[str](), list[str]()
    while at < len(text) or not text:
        found = _TAG.match(text, at)
        if found is None or len(strong) + len(weak) >= TAGS_MAX:
            hint = 'send a version in double quotes: If-Match: "…", or *'
            raise HttpProblem(400, "malformed-header", f"{header} {show(text)} is not valid", hint=hint)
        (weak if found[1] else strong).append(unquote(found[2]))
        at = found.end()
    return Tags(versions=tuple(strong), weak=tuple(weak))


def is_fresh(call: Call, version: str | None) -> bool:
    """Does the caller already have this version (`If-None-Match` of a GET)?"""
    tags = tags_of(call, "If-None-Match")
    return tags is not None and (tags.is_any or version in (*tags.versions, *tags.weak))


def check_is_one_of(call: Call, version: str | None) -> None:
    """`If-Match` of a GET."""
    tags = tags_of(call, "If-Match")
    if tags is not None and not tags.is_any and version not in tags.versions:
        raise not_matching("the document has a different version")


def not_matching(what: str) -> HttpProblem:
    return HttpProblem(412, "precondition-failed", what, hint="read it again, and apply your change to the new version")


def under_condition(tags: Tags | None, change: Callable[[str | None], R]) -> R:
    """Runs `change` under the condition, with the version that must be stored, None for any. A missing document matches
    nothing."""
    if tags is None:
        return change(None)
    versions: list[str | None] = [None] if tags.is_any else [one for one in tags.versions if _is_version(one)]
    if not versions:
        raise not_matching("If-Match has no version that this API issued")
    try:
        for version in versions[:-1]:
            try:
                return change(version)
            except Conflict:
                continue
        return change(versions[-1])
    except NotFound as missing:
        raise not_matching(missing.message) from None


def _is_version(text: str) -> bool:
    try:
        DocumentVersion.decode(text)
    except Invalid:
        return False
    return True
