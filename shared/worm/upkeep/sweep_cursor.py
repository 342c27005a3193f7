"""The cursor of a sweep, `.worm.sweep/<collection>.json`: where the next run continues, and when a pass last finished.

A *pass* goes once through all ids of a collection, in one run or in several. Before this version, a cursor was a key;
a reader continues from its id, or from the beginning if the order of keys does not show what was done. A damaged cursor
starts a pass from the beginning; the next one replaces it. A cursor that is lost, late or replaced by another run costs
a repeated part of a pass, nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import cast

from worm.clock import iso_seconds, moment_of
from worm.collections import Collection, IdRange
from worm.errors import Corrupt
from worm.formats import JsonObject, dumps, encode_id, loads_own, shapes
from worm.values import dataclass

CURSOR = shapes.record(
    "the cursor of a sweep",
    {},
    {
        "from": shapes.TEXT,
        "listed": shapes.WHOLE,
        "startedAt": shapes.TEXT,
        "finishedAt": shapes.TEXT,
        "bySpark": shapes.FLAG,
        "after": shapes.TEXT,
    },
)


@dataclass(frozen=True, slots=True)
class SweepCursor:
    """`start`: the first id that the pass has not done; empty: the next run begins a pass. `listed`: the documents that
    the pass has listed so far. `by_spark`: the pass was a run of the Spark job."""

    start: str = ""
    listed: int = 0
    started_at: str = ""
    finished_at: str = ""
    by_spark: bool = False

    @classmethod
    def read(cls, collection: Collection) -> SweepCursor:
        key = cursor_key(collection)
        found = collection.store.get(key)
        try:
            shape = {} if found is None else loads_own(found.body, key=key)
            shapes.check(shape, CURSOR, key)
        except Corrupt:
            return cls()
        start = cast(str, shape.get("from", "")) or _id_of_key(collection, cast(str, shape.get("after", "")))
        return cls(
            start,
            cast(int, shape.get("listed", 0)),
            cast(str, shape.get("startedAt", "")),
            cast(str, shape.get("finishedAt", "")),
            cast(bool, shape.get("bySpark", False)),
        )

    def save(self, collection: Collection) -> None:
        collection.store.put(cursor_key(collection), self.encode())

    def begun(self, now: datetime) -> SweepCursor:
        """The cursor of the pass that goes on, or of a new one."""
        return self if self.start else SweepCursor(started_at=iso_seconds(now), finished_at=self.finished_at)

    def finished(self, now: datetime) -> SweepCursor:
        return replace(self, start="", finished_at=iso_seconds(now))

    def is_due(self, now: datetime, every_seconds: float) -> bool:
        """Whether a pass goes on, or the last one began at least this long ago. A time in the future is wrong. After a
        pass by Spark, the next one by Spark gets as much time again before the function takes over."""
        began = moment_of(self.started_at) if not self.start and self.finished_at else None
        age = None if began is None else (now - began).total_seconds()
        return age is None or not 0 <= age < every_seconds * (2 if self.by_spark else 1)

    def encode(self) -> bytes:
        shape: JsonObject = {"version": 2, "from": self.start, "listed": self.listed, "startedAt": self.started_at}
        if self.finished_at:
            shape["finishedAt"] = self.finished_at
        return dumps(shape | ({"bySpark": True} if self.by_spark else {}))


def cursor_key(collection: Collection) -> str:
    return f".worm.sweep/{collection.name}.json"


def _id_of_key(collection: Collection, key: str) -> str:
    """An id before which everything is done after a listing of the keys up to this one. Escaped ids come before most
    others in a listing, and an id that another one extends may come after it (`id_ranges.py`)."""
    entity_id = (collection.resolver.parse(key).id if key else None) or ""
    return IdRange.punctual(entity_id) if encode_id(entity_id) == entity_id else ""
