"""What a relayout has to say: its report, and its errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from worm.collections.layout import SCHEMA_KEY
from worm.collections.relayout_keys import Moved
from worm.collections.relayout_marker import layouts, same_places
from worm.errors import Conflict
from worm.schema.definition import StorageDef


@dataclass
class RelayoutReport:
    """What a relayout found and did. `objects` counts what lies under the old layout by model and directory."""

    source: StorageDef
    target: StorageDef
    objects: Counter[tuple[str, str]] = field(default_factory=Counter)
    size: int = 0
    foreign: int = 0
    copied: int = 0
    present: int = 0
    late: int = 0
    withdrawn: int = 0
    verified: int = 0
    superseded: int = 0
    deleted: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_nothing(self) -> bool:
        """Whether everything lies where it should already."""
        return same_places(self.source, self.target)


def both(moved: Moved) -> str:
    return f"{moved.listed.key} and {moved.target}"


def conflict(pairs: Sequence[str]) -> Conflict:
    more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
    return Conflict(
        f"different objects for one place: {pairs[0]}{more}",
        hint="somebody wrote during the relayout; keep the right one of each pair, move the other away, run it again",
    )


def pushed_meanwhile(expected: str | None) -> Conflict:
    return Conflict(
        "another schema was pushed during the relayout", key=SCHEMA_KEY, expected=expected, hint="run it again to go on"
    )


def told(storage: StorageDef) -> str:
    """`collection`, or `collection --trash root`: as the command takes it."""
    places = layouts(storage)
    usual = storage.layout if storage.layout in places.values() else places["oplog"]
    others = [f"--{name} {place}" for name, place in places.items() if place != usual]
    return " ".join([usual, *others])
