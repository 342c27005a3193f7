"""A list that only grows at its end, of any length, of which a head page holds the newest part.

Level 0 has the items. When a level is full (`FANOUT`), it becomes a page of its own, and the next level gets an entry
for it: the seq of its first item and its number. So the newest items are at hand, and any older one is as many pages
away as the number of items has digits in base `FANOUT`: at most 2 for 16,000, 3 for 2 million. Snapshots are fewer, and
`SNAPSHOTS` of them are at hand: for most entities all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from worm.codec.strict_json import JsonValue
from worm.errors import Corrupt

FANOUT = 128
SNAPSHOTS = 512
Item = list[int]
"""The seq comes first."""
Wanted = Generator[tuple[int, int], list[Item], list[Item]]
"""Asks for full lists by level and number, and is sent their items; returns what was looked for."""


@dataclass
class Growing:
    """`levels[0]` are the newest items; `levels[n]` entries for full lists of level n - 1."""

    levels: list[list[Item]] = field(default_factory=lambda: [[]])
    full: list[int] = field(default_factory=lambda: [0])
    fanout: int = FANOUT

    @classmethod
    def of(cls, shape: JsonValue, key: str, fanout: int = FANOUT) -> Growing:
        levels = shape.get("levels") if isinstance(shape, dict) else None
        full = shape.get("full") if isinstance(shape, dict) else None
        if not isinstance(levels, list) or not isinstance(full, list) or len(levels) != len(full):
            raise Corrupt("a list of revisions is damaged", key=key)
        return cls([items_of(level, key) for level in levels], cast("list[int]", full), fanout)

    def shape(self) -> JsonValue:
        return {"levels": cast("list[JsonValue]", self.levels), "full": cast("list[JsonValue]", self.full)}

    def add(self, item: Item) -> Iterator[tuple[int, int, list[Item]]]:
        """Appends; yields the lists that became full, with level and number, to be stored."""
        level = 0
        while True:
            self.levels[level].append(item)
            if len(self.levels[level]) < self.fanout:
                return
            items, number = self.levels[level], self.full[level]
            yield level, number, items
            self.levels[level] = []
            self.full[level] += 1
            level += 1
            if level == len(self.levels):
                self.levels.append([])
                self.full.append(0)
            item = [items[0][0], number]

    @property
    def count(self) -> int:
        """How many items there are."""
        return self.full[0] * self.fanout + len(self.levels[0])

    def back(self, upto: int, enough: int, stops: Sequence[int] = ()) -> Wanted:
        """The newest items with a seq up to `upto`, in order: all after seq `enough`, but none before the last one of a
        kind (its last number) that is in `stops`. At least one, if there is one up to `upto`."""
        found: list[Item] = []
        stack: list[tuple[int, list[Item]]] = [(level, items) for level, items in enumerate(self.levels)][::-1]
        while stack:
            level, items = stack.pop()
            while items:
                last = items[-1]
                if last[0] > upto:
                    items = _up_to(items, upto)
                    continue
                if level == 0:
                    if found and last[0] <= enough:
                        return found[::-1]
                    found.append(last)
                    if last[0] <= enough or (len(last) > 2 and last[-1] in stops):
                        return found[::-1]
                    items = items[:-1]
                    continue
                inside = yield level - 1, last[1]
                stack.append((level, items[:-1]))
                stack.append((level - 1, inside))
                break
        return found[::-1]


def _up_to(items: list[Item], upto: int) -> list[Item]:
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        if items[middle][0] <= upto:
            low = middle + 1
        else:
            high = middle
    return items[:low]


def items_of(shape: JsonValue, key: str) -> list[Item]:
    """The items of a stored list, which has a checksum: they are not looked at one by one."""
    if not isinstance(shape, list):
        raise Corrupt("a list of revisions is damaged", key=key)
    return cast("list[Item]", shape)
