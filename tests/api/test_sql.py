"""SQL by HTTP: the models that the caller sees, within limits, where DuckDB is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.api.client import Client, Reply
from tests.api.shop import Shop
from worm.api import sql
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.api.identity import EVERYTHING

SQL = "/v1/sql"


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    made.session.model("Note").insert_many([{"id": f"n{at}", "title": f"T{at}", "stars": at} for at in range(5)])
    made.session.model("Draft").insert_many([{"id": f"n{at}", "title": "draft", "stars": 1} for at in range(5)])
    made.session.model("Account").insert({"id": "ann", "name": "Ann", "balance": 90})
    return made


def asked(shop: Shop, statement: object, **more: object) -> Reply:
    return shop.call("POST", SQL, {"statement": statement, **more})


def test_a_statement_is_answered_with_columns_and_rows(shop: Shop) -> None:
    joined = (
        "select n.title, n.stars + d.stars as both, n.createdAt from Note n join Draft d using (id) where stars > ?"
    )
    found = asked(shop, joined.replace("where stars", "where n.stars"), params=[3])
    assert found.status == 200, found.body
    assert found.json == {
        "columns": ["title", "both", "createdAt"],
        "items": [{"title": "T4", "both": 5.0, "createdAt": "2026-01-01T00:00:00Z"}],
        "hasMore": False,
    }
    by_name = asked(shop, "select id from Note where stars = $stars", params={"stars": 2})
    assert by_name.json["items"] == [{"id": "n2"}]


def test_a_page_ends_after_the_limit_of_rows_and_of_bytes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**more: object) -> tuple[int, bool]:
        found = asked(shop, "from range(150)", **more).json
        return len(found["items"]), found["hasMore"]

    assert told() == (100, True)
    assert told(limit=149) == (149, True)
    assert told(limit=150) == (150, False)
    monkeypatch.setattr(sql, "PAGE_BYTES_MAX", 50)
    assert told(limit=150) == (4, True)
    monkeypatch.setattr(sql, "PAGE_BYTES_MAX", 1)
    assert told() == (1, True)
    assert asked(shop, "select 1", limit=1001).slug == "invalid"


def test_an_integer_of_more_than_64_bits_is_text(shop: Shop) -> None:
    found = asked(shop, f"select {2**64 - 1}::hugeint as n, {2**64}::hugeint as m")
    assert found.json["items"] == [{"n": 2**64 - 1, "m": str(2**64)}]


def test_the_past_and_branches_are_read(shop: Shop) -> None:
    assert asked(shop, "select count(*) as n from Note", at="2020-01-01T00:00:00Z").json["items"] == [{"n": 0}]
    shop.session.create_branch("review")
    shop.session.branch("review").model("Account").patch("ann", {"balance": 1})
    balance = "select balance from Account"
    assert asked(shop, balance, branch="review").json["items"] == [{"balance": 1}]
    assert asked(shop, balance).json["items"] == [{"balance": 90}]
    assert asked(shop, balance, branch="nobody").status == 404
    assert asked(shop, balance, branch=5).slug == "invalid"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "statement: must be text, not None"),
        ({"statement": "delete from Note"}, "statement: DELETE is not possible here: SQL only reads"),
        ({"statement": "select * from Nte"}, "statement: Catalog Error: Table with name Nte does not exist!"),
        ({"statement": "select * from read_csv('/etc/passwd')"}, "file system operations are disabled"),
        ({"statement": "select 1", "params": "x"}, "params: must be a list or an object of values, not 'x'"),
        ({"statement": "select 1", "sql": "x"}, "sql: is not a known member"),
        ({"statement": "select 1", "allowScan": 1}, "allowScan: must be true or false, not 1"),
    ],
)
def test_a_wrong_statement_is_a_problem(shop: Shop, body: dict[str, Any], detail: str) -> None:
    found = shop.call("POST", SQL, body)
    assert (found.status, found.slug) == (400, "invalid")
    assert detail in found.json["detail"]


def test_the_hint_is_for_callers_of_the_api(shop: Shop) -> None:
    assert asked(shop, "delete from Note").json["hint"] == "to change documents, call the paths of a model"
    assert asked(shop, "select * from Nte").json["hint"] == "did you mean Note?"


def test_a_model_that_the_caller_may_not_see_does_not_exist() -> None:
    shop = Shop(models=frozenset({"Note"}))
    shop.session.model("Draft").insert({"id": "a", "title": "secret"})
    assert asked(shop, "select count(*) as n from Note").json["items"] == [{"n": 0}]
    assert asked(shop, "show tables").json["items"] == [{"name": "Note"}]
    for statement in (
        "select * from Draft",
        "select * from Note, draft",
        "from query_table('Draft')",
        "describe Draft",
    ):
        found = asked(shop, statement)
        assert (found.status, found.slug) == (400, "invalid")
        assert "raft does not exist" in found.json["detail"]
        assert b"Account" not in found.body
        assert b"secret" not in found.body
    unknown, hidden = asked(shop, "select * from Graft"), asked(shop, "select * from Draft")
    assert unknown.json["hint"] == hidden.json["hint"] == "models: Note"


def test_documents_without_a_table_count_as_requests(shop: Shop) -> None:
    identity = replace(EVERYTHING, actor="ann")
    client = Client(Api(lambda: shop.session, ApiSettings(max_requests=3), identify=lambda call, event: identity))
    body: dict[str, object] = {"statement": "select count(*) as n from Draft"}
    found = client.call("POST", SQL, body)
    assert (found.status, found.slug) == (400, "too-expensive")
    assert found.json["plan"]["strategy"] == "full_scan"
    assert client.call("POST", SQL, {**body, "allowScan": True}).json["items"] == [{"n": 5}]


def test_few_statements_run_at_once(shop: Shop) -> None:
    turns = [sql._turn() for _ in range(sql.STATEMENTS_MAX)]
    for turn in turns:
        turn.__enter__()
    busy = asked(shop, "select 1")
    assert (busy.status, busy.slug, busy.headers["Retry-After"]) == (503, "busy", "2")
    for turn in turns:
        turn.__exit__(None, None, None)
    assert asked(shop, "select 1").status == 200
    assert asked(shop, "select wrong").status == 400
    assert sql._RUNNING._value == sql.STATEMENTS_MAX


def test_without_duckdb_the_answer_is_not_installed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "find_spec", lambda name: None)
    found = asked(shop, "select 1")
    assert (found.status, found.slug) == (501, "not-installed")
    assert "pip install 's3worm[sql]'" in found.json["hint"]
