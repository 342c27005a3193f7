"""Threads and processes that read, change and save one document: what is acknowledged is what is there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import worm
from tests.emulators import CREDENTIALS, ROOT, new_bucket
from tests.harness import schema_of
from worm.errors import Conflict
from worm.formats import load_schema
from worm.sdk.database import Model, Worm, push
from worm.sdk.shapes import Dicts
from worm.store.memory import MemoryStore

THREADS, PROCESSES, ROUNDS = 16, 8, 3
COUNTERS = load_schema(
    {
        "version": "1.0",
        "models": {
            "Counter": {
                "path": "@counters/(id:string)",
                "fields": {"n": {"type": "integer"}},
                "oplog": True,
                "manifest": {"enabled": True},
            }
        },
    }
)
PLACES = ("memory", "directory", "moto")
Place = Callable[[str], str]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The url of a new place, with the schema pushed and a counter at 0."""

    def make(kind: str) -> str:
        url = {"memory": f"memory://{tmp_path.name}", "directory": str(tmp_path / "data")}.get(kind)
        if url is None:
            endpoint = request.getfixturevalue("moto_endpoint")
            for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
                monkeypatch.setenv(name, value)
            url = f"s3://{new_bucket(endpoint)}"
        with worm.connect(url, schema=COUNTERS) as session:
            push(session.store, COUNTERS)
            session.model("Counter").insert({"id": "c", "n": 0})
        return url

    return make


def read_change_save(counters: Model, rounds: int) -> tuple[int, int]:
    """How many saves were acknowledged, and how many lost."""
    won = lost = 0
    for _ in range(rounds):
        document = counters.get("c")
        document["n"] = int(str(document["n"])) + 1
        try:
            counters.save(document)
            won += 1
        except Conflict:
            lost += 1
    return won, lost


def modify(counters: Model, rounds: int) -> tuple[int, int]:
    for _ in range(rounds):
        counters.modify("c", lambda document: document | {"n": int(str(document["n"])) + 1})
    return rounds, 0


WORK = {"save": read_change_save, "modify": modify}


@pytest.mark.slow
@pytest.mark.parametrize("sessions", ["one session", "a session each"])
@pytest.mark.parametrize("verb", WORK)
@pytest.mark.parametrize("kind", PLACES)
def test_threads(place: Place, kind: str, verb: str, sessions: str) -> None:
    url = place(kind)
    count = 1 if sessions == "one session" else THREADS
    opened = [worm.connect(url) for _ in range(count)]
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> tuple[int, int]:
        counters = opened[number % count].model("Counter")
        barrier.wait()
        return WORK[verb](counters, ROUNDS)

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, range(THREADS)))
    for session in opened:
        session.close()
    won, lost = (sum(one) for one in zip(*results, strict=True))
    assert won + lost == THREADS * ROUNDS
    check(url, won)
    if verb == "modify":
        assert lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("verb", WORK)
@pytest.mark.parametrize("kind", ["directory", "moto"])
def test_processes(place: Place, kind: str, verb: str) -> None:
    url = place(kind)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.sdk.test_many_writers", url, verb, str(ROUNDS)]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        for _ in range(PROCESSES)
    ]
    results = [tuple(int(part) for part in one.communicate(timeout=100)[0].split()) for one in running]
    assert [one.returncode for one in running] == [0] * PROCESSES
    won, lost = (sum(one) for one in zip(*results, strict=True))
    assert won + lost == PROCESSES * ROUNDS
    check(url, won)
    if verb == "modify":
        assert lost == 0


def check(url: str, acknowledged: int) -> None:
    """The counter, its history and its row say the same."""
    counters = worm.connect(url).model("Counter")
    assert acknowledged > 0
    assert counters.get("c")["n"] == acknowledged
    assert [row["n"] for row in counters.find_all()] == [acknowledged]


if __name__ == "__main__":
    where, what, times = sys.argv[1:]
    print(*WORK[what](worm.connect(where).model("Counter"), int(times)))


def test_models_that_share_a_table_take_turns_at_it() -> None:
    """A table is for one thread at a time. Each model had a lock of its own, and tasks of one process lost rows."""
    db = Worm(MemoryStore(), load_schema(schema_of()), probe=False)
    one, other = (Model(db, "Customer", Dicts(db.schema.model("Customer"))) for _ in range(2))
    assert one.table is other.table
    assert one._tables is other._tables
