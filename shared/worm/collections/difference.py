"""The difference of two documents as an oplog entry holds it, and its exact replay.

A diff maps each changed top-level field to `[before, after]`. JSON cannot say "no such field" inside that pair, so a
missing side is written as null, and `absent` names its field: `{"before": [...], "after": [...]}`. Values are equal
only if their canonical bytes are equal: 1, 1.0 and true differ, and so do "", null and a missing field.

Invariant: `apply(before, d.diff, d.absent)` has the canonical bytes of `after` for `d = Diff.between(before, after)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from worm.errors import Corrupt, show
from worm.formats import JsonObject, JsonValue, same
from worm.values import dataclass

FieldDiff = dict[str, list[JsonValue]]
Absent = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Diff:
    """What changed. Falsy when nothing did."""

    diff: FieldDiff = field(default_factory=dict)
    absent: Absent = field(default_factory=lambda: {"before": [], "after": []})

    @classmethod
    def between(cls, before: Mapping[str, JsonValue] | None, after: Mapping[str, JsonValue]) -> Diff:
        """Top-level fields that differ. `before` None is a document that did not exist."""
        before = {} if before is None else before
        changes: FieldDiff = {}
        absent: Absent = {"before": [], "after": []}
        for name, old in before.items():
            if name not in after:
                changes[name] = [old, None]
                absent["after"].append(name)
            elif not same(old, after[name]):
                changes[name] = [old, after[name]]
        for name, new in after.items():
            if name not in before:
                changes[name] = [None, new]
                absent["before"].append(name)
        return cls(changes, absent)

    def __bool__(self) -> bool:
        return bool(self.diff)

    def needed_absent(self) -> Absent | None:
        """`absent` for an oplog entry: only the sides where a null needs it; None if no side does."""
        return {side: names for side, names in self.absent.items() if names} or None


def apply(
    before: Mapping[str, JsonValue] | None,
    entry_diff: Mapping[str, Sequence[JsonValue]],
    absent: Mapping[str, Sequence[str]] | None = None,
) -> JsonObject:
    """The document after the change. `Corrupt` if the diff was not taken from `before`."""
    result: JsonObject = dict(before or {})
    missing_before = set((absent or {}).get("before", ()))
    missing_after = set((absent or {}).get("after", ()))
    for name, pair in entry_diff.items():
        if len(pair) != 2:
            raise Corrupt(f"diff of field {show(name)} must be [before, after]")
        was_missing = name in missing_before
        if was_missing is (name in result) or not (was_missing or same(result[name], pair[0])):
            raise Corrupt(f"diff of field {show(name)} does not fit the document it is applied to")
        if name in missing_after:
            del result[name]
        else:
            result[name] = pair[1]
    return result
