"""Alarms and the dashboard: each alarm means one thing, and watches what the stack really has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.template.sam_document import STACK, Json, functions, resources

TOPIC = "arn:aws:sns:eu-central-1:123456789012:on-call"
NAMES = [
    "dead-letters",
    "errors",
    "freshness",
    "rejected",
    "silence",
    "spark-failed",
    "sweep-unfinished",
    "throttles",
    "unique-conflicts",
    "unreported",
]


def alarms(**parameters: str) -> dict[str, Json]:
    """By the part of their name after that of the stack."""
    found = resources("AWS::CloudWatch::Alarm", **parameters).values()
    return {one["AlarmName"].removeprefix(f"{STACK}-"): one for one in found}


def watched(alarm: Json) -> set[tuple[Any, ...]]:
    """(namespace, metric, dimension values), of a single metric or of those below an expression."""
    metrics = [one["MetricStat"]["Metric"] for one in alarm.get("Metrics", []) if "MetricStat" in one] or [alarm]
    return {(one["Namespace"], one["MetricName"], *(two["Value"] for two in one["Dimensions"])) for one in metrics}


def workers(namespace: str, metric: str, *names: str) -> set[tuple[str, ...]]:
    return {(namespace, metric, f"{STACK}-{name}") for name in names}


def counted(metric: str, *services: str) -> set[tuple[str, ...]]:
    return {("S3Worm", metric, STACK, service) for service in services}


FOLDERS = [one.folder for one in functions()]
WORKERS = [folder for folder in FOLDERS if folder != "api"]
QUEUED = [one.folder for one in functions() if one.queue_event()]
SCHEDULED = [one.folder for one in functions() if one.schedule_event()]
WATCHED = {
    "dead-letters": workers("AWS/SQS", "ApproximateNumberOfMessagesVisible", *(f"{folder}-dlq" for folder in WORKERS)),
    "errors": workers("AWS/Lambda", "Errors", *FOLDERS) | counted("Failures", "api"),
    "throttles": workers("AWS/Lambda", "Throttles", *FOLDERS),
    "freshness": workers("AWS/SQS", "ApproximateAgeOfOldestMessage", *QUEUED) | counted("FreshnessSeconds", "tables"),
    "silence": workers("AWS/Lambda", "Invocations", *SCHEDULED),
    "sweep-unfinished": counted("SweepUnfinished", "sweep"),
    "unreported": counted("FoundUnreported", "sweep"),
    "rejected": counted("Rejected", *QUEUED),
    "unique-conflicts": counted("UniqueConflicts", "tables"),
    "spark-failed": workers("AWS/SQS", "ApproximateNumberOfMessagesVisible", "spark-dlq"),
}


def test_there_are_ten_alarms_with_spark_and_nine_without() -> None:
    assert sorted(alarms()) == NAMES
    assert sorted(alarms(SparkArtifactsBucket="")) == [name for name in NAMES if name != "spark-failed"]


@pytest.mark.parametrize("name", NAMES)
def test_an_alarm_watches_all_that_it_is_about(name: str) -> None:
    assert watched(alarms()[name]) == WATCHED[name]


@pytest.mark.parametrize("name", NAMES)
def test_without_page_stores_no_alarm_watches_their_functions(name: str) -> None:
    """A silent compact that does not exist would ring for ever."""
    found = watched(alarms(Pages="off")[name])
    pages = {
        one for one in WATCHED[name] if set(one) & {"apply", "compact"} or "-apply" in one[2] or "-compact" in one[2]
    }
    assert found == WATCHED[name] - pages


@pytest.mark.parametrize("name", NAMES)
def test_without_the_api_no_alarm_watches_it(name: str) -> None:
    assert watched(alarms(ApiMode="off")[name]) == {
        one for one in WATCHED[name] if not {f"{STACK}-api", "api"} & set(one)
    }


def test_silence_needs_a_run_of_every_scheduled_function() -> None:
    """MIN over what reported would not notice a function that reported nothing at all."""
    full, small = (alarms(Pages=pages)["silence"] for pages in ("on", "off"))
    expressions = [one["Metrics"][0]["Expression"] for one in (full, small)]
    assert expressions == ["FILL(sweep, 0) * FILL(purge, 0) * FILL(compact, 0)", "FILL(sweep, 0) * FILL(purge, 0)"]
    assert (full["TreatMissingData"], full["ComparisonOperator"], full["Threshold"]) == (
        "breaching",
        "LessThanThreshold",
        1,
    )
    assert {one["MetricStat"]["Period"] for one in full["Metrics"][1:]} == {86400}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "silence"])
def test_the_other_alarms_ring_above_a_limit_and_stay_quiet_without_data(name: str) -> None:
    alarm = alarms()[name]
    assert (alarm["ComparisonOperator"], alarm["TreatMissingData"]) == ("GreaterThanThreshold", "notBreaching")
    assert alarm["Threshold"] == (900 if name == "freshness" else 0)


def test_the_function_failed_in_three_of_five_minutes() -> None:
    alarm = alarms()["errors"]
    assert (alarm["EvaluationPeriods"], alarm["DatapointsToAlarm"]) == (5, 3)
    assert {one["MetricStat"]["Period"] for one in alarm["Metrics"][1:]} == {60}


@pytest.mark.parametrize("name", [name for name in NAMES if "Metrics" in alarms()[name]])
def test_an_expression_alone_is_compared_with_the_limit(name: str) -> None:
    """CloudWatch refuses an alarm of which two metrics return data, or one that mixes periods."""
    first, *others = alarms()[name]["Metrics"]
    assert "Expression" in first
    assert [one["ReturnData"] for one in others] == [False] * len(others)
    assert len({one["MetricStat"]["Period"] for one in others}) == 1
    assert len(others) <= 10


@pytest.mark.parametrize("name", NAMES)
def test_an_alarm_notifies_the_topic_when_it_rings_and_when_it_is_over(name: str) -> None:
    alarm, silent = alarms(AlarmTopicArn=TOPIC)[name], alarms()[name]
    assert (alarm["AlarmActions"], alarm["OKActions"]) == ([TOPIC], [TOPIC])
    assert {"AlarmActions", "OKActions"} & set(silent) == set()


def test_alarms_and_dashboard_can_be_left_out() -> None:
    assert alarms(AlarmTopicArn="off") == {}
    assert resources("AWS::CloudWatch::Dashboard", AlarmTopicArn="off") == {}


def test_the_dashboard_shows_six_things() -> None:
    body = json.loads(resources("AWS::CloudWatch::Dashboard")["Dashboard"]["DashboardBody"])
    assert [widget["properties"]["title"] for widget in body["widgets"]] == [
        "Freshness: age of the oldest change (s)",
        "Backlog: waiting messages",
        "Dead letters",
        "Errors and throttles",
        "S3 requests per hour",
        "S3 requests, USD per hour",
    ]
    places = [(one["x"], one["y"]) for one in body["widgets"]]
    assert places == [(x, y) for y in (0, 6) for x in (0, 8, 16)]
    text = json.dumps(body)
    names = {f"{STACK}-{folder}" for folder in FOLDERS} | {f"{STACK}-{folder}-dlq" for folder in WORKERS}
    assert {name for name in names if f'"{name}"' not in text} == set()


def test_the_dashboard_reckons_with_the_prices_of_the_two_classes_of_requests() -> None:
    body = json.loads(resources("AWS::CloudWatch::Dashboard")["Dashboard"]["DashboardBody"])
    (usd,) = [one[0] for one in body["widgets"][-1]["properties"]["metrics"] if one[0]["id"] == "usd"]
    writes, reads = f"{0.005 / 1000:.6f}", f"{0.0004 / 1000:.7f}"
    assert usd["expression"] == f"FILL(writes, 0) * {writes} + FILL(reads, 0) * {reads}"
