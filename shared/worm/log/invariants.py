"""The invariants of a log's two mutable objects, from one swap to the next: plain predicates over the current value and
the new one, checked before every swap (`store/cas.py`). Each docstring says which damage it prevents."""

from __future__ import annotations

from typing import TypeVar

from worm.log.root import Lease, LogRoot
from worm.store import Invariant

V = TypeVar("V", LogRoot, Lease)


def version_grows_by_one(current: V, new: V) -> bool:
    """A repeated version would make two different bodies look like one; a gap would hide a swap from people who look
    for a lost version."""
    return new.version == current.version + 1


def put_id_is_new(current: V, new: V) -> bool:
    """A repeated body has the etag of an older one: a process that slept could swap based on what it read long ago."""
    return new.put_id not in ("", current.put_id)


def boundary_never_falls(current: LogRoot, new: LogRoot) -> bool:
    """Slots up to the boundary may already be deleted. With a lower boundary, readers would take their absence for
    damage, and a writer that slept would believe that its commit into a freed slot counts."""
    return new.boundary >= current.boundary


def members_of_other_rooms_stay(current: LogRoot, new: LogRoot) -> bool:
    """The page store keeps its layers in the root. Writing a root without them would lose every page."""
    return current.members.keys() <= new.members.keys()


def kind_never_changes(current: LogRoot, new: LogRoot) -> bool:
    """Records of another kind would be committed into a log whose readers cannot read them."""
    return current.version == 0 or new.kind == current.kind


def epoch_grows(current: Lease, new: Lease) -> bool:
    """Two writers of one epoch cannot fence each other: each would take the other's segments for its own."""
    return new.epoch > current.epoch


def tail_never_falls(current: Lease, new: Lease) -> bool:
    """The search for the end of the log starts at this slot; from an older one, it would cost more with every
    writer."""
    return new.tail >= current.tail


def min_age_never_falls(current: Lease, new: Lease) -> bool:
    """For half of this age, a writer trusts its last commit without checking the boundary. A collector that deletes
    earlier would free a slot in which that writer acknowledges a commit that nobody reads."""
    return new.min_age >= current.min_age


ROOT: tuple[Invariant[LogRoot], ...] = (
    version_grows_by_one,
    put_id_is_new,
    boundary_never_falls,
    members_of_other_rooms_stay,
    kind_never_changes,
)
LEASE: tuple[Invariant[Lease], ...] = (
    version_grows_by_one,
    put_id_is_new,
    epoch_grows,
    tail_never_falls,
    min_age_never_falls,
)
