"""Verify: read the log from the disk again, fold it again, compare. Reads only, and needs no lock: a log only grows, or
is replaced as a whole.

The proof that the log alone has everything (what memory holds is what it replays to) and that the minimal log says the
same.
"""

from __future__ import annotations

from pathlib import Path

from worm.errors import NotFound, WormError
from worm.journal.file_log import OPLOG, Replay, replay
from worm.journal.records import Record
from worm.journal.state import Fold, State, minimal
from worm.journal.tools import LogProblem, VerifyReport


def verify(directory: Path, live: State | None = None) -> VerifyReport:
    """Check the log of a directory; with `live`, that the open store holds what it replays to."""
    path = directory / OPLOG
    if not path.is_file():
        raise NotFound(f"{directory} holds no {OPLOG}", key=str(path))
    found = replay(path)
    problems: list[LogProblem] = []
    if found.damage is not None:
        problems.append(damaged(found, path))
    if live is not None:
        problems += [LogProblem("state-differs", str(path), one) for one in found.fold.state.differences(live)]
    problems += [LogProblem("rebuild-differs", str(path), one) for one in _rebuilt(found.fold.state)]
    fold = found.fold
    return VerifyReport(
        target=str(directory),
        records=found.end.lines,
        size=found.end.offset,
        documents=fold.state.documents,
        committed=fold.committed,
        aborted=fold.aborted,
        dangling=fold.dangling,
        torn=found.torn.size if found.torn else 0,
        problems=tuple(problems),
    )


def damaged(found: Replay, path: Path) -> LogProblem:
    """The damage of a replay, with its place."""
    detail = found.damage.message if found.damage is not None else ""
    return LogProblem("log-damaged", str(path), detail, found.end.lines + 1, found.end.offset)


def _rebuilt(state: State) -> list[str]:
    """What the minimal log of a state does not give back."""
    fold = Fold()
    try:
        for lsn, change in enumerate(minimal(state)):
            fold.add(Record.from_json(Record(lsn, 0, change).to_json()))
    except WormError as error:
        return [error.message]
    return state.differences(fold.state)
