"""The contestants of the benchmark `commit`: our writer, SlateDB, and raw conditional PUTs of obstore and boto3.

A contestant with background work is open only in its turn, so that it slows nobody down. One transaction is one record
of 300 bytes; it counts once it is durable.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

import boto3
import obstore
from botocore.config import Config
from obstore.store import S3Store as RawBucket
from slatedb import uniffi as slatedb

from worm.dev.aws import Aws
from worm.formats.strict_json import JsonObject
from worm.log.config import LogConfig
from worm.log.group import GroupCommit
from worm.log.segment import LogTransaction, Segment
from worm.log.writer import LogWriter
from worm.store.base import Attempt, Condition
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "commit"
VALUE = "x" * 300
RECORD: JsonObject = {"op": "insert", "ns": "bench", "doc": {"_id": "a", "value": VALUE}}
NAMES = count(1)
Times = list[float]


def new_name(kind: str) -> str:
    return f"{kind}-{next(NAMES)}"


def segment_bytes() -> bytes:
    """The bytes of one of our commits; the floors send as many."""
    header = Segment(1, 1, "0" * 26, 1, 1_767_225_600_000)
    return Segment.of(header, [LogTransaction("0" * 26, [RECORD])]).encode()


class Contestant(ABC):
    """It is opened, measured and closed. `many` and `singles` return the milliseconds of each transaction."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws

    @abstractmethod
    def open(self) -> None: ...

    def singles(self, transactions: int) -> Times:
        """One after the other."""
        return self.many(1, transactions)

    @abstractmethod
    def many(self, concurrency: int, each: int) -> Times:
        """This many at once, each with several transactions in a row."""

    @abstractmethod
    def close(self) -> None: ...


class Quiet(Contestant):
    """Idle outside its turn, so it may stay open during the turns of others."""

    @abstractmethod
    def one(self) -> None:
        """One transaction, in this thread."""

    def singles(self, transactions: int) -> Times:
        return [milliseconds(self.one) for _ in range(transactions)]


class Ours(Quiet):
    """`LogWriter` for singles, `GroupCommit` from threads for many."""

    def __init__(self, aws: Aws, config: LogConfig | None = None) -> None:
        super().__init__(aws)
        self._config = config

    def open(self) -> None:
        self.store = S3Store(BUCKET, endpoint_url=self.aws.endpoint_url)
        self.writer = LogWriter.open(self.store, new_name("ours"), config=self._config)
        self.group = GroupCommit(self.writer)

    def one(self) -> None:
        self.writer.append_wal([RECORD])

    def many(self, concurrency: int, each: int) -> Times:
        return _in_threads(lambda: self.group.append_wal([RECORD]), concurrency, each)

    def close(self) -> None:
        self.group.close()


class SlowMemory(MemoryStore):
    """A store in memory whose conditional PUTs take about as long as on S3."""

    seconds = 0.0
    puts = 0

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        time.sleep(self.seconds)
        self.puts += 1
        return super().attempt_put(key, body, condition, metadata)


class Closed:
    """Committers that wait for their ack and commit again, on a store whose PUTs take `put_seconds`."""

    def __init__(self, put_seconds: float, config: LogConfig | None = None, *, is_submitted: bool = False) -> None:
        self.store = SlowMemory()
        self._is_submitted = is_submitted
        self._group = GroupCommit(LogWriter.open(self.store, "closed", config=config))
        self.store.seconds, self.store.puts = put_seconds, 0

    def many(self, concurrency: int, each: int) -> Times:
        group = self._group
        if self._is_submitted:
            return asyncio.run(_in_tasks(lambda: asyncio.wrap_future(group.submit([RECORD])), concurrency, each))
        return _in_threads(lambda: group.append_wal([RECORD]), concurrency, each)


class OursSubmitting(Ours):
    """`GroupCommit.submit` from tasks of asyncio."""

    def many(self, concurrency: int, each: int) -> Times:
        return asyncio.run(_in_tasks(lambda: asyncio.wrap_future(self.group.submit([RECORD])), concurrency, each))


