"""Snapshots: whole documents as they were at a moment, `<snapshot directory>/2026-02-24T12:00:00Z.json`.

The name is the second of the oplog entry that the snapshot belongs to. If another entry of that second has the name, a
fraction follows (`.001`, `.002` …). Snapshots are written once (put-if-absent) and never changed. Pruning goes by their
names alone and never removes an entity's newest one.

For a model without an oplog, a snapshot belongs to a stored version: it is named for that version's time and has the
seq 0 (`NO_ENTRY`). Nothing counts changes there, so every version that maintenance sees gets one.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import field
from datetime import datetime, timedelta
from typing import cast

from worm.clock import Deadline, iso_seconds, moment_of
from worm.collections.entries import SEQ_MAX, SHAPES, Document
from worm.collections.layout import KeyKind, StorageResolver
from worm.errors import Corrupt, Invalid, Unavailable, show
from worm.formats import JsonObject, ModelDef, dumps, loads_own, shapes
from worm.store import Lost, Object, ObjectInfo, Store
from worm.values import dataclass

VERSION = 1
NO_ENTRY = 0
NAMES_PER_SECOND = 1000
SNAPSHOT = shapes.record(
    "a snapshot that this version of worm reads",
    {
        "version": shapes.one_of(VERSION),
        "id": shapes.TEXT,
        "seq": shapes.whole_number(NO_ENTRY, SEQ_MAX),
        "ts": shapes.TIME,
        "document": shapes.OBJECT,
    },
)


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """One snapshot of an entity; `ts` is its name. A listing does not know the seq, and without an oplog there is
    none."""

    ts: str
    size: int
    seq: int | None = None

    def to_json(self) -> JsonObject:
        """As a listing shows it, without the seq."""
        return {"ts": self.ts, "size": self.size}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as stored: the document after oplog entry `seq`, which was made at `ts`; or (`NO_ENTRY`) the version
    that was stored at `ts`."""

    id: str
    seq: int
    ts: str
    document: Document

    def to_bytes(self) -> bytes:
        return dumps(
            {"version": VERSION, "id": self.id, "seq": self.seq, "ts": self.ts, "document": self.document},
        )

    def is_of(self, other: Snapshot) -> bool:
        """Whether both belong to one entry or, without entries, hold equal documents."""
        if self.seq == other.seq == NO_ENTRY:
            return dumps(self.document) == dumps(other.document)
        return self.seq == other.seq

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Snapshot:
        shape = loads_own(body, key=key)
        shapes.check(shape, SNAPSHOT, key, hint=SHAPES)
        return cls(
            id=cast(str, shape["id"]),
            seq=cast(int, shape["seq"]),
            ts=cast(str, shape["ts"]),
            document=cast(Document, shape["document"]),
        )


@dataclass
class PruneReport:
    """The result of pruning a collection. `removed` has the keys (in a dry run: those that would be removed)."""

    listed: int = 0
    removed: list[str] = field(default_factory=list)
    finished: bool = True


@dataclass(frozen=True, slots=True)
class _Named:
    key: str
    moment: datetime


