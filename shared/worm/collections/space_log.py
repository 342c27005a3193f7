"""What the space of a model says about its documents: the log is the truth, the documents follow it.

A document of model `Customer` with id `a` is the entity `Customer/a` of the space. The object that is written for it
carries the commit that it is of (`worm-commit-seq`), and a short hash of the entity (`worm-commit-of`): metadata
travels with copies, and a copy under another key is of no commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from worm.clock import Clock, Ids
from worm.codec.strict_json import JsonObject
from worm.collections.claims import Claims, UniqueValue
from worm.collections.documents import Documents, Origin
from worm.store.base import ObjectInfo

if TYPE_CHECKING:  # a model without a space needs nothing of it
    from worm.spaces.results import Entity, LogEntry
    from worm.spaces.space import Space

COMMIT_SEQ = "worm-commit-seq"
COMMIT_OF = "worm-commit-of"
STATES_MAX = 1000
"""How many states of an entity are looked through for the commit that deleted it; after that nobody is named."""


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


@dataclass(frozen=True)
class SpaceLog:
    """The space of one model, for reading. `open` returns None where no transaction was ever made."""

    model: str
    open: Callable[[], Space | None]

    def read(self, entity_id: str) -> Entity | None:
        """The document as the newest commit has it; None where the log never heard of it."""
        space = self.open()
        found = None if space is None else space.read(entity_name(self.model, entity_id))
        return None if found is None or found.seq == 0 else found

    def deletion(self, entity_id: str, after: int, *, is_exact: bool = False) -> Origin | None:
        """The first commit after this one that deleted the document; None where there is none. `is_exact`: only if no
        other commit wrote the document between the two."""
        space, entity = self.open(), entity_name(self.model, entity_id)
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
        return Origin(actor_of_commit(next(space.log(after=deleted - 1, limit=1))), deleted)


class LoggedClaims(Claims):
    """Claims of a model in a space: who has a value is told by the log. A document may be behind it, by more than the
    grace period."""

    def __init__(self, documents: Documents, clock: Clock, ids: Ids, log: SpaceLog) -> None:
        super().__init__(documents, clock, ids)
        self.log = log

    def has(self, entity_id: str, value: UniqueValue) -> bool:
        found = self.log.read(entity_id)
        return super().has(entity_id, value) if found is None else value.is_in(found.value)

    def is_outdated(self, entity_id: str, value: UniqueValue) -> bool:
        return not self.has(entity_id, value)


def _mark(entity: str) -> str:
    return sha256(entity.encode()).hexdigest()[:16]
