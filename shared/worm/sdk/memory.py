"""What a session remembers of one model: etags of what it read, and what it wrote that tables may not know yet.

- *seen*: the etag that the session read or wrote last; a save is conditional on it. Of the newest ones also the
  document, which saves reading it again to compute a diff.
- *own writes*: documents that the session wrote, and ids that it deleted. A query shows them until the table knows. How
  that is told, without a request: by the seq where the session recorded the write itself (inline); else by `updatedAt`,
  or by the row that is gone. After `OWN_SECONDS` the table is believed in any case.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from worm.clock import Clock
from worm.collections.documents import TRUST
from worm.collections.entries import Document
from worm.store.base import Object, ObjectInfo, Won
from worm.tables.manifest import Manifest

DOCUMENTS_MAX = 1000
OWN_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Seen:
    """A document as this session read or wrote it. `document` None: too long ago to be remembered."""

    etag: str
    document: Document | None = None
    version_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Own:
    """A write of this session. `document` None: deleted. `seq`: of its entry, where the session recorded it itself;
    `updated`: the time in what was written, or in what was deleted."""

    document: Document | None
    updated: str
    at: datetime
    seq: int | None = None


class Memory:
    """Safe across threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._versions: dict[str, tuple[str, str | None, datetime]] = {}
        self._documents: OrderedDict[str, Document] = OrderedDict()
        self._own: dict[str, _Own] = {}

    def seen(self, entity_id: str) -> Seen | None:
        with self._lock:
            if entity_id not in self._versions:
                return None
            etag, version_id, at = self._versions[entity_id]
            is_fresh = self._clock.now() - at <= TRUST  # equal bytes may have come back since
            return Seen(etag, self._documents.get(entity_id), version_id if is_fresh else None)

    def read(self, entity_id: str, stored: Object, document: Document) -> None:
        with self._lock:
            self._remember(entity_id, stored, document)

    def met(self, entity_id: str, stored: ObjectInfo) -> None:
        """Read, but no valid document: a save may replace this version, there is nothing to compare with."""
        with self._lock:
            self._forget(entity_id)
            self._versions[entity_id] = (stored.etag, stored.version_id, self._clock.now())

    def wrote(self, entity_id: str, stored: Won | Object, document: Document) -> None:
        with self._lock:
            self._remember(entity_id, stored, document)
            own = deepcopy(document)
            self._own[entity_id] = _Own(own, str(own.get("updatedAt", "")), self._clock.now())

    def deleted(self, entity_id: str, document: Document | None) -> None:
        """The session deleted this document (None: one that could not be read)."""
        with self._lock:
            self._forget(entity_id)
            self._own[entity_id] = _Own(None, str((document or {}).get("updatedAt", "")), self._clock.now())

    def recorded(self, entity_id: str, seq: int) -> None:
        """What the session wrote stands in the oplog up to this seq."""
        with self._lock:
            own = self._own.get(entity_id)
            if own is not None:
                self._own[entity_id] = replace(own, seq=seq)

    def folded(self, entity_id: str) -> None:
        """The table knows what the session wrote (a model without oplog, maintained inline)."""
        with self._lock:
            self._own.pop(entity_id, None)

    def forget(self, entity_id: str) -> None:
        """The document is not there (any more)."""
        with self._lock:
            self._forget(entity_id)

    def own_writes(self, manifest: Manifest) -> dict[str, Document | None]:
        """What the table does not know yet; None for a deletion. What it knows is forgotten."""
        with self._lock:
            for entity_id in [one for one, own in self._own.items() if self._is_known(one, own, manifest)]:
                del self._own[entity_id]
            return {entity_id: own.document for entity_id, own in self._own.items()}

    def _is_known(self, entity_id: str, own: _Own, manifest: Manifest) -> bool:
        if own.seq is not None:
            return manifest.seqs.get(entity_id, 0) >= own.seq
        if own.at + timedelta(seconds=OWN_SECONDS) <= self._clock.now():
            return True
        row = manifest.entities.get(entity_id)
        if own.document is None:
            if row is None:
                return entity_id in manifest.seqs  # never heard of: the creation itself may still come
            return str(row.get("updatedAt", "")) > own.updated
        return row is not None and str(row.get("updatedAt", "")) >= own.updated

    def _remember(self, entity_id: str, stored: Won | Object, document: Document) -> None:
        self._versions[entity_id] = (stored.etag, stored.version_id, self._clock.now())
        self._documents[entity_id] = deepcopy(document)  # the caller keeps the one it has, and may change it
        self._documents.move_to_end(entity_id)
        if len(self._documents) > DOCUMENTS_MAX:
            self._documents.popitem(last=False)

    def _forget(self, entity_id: str) -> None:
        self._versions.pop(entity_id, None)
        self._documents.pop(entity_id, None)
