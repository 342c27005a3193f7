"""template.yaml as specs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from worm.errors import Invalid, NotFound
from worm_dev.specs import BucketSpec, EventSourceSpec, FunctionSpec, QueueSpec, RuleSpec, RuleTarget
from worm_dev.template import read_template

HERE = Path(__file__).parent
SMALL = HERE / "template_small.yaml"
REAL = HERE.parent.parent / "template.yaml"
ARN = "arn:aws:{service}:us-east-1:000000000000:{name}"


def test_the_small_template_becomes_these_specs() -> None:
    template = read_template(SMALL, parameters={"BucketName": "docs"})
    assert template.buckets == (
        BucketSpec(
            "Bucket",
            "docs",
            versioning=True,
            event_bridge=True,
            lifecycle_rules=(
                {"Id": "ExpireChangeSets", "Status": "Enabled", "Prefix": ".worm.changes/", "ExpirationInDays": 7},
            ),
            public_access_block={"BlockPublicAcls": True},
        ),
    )
    queue_arn = ARN.format(service="sqs", name="worm-dev-echo")
    dead_arn = ARN.format(service="sqs", name="worm-dev-echo-dlq")
    dead, queue = template.queues
    assert dead == QueueSpec("DeadLetters", "worm-dev-echo-dlq", dead_arn, {"SqsManagedSseEnabled": "true"})
    assert (queue.name, queue.attributes) == ("worm-dev-echo", {"VisibilityTimeout": "60"})
    assert (queue.dead_letter_arn, queue.receive_count_max) == (dead_arn, 2)
    assert queue.policy is not None
    statement = json.loads(queue.policy)["Statement"][0]
    assert statement["Condition"] == {
        "ArnEquals": {"aws:SourceArn": ARN.format(service="events", name="rule/worm-dev-Rule")}
    }
    pattern = {
        "source": ["aws.s3"],
        "detail-type": ["Object Created", "Object Deleted"],
        "detail": {
            "bucket": {"name": ["docs"]},
            "object": {"key": [{"anything-but": {"wildcard": [".*", "*/.*", "db/*"]}}]},
        },
    }
    assert template.rules == (
        RuleSpec("Rule", "worm-dev-Rule", json.dumps(pattern), enabled=True, targets=(RuleTarget("Queue", queue_arn),)),
    )
    assert template.functions == (
        FunctionSpec(
            "Function",
            "echo",
            "worm-dev-echo",
            ARN.format(service="lambda", name="function:worm-dev-echo"),
            HERE / "fixture_functions" / "echo",
            "handler.lambda_handler",
            {"WORM_BUCKET": "docs", "POWERTOOLS_LOG_LEVEL": "INFO", "WORM_ROLE": "echo"},
            timeout_seconds=2,
            memory_mb=256,
            layer_dirs=(HERE / "fixture_layer",),
            reserved_concurrency=None,
        ),
    )
    assert template.event_sources == (
        EventSourceSpec("echo", queue_arn, 100, 5.0, report_batch_item_failures=True, concurrency_max=2),
    )
    (schedule,) = template.schedules
    assert (schedule.name, schedule.function, schedule.enabled) == ("FunctionNightly", "echo", True)
    assert schedule.input == '{"do": "environment"}'
    assert schedule.schedule.next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2026, 1, 1, 3, 15, tzinfo=UTC)


def test_a_function_is_found_by_folder_logical_id_and_name() -> None:
    template = read_template(SMALL)
    found = [template.function(name).logical_id for name in ("echo", "Function", "worm-dev-echo")]
    assert found == ["Function", "Function", "Function"]
    with pytest.raises(NotFound, match="no function nobody"):
        template.function("nobody")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "Type: SQS",
            "Type: Api",
            "Resources.Function.Properties.Events.Queue: event type Api is not supported by the embedded AWS",
        ),
        (
            "cron(15 3 * * ? *)",
            "cron(15 3 * * *)",
            "Resources.Function.Properties.Events.Nightly: schedule 'cron(15 3 * * *)': cron takes 6 fields, not 5",
        ),
        (
            "CodeUri: fixture_functions/echo/",
            "CodeUri: nowhere/",
            "Resources.Function.Properties.CodeUri: nowhere/ is no directory",
        ),
        (
            "!Ref Bucket\n        POWER",
            "!Base64 x\n        POWER",
            "Resources.Function.Properties.Environment.Variables.WORM_BUCKET: intrinsic Fn::Base64 is not supported",
        ),
    ],
)
def test_a_mistake_in_the_template_is_named_with_its_path(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = SMALL.read_text()
    assert old in text
    for folder in ("fixture_functions", "fixture_layer"):
        (tmp_path / folder).symlink_to(HERE / folder)
    (tmp_path / "template.yaml").write_text(text.replace(old, new))
    with pytest.raises(Invalid) as caught:
        read_template(tmp_path / "template.yaml")
    assert str(caught.value).startswith(message)


def test_the_real_template_can_be_stood_up() -> None:
    template = read_template(REAL)
    assert sorted(spec.name for spec in template.functions) == [
        "apply",
        "capture",
        "compact",
        "purge",
        "sweep",
        "tables",
    ]
    assert sorted(source.function for source in template.event_sources) == ["apply", "capture", "tables"]
    assert {schedule.function for schedule in template.schedules} == {"compact", "purge", "sweep"}
    assert [bucket.versioning for bucket in template.buckets] == [True]
    assert {spec.environment["WORM_BUCKET"] for spec in template.functions} == {template.buckets[0].name}
