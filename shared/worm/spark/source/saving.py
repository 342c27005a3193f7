"""Saves the documents of one task so that repeating the task, or running it twice at once, changes nothing.

- Each document is read before it is written: one that is already stored with the same content is left alone.
- Every write is conditional on what was read, so of two attempts one wins, and the other then finds its own content.
- All attempts of a job use the time of its start. If the job wrote a document and somebody has changed it since then,
  that time identifies the job's write in the history, so a late attempt does not overwrite the newer change.
- An attempt may die between the write and its history: the next attempt records what it finds stored, if that is
  missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from worm.clock import iso_millis, iso_seconds
from worm.collections import Document, OplogEntry
from worm.errors import (
    CommitStateUnknown,
    Conflict,
    Corrupt,
    Denied,
    Fenced,
    Unavailable,
    UniqueViolation,
    WormError,
)
from worm.formats import TIME_FIELDS, JsonObject, JsonValue
from worm.sdk import About, DocumentDict, JobModel, Result
from worm.spark.source.values import is_same_object, merged, without_nulls
from worm.store import in_parallel

ROUNDS_MAX = 12
REFUSED_MAX = 1000
SKEW = timedelta(minutes=15)
"""How far the clocks of the driver and the store may differ when the history is searched for the job's time."""
_STOPPING = (Unavailable, CommitStateUnknown, Denied, Corrupt)


