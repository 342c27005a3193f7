"""`worm doctor`: what it makes of a directory, a bucket and a stack; what it cannot read; its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.cli.company import SCHEMA, Command
from tests.cli.deployed import Deployed
from tests.docs.recording import NOW, Metrics, healthy
from tests.emulators import new_bucket
from worm.clock import VirtualClock
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.open import open_store
from worm.upkeep.deployment.aws import Aws
from worm.upkeep.deployment.checkup import span
from worm.upkeep.deployment.stack import Stack
from worm.upkeep.verify_record import VERIFY_KEY

_READ = Stack.read
Found = dict[str, list[tuple[str, str]]]


@pytest.fixture
def stack(worm: Command, moto_endpoint: str, aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """A stack that is well, seen at NOW."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    monkeypatch.setattr("worm.cli.doctor.SystemClock", lambda: VirtualClock(NOW))
    bucket = new_bucket(moto_endpoint)
    Worm(open_store(f"s3://{bucket}", endpoint_url=moto_endpoint), load_schema(SCHEMA), probe=False).push()
    made = Deployed(moto_endpoint, f"d-{bucket}", bucket).create()
    healthy(made)
    return made


def seen(worm: Command, code: int, *arguments: str) -> Found:
    """By area: state and command of each finding."""
    ended = worm("doctor", *arguments, "--format", "json")
    assert (ended.exit_code, ended.stderr) == (code, ""), ended.stdout
    found: Found = {}
    for one in json.loads(ended.stdout)["findings"]:
        assert one["state"] != "trouble" or one["next"], one
        found.setdefault(one["area"], []).append((one["state"], one["next"] or ""))
    return found


def states(found: Found) -> dict[str, list[str]]:
    return {area: [state for state, _ in one] for area, one in found.items()}


WELL = {
    "stack": ["ok"],
    "store": ["ok"],
    "bucket": ["ok"],
    "queues": ["ok"],
    "dead letters": ["ok"],
    "freshness": ["ok"],
    "functions": ["ok"],
    "sweep": ["ok"],
    "alarms": ["ok"],
    "verify": ["note"],
    "cost": ["ok"],
}


def test_a_directory_is_judged_by_what_it_has(worm: Command, url: str, session: Worm) -> None:
    found = seen(worm, 0, "--url", url)
    assert found == {"store": [("ok", "")], "verify": [("note", f"worm verify --record --url {url}")]}
    assert worm("verify", "--record", "--url", url).exit_code == 0
    assert states(seen(worm, 0, "--url", url)) == {"store": ["ok"], "verify": ["ok"]}
    session.store.put("org/customers/acme/data.json", b'{"name": "By hand"}')
    assert worm("verify", "--record", "--url", url).exit_code == 1
    assert seen(worm, 1, "--url", url)["verify"] == [("trouble", f"worm repair --url {url}")]
    session.store.put(VERIFY_KEY, b'{"version": 1, "at": "never"}')
    assert seen(worm, 1, "--url", url)["verify"] == [("trouble", f"worm why {VERIFY_KEY} --url {url}")]


def test_a_record_is_of_all_models_and_only_on_request(worm: Command, url: str, session: Worm) -> None:
    assert worm("verify", "--url", url).exit_code == 0
    assert session.store.get(VERIFY_KEY) is None
    refused = worm("verify", "Customer", "--record", "--url", url)
    assert (refused.exit_code, "--record needs all models" in refused.stderr) == (2, True)
    assert worm("verify", "--record", "--url", url).exit_code == 0
    assert worm("why", VERIFY_KEY, "--url", url).exit_code == 0


def test_a_place_without_a_schema_is_not_called_healthy(worm: Command, tmp_path: Path) -> None:
    """Somebody who looks at the wrong place would believe that all is well."""
    place = str(tmp_path / "elsewhere")
    assert states(seen(worm, 14, "--url", place)) == {"store": ["unknown"]}
    assert not Path(place).exists()


def test_a_bucket_without_a_stack_says_what_was_not_looked_at(worm: Command, stack: Deployed) -> None:
    found = seen(worm, 0, "--url", f"s3://{stack.bucket}")
    assert states(found) == {"store": ["ok"], "bucket": ["ok"], "verify": ["note"], "stack": ["note"]}
    stack.client("s3").put_bucket_versioning(Bucket=stack.bucket, VersioningConfiguration={"Status": "Suspended"})
    assert states(seen(worm, 0, "--url", f"s3://{stack.bucket}"))["bucket"] == ["ok", "note"]


def test_a_stack_that_is_well(worm: Command, stack: Deployed) -> None:
    assert states(seen(worm, 0, "--stack", stack.name)) == WELL


def test_a_bucket_that_lost_its_settings(worm: Command, stack: Deployed) -> None:
    client = stack.client("s3")
    client.put_bucket_versioning(Bucket=stack.bucket, VersioningConfiguration={"Status": "Suspended"})
    client.put_bucket_notification_configuration(Bucket=stack.bucket, NotificationConfiguration={})
    client.delete_bucket_encryption(Bucket=stack.bucket)
    client.delete_public_access_block(Bucket=stack.bucket)
    found = seen(worm, 1, "--stack", stack.name)
    assert [state for state, _ in found["bucket"]] == ["trouble", "trouble", "note", "note"]
    assert found["bucket"][0][1] == f"worm attach s3://{stack.bucket}"


