"""Inventories as S3 writes them: every version of every part, checked before it is used; errors that say what to do."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.collections.inventory_room import ALL_COLUMNS, CURRENT_COLUMNS, Delivery
from worm.errors import Corrupt, Invalid, NotFound, WormError
from worm.spark import inventory
from worm.spark.inventory import Inventory, open_inventory
from worm.store.base import Store, Version
from worm.store.open import open_store

AT = datetime(2026, 2, 24, 1, 0, tzinfo=UTC)
OF = "s3://source-bucket"
KEYS = ["org/customers/acme/profile.json", 'a b/c+d/é%20&="x".json', "100%/日本.json", "x,y/\u2028.json"]


def versions_of(keys: Sequence[str]) -> list[Version]:
    found = []
    for number, key in enumerate(keys):
        moment = AT - timedelta(days=number + 1, seconds=number)
        etag = f'"{number:032x}"'
        found.append(Version(key, f"v{number}.new_-", etag, number * 10, moment, is_latest=True))
        found.append(Version(key, f"v{number}.old", '"5-7"', 2**33, moment - timedelta(days=1), is_latest=False))
        found.append(Version(key, "null", '"00"', 3, moment - timedelta(days=2), is_latest=False))
    gone = Version("gone.json", "m1", "", 0, AT, is_latest=True, is_delete_marker=True)
    unversioned = Version("before-versioning.json", None, '"ab"', 1, AT, is_latest=True)
    return [*found, gone, unversioned]


@pytest.fixture
def destination(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path)
    yield store
    store.close()


def url_of(store: Store, key: str) -> str:
    return f"{store.url}/{key}"


def rows_of(found: Inventory) -> list[Version]:
    return [version for file in found.files for version in found.versions(file)]


def in_parts(versions: Sequence[Version], seed: int = 1) -> list[list[Version]]:
    """In three files, in no order."""
    mixed = random.Random(seed).sample(versions, len(versions))
    return [mixed[:4], [], mixed[4:]]


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_all_versions_of_all_parts_are_read_as_they_were_listed(destination: Store, form: str) -> None:
    versions = versions_of(KEYS)
    key = Delivery(destination, form=form, at=AT).write(in_parts(versions))
    found = open_inventory(url_of(destination, key), OF)
    assert (found.source_bucket, found.created, found.format) == ("source-bucket", AT, form)
    assert found.columns[:5] == ALL_COLUMNS[:5]
    assert found.has_versions
    assert sorted(rows_of(found), key=repr) == sorted(versions, key=repr)


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_columns_may_be_in_any_order_and_an_inventory_may_have_current_versions_only(
    destination: Store, form: str
) -> None:
    columns = random.Random(3).sample(CURRENT_COLUMNS, len(CURRENT_COLUMNS))
    version = Version("org/a/data.json", "v1", '"ab"', 7, AT, is_latest=True)
    key = Delivery(destination, form=form, columns=columns, at=AT).write([[version]])
    found = open_inventory(url_of(destination, key), OF)
    assert not found.has_versions
    (read,) = rows_of(found)
    assert (read.key, read.version_id, read.etag, read.size) == ("org/a/data.json", None, '"ab"', 7)
    assert (read.last_modified, read.is_latest, read.is_delete_marker) == (AT, True, False)


def test_keys_are_relative_to_the_prefix_of_the_store_and_others_are_left_out(destination: Store) -> None:
    versions = [Version(f"{prefix}x.json", "v", '"e"', 1, AT, is_latest=True) for prefix in ("team/", "team2/", "")]
    key = Delivery(destination, at=AT).write([versions])
    found = open_inventory(url_of(destination, key), "s3://source-bucket/team")
    assert [version.key for version in rows_of(found)] == ["x.json"]


def test_a_large_file_is_read_in_pieces(destination: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "PIECE_BYTES", 100)
    versions = versions_of([f"{number}.json" for number in range(50)])
    key = Delivery(destination, at=AT).write([versions])
    found = open_inventory(url_of(destination, key), OF)
    assert found.files[0].size > 500
    assert sum(1 for _ in rows_of(found)) == len(versions)


def test_an_inventory_of_another_bucket_is_refused(destination: Store) -> None:
    key = Delivery(destination, at=AT).write([])
    with pytest.raises(Invalid, match=r"of the bucket 'source-bucket', not of 'other-bucket'"):
        open_inventory(url_of(destination, key), "s3://other-bucket")


def test_a_row_of_another_bucket_is_refused(destination: Store) -> None:
    delivery = Delivery(destination, source="else-bucket", at=AT)
    key = delivery.write([versions_of(["x.json"])])
    shape = json.loads(_body(destination, key))
    delivery.put_manifest({**shape, "sourceBucket": "source-bucket"})
    found = open_inventory(url_of(destination, key), OF)
    with pytest.raises(Corrupt, match="a row of the bucket 'else-bucket'"):
        rows_of(found)


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        ({"fileFormat": "ORC"}, Invalid, "has the format 'ORC'"),
        ({"fileSchema": "Bucket, Key, LastModifiedDate"}, Invalid, "lacks the columns ETag"),
        ({"fileSchema": "Bucket, Key, VersionId, LastModifiedDate, ETag"}, Invalid, "lacks the columns IsLatest"),
        ({"creationTimestamp": "soon"}, Corrupt, "not milliseconds"),
        ({"files": [{"key": "x"}]}, Corrupt, "size is missing"),
        ({"files": [{"key": "x", "size": 1, "MD5checksum": "f11166069f1990abeb9c97ace9cdfab"}]}, Corrupt, "the MD5 of"),
        ({"sourceBucket": None}, Corrupt, "must be a string"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(
    destination: Store, changes: dict[str, Any], error: type[WormError], what: str
) -> None:
    delivery = Delivery(destination, at=AT)
    key = delivery.write([versions_of(["x.json"])])
    delivery.put_manifest({**json.loads(_body(destination, key)), **changes})
    with pytest.raises(error, match=what) as raised:
        open_inventory(url_of(destination, key), OF)
    assert raised.value.hint


def test_a_manifest_that_does_not_match_its_checksum_is_damaged(destination: Store) -> None:
    key = Delivery(destination, at=AT).write([])
    destination.put(key, _body(destination, key) + b"\n")
    with pytest.raises(Corrupt, match=r"does not match manifest\.checksum"):
        open_inventory(url_of(destination, key), OF)


def test_a_manifest_without_a_checksum_is_used(destination: Store) -> None:
    key = Delivery(destination, at=AT).write([versions_of(["x.json"])])
    destination.delete(key.replace(".json", ".checksum"))
    assert rows_of(open_inventory(url_of(destination, key), OF))


@pytest.mark.parametrize("form", ["CSV", "Parquet"])
def test_no_row_of_a_damaged_data_file_is_used(destination: Store, form: str) -> None:
    key = Delivery(destination, form=form, at=AT).write([versions_of(KEYS)])
    found = open_inventory(url_of(destination, key), OF)
    file = found.files[0]
    body = _body(destination, file.key)
    destination.put(file.key, body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(Corrupt, match="does not match the MD5"):
        next(found.versions(file))
    destination.delete(file.key)
    with pytest.raises(NotFound, match="is gone"):
        next(found.versions(file))


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"not gzip", "not a gzip-compressed CSV file"),
        (gzip.compress(b'"source-bucket","x"\n'), "a row of 2 instead of 10 columns"),
        (
            gzip.compress(b'"source-bucket","x","v","maybe","false","1","2026-02-24T01:00:00.000Z","e","S","f"\n'),
            "maybe",
        ),
        (
            gzip.compress(b'"source-bucket","x","v","true","false","one","2026-02-24T01:00:00.000Z","e","S","f"\n'),
            "one",
        ),
        (gzip.compress(b'"source-bucket","x","v","true","false","1","today","e","S","f"\n'), "'today' is not a time"),
    ],
    ids=["not-gzip", "two-columns", "flag", "size", "time"],
)
def test_a_data_file_of_another_form_is_damaged(destination: Store, body: bytes, what: str) -> None:
    _with_body(destination, "CSV", body)
    with pytest.raises(Corrupt, match=what):
        rows_of(open_inventory(_newest(destination), OF))


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_version_of_which_the_time_and_the_etag_are_unknown_may_be_newer_than_anything(nothing: object) -> None:
    """S3 Metadata may lack both of an object that was gone when it was looked at. One such row must not end the job."""
    row = {"Key": "x.json", "VersionId": "v", "IsLatest": True, "LastModifiedDate": nothing, "ETag": nothing}
    version = inventory.version_of(row, "", "a table")
    assert version is not None
    assert (version.etag, version.last_modified) == ("", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))


def test_a_parquet_file_of_another_form_is_damaged(destination: Store) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"key": ["x"]}), file)
    _with_body(destination, "Parquet", file.getvalue())
    with pytest.raises(Corrupt, match="lacks the columns bucket, e_tag"):
        rows_of(open_inventory(_newest(destination), OF))


@pytest.mark.parametrize("damage", [b"", b"PAR1", b"not Parquet", None], ids=["empty", "short", "text", "rows"])
def test_a_damaged_parquet_file_is_damaged_and_no_panic(destination: Store, damage: bytes | None) -> None:
    key = Delivery(destination, form="Parquet", at=AT).write([versions_of(["x.json"])])
    (file,) = open_inventory(url_of(destination, key), OF).files
    body = _body(destination, file.key)
    _with_body(destination, "Parquet", body[:30] + b"\xff" * 50 + body[80:] if damage is None else damage)
    with pytest.raises(Corrupt, match="is not a Parquet file"):
        rows_of(open_inventory(_newest(destination), OF))


def test_only_a_manifest_of_one_delivery_is_an_inventory(destination: Store) -> None:
    with pytest.raises(Invalid, match=r"does not end with manifest\.json"):
        open_inventory("s3://destination-bucket/inventories/data/1.csv.gz", OF)
    with pytest.raises(NotFound, match="there is no manifest"):
        open_inventory(f"{destination.url}/2026-02-24T01-00Z/manifest.json", OF)
    with pytest.raises(Invalid, match="cannot be read from"):
        open_inventory("memory://x/manifest.json", OF)


def _body(store: Store, key: str) -> bytes:
    found = store.get(key)
    assert found is not None
    return found.body


def _with_body(destination: Store, form: str, body: bytes) -> None:
    delivery = Delivery(destination, form=form, at=AT)
    key = delivery.write([versions_of(["x.json"])])
    shape = json.loads(_body(destination, key))
    (file,) = shape["files"]
    destination.put(file["key"], body)
    md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
    delivery.put_manifest({**shape, "files": [{**file, "size": len(body), "MD5checksum": md5}]})


def _newest(destination: Store) -> str:
    (key,) = (one.key for one in destination.list("inventories/") if one.key.endswith("/manifest.json"))
    return url_of(destination, key)
