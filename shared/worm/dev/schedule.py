"""Schedules: `rate()`, `cron()` and `at()` of EventBridge Scheduler, their next times, and the thread that fires.

Nothing else checks these expressions before a deployment fails on them, so parsing is strict: `parse_schedule` raises
`Invalid` for anything that AWS would refuse. Times are computed from the given moment; no clock is read.
"""

from __future__ import annotations

import calendar
import json
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from worm.clock import Clock, iso_seconds
from worm.dev.cfn import ACCOUNT_ID
from worm.errors import Invalid

_RATE = re.compile(r"rate\((\d+) (minutes?|hours?|days?)\)")
_AT = re.compile(r"at\((\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})\)")
_CRON = re.compile(r"cron\(([^()]*)\)")
_MONTHS = {name.upper(): number for number, name in enumerate(calendar.month_abbr) if name}
_DAYS = {name: number for number, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"), start=1)}
_DAYS_AHEAD_MAX = 366 * 8 + 2  # the 29th of February can be eight years away


class Schedule(Protocol):
    """When something fires."""

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire time after `moment` (aware, UTC), or None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Rate:
    """Every `period`, counted from the given moment."""

    period: timedelta

    def next_after(self, moment: datetime) -> datetime | None:
        return moment + self.period


@dataclass(frozen=True, slots=True)
class At:
    """Once."""

    moment: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        return self.moment if self.moment > moment else None


@dataclass(frozen=True, slots=True)
class Cron:
    """AWS cron: minutes, hours, day of month, month, day of week (SUN is 1), year; exactly one day field is `?`."""

    minutes: frozenset[int]
    hours: frozenset[int]
    day_of_month: str
    months: frozenset[int]
    day_of_week: str
    years: frozenset[int]
    zone: tzinfo

    def next_after(self, moment: datetime) -> datetime | None:
        local = moment.astimezone(self.zone)
        years_ahead = [year for year in self.years if year >= local.year]
        if not years_ahead:
            return None
        start = max(local.date(), date(min(years_ahead), 1, 1))
        for offset in range(_DAYS_AHEAD_MAX):
            day = start + timedelta(days=offset)
            if day.year in self.years and day.month in self.months and self._matches_day(day):
                found = self._first_on(day, moment)
                if found is not None:
                    return found
        return None

    def _first_on(self, day: date, moment: datetime) -> datetime | None:
        for hour in sorted(self.hours):
            for minute in sorted(self.minutes):
                candidate = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone).astimezone(UTC)
                if candidate > moment:
                    return candidate
        return None

    def _matches_day(self, day: date) -> bool:
        if self.day_of_week == "?":
            return _matches_day_of_month(self.day_of_month, day)
        return _matches_day_of_week(self.day_of_week, day)


def parse_schedule(expression: str, *, timezone: str = "UTC") -> Schedule:
    """`Invalid` for an expression AWS would refuse."""
    try:
        zone: tzinfo = UTC if timezone == "UTC" else ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Invalid(f"unknown time zone {timezone!r}") from error
    if match := _RATE.fullmatch(expression):
        return _rate(expression, int(match[1]), match[2])
    if match := _AT.fullmatch(expression):
        try:
            return At(datetime.fromisoformat(match[1]).replace(tzinfo=zone).astimezone(UTC))
        except ValueError as error:
            raise Invalid(f"schedule {expression!r}: {error}") from error
    if match := _CRON.fullmatch(expression):
        return _cron(expression, match[1].split(), zone)
    raise Invalid(f"schedule {expression!r} is not rate(n unit), cron(6 fields) or at(yyyy-mm-ddThh:mm:ss)")


def _rate(expression: str, value: int, unit: str) -> Rate:
    if value == 0:
        raise Invalid(f"schedule {expression!r}: the value must be positive")
    if (value == 1) == unit.endswith("s"):
        raise Invalid(f"schedule {expression!r}: use the singular unit for 1 and the plural otherwise")
    seconds = {"minute": 60, "hour": 3600, "day": 86400}[unit.removesuffix("s")]
    return Rate(timedelta(seconds=value * seconds))


def _cron(expression: str, fields: list[str], zone: tzinfo) -> Cron:
    if len(fields) != 6:
        raise Invalid(f"schedule {expression!r}: cron takes 6 fields, not {len(fields)}")
    minutes, hours, day_of_month, months, day_of_week, years = fields
    if (day_of_month == "?") == (day_of_week == "?"):
        raise Invalid(f"schedule {expression!r}: exactly one of day-of-month and day-of-week must be ?")
    try:
        # Probing one month proves that both day fields can be read.
        for number in range(1, 29):
            probe = date(2026, 2, number)
            if day_of_month != "?":
                _matches_day_of_month(day_of_month, probe)
            if day_of_week != "?":
                _matches_day_of_week(day_of_week, probe)
        return Cron(
            _values(minutes, 0, 59),
            _values(hours, 0, 23),
            day_of_month,
            _values(months, 1, 12, _MONTHS),
            day_of_week,
            _values(years, 1970, 2199),
            zone,
        )
    except ValueError as error:
        raise Invalid(f"schedule {expression!r}: {error}") from error


