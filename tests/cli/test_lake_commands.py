"""`worm lake publish`, `status`, `vacuum` and `ddl` on a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.cli.company import Command
from worm.cli.lake import Engine
from worm.formats import load_schema
from worm.sdk.database import Worm, connect
from worm.store.s3 import S3Store
from worm.tables.lake.ddl import ENGINES, ddl

SCHEMA: dict[str, Any] = {
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "oplog": True,
            "fields": {
                "name": {"type": "string"},
                "seats": {"type": "integer"},
                "tags": {"type": "array", "items": "string"},
                "home": {"type": "object", "properties": {"city": {"type": "string"}}},
                "since": {"type": "datetime"},
                "any": {"type": "array"},
            },
            "manifest": {"enabled": True},
            "lake": {"every": "1h"},
        },
        "Plain": {"path": "@plain/(id:string)", "manifest": {"enabled": True}},
    }
}


@pytest.fixture
def lake(url: str) -> str:
    with connect(url, schema=SCHEMA, probe=False) as db:
        db.push()
        db.model("Customer").insert({"id": "acme", "name": "Acme", "seats": 3})
    return url


def test_publish_tells_the_version_and_that_nothing_changed(worm: Command, lake: str) -> None:
    assert worm("lake", "publish", "Customer", "--url", lake).stdout == (
        "Published version 1 (revision 1): 1 file added, 1 removed\n"
    )
    assert worm("lake", "publish", "Customer", "--url", lake).stdout == "Version 1 (revision 1) is up to date\n"
    shown = worm("lake", "publish", "Customer", "--url", lake, "--format", "json").stdout
    assert json.loads(shown) == {"version": 1, "revision": 1, "added": 0, "removed": 0}


def test_status_tells_where_the_table_is_and_how_far_behind(worm: Command, lake: str) -> None:
    location = f"{Path(lake).as_uri()}/org/customers/.worm.lake"
    shown = worm("lake", "status", "Customer", "--url", lake).stdout
    assert shown.startswith(f"Location:  {location}\nVersion:   0 (revision 0)\n")
    assert "Behind:    at most " in shown
    worm("lake", "publish", "Customer", "--url", lake)
    assert "Behind:    no\n" in worm("lake", "status", "Customer", "--url", lake).stdout
    found = json.loads(worm("lake", "status", "Customer", "--url", lake, "--format", "json").stdout)
    assert (found["location"], found["version"], found["revision"], found["behindSeconds"]) == (location, 1, 1, 0)
    assert found["missing"] == []
    assert DeltaTable(location.removeprefix("file://")).version() == 1
    for one in Path(lake, "org/customers/.worm.lake/_delta_log").iterdir():
        one.unlink()
    ended = worm("lake", "status", "Customer", "--url", lake)
    assert ended.exit_code == 9
    assert "the log of the Delta table is gone" in ended.stderr
    Path(lake, "org/customers/.worm.lake/_worm.json").unlink()
    shown = worm("lake", "status", "Customer", "--url", lake).stdout
    assert shown == f"Location:  {location}\nVersion:   none yet\n"


def test_a_missing_file_is_exit_code_1_and_publish_writes_it_again(worm: Command, lake: str) -> None:
    worm("lake", "publish", "Customer", "--url", lake)
    [name] = DeltaTable(Path(lake, "org/customers/.worm.lake")).file_uris()
    file = Path(name)
    file.unlink()
    ended = worm("lake", "status", "Customer", "--url", lake)
    assert ended.exit_code == 1
    assert f"missing    {file.name}: run `worm lake publish Customer`" in ended.stdout
    worm("lake", "publish", "Customer", "--url", lake)
    assert file.exists()
    assert worm("lake", "status", "Customer", "--url", lake).exit_code == 0


def test_vacuum_only_shows_what_it_would_delete(worm: Command, lake: str) -> None:
    worm("lake", "publish", "Customer", "--url", lake)
    ended = worm("lake", "vacuum", "Customer", "--url", lake, "--format", "json")
    assert json.loads(ended.stdout) == {"deleted": 0, "keys": []}
    assert ended.stderr == "worm: dry run; --no-dry-run will delete 0 files\n"
    assert worm("lake", "vacuum", "Customer", "--url", lake, "--no-dry-run").stdout == ""


STATEMENTS = {
    "athena": "CREATE EXTERNAL TABLE `customer`\nLOCATION '{location}/'\nTBLPROPERTIES ('table_type' = 'DELTA');",
    "spark": "CREATE TABLE `Customer` USING DELTA LOCATION '{location}';",
    "duckdb": "INSTALL delta; LOAD delta;\nCREATE VIEW \"Customer\" AS SELECT * FROM delta_scan('{location}');",
    "trino": (
        "CALL delta.system.register_table("
        "schema_name => 'default', table_name => 'customer', table_location => '{location}');"
    ),
}


@pytest.mark.parametrize("engine", STATEMENTS)
def test_ddl_prints_the_statement_of_an_engine(worm: Command, lake: str, engine: str) -> None:
    location = f"{Path(lake).as_uri()}/org/customers/.worm.lake"
    shown = worm("lake", "ddl", engine, "Customer", "--url", lake).stdout
    assert shown == STATEMENTS[engine].format(location=location) + "\n"


def test_ddl_for_glue_is_the_input_of_its_call(worm: Command, lake: str) -> None:
    found = json.loads(worm("lake", "ddl", "glue", "Customer", "--url", lake).stdout)
    columns = {one["Name"]: one["Type"] for one in found["StorageDescriptor"]["Columns"]}
    assert columns == {
        "id": "string",
        "name": "string",
        "seats": "bigint",
        "tags": "array<string>",
        "home": "struct<city:string>",
        "since": "timestamp",
        "any": "string",
        "createdAt": "timestamp",
        "updatedAt": "timestamp",
        "_seq": "bigint",
        "_etag": "string",
        "_rest": "string",
    }
    assert found["Parameters"]["table_type"] == "delta"


def test_every_engine_has_a_command() -> None:
    assert tuple(one.value for one in Engine) == ENGINES


@pytest.mark.parametrize("arguments", [("publish",), ("status",), ("vacuum",), ("ddl", "spark")])
def test_a_model_without_lake_is_refused_with_what_to_set(worm: Command, lake: str, arguments: tuple[str, ...]) -> None:
    ended = worm("lake", *arguments, "Plain", "--url", lake)
    assert ended.exit_code == 2
    assert 'set "lake": {"format": "delta"} for it in schema.json, and push the schema' in ended.stderr


def test_a_quote_in_the_location_does_not_end_the_literal(aws_environment: None) -> None:
    lake = Worm(S3Store("acme", "it's"), load_schema(SCHEMA), probe=False).lake("Customer")
    assert ddl(lake, "spark") == (
        "CREATE TABLE `Customer` USING DELTA LOCATION 's3://acme/it''s/org/customers/.worm.lake';"
    )
    assert json.loads(ddl(lake, "glue"))["StorageDescriptor"]["Location"].startswith("s3://acme/it's/")
