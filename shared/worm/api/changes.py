"""The change feed by HTTP: a long poll everywhere, and server-sent events from a server that can stream.

A stream ends by itself after some minutes, and when a new schema is pushed. The browser reconnects and sends its
position in `Last-Event-ID`, as it does when the connection breaks; nothing gets lost. In a batch of events only the
last one has the cursor as its id: if a connection breaks before that, the batch is sent again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from worm.api.call import Call, HttpAnswer
from worm.api.histories import (
    DAMAGES,
    ENTRY,
    LIMIT,
    LIMIT_MAX,
    LIMIT_PARAMETER,
    MODEL_PARAMETER,
    TEXT,
    damage_shape,
    items_of,
)
from worm.api.problems import problem_of
from worm.api.routes import Parameter, Route
from worm.errors import Invalid, WormError
from worm.formats import JsonObject, JsonValue, dumps

if TYPE_CHECKING:
    from worm.sdk import ChangeRows, HistoryEntry

EVENT_STREAM = "text/event-stream"
WAIT_SECONDS_MAX = 20
KEEP_ALIVE_SECONDS = 15
STREAM_SECONDS = 15 * 60
RETRY_MILLISECONDS = 2000


def change_shape(entry: HistoryEntry) -> JsonObject:
    return {
        "model": entry.model,
        "id": entry.id,
        "seq": entry.seq,
        "op": entry.op,
        "ts": entry.ts,
        "actor": entry.actor,
        "reason": entry.reason,
    }


def list_changes(call: Call) -> JsonObject | HttpAnswer:
    """`GET /v1/changes`"""
    if call.settings.is_local and EVENT_STREAM in (call.header("accept") or ""):
        return HttpAnswer(200, {"Content-Type": EVENT_STREAM, "X-Accel-Buffering": "no"}, events(call))
    wait = call.query.number("wait", 0, most=WAIT_SECONDS_MAX)
    found = _changes(call, call.query.one("after"), wait)
    return {
        "items": [change_shape(one) for one in found],
        "cursor": found.cursor,
        "damages": [damage_shape(one) for one in found.damages],
    }


def events(call: Call) -> Iterator[bytes]:
    """The changes as server-sent events, with a comment if nothing happens for a while. Mistakes in the call are raised
    at once, not with the first event."""
    begun = _changes(call, call.header("last-event-id") or call.query.one("after"), 0)
    return _stream(call, begun)


def _stream(call: Call, found: ChangeRows) -> Iterator[bytes]:
    clock = call.session.clock
    end = clock.monotonic() + STREAM_SECONDS
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    # The id comes before the batch: a client that loses the connection inside the batch must not resume after it.
    yield _event("cursor", {}, None if found or found.damages else found.cursor)
    while True:
        yield from _batch(found)
        if clock.monotonic() >= end or call.is_outdated():
            return
        try:
            found = _changes(call, found.cursor, KEEP_ALIVE_SECONDS)
        except WormError as error:  # the headers are already sent; the client reconnects and gets the status then
            yield _event("problem", problem_of(error, invalid=400).shape(), None)
            return


def _batch(found: ChangeRows) -> Iterator[bytes]:
    for damage in found.damages:
        yield _event("damage", damage_shape(damage), None)
    for at, entry in enumerate(found, 1):
        yield _event("change", change_shape(entry), found.cursor if at == len(found) else None)
    if not found:
        yield b": nothing new\n\n"


def _event(name: str, data: JsonObject, cursor: str | None) -> bytes:
    """Canonical JSON has no line breaks."""
    named = b"" if cursor is None else f"id: {cursor}\n".encode()
    return named + f"event: {name}\ndata: ".encode() + dumps(data) + b"\n\n"


def _changes(call: Call, after: str | None, wait: float) -> ChangeRows:
    limit = call.query.number("limit", LIMIT, least=1, most=LIMIT_MAX)
    return call.session.changes(after or None, model=_models(call), limit=limit, wait=wait)


def _models(call: Call) -> list[str] | None:
    """The requested models that the caller may see; None: all."""
    names = call.query.all("model")
    for name in names:
        call.check_model(name)
    if names or call.identity.models is None:
        return names or None
    known = call.session.schema.models.items()
    seen = [name for name, definition in known if definition.oplog and call.identity.sees(name)]
    if not seen:
        raise Invalid("none of your models keeps an oplog, so there is no record of their changes", path="model")
    return seen


_ITEM: JsonObject = {name: ENTRY[name] for name in ("seq", "op", "ts", "actor", "reason")}
_WAIT: dict[str, JsonValue] = {"type": "integer", "minimum": 0, "maximum": WAIT_SECONDS_MAX}
ROUTES = (
    Route(
        "GET",
        "/v1/changes",
        list_changes,
        "Changes since a cursor",
        description=(
            "Without `after` the answer has the current cursor and no items. Every change is reported, however late it "
            "was recorded; a change may come twice. `Accept: text/event-stream` returns server-sent events if the "
            "server can stream (`worm serve`); `Last-Event-ID` resumes."
        ),
        parameters=(
            Parameter("after", "The `cursor` of the previous answer."),
            Parameter("wait", "Wait up to this many seconds for a change.", _WAIT),
            MODEL_PARAMETER,
            LIMIT_PARAMETER,
        ),
        answer=items_of({"model": TEXT, "id": TEXT, **_ITEM}, cursor=TEXT, damages=DAMAGES),
        media_types=("application/json", EVENT_STREAM),
        models="filtered",
        tag="changes",
    ),
)
