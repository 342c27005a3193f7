"""A database behind a failing proxy, for the tests of ring P."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta

from tests.emulators import new_bucket
from tests.fault_proxy import Fault, FaultProxy
from tests.log.witness import Witness
from worm.clock import SystemClock
from worm.dev.aws import Aws
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.writer import LogWriter
from worm.store.s3 import S3Store

KEYS = DbKeys("main")
LOG, ROOT, LEASE = "/log/", "manifest.json", "lease.json"
HURRY = 25
REQUESTS_MAX = 100
"""Of a write that ends as unknown: 12 tries, and 6 reads at most for one of them at a time."""


class HurriedClock(SystemClock):
    """Waits are that much shorter than they seem; `waits` keeps them."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._skipped = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self._skipped)

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        time.sleep(seconds / HURRY)
        self._skipped += seconds * (1 - 1 / HURRY)


class Wire:
    """A database behind the proxy, and the same without it."""

    def __init__(self, moto: Aws, proxy: FaultProxy) -> None:
        self.moto = moto
        self.proxy = proxy
        self.bucket = new_bucket(proxy.upstream)
        self.clock = HurriedClock()
        self.direct = S3Store(self.bucket, endpoint_url=proxy.upstream)
        self.witness = Witness()

    def store(self, timeout_seconds: float = 20.0) -> S3Store:
        return S3Store(self.bucket, endpoint_url=self.proxy.url, clock=self.clock, timeout_seconds=timeout_seconds)

    def writer(self, config: LogConfig | None = None, timeout_seconds: float = 20.0) -> LogWriter:
        return LogWriter.open(self.store(timeout_seconds), "main", config=config, clock=self.clock)

    def collector(self) -> LogCollector:
        return LogCollector(self.store(), "main", clock=self.clock)

    def age(self) -> None:
        """All that is in the log is a day older."""
        for listed in list(self.direct.list(KEYS.log)):
            self.moto.date_back(self.bucket, listed.key, days=1)

    def commit(self, writer: LogWriter, number: int) -> int:
        return self.witness.commit(writer, number, size=1 + number % 3)

    def check(self) -> dict[str, int]:
        """I1, I2 by the witness; I7: no slot was written twice, whoever was told what."""
        stored = Counter(
            one.key for one in self.proxy.seen if LOG in one.key and one.method == "PUT" and one.applied == 200
        )
        deleted = Counter(one.key for one in self.proxy.seen if one.method == "DELETE" and one.applied == 204)
        assert [key for key, count in stored.items() if count > 1 + deleted[key]] == []
        assert all(one.is_conditional for one in self.proxy.seen if LOG in one.key and one.method == "PUT")
        return self.witness.check(self.direct)


def patience(fault: Fault) -> float:
    """How long a client waits for an answer."""
    return 0.8 if fault.how == "hang" else 20.0
