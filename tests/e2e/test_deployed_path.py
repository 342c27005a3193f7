from __future__ import annotations

import json
import time

import pytest

from tests.e2e.conftest import SCHEMA, Deployment
from worm.formats import load_schema
from worm.sdk.database import Worm

pytestmark = [pytest.mark.slow]


def test_an_upload_by_any_client_appears_in_the_table_with_its_history(deployment: Deployment) -> None:
    deployment.upload([1, 2, 3], {"status": "active"})
    deployment.upload([2], {"status": "inactive"})
    deployment.remove([3])
    deployment.environment.wait_quiet(60)

    db = Worm(deployment.store, load_schema(SCHEMA), maintenance="events")
    customers = db.model("Customer")
    assert customers.find_all(sort={"field": "name"}, select=["name", "status"]) == [
        {"id": "c0001", "name": "n1", "status": "active"},
        {"id": "c0002", "name": "n2", "status": "inactive"},
    ]
    assert [entry.op for entry in customers.get_history("c0002")] == ["create", "update"]
    assert [entry.op for entry in customers.get_history("c0003")] == ["create", "delete"]
    assert customers.get_history("c0001")[0].actor == "000000000000"

    manifest = "org/customers/.worm.manifest.json"
    tags = deployment.s3.get_object_tagging(Bucket=deployment.environment.bucket, Key=manifest)["TagSet"]
    assert tags == [{"Key": "worm", "Value": "derived"}], "a lifecycle rule finds what can be rebuilt by its tag"

    document = customers.find_by_id("c0001")
    assert document is not None
    with deployment.store.requests.measure() as spent:
        customers.save(document | {"status": "churned"}, actor="user:ann")
    assert spent["PUT"] == 1
    assert "LIST" not in spent
    deployment.environment.wait_quiet(60)
    assert customers.get_history("c0001")[1].actor == "user:ann"
    assert deployment.verify().differences == []


def test_bad_uploads_end_in_the_dead_letter_queue_with_their_reason(deployment: Deployment) -> None:
    bucket = deployment.environment.bucket
    bad = {
        "org/customers/notjson/profile.json": b"{oops",
        "org/customers/wrongtype/profile.json": b'{"name": 5}',
        "org/customers/twice/profile.json": b'{"name": "a", "name": "b"}',
        "org/customers/nan/profile.json": b'{"score": NaN}',
        "org/customers/large/profile.json": b'{"name": "' + b"x" * (50 * 1024 * 1024) + b'"}',
        "org/customers/a%2e/profile.json": b"{}",
    }
    for key, body in bad.items():
        deployment.s3.put_object(Bucket=bucket, Key=key, Body=body)
    deployment.s3.put_object(Bucket=bucket, Key="pictures/cat.png", Body=b"meow")
    deployment.upload([1], {"status": "active"})
    deployment.s3.put_object(Bucket=bucket, Key="org/customers/jane doe+1@acme.com/profile.json", Body=b"{}")
    deployment.environment.wait_quiet(90)

    letters = deployment.environment.dlq_messages("capture")
    found = {
        json.loads(letter["Body"])["detail"]["object"]["key"]: letter["MessageAttributes"]["reason"]["StringValue"]
        for letter in letters
    }
    assert sorted(found) == sorted(bad)
    assert "name" in found["org/customers/wrongtype/profile.json"]
    assert "52428812" in found["org/customers/large/profile.json"]
    assert deployment.environment.counts.functions["capture"].errors == 0
    for key, body in bad.items():
        assert deployment.s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body, "the document is untouched"
    report = deployment.verify()
    assert report.differences == []
    assert (report.documents, report.entries) == (7, 2)
    odd = Worm(deployment.store, load_schema(SCHEMA)).model("Customer").get_history("jane doe+1@acme.com")
    assert [entry.op for entry in odd] == ["create"]

    deployment.s3.put_object(Bucket=bucket, Key="org/customers/notjson/profile.json", Body=b'{"name": "now good"}')
    deployment.environment.wait_quiet(30)
    assert deployment.environment.redrive("capture") == len(bad)
    deployment.environment.wait_quiet(90)
    assert len(deployment.environment.dlq_messages("capture")) == len(bad) - 1, "what was mended is done on redrive"
    assert deployment.verify().differences == []


def test_an_outage_shows_as_errors_of_the_function_and_loses_nothing(deployment: Deployment) -> None:
    """All messages failed, came again and went to the dead-letter queue after an hour. No invocation had failed."""
    environment = deployment.environment
    numbers = [1, 2, 3]
    damaged = [f".oplog/customers/c{number:04}/0001.json" for number in numbers]
    for key in damaged:
        deployment.store.put(key, b"{")  # which fails each message by itself, as a missing permission does
    deployment.upload(numbers, {"status": "active"})
    deadline = time.monotonic() + 90
    while environment.counts.functions["capture"].errors == 0:
        assert time.monotonic() < deadline, "no invocation has failed"
        time.sleep(0.1)
    for key in damaged:
        deployment.store.delete(key)
    environment.wait_quiet(60)
    environment.redrive("capture")  # what failed too often meanwhile
    environment.wait_quiet(60)
    assert environment.dlq_messages("capture") == []
    report = deployment.verify()
    assert (report.differences, report.documents, report.entries) == ([], 3, 3)
