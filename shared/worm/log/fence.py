"""How the root and the lease of a log are swapped, and how a new writer shuts the old one out.

Both are roots in the sense of `store/cas.py`: damage never counts as absence, every swap is numbered, and their
invariants (`invariants.py`) are checked before it. The fence is the epoch: a process that takes the lease gets a
greater one than anybody before, and its first segment makes the next append of the old writer fail (`writer.py`).

A log always has a root, which is written first. If other objects exist without a root, the root was lost, and with it
the record of what is collected. That is damage, and never a new database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import ClassVar, TypeVar

from worm.clock import Clock, Ids, iso_millis
from worm.errors import Corrupt, Unavailable
from worm.log import invariants
from worm.log.hints import REPAIR
from worm.log.keys import DbKeys
from worm.log.root import DatabaseKind, Lease, LogRoot
from worm.log.segment import Segment
from worm.store import CasFile, Invariant, Rules, Store

V = TypeVar("V", LogRoot, Lease)
ReadRoot = Callable[[], LogRoot | None]
"""Reads the root: one conditional GET."""


def numbered(current: V | None, new: V, put_id: str) -> V:
    return replace(new, version=1 if current is None else current.version + 1, put_id=put_id)


class LogFiles:
    """The root and the lease of a log. With `kind`, for a writer: the root of another kind, or of a deleted database,
    is refused."""

    numbered = staticmethod(numbered)
    INVARIANTS: ClassVar[Sequence[Invariant[LogRoot]]] = invariants.ROOT

    def __init__(self, store: Store, keys: DbKeys, *, clock: Clock, ids: Ids, kind: DatabaseKind | None = None) -> None:
        self._store, self._keys = store, keys

        def decoded(body: bytes, key: str) -> LogRoot:
            root = LogRoot.decode(body, key)
            if kind is not None:
                root.check(kind, key)
            return root

        root = Rules(is_derived=False, blank=LogRoot(), numbered=numbered, invariants=invariants.ROOT)
        lease = Rules(is_derived=False, blank=Lease(), numbered=numbered, invariants=invariants.LEASE)
        self.root: CasFile[LogRoot] = CasFile(
            store, keys.root, decoded, LogRoot.encode, ids=ids, clock=clock, rules=root
        )
        self.lease: CasFile[Lease] = CasFile(
            store, keys.lease, Lease.decode, Lease.encode, ids=ids, clock=clock, rules=lease
        )

    def begin(self, kind: DatabaseKind = "documents") -> None:
        """Write the first root of a log, unless there is one. The caller has checked that there is nothing else
        (`is_blank`)."""
        self.root.update(lambda found: LogRoot(kind=kind) if found is None else None)

    def is_blank(self, read_root: Callable[[], object] | None = None) -> bool:
        """Called if there was no root: whether there is nothing at all. `Corrupt` if there is something. One LIST of
        one key."""
        return is_blank(self._store, self._keys, read_root or self.root.read)

    def store_time(self) -> datetime:
        """The current time of the store."""
        self._store.put(self._keys.clock, b"{}")
        info = self._store.head(self._keys.clock)
        if info is None:
            raise Unavailable("an object that was just written is missing", key=self._keys.clock)
        return info.last_modified


def is_blank(store: Store, keys: DbKeys, read_root: Callable[[], object]) -> bool:
    """Called if there was no root: whether there is nothing at all. `Corrupt` if there is something. One LIST of one
    key."""
    if next(iter(store.list(keys.directory, limit=1)), None) is None:
        return True
    if read_root() is not None:  # it was started just now: the root comes first
        return False
    raise Corrupt("the root is gone, so the collected range is unknown", key=keys.root, hint=REPAIR)


def boundary_of(store: Store, keys: DbKeys, read_root: ReadRoot) -> int:
    """The boundary; 0 if no log was ever started. `Corrupt` if there are objects without a root."""
    found = read_root()
    if found is None and not is_blank(store, keys, read_root):
        found = read_root()
    return 0 if found is None else found.boundary


def take_lease(
    file: CasFile[Lease], writer: str, last: Segment | None, *, min_age: float, clock: Clock, ids: Ids
) -> Lease:
    """Become the writer of a new epoch, which is later than that of the log's last segment, in case the lease is lost.
    The previous holder finds out at its next append. The caller has just read the lease."""
    token = ids.ulid()
    slot, epoch = (0, 0) if last is None else (last.slot, last.epoch)

    def taken(lease: Lease | None) -> Lease:
        before = lease or Lease()
        return Lease(
            epoch=max(before.epoch, epoch) + 1,
            token=token,
            writer=writer,
            tail=max(slot, before.tail),
            taken=iso_millis(clock.now()),
            min_age=max(min_age, before.min_age),
        )

    lease = file.update(taken, is_fresh=True)
    if lease is None:
        raise Corrupt("the lease is gone", key=file.key, hint="open the writer again")
    return lease
