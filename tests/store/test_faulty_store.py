"""Fault injection does what the script or the seed says, and nothing else."""

from __future__ import annotations

from typing import Literal

import pytest

from worm.errors import CommitStateUnknown, Denied, Unavailable
from worm.store.base import Object, Read, Store, Won
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore


def test_without_a_plan_it_is_the_inner_store() -> None:
    inner = MemoryStore("x")
    faulty: Store = FaultyStore(inner)
    won = faulty.put_if_absent("a", b"1")
    assert isinstance(won, Won)
    assert (faulty.url, faulty.get("a"), list(faulty.list(""))) == ("memory://x", inner.get("a"), list(inner.list("")))
    assert [row.etag for row in faulty.versions("a")] == [won.etag]
    inner.put("b", b"2")
    assert [row.key for row in faulty.list("", limit=1)] == ["a"]


@pytest.mark.parametrize(("when", "stored"), [("before", [b"1"]), ("after", [b"1", b"2"])])
def test_a_crash_strikes_at_the_numbered_write_and_the_dead_process_reaches_nothing(
    when: Literal["before", "after"], stored: list[bytes]
) -> None:
    inner = MemoryStore()
    faulty = FaultyStore(inner)
    faulty.crash_at_write(2, when)
    faulty.put("1", b"1")
    with pytest.raises(SimulatedCrash):
        faulty.put_if_absent("2", b"2")
    with pytest.raises(SimulatedCrash):
        faulty.delete("1")
    with pytest.raises(SimulatedCrash):
        faulty.get("1")
    assert [item.body for item in map(inner.get, ("1", "2")) if item is not None] == stored
    faulty.revive()
    assert isinstance(faulty.put("3", b"3"), Won)


def test_reads_fail_as_scripted_and_get_many_keeps_the_others() -> None:
    inner = MemoryStore()
    inner.put("a", b"1")
    faulty = FaultyStore(inner)
    faulty.fail_next("get", Fault.UNAVAILABLE)
    failed, found = faulty.get_many([Read("a"), Read("a")])
    assert isinstance(failed, Unavailable)
    assert isinstance(found, Object)
    faulty.fail_next("get", Fault.UNAVAILABLE)
    with pytest.raises(Unavailable):
        faulty.get_range("a", 0, 1)
    assert faulty.get_range("a", 0, 1) == b"1"
    faulty.fail_next("head", Fault.DENIED)
    with pytest.raises(Denied):
        faulty.head("a")
    faulty.fail_next("list", Fault.UNAVAILABLE)
    with pytest.raises(Unavailable):
        faulty.list("")


@pytest.mark.parametrize(("fault", "stored"), [(Fault.LOST_RESPONSE, True), (Fault.LOST_REQUEST, False)])
def test_an_unconditional_write_with_a_lost_answer_is_unavailable_whether_or_not_it_landed(
    fault: Fault, stored: bool
) -> None:
    inner = MemoryStore()
    faulty = FaultyStore(inner)
    faulty.fail_next("put", fault)
    with pytest.raises(Unavailable):
        faulty.put("a", b"1")
    assert (inner.get("a") is not None) == stored


def outcomes(seed: int) -> tuple[list[str], list[str]]:
    inner = MemoryStore()
    faulty = FaultyStore(inner, seed=seed, rates={Fault.LOST_RESPONSE: 0.2, Fault.CONFLICT: 0.2}, read_rate=0.3)
    told = []
    for number in range(50):
        try:
            told.append(type(faulty.put_if_absent(f"{number % 20}", b"%d" % number)).__name__)
        except CommitStateUnknown as error:
            told.append(str(error))
    return told, [f"{row.key} {row.etag}" for row in inner.list("")]


def test_one_seed_replays_the_same_run_and_another_differs() -> None:
    assert outcomes(7) == outcomes(7)
    first, second = FaultyStore(MemoryStore(), seed=1), FaultyStore(MemoryStore(), seed=2)
    assert first.ids.ulid() != second.ids.ulid()
