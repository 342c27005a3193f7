"""Each invariant of root and lease: which change it refuses, and that it is asked before the swap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worm.clock import Ids, VirtualClock
from worm.log import invariants
from worm.log.fence import LogFiles
from worm.log.keys import DbKeys
from worm.log.root import Lease, LogRoot
from worm.store.cas import InvariantBroken
from worm.store.memory import MemoryStore

KEYS = DbKeys("main")
ROOT = LogRoot(4, "a", 7, {"pages": {}})
LEASE = Lease(4, "a", 3, "token", "worker", 9, "", 60)
NEXT_ROOT = replace(ROOT, version=5, put_id="b")
NEXT_LEASE = replace(LEASE, version=5, put_id="b", epoch=4)


def broken_by_root(new: LogRoot) -> list[str]:
    return [holds.__name__ for holds in invariants.ROOT if not holds(ROOT, new)]


def broken_by_lease(new: Lease) -> list[str]:
    return [holds.__name__ for holds in invariants.LEASE if not holds(LEASE, new)]


def test_an_ordinary_swap_keeps_all_of_them() -> None:
    assert broken_by_root(replace(NEXT_ROOT, boundary=8)) == []
    assert broken_by_lease(NEXT_LEASE) == []
    assert all(holds(LogRoot(), LogRoot(1, "a")) for holds in invariants.ROOT)
    assert all(holds(Lease(), Lease(1, "a", 1, "token")) for holds in invariants.LEASE)


@pytest.mark.parametrize(
    ("new", "broken"),
    [
        (replace(NEXT_ROOT, version=4), "version_grows_by_one"),
        (replace(NEXT_ROOT, version=6), "version_grows_by_one"),
        (replace(NEXT_ROOT, put_id="a"), "put_id_is_new"),
        (replace(NEXT_ROOT, put_id=""), "put_id_is_new"),
        (replace(NEXT_ROOT, boundary=6), "boundary_never_falls"),
        (replace(NEXT_ROOT, members={}), "members_of_other_rooms_stay"),
    ],
)
def test_each_invariant_of_the_root_refuses_its_damage(new: LogRoot, broken: str) -> None:
    assert broken_by_root(new) == [broken]


@pytest.mark.parametrize(
    ("new", "broken"),
    [
        (replace(NEXT_LEASE, version=4), "version_grows_by_one"),
        (replace(NEXT_LEASE, put_id="a"), "put_id_is_new"),
        (replace(NEXT_LEASE, epoch=3), "epoch_grows"),
        (replace(NEXT_LEASE, tail=8), "tail_never_falls"),
        (replace(NEXT_LEASE, min_age=59), "min_age_never_falls"),
    ],
)
def test_each_invariant_of_the_lease_refuses_its_damage(new: Lease, broken: str) -> None:
    assert broken_by_lease(new) == [broken]


def test_they_are_asked_before_every_swap_of_the_stored_objects() -> None:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    root, lease = LogFiles(store, KEYS, clock=clock, ids=ids).root, LogFiles(store, KEYS, clock=clock, ids=ids).lease
    root.update(lambda _: LogRoot(boundary=7))
    lease.update(lambda _: Lease(epoch=3, token="token"))
    before = [listed.etag for listed in store.list("")]
    with pytest.raises(InvariantBroken, match="boundary never falls"):
        root.update(lambda _: LogRoot(boundary=6))
    with pytest.raises(InvariantBroken, match="epoch grows"):
        lease.update(lambda _: Lease(epoch=3, token="other"))
    assert [listed.etag for listed in store.list("")] == before
