"""What the space of a model says about its documents: the log is the truth, the documents follow it.

A document of model `Customer` with id `a` is the entity `Customer/a` of the space. The object that is written for it
carries the commit that it is of (`worm-commit-seq`), and a short hash of the entity (`worm-commit-of`): metadata
travels with copies, and a copy under another key is of no commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

from worm.bridge.applied import applied_file
from worm.codec.strict_json import JsonObject
from worm.collections.collection import Collection
from worm.collections.documents import Origin
from worm.collections.entries import Head
from worm.collections.origins import Mismatch, PlainOrigins
from worm.log.keys import DbKeys
from worm.spaces.opening import database_id
from worm.spaces.results import Entity, LogEntry
from worm.spaces.space import Space
from worm.store.base import Object, ObjectInfo, Read
from worm.store.parallel import chunked

CHUNK = 500
COMMIT_SEQ = "worm-commit-seq"
COMMIT_OF = "worm-commit-of"
STATES_MAX = 1000
"""How many states of an entity are searched for the commit that deleted it; after that nobody is named."""


def entity_name(model: str, entity_id: str) -> str:
    """A document among the entities of a space."""
    return f"{model}/{entity_id}"


def commit_metadata(entity: str, seq: int) -> dict[str, str]:
    return {COMMIT_SEQ: str(seq), COMMIT_OF: _mark(entity)}


def commit_of(found: ObjectInfo | None, entity: str) -> int | None:
    """The commit that an object was written for; None where somebody else wrote it."""
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


def _note_in(entry: LogEntry, entity: str) -> JsonObject | None:
    """What the author noted of one document of a commit."""
    documents = about_of(entry).get("documents")
    said = documents.get(entity) if isinstance(documents, dict) else None
    note = said.get("note") if isinstance(said, dict) else None
    return note if isinstance(note, dict) else None


class SpaceOrigins(PlainOrigins):
    """The port of one model to the log of its space."""

    def __init__(self, collection: Collection, spaces: Callable[[str], Space | None]) -> None:
        super().__init__(collection.definition, collection.trash)
        assert collection.definition.space is not None
        self._collection = collection
        self._space = collection.definition.space
        self._spaces = spaces
        self.truth = self.read

    def space(self) -> Space | None:
        """None: no transaction was ever made in it."""
        return self._spaces(self._space)

    def read(self, entity_id: str) -> Entity | None:
        """The document as the newest commit has it; None where the log never heard of it."""
        space = self.space()
        found = None if space is None else space.read(entity_name(self._collection.name, entity_id))
        return None if found is None or found.seq == 0 else found

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        return commit_of(found, entity_name(self._collection.name, entity_id))

    def applied(self) -> int:
        """The commit of the space up to which all are in the documents."""
        collection = self._collection
        held = applied_file(
            collection.store, database_id(self._space), clock=collection.clock, ids=collection.ids
        ).read()
        return 0 if held is None else held.start(collection.clock.now())

    def deletion(self, entity_id: str, deleted: Head) -> Origin:
        return self._committed_deletion(entity_id, deleted) or super().deletion(entity_id, deleted)

    def _committed_deletion(self, entity_id: str, deleted: Head) -> Origin | None:
        """The commit that deleted what was recorded last, where it was a commit."""
        seq = self._recorded_commit(entity_id, deleted)
        if seq is None:
            return self._deleting_commit(entity_id, 0)
        # With versions no commit is passed over: another one in between says that this deletion was not by a commit.
        return self._deleting_commit(entity_id, seq, is_exact=deleted.version_id is not None)

    def _deleting_commit(self, entity_id: str, after: int, *, is_exact: bool = False) -> Origin | None:
        """The first commit after this one that deleted the document; None where there is none. `is_exact`: only if no
        other commit wrote the document between the two."""
        space, entity = self.space(), entity_name(self._collection.name, entity_id)
        if space is None:
            return None
        state, deleted, of = space.read(entity), 0, 0
        for _ in range(STATES_MAX):
            if state.seq <= after:
                break
            earlier = space.read(entity, at=state.seq - 1)
            if not state.exists:  # it has a revision, so it was deleted
                deleted, of = state.seq, earlier.seq
            state = earlier
        else:
            return None
        if not deleted or (is_exact and of != after):
            return None
        entry = next(space.log(after=deleted - 1, limit=1))
        return Origin(actor_of_commit(entry), deleted, _note_in(entry, entity))

    def is_late(self, entity_id: str, found: Object, head: Head | None) -> bool:
        commit = self.commit_of(entity_id, found)
        if commit is None or (head is not None and head.live):
            return False
        deleted = None if head is None else self._recorded_commit(entity_id, head)
        if deleted is not None:
            return commit < deleted and self._deleting_commit(entity_id, commit) is not None
        # Without versions nobody may have seen the delete. With them, its marker precedes the object and is recorded.
        return found.version_id is None and self._has_come_back(entity_id, found, commit)

    def _recorded_commit(self, entity_id: str, head: Head) -> int | None:
        """The commit in the entry that was recorded last."""
        last = self._collection.oplog.read(entity_id, head.seq)
        seq = None if last is None else last.metadata.get("commitSeq")
        return seq if isinstance(seq, int) else None

    def _has_come_back(self, entity_id: str, found: Object, commit: int) -> bool:
        """Is the object there, though the commit that deleted it is in the documents?"""
        state = self.read(entity_id)
        if state is None or state.exists or not commit < state.seq <= self.applied():
            return False
        stored = self._collection.store.head(found.key)
        return stored is not None and stored.etag == found.etag and self.commit_of(entity_id, stored) == commit

    def audit(self) -> Iterator[Mismatch]:
        """Documents that are of an older commit than all documents should have. One that is of no commit is somebody's
        own, and one that is missing was deleted by hand or by its own commit: both stay as they are until the next
        commit that writes them."""
        space = self.space()
        if space is None:
            return
        applied, newest = self.applied(), space.seq
        if applied < newest:
            what = f"commits up to {applied} of {newest} are in the documents (`worm repair` goes on)"
            yield "documents-behind", DbKeys(database_id(self._space)).documents, what
        for one, has, wanted in self.outdated():
            what = f"it is of commit {has}, the log has {wanted} (`worm repair` brings it)"
            yield "document-outdated", self._collection.documents.key(one), what

    def outdated(self) -> Iterator[tuple[str, int, int]]:
        """Id, its commit, and the commit that the log has. Reads every document of the model."""
        collection, space = self._collection, self.space()
        if space is None:
            return
        applied, ids = self.applied(), list(collection.current_ids())
        for chunk in chunked(ids, CHUNK):
            some = {entity_name(collection.name, one): one for one in chunk}
            states = space.read_many(list(some))
            reads = [Read(collection.documents.key(one)) for one in some.values()]
            for (entity, one), found in zip(some.items(), collection.store.get_many(reads), strict=True):
                has = commit_of(found, entity) if isinstance(found, Object) else None
                if has is not None and has < states[entity].seq <= applied:
                    yield one, has, states[entity].seq


def in_space(collection: Collection) -> SpaceOrigins | None:
    """The port of a model in a space; None for a model without one."""
    return collection.origins if isinstance(collection.origins, SpaceOrigins) else None


def outdated(collection: Collection) -> Iterator[tuple[str, int, int]]:
    """`SpaceOrigins.outdated`; nothing for a model without a space."""
    origins = in_space(collection)
    return iter(()) if origins is None else origins.outdated()


def _mark(entity: str) -> str:
    return sha256(entity.encode()).hexdigest()[:16]
