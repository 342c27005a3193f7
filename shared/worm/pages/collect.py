"""Garbage of a page store: layers that no read inside the window needs, old slots of the log, and objects that were
never named.

A layer serves reads from its first LSN up to where newer images cover all of its pages. It leaves the root when no
promised read falls into that range: no LSN from the horizon on, no fork, no pin. The horizon is the state that the
branch had one window ago, by the store's own clock. Root and horizon change in one compare-and-swap, and so do forks
and pins: a new branch either finds its layers, or gets an error that says that they are gone.

Only then, and after a minimum age, is the object deleted: readers with an older root have that long, and get
`SnapshotExpired` after it. Before anything is deleted, a copy of the root is written: whatever happens to the root, its
copy names existing layers, and the log after them is complete (`repair.py`). An object that no root names is deleted if
it is old enough *and* can never be named again (`layer_name.py`); otherwise it stays. If anything is unclear, objects
stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Fenced
from worm.log import CommitLogTools, DbKeys
from worm.pages.layer_name import LayerName
from worm.pages.layers import Bounds, without
from worm.pages.manifest import Dropped, Layer, Mark, PageBranch, Pages
from worm.pages.root import PagesRoot
from worm.store import Listed, Store


@dataclass(frozen=True, slots=True)
class Garbage:
    """What a run did; in a dry run, what it would do."""

    horizons: dict[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    bytes: int = 0
    orphans: tuple[str, ...] = ()
    slots: int = 0
    slot_bytes: int = 0
    pins: tuple[str, ...] = ()
    waiting: int = 0


class PageCollector:
    """Collects the garbage of a database. It is safe to run several at once."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self.root = PagesRoot(store, db_id, clock=self._clock, ids=self._ids)

    def run(self, *, dry_run: bool = False) -> Garbage:
        self.root.read()  # before anything is written below a name that may be free
        now = int(self.root.store_time().timestamp() * 1000)
        pages = self.root.read() if dry_run else self.root.back_up()
        deleted, aged = self._delete_dropped(pages, now, dry_run)
        after = collected(pages, now, aged) if dry_run else self.root.change(lambda one: _changed(one, now, aged))
        # `now` is from before the root was read: a mark that is newer than it stays inside the window
        report = _report(pages, after, deleted)
        orphans = sorted(self._orphans(after, now), key=lambda one: not one.key.endswith(f"/{DbKeys.ROOT_NAME}"))
        slots = [self._collect_log(name, branch, after, pages, dry_run) for name, branch in after.branches.items()]
        if not dry_run:
            # For the log of a deleted branch, the root goes first: without it, nothing counts as committed.
            for listed in orphans:
                self._store.delete(listed.key)
        return replace(
            report,
            orphans=tuple(listed.key for listed in orphans),
            bytes=report.bytes + sum(listed.size for listed in orphans),
            slots=sum(one[0] for one in slots),
            slot_bytes=sum(one[1] for one in slots),
        )

    def _delete_dropped(self, pages: Pages, now: int, dry_run: bool) -> tuple[list[Listed], set[str]]:
        """Delete objects that left the root long enough ago. Their names are never reused, so this can be repeated."""
        aged = {
            one.path
            for branch in pages.branches.values()
            for one in branch.dropped
            if now - one.ms >= self._min_age_ms(pages)
        }
        found = [
            Listed(key, info.etag, info.size, info.last_modified)
            for key in sorted(self.root.keys.directory + path for path in aged)
            if (info := self._store.head(key)) is not None
        ]
        if not dry_run:
            for one in found:
                self._store.delete(one.key)
        return found, aged

    def _collect_log(
        self, name: str, branch: PageBranch, pages: Pages, backed_up: Pages, dry_run: bool
    ) -> tuple[int, int]:
        """Collect slots that are older than the window and whose commits are in layers, also according to the copy of
        the root."""
        before = backed_up.branches.get(name)
        known = 0 if before is None or before.id != branch.id else before.slot
        marked = max((mark.slot for mark in branch.marks if mark.lsn <= branch.horizon), default=0)
        upto = min(marked, branch.slot, known)
        if upto < 1:
            return 0, 0
        keys = DbKeys(self.root.keys.db_id, branch.id)
        log = CommitLogTools(
            self._store, keys, must_exist=False, config=pages.config.log, clock=self._clock, ids=self._ids
        )
        try:
            with self.root.while_there(name, branch.id):
                done = log.collect_slots(upto, dry_run=dry_run)
        except Fenced:
            return 0, 0  # it was deleted in the meantime, and another run has started to remove it
        return done.deleted, done.bytes

    def _orphans(self, pages: Pages, now: int) -> Iterator[Listed]:
        """Objects that are old, that no root names, and that no root can ever name. The root is older than the listing:
        an object that was published in between is not in it, and is kept because it can still be named."""
        directory = self.root.keys.directory
        named = {layer.path for branch in pages.branches.values() for layer in branch.layers}
        named |= {one.path for branch in pages.branches.values() for one in branch.dropped}
        by_id = {branch.id: branch for branch in pages.branches.values()}
        dead = [
            (listed, now - listed.last_modified.timestamp() * 1000 >= self._min_age_ms(pages))
            for prefix in self.root.keys.swept
            for listed in self._store.list(prefix)
            if (path := listed.key.removeprefix(directory)) not in named and _is_dead(path, by_id)
        ]
        # A deleted branch is removed as a whole: while the root of its log is young, a writer that slept would take a
        # freed slot for a commit.
        owners = [DbKeys.split(listed.key.removeprefix(directory))[0] for listed, _ in dead]
        young = {owner for owner, (_, is_old) in zip(owners, dead, strict=True) if not is_old} - by_id.keys()
        for owner, (listed, is_old) in zip(owners, dead, strict=True):
            if is_old and owner not in young:
                yield listed

    def _min_age_ms(self, pages: Pages) -> float:
        """The minimum age plus one second, because times of objects are whole seconds."""
        return 1000 * (1 + pages.config.gc_min_age_seconds)