@dataclass
class Saved:
    """The result for the documents of one task, and why some were refused."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)

    def refuse(self, entity_id: str, reason: str) -> None:
        """Count it; only the first `REFUSED_MAX` documents are named, however many rows a task has."""
        self.counts["refused"] += 1
        if len(self.refused) < REFUSED_MAX:
            self.refused.setdefault(entity_id, reason)


@dataclass
class Saver:
    """Saves in bulk. `overwrite`: existing documents are changed; otherwise different content is refused. `is_rerun`:
    an earlier attempt of the same task may have saved some. `about` goes into the history with every change. With a
    note in it, the first attempt looks there, too: it may be late, after another one and after later batches. If the
    history of a document has more changes of the batch than the attempt made, it stops (`Fenced`): it may have several
    rows for the document, and the other attempt has saved the last one. `check` raises if there is nothing more to
    save."""

    model: JobModel
    start: datetime
    overwrite: bool = False
    replace: bool = False
    about: About = field(default_factory=About)
    is_rerun: bool = False
    check: Callable[[], object] = lambda: None
    saved: Saved = field(default_factory=Saved)

    def __post_init__(self) -> None:
        self.model.stamp = iso_millis(self.start)
        self._since = iso_seconds(self.start - SKEW)
        self._defaults = self.model.defaults
        self.fields = self.model.fields
        self._ours: dict[str, OplogEntry | None] = {}
        self._done: Counter[str] = Counter()  # changes of each document, if they have a note

    @property
    def _may_repeat(self) -> bool:
        return self.is_rerun or bool(self.about.get("metadata"))

    def save(self, documents: Sequence[tuple[str, JsonObject | None]]) -> None:
        """Save documents by id, as in the rows of the frame (including nulls), or delete them (None). Each id comes
        once."""
        pending = dict(documents)
        if not pending:
            return
        for round_ in range(ROUNDS_MAX):
            pending = self._round(pending)
            if not pending:
                return
            self.model.pause(round_)
        raise Unavailable(
            f"{self.model.name} {', '.join(sorted(pending)[:10])}: changed by others in each of {ROUNDS_MAX} attempts"
        )

    def _round(self, pending: dict[str, JsonObject | None]) -> dict[str, JsonObject | None]:
        """Returns those that must be checked again: they lost to another write, or need a unique value that another
        document of this round may have given up."""
        writes: dict[str, tuple[str, DocumentDict]] = {}
        deletions: dict[str, DocumentDict | None] = {}
        there: list[DocumentDict] = []
        gone: list[str] = []
        found = self.model.find_many(list(pending))
        self.check()  # after the read: a write over anything later is a conflict, and the next round checks again
        repeated = [result.id for result in found if self._may_be_done(result, pending[result.id])]
        self._ours = dict(zip(repeated, in_parallel(self._newest_of_ours, repeated), strict=True))
        for result in found:
            given = pending[result.id]
            if given is None:
                self._decide_deletion(result, deletions, gone)
            else:
                self._decide(result, given, writes, there)
        self.model.record(there, gone)
        broken = {result.id for result in found if self.model.is_broken(result)}
        results = self.model.save_over([document for _, document in writes.values()], broken, self.about)
        results += self.model.delete_found(deletions, self.about)
        verbs = [*(verb for verb, _ in writes.values()), *("deleted" for _ in deletions)]
        taken, again = dict[str, UniqueViolation](), set[str]()
        changed = {one for one, verb in zip((*writes, *deletions), verbs, strict=True) if verb != "created"}
        for entity_id, verb, result in zip((*writes, *deletions), verbs, results, strict=True):
            if isinstance(result.error, Conflict):
                again.add(entity_id)
            elif isinstance(result.error, UniqueViolation):
                taken[entity_id] = result.error
            elif result.error is None:
                self.saved.counts[verb] += 1
                if self.about.get("metadata"):
                    self._done[entity_id] += 1
            else:
                self._refuse(entity_id, result.error)
        free = changed - taken.keys() | again
        while more := {one for one, error in taken.items() if error.holder in free} - free:
            free |= more
            again |= more
        for entity_id in taken.keys() - again:
            self._refuse(entity_id, taken[entity_id])
        return {one: given for one, given in pending.items() if one in again}

    def _decide_deletion(
        self, found: Result[DocumentDict], deletions: dict[str, DocumentDict | None], gone: list[str]
    ) -> None:
        is_broken = self.model.is_broken(found)
        if found.error is not None and not is_broken:
            self._refuse(found.id, found.error)
        elif found.document is None and not is_broken:
            self.saved.counts["unchanged"] += 1
            if self.is_rerun:  # an earlier attempt may have died before it recorded the deletion
                gone.append(found.id)
        elif self._was_deleted(found.id):
            self.saved.counts["unchanged"] += 1
        else:
            deletions[found.id] = found.document

    def _may_be_done(self, found: Result[DocumentDict], given: JsonObject | None) -> bool:
        """Whether the history must say if an attempt did this before, since the stored document does not."""
        if found.document is None:
            is_broken = self.model.is_broken(found)
            return self._may_repeat and (is_broken if given is None else found.error is None)
        return self._may_repeat if given is None else not self._is_there(found.document, given)

    def _was_deleted(self, entity_id: str) -> bool:
        """Whether the last thing that an earlier attempt did was to delete it, and somebody has created it again."""
        entry = self._ours.get(entity_id)
        return entry is not None and entry.op == "delete"

    def _newest_of_ours(self, entity_id: str) -> OplogEntry | None:
        """The newest entry of an attempt of this job: one with its note, or with its time if it has no note."""
        note, entries = self.about.get("metadata"), self.model.entries_since(entity_id, self._since)
        if not note:
            return next((one for one in entries if _written_at(one) == self.model.stamp), None)
        ours = [one for one in entries if note.items() <= one.metadata.items()]
        if not self.is_rerun and len(ours) > self._done[entity_id]:
            raise Fenced(
                f"another attempt or task of this batch has changed {self.model.name} {entity_id}",
                hint="Spark repeats the task if it is needed; rows of a document must be in one task",
            )
        return ours[0] if ours else None

    def _decide(
        self,
        found: Result[DocumentDict],
        given: JsonObject,
        writes: dict[str, tuple[str, DocumentDict]],
        there: list[DocumentDict],
    ) -> None:
        is_broken = self.model.is_broken(found)
        if found.error is not None and not is_broken:
            self._refuse(found.id, found.error)
        elif found.document is None and not is_broken:
            if self._was_applied(found.id, given):
                self.saved.counts["unchanged"] += 1  # created, and deleted since then
            else:
                writes[found.id] = "created", self._new(found.id, given)
        elif found.document is not None and self._is_there(found.document, given):
            self.saved.counts["unchanged"] += 1
            there.append(found.document)
        elif found.document is not None and self._was_applied(found.id, given):
            self.saved.counts["unchanged"] += 1
        elif not self.overwrite:
            what = (
                "already exists with different content"
                if found.document is not None
                else "already exists and is not a valid document"
            )
            self._refuse(found.id, Conflict(what))
        else:
            writes[found.id] = "updated", self._changed(found.id, found.document, given)

    def _is_there(self, stored: Document, given: JsonObject) -> bool:
        """Whether the stored document has this content. Its times matter only if the frame has them."""
        exact = not self.overwrite or self.replace
        own = {"id", *(name for name in TIME_FIELDS if not given.get(name))}
        if self.overwrite:
            own.add("updatedAt")
        wanted = {name: value for name, value in given.items() if name not in own}
        if not self.overwrite:
            wanted = {**self._defaults, **without_nulls(wanted, self.fields)}
        compared = {name: value for name, value in stored.items() if name not in own}
        return is_same_object(compared, wanted, self.fields, exact=exact)

    def _was_applied(self, entity_id: str, given: JsonObject) -> bool:
        """Whether the last thing that an earlier attempt of this job wrote is this, and somebody has changed it since
        then."""
        entry = self._ours.get(entity_id)
        state = None if entry is None else self.model.get_at(entity_id, seq=entry.seq)
        return state is not None and self._is_there(state, given)

    def _new(self, entity_id: str, given: JsonObject) -> DocumentDict:
        return DocumentDict({**self._defaults, **without_nulls(given, self.fields), "id": entity_id})

    def _changed(self, entity_id: str, stored: DocumentDict | None, given: JsonObject) -> DocumentDict:
        """Replaces the version that was read. A broken document has nothing to keep."""
        origin = None if stored is None else stored.provenance
        if stored is None or self.replace:
            kept = {name: stored[name] for name in ("createdAt",) if stored and name in stored}
            return DocumentDict.of({**kept, **without_nulls(given, self.fields), "id": entity_id}, origin)
        times = {name: value for name, value in given.items() if name not in TIME_FIELDS or value is not None}
        return DocumentDict.of(merged(stored, times, self.fields), origin)

    def _refuse(self, entity_id: str, error: WormError) -> None:
        if isinstance(error, _STOPPING):  # not the document's fault: the task is run again
            raise error
        self.saved.refuse(entity_id, str(error))


def _written_at(entry: OplogEntry) -> JsonValue:
    """`updatedAt` of the document in the entry; None for a deletion."""
    if entry.op == "delete":
        return None
    pair = (entry.diff or {}).get("updatedAt")
    return pair[1] if pair else (entry.snapshot or {}).get("updatedAt")
