"""Portions: a collection divided by the number of its ids, from listings of keys, when no table knows it well enough.

A *portion* is a range of ids that one process can hold with everything that belongs to them: about `PORTION_IDS`
documents, and not more oplog entries than ten times that. A *mark* is an id after about every thousandth in a listing;
portions begin at marks. Keys and ids do not have quite the same order (`id_ranges.py`), so portions have *about* that
many ids; but together they are exactly the range.

A process lists at most `LISTED_MAX` ids, and hands back the rest of its range in several parts. So with enough rounds,
no process lists much, however the ids are distributed. (Ids that need an escape in keys are few: a range of them is
not divided further, but listed part after part.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, KnownIds, split_range, thinned
from worm.store.parallel import in_parallel
from worm.values import dataclass

STEP = 1_000
MARKS_PER_PORTION = 5
PORTION_IDS = STEP * MARKS_PER_PORTION
KEYS_PER_ID = 10
"""So many further keys of an id (entries, time marks) count as one more id."""
LISTED_MAX = 100_000
SPLIT = 32
BEHIND = 2


@dataclass(frozen=True, slots=True)
class ListedPortions:
    """The portions of a listed range, in order, and the parts of it that are not listed yet."""

    portions: tuple[IdRange, ...]
    rest: tuple[IdRange, ...] = ()


@dataclass(frozen=True, slots=True)
class _Listing:
    """The marks of one listing; `end`: the id at which it was stopped."""

    root: str
    marks: tuple[str, ...]
    end: str | None


def counted(collection: Collection, within: IdRange, most: int = LISTED_MAX) -> ListedPortions:
    """List documents and oplogs of a range, and divide it. Holds one id of a thousand."""
    documents = _marked(collection.path, collection.current_ids(within), within.start, most)
    listings = [documents]
    if collection.definition.oplog:
        ids = (info.id or "" for info, _ in collection.oplog_objects(within))
        listings.append(_marked(collection.resolver.oplog_root(collection.name), ids, within.start, most))
    stopped = min((one for one in listings if one.end is not None), key=lambda one: one.end or "", default=None)
    end = within.end if stopped is None else stopped.end
    starts = [within.start, *_portion_starts([one.marks for one in listings], end)]
    portions = tuple(IdRange(start, stop) for start, stop in zip(starts, [*starts[1:], end], strict=True))
    if stopped is None:
        return ListedPortions(portions)
    return ListedPortions(
        portions, tuple(split_range(collection.store, stopped.root, IdRange(end or "", within.end), SPLIT))
    )


def _marked(root: str, ids: Iterable[str], start: str, most: int) -> _Listing:
    """Stops at an id after the start, so that every round gets further."""
    marks, last, since, total = list[str](), None, 0, 0
    for one in ids:
        if one == last:
            since, total = since + 1, total + 1
            continue
        if total >= most * KEYS_PER_ID and one > start:
            return _Listing(root, tuple(marks), one)
        if since >= STEP * KEYS_PER_ID:
            marks.append(one)
            since = 0
        last, since, total = one, since + KEYS_PER_ID, total + KEYS_PER_ID
    return _Listing(root, tuple(marks), None)


def _portion_starts(listings: Sequence[Sequence[str]], end: str | None) -> Iterator[str]:
    """A portion ends as soon as any of the listings has enough marks in it."""
    seen = [0] * len(listings)
    for mark, which in sorted({(one, at) for at, marks in enumerate(listings) for one in marks}):
        if end is not None and mark >= end:
            return
        seen[which] += 1
        if seen[which] >= MARKS_PER_PORTION:
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
