"""The members of a definition: the allowed JSON, the default, and the name on the wire.

A definition is a class with a reader for each member. `read` parses JSON and lists every mistake with its path; an
undeclared member is a mistake too. Values are immutable; nothing is converted silently.

It knows no member of the format. It does not use a model library: every command and
every worker starts by reading a schema, and importing pydantic takes longer than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NoReturn, Self, TypeVar, cast, dataclass_transform

from worm.errors import Invalid
from worm.formats.strict_json import JsonObject, JsonValue, child_path, type_name
from worm.values import dataclass

T = TypeVar("T")
_REQUIRED = object()
_SHOWN_MAX = 60


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule and the JSON path of the value that breaks it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


Reader = Callable[[JsonValue, str, list[Problem]], T]
"""The value of the JSON at this path. If it adds a problem to the list, ignore the returned value."""


@dataclass(frozen=True, slots=True)
class Member:
    """One declared member. `alias` is its name on the wire."""

    read: Reader[Any]
    default: object
    alias: str
    write: Callable[[Any], JsonValue] | None

    def usual(self) -> object:
        """The default; mutable ones are never shared."""
        return dict(self.default) if isinstance(self.default, dict) else self.default


def needed(read: Reader[T]) -> T:
    """A required member."""
    return cast(T, Member(read, _REQUIRED, "", None))


def member(read: Reader[T], *, default: T, write: Callable[[T], JsonValue] | None = None) -> T:
    """An optional member. `write` produces its JSON if that is not the usual one."""
    return cast(T, Member(read, default, "", write))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(needed, member))
class Definition:
    """Base of everything in schema.json: camelCase names, no unknown members, no silent conversions."""

    members: ClassVar[Mapping[str, Member]] = {}
    _by_alias: ClassVar[Mapping[str, str]] = {}
    _given: frozenset[str]

    def __init_subclass__(cls) -> None:
        declared = {name: one for name, one in vars(cls).items() if isinstance(one, Member)}
        cls.members = {name: Member(one.read, one.default, to_camel(name), one.write) for name, one in declared.items()}
        cls._by_alias = {one.alias: name for name, one in cls.members.items()}
        for name in declared:
            delattr(cls, name)  # values belong to instances

    def __init__(self, **values: object) -> None:
        """By Python names; the type checker ensures the types. Use `read` for input from outside."""
        if not self.members.keys() >= values.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(values.keys() - self.members.keys())}")
        found = {name: values[name] if name in values else one.usual() for name, one in self.members.items()}
        if _REQUIRED in found.values():
            missing = ", ".join(name for name, value in found.items() if value is _REQUIRED)
            raise TypeError(f"{type(self).__name__} lacks {missing}")
        self.__dict__.update(found, _given=frozenset(values))

    @classmethod
    def read(cls, raw: JsonValue, path: str, problems: list[Problem]) -> Self:
        """From JSON. Every mistake is added to the problems; then the value is meaningless."""
        if not isinstance(raw, dict):
            problems.append(Problem(path or "$", f"must be an object, not {type_name(raw)}"))
            return cls.__new__(cls)
        before, values = len(problems), dict[str, object]()
        for name, one in cls.members.items():
            if one.alias in raw:
                values[name] = one.read(raw[one.alias], child_path(path, one.alias), problems)
            elif one.default is _REQUIRED:
                problems.append(Problem(child_path(path, one.alias), "is required"))
        problems += [Problem(child_path(path, name), "unknown field") for name in raw if name not in cls._by_alias]
        return cls(**values) if len(problems) == before else cls.__new__(cls)

    @classmethod
    def of(cls, raw: JsonValue) -> Self:
        """From JSON; `Invalid` lists every mistake."""
        problems: list[Problem] = []
        read = cls.read(raw, "", problems)
        if problems:
            raise invalid(cls.__name__, problems)
        return read

    @property
    def given(self) -> frozenset[str]:
        """The members that were set, by their Python names; all others have their defaults."""
        return self._given

    def shape(self, *, is_complete: bool = False, leave_out: Collection[str] = ()) -> JsonObject:
        """As JSON: the members that were set, or with `is_complete` the defaults too."""
        names = self.members if is_complete else [name for name in self.members if name in self._given]
        return {
            self.members[name].alias: self._written(name, is_complete=is_complete)
            for name in names
            if name not in leave_out
        }

    def _written(self, name: str, *, is_complete: bool) -> JsonValue:
        value, write = getattr(self, name), self.members[name].write
        return write(value) if write is not None else _json(value, is_complete=is_complete)

    def changed(self, **changes: object) -> Self:
        """A copy with other values."""
        return type(self)(**{**{name: getattr(self, name) for name in self._given}, **changes})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable: {name} cannot be removed")

    def _compared(self) -> tuple[object, ...]:
        return tuple(self.__dict__[name] for name in self.members)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == cast(Self, other)._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.members if name in self._given)
        return f"{type(self).__name__}({said})"


def invalid(what: str, problems: list[Problem], *, key: str | None = None) -> Invalid:
    """One error for all problems: a single one is prefixed by its path, several are listed."""
    if len(problems) == 1:
        error = Invalid(problems[0].message, path=problems[0].path or "$", key=key)
    else:
        listed = "; ".join(str(problem) for problem in problems)
        error = Invalid(f"{what} has {len(problems)} mistakes: {listed}", key=key)
        error.path = problems[0].path
    error.mistakes = tuple((problem.path, problem.message) for problem in problems)
    return error


def to_camel(name: str) -> str:
    """`max_row_bytes` is `maxRowBytes` on the wire."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _json(value: object, *, is_complete: bool) -> JsonValue:
    if isinstance(value, Definition):
        return value.shape(is_complete=is_complete)
    if isinstance(value, Mapping):
        return {str(name): _json(one, is_complete=is_complete) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one, is_complete=is_complete) for one in value]
    return cast(JsonValue, value)