def _values(field: str, low: int, high: int, names: Mapping[str, int] | None = None) -> frozenset[int]:
    """The numbers that a field like `0/15`, `1-5`, `MON-FRI` or `*` means."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step_text = part.partition("/")
        step = int(step_text) if step_text else 1
        if step <= 0:
            raise ValueError(f"{part!r} has no positive step")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, last = (_number(text, names) for text in span.split("-", 1))
        else:
            first = _number(span, names)
            last = high if step_text else first
        if not low <= first <= last <= high:
            raise ValueError(f"{part!r} is not within {low}-{high}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: Mapping[str, int] | None) -> int:
    if names and text.upper() in names:
        return names[text.upper()]
    if not text.isdigit():
        raise ValueError(f"{text!r} is not a number")
    return int(text)


def _matches_day_of_month(field: str, day: date) -> bool:
    last = calendar.monthrange(day.year, day.month)[1]
    if field == "L":
        return day.day == last
    if field.endswith("W"):
        wanted = last if field == "LW" else _number(field[:-1], None)
        if not 1 <= wanted <= 31:
            raise ValueError(f"{field!r} is not within 1-31")
        return day.day == _nearest_weekday(day.year, day.month, min(wanted, last))
    return day.day in _values(field, 1, 31)


def _nearest_weekday(year: int, month: int, number: int) -> int:
    """The weekday nearest to the given day, inside the same month."""
    last = calendar.monthrange(year, month)[1]
    weekday = date(year, month, number).weekday()
    if weekday == calendar.SATURDAY:
        return number - 1 if number > 1 else number + 2
    if weekday == calendar.SUNDAY:
        return number + 1 if number < last else number - 2
    return number


def _matches_day_of_week(field: str, day: date) -> bool:
    number = day.isoweekday() % 7 + 1
    last = calendar.monthrange(day.year, day.month)[1]
    if field == "L":
        return number == 7
    if field.endswith("L"):
        return number == _one_day(field[:-1]) and day.day > last - 7
    if "#" in field:
        name, _, nth = field.partition("#")
        if not (nth.isdigit() and 1 <= int(nth) <= 5):
            raise ValueError(f"{field!r}: the week must be 1 to 5")
        return number == _one_day(name) and (day.day - 1) // 7 + 1 == int(nth)
    return number in _values(field, 1, 7, _DAYS)


def _one_day(text: str) -> int:
    (number,) = _values(text, 1, 7, _DAYS)
    return number


def schedule_event(name: str, payload: str | None, now: datetime, region: str) -> object:
    """What Scheduler passes to its target: the schedule's own input, or its standard event."""
    if payload is not None:
        event: object = json.loads(payload)
        return event
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": "Scheduled Event",
        "source": "aws.scheduler",
        "account": ACCOUNT_ID,
        "time": iso_seconds(now),
        "region": region,
        "resources": [f"arn:aws:scheduler:{region}:{ACCOUNT_ID}:schedule/default/{name}"],
        "detail": "{}",
    }


class ScheduleRunner:
    """Fires named schedules at their times. `run_due` is the whole logic; `start` merely calls it from a thread."""

    def __init__(self, schedules: Mapping[str, Schedule], fire: Callable[[str, datetime], None], clock: Clock) -> None:
        self._schedules = dict(schedules)
        self._fire = fire
        self._clock = clock
        now = clock.now()
        self._next = {name: schedule.next_after(now) for name, schedule in self._schedules.items()}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def run_due(self) -> None:
        """Fires what is due; a schedule that missed several times fires once, like a late Scheduler."""
        now = self._clock.now()
        for name, moment in list(self._next.items()):
            if moment is not None and moment <= now:
                self._next[name] = self._schedules[name].next_after(now)
                self._fire(name, moment)

    def next_times(self) -> dict[str, datetime | None]:
        return dict(self._next)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="schedules", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while not self._stopping.wait(self._seconds_to_next()):
            self.run_due()

    def _seconds_to_next(self) -> float:
        moments = [moment for moment in self._next.values() if moment is not None]
        if not moments:
            return 60.0
        return min(60.0, max(0.0, (min(moments) - self._clock.now()).total_seconds()))