def _is_dead(path: str, by_id: dict[str, PageBranch]) -> bool:
    """Whether no root can ever name this object again. Only then may it be deleted."""
    branch_id, name = DbKeys.split(path)
    if branch_id not in by_id:
        return True  # ids of branches are in the root before anything is written there, and never come back
    layer = LayerName.parse(name)
    if layer is None:
        return False  # also a pointer, written for people
    branch = by_id[branch_id]
    return layer.low <= branch.lsn if layer.kind == "flushed" else layer.epoch < branch.compaction


def _changed(pages: Pages, now: int, aged: set[str]) -> Pages | None:
    after = collected(pages, now, aged)
    return None if after == pages else after


def collected(pages: Pages, now: int, aged: Collection[str] = ()) -> Pages:
    """The root after a collection at this time of the store; what is in `aged` has been deleted."""
    pins = {name: pin for name, pin in pages.pins.items() if pin.until > now}
    pages = pages.model_copy(update={"pins": pins})
    branches: dict[str, PageBranch] = {}
    for name, branch in pages.branches.items():
        horizon = max(branch.horizon, _horizon(branch, now - pages.config.pitr_window_seconds * 1000))
        points = pages.points(name)
        kept = [layer for layer in branch.layers if _is_needed(layer, branch, horizon, points)]
        gone = [layer.path for layer in branch.layers if layer not in kept]
        dropped = [one for one in branch.dropped if one.path not in aged]
        branches[name] = branch.model_copy(
            update={
                "horizon": horizon,
                "layers": tuple(kept),
                "dropped": (*dropped, *(Dropped(path=path, ms=now) for path in gone)),
                "marks": _kept_marks(branch, horizon),
            }
        )
    return pages.model_copy(update={"branches": branches})


def _horizon(branch: PageBranch, cutoff: float) -> int:
    """The LSN that the branch had at that time."""
    return max((mark.lsn for mark in branch.marks if mark.ms <= cutoff), default=0)


def _kept_marks(branch: PageBranch, horizon: int) -> tuple[Mark, ...]:
    """The last one at or below the horizon, and all after it."""
    below = [mark for mark in branch.marks if mark.lsn <= horizon]
    return (*below[-1:], *(mark for mark in branch.marks if mark.lsn > horizon))


def _is_needed(layer: Layer, branch: PageBranch, horizon: int, points: set[int]) -> bool:
    """Whether a promised read uses the layer."""
    end = covered_from(layer, branch)
    if end is None or end > horizon:
        return True
    return any(layer.low_lsn <= point < end for point in points)


def covered_from(layer: Layer, branch: PageBranch) -> int | None:
    """The LSN from which newer images cover all of its pages; None if they do not."""
    missing: list[Bounds] = [(layer.start, layer.end) if layer.is_image else (layer.low, layer.high + "\0")]
    images = [
        image
        for image in branch.layers
        if image.is_image
        and image.path != layer.path
        and (image.high_lsn > layer.high_lsn if layer.is_image else image.high_lsn >= layer.high_lsn)
    ]
    for image in sorted(images, key=lambda one: one.high_lsn):
        missing = [piece for gap in missing for piece in without(gap, image.start, image.end)]
        if not missing:
            return image.high_lsn
    return None


def _report(before: Pages, after: Pages, deleted: list[Listed]) -> Garbage:
    def live(pages: Pages) -> set[str]:
        return {layer.path for branch in pages.branches.values() for layer in branch.layers}

    return Garbage(
        horizons={name: branch.horizon for name, branch in after.branches.items()},
        dropped=tuple(sorted(live(before) - live(after))),
        deleted=tuple(one.key for one in deleted),
        bytes=sum(one.size for one in deleted),
        pins=tuple(sorted(before.pins.keys() - after.pins.keys())),
        waiting=sum(len(branch.dropped) for branch in after.branches.values()),
    )
