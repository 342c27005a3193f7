"""Checking a Delta table against its log, and restoring it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from worm.errors import Corrupt, Invalid
from worm.store import in_parallel
from worm.tables.lake.actions import RENEW, LogState
from worm.tables.lake.log import LOG_DIR, TIP_FILE
from worm.tables.lake.publish import Publication, Publisher
from worm.tables.parquet_part import check_crc

REPAIR = "run `worm repair` to restore it"
READERS = 4
Found = tuple[str, str, str]
"""Kind, key, detail."""


def audit(lake: Publisher) -> Iterator[Found]:
    """What is wrong with the log, and with the files that its newest version names."""
    try:
        state = replayed(lake)
    except (Corrupt, Invalid) as damage:
        yield "lake-log-damaged", damage.key or lake.log.key(""), f"{damage.message} ({REPAIR})"
        return
    sizes = {path: cast(int, add["size"]) for path, add in state.adds.items()}
    for found in in_parallel(lambda path: _damage(lake, path, sizes[path]), sorted(sizes), READERS):
        if found is not None:
            yield found


def replayed(lake: Publisher) -> LogState:
    """The state of the log, from its own entries. `Corrupt` if entries are missing or damaged."""
    entries = lake.log.entries()
    if entries.newest < 0 and lake.store.head(lake.directory + TIP_FILE) is not None:
        raise Corrupt("the log of the Delta table is gone", key=lake.log.key(""), hint=RENEW)
    return lake.log.read(entries)


def restore(lake: Publisher) -> Publication:
    """Publish after everything that is damaged was deleted. If the log itself is damaged, its versions start again at
    0."""
    for kind, key, _ in list(audit(lake)):
        if kind == "lake-log-damaged":
            doomed = [one.key for one in lake.store.list(lake.directory + LOG_DIR)]
            in_parallel(lake.store.delete, [*doomed, lake.directory + TIP_FILE])
        else:
            lake.store.delete(key)
    lake.forget()
    return lake.publish()


def _damage(lake: Publisher, path: str, size: int) -> Found | None:
    key = lake.directory + path
    found = lake.store.get(key)
    try:
        if found is None:
            raise Corrupt("a file of the newest version of the Delta table is gone", key=key)
        if len(found.body) != size:
            raise Corrupt(f"it has {len(found.body):,} bytes, and the Delta log says {size:,}", key=key)
        check_crc(found.body, key)
    except Corrupt as damage:
        return "lake-file-damaged", key, f"{damage.message} ({REPAIR})"
    return None
