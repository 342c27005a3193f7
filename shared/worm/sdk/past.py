"""A collection as it was at a moment, for a model with an oplog: the current table, except for what changed since.

The heads of the table say when each document last changed, including deleted ones. If the newest entry of a document is
not after the moment, the table has its state. For the others the oplog has the state, as in `get_at`: times have whole
seconds, and all entries of that second count. So a question costs the heads, plus one lookup for each document that
changed since. Asking about the same moment again costs only what changed in the meantime. If the heads are missing or
incomplete, the oplogs are listed, and every history without a head is looked up.

Other writers continue in the meantime. What is read after the heads may be newer than they are, and a fold writes the
rows before the heads. So a row counts only if the heads have its seq, and a document only if they have its etag; for
all others the oplog has the state too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import partial

from worm.clock import iso_millis, iso_seconds
from worm.collections import Collection, DocumentVersion, Head, Heads
from worm.errors import Hint, Invalid, WormError
from worm.query import Cost, DocumentState, OtherStates, OwnWrite
from worm.sdk.searching import ANY_TIME, HistorySource, newest_entries
from worm.store import in_chunks, in_parallel
from worm.tables import TableView
from worm.values import dataclass

CHANGED_MAX = 10_000
"""If more documents than this changed since the moment, the question is refused, unless `max_changed` allows it."""
LOOKED_UP = 500
"""This many histories at a time."""


@dataclass(frozen=True, slots=True)
class PastMoment:
    """A checked place in the past of a collection; `text` names it: a time, or a commit of the model's space."""

    position: int | datetime
    text: str

    @classmethod
    def of_oplog(cls, position: int | datetime) -> PastMoment:
        if isinstance(position, int):
            hint = Hint(
                "pass a time; for one document by seq, call get_at(id, seq=…)",
                "pass a time; for one document by seq, run `worm get MODEL ID --at SEQ`",
                "pass a time; for one document by seq, call GET …/{id}/at?seq=",
            )
            raise Invalid(
                "a collection has no moment by number: every document counts its own seqs", path="at", hint=hint
            )
        return cls(position, iso_seconds(position))

    @classmethod
    def of_space(cls, position: int | datetime) -> PastMoment:
        return cls(position, f"commit {position}" if isinstance(position, int) else iso_millis(position))


def check_changed(model: str, moment: PastMoment, most: int | None, changed: int) -> None:
    if most is not None and changed > most:
        raise Invalid(
            f"{changed:,} documents of {model} changed after {moment.text}, and max_changed is {most:,}",
            path="max_changed",
            hint=Hint(
                f"pass max_changed={changed}, or None for no limit; explain(at=…) shows the cost",
                f"pass `--max-changed {changed}`; `worm table query --explain` shows the cost",
                "pass allowScan=true; explain=true shows the cost",
            ),
        )


def state_then(collection: Collection, entity_id: str, moment: str, before: int | None = None) -> DocumentState:
    """A document at a moment, from its oplog. `before`: a seq whose entry is known to be later."""
    if before == 1:
        return DocumentState(None, None)
    seq, document = collection.oplog.at_time(entity_id, moment, before=before)
    return DocumentState(document, DocumentVersion(seq=seq) if seq else None)


def attempted_then(
    collection: Collection, entity_id: str, moment: PastMoment, before: int | None = None
) -> DocumentState | WormError:
    try:
        return state_then(collection, entity_id, moment.text, before)
    except WormError as error:
        return error


