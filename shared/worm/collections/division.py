"""How a collection is divided among the tasks of a job.

Most jobs go through their range step by step, and only need a hint where to begin (`planned_ranges`): a task that finds
too many ids hands back the rest of its range (`walks.py`). A task that compares a range as a whole can handle some more
ids than planned (`compared_ranges`).

Other jobs know what they hold before they start. A *share* is what one task of them works on: a range of ids, divided
into portions that it takes one after the other, so that its memory does not depend on the range. Tasks count the ids in
listings, in rounds: each lists a bounded part of its range, and what is left is divided further for the next round. The
table's ids divide the ranges, too: it may have rows of millions of documents that are gone. It is not enough alone:
somebody may have imported millions of documents between two ids that it knows.

A *portion* is a range of ids that one process can hold with everything that belongs to them: about `PORTION_IDS`
documents, and not more versions or oplog entries than ten times that. A *mark* is an id after about every thousandth in
a listing; portions begin at marks. Keys and ids do not have quite the same order (`id_ranges.py`), so portions have
*about* that many ids; but together they are exactly the range.

A process lists at most `LISTED_MAX` ids, and hands back the rest of its range in several parts. So with enough rounds,
no process lists much, however the ids are distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from worm.collections.collection import Collection
from worm.collections.id_ranges import IDS_PER_RANGE_MAX, IdRange, KnownIds, known_ids, probed_ranges, thinned
from worm.collections.walks import KEYS_PER_ID, ListedId, documents_of, keys_of, versions_of
from worm.store import in_chunks, in_parallel
from worm.values import dataclass

T = TypeVar("T")
ROWS_PER_TASK = 5_000
IDS_OF_A_TASK_MAX = 250_000
"""No task holds more ids than this, whatever the plan was made from."""
INLINE_IDS = 5_000
"""This many are counted before tasks are started for it."""
STEP = 1_000
MARKS_PER_PORTION = 5
PORTION_IDS = STEP * MARKS_PER_PORTION
LISTED_MAX = 100_000
BEHIND = 2


def tasks_for(rows: int, most: int) -> int:
    """How many tasks this much work justifies: starting one costs as much as some thousand rows, so few rows get few
    tasks, up to `most`. Many rows get many tasks, however few processors there are."""
    return max(2, min(most, -(-rows // ROWS_PER_TASK)), -(-rows // IDS_PER_RANGE_MAX))


def grouped(items: Sequence[T], groups: int) -> list[list[T]]:
    """Neighbors together, in at most this many groups."""
    size = max(1, -(-len(items) // max(1, groups)))
    return list(in_chunks(items, size))


# Ranges and shares


@dataclass(frozen=True, slots=True)
class Share:
    """Neighboring portions."""

    portions: tuple[IdRange, ...]

    @property
    def within(self) -> IdRange:
        return IdRange(self.portions[0].start, self.portions[-1].end)


def planned_ranges(collection: Collection, most: int) -> list[IdRange]:
    """Ranges for tasks that are prepared for many more ids. If a table knows the ids, it gives the plan, otherwise some
    listings of one key do. `most`: how many tasks few ids get at most."""
    return _known_ranges(known_ids(collection), most) or probed_ranges(collection, most)


def compared_ranges(collection: Collection, most: int, count: Count) -> list[IdRange]:
    """Ranges for tasks that can handle some more ids. The table gives the plan, unless its ends are far behind."""
    known = known_ids(collection)
    ranges = _known_ranges(known, most)
    if ranges and not is_behind(collection, known):
        return ranges
    return [one.within for one in planned_shares(collection, most, count)]


def planned_shares(collection: Collection, most: int, count: Count) -> list[Share]:
    """Shares of about `IDS_PER_RANGE_MAX` ids at most, in portions of about `PORTION_IDS`. Counting them takes one LIST
    for a thousand keys, which is 1 % of the requests of a job that reads what it lists."""
    if collection.definition.is_singleton:
        return [Share((IdRange(),))]
    known, found = known_ids(collection), _portions(collection, most, count)
    starts = {one.start for one in found}
    if known.count:
        starts |= {*thinned(known.starts, -(-known.count // PORTION_IDS))}
    every = IdRange.between(sorted(starts)[1:]) if known.count else found
    return [Share(tuple(group)) for group in _for_tasks(every, max(known.count, len(found) * PORTION_IDS), most)]


def _known_ranges(known: KnownIds, most: int) -> list[IdRange]:
    """Nothing if no table knows the ids well: its partitions have at most 100,000 rows."""
    if not 0 < known.count <= 2 * IDS_PER_RANGE_MAX * len(known.starts):
        return []
    ranges = IdRange.between(thinned(known.starts, max(2, -(-known.count // STEP)))[1:])
    return [Share(tuple(group)).within for group in _for_tasks(ranges, known.count, most)]


def _for_tasks(ranges: Sequence[IdRange], count: int, most: int) -> list[list[IdRange]]:
    """Neighbors together, for ranges of about this many ids."""
    return grouped(ranges, tasks_for(count, most))


def _portions(collection: Collection, most: int, count: Count) -> list[IdRange]:
    first = counted(collection, IdRange(), INLINE_IDS)
    rest = [Share(tuple(group)).within for group in grouped(first.rest, most)] if first.rest else []
    found = [first, *(count(rest) if rest else ())]
    return sorted((one for each in found for one in each.portions), key=lambda one: one.start)


# Counting


@dataclass(frozen=True, slots=True)
class ListedPortions:
    """The portions of a listed range, in order, and the parts of it that are not listed yet."""

    portions: tuple[IdRange, ...]
    rest: tuple[IdRange, ...] = ()


Count = Callable[[list[IdRange]], list[ListedPortions]]
"""Runs `counted` for each of these ranges, and for what that leaves of them, in as many tasks."""


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
