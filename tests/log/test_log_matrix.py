"""The same commit log on several stores, by configuration only; and what each of them does with conditions.

What was seen of a store is kept in golden/conditional-requests.json. A difference is a change of that store, or of how
we ask: `WORM_GOLDEN=write` keeps the new answer, after somebody has looked at it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.emulators import CREDENTIALS
from tests.log import minio
from tests.log.witness import Witness
from worm.errors import Expired, Fenced
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.store.probe import probe_store
from worm.store.s3 import S3Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("log-matrix")]

GOLDEN = Path(__file__).parent / "golden" / "conditional-requests.json"
RACERS, ROUNDS = 16, 5
NOBODY = '"00000000000000000000000000000000"'


@dataclass(frozen=True)
class Site:
    """A store's server."""

    name: str
    endpoint_url: str
    client: S3Client

    def bucket(self, name: str) -> str:
        self.client.create_bucket(Bucket=f"{self.name}-{name}")
        return f"{self.name}-{name}"

    def store(self, bucket: str) -> S3Store:
        return S3Store(bucket, endpoint_url=self.endpoint_url)


@pytest.fixture(
    params=[
        "moto",
        pytest.param("localstack", marks=pytest.mark.localstack),
        pytest.param("minio", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ]
)
def site(request: pytest.FixtureRequest, aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> Site:
    name = str(request.param)
    credentials = minio.CREDENTIALS if name == "minio" else CREDENTIALS
    for variable, value in credentials.items():
        monkeypatch.setenv(variable, value)
    if name == "moto":
        endpoint = request.getfixturevalue("moto").endpoint_url
    else:
        endpoint = str(request.getfixturevalue(f"{name}_endpoint"))
    config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, max_pool_connections=RACERS)
    client = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)
    return Site(name, endpoint, client)


def test_open_commit_fence_collect_and_feed(site: Site) -> None:
    store, witness = site.store(site.bucket("log")), Witness()
    config = LogConfig(gc_min_age_seconds=2)
    old = LogWriter.open(store, "main", config=config)
    for number in range(1, 6):
        witness.commit(old, number, size=number)
    new = LogWriter.open(store, "main", config=config)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Fenced):
        witness.commit(old, 6)
    group = GroupCommit(new)
    waiting = {number: group.submit([{"op": "put", "n": number}], txn=f"t{number}") for number in range(10, 30)}
    for number, one in waiting.items():
        witness.asked[f"t{number}"] = [{"op": "put", "n": number}]
        witness.acked[f"t{number}"] = one.result(timeout=30)
    assert len(witness.check(site.store(store.bucket))) == 25
    assert LogCollector(store, "main").run(4).boundary == 0  # an hour has not passed
    time.sleep(4.1)  # the age and a second: times of S3 are whole
    done = LogCollector(store, "main", config=config).run(4)
    assert (done.boundary, done.deleted) == (4, 4)
    kept = [txn for txn in witness.acked if txn not in ("t1", "t2", "t3")]
    lsns = witness.check(site.store(store.bucket), kept=kept)
    reader = LogReader(store, "main")
    assert [change.txn for change in reader.feed(lsns["t28"])] == ["t29"]
    with pytest.raises(Expired):
        next(iter(reader.feed(0)))
    witness.commit(new, 40)
    assert witness.check(site.store(store.bucket), kept=[*kept, "t40"]).keys() == {*kept, "t40"}


def test_a_commit_is_one_request_and_opening_a_few_whatever_the_length(site: Site) -> None:
    store = site.store(site.bucket("requests"))
    writer = LogWriter.open(store, "main")
    for _ in range(20):
        with store.requests.measure() as spent:
            writer.append_wal([{"op": "put"}])
        assert spent == {"PUT": 1, "total": 1}
    with store.requests.measure() as spent:
        LogWriter.open(store, "main")
    assert spent["total"] <= 20


def test_the_store_keeps_the_promises_that_the_log_rests_on(site: Site) -> None:
    assert probe_store(site.store(site.bucket("probe"))).failures == ()


def test_conditional_requests_behave_as_they_were_seen(site: Site) -> None:
    seen = Asked(site.client, site.bucket("matrix")).everything()
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("WORM_GOLDEN") == "write":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps({**golden, site.name: seen}, indent=2, sort_keys=True) + "\n")
        return
    assert seen == golden[site.name]


