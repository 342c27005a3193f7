"""Every function folder is a resource with its queue or schedule, dead-letter queue, log group, role and alarms.

What is special about `api` is in test_api.py.
"""

from __future__ import annotations

import pytest

from tests.template.sam_document import BUCKET, ROOT, STACK, Function, functions, queue_id, resources
from worm.dev.schedule import parse_schedule

EVERY = pytest.mark.parametrize("function", functions(), ids=lambda function: function.folder)
WORKER = pytest.mark.parametrize(
    "function", [one for one in functions() if one.folder != "api"], ids=lambda function: function.folder
)
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
    expected = {one.folder.title() + "Function": f"{STACK}-{one.folder}" for one in functions()}
    assert {one.id: one.properties["FunctionName"] for one in functions()} == expected


@WORKER
def test_a_worker_is_fed_by_one_queue_or_one_schedule(function: Function) -> None:
    assert [event["Type"] for event in function.events.values()] in (["SQS"], ["ScheduleV2"])


@QUEUED
def test_a_queue_worker_takes_batches_and_reports_single_failures(function: Function) -> None:
    event = function.queue_event()
    assert event is not None
    concurrency = int(event["ScalingConfig"]["MaximumConcurrency"])
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
    own_arn = f"arn:aws:sqs:us-east-1:000000000000:{properties['QueueName']}"
    assert properties["RedrivePolicy"]["maxReceiveCount"] == 5
    assert function.dead_letter_queue() == name.removesuffix("Queue") + "DeadLetterQueue"
    assert dead_letters["RedriveAllowPolicy"] == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [own_arn],
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
        if queue_id(target["Arn"]) == queue[0]
    ]
    assert [rule for rule, _ in targets] == [function.folder.title() + "Rule"]
    assert queue_id(targets[0][1]["DeadLetterConfig"]["Arn"]) == function.dead_letter_queue()


@SCHEDULED
def test_a_scheduled_function_has_a_valid_schedule_and_keeps_its_failures(function: Function) -> None:
    event = function.schedule_event()
    assert event is not None
    parse_schedule(event["ScheduleExpression"])
    invoke = function.properties["EventInvokeConfig"]
    assert event["OmitName"] is True
    assert queue_id(event["DeadLetterConfig"]["Arn"]) == function.dead_letter_queue()
    assert event["RetryPolicy"]["MaximumRetryAttempts"] > 0
    assert invoke["MaximumRetryAttempts"] == 2
    assert invoke["DestinationConfig"]["OnFailure"]["Type"] == "SQS"


@EVERY
def test_a_function_logs_to_its_own_group_which_forgets(function: Function) -> None:
    name = f"/aws/lambda/{STACK}-{function.folder}"
    group = resources("AWS::Logs::LogGroup")[f"{function.folder.title()}LogGroup"]
    assert function.properties["LoggingConfig"]["LogGroup"] == name
    assert group == {"LogGroupName": name, "RetentionInDays": 30}


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARN", "ERROR"])
def test_the_log_level_is_that_of_the_logger_and_that_of_lambda(level: str) -> None:
    """Lambda drops what is below its own level: DEBUG for the logger alone shows nothing."""
    for properties in resources("AWS::Serverless::Function", LogLevel=level).values():
        logging, variables = properties["LoggingConfig"], properties["Environment"]["Variables"]
        assert (logging["LogFormat"], logging["ApplicationLogLevel"]) == ("JSON", level)
        assert variables["POWERTOOLS_LOG_LEVEL"] == level


PLACES = [{}, {"ExistingBucketName": "mine", "KeyPrefix": "data/"}]


@pytest.mark.parametrize("place", PLACES, ids=["own bucket", "existing bucket"])
@WORKER
def test_a_worker_knows_its_role_bucket_and_limits(function: Function, place: dict[str, str]) -> None:
    found = resources("AWS::Serverless::Function", **place)[function.id]["Environment"]["Variables"]
    assert found == {
        "WORM_BUCKET": place.get("ExistingBucketName", BUCKET),
        "WORM_PREFIX": place.get("KeyPrefix", ""),
        "WORM_STACK": STACK,
        "WORM_MAX_DOCUMENT_BYTES": 10485760,
        "WORM_ROLE": function.folder,
        "WORM_DLQ_URL": f"https://sqs.us-east-1.amazonaws.com/000000000000/{STACK}-{function.folder}-dlq",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        "POWERTOOLS_METRICS_NAMESPACE": "S3Worm",
        "POWERTOOLS_SERVICE_NAME": function.folder,
        **({"WORM_SWEEP_EVERY": "24"} if function.folder == "sweep" else {}),
    }
    assert queue_id(found["WORM_DLQ_URL"]) == function.dead_letter_queue()


@EVERY
def test_a_function_runs_the_tested_python_with_the_layer_and_traces(function: Function) -> None:
    wanted = ("Runtime", "Handler", "Tracing", "Layers", "Architectures")
    assert {key: function.properties[key] for key in wanted} == {
        "Runtime": "python3.13",
        "Handler": "handler.lambda_handler",
        "Tracing": "Active",
        "Layers": [f"{STACK}-WormLayer"],
        "Architectures": ["arm64"],
    }


def test_one_parameter_says_how_many_of_each_may_run() -> None:
    found = {
        name: properties["Events"]["Queue"]["Properties"]["ScalingConfig"]["MaximumConcurrency"]
        for name, properties in resources("AWS::Serverless::Function", Concurrency="200,20,3").items()
        if "Queue" in properties.get("Events", {})
    }
    assert found == {"CaptureFunction": "200", "TablesFunction": "20", "ApplyFunction": "3"}
