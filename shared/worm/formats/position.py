"""One way to name a place in a history: `at=` of logs, page stores, spaces and models.

A position is a number (the seq of a commit, the LSN of a page store, the seq of an oplog entry), a `datetime` with a
zone, or ISO text. Text of digits is a number; text without a zone is UTC, and a date alone is its first moment.
"""

from __future__ import annotations

from datetime import UTC, datetime

from worm.errors import Invalid, show

Position = int | datetime | str

NUMBER_MAX = 2**53
"""JSON numbers above this are not exact."""
EXAMPLES = "a number, a datetime with a zone, or text such as 2026-02-24T12:00:00Z"


def position_of(at: Position, path: str = "at") -> int | datetime:
    """The number, or the moment in UTC; `Invalid` for anything else."""
    given: object = at
    if isinstance(given, str) and given.isascii() and given.isdigit():
        given = int(given[:40])
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given <= NUMBER_MAX:
            raise Invalid(f"{show(at)} is not a position: numbers start at 0", path=path)
        return given
    return moment_in_utc(at, path)


def moment_in_utc(time: object, path: str | None = None) -> datetime:
    """The time in UTC; `Invalid` for anything else."""
    if isinstance(time, str):
        try:
            parsed = datetime.fromisoformat(time)
        except ValueError as mistake:
            raise Invalid(f"{show(time)} is not a time", path=path, hint="write 2026-02-24T12:00:00Z") from mistake
        time = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    if not isinstance(time, datetime):
        hint = "use a timezone-aware datetime, or text: 2026-02-24T12:00:00Z" if path is None else f"use {EXAMPLES}"
        raise Invalid(f"{show(time)} is no {'time' if path is None else 'position'}", path=path, hint=hint)
    if time.tzinfo is None:
        raise Invalid("datetime must be timezone-aware", path=path, hint="datetime(…, tzinfo=UTC)")
    try:
        return time.astimezone(UTC)
    except OverflowError as mistake:
        raise Invalid(f"{time.isoformat()} is outside the calendar in UTC", path=path) from mistake
