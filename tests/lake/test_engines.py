"""One line for every engine: what they read is the collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable

import worm
from tests.emulators import CREDENTIALS, new_bucket
from tests.lake.lake_room import FIELDS, document

MODELS: dict[str, Any] = {
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "oplog": True,
            "fields": FIELDS,
            "manifest": {"enabled": True, "partitionThreshold": 10},
            "lake": {"format": "delta"},
        }
    }
}
COUNT = 60


def filled(url: str, **options: Any) -> str:
    """A directory or a bucket with a published table; its location."""
    with worm.connect(url, schema=MODELS, **options) as db:
        db.push()
        customers = db.model("Customer")
        customers.insert_many([{"id": f"c{number:03d}", **document(number)} for number in range(COUNT)])
        customers.publish()
        customers.patch("c007", {"name": "newer"})
        customers.delete("c008")
        assert customers.publish().version == 2
        return customers.get_lake_status().location


@pytest.fixture
def location(tmp_path: Path) -> str:
    found = filled(str(tmp_path / "data"))
    assert found.endswith("/data/org/customers/.worm.lake")
    return found.removeprefix("file://")


def test_deltalake_and_pandas(location: str) -> None:
    frame = DeltaTable(location).to_pandas()
    assert len(frame) == COUNT - 1
    assert frame.set_index("id").loc["c007", "name"] == "newer"
    assert frame["visits"].sum() == sum(range(COUNT)) - 8
    assert DeltaTable(location, version=1).to_pandas().set_index("id").loc["c007", "name"] == "n7"


def test_polars(location: str) -> None:
    lazy = polars.scan_delta(location)
    found = lazy.filter(polars.col("visits") > 50).select("id", "tags").sort("id").collect()
    assert found.rows() == [(f"c{number:03d}", [f"t{number % 3}"]) for number in range(51, COUNT)]


def test_duckdb_by_the_list_of_files_and_by_arrow(location: str) -> None:
    table = DeltaTable(location)
    files = table.file_uris()
    asked = "select count(*), sum(visits), max(name) from {} where score < 10"
    connection = duckdb.connect()
    listed = connection.execute(asked.format(f"read_parquet({files})")).fetchall()
    connection.register("customers", table.to_pyarrow_dataset())
    assert connection.execute(asked.format("customers")).fetchall() == listed == [(19, 182, "newer")]


def test_statistics_of_files_leave_out_files_and_no_rows(location: str) -> None:
    table = DeltaTable(location)
    assert len(table.get_add_actions(flatten=True)) > 2
    for number in range(0, COUNT, 7):
        found = table.to_pyarrow_table(filters=[("id", "=", f"c{number:03d}")])
        assert found.column("id").to_pylist() == [f"c{number:03d}"]


def test_deltalake_in_a_bucket(moto_endpoint: str, aws_environment: None) -> None:
    bucket = new_bucket(moto_endpoint, versioned=True)
    location = filled(f"s3://{bucket}", endpoint_url=moto_endpoint)
    assert location == f"s3://{bucket}/org/customers/.worm.lake"
    options = {"AWS_ENDPOINT_URL": moto_endpoint, "AWS_ALLOW_HTTP": "true", **CREDENTIALS}
    table = DeltaTable(location, storage_options=options)
    assert table.version() == 2
    assert table.to_pyarrow_table().num_rows == COUNT - 1
