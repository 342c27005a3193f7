"""The table of a model: its state, rebuilding it, and publishing it as a Delta table."""

from __future__ import annotations

from worm.errors import Invalid, NotFound, show
from worm.sdk.access import Access, D
from worm.sdk.values import check_function
from worm.tables import (
    IndexStatus,
    Lake,
    LakeStatus,
    ManifestStatus,
    Progress,
    Publication,
    silent,
)

__all__ = ["IndexStatus", "LakeStatus", "ManifestStatus", "Publication", "Tabling"]


class Tabling(Access[D]):
    """`get_manifest_status`, `build_manifest`, `invalidate_manifest`, `build_index`, `build_indexes`, `publish`."""

    def get_manifest_status(self) -> ManifestStatus:
        """Does the manifest exist, is it fresh, how large is it? It lists the documents to find out.

        Examples:
            >>> customers.get_manifest_status().exists
            True
        """
        self._backlog.fold()
        self._await_others()
        with self._tables:
            return ManifestStatus.of(self.table)

    def get_index_status(self) -> list[IndexStatus]:
        """Every declared index, in the order of the schema.

        Examples:
            >>> [status.name for status in customers.get_index_status()]
            ['byEmail']
        """
        self._backlog.fold()
        self._await_others()
        with self._tables:
            names = self._collection.definition.indexes
            return [IndexStatus.of(self.table, *one) for one in zip(names, self.table.indexes, strict=True)]

    def build_manifest(self, *, progress: Progress = silent) -> ManifestStatus:
        """Rebuild manifest, indexes, heads and claims from the documents, while others may write. A second build
        changes nothing.

        Examples:
            >>> customers.build_manifest().exists
            True
        """
        check_function(progress, "progress")
        self._begin_building()
        with self._tables:
            manifest = self.table.rebuild(progress)
            if manifest is not None:
                self._collection.claims.restore(manifest.entities)
            self.table.collect()
            return ManifestStatus.of(self.table)

    def invalidate_manifest(self) -> None:
        """Remove the manifest. The next query of this session builds it again, and so does the next fold or sweep;
        until then other sessions read the documents.

        Examples:
            >>> customers.invalidate_manifest()
            >>> customers.count()
            2
        """
        self._begin_building()
        with self._tables:
            self.table.invalidate()

    def build_indexes(self) -> list[IndexStatus]:
        """Rebuild all indexes from the manifest, which is built first if it does not exist.

        Examples:
            >>> [status.name for status in customers.build_indexes()]
            ['byEmail']
        """
        self._begin_building()
        return [self.build_index(name) for name in self._collection.definition.indexes]

    def build_index(self, name: str) -> IndexStatus:
        """Rebuild one index, by its name in the schema or by its field.

        Examples:
            >>> customers.build_index("byEmail").name
            'byEmail'
        """
        self._begin_building()
        indexes = self._collection.definition.indexes
        for known, files in zip(indexes, self.table.indexes, strict=True):
            if name in (known, files.definition.field):
                with self._tables:
                    self.table.rebuild_index(files)
                    return IndexStatus.of(self.table, known, files)
        there = ", ".join(indexes) or "none"
        raise NotFound(f"{self.name} has no index {show(name)}; declared: {there}")

    def publish(self) -> Publication:
        """Publish the table as a new version of its Delta table, if anything has changed since the last one. Readers of
        earlier versions are not disturbed. The schema must have `lake` for the model.

        Examples:
            >>> customers.publish()
            Publication(version=1, revision=2, added=1, removed=1)
            >>> customers.publish().added
            0
        """
        self._begin_building()
        self._await_others()
        with self._tables:
            return self._session.lake(self.name).publish()

    def get_lake_status(self) -> LakeStatus:
        """Where the Delta table is, its newest version, and whether it is up to date. It lists the files.

        Examples:
            >>> customers.publish().version, customers.get_lake_status().behind_seconds
            (1, 0)
        """
        self._backlog.fold()
        self._await_others()
        with self._tables:
            return self._session.lake(self.name).status()

    def vacuum(self, *, retention_days: int = Lake.RETENTION_DAYS, dry_run: bool = False) -> list[str]:
        """Delete files of the Delta table that no version of the last days needs. Returns their keys.

        Examples:
            >>> customers.vacuum()
            []
        """
        self._begin_building()
        with self._tables:
            return self._session.lake(self.name).vacuum(retention_days=retention_days, dry_run=dry_run)

    def _begin_building(self) -> None:
        if not self._collection.definition.keeps_manifest:
            hint = 'set "manifest": {"enabled": true} for it in schema.json, and push the schema'
            raise Invalid(f"{self.name} keeps no manifest", hint=hint)
        self._session.ensure_safe_store()
        self._backlog.fold()
