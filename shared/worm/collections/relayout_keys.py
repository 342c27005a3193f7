"""Which objects a relayout moves, and where each goes.

*Moved*: an oplog entry or archive, a time mark, a snapshot, a trash copy or a tombstone whose directory lies elsewhere
then.
What lies in those directories under no name of this library is *foreign*: counted, never touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from worm.collections.key_info import KeyInfo, KeyKind
from worm.collections.layout import OPLOG_DIR, SNAPSHOTS_DIR, TRASH_DIR, StorageResolver
from worm.collections.relayout_marker import layouts
from worm.errors import Invalid
from worm.schema import ModelDef, Schema
from worm.schema.definition import StorageDef
from worm.store.base import Listed, Store

Directory = Literal["oplog", "snapshots", "trash"]

DIRECTORIES: dict[Directory, str] = {"oplog": OPLOG_DIR, "snapshots": SNAPSHOTS_DIR, "trash": TRASH_DIR}
_KINDS: dict[KeyKind, Directory] = {
    KeyKind.OPLOG: "oplog",
    KeyKind.TIME_MARK: "oplog",
    KeyKind.ARCHIVE: "oplog",
    KeyKind.SNAPSHOT: "snapshots",
    KeyKind.TRASH: "trash",
    KeyKind.TOMBSTONE: "trash",
}


@dataclass(frozen=True, slots=True)
class Moved:
    """One object and its key in the other layout."""

    listed: Listed
    model: str
    directory: Directory
    target: str

    @property
    def is_for_ever(self) -> bool:
        """History is never changed; what is packed into an archive is in it. Snapshots are pruned, trash is restored
        and purged."""
        return self.directory == "oplog"


class Moves:
    """The objects of a bucket that lie elsewhere in `target` than in `source`."""

    def __init__(self, store: Store, schema: Schema, source: StorageDef, target: StorageDef) -> None:
        self.source, self.target = source, target
        self.foreign = 0
        self._store = store
        self._schema = schema
        self._from = StorageResolver(with_storage(schema, source))
        self._to = StorageResolver(with_storage(schema, target))
        was, becomes = layouts(source), layouts(target)
        self.directories: list[Directory] = [one for one in DIRECTORIES if was[one] != becomes[one]]

    def reversed(self) -> Moves:
        return Moves(self._store, self._schema, self.target, self.source)

    def places(self) -> list[tuple[str, Directory]]:
        """Every model and directory that moves."""
        return [(model, directory) for model in self._schema.models for directory in self.directories]

    def objects(self) -> Iterator[Moved]:
        """All of them, from listings."""
        self.foreign = 0
        for model, directory in self.places():
            yield from self.at(model, directory)

    def at(self, model: str, directory: Directory) -> Iterator[Moved]:
        """Those of one model and directory."""
        definition = self._schema.model(model)
        for listed in self._store.list(self._prefix(definition, directory)):
            info = self._from.parse(listed.key)
            if info.model == model and _KINDS.get(info.kind) == directory and info.id is not None:
                yield Moved(listed, model, directory, self._target(info, model, info.id))
            elif self._is_foreign(listed.key, definition, directory):
                self.foreign += 1

    def _prefix(self, model: ModelDef, directory: Directory) -> str:
        layout = layouts(self.source)[directory]
        if layout == "root":
            return f"{DIRECTORIES[directory]}/{model.collection}/"
        path = self._from.collection_path(model.name)
        if layout == "collection" or model.is_singleton:
            return f"{path}{DIRECTORIES[directory]}/"
        return path

    def _target(self, info: KeyInfo, model: str, id: str) -> str:
        if info.kind is KeyKind.OPLOG and info.seq is not None:
            return self._to.oplog_key(model, id, info.seq)
        if info.kind is KeyKind.TIME_MARK and info.name is not None:
            return self._to.time_mark_key(model, id, info.name)
        if info.kind is KeyKind.ARCHIVE and info.name is not None:
            return self._to.archive_path(model, id) + info.name
        if info.kind is KeyKind.SNAPSHOT and info.name is not None:
            return self._to.snapshot_key(model, id, info.name)
        if info.kind is KeyKind.TRASH:
            return self._to.trash_key(model, id)
        if info.kind is KeyKind.TOMBSTONE:
            return self._to.tombstone_key(model, id)
        raise Invalid(f"a key of kind {info.kind.value} has no place in a layout")

    def _is_foreign(self, key: str, model: ModelDef, directory: Directory) -> bool:
        """In a directory of ours, but of neither layout: a note that somebody put there."""
        inside = f"/{DIRECTORIES[directory]}/" in f"/{key}"
        known = any(resolver.parse(key).kind is not KeyKind.UNKNOWN for resolver in (self._from, self._to))
        return inside and not known


def with_storage(schema: Schema, storage: StorageDef) -> Schema:
    """The same schema with another storage."""
    return schema.model_copy(update={"storage": storage})
