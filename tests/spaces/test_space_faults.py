"""A bank in a bucket whose requests fail in every way: answers that are lost, writes that land late, refusals of what
was written, reads that fail. Each client has the space open as a process has it, and tries again under the same number
until it knows. What it was told is there once; the total never changes."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from tests.spaces.bank_worker import ACCOUNTS, BRANCHES, balance
from worm.clock import Ids, VirtualClock
from worm.errors import Conflict, WormError
from worm.formats.strict_json import JsonObject
from worm.spaces import page_backend
from worm.spaces.operations import SpaceConfig
from worm.spaces.page_backend import PageBackend, Turns
from worm.spaces.space import Space
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.memory import MemoryStore

FEW = ACCOUNTS[:12]
OPENING = 100
RATES = {
    Fault.LOST_RESPONSE: 0.03,
    Fault.LOST_REQUEST: 0.02,
    Fault.OWN_REFUSAL: 0.03,
    Fault.DELAYED: 0.02,
    Fault.CONFLICT: 0.02,
    Fault.UNAVAILABLE: 0.02,
}
SEEDS = int(os.environ.get("WORM_SEEDS", "8"))
TRIES = 200
R = TypeVar("R")


@dataclass
class Client:
    """One process of the bank, with faults of its own."""

    name: str
    seed: int
    memory: MemoryStore
    told: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    error: BaseException | None = None

    def open(self) -> Space:
        clock = Hurried()
        ids = Ids.seeded(self.seed, clock)
        store = FaultyStore(self.memory, seed=self.seed, rates=RATES, read_rate=0.0005, clock=clock, ids=ids)
        backend = again(lambda: PageBackend(store, "space-main", create=True, clock=clock, ids=ids))
        return Space(backend, SpaceConfig(snapshot_every=4), clock=clock, ids=ids)

    def run(self, count: int) -> None:
        try:
            rng, space = random.Random(self.seed), self.open()
            for number in range(1, count + 1):
                self.transfer(space, number, rng)
                if number % 7 == 0:
                    again(lambda: space.maintain(at_least=2))
        except BaseException as error:  # noqa: BLE001  # told by the test
            self.error = error

    def transfer(self, space: Space, number: int, rng: random.Random) -> None:
        branch, (one, other) = rng.choice(BRANCHES), rng.sample(FEW, 2)
        seen = again(lambda: space.read_many([one, other], branch=branch))
        amount = rng.randint(1, 9)
        ops: list[JsonObject] = [
            {"op": "set", "id": one, "value": {"balance": balance(seen[one]) - amount}},
            {
                "op": "patch",
                "id": other,
                "patches": [{"op": "replace", "path": "/balance", "value": balance(seen[other]) + amount}],
            },
        ]
        reads = list(seen.values())
        try:
            done = again(
                lambda: space.transact(ops, session_id=self.name, local_seq=number, branch=branch, reads=reads)
            )
        except Conflict:
            self.refused.add(number)
        else:
            self.told[number] = done.seq


class Hurried(VirtualClock):
    """Pauses are twenty times as short as they say, but there are some: without, many at once would only disturb each
    other."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 20)
        super().sleep(seconds)


def again(work: Callable[[], R]) -> R:
    """Until the store answers."""
    for _ in range(TRIES):
        try:
            return work()
        except Conflict:
            raise
        except WormError:
            continue
    return work()


def bank(seed: int, clients: int, count: int, monkeypatch: pytest.MonkeyPatch) -> int:
    memory = MemoryStore(clock=VirtualClock())
    monkeypatch.setattr(page_backend, "turns_of", lambda _store, _db: Turns())
    clock = VirtualClock()
    calm = Space(
        PageBackend(memory, "space-main", create=True, clock=clock, ids=Ids.seeded(seed, clock)),
        clock=clock,
        ids=Ids.seeded(seed + 1, clock),
    )
    calm.transact([{"op": "set", "id": one, "value": {"balance": OPENING}} for one in FEW])
    calm.create_branch("audit")
    everyone = [Client(f"client-{n}", 100 * seed + n, memory) for n in range(clients)]
    threads = [threading.Thread(target=client.run, args=(count,)) for client in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in everyone:
        if client.error is not None:
            raise client.error
    log = {entry.seq: entry for entry in calm.log()}
    assert list(log) == list(range(1, len(log) + 1))
    numbers = [(entry.session_id, entry.local_seq) for entry in log.values() if entry.session_id.startswith("client")]
    assert len(numbers) == len(set(numbers)), "made twice"
    assert set(numbers) == {(client.name, number) for client in everyone for number in client.told}
    for client in everyone:
        for number, seq in client.told.items():
            assert (log[seq].session_id, log[seq].local_seq) == (client.name, number)
    for seq in range(2, len(log) + 1):
        for branch in BRANCHES:
            total = sum(map(balance, calm.read_many(FEW, branch=branch, at=seq).values()))
            assert total == OPENING * len(FEW), (branch, seq)
    return len(numbers)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_total_never_changes_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bank(1, clients=1, count=40, monkeypatch=monkeypatch) > 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("clients", [1, 3, 8])
def test_the_total_never_changes_whatever_fails_for_many(clients: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sum(
        bank(seed, clients=clients, count=40 // clients + 3, monkeypatch=monkeypatch) for seed in range(2, 2 + SEEDS)
    )
    assert made > 10 * SEEDS
