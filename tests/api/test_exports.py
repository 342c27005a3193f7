"""All rows as a file, in every format."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from tests.api.client import Client, event
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.sdk.database import Worm

EXPORT = "/v1/models/Customer/export"


@pytest.fixture(autouse=True)
def customers(session: Worm) -> None:
    rows: list[dict[str, Any]] = [{"id": f"c{n}", "name": f"N{n}", "visits": n} for n in range(5)]
    session.model("Customer").insert_many([*rows, {"id": "x", "name": "=1+1", "other": {"a": [1]}}])


def test_csv_has_all_columns_and_no_formulas(client: Client) -> None:
    reply = client.get(EXPORT)
    assert reply.headers["Content-Type"].startswith("text/csv")
    assert reply.headers["Content-Disposition"] == "attachment; filename*=UTF-8''Customer.csv"
    rows = list(csv.DictReader(io.StringIO(reply.body.decode(), newline="")))
    assert [row["id"] for row in rows] == ["c0", "c1", "c2", "c3", "c4", "x"]
    assert (rows[5]["name"], rows[5]["other"]) == ("'=1+1", '{"a":[1]}')


def test_ndjson_has_a_document_on_each_line(client: Client) -> None:
    reply = client.get(EXPORT, {"format": "ndjson", "filter": "visits>=3", "select": "name"})
    assert [json.loads(line) for line in reply.body.splitlines()] == [
        {"id": "c3", "name": "N3"},
        {"id": "c4", "name": "N4"},
    ]


def test_parquet_and_arrow_have_the_types_of_the_schema(client: Client) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    ipc = pytest.importorskip("pyarrow.ipc")
    for query in ({}, {"select": "name,visits"}, {"filter": "visits>99"}):
        first = parquet.read_table(io.BytesIO(client.get(EXPORT, {"format": "parquet", **query}).body))
        second = ipc.open_stream(client.get(EXPORT, {"format": "arrow", **query}).body).read_all()
        assert first.num_rows == second.num_rows == (0 if "filter" in query else 6)
        assert str(first.schema.field("visits").type) == "int64"
        assert ("other" in first.schema.names) == (query == {})


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_value_that_does_not_fit_its_column_is_named_also_after_the_first_batch(
    client: Client, session: Worm, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.model("Customer").save({"id": "z", "name": "Z", "visits": 2**63})
    monkeypatch.setattr("worm.api.csv_rows.SPOOL_ROWS", 2)
    reply = client.get(EXPORT, {"format": kind})
    assert (reply.status, reply.slug, reply.json["field"]) == (400, "invalid", "visits")


def test_a_server_gets_the_rows_piece_by_piece(session: Worm) -> None:
    answer = Api(lambda: session).answer(event("GET", EXPORT, query={"format": "ndjson"}))
    assert not isinstance(answer.body, bytes)
    assert b"".join(answer.body).count(b"\n") == 6


def test_what_a_function_cannot_return_is_refused(session: Worm) -> None:
    client = Client(Api(lambda: session, ApiSettings(max_answer_bytes=200)))
    reply = client.get(EXPORT, {"format": "ndjson"})
    assert (reply.status, reply.slug) == (413, "answer-too-large")


@pytest.mark.parametrize("query", ["format=xls", "filter=", "select=,", "at=x", "sort=name", "format=csv&format=csv"])
def test_a_wrong_export_is_a_bad_request(client: Client, query: str) -> None:
    assert client.get(EXPORT, query).status == 400