class Asked:
    """Raw requests of boto3, and the status of each answer."""

    def __init__(self, client: S3Client, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._count = 0

    def everything(self) -> dict[str, object]:
        client, bucket = self._client, self._bucket
        held, absent = self._held(), self._new()
        etag = client.head_object(Bucket=bucket, Key=held)["ETag"]
        seen: dict[str, object] = {
            "PUT If-None-Match:*, absent": self._put(self._new(), none_match="*"),
            "PUT If-None-Match:*, there": self._put(held, none_match="*"),
            "PUT If-None-Match:*, after DELETE": self._after_delete(),
            "PUT If-Match, same": self._put(self._held(), match=etag),
            "PUT If-Match, other": self._put(held, match=NOBODY),
            "PUT If-Match, absent": self._put(absent, match=etag),
            "PUT If-Match, after the same bytes came back": self._after_return(),
            "GET If-None-Match, same": self._status(
                lambda: client.get_object(Bucket=bucket, Key=held, IfNoneMatch=etag)
            ),
            "GET If-Match, other": self._status(lambda: client.get_object(Bucket=bucket, Key=held, IfMatch=NOBODY)),
            "GET, absent": self._status(lambda: client.get_object(Bucket=bucket, Key=absent)),
            "DELETE If-Match, other": self._status(
                lambda: client.delete_object(Bucket=bucket, Key=held, IfMatch=NOBODY)
            ),
            "Complete If-None-Match:*, there": self._complete(self._held()),
            "Copy If-None-Match:*, there": self._copy(self._held()),
            f"{RACERS} racing PUT If-None-Match:*": self._race(lambda: None),
            f"{RACERS} racing PUT If-Match": self._race(lambda: etag),
        }
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        seen["PUT If-None-Match:*, behind a delete marker"] = self._after_delete()
        return seen

    def _new(self) -> str:
        self._count += 1
        return f"key-{self._count}"

    def _held(self) -> str:
        key = self._new()
        self._client.put_object(Bucket=self._bucket, Key=key, Body=b"body")
        return key

    def _put(self, key: str, *, match: str = "", none_match: str = "", body: bytes = b"other") -> int:
        conditions = {"IfMatch": match} if match else {"IfNoneMatch": none_match}
        return self._status(
            lambda: self._client.put_object(Bucket=self._bucket, Key=key, Body=body, **conditions)  # type: ignore[arg-type]  # the names are chosen
        )

    def _after_delete(self) -> int:
        key = self._held()
        self._client.delete_object(Bucket=self._bucket, Key=key)
        return self._put(key, none_match="*")

    def _after_return(self) -> int:
        """ABA: an old etag fits again when equal bytes are stored again."""
        key = self._held()
        old = self._client.head_object(Bucket=self._bucket, Key=key)["ETag"]
        for body in (b"between", b"body"):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=body)
        return self._put(key, match=old)

    def _complete(self, key: str) -> int:
        upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=key)["UploadId"]
        part = self._client.upload_part(Bucket=self._bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"part")
        parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
        return self._status(
            lambda: self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=key,
                UploadId=upload,
                MultipartUpload=parts,  # type: ignore[arg-type]  # a TypedDict of the stubs
                IfNoneMatch="*",
            )
        )

    def _copy(self, key: str) -> int:
        source = self._held()

        def copy() -> object:
            return self._client.copy_object(
                Bucket=self._bucket, Key=key, CopySource=f"{self._bucket}/{source}", IfNoneMatch="*"
            )

        return self._status(copy)

    def _race(self, match: Callable[[], str | None]) -> dict[str, object]:
        """How many won in each round, and what the others were told."""
        winners: list[int] = []
        told: set[int] = set()
        for _ in range(ROUNDS):
            etag, barrier = match(), threading.Barrier(RACERS)
            key = self._new() if etag is None else self._held()

            def run(number: int, key: str = key, etag: str | None = etag, barrier: threading.Barrier = barrier) -> int:
                barrier.wait(timeout=30)
                body = f"racer {number}".encode()
                return self._put(key, match=etag or "", none_match="" if etag else "*", body=body)

            with ThreadPoolExecutor(RACERS) as pool:
                found = list(pool.map(run, range(RACERS)))
            winners.append(found.count(200))
            told |= set(found) - {200}
        return {"winners": sorted(set(winners)), "losers are told": sorted(told)}

    def _status(self, call: Callable[[], object]) -> int:
        try:
            answer = call()
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert isinstance(answer, dict)
        status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
        return status