@dataclass(frozen=True, slots=True, eq=False)
class KnownHeads:
    """What the heads say about a moment. `later`: what changed after it (or may have, if there is no head), each with
    the seq of its newest entry if that is known to be later. `is_listed`: heads are missing or incomplete."""

    moment: str
    heads: Mapping[str, Head]
    later: Mapping[str, int | None]
    revision: int | None
    is_listed: bool

    @classmethod
    def of(cls, source: HistorySource, moment: str) -> KnownHeads:
        newest = ((one, seq if ts != ANY_TIME else None) for one, seq, ts in newest_entries(source) if ts > moment)
        later, heads = dict(newest), source.heads or Heads(source.collection.name, partial=True)
        revision = None if heads.partial or heads.damaged else heads.revision
        return cls(moment, heads.heads, later, revision, is_listed=heads.partial)

    @property
    def about(self) -> str:
        """For plans."""
        listed = "its heads are missing or incomplete, so all oplogs are listed; " if self.is_listed else ""
        return f"as of {self.moment}: {listed}{len(self.later):,} changed since, and their histories are read"

    def cost(self, every: int, files: int) -> Cost:
        """An upper limit for the cost of the lookups: in a long history, the entries between two time marks are read.
        `files`: how many files hold the heads."""
        gets = sum(every + 1 if before is None else min(before - 1, every + 1) for before in self.later.values())
        lists = sum(before is None or before - 1 > every for before in self.later.values())
        return Cost({"GET": gets + 1 + files, "LIST": lists + self.is_listed})

    def live_ids(self) -> list[str]:
        return [one for one, head in self.heads.items() if head.live and one not in self.later]

    def unlike(self, seqs: Mapping[str, int]) -> set[str]:
        """Those with a different seq, or on one side only."""
        differ = {one for one, head in self.heads.items() if seqs.get(one) != head.seq}
        return differ.union(one for one in seqs if one not in self.heads)


@dataclass(slots=True)
class LookedUp:
    """The states at one moment that were looked up, only for documents with a later entry. Times never decrease within
    a history, so no later record can change these states."""

    moment: str = ""
    heads: tuple[Heads, KnownHeads] | None = None
    """What was last read, and what follows from it."""
    alike: tuple[TableView, KnownHeads] | None = None
    """A table that was equal to the heads when they were compared."""
    states: dict[str, DocumentState] = field(default_factory=dict)


class PastStates(OtherStates):
    """A collection as it was. `read` reads the heads again; `known`: what is already known about the moment."""

    def __init__(
        self, collection: Collection, heads: KnownHeads, read: Callable[[], KnownHeads], known: LookedUp
    ) -> None:
        super().__init__(collection.definition, {}, heads.about)
        self._collection = collection
        self._heads = heads
        self._read = read
        self._known = known
        self._look_up(heads.later)

    def _look_up(self, later: Mapping[str, int | None]) -> None:
        states = self._known.states
        fresh = {one: states[one] for one in later if one in states}
        self._count_in(fresh)
        then = partial(state_then, self._collection)
        for ids in in_chunks([one for one in later if one not in fresh], LOOKED_UP):
            found = in_parallel(lambda one: then(one, self._heads.moment, later[one]), ids)
            told = dict(zip(ids, found, strict=True))
            self._count_in(told)
            states.update({one: state for one, state in told.items() if later[one] is not None})

    def _renew(self) -> None:
        """What the heads say now."""
        self._heads, before = self._read(), self._heads
        self._look_up({one: seq for one, seq in self._heads.later.items() if before.later.get(one, -1) != seq})

    def live_ids(self, listed: Callable[[], Iterable[str]]) -> Iterable[str]:
        return self._heads.live_ids()

    def settled(self, ids: Sequence[str], read: dict[str, DocumentState]) -> dict[str, DocumentState]:
        """A document whose version is not in the heads has changed since."""
        unlike = [one for one in ids if not _is_of(self._heads.heads.get(one), read.get(one))]
        if not unlike:
            return read
        self._look_up(dict.fromkeys(unlike))
        counted = {**read, **{one: self.instead[one] for one in unlike}}
        return {one: counted[one] for one in ids if one in counted}

    def is_ahead(self, view: Callable[[], TableView | None]) -> bool:
        """The order matters: whatever the view has when it is opened, the heads have when they are read, unless a fold
        happens in between. The root of a spread table does not show that."""
        seen = view()
        self._renew()
        return seen is None or seen.is_partitioned or self._heads.revision != seen.revision

    def has(self, entity_id: str, version: DocumentVersion | None) -> bool:
        head = self._heads.heads.get(entity_id)
        return head is not None and version is not None and version.seq == head.seq

    def own_writes(self, known: TableView) -> Mapping[str, OwnWrite]:
        if self._known.alike != (known, self._heads):
            unlike = self._heads.unlike(known.seqs) | (known.etags.keys() - self._heads.heads.keys())
            unlike -= self.instead.keys()
            self._look_up(dict.fromkeys(unlike))
            self._known.alike = None if unlike else (known, self._heads)
        return self._written


def _is_of(head: Head | None, state: DocumentState | None) -> bool:
    if head is None or not head.live:
        return head is not None and state is None
    return state is not None and state.version is not None and state.version.etag == head.etag
