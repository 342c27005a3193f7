"""Documents of a model in a space, as one session reads and writes them: the log is asked where documents may be behind
it, and a save is a transaction of one."""

from __future__ import annotations

from dataclasses import dataclass

from worm.codec.strict_json import JsonObject, dumps_document
from worm.collections.claims import Holders
from worm.collections.entries import Document
from worm.collections.space_log import commit_metadata, entity_name
from worm.errors import Conflict, Invalid, WormError
from worm.sdk.committing import Target, Write, commit
from worm.sdk.context import Context
from worm.sdk.memory import Seen
from worm.spaces.results import Presence
from worm.spaces.space import Space
from worm.store.base import Object

AGAIN = "read it again (`worm get`, find_by_id), apply your change to that, and save"


@dataclass(frozen=True)
class Known:
    """A document as of commit `at`; `seq` is its own last commit, 0 where the log never heard of it: then `etag` is
    that of the stored object. `document` None: there is none."""

    at: int
    seq: int
    document: Document | None
    etag: str | None = None


class Logged:
    """One model of one session."""

    def __init__(self, session: Context, target: Target, space: str) -> None:
        self._session = session
        self._space = space
        self.target = target

    @property
    def space(self) -> Space:
        return self._session.space(self._space)

    def known(self, entity_id: str, at: int | None = None) -> Known:
        """What the log says, now or as of a commit. A document from before its model came into the space, or that was
        uploaded by hand and never committed, is read as it is stored."""
        collection = self.target.collection
        entity = entity_name(collection.name, entity_id)
        found = self.space.read(entity) if at is None else self.space.recall(entity, at)
        if found.presence in (Presence.PRESENT, Presence.DELETED):
            return Known(found.at, found.seq, found.value)
        stored = collection.documents.current(entity_id)
        if stored is None:
            return Known(found.at, 0, None)
        return Known(found.at, 0, collection.documents.parse(entity_id, stored), stored.etag)

    def latest(self, entity_id: str, found: Object | None) -> Object | None:
        """The stored object, or what the log has where this session knows that it has more."""
        collection = self.target.collection
        if not self.target.memory.is_behind(entity_id, found):
            return found
        entity = entity_name(collection.name, entity_id)
        state = self.space.read(entity)
        if state.value is None:
            return None
        body, now = dumps_document(state.value), self._session.clock.now()
        metadata = commit_metadata(entity, state.seq)
        return Object(collection.documents.key(entity_id), "", len(body), now, metadata=metadata, body=body)

    def put(
        self,
        entity_id: str,
        document: Document,
        parent: Seen | None,
        actor: str | None,
        *,
        op: str | None,
        note: JsonObject | None,
        holders: Holders | None,
    ) -> WormError | None:
        """A transaction of one: over `parent`, or where nothing is; `Conflict` when that is not so. Why a value could
        not be freed, if it could not."""
        known = self.known(entity_id)
        self._match(entity_id, known, parent)
        write = Write(self.target, entity_id, known.document, document, known.at, op, note)
        return self._commit(write, actor, holders)

    def delete(self, entity_id: str, actor: str | None) -> tuple[Document, WormError | None] | None:
        """The document that was there; None where there was none."""
        try:
            known = self.known(entity_id)
        except Invalid:  # a raw upload that is no valid document is deleted like any other
            known = Known(self.space.seq, 0, {})
        if known.document is None:
            self.target.memory.forget(entity_id)
            return None
        return known.document, self._commit(Write(self.target, entity_id, known.document, None, known.at), actor)

    def _commit(self, write: Write, actor: str | None, holders: Holders | None = None) -> WormError | None:
        done = commit(self.space, [write], [], actor=actor or self._session.actor, holders=holders)
        return done.unfreed.get(write.entity)

    def _is_by_hand(self, entity_id: str, known: Known, parent: Seen) -> bool:
        """Did somebody write over the document, past the log, and is that still there? A save of it goes through; what
        the log has not brought into documents yet nobody can have seen."""
        collection = self.target.collection
        stored = collection.store.head(collection.documents.key(entity_id))
        return stored is not None and stored.etag == parent.etag and known.seq <= collection.applied()

    def _match(self, entity_id: str, known: Known, parent: Seen | None) -> None:
        """Is what the log has what the session has seen?"""
        if parent is None:
            what = None if known.document is None else "exists already"
        elif known.document is None:
            what = "was deleted since this session read it"
        elif known.seq == 0:
            what = None if known.etag == parent.etag else "changed since this session read it"
        elif parent.commit is None:
            what = None if self._is_by_hand(entity_id, known, parent) else "changed since this session read it"
        else:
            what = None if known.seq == parent.commit else "changed since this session read it"
        if what is None:
            return
        if known.seq:
            self.target.memory.heard(entity_id, known.seq)  # else who reads again may read what is behind again
        raise Conflict(
            f"{self.target.collection.name} '{entity_id}' {what}",
            key=self.target.collection.documents.key(entity_id),
            expected=None if parent is None else str(parent.commit or parent.etag),
            found=str(known.seq or known.etag),
            hint=AGAIN,
        )
