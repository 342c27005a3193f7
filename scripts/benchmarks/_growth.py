"""The bytes that a table writes per change in the long run: changes are folded until the table has merged its base.

Random customers change. A cycle goes from a table without deltas to the merge of its base, which starts the next one:
what a cycle writes, divided by its changes, is what a change costs however long it goes on. The manifest (with its
index) and the heads are separate trees, with their own cycles. Cleaning up is not counted: it only deletes.
"""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from scripts.benchmarks import _customers as customers
from worm.clock import VirtualClock
from worm.collections.entries import ChangeSet, Heads
from worm.store.base import Attempt, Condition, Won
from worm.store.memory import MemoryStore
from worm.tables.manifest import Manifest
from worm.tables.root import Counted, Root
from worm.tables.tree import BASE_SHARE, Tree

WHOLE_BATCHES = 20
TWO_DAYS_SECONDS = 2 * 86_400
MANIFEST, HEADS = "manifest and index", "heads"
AnyTree: TypeAlias = "Tree[Manifest] | Tree[Heads]"


class Tally(MemoryStore):
    """Counts the bytes written to each tree."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.written: Counter[str] = Counter()
        self._counting = threading.Lock()

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._count(key, body)
        return super().put(key, body, metadata=metadata)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._count(key, body)
        return super().attempt_put(key, body, condition, metadata)

    def _count(self, key: str, body: bytes) -> None:
        tree = HEADS if ".worm.heads" in key else MANIFEST if ".worm.manifest" in key or ".worm.index" in key else key
        with self._counting:
            self.written[tree] += len(body)


class Cycle:
    """One tree from the merge of its base to the next."""

    def __init__(self, tree: AnyTree) -> None:
        self._tree = tree
        self._base = self._files()
        self.merges = 0
        self.deltas_max = 0
        self.files_max = 1
        self.measured: tuple[int, int] | None = None

    @property
    def root(self) -> Root[Counted] | None:
        return self._tree.held_spread

    @property
    def is_due(self) -> bool:
        return self.root is not None and self.root.delta_size * BASE_SHARE >= self.root.base_size

    @property
    def is_over(self) -> bool:
        return self.root is None or self.merges > 0

    def look(self, changes: int, written: int) -> None:
        """Called after a fold: check whether the base was merged, and how many files there are."""
        if self.root is None:
            self.measured = changes, written
            return
        files = self._files()
        self.deltas_max = max(self.deltas_max, len(self.root.deltas))
        directory = 0 if self.root.directory is None else 1
        self.files_max = max(self.files_max, 1 + directory + len(files) + len(self.root.deltas))
        if files != self._base:
            self._base, self.merges = files, self.merges + 1
            self.measured = changes, written

    def _files(self) -> tuple[str, ...]:
        return () if self.root is None else tuple(piece.file for piece in self._tree.partitions(self.root))


class Growth:
    """One table that grows old."""

    def __init__(self, count: int, threshold: int, batch: int) -> None:
        self._clock = VirtualClock()
        self._store = Tally(self._clock)
        schema = customers.schema(threshold)
        self._table = customers.session(self._store, schema, self._clock).table
        self._table.manifest.update(lambda _: customers.manifest(count, schema))
        self._table.heads.update(lambda _: customers.heads(count))
        self._table.complete()
        self._count = count
        self._batch = batch
        self._writes = customers.Writes()
        self._random = random.Random(count)
        self.cycles = {MANIFEST: Cycle(self._table.manifest), HEADS: Cycle(self._table.heads)}
        self._changes = self._change_set_bytes = self._sweeps = 0
        self._fold_seconds = 0.0

    def run(self, seconds_max: float) -> dict[str, object]:
        """Fold until both trees have merged once, or until the time is up."""
        gc.freeze()  # keep the garbage collector away from a million rows
        try:
            return self._run(seconds_max)
        finally:
            gc.unfreeze()

    def _run(self, seconds_max: float) -> dict[str, object]:
        self._store.written.clear()
        requests, start, is_cut = Counter[str](), time.perf_counter(), False
        while not self._is_over():
            if time.perf_counter() - start > seconds_max:
                is_cut = True
                break
            with self._store.requests.measure() as spent:
                self._fold()
            requests.update({kind: number for kind, number in spent.items() if kind in ("GET", "PUT")})
        return {
            "entities": self._count,
            "partition_threshold": self._table.manifest.layout.threshold,
            "batch": self._batch,
            "changes": self._changes,
            "stopped_before_the_merge": is_cut,
            "requests_per_change": round(requests.total() / self._changes, 3),
            "changes_per_second": round(self._changes / self._fold_seconds),
            "merges_left_to_the_sweep": self._sweeps,
            **{name: self._told(name, cycle) for name, cycle in self.cycles.items()},
        }

    def _is_over(self) -> bool:
        if any(cycle.root is None for cycle in self.cycles.values()):
            return self._changes >= WHOLE_BATCHES * self._batch
        return all(cycle.is_over for cycle in self.cycles.values())

    def _fold(self) -> None:
        changes = list(self._writes.changes(self._random.sample(range(self._count), self._batch)))
        self._change_set_bytes += len(ChangeSet(customers.MODEL, changes).encode())
        start = time.perf_counter()
        self._table.fold(changes)
        if any(cycle.is_due for cycle in self.cycles.values()):  # larger than a worker merges: the sweep does
            self._table.complete()
            self._sweeps += 1
        self._fold_seconds += time.perf_counter() - start
        self._changes += self._batch
        merges = self._merges()
        for name, cycle in self.cycles.items():
            cycle.look(self._changes, self._store.written[name])
        if self._merges() != merges:
            self._clean()

    def _merges(self) -> int:
        return sum(cycle.merges for cycle in self.cycles.values())

    def _clean(self) -> None:
        """The sweep deletes files that no root has named for a day; here it runs at once, to save memory."""
        self._clock.advance(TWO_DAYS_SECONDS)
        self._table.complete()

    def _told(self, name: str, cycle: Cycle) -> dict[str, object]:
        changes, written = cycle.measured or (self._changes, self._store.written[name])
        per_change = written / changes
        change_set = self._change_set_bytes / self._changes
        return {
            "bytes_written_per_change": round(per_change),
            "write_amplification": round(per_change / change_set, 2),
            "changes_in_the_cycle": changes,
            "merges_of_the_base": cycle.merges,
            "deltas_max": cycle.deltas_max,
            "files_of_a_cold_read_max": cycle.files_max,
        }
