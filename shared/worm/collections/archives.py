"""Archives: old oplog entries of one entity in one object, framed lines (`codec/frames.py`) of the entries' own bytes.

An archive holds the entries `first` to `last`, all of them; its name says which, and begins with the SHA-256 of what it
holds. It is written before any of the entries is deleted and never changed, so an entry that is missing is either in an
archive that a LIST made afterwards shows, or was never there. Entry 1 and the newest entries are never deleted.
- *view*: the archives of one entity as one call sees them. It lists only when an entry is missing, reads an archive
  once, and where it has read one believes it rather than single entries.

Whoever finds an entry missing at the end of a history need not look for archives where the entry before is younger
than half of `MIN_AGE`: nothing younger than `MIN_AGE` is ever archived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from worm.clock import iso_seconds
from worm.codec.frames import decode_whole
from worm.collections.entries import OplogEntry
from worm.collections.layout import ArchiveName, KeyKind, StorageResolver, digest_of
from worm.errors import Corrupt
from worm.store.base import Object, Read, Store

MIN_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Archive:
    """The entries of an archive, and their own bytes."""

    name: ArchiveName
    key: str
    entries: Sequence[OplogEntry]
    bodies: Sequence[bytes]

    def entry(self, seq: int) -> OplogEntry:
        return self.entries[seq - self.name.first]

    @classmethod
    def from_bytes(cls, body: bytes, name: ArchiveName, key: str) -> Archive:
        """`Corrupt`, naming the archive, unless it holds exactly what its name says."""
        frames = decode_whole(body, key=key)
        if digest_of(body) != name.digest:
            raise Corrupt("holds other bytes than its name says", key=key, hint="run `worm verify`")
        entries = [OplogEntry.from_shape(frame.value, key) for frame in frames]
        if [entry.seq for entry in entries] != list(range(name.first, name.last + 1)):
            raise Corrupt(f"does not hold entries {name.first} to {name.last}", key=key)
        return cls(name, key, entries, [frame.body for frame in frames])


class Archives:
    """The archives of one model's entities."""

    def __init__(self, store: Store, resolver: StorageResolver, model: str) -> None:
        self._store = store
        self._resolver = resolver
        self._model = model

    def key(self, entity_id: str, name: ArchiveName) -> str:
        return self._resolver.archive_path(self._model, entity_id) + name.file

    def names(self, entity_id: str) -> list[ArchiveName]:
        """All archives of an entity: one LIST."""
        infos = (self._resolver.parse(one.key) for one in self._store.list(self._path(entity_id)))
        found = (ArchiveName.parse(info.name or "") for info in infos if info.kind is KeyKind.ARCHIVE)
        return sorted((name for name in found if name is not None), key=lambda name: (name.first, name.last))

    def last(self, entity_id: str) -> int:
        """The newest archived seq (0: none)."""
        return max((name.last for name in self.names(entity_id)), default=0)

    def load(self, entity_id: str, name: ArchiveName) -> Archive | None:
        key = self.key(entity_id, name)
        found = self._store.get(key)
        return None if found is None else Archive.from_bytes(found.body, name, key)

    def view(self, entity_id: str) -> ArchiveView:
        return ArchiveView(self, entity_id)

    def differences(self, entity_id: str) -> Iterator[Corrupt]:
        """What is wrong with the archives of an entity: damage, and entries that still lie beside them and differ."""
        single: dict[int, str] = {}
        names: list[ArchiveName] = []
        for listed in self._store.list(self._resolver.oplog_path(self._model, entity_id)):
            info = self._resolver.parse(listed.key)
            name = ArchiveName.parse(info.name or "")
            if info.kind is KeyKind.OPLOG and info.seq is not None:
                single[info.seq] = listed.key
            elif info.kind is KeyKind.ARCHIVE and name is not None:
                names.append(name)
        for name in names:
            yield from self._differences(entity_id, name, single)

    def _differences(self, entity_id: str, name: ArchiveName, single: Mapping[int, str]) -> Iterator[Corrupt]:
        try:
            archive = self.load(entity_id, name)
        except Corrupt as damage:
            yield damage
            return
        if archive is None:
            return  # deleted by hand after the listing: the entries that it held are missing now
        seqs = [seq for seq in range(name.first, name.last + 1) if seq in single]
        found = self._store.get_many([Read(single[seq]) for seq in seqs])
        for seq, item in zip(seqs, found, strict=True):
            if isinstance(item, Object) and item.body != archive.bodies[seq - name.first]:
                yield Corrupt("differs from the archived entry", key=item.key, hint="the archive counts")

    def _path(self, entity_id: str) -> str:
        return self._resolver.archive_path(self._model, entity_id)


class ArchiveView:
    """The archives of one entity, as far as one call has looked. Not for two threads."""

    def __init__(self, archives: Archives, entity_id: str) -> None:
        self._archives = archives
        self._id = entity_id
        self._names: list[ArchiveName] = []
        self._read: Archive | None = None

    def at_hand(self, seq: int) -> Archive | None:
        """The archive that was read last, if it holds the entry. No request."""
        return self._read if self._read is not None and seq in self._read.name else None

    def known(self, seq: int) -> Archive | None:
        """The archive with this entry, if it is known of already; its single object need not be asked for then."""
        return self.holding(seq) if any(seq in name for name in self._names) else self.at_hand(seq)

    def open(self, name: ArchiveName) -> Archive | None:
        """Read this archive, if it is there. One request."""
        self._read = self._archives.load(self._id, name) or self._read
        return self.at_hand(name.first)

    def holding(self, seq: int) -> Archive | None:
        """The archive with this entry; None: no archive has it. Ask after the entry was found missing."""
        archive = self.at_hand(seq)
        if archive is None and not any(seq in name for name in self._names):
            self._names = self._archives.names(self._id)
        if archive is None:
            longest = max((name for name in self._names if seq in name), key=lambda name: name.last, default=None)
            archive = None if longest is None else self.open(longest)
            if longest is not None and archive is None:
                raise Corrupt("an archive was listed but is gone", key=self._archives.key(self._id, longest))
        return archive

    def entry(self, seq: int) -> OplogEntry | None:
        archive = self.holding(seq)
        return None if archive is None else archive.entry(seq)


def may_be_archived(ts: str, now: datetime) -> bool:
    """Can an entry that comes after one of this time be archived?"""
    return ts <= iso_seconds(now - MIN_AGE / 2)
