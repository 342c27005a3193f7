"""The six functions: which failures fail an invocation, what is quiet, and what logs and metrics say."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import pytest

from tests.harness import BUCKET, DataPath, created, schema_of
from tests.workers.function_room import Deployed, Functions
from worm.clock import Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Denied, Invalid, NotFound
from worm.formats import load_schema
from worm.sdk.database import push
from worm.store.base import Attempt, AttemptOutcome, Condition, NotModified, Object
from worm.store.faulty_store import FaultyStore
from worm.store.memory import MemoryStore
from worm.tables.table import Table
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.lambdas import NO_SCHEMA


class Refusing(FaultyStore):
    """Refuses writes, and reads, of keys that have these texts in them."""

    def __init__(self, path: DataPath, *writes: str, reads: str = "\0") -> None:
        super().__init__(path.store, clock=path.clock, ids=path.ids)
        self._parts, self._unread = writes, reads

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        if any(part in key for part in self._parts):
            return Attempt(AttemptOutcome.DENIED, reason="403 AccessDenied", request_id="S3REQUEST")
        return super().attempt_put(key, body, condition, metadata)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        if self._unread in key:
            raise Denied("the store refused the request: 403 AccessDenied", key=key)
        return super().get_if_changed(key, etag)


def session_on(path: DataPath, store: FaultyStore | None = None) -> Session:
    return Session(store or path.store, Settings(BUCKET, threads=1), ids=path.ids, clock=path.clock)


def uploaded(count: int) -> DataPath:
    path = DataPath()
    for number in range(count):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active"})
    return path


# A batch that fails as a whole


@pytest.mark.parametrize("count", [1, 3])
def test_an_invocation_fails_when_every_message_of_its_batch_does(functions: Functions, count: int) -> None:
    """A role that lost a permission showed no error at all: the first alarm was that of the queue's age, after 20
    minutes. A batch of one counts: a bucket with little traffic has no others."""
    path = uploaded(count)
    capture = functions.load("capture", session_on(path, Refusing(path, ".oplog/")))
    with pytest.raises(Denied, match="AccessDenied"):
        capture.batch(path.events)
    lines = capture.lines()
    assert (lines.metric("Messages"), lines.metric("Failed")) == ([count], [count]), "counted although it raised"
    assert [line["message_id"] for line in lines.said("failed")] == [f"m{number}" for number in range(count)]
    path.settle()
    path.assert_true()


def test_a_batch_fails_in_part_when_one_message_of_it_does(functions: Functions) -> None:
    path = uploaded(3)
    capture = functions.load("capture", session_on(path, Refusing(path, ".oplog/customers/c1/")))
    assert capture.batch(path.events) == ["m1"]
    assert capture.lines().metric("Failed") == [1]


def test_a_batch_of_rejected_messages_fails_in_part(functions: Functions) -> None:
    """They are nobody's outage: whoever uploaded them made a mistake. Without a queue for them they come again."""
    path = DataPath()
    for number in range(2):
        path.put(f"c{number}", b"{oops")
    capture = functions.load("capture", session_on(path))
    assert capture.batch(path.events) == ["m0", "m1"]
    lines = capture.lines()
    assert (lines.metric("Rejected"), lines.metric("Failed")) == ([2], [0])
    assert [line["key"] for line in lines.said("rejected")] == [path.key("c0"), path.key("c1")]
    assert [line["key"] for line in lines.said("dead letter not sent")] == [path.key("c0"), path.key("c1")]


def test_an_error_before_the_first_message_counts_for_all(functions: Functions) -> None:
    path = uploaded(2)
    capture = functions.load("capture", session_on(path, Refusing(path, reads=SCHEMA_KEY)))
    with pytest.raises(Denied):
        capture.batch(path.events)
    lines = capture.lines()
    assert lines.metric("Failed") == [2]
    assert [line["key"] for line in lines.said("failed")] == [path.key("c0"), path.key("c1")]
    assert ["exception" in line for line in lines.said("failed")] == [True, False], "one error, one trace"


def test_an_empty_batch_is_no_outage(functions: Functions) -> None:
    assert functions.load("capture", session_on(DataPath())).batch([]) == []


# Before the first push


