"""`@dataclass` for immutable values, created in a third of the time.

`dataclass(frozen=True, slots=True)` of the standard library compiles six functions for each class. The `worm` command
and every Lambda function load a hundred such classes at startup, which took a third of that time. This version compiles
one function, `__init__`, and shares all others. The behavior is the same.

With any other options you get the class of the standard library, and type checkers always see that one. This module
imports nothing from worm and may be used everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

_QUICK = {"frozen": True, "slots": True}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """Like the decorator of the standard library."""
        return _value if cls is None and options == _QUICK else dataclasses.dataclass(cls, **options)


def _value(cls: type) -> type:
    if dataclasses.is_dataclass(cls):  # it extends another one
        standard: type = dataclasses.dataclass(frozen=True, slots=True)(cls)
        return standard
    own = vars(cls)
    has_hash = own.get("__hash__") is not None
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # the standard library would compute a signature
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    names = tuple(one.name for one in dataclasses.fields(made))
    added: dict[str, Any] = {
        "__init__": _init(made),
        "__repr__": _repr(made),
        "__eq__": _eq(made),
        "__getstate__": lambda self: [getattr(self, name) for name in names],
        "__setstate__": _setstate(names),
    }
    for name, function in added.items():
        if name not in own:
            setattr(made, name, function)
    if not has_hash:
        made.__hash__ = _hash(made)
    for name in ("init", "repr", "eq", "frozen"):
        setattr(made.__dataclass_params__, name, True)  # classes that extend it read this
    made.__setattr__, made.__delattr__ = _refusals(made, frozenset(names))
    made_type: type = made
    return made_type


def _init(cls: type) -> Callable[..., None]:
    """The one function whose parameters differ from class to class."""
    known: dict[str, Any] = {}
    positional, by_name, body = list[str](), list[str](), list[str]()
    for one in dataclasses.fields(cls):
        known[f"_set_{one.name}"] = vars(cls)[one.name].__set__  # the setter of the slot
        has_factory = one.default_factory is not dataclasses.MISSING
        value = one.name
        if has_factory:
            known[f"_make_{one.name}"] = one.default_factory
            made = f"_make_{one.name}()"
            value = f"{made} if {one.name} is _missing else {one.name}" if one.init else made
        elif one.default is not dataclasses.MISSING:
            known[f"_usual_{one.name}"] = one.default
            value = one.name if one.init else f"_usual_{one.name}"
        if one.init:
            is_optional = has_factory or one.default is not dataclasses.MISSING
            usual = "" if not is_optional else "=_missing" if has_factory else f"=_usual_{one.name}"
            (by_name if one.kw_only else positional).append(f"{one.name}{usual}")
        if one.init or value != one.name:
            body.append(f" _set_{one.name}(self, {value})")
    known["_missing"] = dataclasses.MISSING
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({parameters}):\n" + ("\n".join(body) or " pass"), known)  # names of fields only
    init: Callable[..., None] = known["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {one.name: one.type for one in dataclasses.fields(cls) if one.init} | {"return": "None"}
    return init


def _key(cls: type, chosen: Callable[[dataclasses.Field[Any]], bool]) -> Callable[[Any], Any]:
    names = [one.name for one in dataclasses.fields(cls) if chosen(one)]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _eq(cls: type) -> Callable[[Any, Any], Any]:
    key = _key(cls, lambda one: one.compare)

    def equals(self: Any, other: Any) -> Any:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return equals


def _hash(cls: type) -> Callable[[Any], int]:
    key = _key(cls, lambda one: one.compare if one.hash is None else one.hash)
    return lambda self: hash(key(self))


def _repr(cls: type) -> Callable[[Any], str]:
    names = [one.name for one in dataclasses.fields(cls) if one.repr]

    def shown(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return shown


def _setstate(names: tuple[str, ...]) -> Callable[[Any, list[Any]], None]:
    def setstate(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return setstate


def _refusals(cls: type[Any], names: frozenset[str]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Refuses to set attributes. A subclass may set attributes that it adds itself."""

    def refuse(self: Any, name: str, what: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

    def set_one(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            refuse(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def delete_one(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            refuse(self, name, "delete")
        super(cls, self).__delattr__(name)

    return set_one, delete_one
