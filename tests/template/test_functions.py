"""Every function folder is a resource with its queue or schedule, dead-letter queue, log group, role and alarms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.template.sam_document import (
    ROOT,
    Function,
    default,
    document,
    functions,
    logical_id,
    resources,
)
from worm_dev.schedule import parse_schedule

EVERY = pytest.mark.parametrize("function", functions(), ids=lambda function: function.folder)
QUEUED = pytest.mark.parametrize(
    "function", [one for one in functions() if one.queue_event()], ids=lambda function: function.folder
)
SCHEDULED = pytest.mark.parametrize(
    "function", [one for one in functions() if one.schedule_event()], ids=lambda function: function.folder
)


def test_each_function_folder_is_a_resource_and_each_resource_has_its_folder() -> None:
    folders = {path.parent.name for path in ROOT.glob("functions/*/handler.py")}
    assert {one.folder for one in functions()} == folders


def test_a_function_is_named_after_its_folder() -> None:
    expected = {
        one.folder.title() + "Function": {"Fn::Sub": f"${{AWS::StackName}}-{one.folder}"} for one in functions()
    }
    assert {one.id: one.properties["FunctionName"] for one in functions()} == expected


@EVERY
def test_a_function_is_fed_by_one_queue_or_one_schedule(function: Function) -> None:
    assert [event["Type"] for event in function.events.values()] in (["SQS"], ["ScheduleV2"])


@QUEUED
def test_a_queue_worker_takes_batches_and_reports_single_failures(function: Function) -> None:
    event = function.queue_event()
    assert event is not None
    concurrency = default(event["ScalingConfig"]["MaximumConcurrency"])
    shape = {key: event[key] for key in ("BatchSize", "MaximumBatchingWindowInSeconds", "FunctionResponseTypes")}
    assert shape == {
        "BatchSize": 100,
        "MaximumBatchingWindowInSeconds": 5,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    }
    assert 2 <= concurrency <= 1000


@QUEUED
def test_a_message_stays_hidden_for_six_timeouts_and_the_batching_window(function: Function) -> None:
    """Else a second worker gets the batch while the first still works on it."""
    queue, event = function.queue(), function.queue_event()
    assert queue is not None
    assert event is not None
    least = 6 * function.properties["Timeout"] + event["MaximumBatchingWindowInSeconds"]
    assert queue[1]["VisibilityTimeout"] >= least


@QUEUED
def test_a_poison_message_moves_to_the_dead_letter_queue_after_five_receives(function: Function) -> None:
    queue = function.queue()
    assert queue is not None
    name, properties = queue
    dead_letters = resources("AWS::SQS::Queue")[function.dead_letter_queue()]
    own_arn = "arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:" + properties["QueueName"]["Fn::Sub"]
    assert properties["RedrivePolicy"]["maxReceiveCount"] == 5
    assert function.dead_letter_queue() == name.removesuffix("Queue") + "DeadLetterQueue"
    assert dead_letters["RedriveAllowPolicy"] == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [{"Fn::Sub": own_arn}],
    }
    assert dead_letters["MessageRetentionPeriod"] > properties["MessageRetentionPeriod"]


@QUEUED
def test_one_rule_feeds_the_queue_and_keeps_what_it_cannot_deliver(function: Function) -> None:
    queue = function.queue()
    assert queue is not None
    targets = [
        (rule, target)
        for rule, properties in resources("AWS::Events::Rule").items()
        for target in properties["Targets"]
        if logical_id(target["Arn"]) == queue[0]
    ]
    assert [rule for rule, _ in targets] == [function.folder.title() + "Rule"]
    assert logical_id(targets[0][1]["DeadLetterConfig"]["Arn"]) == function.dead_letter_queue()


@SCHEDULED
def test_a_scheduled_function_has_a_valid_schedule_and_keeps_its_failures(function: Function) -> None:
    event = function.schedule_event()
    assert event is not None
    parse_schedule(default(event["ScheduleExpression"]))
    invoke = function.properties["EventInvokeConfig"]
    assert event["OmitName"] is True
    assert logical_id(event["DeadLetterConfig"]["Arn"]) == function.dead_letter_queue()
    assert event["RetryPolicy"]["MaximumRetryAttempts"] > 0
    assert invoke["MaximumRetryAttempts"] == 2
    assert invoke["DestinationConfig"]["OnFailure"]["Type"] == "SQS"


@EVERY
def test_a_function_logs_to_its_own_group_which_forgets(function: Function) -> None:
    group = resources("AWS::Logs::LogGroup")[logical_id(function.properties["LoggingConfig"]["LogGroup"])]
    assert group == {
        "LogGroupName": {"Fn::Sub": f"/aws/lambda/${{AWS::StackName}}-{function.folder}"},
        "RetentionInDays": {"Ref": "LogRetentionDays"},
    }


@EVERY
def test_a_function_knows_its_role_bucket_and_limits(function: Function) -> None:
    shared = document()["Globals"]["Function"]["Environment"]["Variables"]
    dead_letters = {"WORM_DLQ_URL": {"Ref": function.dead_letter_queue()}} if function.queue_event() else {}
    assert {**shared, **function.properties["Environment"]["Variables"]} == dead_letters | {
        "WORM_BUCKET": {"Ref": "DocumentBucket"},
        "WORM_MAX_DOCUMENT_BYTES": {"Ref": "MaxDocumentBytes"},
        "WORM_ROLE": function.folder,
        "POWERTOOLS_LOG_LEVEL": {"Ref": "LogLevel"},
        "POWERTOOLS_METRICS_NAMESPACE": "S3Worm",
        "POWERTOOLS_SERVICE_NAME": function.folder,
    }


def test_all_functions_run_the_tested_python_with_the_layer_and_traces() -> None:
    shared = document()["Globals"]["Function"]
    assert {key: shared[key] for key in ("Runtime", "Handler", "Tracing", "Layers", "Architectures")} == {
        "Runtime": "python3.11",
        "Handler": "handler.lambda_handler",
        "Tracing": "Active",
        "Layers": [{"Ref": "WormLayer"}],
        "Architectures": [{"Ref": "Architecture"}],
    }


def _alarmed(metric: str, dimension: str) -> set[str]:
    """The resources whose metric has an alarm that notifies the topic."""
    action = {"Fn::If": ["HasAlarmTopic", [{"Ref": "AlarmTopicArn"}], {"Ref": "AWS::NoValue"}]}
    return {
        logical_id(alarm["Dimensions"][0]["Value"])
        for alarm in resources("AWS::CloudWatch::Alarm").values()
        if alarm["MetricName"] == metric
        and alarm["Dimensions"][0]["Name"] == dimension
        and alarm["AlarmActions"] == action
        and alarm["ComparisonOperator"] == "GreaterThanThreshold"
    }


def test_alarms_watch_every_dead_letter_queue_every_lag_and_every_failing_function() -> None:
    queues = [one.queue() for one in functions()]
    assert {
        "dead letters": _alarmed("ApproximateNumberOfMessagesVisible", "QueueName"),
        "age": _alarmed("ApproximateAgeOfOldestMessage", "QueueName"),
        "errors": _alarmed("Errors", "FunctionName"),
        "throttles": _alarmed("Throttles", "FunctionName"),
    } == {
        "dead letters": {one.dead_letter_queue() for one in functions()} | {"SparkDeadLetterQueue"},
        "age": {queue[0] for queue in queues if queue is not None},
        "errors": {one.id for one in functions()},
        "throttles": {one.id for one in functions()},
    }


def test_an_alarm_tells_when_scheduled_functions_stop_running() -> None:
    silent = [
        alarm
        for alarm in resources("AWS::CloudWatch::Alarm").values()
        if alarm["MetricName"] == "Invocations"
        and alarm["ComparisonOperator"] == "LessThanThreshold"
        and alarm["TreatMissingData"] == "breaching"
    ]
    watched: set[Any] = {logical_id(alarm["Dimensions"][0]["Value"]) for alarm in silent}
    assert watched == {one.id for one in functions() if one.schedule_event()}


def test_the_dashboard_shows_every_function_and_every_queue_and_the_spark_application() -> None:
    body = resources("AWS::CloudWatch::Dashboard")["Dashboard"]["DashboardBody"]["Fn::Sub"]
    titles = [widget["properties"]["title"] for widget in json.loads(body)["widgets"]]
    assert len(set(titles)) == len(titles)
    expected = {f"${{{one.id}}}" for one in functions()} | {'ApplicationId=\\"${SparkApplication}\\"'}
    expected |= {f"${{{queue}.QueueName}}" for queue in resources("AWS::SQS::Queue")}
    assert {name for name in expected if name not in body} == set()
