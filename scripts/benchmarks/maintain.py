"""What keeping tables costs: folds by 1, 10, 100 and 1,000 changes against a raw GET and PUT, and bytes per change.

- `fold`: a warm worker folds changes into manifest, index and heads of a table; the floor is one GET and one
  conditional PUT of the whole manifest, unparsed. In memory and on the embedded moto, taking turns.
- `growth`: bytes written per change in the long run, in memory, from 1,000 to 1,000,000 entities: see `_growth.py`.
  Up to `partitionThreshold` every fold writes the whole table; beyond it, the bytes must not grow with the table.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from scripts.benchmarks import _customers as customers
from scripts.benchmarks._growth import HEADS, MANIFEST, Growth
from scripts.benchmarks._turns import Call, embedded_s3, medians, rounded, spent
from worm.store.base import Store, Won
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store

BUCKET = "maintain"
BATCHES = (1, 10, 100, 1_000)
ROWS = (1_000, 10_000)
NEW_WORKER = "100 by a new worker"
LARGE = 1_000_000
LARGE_SECONDS_MAX = 90.0


class Folding:
    """A table in one file on its own store, and batches of one size for it; folded by one worker, or each by a new one.

    The changes are made before anything is timed.
    """

    def __init__(self, store: Store, rows: int, size: int, repeats: int, *, is_new: bool = False) -> None:
        self.store = store
        self._schema = customers.schema()
        self._is_new = is_new
        self._table = customers.session(store, self._schema).table
        self._table.manifest.update(lambda _: customers.manifest(rows, self._schema))
        self._table.heads.update(lambda _: customers.heads(rows))
        self._table.complete()
        writes, chance = customers.Writes(), random.Random(rows)
        # One extra turn before the timed ones, and one whose requests are counted.
        samples = (chance.sample(range(rows), size) for _ in range(repeats + 2))
        self._batches = deque(list(writes.changes(numbers)) for numbers in samples)

    def fold(self) -> None:
        changes = self._batches.popleft()
        table = customers.session(self.store, self._schema).table if self._is_new else self._table
        table.fold(changes)
        newest, known = changes[0].head, table.manifest.among([changes[0].id])
        if newest is None or known is None or known.seqs[changes[0].id] != newest.seq:
            raise RuntimeError("the fold left a change out")


class Floor:
    """One GET and one conditional PUT of the same bytes."""

    def __init__(self, store: Store, rows: int) -> None:
        self._store = store
        store.put("manifest.json", customers.manifest(rows, customers.schema()).encode())

    def turn(self) -> None:
        found = self._store.get("manifest.json")
        if found is None:
            raise RuntimeError("the floor's file is gone")
        outcome = self._store.put_if_match(found.key, found.body, found.etag)
        if not isinstance(outcome, Won):
            raise RuntimeError(f"the floor's own write was lost: {outcome}")


def folds(new_store: Callable[[str], Store], rows: int, repeats: int) -> dict[str, object]:
    """Every contestant has its own table: otherwise the writes of one would make another read again."""
    tables = {f"{size}": Folding(new_store(f"{size}"), rows, size, repeats) for size in BATCHES}
    tables[NEW_WORKER] = Folding(new_store("new"), rows, 100, repeats, is_new=True)
    calls: dict[str, Call] = {"floor": Floor(new_store("floor"), rows).turn}
    times = medians({**calls, **{name: table.fold for name, table in tables.items()}}, repeats)
    floor = times.pop("floor")
    requests = {name: spent(table.store.requests, table.fold)["total"] for name, table in tables.items()}
    return {
        "floor_ms": round(floor, 2),
        "fold_ms": rounded(times),
        "fold_ms / floor_ms": rounded({name: taken / floor for name, taken in times.items()}),
        "changes_per_second": {f"{size}": round(size * 1000 / times[f"{size}"], 1) for size in BATCHES},
        "requests_per_fold": requests,
        "requests_per_change": {f"{size}": round(requests[f"{size}"] / size, 4) for size in BATCHES},
    }


def growth(cases: Sequence[tuple[int, int, int]]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for count, threshold, batch in cases:
        table = Growth(count, threshold, batch)
        told = table.run(LARGE_SECONDS_MAX)
        del table
        gc.collect()
        told["memory_max_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        found.append(told)
        parts = {name: cast("dict[str, object]", told[name])["bytes_written_per_change"] for name in (MANIFEST, HEADS)}
        about = f"{count} entities, threshold {threshold}, batches of {batch}"
        print(f"{about}: bytes written per change {parts}", file=sys.stderr)
    return found


def _part_of_bucket(endpoint_url: str, rows: int, name: str) -> Store:
    return S3Store(BUCKET, f"{rows}-{name}", endpoint_url=endpoint_url)


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench maintain")
    parser.add_argument("--quick", action="store_true", help="fewer turns, and nothing larger than 100,000")
    quick = parser.parse_args(arguments).quick
    repeats = 3 if quick else 15
    fold: dict[str, object] = {}
    with embedded_s3(BUCKET) as aws:
        for rows in ROWS:
            fold[f"memory, {rows} rows"] = folds(lambda _: MemoryStore(), rows, repeats)
            fold[f"moto, {rows} rows"] = folds(partial(_part_of_bucket, aws.endpoint_url, rows), rows, repeats)
    cases = [(1_000, 10_000, 100), (10_000, 10_000, 100), (10_000, 1_000, 1), (10_000, 1_000, 10), (10_000, 1_000, 100)]
    cases += [(100_000, 10_000, 100)] if quick else [(100_000, 10_000, 100), (LARGE, 10_000, 100)]
    return {"fold": fold, "growth": growth(cases)}
