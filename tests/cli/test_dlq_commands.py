"""`worm dlq`: every kind of dead letter is listed, goes where it belongs, and is removed only then."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.company import SCHEMA, Command
from tests.cli.deployed import ACCOUNT, Deployed
from tests.emulators import CREDENTIALS, new_bucket
from tests.harness import created
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.open import open_store
from worm.upkeep import dead_letters
from worm.upkeep.deployment.aws import Aws

pytestmark = pytest.mark.slow  # together more than a few seconds

ACME, ZETA = "in/org/customers/acme/data.json", "in/org/customers/zeta/data.json"
RULE = f"arn:aws:events:us-east-1:{ACCOUNT}:rule/capture"
UNDELIVERED = {"ERROR_CODE": "NO_PERMISSIONS", "ERROR_MESSAGE": "not\nauthorized", "RULE_ARN": RULE}
SWEEP_EVENT = {"models": ["Customer"]}


def invocation(function: str) -> str:
    """What Lambda sends after a failed asynchronous invocation."""
    context = {
        "requestId": "8c3b",
        "functionArn": f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:{function}:$LATEST",
        "condition": "RetriesExhausted",
        "approximateInvokeCount": 3,
    }
    failure = {"errorType": "Corrupt", "errorMessage": "entry 3 is damaged"}
    return json.dumps(
        {"version": "1.0", "requestContext": context, "requestPayload": SWEEP_EVENT, "responsePayload": failure}
    )


@pytest.fixture
def stack(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch, worm: Command) -> Deployed:
    """A stack on a bucket with a pushed schema below `in/`, named by the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    bucket = new_bucket(moto_endpoint)
    Worm(open_store(f"s3://{bucket}/in", endpoint_url=moto_endpoint), load_schema(SCHEMA), probe=False).push()
    made = Deployed(moto_endpoint, f"s-{bucket}", bucket, "in/").create()
    monkeypatch.setenv("WORM_STACK", made.name)
    return made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The requests of the command that change something, in order."""
    made: list[tuple[str, Any]] = []
    plain = Aws.client

    def client(self: Aws, service: str) -> Any:
        is_new = service not in self._clients
        found = plain(self, service)
        if is_new:
            found.meta.events.register("provide-client-params.*", lambda params, model, **_: note(model.name, params))
        return found

    def note(name: str, params: Any) -> None:
        if name in ("SendMessage", "DeleteMessage", "Invoke", "StartJobRun", "ChangeMessageVisibilityBatch"):
            made.append((name, params))

    monkeypatch.setattr(Aws, "client", client)
    return made


def listed(worm: Command, *arguments: str) -> list[dict[str, Any]]:
    ended = worm("dlq", "list", *arguments, "--format", "json")
    assert ended.exit_code == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def facts(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    return sorted((row["queue"], row["kind"], row["model"], row["key"], row["reason"]) for row in rows)


@pytest.fixture
def filled(stack: Deployed) -> Deployed:
    """One of every kind."""
    stack.send("capture-dlq", created(ACME, bucket=stack.bucket), reason="name: must be a string")
    stack.send("capture-dlq", created(ZETA, bucket=stack.bucket))
    stack.send("capture-dlq", created(ZETA, bucket=stack.bucket), **UNDELIVERED)
    stack.send("capture-dlq", "not JSON")
    stack.send("sweep-dlq", invocation(f"{stack.name}-sweep"))
    stack.send("sweep-dlq", "{}", ERROR_CODE="THROTTLED", SCHEDULE_ARN="arn:aws:scheduler:::schedule/default/sweep")
    detail = {"applicationId": "app", "jobRunId": "run", "jobRunName": "rebuild", "state": "FAILED"}
    stack.send("spark-dlq", json.dumps({"source": "aws.emr-serverless", "detail-type": "x", "detail": detail}))
    return stack


def test_every_kind_is_told_with_what_it_is_about_and_why(worm: Command, filled: Deployed) -> None:
    rows = [row | {"model": row["model"] or "", "key": row["key"] or ""} for row in listed(worm)]
    assert facts(rows) == [
        ("capture", "failed", "Customer", ZETA, "it failed too often"),
        ("capture", "rejected", "Customer", ACME, "name: must be a string"),
        ("capture", "undelivered", "Customer", ZETA, "NO_PERMISSIONS: not authorized"),
        ("capture", "unknown", "", "", "the message is not a JSON object"),
        ("spark", "job", "", "", "rebuild FAILED"),
        ("sweep", "invocation", "", "", "Corrupt: entry 3 is damaged"),
        ("sweep", "undelivered", "", "", "THROTTLED"),
    ]
    assert len(filled.waiting("capture-dlq")) == 4, "to look must not hide messages from others"
    shown = worm("dlq", "list", "sweep", "--reason", "DAMAGED")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[-1] == "sweep: 1 dead letter (1 invocation)"
    counted = worm("dlq", "list", "capture").stdout.splitlines()[-1]
    assert counted.startswith("capture: 4 dead letters (1 ")
    assert worm("dlq", "list", "tables").stdout == "no dead letters\n"


def test_a_letter_is_shown_whole(worm: Command, filled: Deployed) -> None:
    [row] = listed(worm, "capture", "--key", "*/acme/*")
    shown = worm("dlq", "show", "--id", row["id"][:8])
    assert shown.exit_code == 0
    head, brace, body = shown.stdout.partition("{\n")
    assert "reason:     name: must be a string\n" in head
    assert json.loads(brace + body) == json.loads(created(ACME, bucket=filled.bucket))
    [whole] = json.loads(worm("dlq", "show", "--key", ACME, "--format", "json").stdout)
    assert whole["attributes"] == {"reason": "name: must be a string"}
    assert whole["body"] == created(ACME, bucket=filled.bucket)
    missed = worm("dlq", "show", "--id", "none-such")
    assert re.fullmatch(r"none of \d+ dead letters matches\n", missed.stdout), "a typo must not look like done"


def test_events_go_to_their_queue_and_their_letters_go_after_that(
    worm: Command, filled: Deployed, calls: list[tuple[str, Any]]
) -> None:
    """A letter that is deleted before it is sent is a change that nobody records until the next sweep."""
    planned = worm("dlq", "redrive", "capture", "--key", "in/*", "--dry-run")
    assert (planned.exit_code, planned.stdout.count("would be sent to")) == (0, 3)
    assert [name for name, _ in calls if name != "ChangeMessageVisibilityBatch"] == []
    done = worm("dlq", "redrive", "capture", "--key", "in/*")
    assert (done.exit_code, done.stderr) == (0, "")
    made = [name for name, _ in calls if name != "ChangeMessageVisibilityBatch"]
    assert made == ["SendMessage", "DeleteMessage"] * 3
    event = created(ZETA, bucket=filled.bucket)
    assert filled.waiting("capture") == sorted([created(ACME, bucket=filled.bucket), event, event])
    assert filled.waiting("capture-dlq") == ["not JSON"]
    assert all("MessageAttributes" not in params for name, params in calls if name == "SendMessage")


def test_a_letter_whose_queue_refuses_it_stays(worm: Command, filled: Deployed) -> None:
    """Redriving into a queue that is gone would lose what is redriven."""
    gone = worm("dlq", "redrive", "capture", "--all", "--to", f"{filled.queue('capture')}-gone")
    assert (gone.exit_code, "4 of 4 messages failed" in gone.stderr) == (3, True)
    assert len(filled.waiting("capture-dlq")) == 4


def test_failed_runs_of_a_function_are_invoked_again_with_their_event(
    worm: Command, filled: Deployed, calls: list[tuple[str, Any]]
) -> None:
    filled.create_functions()
    done = worm("dlq", "redrive", "sweep", "--all")
    assert (done.exit_code, done.stderr) == (0, "")
    invoked = [params for name, params in calls if name == "Invoke"]
    assert {one["FunctionName"] for one in invoked} == {f"{filled.name}-sweep"}
    assert sorted(one["Payload"] for one in invoked) == [json.dumps(SWEEP_EVENT).encode(), b"{}"]
    assert filled.waiting("sweep-dlq") == []


def test_failed_and_undelivered_spark_jobs_are_started_again(
    worm: Command, stack: Deployed, calls: list[tuple[str, Any]]
) -> None:
    emr = stack.client("emr-serverless")
    application = emr.create_application(name=stack.name, releaseLabel="emr-7.0.0", type="SPARK")["applicationId"]
    role, driver = f"arn:aws:iam::{ACCOUNT}:role/spark", {"sparkSubmit": {"entryPoint": "s3://code/launch.py"}}
    asked = {"applicationId": application, "executionRoleArn": role, "jobDriver": driver, "name": "rebuild"}
    run = emr.start_job_run(**asked)["jobRunId"]
    detail = {"applicationId": application, "jobRunId": run, "jobRunName": "rebuild", "state": "FAILED"}
    stack.send("spark-dlq", json.dumps({"source": "aws.emr-serverless", "detail-type": "x", "detail": detail}))
    schedule = {
        "ApplicationId": application,
        "ClientToken": "one",
        "ExecutionRoleArn": role,
        "JobDriver": {"SparkSubmit": {"EntryPoint": "s3://code/launch.py"}},
        "Name": "rebuild",
    }
    target = "arn:aws:scheduler:::aws-sdk:emrserverless:startJobRun"
    stack.send("spark-dlq", json.dumps(schedule), ERROR_CODE="ThrottlingException", TARGET_ARN=target)
    done = worm("dlq", "redrive", "spark", "--all")
    assert (done.exit_code, done.stdout.count("started rebuild")) == (0, 2), done.stderr
    started = [params for name, params in calls if name == "StartJobRun"]
    assert [{name: one[name] for name in asked} for one in started] == [asked, asked]
    assert stack.waiting("spark-dlq") == []


def test_a_queue_by_its_url_knows_its_source_by_itself(worm: Command, filled: Deployed) -> None:
    done = worm("dlq", "redrive", "--queue", filled.queue("capture-dlq"), "--reason", "must be")
    assert (done.exit_code, f"sent to {filled.name}-capture" in done.stdout) == (0, True)
    assert filled.waiting("capture") == [created(ACME, bucket=filled.bucket)]
    filled.create_functions()
    by_envelope = worm("dlq", "redrive", "--queue", filled.queue("sweep-dlq"), "--reason", "Corrupt")
    assert (by_envelope.exit_code, f"invoked {filled.name}-sweep" in by_envelope.stdout) == (0, True)
    unclear = worm("dlq", "redrive", "--queue", filled.queue("sweep-dlq"), "--all")
    assert (unclear.exit_code, "name a queue with --to, or drop" in unclear.stdout) == (2, True)


def test_dropping_needs_a_yes(worm: Command, filled: Deployed) -> None:
    planned = worm("dlq", "drop", "capture", "--all")
    assert (planned.exit_code, planned.stdout.count("would be dropped")) == (0, 4)
    assert planned.stderr == "worm: nothing was dropped; pass --yes to drop them\n"
    assert len(filled.waiting("capture-dlq")) == 4
    assert worm("dlq", "drop", "capture", "--reason", "not a JSON", "--yes").exit_code == 0
    assert len(filled.waiting("capture-dlq")) == 3
    assert worm("dlq", "drop", "capture", "--all", "--yes").exit_code == 0
    assert filled.waiting("capture-dlq") == []
    assert worm("dlq", "drop", "capture", "--all", "--yes").stdout == "no dead letters\n"


def test_an_empty_filter_never_means_all(worm: Command, filled: Deployed) -> None:
    """`worm dlq drop --id "$ID" --yes` with a variable that is not set deleted every dead letter."""
    filters = {verb: ["id", "reason", "key"] for verb in ("show", "redrive", "drop")} | {"list": ["reason", "key"]}
    for verb, name in ((verb, name) for verb, names in filters.items() for name in names):
        ended = worm("dlq", verb, "capture", f"--{name}", "", *(["--yes"] if verb == "drop" else []))
        assert (ended.exit_code, f"the {name} is empty" in ended.stderr) == (2, True), (verb, name, ended)
        assert len(filled.waiting("capture-dlq")) == 4, (verb, name)


def test_mistakes_are_told(worm: Command, stack: Deployed) -> None:
    mistakes: dict[tuple[str, ...], tuple[int, str]] = {
        ("redrive",): (2, "pass --all"),
        ("redrive", "--all", "--key", "x"): (2, "pass --all"),
        ("list", "nothing"): (3, "it has capture, spark, sweep, tables"),
        ("list", "capture", "--queue", "http://127.0.0.1/q"): (2, "a NAME is for the queues of a stack"),
        ("list", "--stack", "nowhere"): (3, "--stack or WORM_STACK"),
        ("list", "--stack", ""): (2, "which stack?"),
        ("list", "--queue", f"{stack.queue('capture-dlq')}-gone"): (3, "check --queue"),
    }
    for arguments, (code, told) in mistakes.items():
        ended = worm("dlq", *arguments)
        assert (ended.exit_code, told in ended.stderr, ended.stderr.count("\n")) == (code, True, 1), ended.stderr


def test_a_queue_with_more_than_is_received_says_so_and_hides_none(
    worm: Command, stack: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of millions must neither take for ever nor be hidden from others."""
    monkeypatch.setattr(dead_letters, "LETTERS_MAX", 10)
    for number in range(12):
        stack.send("capture-dlq", created(f"in/org/customers/c{number:02}/data.json", bucket=stack.bucket))
    shown = worm("dlq", "list")
    assert "about 2 more of capture were not received" in shown.stderr
    assert len(listed(worm)) == 10
    sqs = stack.client("sqs")
    names = ["ApproximateNumberOfMessages"]
    found = sqs.get_queue_attributes(QueueUrl=stack.queue("capture-dlq"), AttributeNames=names)
    assert found["Attributes"] == {"ApproximateNumberOfMessages": "12"}


