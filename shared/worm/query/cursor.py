"""Cursors: where a page ended, as text that a caller keeps and gives back.

A cursor names the place of the last row (its values of the sort fields, and its id), not a count of rows: what is
inserted or deleted elsewhere makes the next page neither skip nor repeat a row. It is bound to the model, the filter
and the sort that it came from, so it cannot silently continue another query. The check sum finds damage; it is no
secret, and a cursor gives no right to read anything."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from worm.codec.field_path import MISSING, Missing
from worm.codec.strict_json import JsonValue, dumps, loads
from worm.errors import Invalid
from worm.query.filters import Filter
from worm.query.sort import Order, Place

VERSION = 1
_SUM_BYTES = 8
_HINT = "give back the cursor of the page before unchanged, or leave it out to start at the first page"


def encode_cursor(model: str, filter: Filter, orders: Sequence[Order], place: Place) -> str:
    values: list[JsonValue] = [[] if isinstance(value, Missing) else [value] for value in place.values]
    body = dumps([VERSION, _binding(model, filter, orders), values, place.id])
    return base64.urlsafe_b64encode(_sum(body) + body).decode().rstrip("=")


def decode_cursor(cursor: str, model: str, filter: Filter, orders: Sequence[Order]) -> Place:
    """The place that the cursor names; `Invalid` unless it is a cursor of this model, filter and sort."""
    version, binding, values, entity_id = _parts(cursor)
    if version != VERSION:
        raise Invalid(f"cursor version {version!r}; this code reads version {VERSION}", path="cursor", hint=_HINT)
    if binding != _binding(model, filter, orders):
        hint = "a cursor continues a query of the same model, filter and sort; leave it out to start a new one"
        raise Invalid("the cursor belongs to another query", path="cursor", hint=hint)
    if not isinstance(values, list) or len(values) != len(orders) or not isinstance(entity_id, str):
        raise _damaged()
    return Place(tuple(map(_value, values)), entity_id)


def _value(kept: JsonValue) -> JsonValue | Missing:
    if not isinstance(kept, list) or len(kept) > 1:
        raise _damaged()
    return kept[0] if kept else MISSING


def _parts(cursor: object) -> list[JsonValue]:
    if not isinstance(cursor, str) or not cursor.isascii():
        raise _damaged()
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise _damaged() from error
    body = raw[_SUM_BYTES:]
    if raw[:_SUM_BYTES] != _sum(body):
        raise _damaged()
    try:
        parts = loads(body)
    except Invalid as error:
        raise _damaged() from error
    if not isinstance(parts, list) or len(parts) != 4:
        raise _damaged()
    return parts


def _damaged() -> Invalid:
    return Invalid("this is not a cursor, or a damaged one", path="cursor", hint=_HINT)


def _binding(model: str, filter: Filter, orders: Sequence[Order]) -> str:
    ordered: list[JsonValue] = [[field, descending] for field, descending in orders]
    return hashlib.sha256(b"\n".join([model.encode(), filter.source, dumps(ordered)])).hexdigest()[:16]


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_SUM_BYTES]
