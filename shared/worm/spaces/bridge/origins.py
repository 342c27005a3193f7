"""What the space of a model knows about its documents: the log is the source of truth, and the documents follow it.

A document of model `Customer` with id `a` is the entity `Customer/a` of the space. The object that is written for it
carries its commit (`worm-commit-seq`), and a short hash of the entity (`worm-commit-of`): copies keep the metadata, and
a copy under another key belongs to no commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import dropwhile, islice

from worm.clock import iso_seconds
from worm.collections import Collection, Head, OplogEntry, origins
from worm.formats import JsonObject
from worm.log import DbKeys
from worm.spaces.bridge.applied import applied_file
from worm.spaces.opening import database_id
from worm.spaces.results import Entity, LogEntry
from worm.spaces.rows import MAIN
from worm.spaces.space import Space
from worm.store import Object, ObjectInfo, Read, Version, in_chunks

CHUNK = 500
COMMIT_SEQ = "worm-commit-seq"
COMMIT_OF = "worm-commit-of"
STATES_MAX = 1000
"""How many states of an entity, and entries of its history, are searched for a commit. After that, no commit is named,
and nothing is deleted."""
VERSIONS_MAX = 100
"""How many foreign versions are searched for those that a commit made."""


def entity_name(model: str, entity_id: str) -> str:
    """A document among the entities of a space."""
    return f"{model}/{entity_id}"


def commit_metadata(entity: str, seq: int) -> dict[str, str]:
    return {COMMIT_SEQ: str(seq), COMMIT_OF: _mark(entity)}


def commit_of(found: ObjectInfo | None, entity: str) -> int | None:
    """The commit that an object was written for; None if somebody else wrote it."""
    if found is None or found.metadata.get(COMMIT_OF) != _mark(entity):
        return None
    seq = found.metadata.get(COMMIT_SEQ, "")
    return int(seq) if seq.isascii() and seq.isdigit() and len(seq) < 20 else None


def about_of(entry: LogEntry) -> JsonObject:
    """What the author of a commit said about it."""
    about = entry.original.get("about")
    return about if isinstance(about, dict) else {}


def actor_of_commit(entry: LogEntry) -> str | None:
    actor = about_of(entry).get("actor")
    return actor if isinstance(actor, str) else None


def note_in(entry: LogEntry, entity: str) -> JsonObject | None:
    """The author's note on one document of a commit."""
    documents = about_of(entry).get("documents")
    said = documents.get(entity) if isinstance(documents, dict) else None
    note = said.get("note") if isinstance(said, dict) else None
    return note if isinstance(note, dict) else None


def written_over(entry: LogEntry, entity: str) -> str | None:
    """The etag of the stored object that a commit replaced, if the log did not have it."""
    documents = about_of(entry).get("documents")
    said = documents.get(entity) if isinstance(documents, dict) else None
    over = said.get("over") if isinstance(said, dict) else None
    return over if isinstance(over, str) else None


