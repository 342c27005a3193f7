"""`.worm.relayout.json`: what a relayout remembers between two runs.

It is written before the first copy, so that a run after a crash knows where the objects were, even when the schema says
the new layout already. `since` is the store's own time of its creation: an object under the old layout that is older
was seen by the first pass; a younger one was written by somebody who did not pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from pydantic import ValidationError

from worm.clock import iso_seconds
from worm.codec.strict_json import JsonValue, dumps, loads_own
from worm.errors import Conflict, Corrupt
from worm.schema.definition import StorageDef
from worm.store.base import Gone, Lost, Object, Store, Won

RELAYOUT_KEY = ".worm.relayout.json"

State = Literal["copying", "done"]


@dataclass(frozen=True, slots=True)
class Marker:
    """The relayout that was begun last. `done`: everything is copied, only the old objects may be left."""

    source: StorageDef
    target: StorageDef
    state: State
    since: str
    etag: str


def read_marker(store: Store) -> Marker | None:
    found = store.get(RELAYOUT_KEY)
    return None if found is None else _decode(found)


def begin_marker(store: Store, source: StorageDef, target: StorageDef, replaced: Marker | None) -> Marker:
    """Write it, in the place of a done one. `Conflict` when somebody else begins at the same time."""
    body = _encode(source, target, "copying")
    if replaced is None:
        outcome: Won | Lost | Gone = store.put_if_absent(RELAYOUT_KEY, body)
    else:
        outcome = store.put_if_match(RELAYOUT_KEY, body, replaced.etag)
    if not isinstance(outcome, Won):
        raise Conflict("another relayout began at the same time", key=RELAYOUT_KEY, hint="run it again to go on")
    written = read_marker(store)
    if written is None or written.etag != outcome.etag:
        raise Conflict("another relayout took over", key=RELAYOUT_KEY, hint="run it again to go on")
    return written


def finish_marker(store: Store, marker: Marker) -> Marker:
    """Say that everything is copied and verified; another run may have said so first."""
    if marker.state == "done":
        return marker
    body = _encode(marker.source, marker.target, "done", marker.since)
    outcome = store.put_if_match(RELAYOUT_KEY, body, marker.etag)
    current = read_marker(store)
    if current is None or (not isinstance(outcome, Won) and current.state != "done"):
        raise Conflict("another relayout took over", key=RELAYOUT_KEY, hint="run it again to go on")
    return current


def same_places(one: StorageDef, other: StorageDef) -> bool:
    """Whether two definitions put every directory into the same place."""
    return layouts(one) == layouts(other)


def layouts(storage: StorageDef) -> dict[str, str]:
    """`{"oplog": "root", "snapshots": "root", "trash": "root"}`."""
    return {
        "oplog": storage.oplog_layout,
        "snapshots": storage.snapshots_layout,
        "trash": storage.trash_layout,
    }


def _encode(source: StorageDef, target: StorageDef, state: State, since: str | None = None) -> bytes:
    shape: dict[str, JsonValue] = {
        "version": 1,
        "from": cast(JsonValue, layouts(source)),
        "to": cast(JsonValue, layouts(target)),
        "state": state,
    }
    if since is not None:
        shape["since"] = since
    return dumps(shape)


def _decode(found: Object) -> Marker:
    shape = loads_own(found.body, key=RELAYOUT_KEY)
    state = shape.get("state")
    if shape.get("version") != 1 or state not in ("copying", "done"):
        raise Corrupt("not a relayout marker of a version this code reads", key=RELAYOUT_KEY)
    try:
        source, target = (StorageDef.model_validate(shape.get(name)) for name in ("from", "to"))
    except ValidationError as error:
        raise Corrupt("the relayout marker names no layouts", key=RELAYOUT_KEY) from error
    since = str(shape.get("since") or iso_seconds(found.last_modified))
    return Marker(source, target, cast(State, state), since, found.etag)
