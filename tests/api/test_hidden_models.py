"""A token for some models: no read shows a name, an id or a value of another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.client import event, memory_session, reply
from worm.api.app import ROUTES, Api
from worm.api.credentials import DeployedCallers, Trust
from worm.api.routes import Route
from worm.api.tokens import create_token
from worm.sdk.database import Worm

FIELDS: dict[str, object] = {"title": {"type": "string"}}
COMMON: dict[str, object] = {"oplog": True, "softDelete": True, "manifest": {"enabled": True}}
SCHEMA = {
    "models": {
        "Secret": {"path": "#org/@secrets/(id:string)", "fields": FIELDS, **COMMON},
        "Note": {
            "path": "#org/@notes/(id:string)",
            "fields": {**FIELDS, "about": {"type": "ref", "model": "Secret"}},
            **COMMON,
        },
    }
}
MARKS = (b"Secret", b"secrets", b"hidden-id", b"hidden value")
"""Names of the model and its folder, then what is in it."""


@pytest.fixture(scope="module")
def session() -> Worm:
    made = memory_session(SCHEMA)
    secrets, notes = made.model("Secret"), made.model("Note")
    for one in ("hidden-id", "gone-hidden-id"):
        secrets.insert({"id": one, "title": "hidden value"})
    notes.insert({"id": "a", "title": "A", "about": "of-another-model"})
    notes.patch("a", {"about": None, "title": "B"})
    secrets.delete("gone-hidden-id")
    notes.insert({"id": "b", "title": "B"})
    return made


@pytest.fixture(scope="module")
def api(session: Worm) -> Api:
    return Api(lambda: session, None, DeployedCallers(Trust("tokens")))


@pytest.fixture(scope="module")
def token(session: Worm) -> str:
    return create_token(session.store, session.ids, models=["Note"])[1]


QUERIES = {
    "/v1/history": ["", "limit=1000", "model=Note"],
    "/v1/changes": ["", "after={cursor}", "after={cursor}&model=Note"],
    "/v1/trash": ["", "limit=1"],
    "/v1/why": ["key=org/secrets/x/data.json", "key=org/notes/a/data.json"],
    "/v1/models/Note/documents": ["", "populate=about", "explain=true", "filter=%7B%22title%22%3A%22B%22%7D"],
    "/v1/models/Note/documents/a/at": ["seq=2"],
    "/v1/models/Note/documents/a/diff": ["from=1&to=2"],
    "/v1/models/Note/export": ["format=csv", "format=ndjson"],
}


def _reads() -> Iterator[tuple[Route, str, str]]:
    for route in ROUTES:
        path = route.path.replace("{model}", "Note").replace("{id}", "b").replace("{branch}", "main")
        path = path if "/documents/b/" not in path else path.replace("/b/", "/a/")
        for query in QUERIES.get(path, [""]):
            if route.scope == "read":
                yield route, path, query


@pytest.mark.parametrize(
    ("route", "path", "query"), list(_reads()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_no_read_tells_of_another_model(api: Api, token: str, route: Route, path: str, query: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    body: Any = {"metrics": {"n": {"$count": True}}} if path.endswith("aggregate") else {}
    begin = reply(api.handle(event("GET", "/v1/changes", headers=headers)))
    asked = query.replace("{cursor}", str(begin.json["cursor"]))
    found = reply(api.handle(event(route.method, path, None if route.method == "GET" else body, headers, asked)))
    assert found.status < 500, found.body
    # The definition of a model names those that it refers to, and a document holds the ids of its references.
    names_it = path == "/v1/models/Note" or "populate" in query or "key=org/secrets" in query
    assert [one for one in MARKS[2 if names_it else 0 :] if one in found.body] == [], found.body


def test_whoever_sees_all_is_shown_what_is_hidden_here(api: Api, session: Worm) -> None:
    """Guards the guard: the marks are there to be found."""
    whole = create_token(session.store, session.ids)[1]
    headers = {"Authorization": f"Bearer {whole}"}
    for path in ("/v1/history", "/v1/trash", "/v1/models", "/v1/models/Secret/documents"):
        found = reply(api.handle(event("GET", path, headers=headers)))
        assert [one for one in MARKS if one in found.body] != [], path
