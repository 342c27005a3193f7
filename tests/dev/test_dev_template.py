"""template.yaml as specs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from worm.dev.specs import BucketSpec, EventSourceSpec, FunctionSpec, QueueSpec, RuleSpec, RuleTarget
from worm.dev.template import read_resources, read_template
from worm.errors import Invalid, NotFound

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
            timeout_seconds=30,
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
            "Resources.Function.Properties.CodeUri: nowhere/ is not a directory",
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


NESTED = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  Layer: {Type: String}
  Size: {Type: Number, Default: 512}
  Extra: {Type: String}
Conditions:
  HasExtra: !Not [!Equals [!Ref Extra, ""]]
Resources:
  Inner:
    Type: AWS::SQS::Queue
  More:
    Type: AWS::SQS::Queue
    Condition: HasExtra
  Second:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: fixture_functions/echo/
      Layers: [!Ref Layer]
      MemorySize: !Ref Size
Outputs:
  InnerUrl: {Value: !Ref Inner}
  Same: {Value: !Ref Extra}
"""
PART = """
  Part:
    Type: AWS::Serverless::Application
    Condition: HasBucketName
    Properties:
      Location: nested.yaml
      Parameters:
        Layer: !Ref Layer
        Extra: !GetAtt Other.Outputs.Same
  Other:
    Type: AWS::Serverless::Application
    Properties:
      Location: nested.yaml
      Parameters: {Layer: !Ref Layer, Extra: "", Size: 1024}

Outputs:
  PartUrl: {Condition: HasBucketName, Value: !GetAtt Part.Outputs.InnerUrl}
"""


def _with_parts(folder: Path, nested: str = NESTED, part: str = PART) -> Path:
    for name in ("fixture_functions", "fixture_layer"):
        (folder / name).symlink_to(HERE / name)
    (folder / "nested.yaml").write_text(nested)
    (folder / "template.yaml").write_text(SMALL.read_text() + part)
    return folder / "template.yaml"


def test_a_nested_template_gets_parameters_and_gives_outputs(tmp_path: Path) -> None:
    path = _with_parts(tmp_path)
    template = read_template(path, parameters={"BucketName": "docs"})
    inner = [spec.name for spec in template.queues if spec.logical_id == "Inner"]
    assert inner == ["worm-dev-Part-Inner", "worm-dev-Other-Inner"]
    assert template.outputs == {"PartUrl": "https://sqs.us-east-1.amazonaws.com/000000000000/worm-dev-Part-Inner"}
    seconds = [spec for spec in template.functions if spec.logical_id == "Second"]
    assert [spec.memory_mb for spec in seconds] == [512, 1024]
    assert {spec.layer_dirs for spec in seconds} == {(HERE / "fixture_layer",)}
    assert "More" not in {spec.logical_id for spec in template.queues}


def test_a_nested_template_whose_condition_does_not_hold_is_not_there(tmp_path: Path) -> None:
    template = read_template(_with_parts(tmp_path))
    assert [spec.name for spec in template.queues if spec.logical_id == "Inner"] == ["worm-dev-Other-Inner"]
    assert template.outputs == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "Location: nested.yaml",
            "Location: missing.yaml",
            "Resources.Part.Properties.Location: missing.yaml is not a",
        ),
        (
            'Extra: "", Size: 1024',
            'Extra: "", Depth: 1',
            "Resources.Other.Properties.Parameters: nested.yaml: Parameters: the template has no parameter Depth",
        ),
        (
            "Extra: !GetAtt Other.Outputs.Same",
            "Size: 1",
            "Resources.Part.Properties.Parameters: nested.yaml: Parameters.Extra: has no default and no value",
        ),
        (
            "Other.Outputs.Same",
            "Other.Outputs.Missing",
            "Resources.Part.Properties.Parameters.Extra: the embedded AWS cannot resolve Fn::GetAtt Other",
        ),
    ],
)
def test_a_mistake_in_what_is_passed_down_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in PART
    path = _with_parts(tmp_path, part=PART.replace(old, new))
    with pytest.raises(Invalid) as caught:
        read_template(path, parameters={"BucketName": "docs"})
    assert str(caught.value).startswith(message)


def test_resources_of_all_templates_are_read_with_nothing_left_to_resolve(tmp_path: Path) -> None:
    path = _with_parts(tmp_path)
    found = read_resources(path)
    assert found["Inner"] == {"Type": "AWS::SQS::Queue", "Properties": {}}
    assert found["Function"]["Properties"]["Environment"]["Variables"]["WORM_BUCKET"] == "worm-dev-bucket"
    with pytest.raises(Invalid, match="two templates of one stack have a resource Inner, Second"):
        read_resources(path, parameters={"BucketName": "docs"})


def test_a_value_that_its_pattern_does_not_allow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text("Parameters:\n  Sizes: {Type: CommaDelimitedList, AllowedPattern: '[0-9]+', Default: '1,2'}\n")
    assert read_template(path, parameters={"Sizes": "3, 4"}).queues == ()
    with pytest.raises(Invalid, match=r"Parameters\.Sizes: '1,x' does not match"):
        read_template(path, parameters={"Sizes": "1,x"})
