"""The two folds: recorded changes of a model with oplog, current documents of a model without."""

from __future__ import annotations

from collections.abc import Sequence

from worm.collections.changes import Change
from worm.collections.collection import Collection
from worm.collections.heads import Heads
from worm.tables.build import build_manifest, read_rows
from worm.tables.manifest import Manifest, ReadRow


class RecordedFold:
    """Changes that stand in the oplog, into the manifest. Idempotent and order-free: the newest seq of an id wins."""

    def __init__(self, collection: Collection, changes: Sequence[Change]) -> None:
        self._collection = collection
        self._changes = changes
        self.is_new = False

    def onto(self, stored: Manifest) -> Manifest | None:
        return stored.folded(self._changes)

    def delta(self, revision: int) -> Manifest:
        empty = Manifest(self._collection.name)
        return empty.folded(self._changes) or empty

    def anew(self, stored: Manifest | None) -> Manifest:
        """Lost, damaged or of other fields: the source has everything."""
        self.is_new = True
        built = build_manifest(self._collection)
        return built.folded(self._changes) or built


class HeadsFold:
    """Changes that stand in the oplog, into the heads."""

    def __init__(self, model: str, changes: Sequence[Change]) -> None:
        self._empty = Heads(model)
        self._changes = changes

    def onto(self, stored: Heads) -> Heads | None:
        return stored.folded(self._changes)

    def delta(self, revision: int) -> Heads:
        return self.anew(None)

    def anew(self, stored: Heads | None) -> Heads:
        return self._empty.folded(self._changes) or self._empty


class DocumentsFold:
    """Documents as they are now. They are read after the root, so a fold that lost its race reads them again."""

    def __init__(self, collection: Collection, ids: set[str]) -> None:
        self._collection = collection
        self._ids = ids
        self.etags: dict[str, str | None] = {}
        self.is_new = False

    def onto(self, stored: Manifest) -> Manifest | None:
        self.is_new = False
        return stored.with_documents(self._read())

    def delta(self, revision: int) -> Manifest:
        self.is_new = False
        return Manifest.of_documents(self._collection.name, self._read(), revision)

    def anew(self, stored: Manifest | None) -> Manifest:
        self.is_new = True
        built = build_manifest(self._collection, carry=stored)
        return built.with_documents(self._read()) or built

    def _read(self) -> dict[str, ReadRow]:
        rows = read_rows(self._collection, self._ids)
        self.etags.update({entity_id: found.etag for entity_id, found in rows.items()})
        return rows
