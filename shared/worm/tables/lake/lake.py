"""The Delta table of one model, as the rest of the library sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from worm.tables.lake.actions import RETENTION_DAYS
from worm.tables.lake.audit import Found, audit, restore
from worm.tables.lake.publish import Publication, Publisher
from worm.tables.lake.upkeep import LakeStatus, needed_files, vacuum


class Lake(Publisher):
    """Publishes the table (`publish.py`), and says and checks what is published."""

    RETENTION_DAYS: ClassVar[int] = RETENTION_DAYS
    """How long files that no version needs any more stay."""

    def status(self) -> LakeStatus:
        """Reads the log, lists the files and compares them with the table. `Corrupt` if entries of the log are missing
        or damaged."""
        return LakeStatus.of(self)

    def vacuum(self, *, retention_days: int = RETENTION_DAYS, dry_run: bool = False) -> list[str]:
        """Delete Parquet files that no version of the last days names, and log entries that no such version needs.
        Returns the keys."""
        return vacuum(self, retention_days=retention_days, dry_run=dry_run)

    def needed_files(self) -> set[str]:
        """The Parquet files that the root names, or a version that is not older than the retention."""
        return needed_files(self)

    def audit(self) -> Iterator[Found]:
        """What is wrong with the log, and with the files that its newest version names."""
        return audit(self)

    def restore(self) -> Publication:
        """Publish after everything that is damaged was deleted. If the log itself is damaged, its versions start again
        at 0."""
        return restore(self)

    def ddl(self, engine: str) -> str:
        """The statement that makes the Delta table known to an engine; for Glue, the input of `aws glue
        create-table`."""
        from worm.tables.lake.ddl import ddl

        return ddl(self, engine)