class Snapshots:
    """The snapshots of one model."""

    def __init__(self, store: Store, resolver: StorageResolver, name: str, definition: ModelDef) -> None:
        self._store = store
        self._resolver = resolver
        self._name = name
        self._rules = definition.snapshots
        self._has_oplog = definition.oplog

    def is_due(self, seq: int) -> bool:
        """Whether the model wants a snapshot of this oplog entry."""
        return self._rules.enabled and seq % self._rules.every == 0

    @property
    def are_of_versions(self) -> bool:
        """Whether the model wants a snapshot of every version because it has no entries to count."""
        return self._rules.enabled and not self._has_oplog

    def take_version(self, entity_id: str, found: ObjectInfo, document: Document) -> SnapshotInfo:
        """Store the document of a stored version. Repeating it for the same version does nothing."""
        return self.take(entity_id, NO_ENTRY, iso_seconds(found.last_modified), document)

    def take(self, entity_id: str, seq: int, ts: str, document: Document) -> SnapshotInfo:
        """Store the document of entry `seq`, made at `ts`. Repeating it for the same seq does nothing."""
        wanted = Snapshot(entity_id, seq, ts, document)
        body = wanted.to_bytes()
        for name in _names(ts):
            key = self._resolver.snapshot_key(self._name, entity_id, name)
            outcome = self._store.put_if_absent(key, body)
            if not isinstance(outcome, Lost):
                return SnapshotInfo(name, len(body), seq or None)
            if self._parse(entity_id, outcome.current).is_of(wanted):
                return SnapshotInfo(name, outcome.current.size, seq or None)
        raise Unavailable(
            f"there are already {NAMES_PER_SECOND} snapshots for the second {ts}",
            key=self._resolver.snapshot_path(self._name, entity_id),
            hint="prune snapshots, or take this one after the next change",
        )

    def list(self, entity_id: str) -> builtins.list[SnapshotInfo]:
        """The entity's snapshots by time, from a listing."""
        found: builtins.list[tuple[datetime, SnapshotInfo]] = []
        for listed in self._store.list(self._resolver.snapshot_path(self._name, entity_id)):
            info = self._resolver.parse(listed.key)
            if info.kind is KeyKind.SNAPSHOT and info.model == self._name and info.id == entity_id and info.name:
                moment = moment_of(info.name)
                if moment is not None:
                    found.append((moment, SnapshotInfo(info.name, listed.size)))
        return [info for _, info in sorted(found, key=lambda pair: pair[0])]

    def read(self, entity_id: str, ts: str) -> Snapshot | None:
        """The snapshot of this name, or None."""
        found = self._store.get(self._resolver.snapshot_key(self._name, entity_id, ts))
        return None if found is None else self._parse(entity_id, found)

    def prune(self, now: datetime, *, dry_run: bool = False, deadline: Deadline | None = None) -> PruneReport:
        """Remove snapshots that are older than `maxAge` or beyond the newest `maxCount` of their entity, but never the
        newest. If the model takes no snapshots by itself, nothing is pruned: no rule applies to snapshots taken by
        hand."""
        report = PruneReport()
        if not self._rules.enabled:
            return report
        oldest_kept = now - timedelta(seconds=self._rules.max_age_seconds)
        for named in self._by_entity(report).values():
            for key in self._superfluous(named, oldest_kept):
                if deadline is not None and deadline() <= 0:
                    report.finished = False
                    return report
                if not dry_run:
                    self._store.delete(key)
                report.removed.append(key)
        return report

    def _by_entity(self, report: PruneReport) -> dict[str, builtins.list[_Named]]:
        entities: dict[str, builtins.list[_Named]] = {}
        for listed in self._store.list(self._resolver.snapshot_root(self._name)):
            info = self._resolver.parse(listed.key)
            if info.kind is not KeyKind.SNAPSHOT or info.model != self._name or info.id is None or info.name is None:
                continue
            moment = moment_of(info.name)
            if moment is not None:
                report.listed += 1
                entities.setdefault(info.id, []).append(_Named(listed.key, moment))
        return entities

    def _superfluous(self, named: builtins.list[_Named], oldest_kept: datetime) -> Iterator[str]:
        newest_first = sorted(named, key=lambda item: item.moment, reverse=True)
        for position, item in enumerate(newest_first):
            if position and (position >= self._rules.max_count or item.moment < oldest_kept):
                yield item.key

    def _parse(self, entity_id: str, found: Object) -> Snapshot:
        snapshot = Snapshot.from_bytes(found.body, found.key)
        if snapshot.id != entity_id:
            raise Corrupt(
                f"holds a snapshot of {show(snapshot.id)}, but its name says {show(entity_id)}", key=found.key
            )
        return snapshot


def _names(ts: str) -> Iterator[str]:
    moment = moment_of(ts)
    if moment is None:
        raise Invalid(f"snapshot time must be a time such as 2026-02-24T12:00:00Z, not {show(ts)}")
    second = iso_seconds(moment)
    yield second
    for number in range(1, NAMES_PER_SECOND):
        yield f"{second[:-1]}.{number:03d}Z"
