"""The cost of a deployment: the requests, events, messages and seconds of each activity, times the prices.

The counts are constants here. `tests/workers/test_request_budget.py` measures those of changes, batches, sweeps and
purges; those of seconds come from the model of scale (docs/benchmarks.md), at 100 changes per second. Prices are in
`prices.json`, one table with its region and date; the caller may pass a different file. Free tiers, taxes, discounts,
data that leaves the region and the requests of clients are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import ClassVar

from worm.errors import Invalid, show
from worm.formats import JsonValue, loads
from worm.values import dataclass

Requests = Mapping[str, float]
"""S3 requests by the kinds of `RequestCounter`."""

BATCH_MAX = 100
WRITES = ("PUT", "LIST", "VERSIONS")
"""Kinds at the price of a PUT. A copy counts as a PUT; a DELETE is free."""

# Counts of requests.
CHANGES: Mapping[str, Requests] = {
    "create": {"VERSIONS": 1, "GET": 1, "PUT": 1},
    "update": {"VERSIONS": 1, "GET": 2, "PUT": 1},
    "sdk-update": {"GET": 2, "PUT": 1},
    "delete": {"VERSIONS": 1, "GET": 2, "PUT": 1},
    "rescued-delete": {"VERSIONS": 2, "GET": 4, "PUT": 3},
}
"""By capture, per change."""
BATCH: Requests = {"GET": 8, "PUT": 5}
"""By capture and tables together, per batch of changes to one collection with one index."""
SWEEP: Requests = {"GET": 5, "PUT": 1, "VERSIONS": 2}
"""By a pass of the sweep that finds nothing, per model; each further 1,000 versions take one more listing."""
BETWEEN_SWEEPS: Requests = {"GET": 5}
"""By a run of the sweep between two passes, per model."""
PURGE: Requests = {"GET": 1, "LIST": 5}
"""By a purge that finds nothing, per model with soft delete."""
COMPACT: Requests = {"LIST": 1}
"""By a compaction without a database."""
REBUILD: Requests = {"GET": 2, "LIST": 0.003}
"""By a Spark rebuild, per document with history."""

# Events, messages, seconds.
SQS_REQUESTS_OF_A_MESSAGE = 1.2
"""Sent one at a time, received and deleted ten at a time."""
POLLS_A_MONTH = 5 * 30 * 86_400 / 20
"""Five Lambda pollers per queue, each waiting for 20 seconds."""
QUEUES = 3
BATCH_SECONDS = {"capture": 0.8, "tables": 0.2}
MEMORY_GB = {
    "capture": 1.0,
    "tables": 1769 / 1024,
    "sweep": 3008 / 1024,
    "purge": 1.0,
    "compact": 3008 / 1024,
    "api": 1769 / 1024,
}
RUNS_A_MONTH = {"sweep": 2_880, "purge": 720, "compact": 4_320}
PASSES_A_MONTH = 30
"""Passes of the sweep over all models: one a day (SweepEvery in template.yaml)."""
RUN_SECONDS = {"sweep": 1.0, "purge": 0.5, "compact": 0.5}
"""A run that finds nothing to do."""
CALL_SECONDS = 0.01
"""By a call to the HTTP API, in a warm function."""
METRICS = {"capture": 11, "tables": 12, "sweep": 9, "purge": 7, "compact": 11, "api": 5}
"""Metrics that a function sends while it runs; each is billed by the hours in which it was sent."""
ALARM_METRICS = 31
"""Metrics that the alarms of functions/observability.yaml use: one alarm may use those of every function."""

# Spark.
REBUILD_EXECUTORS = ((100_000, 1), (1_000_000, 4), (10_000_000, 8), (math.inf, 15))

MILLION = 1_000_000
PRICE_NAMES = (
    "s3WritePer1000",
    "s3ReadPer1000",
    "s3GbMonth",
    "eventsPerMillion",
    "sqsPerMillion",
    "lambdaPerMillion",
    "lambdaGbSecond",
    "httpApiPerMillion",
    "metricMonth",
    "alarmMetricMonth",
    "dashboardMonth",
    "sparkVcpuHour",
    "sparkGbHour",
)


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars, by the names of `PRICE_NAMES`."""

    region: str
    date: str
    source: str
    usd: Mapping[str, float]

    @classmethod
    def read(cls, path: Path | None = None) -> Prices:
        """Our prices, or those of a file in the same format."""
        if path is None:
            return cls.of(loads(resources.files("worm.upkeep").joinpath("prices.json").read_bytes()), "prices.json")
        try:
            return cls.of(loads(path.read_bytes()), str(path))
        except Invalid as mistake:
            if str(path) not in mistake.message:
                mistake.message = f"{path}: {mistake.message}"
            raise

    @classmethod
    def of(cls, value: JsonValue, name: str) -> Prices:
        usd = value.get("usd") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(usd, dict):
            raise Invalid(f"{name} has no prices", hint="docs/costs.md shows the format of the file")
        wrong = sorted({*PRICE_NAMES} ^ usd.keys())
        if wrong:
            raise Invalid(f"{name} has missing or unknown prices: {', '.join(wrong)}", hint="see docs/costs.md")
        prices: dict[str, float] = {}
        for price, one in usd.items():
            if isinstance(one, bool) or not isinstance(one, int | float) or one < 0:
                raise Invalid(f"{name}: {price} must be a number of at least 0, not {show(one)}")
            prices[price] = float(one)
        region, date, source = (str(value.get(key) or "unknown") for key in ("region", "date", "source"))
        return cls(region, date, source, prices)

    def s3(self, requests: Requests) -> float:
        writes = sum(requests.get(kind, 0) for kind in WRITES)
        reads = sum(requests.get(kind, 0) for kind in ("GET", "HEAD"))
        return (writes * self.usd["s3WritePer1000"] + reads * self.usd["s3ReadPer1000"]) / 1000

    def functions(self, invocations: float, gb_seconds: float) -> float:
        return invocations * self.usd["lambdaPerMillion"] / 1e6 + gb_seconds * self.usd["lambdaGbSecond"]

    def queue(self, requests: float) -> float:
        return requests * self.usd["sqsPerMillion"] / 1e6

    def events(self, number: float) -> float:
        return number * self.usd["eventsPerMillion"] / 1e6


