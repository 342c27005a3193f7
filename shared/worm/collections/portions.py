"""Portions: a collection divided by the number of its ids, from listings of keys, however well a table knows it.

A *portion* is a range of ids that one process can hold with everything that belongs to them: about `PORTION_IDS`
documents, and not more versions or oplog entries than ten times that. A *mark* is an id after about every thousandth in
a listing; portions begin at marks. Keys and ids do not have quite the same order (`id_ranges.py`), so portions have
*about* that many ids; but together they are exactly the range.

A process lists at most `LISTED_MAX` ids, and hands back the rest of its range in several parts. So with enough rounds,
no process lists much, however the ids are distributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, KnownIds, thinned
from worm.collections.walks import KEYS_PER_ID, ListedId, documents_of, keys_of, versions_of
from worm.store import in_parallel
from worm.values import dataclass

STEP = 1_000
MARKS_PER_PORTION = 5
PORTION_IDS = STEP * MARKS_PER_PORTION
LISTED_MAX = 100_000
BEHIND = 2


@dataclass(frozen=True, slots=True)
class ListedPortions:
    """The portions of a listed range, in order, and the parts of it that are not listed yet."""

    portions: tuple[IdRange, ...]
    rest: tuple[IdRange, ...] = ()


@dataclass(frozen=True, slots=True)
class _Listing:
    """The marks of one listing; `end`: the id at which it was stopped."""

    marks: tuple[str, ...]
    end: str | None


def counted(collection: Collection, within: IdRange, most: int = LISTED_MAX) -> ListedPortions:
    """List documents and oplogs of a range, and divide it. Holds one id of a thousand. With an oplog, somebody will
    compare all versions of the documents with it: there may be more of them than entries."""
    has_oplog = collection.definition.oplog
    sources = [versions_of(collection), keys_of(collection)] if has_oplog else [documents_of(collection)]
    part, marks, stopped = within, list[tuple[str, ...]](), sources[0]
    for source in sources:
        for objects in (source.plain, source.escaped):
            listing = _marked(objects(part), part.start, most * KEYS_PER_ID)
            stopped = source if listing.end is not None else stopped
            part = part.up_to(listing.end)
            marks.append(listing.marks)
    starts = [part.start, *_portion_starts(marks, part)]
    portions = tuple(IdRange(start, stop) for start, stop in zip(starts, [*starts[1:], part.end], strict=True))
    if part.end == within.end:
        return ListedPortions(portions)
    return ListedPortions(portions, stopped.divided(IdRange(part.end or "", within.end)))


def _marked(found: Iterable[ListedId[None]], start: str, most: int) -> _Listing:
    """Stops at an id after the start, so that every round gets further."""
    marks, since, total = list[str](), 0, 0
    for one in found:
        if total >= most and one.id > start:
            return _Listing(tuple(marks), one.id)
        if since >= STEP * KEYS_PER_ID:
            marks.append(one.id)
            since = 0
        since, total = since + one.weight, total + one.weight
    return _Listing(tuple(marks), None)


def _portion_starts(listings: Sequence[Sequence[str]], part: IdRange) -> Iterator[str]:
    """A portion ends as soon as any of the listings has enough marks in it."""
    seen = [0] * len(listings)
    for mark, which in sorted({(one, at) for at, marks in enumerate(listings) for one in marks}):
        if mark not in part:
            continue
        seen[which] += 1
        if seen[which] >= MARKS_PER_PORTION and mark > part.start:
            yield mark
            seen = [0] * len(listings)


def is_behind(collection: Collection, known: KnownIds) -> bool:
    """Whether a table knows far fewer ids than there are documents: its first and its last part are listed. New ids are
    spread like the known ones, or come after them."""
    starts = ["", *thinned(known.starts, max(1, known.count // STEP))[1:]]
    ends = [*starts[1:], None]
    most = BEHIND * max(STEP, known.count // len(starts))
    samples = {IdRange(starts[at], ends[at]) for at in (0, -1)}
    return any(in_parallel(lambda one: any(islice(collection.current_ids(one), most, None)), samples))
