"""What can be done to a log as a whole, wherever it lies: the `worm log` commands know nothing else of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from worm.codec.frames import Torn
from worm.codec.strict_json import JsonObject


@dataclass(frozen=True, slots=True)
class LogProblem:
    """Something that is wrong. `kind`: `log-damaged` (a line, or an object), `state-differs` (memory is not what the
    log says), `rebuild-differs` (the minimal log is not what the log says)."""

    kind: str
    key: str
    detail: str
    line: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What reading a log from its beginning found. With a problem, the figures are those of the intact prefix.

    `torn` is what a writer that died left at the end, in bytes; no problem, it was never acknowledged. `dangling` and
    `aborted` are transactions that do not count."""

    target: str
    records: int
    size: int
    documents: int
    committed: int
    aborted: int
    dangling: int
    torn: int
    problems: tuple[LogProblem, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class RepairReport:
    """`kept` records stay, `moved` bytes go to `side` (or would, in a dry run: then `side` is None)."""

    target: str
    kept: int
    moved: int
    reason: str | None
    side: str | None


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Records and bytes, before and after."""

    target: str
    records_before: int
    size_before: int
    records_after: int
    size_after: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record as it is stored: its JSON, the framed line without its end, and the object that holds it."""

    lsn: int
    value: JsonObject
    line: bytes
    key: str


class LogTools(Protocol):
    """The tools of one log."""

    def verify(self) -> VerifyReport:
        """Read everything, check everything. Damage is in the report, no error."""

    def repair(self, *, dry_run: bool) -> RepairReport:
        """Keep the intact prefix, put the rest aside; nothing is deleted."""

    def compact(self) -> CompactReport:
        """Rewrite the log to its minimal form."""

    def cat(self, *, after: int | None = None) -> Iterator[LogLine | Torn]:
        """All records, or those after an lsn; then the torn tail. `Corrupt` where there is damage."""

    def tail(self, count: int, *, follow: bool = False) -> Iterator[LogLine | Torn]:
        """The last records; with `follow` then those that are appended from now on, for ever."""
