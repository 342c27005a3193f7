"""Deleting a database of any kind, and bringing it back for a while.

Deleting marks the root, then fences every writer: the next commit of an open writer fails, and nobody can open the
database. The objects stay for `gc_min_age_seconds`; during that time, `undelete_database` brings the database back. The
next upkeep after that removes them, the root last. If a slot were freed earlier, a writer that slept would take it for
a commit.
"""

from __future__ import annotations

from dataclasses import replace

from worm.clock import Clock, Ids, SystemClock
from worm.errors import NotFound
from worm.log import DbKeys, LogFiles, LogRoot, LogWriter
from worm.pages.branches import DELETING
from worm.pages.manifest import PageConfig, pages_of
from worm.store import Store


def delete_database(store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
    """Delete the database: no further commit is acknowledged. `NotFound` if there is none."""
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    keys = DbKeys(db_id)
    files = LogFiles(store, keys, clock=clock, ids=ids)
    _check_there(files, keys)
    now = int(files.store_time().timestamp() * 1000)

    def marked(found: LogRoot | None) -> LogRoot | None:
        return None if found is None or found.deleted else replace(found, deleted=now)

    root = files.root.update(marked) or LogRoot()
    pages = pages_of(root, keys.root)
    logs = [keys] if pages is None else [DbKeys(db_id, branch.id) for branch in pages.branches.values()]
    config = None if pages is None else pages.config.log
    for log in logs:
        LogWriter.open(store, log, config=config, name=DELETING, kind=None, clock=clock, ids=ids).close()


def undelete_database(store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
    """Bring it back, as long as its objects exist."""
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    keys = DbKeys(db_id)
    files = LogFiles(store, keys, clock=clock, ids=ids)
    _check_there(files, keys)

    def unmarked(found: LogRoot | None) -> LogRoot | None:
        return None if found is None or not found.deleted else replace(found, deleted=0)

    files.root.update(unmarked)


def purge_database(store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> int:
    """Remove the objects of a database that was deleted long enough ago; returns the number."""
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    keys = DbKeys(db_id)
    files = LogFiles(store, keys, clock=clock, ids=ids)
    root = files.root.read()
    if root is None or not root.deleted:
        return 0
    pages = pages_of(root, keys.root)
    lease = files.lease.read()
    config = PageConfig() if pages is None else pages.config
    age = 1 + max(config.gc_min_age_seconds, 0 if lease is None else lease.min_age)
    if files.store_time().timestamp() - root.deleted / 1000 < age:
        return 0
    found = [listed.key for listed in store.list(keys.directory) if listed.key != keys.root]
    for key in (*found, keys.root):
        store.delete(key)
    return len(found) + 1


def _check_there(files: LogFiles, keys: DbKeys) -> None:
    if files.root.read() is None:
        files.is_blank()
        raise NotFound(f"there is no database {keys.db_id!r}", key=keys.root)
