"""The payloads of this folder are what the functions understand, and the table in README.md names each."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.events.make_events import BUCKET
from worm.errors import WormError
from worm.log.keys import DbKeys
from worm.upkeep.workers.batch import KeyHint, hints_of

HERE = Path(__file__).resolve().parent
ACME, ACME_CORP, ZETA = (f"org/invoices/{name}/data.json" for name in ("acme", "acme corp", "zeta"))
CHANGE_SET = ".worm.changes/invoices/01JMVT3Q00EXAMPLE0000000000.json"
SEGMENT, BRANCH_SEGMENT = (
    f"db/main/{branch}log/00000000000000000007" for branch in ("", "branches/01JMVT3Q00EXAMPLE000000000/")
)
AWS_VERSION = "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e"
ACCOUNT = "123456789012"

KEYS: dict[str, list[list[str] | None]] = {
    "apply-eventbridge-segments": [[SEGMENT], [BRANCH_SEGMENT]],
    "capture-eventbridge-created": [[ACME]],
    "capture-eventbridge-created-localstack": [[ACME]],
    "capture-eventbridge-created-moto": [[ACME]],
    "capture-eventbridge-deleted": [[ACME]],
    "capture-eventbridge-deleted-localstack": [[ACME]],
    "capture-eventbridge-removed": [[ACME], [ACME]],
    "capture-foreign-bucket": [[]],
    "capture-mixed-batch": [[ACME], None, [ZETA]],
    "capture-s3-created-localstack": [[ACME_CORP]],
    "capture-s3-created-moto": [[ACME_CORP]],
    "capture-s3-delete": [[ACME]],
    "capture-s3-put": [[ACME]],
    "capture-s3-removed": [[ACME]],
    "capture-s3-test-event-localstack": [[]],
    "capture-s3-test-event-moto": [[]],
    "tables-eventbridge-change-set": [[CHANGE_SET]],
}
"""File → the keys that each message hints at; None for a message that is refused."""


OTHERS = ["api-function-url", "api-http-api-jwt", "compact-schedule", "purge-schedule", "sweep-schedule"]
"""Those that come through no queue."""


def _bodies(name: str) -> list[str]:
    return [record["body"] for record in json.loads((HERE / f"{name}.json").read_text())["Records"]]


def _keys(body: str) -> list[str] | None:
    try:
        return [hint.key for hint in hints_of(body, bucket=BUCKET)]
    except WormError:
        return None


@pytest.mark.parametrize("name", KEYS)
def test_a_payload_hints_at_the_keys_it_is_about(name: str) -> None:
    assert [_keys(body) for body in _bodies(name)] == KEYS[name]


@pytest.mark.parametrize("name", ["capture-eventbridge-created", "capture-eventbridge-deleted"])
def test_an_event_of_a_versioned_bucket_names_the_version_and_who_made_it(name: str) -> None:
    assert hints_of(_bodies(name)[0], bucket=BUCKET) == [KeyHint(ACME, AWS_VERSION, ACCOUNT)]


def test_an_event_tells_the_removal_of_a_version_from_a_delete() -> None:
    """A removal names a version that is recorded, and is a reason to look all the same."""
    for name in ("capture-eventbridge-removed", "capture-s3-removed"):
        hints = [hint for body in _bodies(name) for hint in hints_of(body, bucket=BUCKET)]
        assert {(hint.version_id, hint.is_removal) for hint in hints} == {(AWS_VERSION, True)}
    for name in ("capture-eventbridge-deleted", "capture-eventbridge-deleted-localstack", "capture-s3-delete"):
        assert [hint.is_removal for body in _bodies(name) for hint in hints_of(body, bucket=BUCKET)] == [False]


@pytest.mark.parametrize("name", KEYS)
def test_a_queue_payload_has_the_envelope_that_sqs_sends(name: str) -> None:
    records = json.loads((HERE / f"{name}.json").read_text())["Records"]
    digests = [hashlib.md5(record["body"].encode(), usedforsecurity=False).hexdigest() for record in records]
    assert [record["md5OfBody"] for record in records] == digests
    assert {record["eventSource"] for record in records} == {"aws:sqs"}
    assert len({record["messageId"] for record in records}) == len(records)


def test_the_segments_of_a_payload_are_those_that_apply_looks_for() -> None:
    found = [DbKeys.of_segment(key) for key in (SEGMENT, BRANCH_SEGMENT)]
    assert found == [(DbKeys("main"), 7), (DbKeys("main", "01JMVT3Q00EXAMPLE000000000"), 7)]


def test_the_table_of_the_readme_names_every_payload() -> None:
    named = re.findall(r"^\| ([\w-]+)\.json \|", (HERE / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(path.stem for path in HERE.glob("*-*.json"))
    assert sorted(named) == sorted([*KEYS, *OTHERS])
