"""Answers that are sent piece by piece, while somebody pushes another schema: they use their session to the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from tests.api.client import event, reply
from worm.api.app import Api
from worm.api.call import ApiSettings, HttpAnswer, StreamedBody
from worm.api.sessions import REFRESH_SECONDS
from worm.clock import Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Unavailable
from worm.formats import load_schema
from worm.sdk.database import DocumentDict, Model, Worm
from worm.sdk.rows import Rows
from worm.store.file import FileStore
from worm.store.memory import MemoryStore

NOTE: dict[str, Any] = {
    "path": "#org/@notes/(id:string)",
    "fields": {"n": {"type": "integer"}},
    "oplog": True,
    "manifest": {"enabled": True},
}
SCHEMA = {"version": "1.0", "models": {"Note": NOTE}}
LARGER = {"version": "1.0", "models": {"Note": NOTE, "New": {**NOTE, "path": "#org/@new/(id:string)"}}}
OTHER = {"version": "1.0", "models": {"New": {**NOTE, "path": "#org/@new/(id:string)"}}}
COUNT, BATCH = 40, 10


class Room:
    """An API on a store with some batches of documents, and the sessions that were closed."""

    def __init__(self, store: MemoryStore | FileStore, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        store.put(SCHEMA_KEY, load_schema(SCHEMA).to_json())
        self.first = Worm(store, load_schema(SCHEMA), probe=False, clock=clock, ids=store.ids)
        self.first.model("Note").save_many([{"id": f"{n:05}", "n": n} for n in range(COUNT)])
        self.api = Api(lambda: self.first)
        self.closed: list[Worm] = []

    def begin(self, path: str, query: str = "", **headers: str) -> HttpAnswer:
        answer = self.api.answer(event("GET", path, None, {"Accept": "*/*", **headers}, query))
        assert answer.status == 200, answer.body
        return answer

    def push(self, schema: dict[str, Any]) -> None:
        """And let a call find out."""
        self.store.put(SCHEMA_KEY, load_schema(schema).to_json())
        self.clock.advance(REFRESH_SECONDS)
        models = json.loads(b"".join([self.api.answer(event("GET", "/v1/models")).body]))  # type: ignore[list-item]  # in one piece
        assert [one["name"] for one in models["items"]] == list(schema["models"])


@pytest.fixture(params=["memory", "directory"])
def room(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    on_disk = request.param == "directory"
    made = Room(FileStore(tmp_path, clock=clock, ids=ids) if on_disk else MemoryStore(clock=clock, ids=ids), clock)
    whole = Worm.close

    def closing(session: Worm) -> None:
        made.closed.append(session)
        whole(session)

    monkeypatch.setattr(Worm, "close", closing)
    monkeypatch.setattr(Model, "find_batches", partialmethod(Model.find_batches, batch_size=BATCH))
    return made


def pieces(answer: HttpAnswer) -> Iterator[bytes]:
    assert isinstance(answer.body, StreamedBody)
    return answer.body


@pytest.mark.parametrize("schema", [LARGER, OTHER], ids=["one more model", "without the model"])
def test_an_export_goes_on_with_the_schema_that_it_began_with(room: Room, schema: dict[str, Any]) -> None:
    """Its session was closed under it, and opened again by its next read, for ever."""
    export = room.begin("/v1/models/Note/export", "format=ndjson")
    first = next(pieces(export))
    room.push(schema)
    assert room.closed == []
    rest = b"".join(pieces(export))
    assert [json.loads(line)["n"] for line in (first + rest).splitlines()] == list(range(COUNT))
    assert room.closed == [room.first]


def test_a_stream_of_changes_ends_and_the_next_one_goes_on_with_all_models(room: Room) -> None:
    stream = room.begin("/v1/changes", Accept="text/event-stream")
    begun = [next(pieces(stream)) for _ in range(3)][1]
    cursor = begun.split(b"\n")[0].removeprefix(b"id: ").decode()
    room.push(LARGER)
    assert room.closed == []
    assert b"problem" not in b"".join(pieces(stream))
    assert room.closed == [room.first]
    for model in ("Note", "New"):
        made = event("POST", f"/v1/models/{model}/documents", {"id": "x", "n": 1})
        assert reply(room.api.handle(made)).status == 201
    again = room.begin("/v1/changes", Accept="text/event-stream", **{"Last-Event-ID": cursor})
    found = b"".join(next(pieces(again)) for _ in range(4))
    assert (found.count(b"event: change"), found.count(b'"New"'), found.count(b'"Note"')) == (2, 1, 1)
    again.body.close()  # type: ignore[union-attr]  # a stream
    room.api.close()
    assert len(room.closed) == 2


def test_a_stream_of_changes_notices_a_push_by_itself(room: Room) -> None:
    stream = room.begin("/v1/changes", Accept="text/event-stream")
    next(pieces(stream))
    room.store.put(SCHEMA_KEY, load_schema(LARGER).to_json())
    room.clock.advance(REFRESH_SECONDS)
    assert len(list(pieces(stream))) == 2
    assert room.closed == [room.first]


@pytest.mark.parametrize("query", ["format=ndjson", "format=csv"])
def test_a_client_that_goes_away_gives_the_session_back(room: Room, query: str) -> None:
    """Also one that never read a piece."""
    gone, early = (room.begin("/v1/models/Note/export", query) for _ in range(2))
    next(pieces(gone))
    room.push(LARGER)
    for answer in (gone, early):
        assert room.closed == []
        answer.body.close()  # type: ignore[union-attr]  # a stream
    assert room.closed == [room.first]
    assert list(pieces(gone)) == []


def test_a_stream_that_fails_gives_the_session_back(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> Iterator[Rows[DocumentDict]]:
        yield from whole(*arguments, **options)
        raise Unavailable("the store is gone")

    whole = Model.find_batches
    monkeypatch.setattr(Model, "find_batches", broken)
    stream = room.begin("/v1/models/Note/export", "format=ndjson")
    room.push(LARGER)
    with pytest.raises(Unavailable):
        list(pieces(stream))
    assert room.closed == [room.first]


def test_an_answer_without_its_body_keeps_no_session(room: Room) -> None:
    """HEAD, and what is larger than a function may return."""
    export = "/v1/models/Note/export"
    assert reply(room.api.handle(event("HEAD", export))).status == 200
    room.api.settings = ApiSettings(max_answer_bytes=100)
    assert reply(room.api.handle(event("GET", export))).status == 413
    room.push(LARGER)
    assert room.closed == [room.first]


def test_the_end_of_the_process_closes_what_streams_still_use(room: Room) -> None:
    stream = room.begin("/v1/models/Note/export", "format=ndjson")
    room.push(LARGER)
    room.api.close()
    assert (room.first in room.closed, len(room.closed)) == (True, 2)
    stream.body.close()  # type: ignore[union-attr]  # a stream


def test_a_session_that_cannot_be_closed_spoils_no_answer(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = room.begin("/v1/models/Note/export", "format=ndjson")
    room.push(LARGER)

    def refused(session: Worm) -> None:
        raise Unavailable("the tables could not be written")

    monkeypatch.setattr(Worm, "close", refused)
    assert b"".join(pieces(stream)).count(b"\n") == COUNT
