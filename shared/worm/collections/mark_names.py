"""Names of time marks: `<time>-<seq>`, both counting down, so that the newest mark sorts first.

The time is the seconds left until the end of the year 9999 in 12 digits, the seq is 10^19 less it in 19 digits. Fixed
widths, so names sort by time and, within a second, by seq. A listing that starts at a time therefore begins with the
newest mark that is not after it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from worm.clock import moment_of

_END = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_SEQ_END = 10**19
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_NAME = re.compile(r"[0-9]{12}-([0-9]{19})")


def mark_name(ts: str, seq: int) -> str | None:
    """The name of the mark of entry `seq`, made at `ts`; None where `ts` is not as `clock.iso_seconds` has it."""
    left = seconds_left(ts)
    return None if left is None else f"{left}-{_SEQ_END - seq:019d}"


def seconds_left(ts: str) -> str | None:
    """What the names of all marks of this second start with, and those of no earlier or later one."""
    moment = moment_of(ts) if _TIME.fullmatch(ts) else None
    return None if moment is None else f"{(_END - moment) // timedelta(seconds=1):012d}"


def marked_seq(name: str) -> int | None:
    """The seq in the name of a mark; None for any other name."""
    match = _NAME.fullmatch(name)
    return _SEQ_END - int(match[1]) if match and int(match[1]) else None
