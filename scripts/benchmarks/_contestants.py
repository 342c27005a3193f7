"""The other contestants of the query benchmark: raw floors, scans of documents, deltalake and DuckDB. None of our code.

The query is `status = active`, sorted by name, the first 20; every answer is its ids in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import deltalake
import obstore
import orjson
import pyarrow as pa
import pyarrow.dataset as ds
from obstore.store import S3Store as RawBucket

from worm.dev.aws import Aws

LIMIT = 20
THREADS = 32
Fetch = Callable[[str], bytes]


def first_active(rows: Iterable[tuple[str, Mapping[str, str]]]) -> list[str]:
    """The query in plain Python over id and row."""
    found = [(row["name"], entity_id) for entity_id, row in rows if row["status"] == "active"]
    return [entity_id for _, entity_id in sorted(found)[:LIMIT]]


def manifest_floor(fetch: Fetch, key: str) -> list[str]:
    """One GET, one parse, one filter: the lower bound of reading a JSON manifest."""
    return first_active(orjson.loads(fetch(key))["entities"].items())


def index_floor(fetch: Fetch, key: str, value: str, document_key: Callable[[str], str]) -> list[str]:
    """One GET of the index, and one concurrent GET for each id under the value."""
    ids: list[str] = orjson.loads(fetch(key))["entries"][value]
    return [document["id"] for document in concurrently(fetch, [document_key(one) for one in ids])]


def targeted_floor(fetch: Fetch, key: str, cohort: str, document_key: Callable[[str], str]) -> list[str]:
    """One GET of the manifest, and one concurrent GET for each row of the cohort."""
    rows = orjson.loads(fetch(key))["entities"].items()
    keys = [document_key(entity_id) for entity_id, row in rows if row["cohort"] == cohort]
    return [document["id"] for document in concurrently(fetch, keys)]


def concurrently(fetch: Fetch, keys: Sequence[str]) -> list[dict[str, str]]:
    with ThreadPoolExecutor(THREADS) as pool:
        return [orjson.loads(body) for body in pool.map(fetch, keys)]


class RawClients:
    """obstore and boto3 as anybody would call them."""

    def __init__(self, aws: Aws, bucket: str) -> None:
        self.bucket = bucket
        self._boto = aws.s3()
        self._objects = RawBucket(
            bucket,
            endpoint=aws.endpoint_url,
            region=aws.region,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": timedelta(seconds=60)},
        )

    def by_obstore(self, key: str) -> bytes:
        return bytes(obstore.get(self._objects, key).bytes())

    def by_boto3(self, key: str) -> bytes:
        return self._boto.get_object(Bucket=self.bucket, Key=key)["Body"].read()

    def put_many(self, bodies: Mapping[str, bytes]) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda item: obstore.put(self._objects, item[0], item[1]), bodies.items()))

    def keys(self, prefix: str, suffix: str) -> Iterator[str]:
        for page in self._boto.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix):
            yield from (one["Key"] for one in page.get("Contents", []) if one["Key"].endswith(suffix))

    def n_plus_1(self, prefix: str) -> list[str]:
        """A listing and one GET after the other, with boto3."""
        documents = [orjson.loads(self.by_boto3(key)) for key in self.keys(prefix, "/data.json")]
        return first_active((one["id"], one) for one in documents)

    def n_plus_1_concurrent(self, prefix: str) -> list[str]:
        """A listing and 32 GETs at a time, with obstore."""
        documents = concurrently(self.by_obstore, list(self.keys(prefix, "/data.json")))
        return first_active((one["id"], one) for one in documents)


class Delta:
    """A Delta table in the same emulator: one Parquet file and one commit."""

    def __init__(self, aws: Aws, url: str, rows: pa.Table) -> None:
        self._url = url
        plain = {"AWS_ENDPOINT_URL": aws.endpoint_url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": aws.region}
        self._options = {**plain, **aws.credentials}
        deltalake.write_deltalake(url, rows, storage_options=self._options)
        self._open = self._opened()

    def _opened(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self._url, storage_options=self._options)

    def opening(self) -> list[str]:
        return _first_of(self._opened())

    def on_open_handle(self) -> list[str]:
        """The table as it was when it was opened: it does not check whether the table changed."""
        return _first_of(self._open)

    def on_refreshed_handle(self) -> list[str]:
        """Like our repeated query: it first checks whether the table changed."""
        self._open.update_incremental()
        return _first_of(self._open)


def _first_of(table: deltalake.DeltaTable) -> list[str]:
    found = table.to_pyarrow_dataset().to_table(filter=ds.field("status") == "active")
    return [row["id"] for row in found.sort_by("name").slice(0, LIMIT).to_pylist()]


class LocalJson:
    """DuckDB over copies of the documents on the local disk: a lower bound, because it makes no requests."""

    def __init__(self, directory: Path, documents: Iterable[tuple[str, bytes]]) -> None:
        import duckdb  # here, because it prints a list of leaks at the end of every process that imported it

        directory.mkdir()
        for name, body in documents:
            (directory / f"{name}.json").write_bytes(body)
        files = f"{directory}/*.json"
        self._query = f"SELECT * FROM read_json('{files}') WHERE status = 'active' ORDER BY name LIMIT {LIMIT}"
        self._connection = duckdb.connect()

    def query(self) -> list[str]:
        found: pa.Table = self._connection.sql(self._query).to_arrow_table()
        return [row["id"] for row in found.to_pylist()]
