"""Finding tombstones: by id, by listing, and among the versions that were removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, islice

from worm.collections.documents import Documents
from worm.collections.layout import KeyKind
from worm.collections.tombstone import Tombstone
from worm.errors import Corrupt
from worm.store.base import Listed, Object, Read

PAGE = 100

OnCorrupt = Callable[[Corrupt], None]
IsWanted = Callable[[datetime | None], bool]
"""Asked with the older of the dates of tombstone and copy. None: there is no copy, so something was under way."""


@dataclass(frozen=True, slots=True)
class Trashed:
    """A tombstone as read, with the etag and version of its object."""

    id: str
    tombstone: Tombstone
    etag: str
    version_id: str | None = None

    @classmethod
    def of(cls, entity_id: str, found: Object) -> Trashed:
        return cls(entity_id, Tombstone.from_bytes(found.body, found.key), found.etag, found.version_id)


class Tombstones:
    """The tombstones of one model."""

    def __init__(self, documents: Documents) -> None:
        self._store = documents.store
        self._resolver = documents.resolver
        self._name = documents.name

    def key(self, entity_id: str) -> str:
        return self._resolver.tombstone_key(self._name, entity_id)

    def read(self, entity_id: str) -> Trashed | None:
        found = self._store.get(self.key(entity_id))
        return None if found is None else Trashed.of(entity_id, found)

    def last_removed(self, entity_id: str) -> Tombstone | None:
        """The tombstone that a restore or a purge removed last, as long as the store keeps old versions."""
        key = self.key(entity_id)
        for version in self._store.versions(key):
            if not version.is_delete_marker:
                found = self._store.get(key, version_id=version.version_id)
                return None if found is None else Trashed.of(entity_id, found).tombstone
        return None

    def pages(self, is_wanted: IsWanted, on_corrupt: OnCorrupt | None) -> Iterator[list[Trashed]]:
        """The tombstones that are wanted by their listing, read in concurrent pages. A corrupt one raises, or goes to
        `on_corrupt`."""
        keys = self._listed(is_wanted)
        while page := list(islice(keys, PAGE)):
            found = self._store.get_many([Read(key) for _, key in page])
            trashed: list[Trashed] = []
            for (entity_id, _), item in zip(page, found, strict=True):
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    continue
                try:
                    trashed.append(Trashed.of(entity_id, item))
                except Corrupt as damage:
                    if on_corrupt is None:
                        raise
                    on_corrupt(damage)
            yield trashed

    def _listed(self, is_wanted: IsWanted) -> Iterator[tuple[str, str]]:
        """Copy and tombstone lie side by side in a listing. Where they do not, the copy seems to be missing, which only
        costs reading the tombstone."""
        for entity_id, rows in groupby(self._rows(), key=lambda row: row[0]):
            dates = {kind: (listed.key, listed.last_modified) for _, kind, listed in rows}
            if KeyKind.TOMBSTONE not in dates:
                continue
            key, written = dates[KeyKind.TOMBSTONE]
            if is_wanted(min(written, dates[KeyKind.TRASH][1]) if KeyKind.TRASH in dates else None):
                yield entity_id, key

    def _rows(self) -> Iterator[tuple[str, KeyKind, Listed]]:
        for listed in self._store.list(self._resolver.trash_root(self._name)):
            info = self._resolver.parse(listed.key)
            if info.kind in (KeyKind.TOMBSTONE, KeyKind.TRASH) and info.model == self._name and info.id:
                yield info.id, info.kind, listed