class Fresh:
    """A stack to which nobody has pushed a schema; a document was uploaded all the same."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(1, self.clock)
        self.store = MemoryStore(versioned=True, clock=self.clock, ids=self.ids)
        self.key = "org/customers/early/profile.json"
        self.store.put(self.key, b'{"name": "early"}')

    def session(self) -> Session:
        return Session(self.store, Settings(BUCKET, threads=1), ids=self.ids, clock=self.clock)


EVENTS = {
    "capture": "org/customers/early/profile.json",
    "tables": ".worm.changes/customers/01ARZ3NDEKTSV4RRFFQ69G5FAV.json",
    "apply": "db/shop/log/0000000000000001",
}


@pytest.mark.parametrize("name", ["capture", "tables", "apply"])
def test_events_before_the_first_push_are_done_without_an_error(functions: Functions, name: str) -> None:
    """They came back until they were in the dead-letter queue, and every alarm of a new stack rang."""
    fresh = Fresh()
    function = functions.load(name, fresh.session())
    assert function.batch([created(EVENTS[name])]) == []
    lines = function.lines()
    assert [lines.metric(one) for one in ("Failed", "Rejected", "Ignored")] == [[0], [0], [1]]
    assert [line for line in lines.printed if line.get("level") == "ERROR"] == []


@pytest.mark.parametrize("name", ["sweep", "purge"])
def test_schedules_before_the_first_push_say_that_there_is_no_schema(functions: Functions, name: str) -> None:
    function = functions.load(name, Fresh().session())
    assert function.call({}) == {"skipped": NO_SCHEMA}
    lines = function.lines()
    assert len(lines.said(NO_SCHEMA)) == 1
    assert lines.metric("SweepUnfinished") == []
    assert [line for line in lines.printed if line.get("level") == "ERROR"] == []


def test_compact_before_the_first_push_has_nothing_to_do(functions: Functions) -> None:
    assert functions.load("compact", Fresh().session()).call({}) == []


def test_a_document_that_came_before_the_schema_is_adopted_by_the_push(functions: Functions) -> None:
    fresh = Fresh()
    functions.load("capture", fresh.session()).batch([created(fresh.key)])
    push(fresh.store, load_schema(schema_of()))
    after = fresh.session()
    after.refresh()
    assert [entry.op for entry in after.collection("Customer").oplog.entries("early")] == ["create"]
    manifest = Table(after.collection("Customer")).manifest.read()
    assert manifest is not None
    assert list(manifest.entities) == ["early"]


@pytest.mark.parametrize(("name", "event"), [("capture", created(EVENTS["capture"])), ("sweep", ""), ("purge", "")])
def test_a_schema_that_somebody_deleted_is_an_error(functions: Functions, name: str, event: str) -> None:
    """With 'no schema yet', nothing would be recorded any more, and nobody would hear of it."""
    fresh = Fresh()
    push(fresh.store, load_schema(schema_of()))
    fresh.store.delete(SCHEMA_KEY)
    function = functions.load(name, fresh.session())
    with pytest.raises(NotFound, match="no schema"):
        function.batch([event]) if event else function.call({})


# What logs say


def test_a_line_of_a_failure_names_what_a_person_searches_for(functions: Functions) -> None:
    path = uploaded(1)
    capture = functions.load("capture", session_on(path, Refusing(path, ".oplog/")))
    with pytest.raises(Denied):
        capture.batch(path.events)
    (line,) = capture.lines().said("failed")
    assert {name: line[name] for name in ("key", "model", "id", "message_id", "function_request_id")} == {
        "key": path.key("c0"),
        "model": "Customer",
        "id": "c0",
        "message_id": "m0",
        "function_request_id": "invocation-1",
    }
    assert (line["error"], line["s3_request_id"]) == ("Denied", "S3REQUEST")
    assert line["failed_key"].startswith(".oplog/customers/c0/")
    assert "Traceback" in line["exception"]


def test_failures_of_change_sets_name_them(functions: Functions) -> None:
    path = uploaded(1)
    capture = functions.load("capture", session_on(path, Refusing(path, ".worm.changes/")))
    with pytest.raises(Denied):
        capture.batch(path.events)
    (line,) = capture.lines().said("failed")
    assert line["change_set"] == line["failed_key"]
    assert line["change_set"].startswith(".worm.changes/")

    path.run_capture()
    (event,) = path.change_sets()
    tables = functions.load("tables", session_on(path, Refusing(path, ".worm.manifest")))
    with pytest.raises(Denied):
        tables.batch([event])
    (line,) = tables.lines().said("failed")
    assert (line["model"], line["change_set"]) == ("Customer", json.loads(event)["detail"]["object"]["key"])


@pytest.mark.parametrize(("level", "count"), [("DEBUG", 1), ("INFO", 0)])
def test_the_log_level_holds_for_functions_and_library(functions: Functions, level: str, count: int) -> None:
    path = uploaded(1)
    functions.monkeypatch.setenv("POWERTOOLS_LOG_LEVEL", level)
    capture = functions.load("capture", session_on(path))
    capture.batch(path.events)
    logging.getLogger("worm").debug("of the library")
    lines = capture.lines()
    assert [line["key"] for line in lines.said("done")] == [path.key("c0")] * count
    assert [line["function_request_id"] for line in lines.said("of the library")] == ["invocation-1"] * count


# What metrics say


def test_metrics_have_the_stack_and_the_service_as_dimensions(functions: Functions) -> None:
    """Two stacks of one account had one set of metrics, and an alarm of the one rang for the other."""
    path = uploaded(1)
    capture = functions.load("capture", session_on(path))
    capture.batch(path.events)
    capture.batch(path.events)
    assert capture.lines().dimensions == [(["service", "stack"], "shop", "capture")] * 2


def test_a_cold_start_is_counted_once_also_when_it_fails(functions: Functions) -> None:
    path = uploaded(1)
    capture = functions.load("capture", session_on(path, Refusing(path, reads=SCHEMA_KEY)))
    for expected in ([1.0], []):
        with pytest.raises(Denied):
            capture.batch(path.events)
        assert capture.lines().metric("ColdStart") == expected


def test_requests_are_counted_by_what_they_cost(functions: Functions) -> None:
    path = uploaded(1)
    capture = functions.load("capture", session_on(path))
    with path.store.requests.measure() as spent:
        capture.batch(path.events)
    lines = capture.lines()
    assert lines.metric("StoreRequests") == [spent["total"]]
    assert lines.metric("ReadRequests") == [spent["GET"]]
    assert lines.metric("WriteRequests") == [spent["PUT"] + spent["VERSIONS"]]
    assert sum(lines.metric("ReadRequests") + lines.metric("WriteRequests")) == spent["total"]


@pytest.mark.parametrize("oplog", [True, False])
def test_freshness_is_the_age_of_the_oldest_change_that_is_folded(functions: Functions, oplog: bool) -> None:
    """Of a model with history since its upload; of another since it was captured, which is all that is known."""
    path = DataPath(schema_of(oplog=oplog))
    path.put("a", {"name": "A"})
    path.clock.advance(600)
    path.run_capture()
    path.clock.advance(300)
    tables = functions.load("tables", session_on(path))
    assert tables.batch(path.change_sets()) == []
    assert tables.lines().metric("FreshnessSeconds") == [900 if oplog else 300]
    tables.batch([created(EVENTS["tables"])])
    assert tables.lines().metric("FreshnessSeconds") == [], "nothing was folded"


def sweep_of(functions: Functions, path: DataPath) -> Deployed:
    functions.monkeypatch.setattr("worm.upkeep.sweep_pass.CHUNK", 2)
    return functions.load("sweep", session_on(path))


def test_a_sweep_says_whether_its_time_sufficed(functions: Functions) -> None:
    path = uploaded(5)
    sweep = sweep_of(functions, path)
    (report,) = sweep.call({}, seconds=1)
    assert (report["finished"], report["recorded"]) == (False, 2)
    assert sweep.lines().metric("SweepUnfinished") == [1]
    (report,) = sweep.call({})
    assert (report["finished"], report["recorded"]) == (True, 3)
    assert sweep.lines().metric("SweepUnfinished") == [0]


def test_a_schedule_begins_a_pass_once_a_day_and_an_invocation_by_hand_does_so_at_once(functions: Functions) -> None:
    path = uploaded(5)
    sweep = functions.load("sweep", session_on(path))
    event = {"detail-type": "Scheduled Event", "source": "aws.scheduler"}
    (report,) = sweep.call(event)
    assert (report["listed"], report["recorded"]) == (5, 5)
    path.put("unheard", {"name": "x"})
    (report,) = sweep.call(event)
    assert (report["listed"], report["isDue"], report["finished"]) == (0, False, True)
    assert sweep.lines().metric("SweepUnfinished") == [0, 0]
    (report,) = sweep.call({})
    assert (report["listed"], report["recorded"]) == (6, 1)
    functions.monkeypatch.setenv("WORM_SWEEP_EVERY", "0")
    assert sweep.call(event)[0]["listed"] == 6


@pytest.mark.parametrize("hours", ["-1", "often", "inf", "nan"])
def test_a_number_of_hours_that_is_none_is_an_error(functions: Functions, hours: str) -> None:
    sweep = functions.load("sweep", session_on(uploaded(1)))
    functions.monkeypatch.setenv("WORM_SWEEP_EVERY", hours)
    with pytest.raises(Invalid, match="WORM_SWEEP_EVERY"):
        sweep.call({})


def test_a_sweep_that_leaves_a_table_to_spark_says_so(functions: Functions) -> None:
    path = uploaded(5)
    functions.monkeypatch.setattr("worm.upkeep.sweep.BUILDS_MAX", 3)
    path.sweep()
    path.store.delete(path.table.manifest.key)
    sweep = functions.load("sweep", session_on(path))
    assert "`rebuild`" in sweep.call({})[0]["left"]
    lines = sweep.lines()
    assert lines.metric("LeftToSpark") == [1]
    (line,) = lines.said("left to Spark")
    assert line["model"] == "Customer"


def test_a_sweep_that_fails_is_not_one_whose_time_was_over(functions: Functions) -> None:
    path = uploaded(5)
    sweep = functions.load("sweep", session_on(path, Refusing(path, reads=".worm.heads")))
    with pytest.raises(Denied):
        sweep.call({})
    lines = sweep.lines()
    assert lines.metric("SweepUnfinished") == [0]
    (line,) = lines.said("not swept")
    assert (line["model"], line["error"], line["function_request_id"]) == ("Customer", "Denied", "invocation-1")
