"""Changes to a document as values: a merge patch (RFC 7396), and update operators with dotted paths.

Pure functions: the verbs in `changing.py` read, apply one of these, and save. A separate module, so that it can be
tested without a store.

| operator | does |
|---|---|
| `$set` | sets a field, and creates missing objects on its path |
| `$unset` | removes a field; a missing field is not an error |
| `$inc` | adds to a number; a missing field counts as 0 |
| `$push` | appends to an array, or all of `{"$each": [...]}`; a missing field is an empty array |
| `$pull` | removes every element that equals the value, or all that are in `{"$in": [...]}` |
| `$addToSet` | appends what is not in the array yet; `{"$each": [...]}` as above |

A number in a path names an element of an array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import cast

from worm.collections import Document
from worm.errors import Hint, Invalid, show
from worm.formats import MISSING, JsonValue, Missing, as_json, check_json, type_name

Container = dict[str, JsonValue] | list[JsonValue]
FIXED = frozenset({"id", "createdAt", "updatedAt"})
_OPERATORS = "use the media type application/vnd.worm.update+json for operators"
_FIELDS = "use the media type application/merge-patch+json for plain fields"


# Merge patch


def check_patch(changes: object) -> dict[str, object]:
    """The changes of a patch; `Invalid` for something that was meant as an update."""
    if not isinstance(changes, Mapping) or not all(isinstance(name, str) for name in changes):
        raise Invalid(f"must be an object with the fields to change, not {type_name(changes)}", path="changes")
    for name in changes:
        if name.startswith("$"):
            raise Invalid(
                f"{name} is an operator",
                path="changes",
                hint=Hint("use update(id, {…}) for operators", http=_OPERATORS),
            )
        if "." in name:
            nested = name.replace(".", '": {"')
            raise Invalid(
                f"{show(name)} would be a field with a dot in its name",
                path="changes",
                hint=Hint(
                    f'write {{"{nested}": …}}{"}" * name.count(".")}, or update(id, {{"$set": {{"{name}": …}}}})',
                    http=f'write {{"{nested}": …}}{"}" * name.count(".")}; {_OPERATORS}: {{"$set": {{"{name}": …}}}}',
                ),
            )
    return dict(changes)


def merged(document: Document, changes: Mapping[str, object]) -> Document:
    """RFC 7396: objects are merged, None removes a field, everything else replaces."""
    result = _merged(document, changes)
    return cast("Document", check_json(result))


def _merged(target: object, changes: Mapping[str, object]) -> dict[str, object]:
    result: dict[str, object] = dict(target) if isinstance(target, dict) else {}
    for name, value in changes.items():
        if value is None or isinstance(value, Missing):
            result.pop(name, None)
        elif isinstance(value, Mapping):
            result[name] = _merged(result.get(name), value)
        else:
            result[name] = value
    return result


# Update operators


def check_operators(operators: object) -> dict[str, dict[str, JsonValue]]:
    """`{"$set": {"a.b": 1}, …}`, checked; `Invalid` says what to write."""
    if not isinstance(operators, Mapping) or not operators:
        example = '{"$set": {"status": "active"}}'
        raise Invalid(
            "takes operators",
            path="update",
            hint=Hint(f"{example}; use patch() for plain fields", http=f"{example}; {_FIELDS}"),
        )
    checked: dict[str, dict[str, JsonValue]] = {}
    taken: dict[str, str] = {}
    for operator, changes in operators.items():
        if operator not in OPERATORS:
            known = f"it takes {', '.join(OPERATORS)}"
            hint = Hint(f"{known}; use patch() for plain fields", http=f"{known}; {_FIELDS}")
            raise Invalid(f"unknown operator {show(operator)}", path="update", hint=hint)
        if not isinstance(changes, Mapping):
            raise Invalid(f'must be an object such as {{"a.b": 1}}, not {type_name(changes)}', path=operator)
        checked[operator] = {}
        for name, value in changes.items():
            _check_path(operator, name, taken)
            checked[operator][name] = check_json(as_json(value, name))
    return checked


def _check_path(operator: str, name: object, taken: dict[str, str]) -> None:
    if not isinstance(name, str) or not all(name.split(".")):
        raise Invalid(f"{show(name)} is not the path of a field", path=operator)
    if name in FIXED:
        raise Invalid(f"{name} cannot be changed by an update", path=operator)
    for other in taken:
        if other == name or other.startswith(f"{name}.") or name.startswith(f"{other}."):
            raise Invalid(f"{show(name)} and {show(other)} would change the same field", path=operator)
    taken[name] = operator


def updated(document: Document, operators: Mapping[str, Mapping[str, JsonValue]]) -> Document:
    """A copy with the (checked) operators applied; `Invalid` if one does not fit the document."""
    result = deepcopy(dict(document))
    for operator, changes in operators.items():
        for name, value in changes.items():
            OPERATORS[operator](result, name, deepcopy(value))
    return result


def _set(document: Document, name: str, value: JsonValue) -> None:
    holder, last = _holder(document, name)
    if isinstance(holder, list):
        holder[_position(holder, last, name)] = value
    else:
        holder[last] = value


def _unset(document: Document, name: str, value: JsonValue) -> None:
    if isinstance(_value(document, name), Missing):
        return
    holder, last = _holder(document, name)
    if isinstance(holder, list):
        holder[_position(holder, last, name)] = None  # the others keep their positions, as in MongoDB
    else:
        del holder[last]


def _inc(document: Document, name: str, value: JsonValue) -> None:
    before = _value(document, name)
    number = 0 if isinstance(before, Missing) else before
    for one, what in ((value, "needs a number"), (number, "needs a number in the document")):
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise Invalid(f"$inc {what}, not {type_name(one)}", path=name)
    _set(document, name, cast("int | float", number) + cast("int | float", value))


def _push(document: Document, name: str, value: JsonValue) -> None:
    _set(document, name, [*_array(document, name, "$push"), *_each(value)])


def _add_to_set(document: Document, name: str, value: JsonValue) -> None:
    array = list(_array(document, name, "$addToSet"))
    for one in _each(value):
        if not _is_in(one, array):
            array.append(one)
    _set(document, name, array)


def _pull(document: Document, name: str, value: JsonValue) -> None:
    if isinstance(_value(document, name), Missing):
        return
    wanted = value["$in"] if isinstance(value, dict) and list(value) == ["$in"] else [value]
    if not isinstance(wanted, list):
        raise Invalid("$in needs an array", path=name)
    _set(document, name, [one for one in _array(document, name, "$pull") if not _is_in(one, wanted)])


OPERATORS: dict[str, Callable[[Document, str, JsonValue], None]] = {
    "$set": _set,
    "$unset": _unset,
    "$inc": _inc,
    "$push": _push,
    "$pull": _pull,
    "$addToSet": _add_to_set,
}


def _each(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, dict) or list(value) != ["$each"]:
        return [value]
    if not isinstance(value["$each"], list):
        raise Invalid("must be an array", path="$each")
    return value["$each"]


def _is_in(value: JsonValue, array: list[JsonValue]) -> bool:
    """True is not 1; 1 and 1.0 are the same number."""
    return any(one == value and isinstance(one, bool) is isinstance(value, bool) for one in array)


def _array(document: Document, name: str, operator: str) -> list[JsonValue]:
    found = _value(document, name)
    if isinstance(found, Missing):
        return []
    if not isinstance(found, list):
        raise Invalid(f"{operator} needs an array in the document, not {type_name(found)}", path=name)
    return found


def _value(document: Document, name: str) -> JsonValue | Missing:
    here: JsonValue = document
    for part in name.split("."):
        if isinstance(here, dict) and part in here:
            here = here[part]
        elif isinstance(here, list) and _is_position(part) and int(part) < len(here):
            here = here[int(part)]
        else:
            return MISSING
    return here


def _holder(document: Document, name: str) -> tuple[Container, str]:
    """The container of the last part of the path; missing objects are created."""
    *way, last = name.split(".")
    here: Container = document
    for part in way:
        if isinstance(here, list):
            found: JsonValue = here[_position(here, part, name)]
        else:
            found = here.setdefault(part, {})
        if not isinstance(found, dict | list):
            raise Invalid(f"{show(part)} is {type_name(found)} and has no fields", path=name)
        here = found
    return here, last


def _is_position(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 10


def _position(array: list[JsonValue], part: str, name: str) -> int:
    if not _is_position(part) or int(part) >= len(array):
        raise Invalid(f"{show(part)} is not a position in the array, which has {len(array)} elements", path=name)
    return int(part)
