"""Streams of changes on Spark: what it shows, and that kills of driver and executors lose and repeat nothing.

`WORM_STREAM_KILLS` is the number of kills (5): two of executors, then one of their driver, and so on. About half of the
drivers have executors that are processes of their own; in the others, Python workers are killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.emulators import CREDENTIALS, ROOT
from tests.spark.session import CLUSTER, PYTHON_PATH
from tests.spark.source_room import SourceRoom
from tests.spark.stream_drive import LIMIT, REPLICA
from worm.collections.entries import Change
from worm.spark.source import register
from worm.tables.build import entity_changes

KILLS = int(os.environ.get("WORM_STREAM_KILLS", "5"))
PYTHON = os.environ.get("WORM_SPARK40_PYTHON") or sys.executable
STEP_SECONDS = 240.0
CHANGES = 25
"""What the programs do between two kills."""
EXECUTORS = 2
"""Kills of executors, or of their Python workers, before the kill of their driver."""


def test_spark_shows_changes_and_streams_them_into_another_bucket(spark: SparkSession, tmp_path: Path) -> None:
    rooms = [SourceRoom(f"file://{tmp_path}/{name}") for name in ("bucket", "other")]
    room, other = rooms
    for number in range(6):
        room.things.save({"id": f"a{number}", "name": f"n{number}", "since": "2026-01-01T00:00:00Z"})
    room.things.patch("a1", {"name": "x"})
    room.things.delete("a2")
    register(spark)

    shown = room.frame(spark, changes="true", filter='{"name": {"$ne": "n4"}}', partitions="false").collect()
    assert [(row.id, row.seq, row.op) for row in shown] == [
        ("a0", 1, "create"),
        ("a1", 1, "create"),
        ("a1", 2, "update"),
        ("a2", 1, "create"),
        ("a2", 2, "delete"),
        ("a3", 1, "create"),
        ("a5", 1, "create"),
    ]
    assert [None if row.before is None else row.before.name for row in shown[1:5]] == [None, "n1", None, "n2"]
    assert [None if row.after is None else row.after.name for row in shown[1:5]] == ["n1", "x", "n2", None]

    batches: list[list[tuple[str, int]]] = []

    def keep(frame: object, number: int) -> None:
        batches.append([(row.id, row.seq) for row in frame.collect()])  # type: ignore[attr-defined]  # of Connect or not

    def run(first: int = 0) -> None:
        changes = spark.readStream.format("worm").options(**room.options(changes="true", maxChangesPerTrigger="5"))
        loaded = changes.load()
        kept = loaded.writeStream.foreachBatch(keep).option("checkpointLocation", f"{tmp_path}/kept")
        sunk = loaded.selectExpr(*REPLICA).writeStream.format("worm").options(**other.options())
        for one in [kept, sunk.option("checkpointLocation", f"{tmp_path}/sunk")][first:]:
            query = one.trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            assert query.exception() is None

    run()
    assert list(map(len, batches)) == [5, 3]
    room.things.patch("a0", {"name": "y"})
    room.things.delete("a5")
    run(first=1)
    assert {one["id"]: one["name"] for one in other.things.find_all()} == {
        one["id"]: one["name"] for one in room.things.find_all()
    }
    assert other.histories() == room.histories()


# Kills


@dataclass
class Writers:
    """Programs that change documents while `due` is not used up, and workers that fold late and again."""

    room: SourceRoom
    rng: random.Random
    due: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    known: list[list[Change]] = field(default_factory=list)

    def run(self) -> None:
        while not self.done.wait(self.rng.uniform(0.02, 0.1)):
            if self.due > 0:
                self.due -= 1
                self.step()

    def step(self) -> None:
        one, things = f"t{self.rng.randrange(30):02d}", self.room.things
        if things.find_by_id(one) is None:
            things.save({"id": one, "name": f"n{self.rng.randrange(1000)}"})
        elif self.rng.random() < 0.15:
            things.delete(one)
        else:
            things.patch(one, {"name": f"n{self.rng.randrange(10**9)}"})
        if self.rng.random() < 0.3:
            self.known.append(entity_changes(self.room.spec.collection(), [one]))
        if self.known and self.rng.random() < 0.3:
            self.room.session.table("Thing").fold(self.rng.choice(self.known))


@dataclass
class Driver:
    """The process with the queries, and everything that it started."""

    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, master: str, room: SourceRoom, other: SourceRoom, scratch: Path, number: int) -> Driver:
        command = [PYTHON, "-m", "tests.spark.stream_drive", master, room.url, other.url, str(scratch)]
        log = scratch / f"driver-{number}.log"
        environment = {**os.environ, **CREDENTIALS, "PYTHONPATH": PYTHON_PATH}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
            )
        return cls(process, log)

    def pids(self, of: bytes = b"") -> list[int]:
        """The processes of its session whose command line has this text."""
        return [pid for pid, line in _commands() if of in line and _session(pid) == self.process.pid]

    def kill(self) -> bool:
        """Whether it lived until now."""
        is_alive = self.process.poll() is None
        for pid in [self.process.pid, *self.pids()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)
        return is_alive

    def kill_executor(self, rng: random.Random) -> str | None:
        """An executor, or one of its Python workers. Returns which; None: there is none now."""
        for kind, command in (("executor", b"CoarseGrainedExecutorBackend"), ("worker", b"pyspark.daemon")):
            found = self.pids(command)
            if found:
                try:
                    os.kill(rng.choice(found), signal.SIGKILL)
                except ProcessLookupError:
                    return None
                return kind
        return None


def _commands() -> Iterator[tuple[int, bytes]]:
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(one.name), (one / "cmdline").read_bytes()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def count(scratch: Path) -> int:
    return len(list(scratch.glob("batch-*")))


def lived_through(driver: Driver, writers: Writers, scratch: Path, wanted: int) -> Counter[str]:
    """Kill this many executors between batches, while documents change. Returns what was killed. The driver is left
    running, unless it ended by itself: on a busy machine, Spark may wait too long for a Python process."""
    killed: Counter[str] = Counter()
    while True:
        before = count(scratch)
        writers.due += CHANGES
        until = time.monotonic() + STEP_SECONDS
        while count(scratch) <= before:
            assert time.monotonic() < until, driver.log.read_text()[-3000:]
            if driver.process.poll() is not None:
                return killed
            time.sleep(0.05)
        time.sleep(writers.rng.uniform(0, 1.0))
        if killed.total() >= wanted:
            return killed
        kind = driver.kill_executor(writers.rng)
        if kind is not None:
            killed[kind] += 1


@pytest.mark.slow
@pytest.mark.timeout(600 + 120 * KILLS)
def test_kills_of_driver_and_executors_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """On the Spark of EMR if it is installed. The last driver runs to the end."""
    manifest = {"enabled": True, "partitionThreshold": 10}
    room = SourceRoom(f"file://{tmp_path}/bucket", manifest=manifest)
    other = SourceRoom(f"file://{tmp_path}/other")
    scratch, rng, kills = tmp_path / "scratch", random.Random(KILLS), Counter[str]()
    scratch.mkdir()
    writers = Writers(room, rng)
    thread = threading.Thread(target=writers.run)
    thread.start()
    try:
        for number in range(2 * KILLS + 4):
            left = KILLS - kills.total()
            if left <= 0:
                writers.done.set()
                thread.join()
                (scratch / "stop").touch()
            master = CLUSTER if kills["executor"] <= kills["worker"] else "local[2,8]"
            driver = Driver.start(master, room, other, scratch, number)
            try:
                if left <= 0 and driver.process.wait(STEP_SECONDS) == 0:
                    break
                if left > 0:
                    kills += lived_through(driver, writers, scratch, min(EXECUTORS, left - 1))
            finally:
                kills["driver"] += driver.kill()
        else:
            raise AssertionError("too many drivers ended by themselves")
    finally:
        writers.done.set()
        thread.join()
    check_kept(room, scratch)
    check_replica(room, other)
    assert kills.total() >= KILLS
    assert KILLS < 5 or min(kills[kind] for kind in ("driver", "executor", "worker")) >= KILLS // 5, kills


def check_kept(room: SourceRoom, scratch: Path) -> None:
    """Every change once, in order per document."""
    told: dict[str, list[int]] = {}
    for one in sorted(scratch.glob("batch-*")):
        rows = json.loads(one.read_text())
        assert len(rows) <= LIMIT
        for entity_id, seq, _ in rows:
            told.setdefault(entity_id, []).append(seq)
    assert told == {one: list(range(1, len(ops) + 1)) for one, ops in room.histories().items()}


def check_replica(room: SourceRoom, other: SourceRoom) -> None:
    """The same documents; their history has each change at most once, in order."""
    assert {one["id"]: one.get("name") for one in other.things.find_all()} == {
        one["id"]: one.get("name") for one in room.things.find_all()
    }
    for one, ops in other.histories().items():
        states = [other.things.get_at(one, seq=seq) for seq in range(1, len(ops) + 1)]
        wanted = iter([room.things.get_at(one, seq=seq) for seq in range(1, len(room.histories()[one]) + 1)])
        assert all(any(_name(state) == _name(candidate) for candidate in wanted) for state in states)


def _name(state: object) -> object:
    return None if state is None else state["name"]  # type: ignore[index]  # a document
