"""The purge worker: only candidates, until the deadline, with a report; one bad tombstone does not stop the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.collections.trash_room import ACME, DAY, collection_on
from worm.clock import Ids, VirtualClock, iso_seconds
from worm.collections.layout import SCHEMA_KEY
from worm.collections.trash import Deletion
from worm.errors import Unavailable
from worm.formats import load_schema
from worm.store.base import Lost, ObjectInfo
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore
from worm.upkeep.purge import CHUNK, Purge, PurgeReport
from worm.upkeep.session import Session, Settings

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = {"enabled": True, "maxAge": "10d", "maxCount": 2}


class Bucket:
    """A store with the schema, trash and snapshots of Customer."""

    def __init__(self, *, versioned: bool = True, snapshots: bool = False, soft_delete: bool = True) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(versioned=versioned, clock=self.clock, ids=Ids.seeded(1, self.clock))
        customer: dict[str, object] = {
            "path": "#org/@customers/(id:string)",
            "file": "profile.json",
            "softDelete": soft_delete,
        }
        if snapshots:
            customer["snapshots"] = SNAPSHOTS
        models = {"Customer": customer, "Other": {"path": "#org/@others/(id:string)"}}
        self.store.put(SCHEMA_KEY, load_schema({"version": "1.0", "models": models}).to_json())
        self.collection = collection_on(self.store, self.clock, snapshots=SNAPSHOTS)

    def worker(self, store: FaultyStore | None = None) -> Purge:
        return Purge(Session(store or self.store, Settings("documents", threads=1), clock=self.clock))

    def delete(self, *ids: str) -> None:
        for entity_id in ids:
            self.collection.trash.put_away(entity_id, ACME, Deletion("e", None, None, iso_seconds(self.clock.now())))

    def trashed(self) -> list[str]:
        prefix = ".worm.trash/customers/"
        return sorted({listed.key.removeprefix(prefix).split("/")[0] for listed in self.store.list(prefix)})


def left(*seconds: float) -> Iterator[float]:
    return iter(seconds)


def run(bucket: Bucket, *, models: Sequence[str] | None = ("Customer",), dry_run: bool = False) -> PurgeReport:
    return bucket.worker().run(lambda: 1.0, models, dry_run=dry_run)[0]


def test_what_expired_goes_and_what_did_not_stays() -> None:
    bucket = Bucket()
    bucket.delete("a", "b")
    bucket.clock.advance(15 * DAY)
    bucket.delete("c")
    bucket.clock.advance(15 * DAY)
    report = run(bucket)
    assert report == PurgeReport("Customer", purged=["a", "b"])
    assert (bucket.trashed(), run(bucket)) == (["c"], PurgeReport("Customer"))


def test_every_model_is_looked_at_and_one_without_rules_costs_nothing() -> None:
    bucket = Bucket()
    bucket.delete("a")
    bucket.clock.advance(31 * DAY)
    reports = bucket.worker().run(lambda: 1.0)
    with bucket.store.requests.measure() as spent:
        bucket.worker().run(lambda: 1.0, ["Other"])
    assert [report.summary() for report in reports] == [
        {"model": "Customer", "purged": 1, "pruned": 0, "table_files": 0, "problems": 0, "finished": True},
        {"model": "Other", "purged": 0, "pruned": 0, "table_files": 0, "problems": 0, "finished": True},
    ]
    assert spent == {"GET": 1, "total": 1}


def test_only_candidates_are_read_and_each_costs_five_requests_more() -> None:
    bucket = Bucket()
    bucket.delete("a", "b")
    bucket.clock.advance(15 * DAY)
    bucket.delete(*(f"young{number}" for number in range(30)))
    bucket.clock.advance(15 * DAY)
    with bucket.store.requests.measure() as spent:
        run(bucket)
    # the schema and two tombstones; per document its copy's etag, the claim, and two deletes
    assert spent == {"GET": 3, "LIST": 1, "HEAD": 2, "PUT": 2, "DELETE": 4, "total": 12}


def test_a_dry_run_names_the_same_and_removes_nothing() -> None:
    bucket = Bucket(snapshots=True)
    bucket.delete("a", "b")
    for seq, day in enumerate((1, 2, 3), start=1):
        bucket.collection.snapshots.take("a", seq, f"2026-01-0{day}T00:00:00Z", {})
    bucket.clock.advance(31 * DAY)
    before = [listed.key for listed in bucket.store.list("")]
    dry = run(bucket, dry_run=True)
    assert [listed.key for listed in bucket.store.list("")] == before
    assert dry == run(bucket)
    assert (dry.purged, len(dry.pruned)) == (["a", "b"], 2)


def test_a_damaged_tombstone_is_reported_and_stays_and_the_others_go() -> None:
    bucket = Bucket()
    bucket.delete("a", "bad", "c")
    key = ".worm.trash/customers/bad/.worm.tombstone"
    bucket.store.put(key, b"not json")
    bucket.clock.advance(31 * DAY)
    report = run(bucket)
    assert (report.purged, list(report.problems)) == (["a", "c"], [key])
    assert "not valid JSON" in report.problems[key]
    found = bucket.store.get(key)
    assert (bucket.trashed(), found is not None and found.body) == (["bad"], b"not json")


def test_a_purge_that_fails_is_a_problem_of_that_document_only() -> None:
    class OneIsStuck(FaultyStore):
        def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
            if "/b/" in key:
                raise Unavailable("no answer", key=key)
            return super().head(key, version_id=version_id)

    bucket = Bucket()
    bucket.delete("a", "b", "c")
    bucket.clock.advance(31 * DAY)
    report = bucket.worker(OneIsStuck(bucket.store)).run(lambda: 1.0, ["Customer"])[0]
    assert (report.purged, list(report.problems), bucket.trashed()) == (["a", "c"], ["b"], ["b"])


def test_it_stops_at_the_deadline_and_the_next_run_goes_on() -> None:
    bucket = Bucket(snapshots=True)
    ids = [f"c{number:03d}" for number in range(CHUNK + 3)]
    bucket.delete(*ids)
    bucket.clock.advance(31 * DAY)
    seconds = left(1.0, 0.0, 0.0, 0.0)
    report = bucket.worker().run(lambda: next(seconds), ["Customer"])[0]
    assert (report.purged, report.finished, bucket.trashed()) == (ids[:CHUNK], False, ids[CHUNK:])
    assert (run(bucket).purged, run(bucket).finished, bucket.trashed()) == (ids[CHUNK:], True, [])


def test_without_time_nothing_is_done_and_nothing_is_called_finished() -> None:
    bucket = Bucket(snapshots=True)
    bucket.delete("a")
    bucket.clock.advance(31 * DAY)
    with bucket.store.requests.measure() as spent:
        report = bucket.worker().run(lambda: 0.0, ["Customer"])[0]
    assert (report, bucket.trashed()) == (PurgeReport("Customer", finished=False), ["a"])
    assert spent == {"GET": 1, "total": 1}


def test_snapshots_beyond_their_rules_go() -> None:
    bucket = Bucket(snapshots=True)
    for seq, day in enumerate((1, 2, 3), start=1):
        bucket.collection.snapshots.take("a", seq, f"2026-01-0{day}T00:00:00Z", {})
    bucket.clock.advance(3 * DAY)
    report = run(bucket)
    assert report == PurgeReport("Customer", pruned=[".snapshots/customers/a/2026-01-01T00:00:00Z.json"])


def test_trash_of_a_model_that_does_not_delete_softly_any_more_stays() -> None:
    bucket = Bucket(soft_delete=False)
    bucket.delete("a")
    bucket.clock.advance(31 * DAY)
    assert (run(bucket), bucket.trashed()) == (PurgeReport("Customer"), ["a"])


@pytest.mark.parametrize("number", range(1, 7))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_after_any_write_is_made_good_by_the_next_run(number: int, when: str) -> None:
    bucket = Bucket()
    bucket.delete("a", "b")
    bucket.clock.advance(31 * DAY)
    faulty = FaultyStore(bucket.store, clock=bucket.clock)
    faulty.crash_at_write(number, "before" if when == "before" else "after")
    with pytest.raises(SimulatedCrash):
        bucket.worker(faulty).run(lambda: 1.0, ["Customer"])
    run(bucket)
    assert bucket.trashed() == []


def test_a_restore_under_way_of_something_expired_is_purged_and_the_restorer_keeps_its_document() -> None:
    """It was begun in time; the document is put back, or the restore loses nothing but the trash."""
    bucket = Bucket()
    bucket.delete("a")
    body = bucket.collection.trash.begin_restore("a")
    bucket.clock.advance(31 * DAY)
    report = run(bucket)
    outcome = bucket.store.put_if_absent("org/customers/a/profile.json", body)
    bucket.collection.trash.finish_restore("a")
    assert (report.purged, isinstance(outcome, Lost), bucket.trashed()) == (["a"], False, [])


HANDLER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import handler
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow  # as `test_pages_workers.py` does with another handler
def test_the_handler_starts_without_the_heavy_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANDLER, str(ROOT / "functions" / "purge")],
        env={"POWERTOOLS_SERVICE_NAME": "purge", "POWERTOOLS_METRICS_NAMESPACE": "Test", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"boto3", "botocore.client", "pyarrow", "pandas", "pyspark", "typer", "moto", "worm.dev", "worm.cli"}
    assert heavy & set(json.loads(done.stdout)) == set()
