"""JSON Patch (RFC 6902): a list of operations on one JSON value, applied all together or not at all.

Places are JSON pointers (RFC 6901). Values are equal as everywhere in this library, except for numbers, which RFC 6902
compares by value: 1 equals 1.0. A patch may not copy more than the size limit of a document: a few copies of earlier
copies would fill any memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import cast

from worm.errors import Invalid, show
from worm.formats import MAX_BYTES, JsonObject, JsonValue, dumps, normal, type_name

OPERATIONS_MAX = 10_000
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_TILDE = re.compile(r"~(?![01])")


class PatchRefused(Invalid):
    """The patch does not fit the value. `pointer` is the place that it names. `is_test`: a `test` operation found
    another value there."""

    def __init__(self, message: str, pointer: str, *, is_test: bool = False) -> None:
        super().__init__(message)
        self.pointer = pointer
        self.is_test = is_test


def check_patch_document(value: JsonValue) -> list[JsonObject]:
    """The operations; `Invalid` if the value is not a JSON Patch."""
    if not isinstance(value, list) or len(value) > OPERATIONS_MAX:
        raise Invalid(f"a JSON Patch must be an array of at most {OPERATIONS_MAX:,} operations, not {type_name(value)}")
    for at, operation in enumerate(value):
        _check_operation(operation, f"[{at}]")
    return cast("list[JsonObject]", value)


def _check_operation(operation: JsonValue, path: str) -> None:
    if not isinstance(operation, dict):
        raise Invalid(f"an operation must be an object, not {type_name(operation)}", path=path)
    op = operation.get("op")
    if not isinstance(op, str) or op not in _OPERATIONS:
        raise Invalid(f"must be one of {', '.join(_OPERATIONS)}, not {show(op)}", path=f"{path}.op")
    for name in ("path", "from") if op in ("move", "copy") else ("path",):
        pointer = operation.get(name)
        if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")) or _TILDE.search(pointer):
            raise Invalid(f"must be a JSON pointer such as /tags/0, not {show(pointer)}", path=f"{path}.{name}")
    if op in ("add", "replace", "test") and "value" not in operation:
        raise Invalid(f"{op} needs a value", path=f"{path}.value")


def patched(value: JsonValue, operations: list[JsonObject]) -> JsonValue:
    """The value after the operations; the given value does not change. `PatchRefused` if an operation does not fit."""
    try:
        return _patched(deepcopy(value), operations)
    except RecursionError:
        raise Invalid("the patch is nested too deep") from None


def _patched(result: JsonValue, operations: list[JsonObject]) -> JsonValue:
    room = MAX_BYTES
    for operation in operations:
        if operation["op"] == "copy":
            source = cast(str, operation["from"])
            room -= len(dumps(_found(result, source)))
            if room < 0:
                raise PatchRefused(f"the copies have more than {MAX_BYTES:,} bytes", source)
        result = _OPERATIONS[cast(str, operation["op"])](result, operation)
    return result


def _add(value: JsonValue, operation: JsonObject) -> JsonValue:
    return _added(value, cast(str, operation["path"]), deepcopy(operation["value"]))


def _remove(value: JsonValue, operation: JsonObject) -> JsonValue:
    return _removed(value, cast(str, operation["path"]))[0]


def _replace(value: JsonValue, operation: JsonObject) -> JsonValue:
    pointer, new = cast(str, operation["path"]), deepcopy(operation["value"])
    if not pointer:
        return new
    container, last = _container(value, pointer)
    if isinstance(container, dict):
        _member(container, last, pointer)
        container[last] = new
    else:
        container[_place(container, last, pointer)] = new
    return value


def _move(value: JsonValue, operation: JsonObject) -> JsonValue:
    source, target = cast(str, operation["from"]), cast(str, operation["path"])
    if target.startswith(f"{source}/"):
        raise PatchRefused(f"{show(source)} cannot be moved into itself", target)
    rest, moved = _removed(value, source)
    return _added(rest, target, moved)


def _copy(value: JsonValue, operation: JsonObject) -> JsonValue:
    return _added(value, cast(str, operation["path"]), deepcopy(_found(value, cast(str, operation["from"]))))


def _test(value: JsonValue, operation: JsonObject) -> JsonValue:
    pointer = cast(str, operation["path"])
    found = _found(value, pointer)
    if dumps(normal(found)) != dumps(normal(operation["value"])):
        what = f"{show(pointer)} is {show(found)}, not {show(operation['value'])}"
        raise PatchRefused(what, pointer, is_test=True)
    return value


_OPERATIONS: dict[str, Callable[[JsonValue, JsonObject], JsonValue]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


# Places


def _added(value: JsonValue, pointer: str, new: JsonValue) -> JsonValue:
    if not pointer:
        return new
    container, last = _container(value, pointer)
    if isinstance(container, dict):
        container[last] = new
    else:
        container.insert(len(container) if last == "-" else _place(container, last, pointer, past=1), new)
    return value


def _removed(value: JsonValue, pointer: str) -> tuple[JsonValue, JsonValue]:
    """The value without that place, and the removed value."""
    if not pointer:
        return None, value
    container, last = _container(value, pointer)
    if isinstance(container, dict):
        _member(container, last, pointer)
        return value, container.pop(last)
    return value, container.pop(_place(container, last, pointer))


def _container(value: JsonValue, pointer: str) -> tuple[JsonObject | list[JsonValue], str]:
    """The container of the place, and the place's name or index in it."""
    above, _, last = pointer.rpartition("/")
    found = _found(value, above)
    if not isinstance(found, dict | list):
        raise PatchRefused(f"{show(above)} is {type_name(found)}, which has no members", pointer)
    return found, _unescaped(last)


def _found(value: JsonValue, pointer: str) -> JsonValue:
    for part in map(_unescaped, pointer.split("/")[1:]):
        if isinstance(value, dict):
            value = _member(value, part, pointer)
        elif isinstance(value, list):
            value = value[_place(value, part, pointer)]
        else:
            raise PatchRefused(f"there is nothing at {show(pointer)}", pointer)
    return value


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _member(value: JsonObject, name: str, pointer: str) -> JsonValue:
    if name not in value:
        raise PatchRefused(f"there is nothing at {show(pointer)}", pointer)
    return value[name]


def _place(value: list[JsonValue], index: str, pointer: str, past: int = 0) -> int:
    """With `past` 1, the place after the last item is allowed, too."""
    if not _INDEX.fullmatch(index) or int(index) >= len(value) + past:
        raise PatchRefused(f"{show(index)} in {show(pointer)} is not a position in an array of {len(value)}", pointer)
    return int(index)
