"""The change feed: every new entry of every history, once it is folded, at least once.

Entries of different documents appear out of order: folds are late, capture runs in parallel, clocks differ. A time
cannot say what a reader has seen, so the cursor says it for every document: it has a *sketch* of the reported seqs
(`sketch.py`), of bounded size. The heads of a table have the newest seq of every document. Whatever the heads have and
the sketch lacks is new, however late it came.

How the feed finds out what is new in one model:
- If the etag of the heads is still that of the cursor, nothing is new. One conditional GET.
- The session made the cursor itself, and remembers the state: it compares the heads. Exact.
- Another process continues: the sketch of the heads minus the sketch of the cursor shows the difference, if no more
  than about 100 documents changed. Exact.
- More changed: a *walk* through all ids in order, over as many calls as it takes. It treats entries after the time of
  the cursor as new. At the end the sketches show exactly what this guess missed, and that is reported too. If a sketch
  cannot hold that much, the walk starts again and reports the whole history of the model.

An answer with more than `limit` entries also continues as a walk. Its cursor has two sketches: one of the ids that are
passed, as they were then, and one of those ahead. docs/decisions/0039-change-feed.md explains why.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

from worm import forks
from worm.clock import Clock, iso_seconds
from worm.collections import Collection, Head, OplogEntry
from worm.errors import Corrupt, Invalid, show
from worm.formats import JsonObject, JsonValue, dumps, loads
from worm.sdk.searching import ANY_TIME, HistoryEntry, HistoryRows, HistorySource, newest_entries
from worm.sdk.sketch import PRIME, Sketch
from worm.store import THREADS, in_chunks, in_parallel
from worm.values import dataclass

LIMIT = 100
LIMIT_MAX = 1000
CELLS_MIN, CELLS_MAX, CELLS_SHARED = 12, 180, 240
"""Limits for the sketch of one model, and of all models of a cursor together. A cursor fits into the URL of a
request."""
CURSOR_MAX = 256 << 10
REMEMBERED = 16
"""The session remembers the known state for this many cursors."""
PAUSE_SECONDS, PAUSE_MAX = 0.25, 2.0
"""The first and the longest pause between two polls while a caller waits. Each pause doubles the previous one."""

Known = Mapping[str, int]
"""Changed documents, with the seq that is already reported."""


class ChangeRows(HistoryRows[HistoryEntry]):
    """Entries of one answer of the feed. `cursor` continues after them. `damages` lists entries that could not be read;
    the feed continues after them."""

    cursor: str

    def __init__(self, entries: Iterable[HistoryEntry] = (), *, cursor: str, damages: Iterable[Corrupt] = ()) -> None:
        super().__init__(entries, cursor=cursor, damages=damages)


# Where a feed is


@dataclass(frozen=True, slots=True)
class Walk:
    """An unfinished walk through all ids. All up to `id` are passed, and counted in `passed` with the seqs that they
    had then. Entries of `id` itself are reported up to `seq`, and more are left (0: none, it is passed). `newest`: the
    latest time of what was passed."""

    passed: Sketch
    id: str = ""
    seq: int = 0
    newest: str = ""

    def is_ahead(self, entity_id: str) -> bool:
        return entity_id > self.id


@dataclass(frozen=True, slots=True)
class FeedPlace:
    """For one model: what is reported, and where to continue. `known`: the seqs of all documents; during a walk the
    seqs ahead of it, plus wrong guesses behind it. `time`: roughly the time of the newest known entry. `etag`: of the
    heads that had nothing else."""

    known: Sketch
    time: str = ""
    etag: str | None = None
    walk: Walk | None = None

    @classmethod
    def of(cls, heads: NewestSeqs, cells: int, now: str) -> FeedPlace:
        """The place where everything is reported."""
        known = Sketch.empty(cells).plus((one, head.seq) for one, head in heads.items.items())
        return cls(known, _newest(heads.items.values(), now), heads.etag)

    def shape(self) -> JsonObject:
        shape: JsonObject = {"t": self.time, "e": self.etag, **_cells("k", self.known)}
        if self.walk is not None:
            walk = self.walk
            shape["w"] = {"id": walk.id, "seq": walk.seq, "t": walk.newest, **_cells("p", walk.passed)}
        return shape

    @classmethod
    def of_shape(cls, shape: JsonValue) -> FeedPlace:
        members = _object(shape)
        walk = None
        if "w" in members:
            inner = _object(members["w"])
            walk = Walk(_sketch(inner, "p"), _text(inner["id"]), _whole(inner["seq"]), _text(inner["t"]))
        etag = members["e"]
        place = cls(_sketch(members, "k"), _text(members["t"]), None if etag is None else _text(etag), walk)
        if walk is not None and walk.passed.size != place.known.size:
            raise ValueError
        return place


@dataclass(frozen=True, slots=True)
class Cursor:
    """`asked`: the models of the feed; None means all. `turn`: the one to begin with."""

    places: Mapping[str, FeedPlace]
    asked: Sequence[str] | None = None
    turn: str = ""

    def text(self) -> str:
        places: JsonObject = {name: place.shape() for name, place in self.places.items()}
        asked = None if self.asked is None else cast("list[JsonValue]", [*self.asked])
        body = dumps({"v": 1, "asked": asked, "turn": self.turn, "models": places})
        return urlsafe_b64encode(zlib.compress(body, 9)).decode().rstrip("=")

    @classmethod
    def of_text(cls, text: object) -> Cursor:
        if not isinstance(text, str) or len(text) > CURSOR_MAX:
            raise _no_cursor()
        try:
            packed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            unpacking = zlib.decompressobj()
            shape = _object(loads(unpacking.decompress(packed, CURSOR_MAX)))
            asked = shape["asked"]
            names = None if asked is None else [_text(one) for one in cast("list[JsonValue]", asked)]
            places = {name: FeedPlace.of_shape(place) for name, place in _object(shape["models"]).items()}
            if shape["v"] != 1 or not unpacking.eof:
                raise _no_cursor()
            return cls(places, names, _text(shape["turn"]))
        except (ValueError, TypeError, KeyError, NotBase64, zlib.error, Invalid):
            raise _no_cursor() from None


def _no_cursor() -> Invalid:
    return Invalid("this is not the cursor of a feed", path="after", hint="use the `cursor` of the previous answer")


def _cells(name: str, sketch: Sketch) -> JsonObject:
    return {name: cast("list[JsonValue]", [*sketch.sums]), f"{name}x": cast("list[JsonValue]", [*sketch.products])}


def _sketch(members: JsonObject, name: str) -> Sketch:
    sums, products = ([_integer(one) for one in _list(members[part])] for part in (name, f"{name}x"))
    if len(sums) != len(products) or len(sums) % 3 or not 3 <= len(sums) <= 3 * CELLS_MAX:
        raise ValueError
    if any(not 0 <= one < PRIME for one in products):
        raise ValueError
    return Sketch(tuple(sums), tuple(products))


def _object(value: JsonValue) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _list(value: JsonValue) -> list[JsonValue]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _integer(value: JsonValue) -> int:
    if type(value) is not int:
        raise ValueError
    return value


def _whole(value: JsonValue) -> int:
    if _integer(value) < 0:
        raise ValueError
    return _integer(value)


# What the heads say


@dataclass(frozen=True, slots=True, eq=False)
class NewestSeqs:
    """The newest entry of every document of a model, at one moment. `etag` is None if no etag shows whether they
    change."""

    collection: Collection
    items: Mapping[str, Head]
    etag: str | None

    @classmethod
    def of(cls, source: HistorySource, etag: str | None) -> NewestSeqs | None:
        """None: nothing is folded yet, or the file is lost. Changes are reported once the heads exist again."""
        if source.heads is None:
            return None
        if not source.heads.partial and not source.heads.damaged:
            return cls(source.collection, source.heads.heads, etag)
        listed = {one: Head(seq, None, None, True, ts) for one, seq, ts in newest_entries(source) if seq}
        return cls(source.collection, listed, None)

    def seq(self, entity_id: str) -> int:
        head = self.items.get(entity_id)
        return 0 if head is None else head.seq


def _newest(heads: Iterable[Head], now: str) -> str:
    """The latest time, ignoring clocks that are ahead."""
    return min(now, max((head.ts for head in heads if head.ts != ANY_TIME), default=""))


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """What was reported when a cursor was made: everything in these heads, except what was `behind`."""

    heads: NewestSeqs
    behind: Known

    def known(self, heads: NewestSeqs) -> dict[str, int]:
        """The reported seq of every document for which these heads have more, or less after damage."""
        before = self.heads.items
        if before is heads.items:
            return dict(self.behind)
        found = {one: self._seq(one) for one, head in heads.items.items() if head is not before.get(one)}
        found |= self.behind
        return {one: seq for one, seq in found.items() if seq != heads.seq(one)}

    def _seq(self, entity_id: str) -> int:
        known = self.behind.get(entity_id)
        return self.heads.seq(entity_id) if known is None else known


def _told(place: FeedPlace, heads: NewestSeqs) -> dict[str, int] | None:
    """The same from the sketch of the cursor; None if the sketch cannot hold it."""
    walk = place.walk
    if walk is None and place.known.is_empty:
        return dict.fromkeys(heads.items, 0)
    ahead = ((one, head.seq) for one, head in heads.items.items() if walk is None or walk.is_ahead(one))
    missing = Sketch.empty(place.known.size).plus(ahead).minus(place.known).told(heads.items)
    if missing is None:
        return None
    found = {one: heads.seq(one) - number for one, number in missing.items()}
    return {one: seq for one, seq in found.items() if walk is None or walk.is_ahead(one)}


# Entries


@dataclass(frozen=True, slots=True)
class Span:
    """Entries of one document: those after `first` up to `last`."""

    id: str
    first: int
    last: int

    @property
    def count(self) -> int:
        return max(0, self.last - self.first)


@dataclass(slots=True)
class PageDraft:
    """What one call reports."""

    limit: int
    entries: list[HistoryEntry] = field(default_factory=list)
    damages: list[Corrupt] = field(default_factory=list)
    taken: int = 0

    @property
    def left(self) -> int:
        """How many more entries fit; damaged entries count."""
        return self.limit - self.taken

    def read(self, collection: Collection, spans: Iterable[Span]) -> None:
        wanted = [span for span in spans if span.count]
        for span, found in zip(wanted, in_parallel(lambda one: _entries(collection, one), wanted), strict=True):
            self.taken += span.count
            self.entries += (HistoryEntry.of(one, collection.name, span.id) for one in found[0])
            self.damages += found[1]

    def rows(self, cursor: str) -> ChangeRows:
        ordered = sorted(self.entries, key=lambda one: (one.ts, one.model, one.id, one.seq))
        return ChangeRows(ordered, cursor=cursor, damages=self.damages)


def _entries(collection: Collection, span: Span) -> tuple[list[OplogEntry], list[Corrupt]]:
    """The readable entries, and the errors of the others."""
    oplog = collection.oplog
    try:
        found = list(oplog.entries(span.id, first=span.first + 1, last=span.last))
    except Corrupt:
        found = []
    if len(found) == span.count:
        return found, []
    found, damages = [], list[Corrupt]()
    for seq in range(span.first + 1, span.last + 1):
        try:
            entry = oplog.read(span.id, seq)
            if entry is not None:
                found.append(entry)
            else:
                damages.append(oplog.gap(span.id, seq))
        except Corrupt as damage:
            damages.append(damage)
    return found, damages


def _seq_at(collection: Collection, entity_id: str, seq: int, time: str) -> int:
    """The newest entry before `seq` that is not after the time. 0 if damage is in the way: then everything is
    reported."""
    try:
        return collection.oplog.seq_before(entity_id, time, before=seq) if time else 0
    except Corrupt:
        return 0


# One model


@dataclass(frozen=True, slots=True)
class FedModel:
    """The result for one model in one call. `remembered` is None if only the sketch shows what is known."""

    place: FeedPlace
    remembered: Remembered | None
    is_cut: bool = False


class ModelFeed:
    """The feed of one model, from a place as far as these heads and `answer` go."""

    def __init__(self, place: FeedPlace, heads: NewestSeqs, answer: PageDraft, now: str, cells: int) -> None:
        self._place, self._heads, self._answer = place, heads, answer
        self._now, self._cells = now, cells

    def step(self, remembered: Remembered | None) -> FedModel:
        known = _told(self._place, self._heads) if remembered is None else remembered.known(self._heads)
        is_complete = remembered is not None or self._place.walk is None
        if known is not None and self._place.walk is None:
            spans = [Span(one, seq, self._heads.seq(one)) for one, seq in sorted(known.items())]
            if sum(span.count for span in spans) <= self._answer.left:
                self._answer.read(self._heads.collection, spans)
                return FedModel(self._settled(known), Remembered(self._heads, {}))
        return self._walked(known, is_complete)

    def _settled(self, known: Known) -> FeedPlace:
        """Everything is reported. A sketch that is too small for the model is rebuilt."""
        if 2 * self._place.known.size < self._wanted_cells():
            return FeedPlace.of(self._heads, self._wanted_cells(), self._now)
        sketch = self._place.known.plus((one, self._heads.seq(one) - seq) for one, seq in known.items())
        return FeedPlace(sketch, max(self._place.time, self._top(known)), self._heads.etag)

    def _wanted_cells(self) -> int:
        return wanted_cells(len(self._heads.items), self._cells)

    def _top(self, ids: Iterable[str]) -> str:
        return _newest((self._heads.items[one] for one in ids if one in self._heads.items), self._now)

    # Walking

    def _walked(self, known: Known | None, is_complete: bool) -> FedModel:
        """Continue through the ids, until the answer is full or all ids are passed. `is_complete`: `known` covers all
        ids, including those behind the walk."""
        place, seq = self._place, self._heads.seq
        start = place.walk or Walk(Sketch.empty(place.known.size))
        way = self._stretch(start, known)
        self._answer.read(self._heads.collection, way.spans)
        is_same = way.at == start.id and way.seq > 0
        done = [start.id] if start.seq and not is_same else []
        done += [one for one in way.passed if not (way.seq and one == way.at)]
        rest = place.known.plus((one, -way.firsts.get(one, seq(one))) for one in way.passed)
        passed = start.passed.plus((one, seq(one)) for one in done)
        newest = max(start.newest, self._top(done))
        remembered = None
        if known is not None and is_complete:
            done_now = {*done, *way.firsts}
            behind = {one: number for one, number in known.items() if one not in done_now}
            remembered = Remembered(self._heads, {**behind, way.at: way.seq} if way.seq else behind)
        if not way.is_end:
            walk = Walk(passed, way.at, way.seq, newest)
            return FedModel(FeedPlace(rest, place.time, None, walk), remembered, is_cut=True)
        return self._ended(rest, FeedPlace(passed, max(place.time, newest)), remembered)

    def _stretch(self, start: Walk, known: Known | None) -> Stretch:
        """As many as fit into the answer."""
        left, spans, firsts, at = self._answer.left, list[Span](), dict[str, int](), start.id
        if start.seq:
            last = self._heads.seq(at)
            cut = min(last, start.seq + left)
            spans.append(Span(at, start.seq, cut))
            left -= spans[-1].count
            if cut < last:
                return Stretch(spans, firsts, [], at, cut)
        ahead = sorted(one for one in self._heads.items if start.is_ahead(one))
        for span in self._changed(ahead, known):
            if left <= 0:
                return Stretch(spans, firsts, [one for one in ahead if one <= at], at)
            at, firsts[span.id] = span.id, span.first
            spans.append(Span(at, span.first, min(span.last, span.first + left)))
            left -= spans[-1].count
            if spans[-1].count < span.count:
                return Stretch(spans, firsts, [one for one in ahead if one <= at], at, spans[-1].last)
        return Stretch(spans, firsts, ahead, ahead[-1] if ahead else at, is_end=True)

    def _changed(self, ahead: Sequence[str], known: Known | None) -> Iterator[Span]:
        """The documents that have more than is known; if that is unknown, those with entries after the time of the
        cursor."""
        heads, time = self._heads, self._place.time
        if known is not None:
            yield from (Span(one, known[one], heads.seq(one)) for one in ahead if one in known)
            return
        later = [one for one in ahead if heads.items[one].ts > time]
        for some in in_chunks(later, THREADS):
            firsts = in_parallel(lambda one: _seq_at(heads.collection, one, heads.seq(one), time), some)
            yield from (Span(one, first, heads.seq(one)) for one, first in zip(some, firsts, strict=True))

    def _ended(self, rest: Sketch, place: FeedPlace, remembered: Remembered | None) -> FedModel:
        """All ids are passed. `rest` holds wrong guesses: entries that are not after the time of the cursor, and were
        not known."""
        heads = self._heads
        if rest.is_empty:
            is_all = remembered is not None and not remembered.behind
            return FedModel(replace(place, etag=heads.etag if is_all else None), remembered)
        empty = Sketch.empty(rest.size)
        missed = empty.minus(rest).told(heads.items)
        all_now = empty.plus((one, head.seq) for one, head in heads.items.items())
        grown = all_now.minus(place.known).told(heads.items)
        if missed is None or grown is None:
            return FedModel(FeedPlace(empty, walk=Walk(empty)), None, is_cut=True)
        spans = []
        for one, number in sorted(missed.items()):
            last = min(self._guess(one), heads.seq(one) - grown.get(one, 0))
            spans.append(Span(one, max(0, last - number), last))
        self._answer.read(heads.collection, spans)
        behind = {one: heads.seq(one) - number for one, number in grown.items()}
        return FedModel(place, Remembered(heads, behind))

    def _guess(self, entity_id: str) -> int:
        """What the walk assumed to be known."""
        head, time = self._heads.items[entity_id], self._place.time
        return head.seq if head.ts <= time else _seq_at(self._heads.collection, entity_id, head.seq, time)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a walk: the entries to report; for a document that is met for the first time, what is known of it; and
    the ids that are passed. It ends at `at`, within this document if `seq` is not 0; or all ids are passed."""

    spans: Sequence[Span]
    firsts: Mapping[str, int]
    passed: Sequence[str]
    at: str
    seq: int = 0
    is_end: bool = False


