"""Finding the end of a commit log in O(log n) requests and without a listing.

Slots are written without a gap from the boundary on, so 'is there one?' turns from yes to no once: gallop from a slot
that is known (1, 2, 4 … ahead), then bisect. Garbage collection may raise the boundary meanwhile, and then a slot that
was there is not any more: the answer is a hint, which the write into the next slot proves or refutes (`writer.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from worm.errors import Corrupt, Unavailable
from worm.journal.keys import DbKeys
from worm.journal.root import RootFile, boundary_of
from worm.journal.segment import VERIFY, Segment
from worm.store.base import Store

ATTEMPTS_MAX = 5


def last_slot(low: int, is_there: Callable[[int], bool]) -> int:
    """The last slot that is there; `low` is, or nothing is known (the boundary, or 0)."""
    step = 1
    while is_there(low + step):
        low, step = low + step, step * 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if is_there(middle):
            low = middle
        else:
            high = middle
    return low


def find_tail(store: Store, keys: DbKeys, root: RootFile, hint: int = 0) -> Segment | None:
    """The last segment; None: nothing was ever written. `hint` is a slot that was there once."""
    for _ in range(ATTEMPTS_MAX):
        boundary = boundary_of(store, keys, root)
        low = hint if hint > boundary and store.head(keys.slot(hint)) is not None else boundary
        slot = last_slot(low, lambda one: store.head(keys.slot(one)) is not None)
        found = store.get(keys.slot(slot)) if slot > boundary else None
        if boundary_of(store, keys, root) >= max(slot, 1):
            continue  # it was collected while we looked
        if found is not None:
            return Segment.decode(found.body, slot, found.key)
        if boundary > 0:
            raise Corrupt(
                f"the log has no segment after its boundary {boundary}", key=keys.slot(boundary + 1), hint=VERIFY
            )
        if slot == 0:
            return None
    raise Unavailable("the end of the log was collected while it was looked for", key=keys.log, hint="try again")


def is_beyond(store: Store, keys: DbKeys, slot: int) -> bool:
    """Is there a segment after this slot? One LIST of one key."""
    listed = store.list(keys.log, start_after=keys.slot(slot), limit=1)
    return any((keys.slot_of(one.key) or 0) > slot for one in listed)
