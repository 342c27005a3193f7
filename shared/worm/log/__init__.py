"""The fenced commit log on object storage: segments under a lease, one PUT each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.log import fence
    from worm.log.collect import LogCollector, store_time
    from worm.log.common import LogCompactReport, LogLine, LogProblem, LogRepairReport, LogTools, LogVerifyReport
    from worm.log.config import MIB, LogConfig
    from worm.log.fence import begin_log, is_blank, lease_file, root_file
    from worm.log.group import GroupCommit
    from worm.log.invariants import ROOT
    from worm.log.journal.pack import PackReport, pack, unpack
    from worm.log.journal.tools import DirectoryTools
    from worm.log.keys import (
        DATABASES,
        ROOT_NAME,
        DbKeys,
        LayerName,
        after_database,
        database_of,
        pointer_of,
        segment_of,
        split_branch,
    )
    from worm.log.opening import CommitLog, open_log
    from worm.log.reader import LogReader, last_slot, slot_is_before
    from worm.log.retries import Retries, recent_segments
    from worm.log.root import BY_HAND, DatabaseKind, Lease, LogRoot
    from worm.log.segment import VERIFY, Segment
    from worm.log.tools import CommitLogTools
    from worm.log.writer import LogWriter, Unless
else:
    __getattr__ = door(
        __name__,
        """
        collect: LogCollector store_time
        common: LogCompactReport LogLine LogProblem LogRepairReport LogTools LogVerifyReport
        config: LogConfig MIB
        fence:
        fence: begin_log is_blank lease_file root_file
        group: GroupCommit
        invariants: ROOT
        journal.pack: PackReport pack unpack
        journal.tools: DirectoryTools
        keys: DATABASES DbKeys LayerName ROOT_NAME after_database database_of pointer_of segment_of split_branch
        opening: CommitLog open_log
        reader: LogReader last_slot slot_is_before
        retries: Retries recent_segments
        root: BY_HAND DatabaseKind Lease LogRoot
        segment: Segment VERIFY
        tools: CommitLogTools
        writer: LogWriter Unless
        """,
    )
