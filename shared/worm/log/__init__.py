"""The fenced commit log on object storage: segments under a lease, one PUT each, and one writer at a time.

A *slot* holds a segment; every record has an LSN. The *root* and the *lease* (`LogFiles`) decide who writes and what is
collected. Open a log of your own with `open_log`; the page store builds on `LogWriter`, `NamedCommit` and `LogReader`.
`DbKeys` are all keys below `db/`, and `hints` say what to do about damage. The journal of a directory is here, too.

An acknowledged commit is never lost, and a damaged log never looks like a shorter one. The log does not know what its
records mean, so it never decides which of them are still needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.log import hints
    from worm.log.common import LogProblem, LogTools
    from worm.log.config import LogConfig
    from worm.log.fence import LogFiles
    from worm.log.journal.pack import PackReport
    from worm.log.journal.store import LogStore
    from worm.log.journal.tools import DirectoryTools
    from worm.log.keys import DbKeys, databases
    from worm.log.opening import CommitLog, open_log
    from worm.log.reader import LogReader
    from worm.log.retries import NamedCommit
    from worm.log.root import DatabaseKind, Lease, LogRoot
    from worm.log.segment import Segment
    from worm.log.tools import CommitLogTools
    from worm.log.writer import LogWriter
else:
    __getattr__ = door(
        __name__,
        """
        common: LogProblem LogTools
        config: LogConfig
        fence: LogFiles
        hints:
        journal.pack: PackReport
        journal.store: LogStore
        journal.tools: DirectoryTools
        keys: DbKeys databases
        opening: CommitLog open_log
        reader: LogReader
        retries: NamedCommit
        root: DatabaseKind Lease LogRoot
        segment: Segment
        tools: CommitLogTools
        writer: LogWriter
        """,
    )