# Readers


def _refused(expected: str, value: JsonValue, path: str, problems: list[Problem]) -> None:
    is_short = isinstance(value, str | int | float) and len(repr(value)) <= _SHOWN_MAX
    problems.append(Problem(path, f"must be {expected}, not {repr(value) if is_short else type_name(value)}"))


def boolean(value: JsonValue, path: str, problems: list[Problem]) -> bool:
    if not isinstance(value, bool):
        _refused("boolean", value, path, problems)
    return value is True


def text(check: Callable[[str], object] | None = None) -> Reader[str]:
    """A string; `check` raises `ValueError` with the reason if it is wrong."""

    def read(value: JsonValue, path: str, problems: list[Problem]) -> str:
        if not isinstance(value, str):
            _refused("string", value, path, problems)
            return ""
        try:
            if check is not None:
                check(value)
        except ValueError as error:
            problems.append(Problem(path, str(error)))
        return value

    return read


def whole(least: int, most: int | None = None) -> Reader[int]:
    """An integer within bounds."""

    def read(value: JsonValue, path: str, problems: list[Problem]) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            _refused("integer", value, path, problems)
            return 0
        if value < least:
            _refused(f"greater than or equal to {least}", value, path, problems)
        elif most is not None and value > most:
            _refused(f"less than or equal to {most}", value, path, problems)
        return value

    return read


def choice(names: Collection[T]) -> Reader[T]:
    """One of some texts."""
    *others, last = [repr(name) for name in names]
    expected = f"{', '.join(others)} or {last}" if others else last

    def read(value: JsonValue, path: str, problems: list[Problem]) -> T:
        if not isinstance(value, str) or value not in names:
            _refused(expected, value, path, problems)
        return cast(T, value)

    return read


def nullable(read: Reader[T]) -> Reader[T | None]:
    return lambda value, path, problems: None if value is None else read(value, path, problems)


def list_of(read: Reader[T]) -> Reader[list[T]]:
    def read_all(value: JsonValue, path: str, problems: list[Problem]) -> list[T]:
        if not isinstance(value, list):
            _refused("list", value, path, problems)
            return []
        return [read(one, child_path(path, at), problems) for at, one in enumerate(value)]

    return read_all


def dict_of(read: Reader[T]) -> Reader[dict[str, T]]:
    def read_all(value: JsonValue, path: str, problems: list[Problem]) -> dict[str, T]:
        if not isinstance(value, dict):
            _refused("dictionary", value, path, problems)
            return {}
        return {name: read(one, child_path(path, name), problems) for name, one in value.items()}

    return read_all


def json_value(value: JsonValue, path: str, problems: list[Problem]) -> JsonValue:
    """Any JSON; a copy, so that a definition cannot be changed from outside."""
    if isinstance(value, dict):
        return {name: json_value(one, path, problems) for name, one in value.items()}
    return [json_value(one, path, problems) for one in value] if isinstance(value, list) else value
