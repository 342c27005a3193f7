"""The files of the indexes of a table that is one file: each computed whole from a manifest, after it was written."""

from __future__ import annotations

from collections.abc import Sequence

from worm.schema import IndexDef
from worm.tables.index import Index
from worm.tables.manifest import Manifest
from worm.tables.spread import Spread
from worm.tables.trees import IndexFiles, ManifestTree


class WholeIndexes:
    """All indexes of one table."""

    def __init__(self, manifest: ManifestTree) -> None:
        self._manifest = manifest

    def fold(self, manifest: Manifest) -> None:
        """Write those that are of an older manifest."""
        for files in self._manifest.indexes:
            definition, wanted = files.definition, Index.of(manifest, files.definition)

            def newer(stored: Index | None, wanted: Index = wanted, definition: IndexDef = definition) -> Index | None:
                return None if stored is not None and stored.is_current(wanted, definition) else wanted

            files.file.update(newer)

    def replace(self, manifest: Manifest, indexes: Sequence[IndexFiles] | None = None) -> None:
        """After a rebuild an index may even have to go back (a row without a source raised its revision). A fold that
        went on meanwhile may have written a newer index before us, so the manifest is looked at again."""
        for files in self._manifest.indexes if indexes is None else indexes:
            wanted = Index.of(manifest, files.definition)

            def differing(stored: Index | None, wanted: Index = wanted) -> Index | None:
                return None if stored == wanted else wanted

            files.file.update(differing)
        newest = self._manifest.root()
        if isinstance(newest, Manifest) and newest.revision != manifest.revision:
            self.fold(newest)

    def revive(self, manifest: Manifest) -> None:
        """Of a table that became one file again, where somebody died before its indexes did. If it is spread again by
        now, the file of the index must say so again."""
        for files in self._manifest.indexes:
            stub = files.file.held.value
            if stub is not None and stub.partitioned and stub.revision <= manifest.revision:
                self.replace(manifest, [files])
                if isinstance(self._manifest.root(), Spread):
                    files.stub(stub)