class RawObstore(Quiet):
    """One conditional PUT per transaction."""

    def open(self) -> None:
        self._prefix = new_name("obstore")
        self._numbers = count(1)
        self._body = segment_bytes()
        self._bucket = RawBucket(
            BUCKET,
            endpoint=self.aws.endpoint_url,
            region=self.aws.region,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": timedelta(seconds=60)},
        )
        self.one()  # connects

    def _key(self) -> str:
        return f"{self._prefix}/{next(self._numbers):020d}"

    def one(self) -> None:
        obstore.put(self._bucket, self._key(), self._body, mode="create")

    def many(self, concurrency: int, each: int) -> Times:
        async def put() -> object:
            return await obstore.put_async(self._bucket, self._key(), self._body, mode="create")

        return asyncio.run(_in_tasks(put, concurrency, each))

    def close(self) -> None:
        """Nothing is held."""


class RawBoto3(Quiet):
    """One conditional PUT per transaction."""

    def open(self) -> None:
        self._prefix = new_name("boto3")
        self._numbers = count(1)
        self._body = segment_bytes()
        config = Config(s3={"addressing_style": "path"}, max_pool_connections=64)
        self._client: S3Client = boto3.client("s3", endpoint_url=self.aws.endpoint_url, config=config)
        self.one()

    def one(self) -> None:
        key = f"{self._prefix}/{next(self._numbers):020d}"
        self._client.put_object(Bucket=BUCKET, Key=key, Body=self._body, IfNoneMatch="*")

    def many(self, concurrency: int, each: int) -> Times:
        return _in_threads(self.one, concurrency, each)

    def close(self) -> None:
        self._client.close()


class SlateDb(Contestant):
    """`put` and waiting until it is durable; `is_transaction`: begin, put, commit, and waiting."""

    def __init__(self, aws: Aws, flush_interval: str | None = None, *, is_transaction: bool = False) -> None:
        super().__init__(aws)
        self._flush_interval = flush_interval
        self._is_transaction = is_transaction

    def open(self) -> None:
        os.environ.update({"AWS_ENDPOINT_URL": self.aws.endpoint_url, "AWS_ALLOW_HTTP": "true"})
        self._numbers = count(1)
        self._runner = asyncio.Runner()
        self._database = self._runner.run(self._build())

    async def _build(self) -> slatedb.Db:
        builder = slatedb.DbBuilder(new_name("slatedb"), slatedb.ObjectStore.resolve(f"s3://{BUCKET}"))
        settings = slatedb.Settings.default()
        if self._flush_interval is not None:
            settings.set("flush_interval", f'"{self._flush_interval}"')
        builder.with_settings(settings)
        return await builder.build()

    async def _commit(self) -> None:
        key, value = b"key-%020d" % next(self._numbers), VALUE.encode()
        if not self._is_transaction:
            written = await self._database.put(key, value)
        else:
            transaction = await self._database.begin(slatedb.IsolationLevel.SNAPSHOT)
            await transaction.put(key, value)
            committed = await transaction.commit()
            assert committed is not None
            written = committed
        await written.await_durable()

    def many(self, concurrency: int, each: int) -> Times:
        return self._runner.run(_in_tasks(self._commit, concurrency, each))

    def close(self) -> None:
        self._runner.run(self._database.shutdown())
        self._runner.close()


def milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _in_threads(call: Callable[[], object], concurrency: int, each: int) -> Times:
    """All of them start together."""
    barrier = threading.Barrier(concurrency)

    def run(_: int) -> Times:
        barrier.wait()
        return [milliseconds(call) for _ in range(each)]

    with ThreadPoolExecutor(concurrency) as pool:
        return [taken for times in pool.map(run, range(concurrency)) for taken in times]


async def _in_tasks(call: Callable[[], Awaitable[object]], concurrency: int, each: int) -> Times:
    async def run() -> Times:
        times: Times = []
        for _ in range(each):
            start = time.perf_counter()
            await call()
            times.append((time.perf_counter() - start) * 1000)
        return times

    return [taken for times in await asyncio.gather(*(run() for _ in range(concurrency))) for taken in times]
