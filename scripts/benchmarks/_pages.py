"""The contestants of the benchmark `pages`: our page store and SlateDB, with the same pages under the same names."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from slatedb import uniffi as slatedb

from worm.errors import NotFound
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageConfig
from worm.pages.reader import PageReader
from worm.store.s3 import S3Store

BUCKET = "pages"
PAGE_BYTES = 400
BATCH = 1000
NEVER = 24 * 3600.0
SETTLE_SECONDS = 0.2
READ_AHEAD = 4 * 1024 * 1024
"""The read-ahead of SlateDB's scans: as much as ours reads at once."""


def page_name(number: int) -> str:
    return f"page/{number:08d}"


def some_pages(rng: random.Random, numbers: Sequence[int]) -> dict[str, bytes]:
    """Text that can be compressed by half, as JSON can. (Our layers are, our log and SlateDB's files are not.)"""
    return {page_name(number): rng.randbytes(PAGE_BYTES // 2).hex().encode() for number in numbers}


class Wire:
    """A proxy that counts bytes, for contestants that do not count them themselves. Not for timing."""

    def __init__(self, endpoint_url: str) -> None:
        host, port = endpoint_url.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.received = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if is_answer:
                    self.received += len(data)  # of one contestant with one request at a time
                target.sendall(data)
        except OSError:
            pass  # the other side disconnected
        finally:
            target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()


class Keeper(ABC):
    """A database of pages: written, then read."""

    name: str

    @abstractmethod
    def write(self, pages: Mapping[str, bytes]) -> None:
        """Write pages, durably and into their own layer."""

    @abstractmethod
    def open(self, endpoint_url: str) -> None:
        """Open for reading: afterward, only the root or manifest is known."""

    @abstractmethod
    def get(self, page: str) -> bytes | None: ...

    @abstractmethod
    def scan(self) -> int:
        """The number of all pages, each of them read."""

    @abstractmethod
    def close(self) -> None: ...


class OurPages(Keeper):
    """`PageDb` and `PageReader`."""

    def __init__(self, endpoint_url: str, name: str, config: PageConfig | None = None) -> None:
        self.name = f"db/{name}"
        self.db_id = name
        self.store = S3Store(BUCKET, endpoint_url=endpoint_url)
        create_database(self.store, name, config or PageConfig(flush_interval_seconds=NEVER))
        self._writer = PageDb.open(self.store, name)
        self.reader: PageReader = self._writer

    def write(self, pages: Mapping[str, bytes]) -> None:
        listed = list(pages.items())
        for at in range(0, len(listed), BATCH):
            self._writer.write(dict(listed[at : at + BATCH]))
        self._writer.flush()

    def compact(self, *, force: bool = False) -> None:
        Compactor(self.store, self.db_id).run(force=force)

    def collect(self) -> None:
        PageCollector(self.store, self.db_id).run()

    def open(self, endpoint_url: str) -> None:
        self.store = S3Store(BUCKET, endpoint_url=endpoint_url)
        self.reader = PageReader.open(self.store, self.db_id)

    def forget(self) -> None:
        """Forget everything except the root."""
        self.reader.cache.clear()

    def get(self, page: str) -> bytes | None:
        return self.reader.get_page(page)

    def scan(self) -> int:
        return sum(1 for _ in self.reader.scan())

    def close(self) -> None:
        self._writer.close()


class SlatePages(Keeper):
    """SlateDB. `settings` are JSON by name; a compactor of null leaves every flush as its own file. The writer and the
    reader both work in the background, so only one of them is open."""

    def __init__(self, endpoint_url: str, name: str, settings: Mapping[str, str]) -> None:
        self.name = f"slatedb-{name}"
        self._settings = settings
        self._endpoint_url = endpoint_url
        self._runner = asyncio.Runner()
        self._reader: slatedb.DbReader | None = None
        self._writer: slatedb.Db | None = None

    def _objects(self, endpoint_url: str) -> slatedb.ObjectStore:
        os.environ.update({"AWS_ENDPOINT_URL": endpoint_url, "AWS_ALLOW_HTTP": "true"})
        return slatedb.ObjectStore.resolve(f"s3://{BUCKET}")

    async def _opened(self) -> slatedb.Db:
        settings = slatedb.Settings.default()
        for name, value in self._settings.items():
            settings.set(name, value)
        builder = slatedb.DbBuilder(self.name, self._objects(self._endpoint_url))
        builder.with_settings(settings)
        return await builder.build()

    def write(self, pages: Mapping[str, bytes]) -> None:
        self._end_reading()
        if self._writer is None:
            self._writer = self._runner.run(self._opened())
        self._runner.run(self._written(self._writer, list(pages.items())))

    async def _written(self, writer: slatedb.Db, listed: Sequence[tuple[str, bytes]]) -> None:
        for at in range(0, len(listed), BATCH):
            batch = slatedb.WriteBatch()
            for page, data in listed[at : at + BATCH]:
                batch.put(page.encode(), data)
            await (await writer.write(batch)).await_durable()
        await writer.flush_with_options(slatedb.FlushOptions(flush_type=slatedb.FlushType.MEM_TABLE))

    def settle(self, seconds: float) -> None:
        """Let its compactor work."""
        self._runner.run(asyncio.sleep(seconds))

    def open(self, endpoint_url: str) -> None:
        self._end_reading()
        self._end_writing()

        async def opened() -> slatedb.DbReader:
            return await slatedb.DbReaderBuilder(self.name, self._objects(endpoint_url)).build()

        self._reader = self._runner.run(opened())
        self.settle(SETTLE_SECONDS)

    @property
    def _reading(self) -> slatedb.DbReader:
        if self._reader is None:
            raise NotFound("SlateDB is not open for reading")
        return self._reader

    def get(self, page: str) -> bytes | None:
        found: bytes | None = self._runner.run(self._reading.get(page.encode()))
        return found

    def get_many(self, pages: Sequence[str]) -> None:
        """One by one inside one event loop: the cost of its own call."""

        async def got() -> None:
            for page in pages:
                await self._reading.get(page.encode())

        self._runner.run(got())

    def scan(self) -> int:
        return self._runner.run(self._scanned())

    async def _scanned(self) -> int:
        options = slatedb.ScanOptions(
            durability_filter=slatedb.DurabilityLevel.MEMORY,
            dirty=False,
            read_ahead_bytes=READ_AHEAD,
            cache_blocks=True,
            max_fetch_tasks=4,
        )
        everything = slatedb.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=True)
        found = await self._reading.scan_with_options(everything, options)
        count = 0
        while batch := await found.next_batch(BATCH):
            count += len(batch)
        return count

    def _end_reading(self) -> None:
        if self._reader is not None:
            self._runner.run(self._reader.shutdown())
            self._reader = None

    def _end_writing(self) -> None:
        if self._writer is not None:
            self._runner.run(self._writer.shutdown())
            self._writer = None

    def close(self) -> None:
        self._end_reading()
        self._end_writing()
        self._runner.close()
