"""How much of many cases is tried: all of it in `scripts/test`, a part in `make check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Literal, TypeVar

from hypothesis import settings

T = TypeVar("T")
USUAL = 100
FAST = USUAL // 4
settings.register_profile("fast", max_examples=FAST, deadline=None)  # `make check` names it


def examples(count: int) -> int:
    """So many, or a quarter of them under the profile `fast`."""
    return count * settings().max_examples // USUAL


def some(cases: Iterable[T]) -> Iterator[T]:
    """All of these cases, or every third of them under the profile `fast`. More than N in all are more than
    `examples(N)` there."""
    return islice(cases, 0, None, 1 if examples(USUAL) == USUAL else 3)


def crash_points(writes_max: int) -> Iterator[tuple[int, Literal["before", "after"]]]:
    """Some of the moments before and after each of so many writes."""
    return some(product(range(1, writes_max + 1), ("before", "after")))
