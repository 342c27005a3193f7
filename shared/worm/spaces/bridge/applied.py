"""How far the commits of a space are applied to the documents of its models: `db/space-<name>/documents.json`.

`applied` is the commit up to which all are applied. A *run* is a process that is writing documents right now: it is
listed here before its first write and leaves after it has seen the end of the log after its last one. A run that died,
or was stopped halfway, may have overwritten a newer state of another run with an old one. So the next run applies the
commits after its `after` again, once the dead one can no longer be at work.

A session may know only some of the models in a space. `left` records what its runs skipped: by model, the first commit
whose documents it did not write. A run that knows the model begins there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from worm.clock import Clock, Ids, iso_millis, moment_of
from worm.errors import Corrupt
from worm.formats import JsonObject, JsonValue, dumps, loads_own
from worm.log import DbKeys
from worm.store import CasFile, Store

RUN_MAX = timedelta(minutes=20)
"""No run works longer than this: a function has 15 minutes."""
LEFT_MAX = 1000
"""How many model names are kept in `left`; entities of a space need not be documents."""


@dataclass(frozen=True, slots=True)
class Run:
    """A process that applies the commits after `after`, since `since`. `stopped`: it has stopped."""

    after: int
    since: str
    stopped: bool = False

    def is_over(self, now: datetime) -> bool:
        since = moment_of(self.since)
        return self.stopped or since is None or now - since > RUN_MAX


@dataclass(frozen=True, slots=True)
class Applied:
    """`revision` grows with every write, so that bytes under compare-and-swap never repeat."""

    applied: int = 0
    runs: Mapping[str, Run] = field(default_factory=dict)
    revision: int = 0
    left: Mapping[str, int] = field(default_factory=dict)

    def reached(self, model: str) -> int:
        """The commit up to which all documents of this model are written, unless a run has died."""
        return min(self.applied, self.left.get(model, self.applied + 1) - 1)

    def start(self, now: datetime, models: Collection[str] = ()) -> int:
        """The commit after which the next run for these models has to begin."""
        died = [run.after for run in self.runs.values() if run.is_over(now)]
        return min([self.applied, *died, *map(self.reached, models)])

    def begun(self, name: str, now: datetime, models: Collection[str] = ()) -> Applied:
        """The state with a new run, which takes over the work of dead ones."""
        ours = Run(self.start(now, models), iso_millis(now))
        others = {one: run for one, run in self.runs.items() if not run.is_over(now)}
        return replace(self, runs={**others, name: ours}, revision=self.revision + 1)

    def ended(
        self,
        name: str,
        upto: int,
        *,
        is_done: bool,
        models: Collection[str] = (),
        passed: Mapping[str, int] = MappingProxyType({}),
    ) -> Applied:
        """`is_done`: the log had no commit after `upto` when the run checked, after its last write. `passed`: what it
        skipped of models that it did not know."""
        runs = dict(self.runs)
        ours = runs.pop(name, None)
        if not is_done:
            runs[name] = Run(upto, "" if ours is None else ours.since, stopped=True)
        left = {one: seq for one, seq in self.left.items() if not (is_done and one in models and seq <= upto)}
        for one, seq in passed.items():
            if one in left or len(left) < LEFT_MAX:
                left[one] = min(seq, left.get(one, seq))
        return Applied(max(self.applied, upto), runs, self.revision + 1, left)

    def to_bytes(self) -> bytes:
        runs: JsonObject = {}
        for name, run in self.runs.items():
            shape: JsonObject = {"after": run.after, "since": run.since}
            runs[name] = {**shape, "stopped": True} if run.stopped else shape
        shape = {"version": 1, "revision": self.revision, "applied": self.applied, "runs": runs}
        return dumps({**shape, "left": dict(self.left)} if self.left else shape)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Applied:
        shape = loads_own(body, key=key)
        applied, revision, runs = shape.get("applied"), shape.get("revision"), shape.get("runs")
        if shape.get("version") != 1 or type(applied) is not int or type(revision) is not int:
            raise Corrupt("it does not say which commits are in the documents", key=key)
        if not isinstance(runs, dict):
            raise Corrupt("it does not say which run is at work", key=key)
        return cls(applied, {name: _run(one, key) for name, one in runs.items()}, revision, _left(shape, key))


def applied_file(store: Store, db_id: str, *, clock: Clock, ids: Ids) -> CasFile[Applied]:
    """A damaged file counts as absent: all commits are applied again, and those that are already applied change
    nothing."""
    return CasFile(store, DbKeys(db_id).documents, Applied.from_bytes, Applied.to_bytes, ids=ids, clock=clock)


def _run(shape: JsonValue, key: str) -> Run:
    after = shape.get("after") if isinstance(shape, dict) else None
    if not isinstance(shape, dict) or type(after) is not int:
        raise Corrupt("it does not say what a run applies", key=key)
    return Run(after, str(shape.get("since", "")), shape.get("stopped") is True)


def _left(shape: JsonObject, key: str) -> dict[str, int]:
    left = shape.get("left", {})
    found = {name: seq for name, seq in left.items() if type(seq) is int} if isinstance(left, dict) else {}
    if found != left:
        raise Corrupt("it does not say which models were left out", key=key)
    return found
