"""What all logs have in common: the names in their records, and the tools that work on a whole log.

The commit log of a database and the `oplog.ndjson` of a directory (`journal/`) do not know each other. The `worm log`
commands use only what is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from worm.errors import Invalid, show
from worm.formats import JsonObject, Position, frames, type_name

NAME_BYTES_MAX = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_name(name: object, what: str) -> str:
    """Namespaces, fields and ids of transactions: 1 to 200 bytes, no control characters."""
    if not isinstance(name, str):
        raise Invalid(f"{what} must be a string, not {type_name(name)}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {show(name)} contains a lone surrogate") from error
    if not 1 <= size <= NAME_BYTES_MAX or _CONTROL.search(name):
        raise Invalid(f"{what} {show(name)} must have 1 to {NAME_BYTES_MAX} bytes and no control characters")
    return name


@dataclass(frozen=True, slots=True)
class LogProblem:
    """A problem. `kind`: `log-damaged` (a line or an object), `state-differs` (the state in memory does not match the
    log), `rebuild-differs` (the minimal log does not match the log)."""

    kind: str
    key: str
    detail: str
    line: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class LogVerifyReport:
    """The result of reading a log from its beginning. If there is a problem, the numbers describe the intact prefix.

    `torn` is the number of bytes that a dead writer left at the end. They are not a problem: they were never
    acknowledged. `dangling` and `aborted` are transactions that do not count. `kept_from` is the first LSN that is
    kept: older ones were collected."""

    target: str
    records: int
    size: int
    documents: int = 0
    committed: int = 0
    aborted: int = 0
    dangling: int = 0
    torn: int = 0
    problems: tuple[LogProblem, ...] = ()
    kept_from: int = 1

    @property
    def is_clean(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class LogRepairReport:
    """`kept` records stay, and `moved` bytes go to `side`. In a dry run, nothing is moved and `side` is None."""

    target: str
    kept: int
    moved: int
    reason: str | None
    side: str | None


@dataclass(frozen=True, slots=True)
class LogCompactReport:
    """The number of records and bytes before and after."""

    target: str
    records_before: int
    size_before: int
    records_after: int
    size_after: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record as it is stored: its JSON, the framed line without its newline, and the object that holds it."""

    lsn: int
    value: JsonObject
    line: bytes
    key: str


class LogTools(Protocol):
    """The tools of one log."""

    def verify(self) -> LogVerifyReport:
        """Read and check everything. Damage goes into the report and raises no error."""

    def repair(self, *, dry_run: bool) -> LogRepairReport:
        """Keep the intact prefix and set the rest aside; nothing is deleted."""

    def compact(self) -> LogCompactReport:
        """Rewrite the log to its minimal form; `Invalid` where it has none."""

    @property
    def kept_from(self) -> int:
        """The first LSN that is kept, or 1."""

    def cat(self, *, after: Position | None = None) -> Iterator[LogLine | frames.Torn]:
        """All records, or those after a position, then the torn tail. `Corrupt` if there is damage."""

    def tail(self, count: int, *, follow: bool = False) -> Iterator[LogLine | frames.Torn]:
        """The last records. With `follow`, also all records that are appended from now on, forever."""