def test_each_trouble_is_found_and_its_line_ends_with_the_command_to_run_next(worm: Command, stack: Deployed) -> None:
    metrics, name = Metrics(stack), stack.name
    metrics.age("capture", 901)
    metrics.of_worker("tables", "FreshnessSeconds", 900)
    metrics.of_function("tables", "Errors", 1)
    metrics.of_function("capture", "Throttles", 3)
    metrics.of_worker("sweep", "FoundUnreported", 2)
    metrics.of_worker("sweep", "SweepUnfinished", 1)
    stack.send("tables-dlq", "{}", reason="not a change set")
    ended = worm("doctor", "--stack", name)
    logs, at = "aws logs tail /aws/lambda/{}-{} --since 15m --filter-pattern ERROR", f"--url s3://{stack.bucket}"
    assert ended.exit_code == 1
    assert [line for line in ended.stdout.splitlines() if line.startswith("trouble")] == [
        f"trouble  dead letters  tables has 1: 1 rejected (not a change set)  →  worm dlq list tables --stack {name}",
        "trouble  freshness     the oldest change waited 15 min in the queue of capture  →  "
        + logs.format(name, "capture"),
        "trouble  functions     capture was throttled 3 times in 15 minutes  →  aws lambda get-account-settings",
        "trouble  functions     tables failed 1 time in 15 minutes  →  " + logs.format(name, "tables"),
        f"trouble  sweep         found 2 changes in the last day that no event had reported  →  worm verify {at}",
        f"trouble  sweep         ran out of time; the next run continues  →  worm repair {at}",
    ]
    metrics.of_worker("tables", "FreshnessSeconds", 1_000)
    late = seen(worm, 1, "--stack", name)
    assert late["freshness"] == [("trouble", logs.format(name, "tables"))]


def test_what_is_past_is_no_trouble(worm: Command, stack: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(stack)
    metrics.age("capture", 5_000, minutes_ago=25)
    metrics.of_function("capture", "Errors", 50, minutes_ago=25)
    metrics.of_worker("sweep", "SweepUnfinished", 1, minutes_ago=25)
    metrics.of_worker("sweep", "SweepUnfinished", 0)
    assert states(seen(worm, 0, "--stack", stack.name)) == WELL
    later = NOW + timedelta(days=2)
    monkeypatch.setattr("worm.cli.doctor.SystemClock", lambda: VirtualClock(later))
    made(monkeypatch, later - timedelta(hours=25))
    silent = seen(worm, 1, "--stack", stack.name)
    assert silent["sweep"] == [("trouble", f"aws lambda invoke --function-name {stack.name}-sweep /dev/stdout")]
    made(monkeypatch, later - timedelta(hours=23))
    assert seen(worm, 0, "--stack", stack.name)["sweep"] == [("note", "")]


def made(monkeypatch: pytest.MonkeyPatch, at: datetime) -> None:
    """The stack was deployed at this time; moto takes the machine's."""
    plain = _READ

    def read(aws: Aws, name: str) -> Stack:
        return replace(plain(aws, name), created=at)

    monkeypatch.setattr(Stack, "read", read)


def test_a_stack_before_its_first_push_is_quiet(worm: Command, stack: Deployed) -> None:
    stack.client("s3").delete_object(Bucket=stack.bucket, Key=".worm.schema.json")
    found = seen(worm, 0, "--stack", stack.name)
    assert found["store"] == [("note", f"worm push schema.json --url s3://{stack.bucket}")]
    assert "verify" not in found


def refuse(monkeypatch: pytest.MonkeyPatch, *services: str) -> None:
    """As AWS answers a role without the permission."""
    plain = Aws.client

    def client(self: Aws, service: str) -> Any:
        found = plain(self, service)
        if service in services:
            found.meta.events.register("before-call.*", denied)
        return found

    def denied(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not authorized"}}, "Any")

    monkeypatch.setattr(Aws, "client", client)


def test_what_cannot_be_read_is_said_and_is_no_trouble(
    worm: Command, stack: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, "cloudwatch", "s3", "lambda")
    found = states(seen(worm, 0, "--stack", stack.name))
    unread = {area: ["unknown"] for area in ("freshness", "functions", "schedules", "alarms", "cost")}
    kept = {area: one for area, one in WELL.items() if area not in (*unread, "sweep")}
    assert found == kept | unread | {"bucket": ["unknown"] * 4}


@pytest.mark.parametrize("service", ["sqs", "cloudformation"])
def test_where_what_matters_cannot_be_read_nobody_can_tell(
    worm: Command, stack: Deployed, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    """A check that says 'healthy' because it may not look is worse than none."""
    refuse(monkeypatch, service)
    ended = worm("doctor", "--stack", stack.name)
    assert (ended.exit_code, ended.stdout.splitlines()[-1].startswith("unknown: ")) == (14, True)


def test_a_stack_that_does_not_exist(worm: Command, stack: Deployed) -> None:
    found = states(seen(worm, 14, "--stack", "nowhere", "--url", f"s3://{stack.bucket}"))
    assert (found["stack"], found["store"]) == (["unknown"], ["ok"])


def test_spans_of_time_are_told_in_units_that_fit() -> None:
    assert [span(one) for one in (0, 119.4, 120, 7_199, 7_200, 172_799, 172_800, 9e6)] == [
        "0 s",
        "119 s",
        "2 min",
        "120 min",
        "2 h",
        "48 h",
        "2 days",
        "104 days",
    ]