def wanted_cells(documents: int, most: int) -> int:
    return max(CELLS_MIN, min(2 * documents, most))


# All models

Read = Callable[[str, "str | None"], "tuple[HistorySource, str | None] | None"]
"""The heads of a model with their etag; None: their etag is still this one."""


class ChangeFeed:
    """The feed of one session. Safe across threads."""

    def __init__(self, read: Read, clock: Clock) -> None:
        self._read, self._clock = read, clock
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._lock = forks.new_lock()
        self._remembered: OrderedDict[str, dict[str, Remembered]] = OrderedDict()

    def start(self, names: Sequence[str], asked: Sequence[str] | None) -> ChangeRows:
        """The current cursor."""
        now, cells = iso_seconds(self._clock.now()), _share(names)
        places, known = dict[str, FeedPlace](), dict[str, Remembered]()
        for name, found in zip(names, in_parallel(lambda one: self._heads(one, None), names), strict=True):
            if found is None:
                places[name] = FeedPlace(Sketch.empty(CELLS_MIN))
                continue
            places[name] = FeedPlace.of(found, wanted_cells(len(found.items), cells), now)
            known[name] = Remembered(found, {})
        return ChangeRows(cursor=self._kept(Cursor(places, asked), known))

    def next(
        self, names: Sequence[str], asked: Sequence[str] | None, after: str, limit: int
    ) -> tuple[ChangeRows, bool]:
        """The new entries, and whether there are more."""
        cursor = Cursor.of_text(after)
        if (None if cursor.asked is None else [*cursor.asked]) != (None if asked is None else [*asked]):
            of = "all models" if cursor.asked is None else ", ".join(map(show, cursor.asked))
            raise Invalid(f"this cursor belongs to a feed of {of}", path="after", hint="pass the same model= again")
        places = {name: cursor.places.get(name) or FeedPlace(Sketch.empty(CELLS_MIN)) for name in names}
        with self._lock:
            known = dict(self._remembered.get(after, {}))
        answer, cut = PageDraft(limit), ""
        etags = {name: None if place.walk is not None else place.etag for name, place in places.items()}
        heads = dict(zip(names, in_parallel(lambda one: self._heads(one, etags[one]), names), strict=True))
        now, cells, turns = iso_seconds(self._clock.now()), _share(names), _from(names, cursor.turn)
        for name in turns:
            found = heads[name]
            if found is None or answer.left <= 0:
                cut = cut or (name if found is not None else "")
                continue
            step = ModelFeed(places[name], found, answer, now, cells).step(known.pop(name, None))
            places[name] = step.place
            if step.remembered is not None:
                known[name] = step.remembered
            cut = cut or (_from(names, name)[1 % len(names)] if step.is_cut else "")
        text = self._kept(Cursor(places, asked, cut), known)
        return answer.rows(text), bool(cut)

    def _heads(self, name: str, etag: str | None) -> NewestSeqs | None:
        """None: they are unchanged since the cursor, or there are none."""
        found = self._read(name, etag)
        return None if found is None else NewestSeqs.of(*found)

    def _kept(self, cursor: Cursor, known: dict[str, Remembered]) -> str:
        text = cursor.text()
        with self._lock:
            self._remembered[text] = known
            self._remembered.move_to_end(text)
            while len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        return text

    def wait(
        self, names: Sequence[str], asked: Sequence[str] | None, after: str, limit: int, seconds: float
    ) -> ChangeRows:
        """The same, as soon as something is new. After this many seconds the answer is empty."""
        end, pause = self._clock.monotonic() + seconds, PAUSE_SECONDS
        while True:
            rows, has_more = self.next(names, asked, after, limit)
            left = end - self._clock.monotonic()
            if rows or rows.damages or (left <= 0 and not has_more):
                return rows
            after = rows.cursor
            if not has_more:
                self._clock.sleep(min(pause, left))
                pause = min(2 * pause, PAUSE_MAX)


def _share(names: Sequence[str]) -> int:
    """The cells that the sketch of one of these models may have."""
    return max(CELLS_MIN, min(CELLS_MAX, CELLS_SHARED // max(1, len(names))))


def _from(names: Sequence[str], first: str) -> list[str]:
    at = names.index(first) if first in names else 0
    return [*names[at:], *names[:at]]


def check_limits(limit: object, wait: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIMIT_MAX:
        raise Invalid(f"must be a whole number from 1 to {LIMIT_MAX}, not {show(limit)}", path="limit")
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < float("inf"):
        raise Invalid(f"must be a number of seconds, not {show(wait)}", path="wait")
