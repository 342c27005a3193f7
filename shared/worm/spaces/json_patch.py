"""JSON Patch (RFC 6902) with JSON Pointers (RFC 6901) from the root of the document.

A list of patches is checked once, when it arrives (`check_patches`), and applied to documents that nobody else holds
(`apply_patches` changes its argument). One list on one document always gives the same result, because history is
replayed this way. A patch that does not fit the document is a `Misfit`; the caller decides what that means.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import TypeAlias

from worm.errors import Invalid, show
from worm.formats import MAX_DEPTH, JsonObject, JsonValue, child_path, type_name

Tokens: TypeAlias = list[str]

_INDEX = re.compile(r"0|[1-9][0-9]{0,18}")
_BAD_ESCAPE = re.compile(r"~(?![01])")
_CONTAINERS = (dict, list)
_NEEDS_VALUE = frozenset(("add", "replace", "test"))
_NEEDS_FROM = frozenset(("move", "copy"))
_KNOWN = _NEEDS_VALUE | _NEEDS_FROM | {"remove"}


class Misfit(Exception):
    """Patch number `index` does not fit the document."""

    def __init__(self, index: int, path: str, reason: str) -> None:
        super().__init__(f"patch {index} at {show(path)}: {reason}")
        self.index = index
        self.path = path
        self.reason = reason


class _Refused(Exception):
    """A `Misfit` before its place is known."""


def check_patches(patches: JsonValue, path: str) -> list[JsonObject]:
    """The list, or `Invalid` with the place of the error. Its values are known to be JSON."""
    if not isinstance(patches, list):
        raise Invalid(f"must be a list of patches, not {type_name(patches)}", path=path)
    checked: list[JsonObject] = []
    for at, patch in enumerate(patches):
        place = child_path(path, at)
        if not isinstance(patch, dict):
            raise Invalid(f"a patch must be an object, not {type_name(patch)}", path=place)
        _check_patch(patch, place)
        checked.append(patch)
    return checked


def apply_patches(document: JsonObject, patches: Sequence[JsonObject]) -> JsonObject:
    """The document after all patches. It changes the given one, even if it fails."""
    value: JsonValue = document
    for index, patch in enumerate(patches):
        try:
            value = _apply(value, patch)
        except _Refused as error:
            raise Misfit(index, str(patch["path"]), str(error)) from None
    if not isinstance(value, dict):
        raise Misfit(len(patches) - 1, "", f"a document must be an object, not {type_name(value)}")
    return value


def same_json(one: JsonValue, other: JsonValue) -> bool:
    """Equal as in `test`: numbers by value, objects regardless of the order of their members."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    return type(one) is type(other) and one == other


def _check_patch(patch: JsonObject, place: str) -> None:
    op = patch.get("op")
    if not isinstance(op, str) or op not in _KNOWN:
        raise Invalid(f"must be one of {', '.join(sorted(_KNOWN))}, not {show(op)}", path=child_path(place, "op"))
    target = _check_pointer(patch, "path", place)
    if op in _NEEDS_VALUE and "value" not in patch:
        raise Invalid(f"{op} needs a value", path=place)
    if op in _NEEDS_FROM:
        source = _check_pointer(patch, "from", place)
        if op == "move" and len(source) < len(target) and target[: len(source)] == source:
            raise Invalid("a value cannot be moved into itself", path=place)
    if op == "remove" and not target:
        raise Invalid("the document itself cannot be removed", path=place, hint="use the operation `delete`")


def _check_pointer(patch: JsonObject, name: str, place: str) -> Tokens:
    text = patch.get(name)
    if not isinstance(text, str):
        raise Invalid(f"must be a JSON Pointer, not {type_name(text)}", path=child_path(place, name))
    if (text and not text.startswith("/")) or _BAD_ESCAPE.search(text):
        raise Invalid(f"{show(text)} is not a JSON Pointer", path=child_path(place, name))
    return _tokens(text)


def _tokens(text: str) -> Tokens:
    if "~" not in text:
        return text.split("/")[1:]
    return [token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:]]


def _apply(document: JsonValue, patch: JsonObject) -> JsonValue:
    op = patch["op"]
    tokens = _tokens(str(patch["path"]))
    if op == "test":
        if not same_json(_found(document, tokens), patch["value"]):
            raise _Refused("the value differs")
        return document
    if op == "remove":
        _remove(document, tokens)
        return document
    if op == "replace":
        if tokens:
            _found(document, tokens)
        return _put(document, tokens, _copied(patch["value"]), is_replacing=True)
    if op == "add":
        return _put(document, tokens, _copied(patch["value"]))
    source = _tokens(str(patch["from"]))
    value = _found(document, source)
    if op == "copy":
        return _put(document, tokens, _copied(value))
    if source == tokens:
        return document
    _remove(document, source)
    return _put(document, tokens, value)


def _copied(value: JsonValue) -> JsonValue:
    return copy.deepcopy(value) if isinstance(value, _CONTAINERS) else value


def _found(value: JsonValue, tokens: Tokens) -> JsonValue:
    for token in tokens:
        if isinstance(value, dict):
            if token not in value:
                raise _Refused(f"there is no {show(token)}")
            value = value[token]
        elif isinstance(value, list):
            value = value[_index(token, len(value) - 1)]
        else:
            raise _Refused(f"{type_name(value)} has no {show(token)}")
    return value


def _put(document: JsonValue, tokens: Tokens, value: JsonValue, *, is_replacing: bool = False) -> JsonValue:
    if len(tokens) + _depth(value) > MAX_DEPTH:
        raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
    if not tokens:
        return value
    parent, last = _found(document, tokens[:-1]), tokens[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        if is_replacing:
            parent[_index(last, len(parent) - 1)] = value
        else:
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
    else:
        raise _Refused(f"{type_name(parent)} has no members")
    return document


def _remove(document: JsonValue, tokens: Tokens) -> None:
    if not tokens:
        raise _Refused("the document itself cannot be moved")
    _found(document, tokens)
    parent, last = _found(document, tokens[:-1]), tokens[-1]
    if isinstance(parent, dict):
        del parent[last]
    elif isinstance(parent, list):
        del parent[int(last)]


def _index(token: str, highest: int) -> int:
    if not _INDEX.fullmatch(token):
        raise _Refused(f"{show(token)} is not an index")
    at = int(token)
    if at > highest:
        raise _Refused(f"the array has no index {at}")
    return at


def _depth(value: JsonValue) -> int:
    """The levels of arrays and objects; every value passed here has at most `MAX_DEPTH`."""
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0
