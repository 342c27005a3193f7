"""Random lives of branches against an oracle: documents, queries by every strategy, totals, the past, merges.

The oracle keeps a dict of documents for each branch, and a copy of it after each commit. Merges follow one rule there:
what differs on the branch from what it had when the two were last the same is taken, with the policy `theirs`. Only
branches and their parents are merged, so the last merge of the two is where they were last the same.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.examples import examples
from tests.query.filter_oracle import oracle
from tests.sdk.sessions import Bench
from worm.errors import Invalid, UniqueViolation
from worm.formats.strict_json import JsonValue
from worm.query.needs import STRATEGIES
from worm.sdk.database import Model
from worm.upkeep.session import Maintenance

Documents = dict[str, dict[str, Any]]
IDS = [f"d{number}" for number in range(10)]
NAMES = ["main", "draft", "sub", "other"]
PARENTS = {"draft": "main", "sub": "draft", "other": "main"}
FILTERS: list[dict[str, JsonValue]] = [
    {},
    {"status": "a"},
    {"score": {"$gte": 3}},
    {"status": {"$in": ["a", "b"]}, "score": {"$lt": 6}},
    {"id": {"$in": ["d1", "d2", "d3"]}},
    {"email": "e2"},
]
KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "partitions": {"manifest": {"enabled": True, "partitionThreshold": 3, "maxPartitions": 3}},
    "some fields": {"manifest": {"enabled": True, "fields": ["status"]}},
    "no table": {"manifest": {"enabled": False}, "indexes": {}},
}
INDEXES = {
    "byStatus": {"field": "status"},
    "byEmail": {"field": "email", "unique": True},
}


def by_id(rows: Any) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda row: str(row["id"]))


class World:
    """Two sessions on one store, the branches that there are, and what each must hold."""

    def __init__(self, kind: str, seed: int, tmp_path: Path, maintenance: Maintenance) -> None:
        fields = {name: {"type": "string"} for name in ("name", "status", "email")} | {"score": {"type": "number"}}
        definition: dict[str, object] = {"space": "main", "fields": fields, "indexes": INDEXES}
        self.bench = Bench("memory-versioned", tmp_path, **(definition | KINDS[kind]))
        self.random = Random(seed)
        self.db = self.bench.session(maintenance=maintenance)
        self.has_unique = bool(self.bench.schema.model("Customer").indexes)
        self.now: dict[str, Documents] = {"main": {}}
        self.bases: dict[tuple[str, str], Documents] = {}
        self.past: list[tuple[str, int, Documents]] = []

    def on(self, branch: str) -> Model:
        return self.db.branch(branch).model("Customer")

    def step(self) -> None:
        roll = self.random.random()
        missing = [name for name in NAMES[1:] if name not in self.now and PARENTS[name] in self.now]
        if missing and roll < 0.15:
            self.fork(missing[0])
        elif len(self.now) > 1 and roll < 0.3:
            child = self.random.choice(sorted(self.now.keys() - {"main"}))
            self.merge(*self.random.sample([child, PARENTS[child]], 2))
        else:
            self.change(self.random.choice(sorted(self.now)))
        self.bench.tick(self.random.choice([0.2, 1, 5]))

    def fork(self, name: str) -> None:
        parent = PARENTS[name]
        self.db.create_branch(name, parent=parent)
        self.now[name] = dict(self.now[parent])
        for other in self.now:
            if other != name:  # what the two have in common
                shared = self.now[parent] if other == parent else self.bases[parent, other]
                self.bases[name, other], self.bases[other, name] = dict(shared), dict(shared)

    def change(self, branch: str) -> None:
        customers, one = self.on(branch), self.random.choice(IDS)
        document = {
            "id": one,
            "name": "n",
            "status": self.random.choice("abc"),
            "score": self.random.randrange(8),
            "email": self.random.choice([f"e{number}" for number in range(14)]),
        }
        if self.random.random() < 0.25:
            customers.delete(one)
            self.now[branch].pop(one, None)
        else:
            holder = next(
                (
                    other
                    for other, kept in self.now[branch].items()
                    if other != one and kept["email"] == document["email"] and self.has_unique
                ),
                None,
            )
            if holder is not None:
                with pytest.raises(UniqueViolation):
                    customers.upsert(document)
                return
            self.now[branch][one] = dict(customers.upsert(document))
        self.remember(branch)

    def merge(self, branch: str, into: str) -> None:
        base, theirs, ours = self.bases[branch, into], self.now[branch], self.now[into]
        changed = {one for one in {*base, *theirs} if base.get(one) != theirs.get(one)}
        changed = {one for one in changed if theirs.get(one) != ours.get(one)}
        result = {**{one: kept for one, kept in ours.items() if one not in changed}}
        result |= {one: theirs[one] for one in changed if one in theirs}
        emails = [kept["email"] for kept in result.values()]
        if self.has_unique and len(emails) != len(set(emails)):
            with pytest.raises((UniqueViolation, Invalid)):
                self.db.merge(branch, into=into, policy="theirs")
            return
        self.db.merge(branch, into=into, policy="theirs")
        self.now[into] = result
        self.bases[branch, into], self.bases[into, branch] = dict(theirs), dict(theirs)
        self.remember(into)

    def remember(self, branch: str) -> None:
        self.past.append((branch, self.db.space("main").seq, dict(self.now[branch])))

    def check(self) -> None:
        self.db.folder.flush()
        for branch, documents in self.now.items():
            customers = self.on(branch)
            for one in IDS:
                found = customers.find_by_id(one)
                assert (None if found is None else dict(found)) == documents.get(one), (branch, one)
                assert customers.exists(one) == (one in documents)
            check_queries(customers, documents, self.random.choice(FILTERS))
        for branch, seq, documents in self.random.sample(self.past, min(3, len(self.past))):
            check_queries(self.on(branch), documents, self.random.choice(FILTERS), at=seq)


def check_queries(customers: Model, documents: Documents, filter: dict[str, JsonValue], at: int | None = None) -> None:
    wanted = [row for row in by_id(documents.values()) if oracle(filter, row)]
    for strategy in (None, *STRATEGIES):
        try:
            found = customers.find_all(filter, strategy=strategy, at=at)
        except Invalid as refused:
            assert (strategy in STRATEGIES, refused.path) == (True, "strategy")  # noqa: PT017 - one that cannot answer
            continue
        assert by_id(found) == wanted, (strategy, at, found.plan)
    assert customers.count(filter, at=at) == len(wanted)
    batches = [row for batch in customers.find_batches(filter, batch_size=3, at=at) for row in batch]
    assert by_id(batches) == wanted
    assert customers.aggregate(sum="score", count=True, filter=filter, at=at)["count"] == len(wanted)
    assert customers.distinct("status", filter, at=at) == sorted({row["status"] for row in wanted})


CASES = [(kind, how) for kind in KINDS for how in ("inline", "background", "events")]
QUICK = [("whole", "inline"), ("partitions", "events"), ("no table", "background")]


@pytest.mark.parametrize(
    ("kind", "maintenance"), [pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow) for one in CASES]
)
def test_random_lives_of_branches(kind: str, maintenance: Maintenance, tmp_path: Path) -> None:
    for seed in range(max(1, examples(2))):
        world = World(kind, seed, tmp_path, maintenance)
        for _ in range(20):
            world.step()
            if world.random.random() < 0.1:
                world.check()
        world.check()
        world.db.close()
