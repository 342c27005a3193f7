"""Schedules: what is accepted, when it fires."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from worm.clock import VirtualClock
from worm.dev.schedule import ScheduleRunner, parse_schedule
from worm.errors import Invalid

START = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)  # a Thursday


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("rate(1 minute)", "2026-01-01T12:01"),
        ("rate(15 minutes)", "2026-01-01T12:15"),
        ("rate(2 hours)", "2026-01-01T14:00"),
        ("rate(1 day)", "2026-01-02T12:00"),
        ("at(2026-03-01T08:30:00)", "2026-03-01T08:30"),
        ("cron(0 12 * * ? *)", "2026-01-02T12:00"),
        ("cron(0/15 * * * ? *)", "2026-01-01T12:15"),
        ("cron(15 10 ? * MON-FRI *)", "2026-01-02T10:15"),
        ("cron(0 0 1 * ? *)", "2026-02-01T00:00"),
        ("cron(0 8 L * ? *)", "2026-01-31T08:00"),
        ("cron(0 8 ? * 6L *)", "2026-01-30T08:00"),
        ("cron(0 8 ? * TUE#2 *)", "2026-01-13T08:00"),
        ("cron(0 8 3W * ? *)", "2026-01-02T08:00"),
        ("cron(0 8 LW * ? *)", "2026-01-30T08:00"),
        ("cron(0 0 29 2 ? *)", "2028-02-29T00:00"),
        ("cron(0 0 1 JAN ? 2030,2031)", "2030-01-01T00:00"),
        ("cron(5,35 20-22 ? * SUN *)", "2026-01-04T20:05"),
    ],
)
def test_the_next_time_after_noon_on_new_year(expression: str, expected: str) -> None:
    assert parse_schedule(expression).next_after(START) == at(expected)


def test_a_schedule_of_the_past_never_fires_again() -> None:
    assert parse_schedule("at(2025-01-01T00:00:00)").next_after(START) is None
    assert parse_schedule("cron(0 0 1 1 ? 2025)").next_after(START) is None


def test_a_time_zone_moves_a_cron() -> None:
    assert parse_schedule("cron(0 9 * * ? *)", timezone="Europe/Paris").next_after(START) == at("2026-01-02T08:00")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "15 minutes",
        "rate(15 minute)",
        "rate(1 minutes)",
        "rate(0 minutes)",
        "rate(5 seconds)",
        "rate(1.5 hours)",
        "cron(* * * * *)",
        "cron(0 12 * * * *)",
        "cron(0 12 ? * ? *)",
        "cron(60 12 * * ? *)",
        "cron(0 24 * * ? *)",
        "cron(0 12 32 * ? *)",
        "cron(0 12 * 13 ? *)",
        "cron(0 12 ? * 8 *)",
        "cron(0 12 ? * MON#6 *)",
        "cron(0 12 ? * FUN *)",
        "cron(0/0 12 * * ? *)",
        "cron(0 12 * * ? 1969)",
        "at(2026-13-01T00:00:00)",
        "at(tomorrow)",
    ],
)
def test_what_aws_would_refuse_is_refused(expression: str) -> None:
    with pytest.raises(Invalid):
        parse_schedule(expression)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(Invalid, match="unknown time zone"):
        parse_schedule("rate(1 day)", timezone="Mars/Base")


def test_the_runner_fires_what_is_due_once_and_plans_the_next() -> None:
    clock = VirtualClock(START)
    fired: list[tuple[str, datetime]] = []
    schedules = {"often": parse_schedule("rate(15 minutes)"), "daily": parse_schedule("cron(0 13 * * ? *)")}
    runner = ScheduleRunner(schedules, lambda name, moment: fired.append((name, moment)), clock)
    runner.run_due()
    assert fired == []
    clock.advance(15 * 60)
    runner.run_due()
    runner.run_due()
    assert fired == [("often", at("2026-01-01T12:15"))]
    clock.advance(3600)
    runner.run_due()
    assert fired[1:] == [("often", at("2026-01-01T12:30")), ("daily", at("2026-01-01T13:00"))]
    assert runner.next_times() == {"often": at("2026-01-01T13:30"), "daily": at("2026-01-02T13:00")}
