"""A collection as it was at a moment, of a model with an oplog: the table as it is now, but for what changed since.

The heads of the table say when each document changed last, deleted ones too. Those whose newest entry is not after the
moment are as the table has them. Of the others the oplog tells the state, as `get_at` does: a time has whole seconds,
and all entries of that second count. So a question costs the heads, and one look-up for each document that changed
since; a moment that was asked for before costs only what changed in the meantime. Where there are no heads, or only
some, the oplogs are listed, and every history without a head is looked up.

Others go on writing meanwhile. What is read after the heads may be newer than they are, and a fold writes the rows
before the heads. So rows count only if the heads know their seq, and documents only if the heads know their etag; of
all others the oplog tells the state, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from functools import partial

from worm.clock import iso_millis, iso_seconds
from worm.collections.collection import Collection
from worm.collections.documents import DocumentVersion
from worm.collections.entries import Head, Heads
from worm.errors import Hint, Invalid, WormError, shown
from worm.query.own_writes import DocumentState, OtherStates, OwnWrite
from worm.query.planner import Cost
from worm.sdk.searching import ANY_TIME, HistorySource, newest_entries
from worm.store.parallel import chunked, in_parallel
from worm.tables.view import TableView
from worm.values import dataclass

CHANGED_MAX = 10_000
"""A question about a moment since which more documents changed is refused, unless `max_changed` allows it."""
LOOKED_UP = 500
"""So many histories at a time."""


@dataclass(frozen=True, slots=True)
class PastMoment:
    """A checked place in the past of a collection; `text` names it: a time, or a commit of the model's space."""

    position: int | datetime
    text: str

    @classmethod
    def of_oplog(cls, position: int | datetime) -> PastMoment:
        if isinstance(position, int):
            hint = Hint(
                "give a time; get_at(id, seq=…) has one document by its seq",
                "give a time; `worm get MODEL ID --at SEQ` has one document by its seq",
                "give a time; GET …/{id}/at?seq= has one document by its seq",
            )
            raise Invalid("a number is no moment of a collection: seqs count per document", path="at", hint=hint)
        return cls(position, iso_seconds(position))

    @classmethod
    def of_space(cls, position: int | datetime) -> PastMoment:
        return cls(position, f"commit {position}" if isinstance(position, int) else iso_millis(position))


def check_most(most: object) -> None:
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 0):
        raise Invalid(f"takes a whole number, or None for any, not {shown(most)}", path="max_changed")


def check_changed(model: str, moment: PastMoment, most: int | None, changed: int) -> None:
    if most is not None and changed > most:
        raise Invalid(
            f"{changed:,} documents of {model} changed after {moment.text}, and max_changed is {most:,}",
            path="max_changed",
            hint=Hint(
                f"max_changed={changed} allows it, None any number; explain(at=…) tells what it costs",
                f"`--max-changed {changed}` allows it; `worm table query --explain` tells what it costs",
                "allowScan=true allows it; explain=true tells what it costs",
            ),
        )


def state_then(collection: Collection, entity_id: str, moment: str, before: int | None = None) -> DocumentState:
    """A document at a moment, as its oplog tells. `before`: a seq whose entry is known to be later."""
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
    """What the heads tell about a moment. `later`: what changed after it (or may have: no head tells), each with the
    seq of its newest entry, if that is known to be later. `is_listed`: there are no heads, or not all of them."""

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
        """What the look-ups take, at most: of a long history the entries between two time marks are read. `files`:
        those that the heads are spread over."""
        gets = sum(every + 1 if before is None else min(before - 1, every + 1) for before in self.later.values())
        lists = sum(before is None or before - 1 > every for before in self.later.values())
        return Cost({"GET": gets + 1 + files, "LIST": lists + self.is_listed})

    def live_ids(self) -> list[str]:
        return [one for one, head in self.heads.items() if head.live and one not in self.later]

    def unlike(self, seqs: Mapping[str, int]) -> set[str]:
        """What has another seq there, or is only here or there."""
        differ = {one for one, head in self.heads.items() if seqs.get(one) != head.seq}
        return differ.union(one for one in seqs if one not in self.heads)


@dataclass(slots=True)
class LookedUp:
    """The states at one moment that were looked up. Only of documents with a later entry: times never fall within a
    history, so nothing can be recorded any more that changes these."""

    moment: str = ""
    heads: tuple[Heads, KnownHeads] | None = None
    """What was last read, and what it tells."""
    alike: tuple[TableView, KnownHeads] | None = None
    """A table with which heads were compared, and had nothing else."""
    states: dict[str, DocumentState] = field(default_factory=dict)


class PastStates(OtherStates):
    """A collection as it was. `read` reads the heads again; `known`: what is known of the moment already."""

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
        for ids in chunked([one for one in later if one not in fresh], LOOKED_UP):
            found = in_parallel(lambda one: then(one, self._heads.moment, later[one]), ids)
            told = dict(zip(ids, found, strict=True))
            self._count_in(told)
            states.update({one: state for one, state in told.items() if later[one] is not None})

    def _renew(self) -> None:
        """What the heads know by now."""
        self._heads, before = self._read(), self._heads
        self._look_up({one: seq for one, seq in self._heads.later.items() if before.later.get(one, -1) != seq})

    def live_ids(self, listed: Callable[[], Iterable[str]]) -> Iterable[str]:
        return self._heads.live_ids()

    def settled(self, ids: Sequence[str], read: dict[str, DocumentState]) -> dict[str, DocumentState]:
        """A document that is not of the version which the heads know has changed since."""
        unlike = [one for one in ids if not _is_of(self._heads.heads.get(one), read.get(one))]
        if not unlike:
            return read
        self._look_up(dict.fromkeys(unlike))
        counted = {**read, **{one: self.instead[one] for one in unlike}}
        return {one: counted[one] for one in ids if one in counted}

    def is_ahead(self, view: Callable[[], TableView | None]) -> bool:
        """In this order: what the view knows when it is opened, the heads know when they are read, unless a fold is
        between the two. The root of a spread table does not tell."""
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
