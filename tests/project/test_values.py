"""`worm.values.dataclass` makes what the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, dataclass, field
from typing import Any, ClassVar

import pytest

from worm import values


class Plain:
    """With everything that a field can be."""

    KIND: ClassVar[str] = "plain"

    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)
    late: list[int] = field(init=False, default_factory=lambda: [1], hash=False)
    fixed: int = field(init=False, default=7)
    extra: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size")


def _made(decorate: Any) -> Any:
    members = {name: one for name, one in vars(Plain).items() if name not in ("__dict__", "__weakref__")}
    return decorate(frozen=True, slots=True)(type("Plain", (), members))


def test_a_value_is_what_the_standard_library_makes_of_it() -> None:
    ours, theirs = _made(values.dataclass), _made(dataclass)
    for given, options in ((("a",), {}), (("a", 4, ["x"]), {"note": "n", "extra": 2})):
        mine, other = ours(*given, **options), theirs(*given, **options)
        assert dataclasses.asdict(mine) == dataclasses.asdict(other)
        assert repr(mine) == repr(other)
        assert mine == ours(*given, **options) != other
        assert dataclasses.replace(mine, size=9).size == 9
    assert ours("a", note="x") == ours("a", note="y") != ours("a", size=4)
    assert [one.name for one in dataclasses.fields(ours)] == [one.name for one in dataclasses.fields(theirs)]
    assert ours.__match_args__ == theirs.__match_args__
    assert inspect.signature(ours).parameters.keys() == inspect.signature(theirs).parameters.keys()
    assert ours("a").late is not ours("a").late
    for wrong in ({}, {"name": "a", "unknown": 1}, {"name": "a", "late": []}):
        with pytest.raises(TypeError):
            ours(**wrong)
    with pytest.raises(ValueError, match="size"):
        ours("a", size=-1)


@values.dataclass(frozen=True, slots=True)
class Point:
    """Two numbers."""

    x: int
    y: int = 0


@values.dataclass(frozen=True, slots=True)
class Spot(Point):
    """A point with a name."""

    name: str = ""


@values.dataclass(frozen=True, slots=True)
class Nothing:
    """No fields."""


@values.dataclass(frozen=True, slots=True)
class Named:
    """Says by itself how it is shown, compared and hashed."""

    name: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return f"<{self.name}>"


def test_a_value_cannot_be_changed() -> None:
    point = Point(1)
    for attribute in ("x", "other"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{attribute}'"):
            setattr(point, attribute, 2)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{attribute}'"):
            delattr(point, attribute)
    assert not hasattr(point, "__dict__")


def test_values_are_hashed_copied_and_pickled() -> None:
    assert {Point(1), Point(1), Point(2)} == {Point(1), Point(2)}
    assert hash(Nothing()) == hash(Nothing())
    assert Nothing() == Nothing()
    for one in (Point(1, 2), Spot(1, 2, "a"), Nothing()):
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one


def test_what_a_class_says_itself_counts() -> None:
    assert (Named("a"), hash(Named("a")), repr(Named("a"))) == (Named("b"), 7, "<a>")


def test_a_value_can_be_extended() -> None:
    assert (Spot(1, 2, "a").name, repr(Spot(1))) == ("a", "Spot(x=1, y=0, name='')")
    assert Spot(1) != Point(1)

    @dataclass(frozen=True)
    class Wide(Point):
        """By the standard library."""

        z: int = 0

    assert Wide(1, 2, 3) == Wide(1, 2, 3) != Wide(1, 2, 4)

    class Loose(Point):
        pass

    loose = Loose(1)
    loose.mark = 5  # type: ignore[attr-defined]
    assert loose.mark == 5  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        loose.x = 2  # type: ignore[misc]


def test_other_options_give_the_standard_class() -> None:
    @values.dataclass
    class Counter:
        """Changes."""

        n: int = 0

    counter = Counter()
    counter.n += 1
    assert counter == Counter(1)


COMPILED = """
import sys
from worm.values import dataclass
value = type("One", (), {"__annotations__": dict.fromkeys("abc", "int"), "__doc__": ""})
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(arguments) if event == "exec" else None)
dataclass(frozen=True, slots=True)(value)
print(len(compiled))
"""


def test_a_value_compiles_hardly_any_code() -> None:
    """To compile six functions for each took a third of what the command and the functions did before their work."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, check=True)
    assert int(done.stdout) <= 2
