"""Which keys wake which worker, decided by the rules of the templates themselves."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import pytest
from moto.events.models import EventPattern

from tests.harness import created
from tests.sdk.bank_room import SpaceBench
from tests.template.recorder import Recorder
from tests.template.sam_document import BUCKET, function, is_allowed, object_patterns, resources
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture

APPLICATION = "worm-dev-SparkStack-SparkApplication"

DOCUMENTS = [
    "org/customers/3f0e1c9a-0000-4000-8000-000000000001/profile.json",
    "customers/1/data.json",
    "org/settings/settings.json",
    "a.json",
    "org/customers/with space/data.json",
    "org/customers/ünï-çødé/data.json",
    "org/dbs/1/data.json",
    "org/db/1/data.json",
    "database/1/data.json",
    "org/_private/1/data.json",
]
SYSTEM_KEYS = [
    ".worm",
    ".worm.schema.json",
    ".worm.sweep/cursor.json",
    ".oplog/customers/1/0001.json",
    ".oplog/customers/1/.times/251593300800-9999999999999999990",
    ".snapshots/customers/1/2026-02-24T12:00:00Z.json",
    ".worm.trash/customers/1/profile.json",
    ".worm.trash/customers/1/.worm.tombstone",
    "org/customers/.worm",
    "org/customers/.worm.manifest.json",
    "org/customers/.worm.heads.json",
    "org/customers/.worm.index/status.json",
    "org/customers/.worm.index/email/.claims/00ff",
    "org/customers/.oplog/1/0001.json",
    "org/customers/1/.oplog/0001.json",
    "org/customers/1/.oplog/.times/251593300800-9999999999999999990",
    "org/customers/1/.snapshots/2026-02-24T12:00:00Z.json",
    "org/customers/.worm.trash/1/profile.json",
    "org/customers/1/.worm.trash/profile.json",
    "org/customers/1/.worm.trash/.worm.tombstone",
    "db/main/manifest.json",
    "db/main/lease.json",
    "db/main/base/00000000000000000009-0123456789abcdef.ndjson",
    "db/main/damaged/00000000000000000009-abc",
    "db/main/gc/clock",
    "db/main/delta/L00000000000000000001-L00000000000000000009-e1-01J00000000000000000000000.delta",
    "db/main/delta/L00000000000000000001-L00000000000000000009-c1-01J00000000000000000000000.delta",
    "db/main/image/img-L00000000000000000009-c1-01J00000000000000000000000.image",
    "db/main/branches/trial.json",
    "db/main/branches/log.json",
    "db/log/manifest.json",
    "db/log/branches/01J000/delta/L00000000000000000001-L00000000000000000009-e1-01J00000000000000000000000.delta",
    "db/log/branches/01J000/manifest.json",
]
SEGMENTS = [
    "db/main/log/00000000000000000001",
    "db/log/log/00000000000000000001",
    "db/main/branches/01J00000000000000000000000/log/00000000000000000001",
]
CHANGE_SETS = [".worm.changes/customers/01J00000000000000000000000.json"]
KINDS = ["Object Created", "Object Deleted", "Object Tags Added", "Object Restore Completed"]


def woken(
    key: str,
    kind: str = "Object Created",
    *,
    bucket: str = BUCKET,
    source: str = "aws.s3",
    parameters: dict[str, str] | None = None,
    **detail: str,
) -> set[str]:
    """The rules that this event passes."""
    reason = {"Object Created": "PutObject", "Object Deleted": "DeleteObject"}.get(kind)
    told = {"reason": reason, **detail} if reason else detail
    return passed(source, kind, {"bucket": {"name": bucket}, "object": {"key": key}, **told}, **(parameters or {}))


def passed(source: str, kind: str, detail: dict[str, Any], **parameters: str) -> set[str]:
    event: Any = {"source": source, "detail-type": kind, "detail": detail}
    rules = resources("AWS::Events::Rule", **parameters)
    patterns = {name: rule["EventPattern"] for name, rule in rules.items()}
    return {
        name for name, pattern in patterns.items() if EventPattern(json.dumps(pattern), pattern).matches_event(event)
    }


@pytest.mark.parametrize("key", DOCUMENTS)
def test_a_document_wakes_capture_only_when_written_or_deleted(key: str) -> None:
    assert {kind: woken(key, kind) for kind in KINDS} == {
        "Object Created": {"CaptureRule"},
        "Object Deleted": {"CaptureRule"},
        "Object Tags Added": set(),
        "Object Restore Completed": set(),
    }


@pytest.mark.parametrize("key", SYSTEM_KEYS)
def test_a_system_key_wakes_nobody(key: str) -> None:
    assert {kind: woken(key, kind) for kind in KINDS} == {kind: set() for kind in KINDS}


@pytest.mark.parametrize("key", CHANGE_SETS)
def test_a_change_set_wakes_tables_when_written_and_nobody_when_it_expires(key: str) -> None:
    assert {kind: woken(key, kind) for kind in KINDS} == {
        "Object Created": {"TablesRule"},
        "Object Deleted": set(),
        "Object Tags Added": set(),
        "Object Restore Completed": set(),
    }


@pytest.mark.parametrize("key", SEGMENTS)
def test_a_segment_of_a_log_wakes_apply_when_written_and_nobody_when_it_is_collected(key: str) -> None:
    assert {kind: woken(key, kind) for kind in KINDS} == {
        "Object Created": {"ApplyRule"},
        "Object Deleted": set(),
        "Object Tags Added": set(),
        "Object Restore Completed": set(),
    }


@pytest.mark.parametrize("key", ["logs/db/main/log/1", "org/db/main/log/1", "db/main/catalog/1", "db/log/1"])
def test_what_only_looks_like_a_segment_does_not_wake_apply(key: str) -> None:
    assert "ApplyRule" not in woken(key)


EXPIRED = "Lifecycle Expiration"
GONE = [
    ({"reason": "DeleteObject", "deletion-type": "Delete Marker Created"}, True),
    ({"reason": "DeleteObject", "deletion-type": "Permanently Deleted"}, True),
    ({"reason": EXPIRED, "deletion-type": "Delete Marker Created"}, True),
    ({"reason": EXPIRED, "deletion-type": "Permanently Deleted"}, False),
]


@pytest.mark.parametrize(("detail", "wakes"), GONE)
@pytest.mark.parametrize("prefix", ["", "data/"])
def test_a_lifecycle_that_removes_old_versions_wakes_nobody(detail: dict[str, str], wakes: bool, prefix: str) -> None:
    """A bucket that expires a million old versions a night would run capture a million times for nothing; a rule that
    expires documents is a change like any other."""
    key = f"{prefix}org/customers/1/profile.json"
    found = woken(key, "Object Deleted", parameters={"KeyPrefix": prefix}, **detail)
    assert found == ({"CaptureRule"} if wakes else set())


@pytest.mark.parametrize("kind", ["Object Created", "Object Deleted"])
def test_an_event_that_gives_no_reason_wakes_capture(kind: str) -> None:
    """Too much work is better than a change that nobody records."""
    detail = {"bucket": {"name": BUCKET}, "object": {"key": "org/customers/1/profile.json"}}
    assert passed("aws.s3", kind, detail) == {"CaptureRule"}


PREFIX = {"KeyPrefix": "data/"}


def test_with_a_prefix_only_keys_below_it_wake_a_worker() -> None:
    wakes = {"CaptureRule": DOCUMENTS, "TablesRule": CHANGE_SETS, "ApplyRule": SEGMENTS}
    for rule, keys in wakes.items():
        assert {key for key in keys if rule not in woken(f"data/{key}", parameters=PREFIX)} == set()
        others = [key for one, keys in wakes.items() if one != rule and rule != "CaptureRule" for key in keys]
        assert {key for key in others if rule in woken(f"data/{key}", parameters=PREFIX)} == set()
    outside = [*DOCUMENTS, *CHANGE_SETS, *SEGMENTS, "database/1/data.json", "other/data/1.json"]
    assert {key for key in outside if woken(key, parameters=PREFIX)} == set()


def test_with_an_existing_bucket_its_events_count_and_no_others() -> None:
    key, mine = "org/customers/1/data.json", {"ExistingBucketName": "mine"}
    assert woken(key, bucket="mine", parameters=mine) == {"CaptureRule"}
    assert woken(key, parameters=mine) == set()


def test_other_buckets_and_other_sources_wake_nobody() -> None:
    key = "org/customers/1/data.json"
    assert (woken(key, bucket="another"), woken(key, source="custom.app")) == (set(), set())


@pytest.mark.parametrize("layout", ["root", "collection", "inline"])
@pytest.mark.parametrize("folder", ["capture", "tables", "apply"])
def test_no_worker_wakes_itself(folder: str, layout: str) -> None:
    """A worker whose own writes match its rule runs for ever and bills for ever."""
    statements = function(folder).statements(Layout=layout)
    keys = SYSTEM_KEYS + CHANGE_SETS + SEGMENTS
    written = [key for key in keys if is_allowed(statements, "s3:PutObject", key)]
    assert written != []
    assert {key for key in written if f"{folder.title()}Rule" in woken(key)} == set()


@pytest.mark.parametrize("layout", ["root", "collection", "inline"])
def test_nothing_that_purge_writes_or_deletes_wakes_a_worker(layout: str) -> None:
    statements = function("purge").statements(Layout=layout)
    patterns = {one for action in ("s3:PutObject", "s3:DeleteObject") for one in object_patterns(statements, action)}
    touched = [key for key in SYSTEM_KEYS + DOCUMENTS if any(fnmatch.fnmatchcase(key, one) for one in patterns)]
    assert touched != []
    assert {key for key in touched if woken(key) | woken(key, "Object Deleted")} == set()


def test_nothing_that_compact_writes_or_deletes_wakes_a_worker() -> None:
    for action, kind in (("s3:PutObject", "Object Created"), ("s3:DeleteObject", "Object Deleted")):
        patterns = object_patterns(function("compact").statements(), action)
        keys = SYSTEM_KEYS + SEGMENTS
        touched = [key for key in keys if any(fnmatch.fnmatchcase(key, one) for one in patterns)]
        assert touched != []
        assert {key for key in touched if woken(key, kind)} == set()


def test_no_key_that_the_sweep_alone_writes_wakes_a_worker() -> None:
    assert woken(".worm.sweep/cursor.json") == set()


@pytest.mark.parametrize("state", ["SUBMITTED", "RUNNING", "SUCCESS", "CANCELLING", "CANCELLED", "FAILED"])
def test_a_job_run_that_did_not_succeed_is_reported(state: str) -> None:
    """EMR cancels a run that takes too long, so a cancelled one counts as well."""
    kind = "EMR Serverless Job Run State Change"
    own = passed("aws.emr-serverless", kind, {"applicationId": APPLICATION, "state": state})
    other = passed("aws.emr-serverless", kind, {"applicationId": "00f1abd", "state": state})
    assert (own, other) == ({"SparkRule"} if state in ("FAILED", "CANCELLED") else set(), set())


def test_what_a_prefix_lets_through_is_ignored_by_capture_and_costs_no_request() -> None:
    """Below a prefix the rule cannot leave system keys out: capture must neither work on them nor refuse them."""
    bench = SpaceBench(memory=Recorder)
    workspace = bench.workspace()
    Capture(workspace).run([])
    store = bench.store
    assert isinstance(store, Recorder)
    keys = SYSTEM_KEYS + CHANGE_SETS + SEGMENTS
    with store.acting("capture"):
        outcome = Capture(workspace).run([Message(key, created(key)) for key in keys])
    assert (outcome.ignored, outcome.rejected, outcome.failed) == (len(keys), {}, {})
    assert {one.target.partition("/")[2] for one in store.calls} <= {".worm.schema.json"}
