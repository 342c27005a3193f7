"""The stream of changes for Spark 4.2 and later, which limits batches and ends with what is available now.

Earlier versions of Spark lack what it imports.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from worm.errors import Unavailable
from worm.formats import JsonObject, JsonValue
from worm.spark.source.options import StreamOptions
from worm.spark.source.rows import Reading
from worm.spark.source.stream import ChangeStream
from worm.tables import HeadsState


class LimitedChangeStream(ChangeStream, SupportsTriggerAvailableNow):
    """Spark passes the start of each batch and its limit."""

    def __init__(self, reading: Reading, options: StreamOptions) -> None:
        super().__init__(reading, options)
        self._ends = False
        self._end: HeadsState | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable() if self.options.most is None else ReadMaxRows(self.options.most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._ends, self._end = True, self.newest()

    def latestOffset(self, start: Mapping[str, JsonValue], limit: ReadLimit) -> JsonObject:  # type: ignore[override]  # noqa: N802 - Spark's name; the base class is for versions without arguments
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        newest, first = self._end if self._ends else self.newest(), self.offset(start)
        if self._ends and newest is None and (first.state is not None or self.has_heads):
            raise Unavailable(
                "the heads are lost or incomplete, so it is unknown what changed",
                hint="run `worm repair`, then start the query again; with another trigger, it waits for a repair",
            )
        return self.shape(self.following(first, most, newest))
