"""The commit log written by real processes that are stopped, woken and killed: rows of RELIABILITY.md §4, ring K."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulators import CREDENTIALS, ROOT, new_bucket
from tests.log.witness import Witness, records
from worm.dev.aws import Aws
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.log.segment import Segment
from worm.store.base import Store
from worm.store.file import FileStore
from worm.store.s3 import S3Store

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_environment"), pytest.mark.xdist_group("log-processes")]

KEYS = DbKeys("main")
LOOPS = int(os.environ.get("WORM_KILLS", "100"))
FOR_EVER = 1_000_000
WAIT_SECONDS = 60.0
AGE = 0.5
"""Slots are collected at this age, and a second: times of S3 are whole."""


class Started:
    """A process that writes, and what it printed."""

    def __init__(self, processes: Processes, pid: int, name: str, output: Path) -> None:
        self.pid = pid
        self.name = name
        self._processes = processes
        self._output = output

    def wait(self) -> str:
        return self._processes.wait(self.pid)[1]

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == "killed 9"

    @property
    def lines(self) -> list[str]:
        text = self._output.read_text()
        return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]

    @property
    def epoch(self) -> int:
        return int(self.lines[0].removeprefix("open "))

    @property
    def acked(self) -> dict[str, int]:
        found = (re.fullmatch(r"ack (\d+) (\d+)", line) for line in self.lines)
        return {f"{self.name}-{one[1]}": int(one[2]) for one in found if one is not None}

    @property
    def ending(self) -> str:
        """`done`, or the name of the error."""
        return self.lines[-1].partition(" ")[0]


class Processes:
    """A server that forks writers: one starts in milliseconds."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WORM_"))}
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.log.log_process", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**inherited, "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}", **CREDENTIALS, **environment},
        )
        self._running: set[int] = set()
        self._count = 0

    def start(self, url: str, name: str, count: int = FOR_EVER, **environment: str) -> Started:
        self._count += 1
        output = self._folder / f"{name}-{self._count}.out"
        output.touch()
        order = {"do": "start", "arguments": [url, "main", name, str(count)], "environment": environment}
        pid = self._ask({**order, "output": str(output)})
        assert isinstance(pid, int)
        self._running.add(pid)
        return Started(self, pid, name, output)

    def wait(self, pid: int = -1) -> tuple[int, str]:
        found = self._ask({"do": "wait", "pid": pid})
        assert isinstance(found, list)
        if found[1] != "stopped":
            self._running.discard(found[0])
        return found[0], found[1]

    def _ask(self, order: dict[str, object]) -> object:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def close(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        self._server.communicate(timeout=WAIT_SECONDS)


class Database:
    """Where the processes write, and a look at it that shares nothing with them."""

    def __init__(self, url: str, store: Store, processes: Processes) -> None:
        self.url = url
        self.store = store
        self._processes = processes

    def start(self, name: str, count: int = FOR_EVER, **environment: str) -> Started:
        return self._processes.start(self.url, name, count, **environment)

    def stopped(self, name: str, point: str, **environment: str) -> Started:
        """A process that waits at this point."""
        started = self.start(name, FOR_EVER, WORM_STOP_AT=point, **environment)
        assert started.wait() == "stopped"
        return started

    def finished(self, name: str, count: int, **environment: str) -> Started:
        started = self.start(name, count, **environment)
        assert (started.wait(), started.ending) == ("exited 0", "done")
        return started

    def wait_any(self) -> tuple[int, str]:
        return self._processes.wait()

    def segments(self) -> list[Segment]:
        """All that is kept; reading proves that nothing is missing."""
        return list(LogReader(self.store, "main").segments())

    def collect(self, upto: int, min_age: float) -> int:
        config = LogConfig(gc_min_age_seconds=min_age)
        return LogCollector(self.store, "main", config=config).run(upto).boundary

    def collect_when_old(self, upto: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while (boundary := self.collect(upto, min_age=AGE)) != upto:
            assert boundary < upto
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def check(self, *all_started: Started, unknown: dict[str, int] | None = None) -> dict[str, int]:
        """I1 and I2. `unknown`: the number of the one transaction of a process that may be there or not."""
        witness = Witness()
        for one in all_started:
            witness.acked |= one.acked
        witness.acked = dict(sorted(witness.acked.items(), key=lambda item: item[1]))
        in_flight = {f"{name}-{number}" for name, number in (unknown or {}).items()}
        numbers = {txn: int(txn.rpartition("-")[2]) for txn in (*witness.acked, *in_flight)}
        witness.asked = {txn: records(number, size=2) for txn, number in numbers.items()}
        witness.unknown = in_flight - witness.acked.keys()
        earliest = LogReader(self.store, "main").earliest()
        return witness.check(self.store, kept=[txn for txn, lsn in witness.acked.items() if lsn >= earliest])


@pytest.fixture
def processes(tmp_path: Path, moto: Aws) -> Iterator[Processes]:
    (tmp_path / "out").mkdir()
    started = Processes(tmp_path / "out", {"AWS_ENDPOINT_URL": moto.endpoint_url})
    yield started
    started.close()


@pytest.fixture(params=["files", "moto"])
def database(request: pytest.FixtureRequest, tmp_path: Path, moto: Aws, processes: Processes) -> Database:
    if request.param == "files":
        return Database(str(tmp_path / "data"), FileStore(tmp_path / "data"), processes)
    bucket = new_bucket(moto.endpoint_url)
    return Database(f"s3://{bucket}", S3Store(bucket, endpoint_url=moto.endpoint_url), processes)


def wait_for_acks(started: Started, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while len(started.acked) < count:
        assert time.monotonic() < deadline, started.lines
        time.sleep(0.005)


def test_the_program_prints_what_it_did(database: Database) -> None:
    one = database.finished("a", 3)
    assert one.lines == ["open 1", "ack 1 4", "ack 2 7", "ack 3 10", "done"]
    assert database.check(one) == {"a-1": 4, "a-2": 7, "a-3": 10}


@pytest.mark.parametrize("point", ["before-lease:1", "after-lease:1", "before-put:1"])
def test_f11_of_two_that_open_at_once_one_serves_and_the_other_is_fenced(database: Database, point: str) -> None:
    both = [database.stopped(name, point, WORM_PACE="0.02") for name in ("a", "b")]
    for one in both:
        one.go_on()
    pid, how = database.wait_any()
    assert how == "exited 0"
    loser, survivor = both if both[0].pid == pid else both[::-1]
    assert loser.ending == "Fenced"
    wait_for_acks(survivor, len(survivor.acked) + 5)
    survivor.kill()
    database.check(loser, survivor, unknown={survivor.name: len(survivor.acked) + 1})
    epochs = [one.epoch for one in database.segments()]
    assert epochs == sorted(epochs)
    assert epochs[-1] == survivor.epoch == 2


def test_f11_a_writer_that_is_never_idle_can_be_taken_over(database: Database) -> None:
    """It is always quicker than who comes: one request a slot, against a try and a look."""
    busy = database.start("busy")
    wait_for_acks(busy, 5)
    new = database.finished("new", 3)
    assert (busy.wait(), busy.ending) == ("exited 0", "Fenced")
    database.check(busy, new)


@pytest.mark.parametrize(("point", "acks"), [("before-put:2", 0), ("before-put:4", 2)])
def test_f12_a_writer_that_slept_through_a_take_over_is_fenced(database: Database, point: str, acks: int) -> None:
    old = database.stopped("old", point)
    new = database.finished("new", 3)
    old.go_on()
    assert (old.wait(), old.ending, len(old.acked)) == ("exited 0", "Fenced", acks)
    assert len(database.check(old, new)) == acks + 3


def test_f12_what_landed_before_the_take_over_is_acknowledged_after_it(database: Database) -> None:
    old = database.stopped("old", "after-put:3")
    assert len(old.acked) == 1
    new = database.finished("new", 2)
    old.go_on()
    assert (old.wait(), old.ending, len(old.acked)) == ("exited 0", "Fenced", 2)
    assert len(database.check(old, new)) == 4


def test_f13_a_writer_that_slept_through_take_over_and_collection_never_acknowledges(database: Database) -> None:
    """Acceptance test number one. The slot that it writes was collected, so the store says yes."""
    old = database.stopped("old", "before-put:4", WORM_GC_MIN_AGE=str(AGE))
    new = database.finished("new", 4, WORM_GC_MIN_AGE=str(AGE))
    slot = len(old.acked) + 2
    taken = database.store.get(KEYS.slot(slot))
    assert taken is not None
    assert Segment.decode(taken.body, slot, taken.key).kind == "fence"
    database.collect_when_old(slot + 1)
    assert database.store.get(KEYS.slot(slot)) is None
    old.go_on()
    assert (old.wait(), old.ending, len(old.acked)) == ("exited 0", "CommitStateUnknown", 2)
    stray = database.store.get(KEYS.slot(slot))
    assert stray is not None, "the store took what must not be acknowledged"
    assert b"old-3" in stray.body
    assert database.check(old, new).keys() == {"new-2", "new-3", "new-4"}
    after = database.finished("after", 1)
    assert database.collect(slot + 1, min_age=AGE) == slot + 1
    assert database.store.get(KEYS.slot(slot)) is None
    assert database.check(old, new, after).keys() == {"new-2", "new-3", "new-4", "after-1"}


def test_f13_an_opening_that_slept_through_take_over_and_collection_serves_nobody(database: Database) -> None:
    """Its fence lands in a collected slot; a second one behind the newer writer would make epochs fall."""
    old = database.stopped("old", "before-put:1", WORM_GC_MIN_AGE=str(AGE))
    new = database.finished("new", 4, WORM_GC_MIN_AGE=str(AGE))
    database.collect_when_old(3)
    old.go_on()
    assert (old.wait(), old.ending) == ("exited 0", "Fenced")
    after = database.finished("after", 1)
    assert database.check(old, new, after).keys() == {"new-3", "new-4", "after-1"}


@pytest.mark.parametrize(
    "point", ["after-lease:1", "after-put:1"], ids=["lease without fence", "fence without serving"]
)
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_f14_a_third_writer_opens_where_a_second_did_not_finish(
    database: Database, point: str, is_killed: bool
) -> None:
    first = database.stopped("first", "before-put:3")
    second = database.stopped("second", point)
    if is_killed:
        second.kill()
    third = database.finished("third", 2)
    assert third.epoch == 3
    if not is_killed:
        second.go_on()
        assert (second.wait(), second.ending) == ("exited 0", "Fenced")
        assert len(second.lines) == 1  # it never said that it is open
    first.go_on()
    assert (first.wait(), first.ending, len(first.acked)) == ("exited 0", "Fenced", 1)
    assert database.check(first, second, third).keys() == {"first-1", "third-1", "third-2"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["after-put", "after-ack"])
def test_f16_kill_9_loses_no_acknowledged_commit_and_tears_none(database: Database, point: str) -> None:
    """Experiment 4: (a) after the compare-and-swap, before the ack; (b) after the ack, before anything else."""
    loops = LOOPS // 4  # of the four runs: two points, two stores
    all_started, unknown = [], {}
    for loop in range(loops):
        number = 1 + loop % 3
        crash_at = f"after-put:{number + 1}" if point == "after-put" else f"after-ack:{number}"
        started = database.start(f"w{loop}", WORM_CRASH_AT=crash_at)
        assert started.wait() == "killed 9"
        acked = number - 1 if point == "after-put" else number
        assert len(started.acked) == acked
        all_started.append(started)
        unknown[started.name] = acked + 1
        if loop % 25 == 24:
            database.check(*all_started, unknown=unknown)
    found = database.check(*all_started, unknown=unknown)
    landed = loops if point == "after-put" else 0
    assert len(found) == sum(len(one.acked) for one in all_started) + landed
    assert [one.epoch for one in all_started] == list(range(1, loops + 1))
