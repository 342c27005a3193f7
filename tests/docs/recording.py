"""The session of `worm doctor` that docs/operations.md shows, made on moto: a stack, its metrics and its queues.

Time is given, and CloudWatch has what is put there, so the text is the same on every run.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from tests.cli.deployed import Deployed
from tests.harness import created
from worm.cli.program import app
from worm.clock import VirtualClock
from worm.formats import load_schema
from worm.sdk.database import connect, push
from worm.store.open import open_store
from worm.upkeep.verify_record import record_verify

NOW = datetime(2026, 2, 24, 12, 0, tzinfo=UTC)
STACK, BUCKET = "acme", "acme-documents"
ALARMS = (
    "dead-letters",
    "rejected",
    "errors",
    "throttles",
    "freshness",
    "silence",
    "sweep-unfinished",
    "unreported",
    "unique-conflicts",
)
FIELDS = {"name": {"type": "string"}}
SCHEMA = {
    "models": {
        "Customer": {"path": "#org/@customers/(id:string)", "file": "data.json", "oplog": True, "fields": FIELDS},
        "Order": {"path": "#org/@orders/(id:string)", "file": "data.json", "oplog": True, "fields": FIELDS},
    }
}


class Metrics:
    """Metrics as CloudWatch has them."""

    def __init__(self, stack: Deployed) -> None:
        self._stack = stack

    def put(self, namespace: str, name: str, dimensions: dict[str, str], value: float, *, minutes_ago: float) -> None:
        data = {
            "MetricName": name,
            "Dimensions": [{"Name": one, "Value": text} for one, text in dimensions.items()],
            "Value": value,
            "Timestamp": NOW - timedelta(minutes=minutes_ago),
        }
        self._stack.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=[data])

    def of_function(self, worker: str, name: str, value: float, *, minutes_ago: float = 5) -> None:
        self.put("AWS/Lambda", name, {"FunctionName": f"{self._stack.name}-{worker}"}, value, minutes_ago=minutes_ago)

    def of_worker(self, worker: str, name: str, value: float, *, minutes_ago: float = 5) -> None:
        dimensions = {"stack": self._stack.name, "service": worker}
        self.put("S3Worm", name, dimensions, value, minutes_ago=minutes_ago)

    def age(self, worker: str, seconds: float, *, minutes_ago: float = 5) -> None:
        dimensions = {"QueueName": f"{self._stack.name}-{worker}"}
        self.put("AWS/SQS", "ApproximateAgeOfOldestMessage", dimensions, seconds, minutes_ago=minutes_ago)


def healthy(stack: Deployed) -> None:
    """A day's work: metrics, two documents, a verify at night."""
    client = stack.client("s3")
    client.put_bucket_versioning(Bucket=stack.bucket, VersioningConfiguration={"Status": "Enabled"})
    client.put_bucket_notification_configuration(
        Bucket=stack.bucket, NotificationConfiguration={"EventBridgeConfiguration": {}}
    )
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    client.put_bucket_encryption(Bucket=stack.bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
    names = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    client.put_public_access_block(Bucket=stack.bucket, PublicAccessBlockConfiguration=dict.fromkeys(names, True))
    metrics = Metrics(stack)
    for worker, runs in {"capture": 1_440, "tables": 1_440, "sweep": 96}.items():
        metrics.of_function(worker, "Invocations", runs - 1, minutes_ago=600)
        metrics.of_function(worker, "Invocations", 1, minutes_ago=5)
        metrics.of_function(worker, "Duration", runs * 400, minutes_ago=600)
    metrics.of_worker("capture", "WriteRequests", 51_200, minutes_ago=600)
    metrics.of_worker("capture", "ReadRequests", 80_000, minutes_ago=600)
    metrics.of_worker("tables", "FreshnessSeconds", 11)


def seed_documents(stack: Deployed) -> None:
    url = f"s3://{stack.bucket}"
    push(open_store(url, endpoint_url=stack.endpoint), load_schema(SCHEMA))
    session = connect(url, endpoint_url=stack.endpoint, maintenance="inline", probe=False)
    session.model("Customer").insert({"id": "acme", "name": "Acme"})
    session.model("Order").insert({"id": "o1", "name": "Paper"})
    nightly = connect(url, endpoint_url=stack.endpoint, probe=False, clock=VirtualClock(NOW - timedelta(hours=9)))
    record_verify(nightly, nightly.verify())


def set_alarms(stack: Deployed) -> None:
    """All alarms, quiet. What they look at is of no matter here."""
    for name in ALARMS:
        stack.client("cloudwatch").put_metric_alarm(
            AlarmName=f"{stack.name}-{name}",
            MetricName="Errors",
            Namespace="AWS/Lambda",
            Period=60,
            EvaluationPeriods=5,
            Statistic="Sum",
            Threshold=1,
            ComparisonOperator="GreaterThanOrEqualToThreshold",
        )
    ring(stack, "OK", *ALARMS)


def ring(stack: Deployed, state: str, *names: str) -> None:
    for name in names:
        stack.client("cloudwatch").set_alarm_state(
            AlarmName=f"{stack.name}-{name}", StateValue=state, StateReason="as the test says"
        )


def outage(stack: Deployed) -> None:
    """Somebody removed a permission from capture's role: uploads wait, and every invocation fails."""
    metrics = Metrics(stack)
    for number in range(12):
        stack.send("capture", created(f"org/customers/c{number}/data.json", bucket=stack.bucket))
    metrics.age("capture", 1_380)
    metrics.of_function("capture", "Errors", 46)
    ring(stack, "ALARM", "errors", "freshness")


def letters(stack: Deployed) -> None:
    """The permission is back, and three uploads are left over: one failed too often, two are no customers."""
    reason = "name: must be a string, not integer"
    for name in ("bad", "worse"):
        body = created(f"org/customers/{name}/data.json", bucket=stack.bucket)
        stack.send("capture-dlq", body, reason=reason)
    stack.send("capture-dlq", created("org/customers/c0/data.json", bucket=stack.bucket))
    stack.client("sqs").purge_queue(QueueUrl=stack.queue("capture"))
    ring(stack, "OK", "errors", "freshness")
    ring(stack, "ALARM", "dead-letters", "rejected")


def recorded(stack: Deployed, monkeypatch: pytest.MonkeyPatch, at: datetime, *arguments: str) -> tuple[int, str]:
    """Exit code and screen of `worm doctor` at this time."""
    monkeypatch.setattr("worm.cli.doctor.SystemClock", lambda: VirtualClock(at))
    ended = CliRunner().invoke(app, ["doctor", "--stack", stack.name, *arguments], catch_exceptions=False)
    assert ended.stderr == ""
    return ended.exit_code, ended.stdout
