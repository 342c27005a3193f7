"""What an export writes into the commit of its rows: which collection they are from, and the state of its heads.

Rows and state are one commit, so the state is never ahead of the rows or behind them. A run that died after its commit
and runs again finds its state and has nothing to do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, dumps, loads, shapes
from worm.tables import HeadsState

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from worm.spark.export_request import ExportRequest

PROPERTY = "worm-export"
SHAPE = shapes.record(
    "the state of an export",
    {
        "worm-export": shapes.one_of(1),
        "url": shapes.TEXT,
        "model": shapes.TEXT,
        "kind": shapes.TEXT,
        "options": shapes.TEXT,
        "columns": shapes.list_of(shapes.TEXT),
    },
    {"heads": shapes.OBJECT},
)


@dataclass(frozen=True, slots=True)
class ExportState:
    """`options`: a digest of everything else that decides how rows look. `columns`: all that exports ever wrote to the
    target. `heads`: None if it is unknown what they were, so that the next export must compare everything."""

    url: str
    model: str
    kind: str
    options: str
    columns: tuple[str, ...]
    heads: HeadsState | None

    @classmethod
    def of(cls, request: ExportRequest, schema: StructType, heads: HeadsState | None) -> ExportState:
        """Of an export that begins now, with these columns."""
        how: JsonObject = {
            "filter": request.filter,
            "broken": request.broken,
            "schema": schema.simpleString(),
        }
        digest = hashlib.sha256(dumps(how)).hexdigest()[:16]
        url = request.spec.url.rstrip("/")
        return cls(url, request.model, request.kind, digest, tuple(schema.fieldNames()), heads)

    def is_of(self, other: ExportState) -> bool:
        """Whether both are exports of the same thing."""
        return (self.url, self.model, self.kind) == (other.url, other.model, other.kind)

    def after(self, last: ExportState | None) -> ExportState:
        """With the columns of earlier exports."""
        known = () if last is None else last.columns
        return replace(self, columns=tuple(dict.fromkeys((*known, *self.columns))))

    def text(self, most: int) -> str:
        """At most about this many bytes: larger heads are left out. Only those of a small collection are that large,
        which can be compared as a whole the next time."""
        shape: JsonObject = {
            "worm-export": 1,
            "url": self.url,
            "model": self.model,
            "kind": self.kind,
            "options": self.options,
            "columns": list(self.columns),
        }
        heads = None if self.heads is None else self.heads.shape()
        if heads is not None and len(dumps(heads)) <= most:
            shape["heads"] = heads
        return dumps(shape).decode()

    @classmethod
    def of_text(cls, text: str | None) -> ExportState | None:
        """None if it is something else: others may write what they like into their commits."""
        try:
            shape = loads((text or "").encode("utf-8", "surrogatepass"))
        except Invalid:
            return None
        if not isinstance(shape, dict) or "worm-export" not in shape:
            return None
        try:
            shapes.check(shape, SHAPE, PROPERTY)
            heads = cast("JsonObject | None", shape.get("heads"))
            url, model, kind, options = (cast(str, shape[name]) for name in ("url", "model", "kind", "options"))
            columns = tuple(cast("list[str]", shape["columns"]))
            return cls(url, model, kind, options, columns, None if heads is None else HeadsState.of_shape(heads))
        except Corrupt:  # of a newer version, for example: all rows are compared
            return None