class SpaceOrigins(origins.PlainOrigins):
    """The port of one model to the log of its space."""

    def __init__(self, collection: Collection, spaces: Callable[[str], Space | None]) -> None:
        super().__init__(collection.definition, collection.trash)
        assert collection.definition.space is not None
        self._collection = collection
        self._space = collection.definition.space
        self._spaces = spaces
        self.truth = self.read

    def space(self) -> Space | None:
        """None if there was never a transaction in it."""
        return self._spaces(self._space)

    def read(self, entity_id: str) -> Entity | None:
        """The document as of the newest commit. None if the log never had it, or if somebody has changed it without the
        log: then the stored object counts."""
        collection, space = self._collection, self.space()
        state = None if space is None else space.read(entity_name(collection.name, entity_id))
        if state is None or state.seq == 0:
            return None
        stored = collection.store.head(collection.documents.key(entity_id))
        return None if self.is_by_hand(entity_id, state, stored) else state

    def is_by_hand(self, entity_id: str, state: Entity, stored: ObjectInfo | None) -> bool:
        """Whether somebody replaced or deleted the object without the log, and that is still so. Then everybody reads
        that state, until the next commit writes the document. `stored`: the object as just read. A commit that is not
        applied yet, or a write that landed late, does not count as such a change."""
        collection, space = self._collection, self.space()
        if space is None or self._says(entity_id, state, stored):
            return False
        applied = self.applied()
        if state.seq > applied:
            return False
        # Again: the commit may have been applied in the meantime.
        now = collection.store.head(collection.documents.key(entity_id))
        if self._says(entity_id, state, now) or self.is_outdated(entity_id, now, state, applied):
            return False
        return space.read(state.id).seq == state.seq  # otherwise it is from a commit that came in the meantime

    def _says(self, entity_id: str, state: Entity, stored: ObjectInfo | None) -> bool:
        """Whether the object matches the log."""
        return not state.exists if stored is None else state.exists and self.commit_of(entity_id, stored) == state.seq

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        return commit_of(found, entity_name(self._collection.name, entity_id))

    def applied(self) -> int:
        """The commit of the space up to which all are applied to the documents of this model."""
        collection = self._collection
        held = applied_file(
            collection.store, database_id(self._space), clock=collection.clock, ids=collection.ids
        ).read()
        return 0 if held is None else held.start(collection.clock.now(), [collection.name])

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> origins.Origin:
        return self._committed_deletion(entity_id, deleted, at) or super().deletion(entity_id, deleted, at)

    def _committed_deletion(self, entity_id: str, deleted: Head, at: datetime) -> origins.Origin | None:
        """The commit that deleted the version recorded last, if it was a commit. A commit that is already recorded does
        not count again: it did not delete what somebody restored by hand."""
        seq = self._newest_commit(entity_id, deleted)
        # With versions, no commit is skipped: another one in between means that this deletion was not by a commit.
        commits = self._deleting_commits(entity_id, seq, is_exact=deleted.version_id is not None)
        space = self.space()
        if space is None or not commits:
            return None
        # Each one after the first deleted what was restored in between. Maybe nobody saw that; then only the times
        # decide.
        entries = [next(space.log(after=one - 1, limit=1)) for one in commits]
        again = (one for one in reversed(entries[1:]) if iso_seconds(one.created_at) <= iso_seconds(at))
        entry = next(again, entries[0])
        note = note_in(entry, entity_name(self._collection.name, entity_id))
        return origins.Origin(actor_of_commit(entry), entry.seq, note)

    def _deleting_commits(self, entity_id: str, after: int, *, is_exact: bool = False) -> list[int]:
        """The first commit after this one that deleted the document, and those that deleted it again without another
        commit in between. `is_exact`: only if no other commit wrote the document before the first one."""
        space, entity = self.space(), entity_name(self._collection.name, entity_id)
        if space is None:
            return []
        state, commits, of = space.read(entity), list[int](), 0
        for _ in range(STATES_MAX):
            if state.seq <= after:
                break
            earlier = space.read(entity, at=state.seq - 1)
            if not state.exists:  # it has a revision, so it was deleted
                is_again = bool(commits) and of == state.seq
                commits, of = [state.seq, *(commits if is_again else ())], earlier.seq
            state = earlier
        else:
            return []
        return commits if commits and (of == after or not is_exact) else []

    # Late writes and copies

    def standing(self, entity_id: str, found: Object, head: Head | None) -> origins.Standing:
        commit = self.commit_of(entity_id, found)
        if commit is None or head is None:
            return origins.Standing(commit)
        if head.live and (found.version_id is None or origins.is_written_over(found, head.etag, head.version_id)):
            return origins.Standing(commit)
        recorded = self._newest_commit(entity_id, head)
        if commit > recorded:
            return origins.Standing(commit)
        is_copy = self._is_copy(entity_id, found, commit, head)
        is_deleted = not head.live and commit < recorded and bool(self._deleting_commits(entity_id, commit))
        is_in_doubt = is_copy is None and (is_deleted or found.version_id is None)
        return origins.Standing(is_own=True) if is_copy or is_in_doubt else origins.Standing(commit, is_late=is_deleted)

    def _newest_commit(self, entity_id: str, head: Head) -> int:
        """The newest commit that the history names, up to its end `head`; 0 if there is none."""
        last = self._collection.oplog.read(entity_id, head.seq)
        found = None if last is None else commit_in(last)
        earlier = () if found is not None else self._collection.oplog.newest_first(entity_id, head.seq - 1)
        return next((one for entry in islice(earlier, STATES_MAX) if (one := commit_in(entry))), found or 0)

    def _is_copy(self, entity_id: str, found: ObjectInfo, commit: int, head: Head | None) -> bool | None:
        """Whether the object, which names this commit, is or may be a copy. None: it is neither a copy nor late.

        Every attempt of a write has its own put id, and a copy has the put id of its original, which existed before: it
        is in the history, or among the older versions of the key. A late write has a put id that is in neither, and
        another attempt of the same commit came before it. Without another attempt, the object was applied in its turn;
        if the documents are past its commit, somebody has removed what came after it."""
        put_id = found.attempt
        recorded = self._recorded_writes(entity_id, found, commit, head)
        if put_id is None or recorded is None or put_id in recorded:
            return True
        stored = set[str]() if found.version_id is None else self._stored_writes(entity_id, found, commit)
        if stored is None or put_id in stored:
            return True
        return False if recorded or stored else None

    def _recorded_writes(self, entity_id: str, found: ObjectInfo, commit: int, head: Head | None) -> set[str] | None:
        """The put ids that the history has for a commit. None if that is unknown, or if it has this very version, which
        is current again after others were removed."""
        writes: set[str] = set()
        entries = () if head is None else self._collection.oplog.newest_first(entity_id, head.seq)
        for number, entry in enumerate(entries):
            seq, put_id = commit_in(entry), entry.metadata.get("putId")
            is_it = entry.version_id == found.version_id is not None
            if number == STATES_MAX or (is_it and number):
                return None
            if seq is not None and seq < commit:
                break
            if seq == commit and entry.op != "delete" and not is_it:
                if not isinstance(put_id, str):
                    return None
                writes.add(put_id)
        return writes

    def _stored_writes(self, entity_id: str, found: ObjectInfo, commit: int) -> set[str] | None:
        """The put ids of older versions from a commit. None if there are too many to check."""
        store, writes = self._collection.store, set[str]()
        older = dropwhile(lambda one: not one.is_version(found.version_id), store.versions(found.key))
        for number, version in enumerate(islice(older, 1, None)):
            if number == VERSIONS_MAX:
                return None
            if not version.is_delete_marker and version.size == found.size:
                stored = store.head(found.key, version_id=version.version_id)
                if stored is not None and self.commit_of(entity_id, stored) == commit:
                    writes.add(stored.attempt or "")
        return writes

    def is_outdated(self, entity_id: str, found: ObjectInfo | None, state: Entity, applied: int) -> bool | None:
        """Whether the object is from an older commit than all documents should have. None: it is, but somebody put it
        there."""
        has = self.commit_of(entity_id, found)
        if found is None or has is None or not has < state.seq <= applied:
            return False
        tail = self._collection.oplog.tail(entity_id) if self._collection.definition.oplog else None
        head = None if tail is None else Head.of(tail)
        version = Version(found.key, found.version_id, found.etag, found.size, found.last_modified, is_latest=True)
        is_accepted = tail is not None and Head.of(tail).names(version) and commit_in(tail) is None
        return None if is_accepted or self._is_copy(entity_id, found, has, head) is not False else True

    # For verify and repair

    def audit(self) -> Iterator[tuple[str, str, str]]:
        """Documents that are from an older commit than all documents should have. A document without a commit was put
        there by somebody, and a missing one was deleted by hand or by its own commit: both stay as they are until the
        next commit writes them."""
        space = self.space()
        if space is None:
            return
        applied, newest = self.applied(), space.seq
        if applied < newest and space.changed(MAIN, applied, newest):  # branches have no documents
            what = f"only commits up to {applied} of {newest} are in the documents (`worm repair` applies the rest)"
            yield "documents-behind", DbKeys(database_id(self._space)).documents, what
        for one, has, wanted, is_own in self._behind():
            key = self._collection.documents.key(one)
            if is_own:
                what = f"restored as commit {has} wrote it; the log has commit {wanted}. The next commit replaces it"
                yield origins.KEPT, key, what
            else:
                yield (
                    "document-outdated",
                    key,
                    f"it is from commit {has}, but the log has {wanted} (`worm repair` updates it)",
                )

    def outdated(self) -> Iterator[tuple[str, int, int]]:
        """The id, its commit, and the commit in the log. Reads every document of the model."""
        return ((one, has, wanted) for one, has, wanted, is_own in self._behind() if not is_own)

    def _behind(self) -> Iterator[tuple[str, int, int, bool]]:
        """All documents from an older commit, and whether somebody put them there on purpose."""
        collection, space = self._collection, self.space()
        if space is None:
            return
        applied, ids = self.applied(), list(collection.current_ids())
        for chunk in in_chunks(ids, CHUNK):
            some = {entity_name(collection.name, one): one for one in chunk}
            states = space.read_many(list(some))
            reads = [Read(collection.documents.key(one)) for one in some.values()]
            for (entity, one), found in zip(some.items(), collection.store.get_many(reads), strict=True):
                stored = found if isinstance(found, Object) else None
                is_outdated = self.is_outdated(one, stored, states[entity], applied)
                if is_outdated is not False:
                    yield one, commit_of(stored, entity) or 0, states[entity].seq, is_outdated is None


def in_space(collection: Collection) -> SpaceOrigins | None:
    """The port of a model in a space; None for a model without one."""
    return collection.origins if isinstance(collection.origins, SpaceOrigins) else None


def outdated(collection: Collection) -> Iterator[tuple[str, int, int]]:
    """`SpaceOrigins.outdated`; nothing for a model without a space."""
    source = in_space(collection)
    return iter(()) if source is None else source.outdated()


def commit_in(entry: OplogEntry) -> int | None:
    """The commit that an entry belongs to."""
    seq = entry.metadata.get("commitSeq")
    return seq if isinstance(seq, int) else None


def _mark(entity: str) -> str:
    return sha256(entity.encode()).hexdigest()[:16]
