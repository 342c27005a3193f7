"""`PageTools`: what people and maintenance do with a page store, or the one below a space: `worm db …`.

It imports the module of a method when the method is called, so that opening a space does not load all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from worm.clock import Clock, Ids, SystemClock
from worm.formats import Position
from worm.log import DatabaseKind, DbKeys, LogProblem
from worm.pages.manifest import MAIN, PageConfig
from worm.pages.root import PagesRoot
from worm.store import Store

if TYPE_CHECKING:
    from worm.pages.apply import AppliedLog
    from worm.pages.branches import Branches
    from worm.pages.collect import Garbage
    from worm.pages.compact import Compacted
    from worm.pages.pack import PackedDatabase
    from worm.pages.past import PageDifference
    from worm.pages.repair import RootRepair
    from worm.pages.stat import BranchStat
    from worm.pages.upkeep import CompactReport


class PageTools:
    """The tools of one database. `pack`, `unpack`, `delete`, `undelete` and `repair` take a database of any kind."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._store, self._db_id = store, db_id
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self._root = PagesRoot(store, db_id, clock=self._clock, ids=self._ids)

    def kind(self) -> DatabaseKind:
        """`NotFound` if it has no pages."""
        self._root.read()
        return self._root.kind

    def log_keys(self, branch: str = MAIN) -> DbKeys:
        """The keys of the log of a branch."""
        return DbKeys(self._db_id, self._root.read().branch(branch).id)

    def create(self, config: PageConfig | None = None, *, kind: DatabaseKind = "pages") -> None:
        """Create a page store; `Conflict` if it exists."""
        from worm.pages.db import create_database

        create_database(self._store, self._db_id, config, kind=kind, clock=self._clock, ids=self._ids)

    def configure(self, change: Callable[[PageConfig], PageConfig] | None = None) -> PageConfig:
        """The settings; with `change`, they are changed first."""
        if change is None:
            return self._root.read().config
        return self._root.change(
            lambda now: None if (to := change(now.config)) == now.config else now.model_copy(update={"config": to})
        ).config

    def stat(self, branch: str = MAIN) -> BranchStat:
        """Statistics of a branch. It lists the log, so it is only meant for people."""
        from worm.pages.stat import branch_stat

        return branch_stat(self._store, self._db_id, branch, clock=self._clock, ids=self._ids)

    def verify(self) -> Iterator[LogProblem]:
        """The problems of every byte that a read could use, one by one."""
        from worm.pages.verify import verify_pages

        return verify_pages(self._store, self._db_id, clock=self._clock, ids=self._ids)

    def repair(self, *, dry_run: bool) -> RootRepair:
        """Rebuild a lost or damaged root."""
        from worm.pages.repair import repair_root

        return repair_root(self._store, self._db_id, dry_run=dry_run, clock=self._clock, ids=self._ids)

    # Maintenance

    def apply(self, branch: str = MAIN) -> AppliedLog:
        """Move what is only in the log into layers."""
        from worm.pages.apply import Applier

        return Applier(self._store, self._db_id, clock=self._clock, ids=self._ids).run(branch)

    def compact(self, branch: str = MAIN, *, force: bool = False) -> Compacted:
        """Merge flushed layers, and make images where they are due; with `force`, of everything."""
        from worm.pages.compact import Compactor

        return Compactor(self._store, self._db_id, clock=self._clock, ids=self._ids).run(branch, force=force)

    def collect(self, *, dry_run: bool = False) -> Garbage:
        """Delete what can no longer be read."""
        from worm.pages.collect import PageCollector

        return PageCollector(self._store, self._db_id, clock=self._clock, ids=self._ids).run(dry_run=dry_run)

    def maintain(self) -> CompactReport:
        """Apply, compact and collect on all branches, until nothing is due."""
        from worm.pages.upkeep import maintain

        return maintain(self._store, self._db_id, clock=self._clock, ids=self._ids)

    # Whole databases

    def pack(self, file: Path) -> PackedDatabase:
        """Write the database into a file that must not exist."""
        from worm.pages.pack import pack_database

        return pack_database(self._store, self._db_id, file)

    def unpack(self, file: Path) -> PackedDatabase:
        """Create the database from a packed one."""
        from worm.pages.pack import unpack_database

        return unpack_database(self._store, file, self._db_id)

    def delete(self) -> None:
        """Delete the database; it can be undeleted for a while."""
        from worm.pages.deleting import delete_database

        delete_database(self._store, self._db_id, clock=self._clock, ids=self._ids)

    def undelete(self) -> None:
        """Bring the database back, as long as its objects exist."""
        from worm.pages.deleting import undelete_database

        undelete_database(self._store, self._db_id, clock=self._clock, ids=self._ids)

    # Branches and the past

    def branches(self) -> Branches:
        """The branches of the page store."""
        from worm.pages.branches import Branches

        return Branches(self._store, self._db_id, clock=self._clock, ids=self._ids)

    def differences(self, before: str, after: str) -> Iterator[PageDifference]:
        """The pages that differ between two branches as they are now."""
        from worm.pages.past import Past

        past = Past(self._store, self._db_id, clock=self._clock, ids=self._ids)
        return past.differences(past.state(before), past.state(after))

    def restore(self, at: Position, *, branch: str = MAIN, name: str = "") -> tuple[int, int]:
        """Make a branch what it was at a position, by new commits of a writer with this name. Returns the LSN of that
        state and the number of pages that changed."""
        from worm.pages.db import PageDb
        from worm.pages.past import Past

        past = Past(self._store, self._db_id, clock=self._clock, ids=self._ids)
        lsn = past.state(branch, at).lsn
        db = PageDb.open(
            self._store, self._db_id, branch=branch, name=name, kind=None, clock=self._clock, ids=self._ids
        )
        with db:
            return lsn, past.restore(db, lsn)
