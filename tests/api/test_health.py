"""How the database is by HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api.client import Client
from tests.api.shop import SCHEMA, Shop
from worm.api import health
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.sdk.database import connect
from worm.upkeep.dead_letters import DeadLetterQueue


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    for name in ("WORM_STACK", "WORM_DLQ_URL"):
        monkeypatch.delenv(name, raising=False)
    made = Shop()
    made.session.model("Note").insert({"id": "a", "title": "x"})
    return made


def test_health_without_aws_tells_store_schema_freshness_and_verify(shop: Shop) -> None:
    found = shop.get("/v1/health").json
    assert (found["status"], found["stack"]) == ("ok", None)
    areas = [one["area"] for one in found["findings"]]
    assert [*dict.fromkeys(areas)] == ["store", "verify", "freshness"]
    fresh = {
        one["facts"]["model"]: one["facts"]["updatedAt"] for one in found["findings"] if one["area"] == "freshness"
    }
    assert fresh["Note"] == "2026-01-01T00:00:00Z"


def test_a_damaged_table_does_not_break_the_answer(shop: Shop) -> None:
    shop.session.store.put(shop.session.resolver.manifest_key("Note"), b"not a manifest")
    assert shop.get("/v1/health").status == 200


def test_without_a_queue_nothing_is_rejected_and_that_is_said(shop: Shop) -> None:
    assert shop.get("/v1/rejected").json == {"items": [], "available": False, "more": 0}
    assert shop.call("POST", "/v1/rejected/x/redrive").slug == "no-queue"


def test_a_stack_is_not_asked_about_a_store_that_is_no_bucket(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORM_STACK", "some-stack")
    assert shop.get("/v1/rejected").json["available"] is False
    assert shop.get("/v1/health").json["stack"] is None


class Queue:
    """What SQS says of one dead letter."""

    def __init__(self) -> None:
        body = {"detail-type": "Object Created", "source": "aws.s3", "detail": {"bucket": {"name": "b"}}}
        body["detail"]["object"] = {"key": "org/notes/bad/data.json"}  # type: ignore[index]  # it is an object
        self.letters = [{"MessageId": "m1", "ReceiptHandle": "r1", "Body": json.dumps(body)}]
        self.sent: list[dict[str, Any]] = []
        self.attributes: dict[str, Any] = {"reason": {"StringValue": "not JSON"}}

    def get_queue_attributes(self, **_: object) -> dict[str, Any]:
        attributes = {
            "ApproximateNumberOfMessages": str(len(self.letters)),
            "ApproximateNumberOfMessagesNotVisible": "0",
        }
        date = {"HTTPHeaders": {"date": "Thu, 01 Jan 2026 00:00:00 GMT"}}
        return {"Attributes": attributes, "ResponseMetadata": date}

    def receive_message(self, **_: object) -> dict[str, Any]:
        return {"Messages": [{**one, "MessageAttributes": self.attributes, "Attributes": {}} for one in self.letters]}

    def change_message_visibility_batch(self, **_: object) -> None:
        """Given back."""

    def list_dead_letter_source_queues(self, **_: object) -> dict[str, Any]:
        return {"queueUrls": ["https://sqs/1/capture"]}

    def send_message(self, **message: Any) -> None:
        self.sent.append(message)

    def delete_message(self, **_: object) -> None:
        self.letters.clear()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    """One that is known."""
    made = Queue()

    class FakeAws:
        def client(self, service: str) -> Queue:
            return made

    letters = [DeadLetterQueue(FakeAws(), "capture-dlq", "https://sqs/1/capture-dlq")]  # type: ignore[arg-type]  # enough of it
    monkeypatch.setattr(health, "_queues", lambda call: letters)
    return made


def test_dead_letters_are_listed_with_model_and_reason(shop: Shop, queue: Queue) -> None:
    found = shop.get("/v1/rejected").json
    assert found["available"] is True
    [letter] = found["items"]
    assert (letter["id"], letter["kind"], letter["key"]) == ("m1", "rejected", "org/notes/bad/data.json")
    assert (letter["reason"], letter["model"]) == ("not JSON", "Note")


def test_a_dead_letter_is_sent_where_it_belongs(shop: Shop, queue: Queue) -> None:
    assert shop.call("POST", "/v1/rejected/other/redrive").slug == "not-found"
    done = shop.call("POST", "/v1/rejected/m1/redrive")
    assert (done.status, done.json["result"]) == (200, "sent to capture")
    assert queue.sent[0]["QueueUrl"] == "https://sqs/1/capture"
    assert queue.letters == []


def test_a_spark_job_is_started_again_by_a_person(shop: Shop, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The role of the function may not start jobs: a failure in the middle would say nothing of the way out."""
    monkeypatch.setenv("WORM_STACK", "acme")
    queue.letters[0]["Body"] = json.dumps({"source": "aws.emr-serverless", "detail": {"state": "FAILED"}})
    queue.attributes = {}
    deployed = Shop(ApiSettings(is_local=False))
    refused = deployed.call("POST", "/v1/rejected/m1/redrive")
    assert (refused.status, refused.slug) == (501, "spark-job")
    assert "worm dlq redrive spark --id m1 --stack acme" in refused.json["hint"]
    assert len(queue.letters) == 1
    queue.letters[0]["Body"] = json.dumps({"ApplicationId": "a", "Name": "rebuild"})
    queue.attributes = {"TARGET_ARN": {"StringValue": "arn:aws:scheduler:::aws-sdk:emrserverless:startJobRun"}}
    assert deployed.call("POST", "/v1/rejected/m1/redrive").slug == "spark-job"


def test_why_explains_a_key(shop: Shop) -> None:
    key = shop.session.collection("Note").documents.key("a")
    found = shop.get("/v1/why", {"key": key}).json
    assert (found["verdict"], found["model"], found["id"], found["entry"]["seq"]) == ("recorded", "Note", "a", 1)
    assert shop.get("/v1/why", {"key": "nowhere"}).json["verdict"] == "unmatched"
    assert shop.get("/v1/why").status == 400


@pytest.mark.parametrize("key", ["%00", "org/%00", "x" * 5000])
def test_why_takes_a_key_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.chdir(tmp_path)
    session = connect(str(tmp_path), schema=SCHEMA)
    found = Client(Api(lambda: session)).get("/v1/why", f"key={key}")
    assert found.status in (200, 400)
    session.close()


def test_cost_is_estimated_from_what_a_month_is_made_of(shop: Shop) -> None:
    found = shop.get("/v1/cost", {"changes": "1e6", "queries": "1000", "change": "update"}).json
    assert found["usdPerMonth"] == pytest.approx(sum(one["usd"] for one in found["lines"]), abs=1e-4)
    assert found["units"]["a million changes"] > 0


@pytest.mark.parametrize(
    "query", [{"changes": "x"}, {"changes": "-1"}, {"batch": "0"}, {"change": "x"}, {"events": "x"}, {"queries": "inf"}]
)
def test_a_wrong_estimate_is_refused(shop: Shop, query: dict[str, str]) -> None:
    assert shop.get("/v1/cost", urlencode(query)).status == 400


def test_somebody_with_some_models_does_not_see_the_whole_database() -> None:
    shop = Shop(models=frozenset({"Note"}))
    for path in ("/v1/health", "/v1/rejected", "/v1/why?key=x"):
        path, _, query = path.partition("?")
        assert shop.get(path, query).slug == "scope"
    assert shop.call("POST", "/v1/rejected/x/redrive").slug == "scope"