def test_letters_come_back_when_the_command_fails_in_the_middle(stack: Deployed, moto_endpoint: str) -> None:
    stack.send("capture-dlq", "{}")
    queue = dead_letters.DeadLetterQueue(Aws(moto_endpoint), "capture", stack.queue("capture-dlq"))

    def look(act: Callable[[], None]) -> None:
        with queue.letters() as letters:
            assert [one.body for one in letters] == ["{}"]
            act()

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look(fail)
    assert stack.waiting("capture-dlq") == ["{}"]


def test_of_several_queues_a_message_goes_back_to_the_one_that_it_came_from(
    worm: Command, stack: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs, dead = stack.client("sqs"), f"{stack.name}-shared-dlq"
    sqs.create_queue(QueueName=dead)
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{dead}"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    for name in ("one", "two"):
        sqs.create_queue(QueueName=f"{stack.name}-{name}", Attributes={"RedrivePolicy": policy})
    plain = Aws.client

    def client(self: Aws, service: str) -> Any:
        """With the attribute by which SQS says where it took a message from; moto leaves it out."""
        found = plain(self, service)
        found.meta.events.register("after-call.sqs.ReceiveMessage", from_two)
        return found

    def from_two(parsed: Any, **_: Any) -> None:
        for one in parsed.get("Messages", ()):
            if "MessageAttributes" not in one:
                one["Attributes"]["DeadLetterQueueSourceArn"] = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{stack.name}-two"

    monkeypatch.setattr(Aws, "client", client)
    stack.send("shared-dlq", created(ACME, bucket=stack.bucket))
    stack.send("shared-dlq", created(ZETA, bucket=stack.bucket), reason="no schema fits")
    done = worm("dlq", "redrive", "--queue", stack.queue("shared-dlq"), "--key", ACME)
    assert (done.exit_code, f"sent to {stack.name}-two" in done.stdout) == (0, True), done.stdout
    unclear = worm("dlq", "redrive", "--queue", stack.queue("shared-dlq"), "--all")
    assert (unclear.exit_code, "name the right one with --to" in unclear.stdout) == (2, True)
    told = worm("dlq", "redrive", "--queue", stack.queue("shared-dlq"), "--all", "--to", stack.queue("one"))
    assert told.exit_code == 0
    assert (stack.waiting("one"), stack.waiting("shared-dlq")) == ([created(ZETA, bucket=stack.bucket)], [])


def test_what_is_rejected_again_meanwhile_is_not_redriven_again(
    worm: Command, stack: Deployed, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One document that breaks its schema would go round between queue and dead letters as long as the command runs."""
    stack.send("capture-dlq", created(ACME, bucket=stack.bucket), reason="name: must be a string")
    plain = Aws.client

    def client(self: Aws, service: str) -> Any:
        found = plain(self, service)
        found.meta.events.register("after-call.sqs.SendMessage", bury, unique_id="bury")
        found.meta.events.register("after-call.sqs.ReceiveMessage", ten_seconds_later, unique_id="later")
        return found

    def bury(**_: Any) -> None:
        stack.send("capture-dlq", stack.waiting("capture")[0], reason="again")

    def ten_seconds_later(parsed: Any, **_: Any) -> None:
        for one in parsed.get("Messages", ()):
            if one["MessageAttributes"]["reason"]["StringValue"] == "again":
                one["Attributes"]["SentTimestamp"] = str(int(one["Attributes"]["SentTimestamp"]) + 10_000)

    monkeypatch.setattr(Aws, "client", client)
    assert worm("dlq", "redrive", "capture", "--all").exit_code == 0
    assert [name for name, _ in calls].count("SendMessage") == 1
    assert len(stack.waiting("capture-dlq")) == 1
