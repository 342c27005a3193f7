"""A space in SQLite against plain sqlite3 on the same tables, and reading the past at any depth of history.

The plain contestant does only what the tables need, with the same pragmas and the same SQL:
- A transaction is one BEGIN IMMEDIATE: the end of the log, one commit, revisions, heads, the branch, and a snapshot of
  an entity as often as the space makes one. It knows from counters in memory when that is due, and applies patches only
  then. It does not look for repeated transactions or other writers, and checks neither JSON nor limits, nor whether a
  patch fits.
- A read is one BEGIN: head, nearest snapshot, revisions after it, patches applied by the same function. It caches
  nothing, and does not look for the newest commit.

Both write the same rows side by side into databases that grow equally (this is checked at the end), and give the same
answers. A cold read is a read by a space without cached documents; SQLite's pages are in memory for both. Numbers are
processor time of the process; a ratio is the median over all rounds, in which both take turns.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import sqlite3
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import truediv
from pathlib import Path

import orjson

from scripts.benchmarks._space_s3 import measured
from worm.clock import SystemClock
from worm.formats.strict_json import JsonObject, JsonValue
from worm.spaces import sqlite_schema as sql
from worm.spaces.json_patch import apply_patches
from worm.spaces.operations import SpaceConfig
from worm.spaces.rows import PATCH, SET, time_text
from worm.spaces.space import Space
from worm.spaces.sqlite_backend import SqliteBackend
from worm.spaces.sqlite_schema import connect

ENTITIES = 500
PATCHES = 8
DEPTHS = (1, 100, 10_000)
RATIO_MAX = 1.5
SAME = {
    "commit": "seq, branch, session_id, local_seq, original, resolution",
    "revision": "branch, id, seq, op_index, op, data, commit_seq",
    "head": "branch, id, seq, op_index",
    "snapshot": "branch, id, seq, value",
    "branch": "name, parent_branch, fork_seq, created_seq, head_seq, status",
}
"""What must be equal in both databases: everything except times."""

Contestants = dict[str, Callable[[], object]]
Making = Callable[[int, int, int], list[JsonObject]]


def turns(contestants: Contestants, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of processor time in each round; all have a warm-up turn, and every round has another order."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        call()
    for turn in range(rounds):
        for name in random.Random(turn).sample(list(contestants), len(contestants)):
            gc.collect()
            start = time.process_time()
            contestants[name]()
            taken[name].append((time.process_time() - start) * 1000)
    return taken


def document(number: int) -> JsonObject:
    text = "The quick brown fox. " * 8
    return {"value": {"count": number, "name": f"Acme {number}", "tags": ["a", "b"], "text": text}}


class Plain:
    """The tables without a space. Every operation of a transaction is on another entity."""

    def __init__(self, path: Path) -> None:
        self._clock = SystemClock()
        self.connection = connect(path, self._clock, create=True, factory=sqlite3.Connection)
        first = {"name": "", "parent_branch": None, "fork_seq": None, "created_seq": 0, "head_seq": 0, "created_at": ""}
        self.connection.execute(sql.INSERT_BRANCH, first)
        self._config = SpaceConfig()
        self._depths: Counter[str] = Counter()
        self._patches: Counter[str] = Counter()

    def transact(self, ops: list[JsonObject], local_seq: int) -> None:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        seq = (execute(sql.SELECT_NEWEST).fetchone() or (0,))[0] + 1
        reads: JsonObject = {"confirmed": [], "pending": []}
        original = {"localSeq": local_seq, "reads": reads, "operations": ops}
        commit = {"seq": seq, "branch": "", "session_id": "bench", "local_seq": local_seq}
        commit |= {"original_json": _text(original), "created_at": time_text(self._clock.now())}
        commit |= {"resolution_json": _text({"seq": seq, "resolvedPendingReads": []})}
        execute(sql.INSERT_COMMIT, commit)
        rows = [
            {"branch": "", "id": op["id"], "seq": seq, "op_index": at, "op": op["op"], "data_json": _data(op)}
            for at, op in enumerate(ops)
        ]
        self.connection.executemany(sql.INSERT_REVISION, rows)
        self.connection.executemany(sql.UPSERT_HEAD, rows)
        for op in ops:
            self._count(str(op["id"]), str(op["op"]), seq)
        execute(sql.ADVANCE_BRANCH, {"head_seq": seq, "name": ""})
        execute("COMMIT")

    def read(self, id: str) -> JsonObject:
        self.connection.execute("BEGIN")
        value = self._read(id)
        self.connection.execute("COMMIT")
        return value

    def _count(self, id: str, op: str, seq: int) -> None:
        """A snapshot where it is due."""
        self._depths[id] += 1
        self._patches[id] = self._patches[id] + 1 if op == PATCH else 0
        if self._depths[id] >= self._config.snapshot_every or self._patches[id] > self._config.replay_depth_max:
            snapshot = {"branch": "", "id": id, "seq": seq, "value_json": _text(self._read(id))}
            self.connection.execute(sql.INSERT_SNAPSHOT, snapshot)
            self._depths[id] = self._patches[id] = 0

    def _read(self, id: str) -> JsonObject:
        execute, key = self.connection.execute, {"branch": "", "id": id}
        seq, _ = execute(sql.SELECT_HEAD, key).fetchone()
        found = execute(sql.SELECT_SNAPSHOT, {**key, "target_seq": seq}).fetchone()
        base, text = (0, "{}") if found is None else found
        rows = execute(sql.SELECT_REVISIONS, {**key, "base_seq": base, "target_seq": seq}).fetchall()
        at = len(rows)
        while at and rows[at - 1][2] == PATCH:
            at -= 1
        value: JsonObject = orjson.loads(rows[at - 1][3] if at else text)
        for row in rows[at:]:
            value = apply_patches(value, orjson.loads(row[3]))
        return value


def tables(connection: sqlite3.Connection) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: connection.execute(f'SELECT {columns} FROM "{name}" ORDER BY 1, 2, 3').fetchall()
        for name, columns in SAME.items()
    }


def _text(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _data(op: JsonObject) -> str:
    return _text(op["value"] if op["op"] == SET else op["patches"])


def whole(number: int, size: int, entities: int = ENTITIES) -> list[JsonObject]:
    return [{"op": "set", "id": f"e{(number * size + at) % entities}", "value": document(number)} for at in range(size)]


def patches(number: int, size: int, entities: int = ENTITIES) -> list[JsonObject]:
    patch: list[JsonValue] = [{"op": "replace", "path": "/value/count", "value": number}]
    return [{"op": "patch", "id": f"e{(number * size + at) % entities}", "patches": patch} for at in range(size)]


def _made(make: Making, size: int, entities: int, number: int) -> list[JsonObject]:
    return make(number, size, entities)


def writing(scratch: Path, count: int, rounds: int) -> dict[str, object]:
    """Microseconds of a transaction; a fresh pair of databases for each kind."""
    told: dict[str, object] = {}
    kinds: dict[str, tuple[Making, int, int]] = {
        "set_1": (whole, 1, ENTITIES),
        "set_10": (whole, 10, 200),  # few enough that all get snapshots during the measurement
        "patch_1": (patches, 1, 40),
    }
    for name, (make, size, entities) in kinds.items():
        path = scratch / f"{name}.sqlite"
        plain, space = Plain(scratch / f"{name}-plain.sqlite"), Space(SqliteBackend(path))
        plain.transact(whole(0, entities, entities), 0)
        space.transact(whole(0, entities, entities), session_id="bench", local_seq=0)
        one = partial(_made, make, size, entities)

        def by_hand(plain: Plain, make: Callable[[int], list[JsonObject]], numbers: itertools.count[int]) -> None:
            for number in itertools.islice(numbers, count):
                plain.transact(make(number), number)

        def by_space(space: Space, make: Callable[[int], list[JsonObject]], numbers: itertools.count[int]) -> None:
            for number in itertools.islice(numbers, count):
                space.transact(make(number), session_id="bench", local_seq=number)

        contestants: Contestants = {
            "plain": partial(by_hand, plain, one, itertools.count(1)),
            "space": partial(by_space, space, one, itertools.count(1)),
        }
        told[name] = _compared(turns(contestants, rounds), count)
        space.close()
        if tables(plain.connection) != tables(connect(path, SystemClock(), create=False, factory=sqlite3.Connection)):
            raise RuntimeError(f"{name}: the rows are not the same")
    return told


def reading(scratch: Path, count: int, rounds: int) -> dict[str, object]:
    """Microseconds of a read of the current state; the space both with its cache and without."""
    told: dict[str, object] = {}
    kinds: dict[str, tuple[Making, int]] = {
        "whole": (whole, 4),
        "patched": (patches, PATCHES + 1),
    }
    ids = [f"e{number % ENTITIES}" for number in range(count)]
    for name, (make, times) in kinds.items():
        plain, path = Plain(scratch / f"{name}-plain.sqlite"), scratch / f"{name}.sqlite"
        space, forgetful = Space(SqliteBackend(path)), Space(SqliteBackend(path), SpaceConfig(cache_bytes=0))
        for number in range(times):
            ops = (make if number else whole)(number, ENTITIES, ENTITIES)
            plain.transact(ops, number)
            space.transact(ops, session_id="bench", local_seq=number)
        if any(not plain.read(one) == space.read(one).value == forgetful.read(one).value for one in ids):
            raise RuntimeError(f"{name}: contestants do not agree")
        contestants: Contestants = {
            "plain": partial(_each, plain.read, ids),
            "space": partial(_each, forgetful.read, ids),
            "space_remembering": partial(_each, space.read, ids),
            "space_many": partial(forgetful.read_many, ids),
        }
        told[name] = _compared(turns(contestants, rounds), count)
        for one in (space, forgetful):
            one.close()
    return told


def _each(read: Callable[[str], object], ids: list[str]) -> None:
    for one in ids:
        read(one)


def past(scratch: Path, count: int, rounds: int) -> dict[str, object]:
    """Microseconds of a read this many revisions back, of one entity with 10,000 patches; the number of statements is
    constant."""
    space = Space(SqliteBackend(scratch / "past.sqlite"), SpaceConfig(cache_bytes=0))
    writer = Space(SqliteBackend(scratch / "past.sqlite"))
    writer.transact([{"op": "set", "id": "e0", "value": document(0)}])
    for number in range(1, DEPTHS[-1] + 1):
        writer.transact([{**patches(number, 1)[0], "id": "e0"}])
    newest = writer.seq
    contestants: Contestants = {
        str(depth): partial(lambda at: [space.read("e0", at=at) for _ in range(count)], newest - depth)
        for depth in DEPTHS
    }
    taken = turns(contestants, rounds)
    for one in (space, writer):
        one.close()
    return {"us_at_depth": _microseconds(taken, count)}


def _microseconds(taken: dict[str, list[float]], count: int) -> dict[str, float]:
    """Milliseconds of `count` calls as microseconds of one, the median of all rounds."""
    return {name: round(statistics.median(values) * 1000 / count, 1) for name, values in taken.items()}


def _compared(taken: dict[str, list[float]], count: int) -> dict[str, object]:
    """Compared with the times of the plain contestant in the same rounds."""
    ratios = {
        name: round(statistics.median(map(truediv, values, taken["plain"])), 2)
        for name, values in taken.items()
        if name != "plain"
    }
    told: dict[str, object] = {"us": _microseconds(taken, count), "times_plain": ratios}
    return told | {"within_goal": {name: one <= RATIO_MAX for name, one in ratios.items()}}


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench space")
    parser.add_argument("--count", type=int, default=200, help="transactions or reads in a turn")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--part", choices=("sqlite", "s3"), help="one backend only")
    parser.add_argument("--quick", action="store_true", help="s3 only: fewer turns, and no depth of 10,000")
    chosen = parser.parse_args(arguments)
    on_s3: dict[str, object] = {} if chosen.part == "sqlite" else {"s3": measured(quick=chosen.quick)}
    return on_s3 if chosen.part == "s3" else on_s3 | in_sqlite(chosen.count, chosen.rounds)


def in_sqlite(count: int, rounds: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch:
        return {
            "transact": writing(Path(scratch), count, rounds),
            "read": reading(Path(scratch), count, rounds),
            "past": past(Path(scratch), count, rounds),
        }
