"""The bank: transfers between 100 accounts by 8 processes that are killed at any moment. The total never changes, at
any commit, on any branch; what a client was told is there; what it was not told is there whole or not at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest

from tests.emulators import CREDENTIALS, new_bucket
from tests.fault_proxy import fault_proxy
from tests.log import minio
from tests.spaces.bank_worker import ACCOUNTS, BRANCHES, balance, transfer
from tests.spaces.space_room import Room
from worm.formats.strict_json import JsonValue
from worm.spaces.opening import open_space
from worm.spaces.results import LogEntry
from worm.spaces.space import Space

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 8
OPENING = 1000
SECONDS = 15
KILLS = 12
FAULT_SECONDS = float(os.environ.get("WORM_FAULT_SECONDS", "15"))
LOOKS = 100
"""So many commits are read whole; of all others the log tells."""


@dataclass
class Client:
    """A process and what it has printed so far; its session goes on in the next process."""

    url: str
    session: str
    lives: int = 0

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.spaces.bank_worker", self.url, self.session]
        command += [str(1 + self.lives * 1_000_000), f"{self.session[-1]}{self.lives}"]
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        self.lives += 1

    def kill(self) -> dict[int, int]:
        """Number of the transfer → commit, of whole lines only."""
        self.process.send_signal(signal.SIGKILL)
        printed = self.process.communicate()[0].splitlines(keepends=True)
        return {int(line.split()[0]): int(line.split()[1]) for line in printed if line.endswith("\n")}


def _total(space: Space, branch: str, seq: int | None = None) -> int:
    return sum(map(balance, space.read_many(ACCOUNTS, branch=branch, at=seq).values()))


def _tidy(space: Space) -> None:
    space.maintain(at_least=2)
    space.gc(keep=2)


def _open_the_bank(room: Room) -> Space:
    space = room.open(snapshot_every=5)
    space.transact([{"op": "set", "id": one, "value": {"balance": OPENING}} for one in ACCOUNTS])
    space.create_branch("audit")
    return space


def _check(space: Space, told: dict[str, dict[int, int]]) -> int:
    log = {entry.seq: entry for entry in space.log()}
    assert list(log) == list(range(1, len(log) + 1))
    names = [(entry.session_id, entry.local_seq) for entry in log.values()]
    assert len(names) == len(set(names))
    for session, acked in told.items():
        for number, seq in acked.items():
            assert (log[seq].session_id, log[seq].local_seq) == (session, number)
    assert len(log) - 2 >= sum(map(len, told.values()))
    told_by_log = _balances(log)
    chosen = {*range(2, len(log) + 1, max(1, len(log) // LOOKS)), len(log)}
    for seq, branches in told_by_log:
        for branch, balances in branches.items():
            assert sum(balances.values()) == OPENING * len(ACCOUNTS), (branch, seq)
            if seq in chosen:
                found = space.read_many(ACCOUNTS, branch=branch, at=seq)
                assert {one: balance(entity) for one, entity in found.items()} == balances, (branch, seq)
    return len(log)


def _balances(log: Mapping[int, LogEntry]) -> Iterator[tuple[int, Mapping[str, Mapping[str, int]]]]:
    """What the records of the commits make of the accounts, on each branch, after each commit from the second on."""
    main = dict.fromkeys(ACCOUNTS, OPENING)
    branches = {name: dict(main) for name in BRANCHES}
    for seq, entry in log.items():
        operations = entry.original.get("operations") if seq > 2 else []
        assert isinstance(operations, list)
        for operation in operations:
            assert isinstance(operation, dict)
            shape = operation["value"] if operation["op"] == "set" else operation["patches"]
            new = shape["balance"] if isinstance(shape, dict) else _replaced(shape)
            assert isinstance(new, int)
            branches[entry.branch][str(operation["id"])] = new
        if seq >= 2:
            yield seq, branches


def _replaced(patches: JsonValue) -> JsonValue:
    assert isinstance(patches, list)
    last = patches[-1]
    assert isinstance(last, dict)
    return last["value"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_total_never_changes_while_clients_are_killed(room: Room) -> None:
    room.is_shared = True
    space = _open_the_bank(room)
    told, kills = _busy_day(space, room.url, is_tidied=room.kind == "sqlite")
    _tidy(space)
    seqs = _check(room.open(), told)
    assert kills >= KILLS
    assert seqs > 100
    assert sum(map(len, told.values())) > 50


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("site", ["moto", "minio"])
def test_the_total_never_changes_while_clients_are_killed_in_a_bucket(
    request: pytest.FixtureRequest, aws_environment: None, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    endpoint = str(request.getfixturevalue(f"{site}_endpoint"))
    for name, value in (minio.CREDENTIALS if site == "minio" else CREDENTIALS).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    client = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket="the-bank")
    url = "s3://the-bank/of"
    with open_space(url, "main") as space:
        space.transact([{"op": "set", "id": one, "value": {"balance": OPENING}} for one in ACCOUNTS])
        space.create_branch("audit")
        told, kills = _busy_day(space, url, is_tidied=False)
        with open_space(url, "main") as fresh:
            assert _check(fresh, told) > 2
        assert kills >= KILLS
        assert sum(map(len, told.values())) > 10, "on a slow machine most are killed while they start"


def _busy_day(space: Space, url: str, *, is_tidied: bool) -> tuple[dict[str, dict[int, int]], int]:
    """Clients that work and are killed; what each was told, and how many were killed."""
    rng = random.Random(7)
    clients = [Client(url, f"client-{n}") for n in range(CLIENTS)]
    told: dict[str, dict[int, int]] = {client.session: {} for client in clients}
    for client in clients:
        client.start()
    end, kills = time.monotonic() + SECONDS, 0
    while time.monotonic() < end or kills < KILLS or sum(map(len, told.values())) <= 100:
        time.sleep(rng.uniform(0.2, 0.8))
        client = rng.choice(clients)
        told[client.session] |= client.kill()
        kills += 1
        client.start()
        assert _total(space, rng.choice(BRANCHES)) == OPENING * len(ACCOUNTS)
        if kills == KILLS // 2 and is_tidied:  # in a bucket eight others would leave it no turn
            _tidy(space)
    for client in clients:
        told[client.session] |= client.kill()
    return told, kills


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(int(os.environ.get("WORM_SEEDS", "1"))))
def test_the_total_never_changes_while_clients_are_killed_behind_a_proxy_that_fails(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    rng, url = random.Random(seed), f"s3://{new_bucket(moto_endpoint, versioned=True)}/bank"
    with fault_proxy(moto_endpoint, seed=seed) as proxy, open_space(url, "main", endpoint_url=moto_endpoint) as space:
        space.transact([{"op": "set", "id": one, "value": {"balance": OPENING}} for one in ACCOUNTS])
        space.create_branch("audit")
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with open_space(url, "main", endpoint_url=proxy.url) as calm:  # a store is probed before its first writer
            calm.snapshot(ACCOUNTS[0])
        proxy.storm(0.1)
        clients = [Client(url, f"client-{n}") for n in range(3)]
        told: dict[str, dict[int, int]] = {client.session: {} for client in clients}
        for client in clients:
            client.start()
        end, kills = time.monotonic() + FAULT_SECONDS, 0
        while time.monotonic() < end or kills < 3 or sum(map(len, told.values())) < 3:
            time.sleep(rng.uniform(2.0, 4.0))
            client = rng.choice(clients)
            told[client.session] |= client.kill()
            kills += 1
            client.start()
        for client in clients:
            told[client.session] |= client.kill()
        proxy.heal()
        print(
            f"{kills} kills, {len(proxy.seen)} requests, {dict(proxy.struck())}, {[len(one) for one in told.values()]}"
        )
        _tidy(space)
        with open_space(url, "main", endpoint_url=moto_endpoint) as fresh:
            assert _total(fresh, "") == _total(fresh, "audit") == OPENING * len(ACCOUNTS)
            assert _check(fresh, told) > 2
        assert kills > 2
        assert sum(map(len, told.values())) > 2
        assert proxy.struck().total() > 3


def test_the_bank_in_one_process(room: Room) -> None:
    space, rng = _open_the_bank(room), random.Random(1)
    told = {number: seq for number in range(1, 21) if (seq := transfer(space, "one", number, rng)) is not None}
    assert _check(room.open(), {"one": told}) == 2 + len(told)
