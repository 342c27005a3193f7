"""What a tree holds, and how it is folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from worm.tables.spread import Spread


class Keyed(Protocol):
    """What a tree holds: anything by id, of which parts merge by the newest seq."""

    @property
    def model(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def known(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def last_updated(self) -> str: ...
    def ids(self) -> list[str]: ...
    def merged(self, others: Iterable[Self]) -> Self: ...
    def part(self, ids: Iterable[str]) -> Self: ...
    def encode(self) -> bytes: ...


T = TypeVar("T", bound=Keyed)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A spread table in memory: the base and the deltas that are merged into it."""

    base: tuple[str, ...]
    deltas: set[str]
    whole: T
    revision: int

    def goes_on(self, root: Spread, keeps_seqs: bool) -> bool:
        """Is it a part of what this root names? A table made anew counts its revisions anew. Without seqs nothing
        undoes what a delta said that is in the base, or nowhere, by now."""
        named = {piece.file for piece in root.deltas}
        return root.revision >= self.revision and (keeps_seqs or self.deltas <= named)


class Gathering(Generic[T]):
    """What is made of the partitions of a new base while they are written, one after the other in the order of ids."""

    def add(self, part: T) -> None:
        """A partition was written."""

    def completed(self, root: Spread, *, is_split: bool) -> Spread:
        """The root with what belongs to it. Called before the root is written; `is_split`: the table was whole or is
        new."""
        return root


class Folding(Protocol[T]):
    """One fold, in the three forms that a root may ask for."""

    def onto(self, stored: T) -> T | None:
        """The whole table with it; None when nothing changes."""
        ...

    def delta(self, revision: int) -> T:
        """Only what it touches."""
        ...

    def anew(self, stored: T | None) -> T:
        """The table from its source, with it: where there is none, or `stored` is stale."""
        ...
