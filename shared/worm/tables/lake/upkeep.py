"""The state of a Delta table, and removing what it no longer needs."""

from __future__ import annotations

from datetime import datetime, timedelta

from worm.errors import Invalid, show
from worm.formats import JsonObject
from worm.store import Listed, in_parallel
from worm.tables.lake.actions import LOG_DAYS, RETENTION_DAYS
from worm.tables.lake.audit import replayed
from worm.tables.lake.log import LOG_DIR, Entries
from worm.tables.lake.publish import Publisher
from worm.tables.pieces import ORPHAN_AGE
from worm.values import dataclass


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The state of a Delta table. `version` and `revision` are None before the first publish. `behind_seconds`: for how
    long, at most, it has lacked a change; 0 if it has everything. `missing`: files of the newest version that somebody
    deleted; readers of this version fail until the next publish replaces them."""

    location: str
    version: int | None
    revision: int | None
    behind_seconds: int | None
    files: int
    size_bytes: int
    published: str | None
    missing: tuple[str, ...]

    def shape(self) -> JsonObject:
        return {
            "location": self.location,
            "version": self.version,
            "revision": self.revision,
            "behindSeconds": self.behind_seconds,
            "files": self.files,
            "sizeBytes": self.size_bytes,
            "published": self.published,
            "missing": list(self.missing),
        }

    @classmethod
    def of(cls, lake: Publisher) -> LakeStatus:
        """Reads the log, lists the files and compares them with the table. `Corrupt` if entries of the log are missing
        or damaged."""
        replayed(lake)
        found = lake.compare(check_files=True)
        tip, now = found.tip, lake.clock.now()
        if tip.version < 0:
            return cls(lake.location, None, None, None, 0, 0, None, ())
        published = datetime.fromtimestamp(tip.published / 1000, now.tzinfo)
        behind = 0 if found.is_published else max(1, round((now - published).total_seconds()))
        return cls(
            location=lake.location,
            version=tip.version,
            revision=tip.revision,
            behind_seconds=behind,
            files=len(tip.files),
            size_bytes=sum(tip.files.values()),
            published=published.isoformat(timespec="seconds").replace("+00:00", "Z"),
            missing=tuple(sorted(found.missing)),
        )


def vacuum(lake: Publisher, *, retention_days: int = RETENTION_DAYS, dry_run: bool = False) -> list[str]:
    """Delete Parquet files that no version of the last days names, and log entries that no such version needs. Returns
    the keys.

    What a publisher may be about to name stays: files of the current root, and files of the last day. The listing comes
    before everything else, so a listed file that nothing names will not be named soon.
    """
    given: object = retention_days
    if not isinstance(given, int) or given < 0:
        raise Invalid(f"must be a number of days, not {show(given)}", path="retention_days")
    now = lake.clock.now()
    listed = list(lake.store.list(lake.directory))
    entries = lake.log.entries(listed)
    needed = needed_files(lake, entries, now - timedelta(days=retention_days))
    doomed = [one.key for one in listed if _is_file(lake, one) and one.last_modified < now - ORPHAN_AGE]
    doomed = [key for key in doomed if key.removeprefix(lake.directory) not in needed]
    doomed += _old_entries(lake, listed, entries, now - timedelta(days=max(LOG_DAYS, retention_days)))
    if not dry_run:
        in_parallel(lake.store.delete, doomed)
    return doomed


def _is_file(lake: Publisher, one: Listed) -> bool:
    name = one.key.removeprefix(lake.directory)
    return name.startswith("partition-") and name.endswith(".parquet")


def needed_files(lake: Publisher, entries: Entries | None = None, since: datetime | None = None) -> set[str]:
    """The Parquet files that the root names, or a version of the Delta table that is not older than `since`."""
    state = lake.log.read(entries or lake.log.entries())
    first = since or lake.clock.now() - timedelta(days=RETENTION_DAYS)
    removed = state.recently_removed(int(first.timestamp() * 1000))
    root = lake.table.manifest.root()
    partitions = () if root is None or not root.is_spread else lake.table.manifest.partitions(root)
    return {*state.adds, *removed, *(lake.files.file(piece.file) for piece in partitions)}


def _old_entries(lake: Publisher, listed: list[Listed], entries: Entries, before: datetime) -> list[str]:
    """Everything before the newest checkpoint that is older than the retention: later versions start from that one."""
    start = max((version for version, at in entries.checkpoints.items() if at < before), default=0)
    first = lake.directory + LOG_DIR + f"{start:020d}"
    kept = lake.log.key("_")
    return [one.key for one in listed if lake.log.key("") < one.key < min(first, kept)]