@dataclass(frozen=True, slots=True)
class SparkCluster:
    """The processors and the memory of a Spark job: a driver, and some executors."""

    executors: int
    executor_vcpu: ClassVar[int] = 4
    executor_gb: ClassVar[int] = 12
    driver_vcpu: ClassVar[int] = 2
    driver_gb: ClassVar[int] = 5
    documents_a_second: ClassVar[int] = 500
    """Per processor."""
    start_minutes: ClassVar[int] = 2

    @property
    def processors(self) -> int:
        """Of the executors."""
        return self.executors * self.executor_vcpu

    def usd(self, hours: float, prices: Prices) -> float:
        """The price of a job that takes so long."""
        vcpu, memory_gb = self.processors + self.driver_vcpu, self.executors * self.executor_gb + self.driver_gb
        return hours * (vcpu * prices.usd["sparkVcpuHour"] + memory_gb * prices.usd["sparkGbHour"])


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a month. `batch`: changes to one collection that capture gets together. `by_eventbridge` False: the
    bucket notifies capture's queue directly. `by_http_api` False: calls come through a Function URL."""

    changes: float = 0
    change: str = "create"
    batch: float = BATCH_MAX
    queries: float = 0
    requests_per_query: float = 1
    documents: float = 0
    document_bytes: float = 1_000
    models: float = 1
    sweeps: float = PASSES_A_MONTH
    rebuilds: float = 0
    by_eventbridge: bool = True
    calls: float = 0
    requests_per_call: float = 1
    by_http_api: bool = False


@dataclass(frozen=True, slots=True)
class BillLine:
    """One line of the bill: US dollars per month."""

    group: str
    what: str
    usd: float

    def shape(self) -> dict[str, JsonValue]:
        return {"group": self.group, "what": self.what, "usd": round(self.usd, 6)}


def bill(usage: Usage, prices: Prices) -> list[BillLine]:
    """The cost of a month, by cause."""
    return [
        *idle(usage, prices),
        *(of_changes(usage, prices) if usage.changes else ()),
        BillLine("queries", "S3 requests", usage.queries * prices.s3({"GET": usage.requests_per_query})),
        *(of_calls(usage, prices) if usage.calls else ()),
        BillLine("sweep", "listing versions of documents", usage.sweeps * sweep_pass(usage.documents, prices)),
        BillLine("spark", "rebuilds of all tables", usage.rebuilds * rebuild(usage.documents, prices)),
        BillLine("storage", "documents, newest entries and rows", _stored_gb(usage) * prices.usd["s3GbMonth"]),
    ]


def units(usage: Usage, prices: Prices) -> dict[str, float]:
    """The cost of one operation, or of a million."""
    found = {
        "a million changes": MILLION * sum(per_change(usage, prices).values()),
        "a million queries": MILLION * prices.s3({"GET": usage.requests_per_query}),
        "a million calls": MILLION * sum(per_call(usage, prices).values()),
    }
    return found | ({"a rebuild by Spark": rebuild(usage.documents, prices)} if usage.documents else {})


