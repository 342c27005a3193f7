"""Change sets: what one batch of capture tells the tables worker, in one object.

A change set lists entities whose newest oplog entry is newer than the table knows, with the projected row of each. It
is written after the entries, so everything it says is recorded already; folding it is idempotent because a row
applies only if its seq is newer. A model without oplog has no seq: its changes only name the entity, and the fold
reads the document itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from worm.codec.field_path import Missing, field_value
from worm.codec.strict_json import JsonValue, dumps, loads_own
from worm.collections.entries import Document, Head
from worm.errors import Corrupt

Row = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Change:
    """The newest state of one entity. `head` is None for a model without oplog; `row` is None when deleted."""

    id: str
    head: Head | None
    row: Row | None


def project(document: Document, fields: Sequence[str]) -> Row:
    """The manifest row of a document: the table's fields that it has. A dotted field keeps its dotted name."""
    row: Row = {}
    for field in fields:
        value = field_value(document, field)
        if not isinstance(value, Missing):
            row[field] = value
    return row


def encode_changes(model: str, changes: Sequence[Change]) -> bytes:
    shapes: list[JsonValue] = []
    for change in changes:
        shape: dict[str, JsonValue] = {"id": change.id}
        if change.head is not None:
            shape["head"] = encode_head(change.head)
            shape["row"] = change.row
        shapes.append(shape)
    return dumps({"version": 1, "model": model, "changes": shapes})


def decode_changes(body: bytes, key: str) -> tuple[str, list[Change]]:
    """The model's name and its changes."""
    shape = loads_own(body, key=key)
    if shape.get("version") != 1 or not isinstance(shape.get("model"), str):
        raise Corrupt("not a change set of a version this code reads", key=key, hint="see docs/formats.md")
    listed = cast("list[Mapping[str, JsonValue]]", shape.get("changes") or [])
    return cast(str, shape["model"]), [_decode_change(item) for item in listed]


def _decode_change(shape: Mapping[str, JsonValue]) -> Change:
    head = shape.get("head")
    return Change(
        id=cast(str, shape["id"]),
        head=None if head is None else decode_head(cast("list[JsonValue]", head)),
        row=cast("Row | None", shape.get("row")),
    )


def encode_head(head: Head) -> list[JsonValue]:
    return [head.seq, head.etag, head.version_id, head.live, head.ts]


def decode_head(shape: list[JsonValue]) -> Head:
    seq, etag, version_id, live, ts = shape
    return Head(cast(int, seq), cast("str | None", etag), cast("str | None", version_id), bool(live), cast(str, ts))
