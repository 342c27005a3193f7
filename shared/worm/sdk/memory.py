"""What a session remembers of one model: etags of what it read, and what it wrote that tables may not know yet.

- *seen*: the etag that the session read or wrote last; a save is conditional on it. Of the newest ones also the
  document, which saves reading it again to compute a diff.
- *own writes*: documents that the session wrote, and ids that it deleted, until the table knows (`own_writes.py`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime

from worm.clock import Clock
from worm.codec.strict_json import JsonValue
from worm.collections.documents import TRUST
from worm.collections.entries import Document
from worm.collections.space_log import commit_of, entity_name
from worm.schema import IndexDef, ModelDef
from worm.sdk.own_writes import Known, OwnWrite, OwnWrites
from worm.store.base import Object, ObjectInfo, Won

DOCUMENTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as this session read or wrote it. `document` None: too long ago to be remembered. `commit`: that of
    the model's space which it is of."""

    etag: str
    document: Document | None = None
    version_id: str | None = None
    commit: int | None = None


class Memory:
    """Safe across threads."""

    def __init__(self, clock: Clock, definition: ModelDef) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._definition = definition
        self._versions: dict[str, tuple[str, str | None, datetime]] = {}
        self._commits: dict[str, int] = {}  # of the versions, in a model of a space
        self._newer: dict[str, int] = {}  # commits that documents may not have yet
        self._documents: OrderedDict[str, Document] = OrderedDict()
        self._own = OwnWrites(clock, definition)

    def seen(self, entity_id: str) -> Seen | None:
        with self._lock:
            if entity_id not in self._versions:
                return None
            etag, version_id, at = self._versions[entity_id]
            is_fresh = self._clock.now() - at <= TRUST  # equal bytes may have come back since
            document, commit = self._documents.get(entity_id), self._commits.get(entity_id)
            return Seen(etag, document, version_id if is_fresh else None, commit)

    def read(self, entity_id: str, stored: Object, document: Document) -> None:
        with self._lock:
            self._remember(entity_id, stored, document)

    def met(self, entity_id: str, stored: ObjectInfo) -> None:
        """Read, but no valid document: a save may replace this version, there is nothing to compare with."""
        with self._lock:
            self._forget(entity_id)
            self._versions[entity_id] = (stored.etag, stored.version_id, self._clock.now())
            self._note_commit(entity_id, stored)

    def wrote(
        self, entity_id: str, stored: Won | Object, document: Document, over: Mapping[str, JsonValue] | None = None
    ) -> None:
        """The session wrote this document, over that one (None: over the one that it remembers, if any)."""
        with self._lock:
            replaced = _updated(self._documents.get(entity_id) if over is None else over)
            self._remember(entity_id, stored, document)
            self._own.add(entity_id, deepcopy(document), _updated(document), replaced)

    def deleted(self, entity_id: str, document: Document | None) -> None:
        """The session deleted this document (None: one that could not be read)."""
        with self._lock:
            self._forget(entity_id)
            self._own.add(entity_id, None, _updated(document), _updated(document))

    def committed(self, entity_id: str, seq: int, document: Document | None, over: Document | None) -> None:
        """The session committed this document (None: its deletion) to the model's space, over that one."""
        with self._lock:
            self._forget(entity_id)
            self._newer[entity_id] = seq
            if document is not None:
                self._remember(entity_id, Won(""), document)
                self._commits[entity_id] = seq
            self._own.add(
                entity_id, deepcopy(document), _updated(over if document is None else document), _updated(over)
            )

    def heard(self, entity_id: str, seq: int) -> None:
        """The log has this commit of it, by whomever."""
        with self._lock:
            self._newer[entity_id] = seq

    def is_behind(self, entity_id: str, found: ObjectInfo | None) -> bool:
        """Is the stored object from before a commit that this session made, or heard of?"""
        with self._lock:
            newer = self._newer.get(entity_id)
            if newer is None or (self.commit_of(entity_id, found) or 0) < newer:
                return newer is not None
            del self._newer[entity_id]
            return False

    def applied(self, ids: Iterable[str]) -> None:
        """What the session committed of these is in the documents."""
        with self._lock:
            for entity_id in ids:
                self._newer.pop(entity_id, None)

    def recorded(self, entity_id: str, seq: int) -> None:
        """What the session wrote stands in the oplog up to this seq."""
        with self._lock:
            self._own.recorded(entity_id, seq)

    def unsettled(self, ids: Iterable[str]) -> dict[str, int]:
        """Own writes of these ids that tables may not know, by number. For `folded`."""
        with self._lock:
            return self._own.numbers(ids)

    def folded(self, unsettled: Mapping[str, int]) -> None:
        """Queries need not be told of these writes any more; of later ones of the same ids they do."""
        with self._lock:
            self._own.settle(unsettled)

    def forget(self, entity_id: str) -> None:
        """The document is not there (any more)."""
        with self._lock:
            self._forget(entity_id)

    def own_writes(self, known: Known) -> dict[str, Document | None]:
        """What the table does not know yet; None for a deletion. What it knows is forgotten."""
        with self._lock:
            return self._own.unknown_to(known)

    def recent_writes(self) -> dict[str, OwnWrite]:
        """All that the session wrote lately and that is not known to be in the table."""
        with self._lock:
            return self._own.recent()

    def ids_with(self, index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        """The ids of those that have one of the values in the indexed field."""
        with self._lock:
            return self._own.ids_with(index, values)

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        """The commit that the object is of; None where it is of none, or the model in no space."""
        if self._definition.space is None:
            return None
        return commit_of(found, entity_name(self._definition.name, entity_id))

    def _note_commit(self, entity_id: str, stored: Won | ObjectInfo) -> None:
        commit = None if isinstance(stored, Won) else self.commit_of(entity_id, stored)
        if commit is not None:
            self._commits[entity_id] = commit

    def _remember(self, entity_id: str, stored: Won | Object, document: Document) -> None:
        self._commits.pop(entity_id, None)
        self._note_commit(entity_id, stored)
        self._versions[entity_id] = (stored.etag, stored.version_id, self._clock.now())
        self._documents[entity_id] = deepcopy(document)  # the caller keeps the one it has, and may change it
        self._documents.move_to_end(entity_id)
        if len(self._documents) > DOCUMENTS_MAX:
            self._documents.popitem(last=False)

    def _forget(self, entity_id: str) -> None:
        self._versions.pop(entity_id, None)
        self._commits.pop(entity_id, None)
        self._documents.pop(entity_id, None)


def _updated(document: Mapping[str, JsonValue] | None) -> str:
    return str((document or {}).get("updatedAt", ""))
