"""Applies commits of a space to one document.

A commit is a *step* for each document that it writes. Steps are written in order, each conditional on the object that
was read. So a late writer finds a newer commit and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from worm.clock import attempts, iso_seconds
from worm.collections import Collection, Deletion, Document, delete_unchanged, origins
from worm.errors import CommitStateUnknown, Conflict, Unavailable
from worm.formats import JsonObject, JsonValue, dumps_document
from worm.spaces.bridge.origins import VERSIONS_MAX, about_of, actor_of_commit, commit_metadata, commit_of, entity_name
from worm.spaces.results import LogEntry
from worm.spaces.rows import DELETE, SET, TRUNK
from worm.spaces.space import Space
from worm.store import METADATA_BYTES_MAX, Gone, Lost, Object, Version, Won


@dataclass(frozen=True, slots=True)
class Step:
    """The effect of one commit on one document; `document` None: it deletes it."""

    seq: int
    document: Document | None
    actor: str | None
    op: str | None = None
    note: JsonObject | None = None


def steps_of(entry: LogEntry, space: Space) -> dict[str, Step]:
    """The steps by entity. Branches have no documents."""
    operations = entry.original.get("operations")
    if entry.branch != TRUNK or not isinstance(operations, list):
        return {}
    notes, actor, steps = about_of(entry).get("documents"), actor_of_commit(entry), dict[str, Step]()
    for operation in operations:
        if isinstance(operation, dict):
            entity, value = str(operation.get("id")), operation.get("value")
            if operation.get("op") not in (SET, DELETE):
                value = space.read(entity, at=entry.seq).value
            op, note = _said(notes, entity)
            steps[entity] = Step(entry.seq, value if isinstance(value, dict) else None, actor, op, note)
    return steps


def operations_of(entry: LogEntry) -> int:
    """The maximum number of writes of a commit."""
    operations = entry.original.get("operations")
    return len(operations) if isinstance(operations, list) else 0


def _said(notes: JsonValue, entity: str) -> tuple[str | None, JsonObject | None]:
    """What belongs in the metadata of a document."""
    given = notes.get(entity) if isinstance(notes, dict) else None
    said = given if isinstance(given, dict) else {}
    op, note = said.get("op"), said.get("note")
    return op if isinstance(op, str) else None, note if isinstance(note, dict) else None


ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """An object as it was read or written last."""

    etag: str
    version_id: str | None
    body: bytes


class DocumentWriting:
    """Applies the steps of one document. `newest` is the last commit of the log, `keeps_versions` whether the store
    keeps deleted versions; both are only requested if they matter. `done`: all documents already had the commits up to
    this one; their steps are repeated only over a version that landed late."""

    def __init__(
        self,
        collection: Collection,
        entity_id: str,
        steps: Sequence[Step],
        newest: Callable[[], int],
        keeps_versions: Callable[[], bool],
        done: int = 0,
    ) -> None:
        self._done = done
        self._newest = newest
        self._keeps_versions = keeps_versions
        self._collection = collection
        self._clock = collection.clock
        self._store = collection.store
        self._id = entity_id
        self._entity = entity_name(collection.name, entity_id)
        self._key = collection.documents.key(entity_id)
        self._steps = steps

    def run(self, *, must_ask: bool) -> int:
        """The number of writes and deletes that it took. `must_ask`: others may have applied some of the steps."""
        written = 0
        for _ in attempts(ROUNDS_MAX, self._clock, self._collection.ids, base_seconds=0.01, cap_seconds=0.5):
            found = self._store.get(self._key)
            stored = None if found is None else StoredDocument(found.etag, found.version_id, found.body)
            for step in self._pending(found, must_ask=must_ask):
                try:
                    lost, stored, done = self._write(step, stored)
                except (Conflict, CommitStateUnknown):
                    lost, done = True, 0
                written += done
                if lost:
                    break
            else:
                return written
            must_ask = True
        raise Unavailable(f"{ROUNDS_MAX} attempts to write a document lost to other writers", key=self._key)

    def _pending(self, found: Object | None, *, must_ask: bool) -> Sequence[Step]:
        """The steps that are not in the document yet."""
        last = commit_of(found, self._entity)
        if last is not None and last > self._steps[-1].seq and last > self._newest():
            last = None  # from another log: this one has no such commit
        rest = self._steps if last is None else [step for step in self._steps if step.seq > last]
        if not must_ask or not rest:
            return rest
        if self._keeps_versions():
            return self._asked()
        return self._guessed(found) if last is None else rest

    def _asked(self) -> Sequence[Step]:
        """Decided by the newest version that a commit made; a copy of one does not count. If that version was deleted
        since then, the next delete is done, whatever somebody has put there after it. A finished step is repeated only
        over a current version that landed late: another attempt of its commit is below it."""
        last, is_deleted, is_late, count = 0, False, False, 0
        versions = list(islice(self._store.versions(self._key), VERSIONS_MAX))
        for count, version in enumerate(versions, start=1):
            if version.is_delete_marker:
                is_deleted = True
                continue
            stored = self._store.head(self._key, version_id=version.version_id)
            last = commit_of(stored, self._entity) or 0
            others = self._attempts(version, last, versions[count:]) if last else set()
            name = None if stored is None else stored.attempt
            if last and (name is None or name not in others):
                is_late = count == 1 and bool(others)
                break
            last = 0
        rest = [step for step in self._steps if step.seq > last]
        if is_deleted:
            rest = rest[next((at for at, step in enumerate(rest, start=1) if step.document is None), 0) :]
        return rest if is_late else [step for step in rest if step.seq > self._done]

    def _attempts(self, version: Version, commit: int, older: Sequence[Version]) -> set[str | None]:
        """The put ids of writes of this commit that made older versions. Only versions with the same content are
        checked."""
        same = (one for one in older if one.etag == version.etag and not one.is_delete_marker)
        heads = (self._store.head(self._key, version_id=one.version_id) for one in same)
        return {one.attempt for one in heads if one is not None and commit_of(one, self._entity) == commit}

    def _guessed(self, found: Object | None) -> Sequence[Step]:
        """It is unknown what was applied before: the newest state is enough, or what came after the last delete."""
        if found is not None:
            return self._steps[-1:]
        return self._steps[
            max((at for at, step in enumerate(self._steps, start=1) if step.document is None), default=0) :
        ]

    def _write(self, step: Step, stored: StoredDocument | None) -> tuple[bool, StoredDocument | None, int]:
        """Whether another writer was faster, what is stored now, and how many writes it took."""
        if step.document is None:
            return self._delete(step, stored)
        body = dumps_document(step.document)
        metadata = origins.write_metadata(
            actor=step.actor,
            parent=None if stored is None else stored.etag,
            parent_version=None if stored is None else stored.version_id,
            written=self._clock.now(),
            op=step.op,
            note=step.note,
        )
        metadata = _fitting(metadata | commit_metadata(self._entity, step.seq))
        outcome: Won | Lost | Gone
        if stored is None:
            outcome = self._store.put_if_absent(self._key, body, metadata=metadata)
        else:
            outcome = self._store.put_if_match(self._key, body, stored.etag, metadata=metadata)
        if not isinstance(outcome, Won):
            return True, None, 0
        return False, StoredDocument(outcome.etag, outcome.version_id, body), 1

    def _delete(self, step: Step, stored: StoredDocument | None) -> tuple[bool, StoredDocument | None, int]:
        if stored is None:
            return False, None, 0
        if self._collection.definition.soft_delete:
            at = iso_seconds(self._clock.now())
            deletion = Deletion(stored.etag, stored.version_id, step.actor, at)
            self._collection.trash.put_away(self._id, stored.body, deletion)
        outcome = delete_unchanged(self._store, self._key, stored.etag, stored.version_id)
        return isinstance(outcome, Lost), None, int(isinstance(outcome, Won))


def _fitting(metadata: dict[str, str]) -> dict[str, str]:
    """The metadata that fits in S3. The log keeps all of it; a long text must not block later commits."""
    for name in (origins.NOTE, origins.ACTOR):
        if sum(len(one) + len(value) for one, value in metadata.items()) > METADATA_BYTES_MAX:
            metadata.pop(name, None)
    return metadata
