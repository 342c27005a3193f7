"""What a page store is, by a reader that shares with it only how blocks and indexes are decoded (RELIABILITY §5).

The store is a `MemoryStore` that keeps all versions: its history is the log of all requests that changed something. The
commit log is folded as it was written, collected or not; layers are read whole.
- I4: memory, deltas and images together are the fold of the log, at the head and at LSNs inside the window, everywhere;
- I6: what the root names is there with its size and SHA-256, and nothing was deleted that any root named then or later;
- I7: no slot and no layer was ever written twice with different bytes;
- I8: versions, epochs, boundaries, horizons and what is applied never go back; boundaries moved before deletes.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from random import Random
from typing import Any

from tests.log.simulation import true_log
from worm.clock import Ids, VirtualClock
from worm.errors import SnapshotExpired
from worm.log.keys import DbKeys
from worm.pages.layer_file import Block, LayerIndex
from worm.pages.reader import PageReader
from worm.store.memory import MemoryStore

LSNS = 20
Shape = Mapping[str, Any]
Written = tuple[str, int, bytes | None]
State = dict[str, bytes]


@dataclass(frozen=True)
class Event:
    """A change of an object; `body` None: it was deleted."""

    number: int
    key: str
    body: bytes | None
    time: datetime


class PageWitness:
    """Looks at one database. `check` is all of it. `grace`: seconds from a root without a layer to its deletion; that
    of the configuration, if nobody slept in between."""

    def __init__(self, memory: MemoryStore, db_id: str, *, grace: float | None = None) -> None:
        self.memory = memory
        self.db_id = db_id
        self.directory = f"db/{db_id}/"
        found = memory.get(f"{self.directory}manifest.json")
        assert found is not None
        self.root: Shape = json.loads(found.body)
        self.branches: dict[str, Shape] = self.root["pages"]["branches"]
        kept = self.root["pages"].get("config", {}).get("gc_min_age_seconds", 3600)
        self.grace = kept if grace is None else grace
        self._logs = {name: self._fold(branch) for name, branch in self.branches.items()}
        self._layers: dict[str, list[Written]] = {}

    def check(self, seed: int = 0) -> None:
        self.check_objects()
        self.check_states(seed)
        self.check_reader(seed)
        self.check_history()

    # The log

    def _fold(self, branch: Shape) -> list[tuple[int, Written]]:
        return folded_log(self.memory, DbKeys(self.db_id, branch.get("id", "")), branch.get("base", 0))

    def head(self, name: str) -> int:
        """The last LSN of a branch."""
        branch = self.branches[name]
        segments = true_log(self.memory, DbKeys(self.db_id, branch.get("id", "")))
        base: int = branch.get("base", 0)
        return base + (segments[-1].last_lsn if segments else 0)

    def folded(self, name: str, lsn: int) -> State:
        """The pages of a branch at an LSN, by its log and those that it was forked from."""
        branch = self.branches[name]
        state = {} if branch.get("parent") is None else self.folded(branch["parent"], min(lsn, branch.get("base", 0)))
        for _, (page, at, data) in sorted(self._logs[name], key=lambda one: one[1][1]):
            if at <= lsn:
                state.pop(page, None)
                if data is not None:
                    state[page] = data
        return state

    def readable(self, name: str) -> list[int]:
        """The LSNs from the horizon of a branch to its head, and the single ones that are kept below."""
        branch = self.branches[name]
        kept = [one["lsn"] for one in self.root["pages"].get("pins", {}).values() if one["branch"] == name]
        kept += [one.get("base", 0) for one in self.branches.values() if one.get("parent") == name]
        return sorted({*kept, *range(branch.get("horizon", 0), self.head(name) + 1)})

    # Layers

    def check_objects(self) -> None:
        """I6: what is named is there. And what a delta has was committed so, and is in one delta only."""
        for name, branch in self.branches.items():
            committed, seen = {written for _, written in self._logs[name]}, set[tuple[str, int]]()
            for layer in branch.get("layers", ()):
                versions = self._versions(layer)
                if layer["level"] == 2:
                    continue
                assert committed >= set(versions), f"{layer['path']} has what was never committed"
                places = {(page, lsn) for page, lsn, _ in versions}
                assert not places & seen, f"{layer['path']} repeats versions"
                seen |= places

    def _versions(self, layer: Shape) -> list[Written]:
        key = self.directory + layer["path"]
        if key not in self._layers:
            found = self.memory.get(key)
            assert found is not None, f"{key} is named and gone"
            assert len(found.body) == layer["size"]
            assert hashlib.sha256(found.body).hexdigest() == layer["sha256"]
            index = LayerIndex.decode(found.body[layer["index"] :], key)
            self._layers[key] = [
                (version.page, version.lsn, version.data)
                for ref in index.blocks
                for version in Block.decode(
                    found.body[ref.offset : ref.offset + ref.length], key, ref.offset
                ).versions()
            ]
        return self._layers[key]

    def stored(self, name: str, lsn: int) -> State:
        """The pages of a branch at an LSN, by what is in layers and in the log behind them."""
        return {page: data for page, (_, data) in self._found(name, lsn).items() if data is not None}

    def _found(self, name: str, lsn: int) -> dict[str, tuple[int, bytes | None]]:
        branch = self.branches[name]
        base, applied = branch.get("base", 0), branch.get("slot", 0)
        found: dict[str, tuple[int, bytes | None]] = {}
        if branch.get("parent") is not None:
            found = self._found(branch["parent"], min(lsn, base))
        layers = sorted(branch.get("layers", ()), key=lambda one: one["highLsn"])
        images = [one for one in layers if one["level"] == 2 and one["highLsn"] <= lsn]
        for image in images:
            start, end = image.get("start", ""), image.get("end")
            covered = [page for page in found if start <= page and (end is None or page < end)]
            for page in covered:
                del found[page]
            found |= {page: (image["highLsn"], data) for page, _, data in self._versions(image)}
        newer = [one for layer in layers if layer["level"] < 2 for one in self._versions(layer)]
        newer += [written for slot, written in self._logs[name] if slot > applied]
        for page, at, data in sorted(newer, key=lambda one: one[1]):
            if _floor(images, page) < at <= lsn:
                found[page] = (at, data)
        return found

    def check_states(self, seed: int) -> None:
        """I4, of the bytes in the store."""
        for name in self.branches:
            for lsn in self._some(name, seed):
                assert self.stored(name, lsn) == self.folded(name, lsn), (
                    f"{name} at LSN {lsn} is not the fold of the log"
                )

    def check_reader(self, seed: int) -> None:
        """I4, as the product reads it; and what is below the horizon is right or refused."""
        clock = VirtualClock()
        for name in self.branches:
            reader = PageReader.open(self.memory, self.db_id, branch=name, clock=clock, ids=Ids.seeded(seed, clock))
            assert reader.head_lsn == self.head(name)
            pages = sorted({page for log in self._logs.values() for _, (page, _, _) in log} | {"none"})
            readable = self.readable(name)
            below = Random(seed).randint(0, max(readable))
            for lsn in (*self._some(name, seed), below):
                want = self.folded(name, lsn)
                try:
                    got = reader.get_pages(pages, lsn)
                    scanned = {version.page: version.data for version in reader.scan(at=lsn)}
                except SnapshotExpired:
                    assert lsn not in readable or lsn < self.branches[name].get("base", 0)
                    continue
                assert got == {page: want.get(page) for page in pages}, f"{name} at LSN {lsn}"
                assert scanned == want, f"a scan of {name} at LSN {lsn}"

    def _some(self, name: str, seed: int) -> Sequence[int]:
        readable = self.readable(name)
        chosen = {readable[0], readable[-1], *Random(seed).sample(readable, min(LSNS, len(readable)))}
        return sorted(chosen)

    def named(self) -> set[str]:
        return _named(self.root)

    def dropped(self) -> set[str]:
        return {one["path"] for branch in self.branches.values() for one in branch.get("dropped", ())}

    # History

    def roots(self) -> list[Shape]:
        """All that ever were, in order."""
        return [shape for _, shape in self._roots(self.events())]

    def _roots(self, events: Sequence[Event]) -> list[tuple[Event, Shape]]:
        key = f"{self.directory}manifest.json"
        return [(one, json.loads(one.body)) for one in events if one.key == key and one.body is not None]

    def events(self) -> list[Event]:
        """Everything that changed, in order."""
        found: list[Event] = []
        for version in self.memory.list_versions(self.directory):
            assert version.version_id is not None
            held = None if version.is_delete_marker else self.memory.get(version.key, version_id=version.version_id)
            body = None if held is None else held.body
            found.append(Event(int(version.version_id[1:]), version.key, body, version.last_modified))
        return sorted(found, key=lambda one: one.number)

    def check_history(self) -> None:
        """I6 to I8."""
        events = self.events()
        roots = [(one.number, one.time, shape) for one, shape in self._roots(events)]
        for (_, _, before), (_, _, after) in pairwise(roots):
            _check_forward(before, after)
        self._check_immutable(events)
        self._check_leases(events)
        self._check_slots(events)
        named = [_named(shape) for _, _, shape in roots]
        for event in events:
            path = event.key.removeprefix(self.directory)
            last = max((at for at, paths in enumerate(named) if path in paths), default=None)
            if event.body is not None or last is None:
                continue  # stored, or never named: swept up
            assert last + 1 < len(roots), f"{path} was deleted while the root named it"
            number, time, shape = roots[last + 1]
            assert number < event.number, f"{path} was deleted, and named after that"
            if not path.startswith("branches/") or path.split("/")[1] in _ids(shape):  # else the branch was deleted
                age = (event.time - time).total_seconds()
                assert age >= self.grace, f"{path} was deleted {age} s after the root named it last"

    def _check_immutable(self, events: Sequence[Event]) -> None:
        """I7. A slot that was collected may be written again, by who slept: that counts for nothing."""
        bodies: dict[str, bytes] = {}
        for event in events:
            if "/delta/" in event.key or "/image/" in event.key or "/log/" in event.key:
                if event.body is None and "/log/" in event.key:
                    bodies.pop(event.key, None)
                elif event.body is not None:
                    assert bodies.setdefault(event.key, event.body) == event.body, f"{event.key} was overwritten"

    def _check_leases(self, events: Sequence[Event]) -> None:
        for branch_id in ["", *_ids(self.root)]:
            key = DbKeys(self.db_id, branch_id).lease
            epochs = [json.loads(one.body)["epoch"] for one in events if one.key == key and one.body is not None]
            assert epochs == sorted(epochs)

    def _check_slots(self, events: Sequence[Event]) -> None:
        """The boundary moved before each delete; of a branch that is gone everything may go."""
        boundaries: dict[str, int] = {}
        live: set[str] = set()
        for event in events:
            directory, _, name = event.key.rpartition(
                "manifest.json" if event.key.endswith("manifest.json") else "log/"
            )
            if event.key.endswith("manifest.json") and event.body is not None:
                shape = json.loads(event.body)
                assert shape["boundary"] >= boundaries.get(directory, 0)
                boundaries[directory] = shape["boundary"]
                live = set(_ids(shape)) if directory == self.directory else live
            elif event.body is None and "/log/" in event.key:
                branch_id = directory.removeprefix(f"{self.directory}branches/").rstrip("/")
                if directory == self.directory or branch_id in live:
                    assert int(name) <= boundaries[directory], f"{event.key} was deleted above the boundary"


def folded_log(memory: MemoryStore, keys: DbKeys, base: int) -> list[tuple[int, Written]]:
    """Slot and version of every page that was ever committed to a branch itself."""
    found: list[tuple[int, Written]] = []
    for segment in true_log(memory, keys):
        ends = {entry.txn: entry.lsn for entry in segment.entries}
        last: dict[tuple[str, str], bytes | None] = {}
        for entry in segment.entries:
            record: Shape = entry.record
            if record["op"] == "page":
                last[entry.txn, record["page"]] = _data(record)
        found += [(segment.slot, (page, base + ends[txn], data)) for (txn, page), data in last.items()]
    return found


def _data(record: Shape) -> bytes | None:
    if record.get("delete"):
        return None
    return str(record["text"]).encode() if "text" in record else b64decode(record["data"])


def _floor(images: Sequence[Shape], page: str) -> int:
    """The LSN of the newest of these images that covers the page."""
    spans = (one for one in images if one.get("start", "") <= page and (one.get("end") is None or page < one["end"]))
    return max((one["highLsn"] for one in spans), default=-1)


def _ids(shape: Shape) -> list[str]:
    return [one["id"] for one in shape["pages"]["branches"].values() if one.get("id")]


def _named(shape: Shape) -> set[str]:
    branches = shape["pages"]["branches"].values() if "pages" in shape else ()
    return {layer["path"] for branch in branches for layer in branch.get("layers", ())}


def _check_forward(before: Shape, after: Shape) -> None:
    """I8, from one root to the next."""
    assert after["version"] == before["version"] + 1
    assert after["boundary"] >= before["boundary"]
    if "pages" not in before:
        return
    old = {one.get("id", ""): one for one in before["pages"]["branches"].values()}
    for one in after["pages"]["branches"].values():
        was = old.get(one.get("id", ""), {})
        for number in ("slot", "lsn", "horizon", "compaction"):
            assert one.get(number, 0) >= was.get(number, 0), f"{number} went back"