def bill_shape(usage: Usage, prices: Prices) -> dict[str, JsonValue]:
    """For programs."""
    lines = bill(usage, prices)
    return {
        "region": prices.region,
        "date": prices.date,
        "source": prices.source,
        "lines": [one.shape() for one in lines],
        "units": {name: round(usd, 6) for name, usd in units(usage, prices).items()},
        "usdPerMonth": round(sum(one.usd for one in lines), 6),
    }


def idle(usage: Usage, prices: Prices) -> list[BillLine]:
    """The cost of an idle stack."""
    runs = RUNS_A_MONTH
    seconds = sum(runs[name] * RUN_SECONDS[name] * MEMORY_GB[name] for name in runs)
    between = max(0, runs["sweep"] - usage.sweeps)
    listed = [(usage.sweeps, SWEEP), (between, BETWEEN_SWEEPS), (runs["purge"], PURGE)]
    requests = sum(times * usage.models * prices.s3(one) for times, one in listed)
    metrics = sum(METRICS[name] for name in runs)
    return [
        BillLine("idle", "scheduled functions", prices.functions(sum(runs.values()), seconds)),
        BillLine("idle", "their S3 requests", requests + runs["compact"] * prices.s3(COMPACT)),
        BillLine("idle", "polling the queues", prices.queue(QUEUES * POLLS_A_MONTH)),
        BillLine("idle", "their metrics", metrics * prices.usd["metricMonth"]),
        BillLine("idle", "alarms", ALARM_METRICS * prices.usd["alarmMetricMonth"]),
        BillLine("idle", "dashboard", prices.usd["dashboardMonth"]),
    ]


def sweep_pass(documents: float, prices: Prices) -> float:
    """The cost of listing and comparing this many documents of one version each: a listing and a file of heads per
    1,000."""
    return prices.s3({"VERSIONS": documents / 1000, "GET": documents / 1000})


def of_changes(usage: Usage, prices: Prices) -> list[BillLine]:
    """The cost of changes, including the metrics of capture and tables."""
    metrics = METRICS["capture"] + METRICS["tables"]
    return [
        *(BillLine("changes", what, usage.changes * usd) for what, usd in per_change(usage, prices).items()),
        BillLine("changes", "metrics of capture and tables", metrics * prices.usd["metricMonth"]),
    ]


def per_change(usage: Usage, prices: Prices) -> dict[str, float]:
    """US dollars for one change."""
    batches = 1 / usage.batch
    gb_seconds = batches * sum(BATCH_SECONDS[name] * MEMORY_GB[name] for name in BATCH_SECONDS)
    # At worst a batch is small because it is alone; its duration then shrinks with it, down to a tenth.
    gb_seconds *= max(usage.batch / BATCH_MAX, 0.1)
    messages = 1 + batches  # the change, and its batch's change set
    # The bucket reports every object, even those that no rule matches: the document itself, and what the workers write.
    events = 1 + CHANGES[usage.change]["PUT"] + BATCH["PUT"] * batches
    return {
        "S3 requests": prices.s3(CHANGES[usage.change]) + batches * prices.s3(BATCH),
        "events": prices.events(events) if usage.by_eventbridge else 0.0,
        "messages": prices.queue(messages * SQS_REQUESTS_OF_A_MESSAGE),
        "functions": prices.functions(2 * batches, gb_seconds),
    }


def of_calls(usage: Usage, prices: Prices) -> list[BillLine]:
    """The cost of calls to the HTTP API, including the metrics of the function."""
    return [
        *(BillLine("calls", what, usage.calls * usd) for what, usd in per_call(usage, prices).items()),
        BillLine("calls", "metrics of api", METRICS["api"] * prices.usd["metricMonth"]),
    ]


def per_call(usage: Usage, prices: Prices) -> dict[str, float]:
    """US dollars for one read call. For a write call, add the cost of the change."""
    return {
        "functions": prices.functions(1, CALL_SECONDS * MEMORY_GB["api"]),
        "S3 requests": prices.s3({"GET": usage.requests_per_call}),
        "HTTP API": prices.usd["httpApiPerMillion"] / 1e6 if usage.by_http_api else 0.0,
    }


def rebuild(documents: float, prices: Prices) -> float:
    """The cost of one Spark rebuild: processors, memory and S3 requests."""
    if not documents:
        return 0.0
    compute = rebuild_compute(documents, prices)
    return compute + prices.s3({kind: number * documents for kind, number in REBUILD.items()})


def rebuild_compute(documents: float, prices: Prices) -> float:
    cluster = SparkCluster(next(number for limit, number in REBUILD_EXECUTORS if documents <= limit))
    seconds = documents / (cluster.processors * cluster.documents_a_second)
    return cluster.usd(math.ceil(cluster.start_minutes + seconds / 60) / 60, prices)


def _stored_gb(usage: Usage) -> float:
    """A document, its newest oplog entry and its row have about the same size."""
    return 3 * usage.documents * usage.document_bytes / 1e9
