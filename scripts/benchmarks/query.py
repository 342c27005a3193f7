"""What a query costs at 1,000, 10,000, 100,000 and 1,000,000 entities, against raw floors, scans, deltalake and DuckDB.

Everything runs against one embedded moto and takes turns; numbers are median milliseconds, and `ratio` is ours to the
other's (below 1: we are ahead). The query is `status = active` sorted by name, the first 20; lookups read the 10
documents of a segment (indexed) or the 50 of a cohort (not indexed).

Scans of documents are measured over 1,000 of them and multiplied for more. DuckDB reads copies of the documents from
the local disk, up to 10,000: a lower bound, because it makes no requests. For a million rows see `_million.py`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from scripts.benchmarks import _customers as customers
from scripts.benchmarks import _million
from scripts.benchmarks._contestants import Delta, LocalJson, RawClients, index_floor, manifest_floor, targeted_floor
from scripts.benchmarks._turns import Call, check_answers, embedded_s3, medians, rounded, spent
from worm.dev.aws import Aws
from worm.formats.strict_json import dumps, dumps_document
from worm.sdk.database import Model
from worm.store.s3 import S3Store
from worm.tables.index import Index

BUCKET = "query"
QUICK = 5
SCANNED = 1_000
SEGMENT, COHORT = 7, 7
FLOOR_MAX = 1.3
LOOKUP_REQUESTS_MAX = 11
OPENING_MAX = {1_000: 0.7, 10_000: 0.7, 100_000: 0.5}
HANDLE_MAX = 0.25
# The reference for the answer, by a part of the contestant's name.
REFERENCES = {"index_lookup": "floor_of_index_lookup", "targeted": "floor_of_targeted_fetch", "": "floor_obstore"}


@dataclass(frozen=True)
class Case:
    """One size and form of the table."""

    count: int
    repeats: int
    threshold: int = 10_000

    @property
    def reads_files(self) -> bool:
        """Whether DuckDB takes part."""
        return self.count <= (10_000 if self.repeats > QUICK else 1_000)

    @property
    def is_partitioned(self) -> bool:
        return self.count > self.threshold

    @property
    def name(self) -> str:
        return f"{self.count} partitioned" if self.is_partitioned else f"{self.count} whole"


class Site:
    """The table of one case in the bucket, under its own prefix, and its contestants."""

    def __init__(self, aws: Aws, case: Case, clients: RawClients) -> None:
        self._aws = aws
        self._clients = clients
        self._schema = customers.schema(case.threshold)
        self.prefix = f"{case.count}-{case.threshold}"
        self.case = case
        self.store = self._new_store()
        self._floor_key = f"{self.prefix}-floor/manifest.json"
        self._floor_index_key = f"{self.prefix}-floor/index.json"
        self._seed()
        self.again = self.session()

    def _new_store(self) -> S3Store:
        return S3Store(BUCKET, self.prefix, endpoint_url=self._aws.endpoint_url)

    def _seed(self) -> None:
        """Write all table files, but only the documents that a lookup or a full scan reads."""
        manifest = customers.manifest(self.case.count, self._schema)
        table = self.session().table
        table.manifest.update(lambda _: manifest)
        table.complete()
        index = Index.of(manifest, self._schema.model(customers.MODEL).indexes["bySegment"])
        self.manifest_bytes = len(manifest.encode())
        bodies = {self._floor_key: manifest.encode(), self._floor_index_key: index.encode()}
        start, end = COHORT * customers.COHORT, (COHORT + 1) * customers.COHORT
        looked_up = {*range(SEGMENT * customers.SEGMENT, (SEGMENT + 1) * customers.SEGMENT), *range(start, end)}
        numbers = range(SCANNED) if self.case.count == SCANNED else sorted(looked_up)
        bodies |= {
            self.document_key(customers.customer_id(one)): dumps_document(customers.document(one)) for one in numbers
        }
        self._clients.put_many(bodies)

    def document_key(self, entity_id: str) -> str:
        return f"{self.prefix}/org/customers/{entity_id}/data.json"

    def session(self, store: S3Store | None = None) -> Model:
        return customers.session(store or self.store, self._schema)

    # Ours

    def ours(self) -> dict[str, Call]:
        return {
            "scan_cold": lambda: self.scan(self.session()),
            "scan_cold_new_client": lambda: self.scan(self.session(self._new_store())),
            "scan_repeated": lambda: self.scan(self.again),
            "index_lookup_of_10": lambda: self.lookup(self.session()),
            "index_lookup_of_10_repeated": lambda: self.lookup(self.again),
            "targeted_fetch_of_50": lambda: self.targeted(self.session()),
            "targeted_fetch_of_50_repeated": lambda: self.targeted(self.again),
        }

    def scan(self, model: Model, strategy: str = "manifest_scan") -> list[str]:
        fields = customers.TABLE_FIELDS
        rows = model.find_all(
            filter={"status": "active"}, sort={"field": "name"}, limit=20, select=fields, strategy=_forced(strategy)
        )
        return _ids(rows, rows.plan.strategy, strategy)

    def lookup(self, model: Model) -> list[str]:
        rows = model.find_all(filter={"segment": f"segment-{SEGMENT}"})
        return _ids(rows, rows.plan.strategy, "index_lookup")

    def targeted(self, model: Model) -> list[str]:
        rows = model.find_all(filter={"cohort": f"cohort-{COHORT}"})
        return _ids(rows, rows.plan.strategy, "manifest_targeted")

    # Theirs

    def floors(self) -> dict[str, Call]:
        clients, key, index_key = self._clients, self._floor_key, self._floor_index_key
        segment, cohort = f"segment-{SEGMENT}", f"cohort-{COHORT}"
        return {
            "floor_obstore": lambda: manifest_floor(clients.by_obstore, key),
            "floor_boto3": lambda: manifest_floor(clients.by_boto3, key),
            "floor_of_index_lookup": lambda: index_floor(clients.by_obstore, index_key, segment, self.document_key),
            "floor_of_targeted_fetch": lambda: targeted_floor(clients.by_obstore, key, cohort, self.document_key),
        }

    def peers(self) -> dict[str, Call]:
        delta = Delta(self._aws, f"s3://{BUCKET}/{self.prefix}-delta", _million.arrow_rows(self.case.count))
        return {
            "deltalake_opening": delta.opening,
            "deltalake_open_handle": delta.on_open_handle,
            "deltalake_open_handle_refreshed": delta.on_refreshed_handle,
        }

    def duckdb(self, scratch: Path) -> Call:
        numbers = range(self.case.count)
        documents = ((customers.customer_id(one), dumps_document(customers.document(one))) for one in numbers)
        return LocalJson(scratch / self.prefix, documents).query

    def readers_of_documents(self) -> dict[str, Call]:
        prefix, clients = f"{self.prefix}/org/customers/", self._clients
        return {
            "n_plus_1_boto3": lambda: clients.n_plus_1(prefix),
            "n_plus_1_concurrent": lambda: clients.n_plus_1_concurrent(prefix),
        }


def _forced(strategy: str) -> str | None:
    return None if strategy == "manifest_scan" else strategy


def _ids(rows: Sequence[Mapping[str, object]], actual: str, wanted: str) -> list[str]:
    if actual != wanted:
        raise RuntimeError(f"the planner chose {actual}, not {wanted}")
    return [str(row["id"]) for row in rows]


def measure(site: Site, scratch: Path) -> dict[str, object]:
    ours = site.ours()
    floors = site.floors()
    calls = {**floors, **ours, **site.peers()}
    check_answers(REFERENCES, calls)
    times = medians(calls, site.case.repeats, is_warm=True)
    if site.case.reads_files:  # separately, because its threads keep every core busy for long
        duckdb = {"duckdb_local_json": site.duckdb(scratch)}
        check_answers(REFERENCES, {**floors, **duckdb})
        times |= medians(duckdb, 3, is_warm=True)
    requests = {name: spent(site.store.requests, call)["total"] for name, call in ours.items() if "client" not in name}
    return {
        "manifest_bytes": site.manifest_bytes,
        "milliseconds": rounded(times),
        "requests": requests,
        "ratio": _ratios(times),
        "goals": _goals(site.case, times, requests),
    }


def _ratios(times: Mapping[str, float]) -> dict[str, float]:
    floor = min(times["floor_obstore"], times["floor_boto3"])
    pairs = {
        "scan_cold": ("floor_obstore", "floor_boto3"),
        "scan_cold_new_client": ("deltalake_opening",),
        "scan_repeated": ("deltalake_open_handle", "deltalake_open_handle_refreshed"),
        "index_lookup_of_10": ("floor_of_index_lookup",),
        "targeted_fetch_of_50": ("floor_of_targeted_fetch",),
    }
    found = {f"{one} / {other}": times[one] / times[other] for one, others in pairs.items() for other in others}
    return rounded({**found, "scan_repeated / quicker floor": times["scan_repeated"] / floor})


def _goals(case: Case, times: Mapping[str, float], requests: Mapping[str, int]) -> dict[str, bool]:
    floor = min(times["floor_obstore"], times["floor_boto3"])
    opening, handle = times["deltalake_opening"], times["deltalake_open_handle"]
    most = OPENING_MAX[case.count]
    goals = {
        f"cold scan takes at most {FLOOR_MAX} x the quicker floor": times["scan_cold"] <= FLOOR_MAX * floor,
        f"cold scan takes at most {most} x deltalake opening": times["scan_cold_new_client"] <= most * opening,
        "repeated scan is one request": requests["scan_repeated"] == 1,
        f"repeated scan takes at most {HANDLE_MAX} x deltalake's open handle": (
            times["scan_repeated"] <= HANDLE_MAX * handle
        ),
        "look-up of 10 takes at most 11 requests": requests["index_lookup_of_10"] <= LOOKUP_REQUESTS_MAX,
    }
    if not case.is_partitioned:
        goals["cold scan is one request"] = requests["scan_cold"] == 1
    return goals


def scans(site: Site, repeats: int) -> dict[str, object]:
    """Reading every document, at 1,000."""
    calls = {**site.readers_of_documents(), "full_scan": lambda: site.scan(site.session(), "full_scan")}
    check_answers(REFERENCES, {"floor_obstore": site.floors()["floor_obstore"], **calls})
    times = medians(calls, repeats, is_warm=True)
    return {
        "milliseconds": rounded(times),
        "requests_of_full_scan": spent(site.store.requests, calls["full_scan"])["total"],
        "full_scan / n_plus_1_concurrent": round(times["full_scan"] / times["n_plus_1_concurrent"], 2),
        "n_plus_1_multiplied_for": {
            count: rounded({name: times[name] * count / SCANNED for name in site.readers_of_documents()})
            for count in (10_000, 100_000)
        },
    }


def _tell(name: str, found: Mapping[str, object]) -> None:
    missed = [goal for goal, is_met in cast("dict[str, bool]", found["goals"]).items() if not is_met]
    ratios = ", ".join(f"{pair} = {ratio}" for pair, ratio in cast("dict[str, float]", found["ratio"]).items())
    print(f"{name}: {ratios}; missed: {', '.join(missed) or 'nothing'}", file=sys.stderr)


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench query")
    parser.add_argument("--quick", action="store_true", help="fewer turns, and nothing larger than 10,000")
    quick = parser.parse_args(arguments).quick
    cases = [Case(1_000, QUICK), Case(10_000, QUICK)] if quick else [Case(1_000, 25), Case(10_000, 15)]
    cases += [] if quick else [Case(100_000, 5)]
    measured: dict[str, object] = {"row_bytes": len(dumps(customers.row(1)))}
    with embedded_s3(BUCKET) as aws, tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch:
        clients = RawClients(aws, BUCKET)
        for case in cases:
            site = Site(aws, case, clients)
            measured[case.name] = found = measure(site, Path(scratch))
            _tell(case.name, found)
            if case.count == SCANNED:
                measured["scans of 1000 documents"] = scans(site, 1 if quick else 3)
        if not quick:
            measured["a million"] = found = _million.measure(aws, BUCKET, 5)
            _tell("a million", found)
    return measured
