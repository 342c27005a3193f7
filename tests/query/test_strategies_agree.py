"""F40: on random documents and filters every strategy gives the rows of a plain oracle, sorted and paged too.

The oracle reads the documents from the store and shares nothing with the code under test. What the session wrote itself
is known to no table yet; tables are also lost, damaged, stale and behind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cmp_to_key, partial
from random import Random

import pytest

from tests.examples import examples
from tests.query.filter_oracle import compare, compare_rows, ends_in, is_equal, oracle, value_of
from worm.clock import Ids, VirtualClock
from worm.collections.entries import Row
from worm.errors import Invalid
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.query.needs import STRATEGIES, Strategy
from worm.sdk.database import Model, Worm
from worm.store.memory import MemoryStore

FIELDS: dict[str, object] = {
    "status": {"type": "string"},
    "level": {"type": "number"},
    "email": {"type": "string"},
    "flag": {"type": "boolean"},
    "tags": {"type": "array", "items": "string"},
    "any": {"type": "array"},
    "address": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "number"}}},
    "meta": {"type": "object"},
    "body": {"type": "string"},
}
INDEXES: dict[str, object] = {
    "byStatus": {"field": "status"},
    "byLevel": {"field": "level"},
    "byEmail": {"field": "email", "unique": True},
    "byTags": {"field": "tags", "type": "multiValue"},
    "byCity": {"field": "address.city"},
    "byMeta": {"field": "meta.a"},
}
SOME = {"enabled": True, "fields": ["status", "level", "tags", "meta.a.b"]}
KINDS: dict[str, dict[str, object]] = {
    "all fields": {"manifest": {"enabled": True}, "indexes": INDEXES},
    "some fields": {"manifest": SOME, "indexes": INDEXES},
    "partitions": {"manifest": {"enabled": True, "partitionThreshold": 4, "maxPartitions": 3}, "indexes": INDEXES},
    "no extra fields": {"manifest": {"enabled": True, "extra": False}, "indexes": INDEXES},
    "some fields, partitions": {"manifest": {**SOME, "partitionThreshold": 4}, "indexes": INDEXES},
    "cut": {"manifest": {"enabled": True, "maxFieldBytes": 7, "maxRowBytes": 100}, "indexes": INDEXES},
    "cut, some fields": {"manifest": {**SOME, "maxFieldBytes": 4}, "indexes": INDEXES},
    "cut, partitions": {
        "manifest": {"enabled": True, "partitionThreshold": 4, "maxFieldBytes": 7, "maxRowBytes": 60},
        "indexes": INDEXES,
    },
    "cut, no history": {"manifest": {"enabled": True, "maxFieldBytes": 5}, "indexes": INDEXES, "oplog": False},
    "no history": {"manifest": {"enabled": True}, "indexes": INDEXES, "oplog": False},
    "nothing": {"oplog": False},
}
PREFIX = "org/things/"
ROUNDS = examples(20)  # the seeds of the tests show every strategy in the first five
Damage = Callable[[bytes], bytes | None]
TEXTS = ("", "a", "ab", "b", "1", "=1", "true", "é")
NUMBERS = (0, 1, 1.0, 2, 0.5, -0.0, 2**53, float(2**53), 2**53 + 1)
NAMED = (
    *("status", "level", "email", "flag", "tags", "any", "address.city", "address.zip", "address", "meta", "meta.a"),
    *("meta.a.b", "body", "extra", "extra.a", "id", "createdAt", "odd.name"),
)
OPERATORS = (
    *("", "", "$eq", "$in", "$contains", "$ne", "$nin", "$gt", "$lte", "$exists"),
    *("$all", "$regex", "$size", "$type", "$elemMatch"),
)
INDEXED = ("status", "level", "email", "tags", "address.city", "id", "meta.a")


class Dice:
    """Documents that keep the schema and are odd wherever it lets them, and filters on them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def pick(self, *items: JsonValue) -> JsonValue:
        return self.random.choice(items)

    def value(self, depth: int = 2) -> JsonValue:
        roll = self.random.random() if depth else 0
        if roll < 0.6:
            return self.pick(None, True, False, *TEXTS, *NUMBERS)
        if roll < 0.8:
            return [self.value(depth - 1) for _ in range(self.random.randrange(3))]
        return {name: self.value(depth - 1) for name in ("a", "b") if self.random.random() < 0.6}

    def document(self, at: int) -> Row:
        found: Row = {
            "status": self.pick(None, *TEXTS[:4]),
            "level": self.pick(None, *NUMBERS),
            "email": self.pick(None, f"{at}@x.org"),
            "flag": self.pick(None, True, False),
            "tags": [self.pick(*TEXTS) for _ in range(self.random.randrange(3))],
            "any": [self.value() for _ in range(self.random.randrange(3))],
            "address": self.pick(
                None, {"city": self.pick(None, *TEXTS[:3]), "zip": self.pick(1, 2), "x": self.value()}
            ),
            "meta": {"a": self.value(), "b": self.value()},
            "body": self.pick("long", "longer"),
            "extra": self.value(),
            "odd.name": self.value(),
        }
        return {name: value for name, value in found.items() if self.random.random() < 0.75}

    def operand(self, field: str, op: str) -> JsonValue:
        if op == "$exists":
            return self.random.random() < 0.5
        if op == "$startsWith":
            return self.pick("", "a")
        if op == "$regex":
            return self.pick("^a", "b$", "", "[^a-z]", "^(a|b)+$")
        if op == "$size":
            return self.random.randrange(3)
        if op == "$type":
            return self.pick("null", "string", "number", "integer", "array", "object")
        if op == "$elemMatch":
            return {"$gt": self.pick(*TEXTS, *NUMBERS)} if self.random.random() < 0.5 else {"a": self.value(1)}
        if op in ("$in", "$nin", "$all"):
            return [self.target(field) for _ in range(self.random.randrange(1, 4))]
        if op in ("$gt", "$gte", "$lt", "$lte"):
            return self.pick(True, *TEXTS, *NUMBERS)
        return self.target(field)

    def target(self, field: str) -> JsonValue:
        """A value to look for, mostly one that is there."""
        if field == "id":
            return self.pick("d1", "d2", "d3", "../x", 7)
        if field == "email":
            return self.pick("1@x.org", "2@x.org", "3@x.org")
        if self.random.random() < 0.3:
            return self.value(1)
        return self.pick(*NUMBERS) if field == "level" else self.pick(*TEXTS[:4])

    def filter(self, depth: int = 2) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        for _ in range(self.random.choice([1, 1, 2])):
            field = self.random.choice(INDEXED if self.random.random() < 0.75 else NAMED)
            op = self.random.choice(OPERATORS)
            found[field] = self.target(field) if not op else {op: self.operand(field, op)}
        roll = self.random.random() if depth else 1
        if roll < 0.35:
            parts: list[JsonValue] = [self.filter(depth - 1) for _ in range(2)]
            found = {"$or" if roll < 0.2 else "$and": parts, **(found if self.random.random() < 0.3 else {})}
        elif roll < 0.42:
            found = {"$not": found}
        return found

    def sort(self) -> list[tuple[str, str]]:
        fields = self.random.sample(self.names(), self.random.choice([0, 0, 1, 2]))
        return [(field, self.random.choice(["asc", "desc"])) for field in fields]

    def select(self) -> list[str] | None:
        if self.random.random() < 0.3:
            return None
        return self.random.sample(self.names(), self.random.randrange(1, 4))

    def names(self) -> tuple[str, ...]:
        """Mostly fields that every table has."""
        return INDEXED if self.random.random() < 0.8 else NAMED


class World:
    """A collection of one kind with random documents, and a session that leaves its tables to others."""

    def __init__(self, kind: str, seed: int, documents: int = 12, **changes: object) -> None:
        self.dice = Dice(seed)
        self.definition = {
            "path": "#org/@things/(id:string)",
            "oplog": True,
            "fields": FIELDS,
            **KINDS[kind],
            **changes,
        }
        self.clock = VirtualClock()
        self.ids = Ids.seeded(seed, self.clock)
        self.store = MemoryStore(clock=self.clock, ids=self.ids)
        writer = self.session(inline=True)
        self.saved = writer.save_many([{"id": f"d{at}", **self.dice.document(at)} for at in range(documents)])
        assert all(result.ok for result in self.saved)
        self.model = self.session()

    def session(self, *, inline: bool = False) -> Model:
        schema = load_schema({"version": "1.0", "models": {"Thing": self.definition}})
        maintenance = "inline" if inline else "events"
        db = Worm(self.store, schema, maintenance=maintenance, probe=False, clock=self.clock, ids=self.ids)  # type: ignore[arg-type]
        return db.model("Thing")

    def write_more(self) -> None:
        """What only this session knows: created, changed and deleted, and one that it only read."""
        self.clock.advance(1)
        for at in range(4):
            self.model.find_by_id(f"d{at}")
        self.model.delete("d0")
        for name in ("d1", "d2", "n1", "n2"):
            self.model.upsert({"id": name, **self.dice.document(100 + ord(name[1]) + ord(name[0]))})

    def documents(self) -> list[Row]:
        found = []
        for listed in self.store.list(PREFIX):
            parts = listed.key.split("/")
            stored = self.store.get(listed.key)
            if len(parts) == 4 and not parts[2].startswith(".") and stored is not None:
                found.append({**json.loads(stored.body), "id": parts[2]})
        return found

    def expected(
        self, filter: Mapping[str, JsonValue], sort: Sequence[tuple[str, str]], select: Sequence[str] | None
    ) -> list[Row]:
        documents = {str(one["id"]): one for one in self.documents()}
        matching = [one for one in self._seen() if oracle(filter, one)]
        ordered = sorted(matching, key=cmp_to_key(partial(compare_rows, sort=sort)))
        if select is None:
            return [documents[str(one["id"])] for one in ordered]
        return [self._row(one, select) for one in ordered]

    def _seen(self) -> list[Row]:
        """The documents as filters see them: where there is a table, a dotted name is always a path."""
        if self.definition.get("manifest") is None:
            return self.documents()
        return [{name: value for name, value in one.items() if name != "odd.name"} for one in self.documents()]

    def _row(self, document: Row, wanted: Sequence[str]) -> Row:
        found = {name: value_of(document, name) for name in ("id", *wanted)}
        return {name: value[0] for name, value in found.items() if value}

    def compare(self, rounds: int) -> Counter[str]:
        """Random queries by every strategy; how often each of them was possible."""
        ran: Counter[str] = Counter()
        for at in range(rounds):
            wanted, sort, select = self.dice.filter(), self.dice.sort(), self.dice.select()
            expected = self.expected(wanted, sort, select)
            ran["rows"] += len(expected)
            for strategy in (None, *STRATEGIES):
                ran[str(strategy)] += self._agrees(strategy, expected, wanted, sort, select)
            assert self.model.count(wanted) == len(expected), wanted
            self._agrees_on_values(NAMED[(at + len(expected)) % len(NAMED)], wanted)
        return ran

    def _agrees_on_values(self, field: str, filter: Mapping[str, JsonValue]) -> None:
        ends = [end[0] for one in self._seen() if oracle(filter, one) for end in ends_in(one, field) if end]
        values = [value for end in ends for value in (end if isinstance(end, list) else [end])]
        found = self.model.distinct(field, filter)
        assert found == sorted(found, key=cmp_to_key(compare)), (field, filter)
        assert all(sum(is_equal(value, one) for one in found) == 1 for value in values), (field, filter)
        assert all(any(is_equal(value, one) for value in values) for one in found), (field, filter)

    def _agrees(
        self,
        strategy: Strategy | None,
        expected: list[Row],
        filter: Mapping[str, JsonValue],
        sort: Sequence[tuple[str, str]],
        select: Sequence[str] | None,
    ) -> bool:
        orders = [{"field": field, "order": direction} for field, direction in sort]
        try:
            rows = self.model.find_all(filter=filter, sort=orders, select=select, strategy=strategy)
        except Invalid:
            if strategy is None:
                raise
            return False
        case = f"{strategy or rows.plan.strategy}: {filter} {sort} {select}"
        assert rows == expected, case
        size, offset = self.dice.random.randrange(1, 5), self.dice.random.randrange(3)
        paged = self.model.find_all(
            filter=filter, sort=orders, select=select, strategy=strategy, limit=size, offset=offset
        )
        assert paged == expected[offset : offset + size], case
        seen = offset + len(paged)
        while paged.cursor is not None:
            paged = self.model.find_all(
                filter=filter, sort=orders, select=select, strategy=strategy, limit=size, cursor=paged.cursor
            )
            assert paged == expected[seen : seen + size], case
            seen += len(paged)
        assert seen >= len(expected), case
        return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_gives_the_rows_of_the_oracle(kind: str) -> None:
    world = World(kind, 1)
    ran = world.compare(ROUNDS)
    assert ran["None"] == ran["full_scan"] == ROUNDS
    assert ran["rows"] > 0
    if kind != "nothing":
        assert min(ran[strategy] for strategy in STRATEGIES) > 0, ran


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_shows_what_the_session_wrote(kind: str) -> None:
    world = World(kind, 2)
    world.write_more()
    ran = world.compare(ROUNDS)
    assert ran["None"] == ROUNDS
    if kind != "nothing":
        assert min(ran[strategy] for strategy in STRATEGIES) > 0, ran


def lost(body: bytes) -> None:
    return None


def cut_off(body: bytes) -> bytes:
    return body[: len(body) // 2]


def altered(body: bytes) -> bytes:
    if not body.startswith(b"{"):  # a column file
        return body[:-1] + bytes([body[-1] ^ 1])
    return body.replace(b'"d', b'"e').replace(b"Thing", b"Thong")  # still JSON, but its check sum is another


@pytest.mark.parametrize("damage", [lost, pytest.param(cut_off, marks=pytest.mark.slow), altered])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("all fields", ".worm.manifest.json"),
        ("partitions", ".worm.manifest.json"),
        ("partitions", ".worm.manifest/partition-1"),
        ("all fields", ".worm.index/"),
        ("partitions", ".worm.index/"),
    ],
)
def test_a_table_that_is_lost_or_damaged_changes_no_answer(kind: str, what: str, damage: Damage) -> None:
    world = World(kind, 5)
    prefixes = [what, ".worm.lake/partition-1"] if "partition" in what else [what]
    keys = [one.key for prefix in prefixes for one in world.store.list(PREFIX + prefix) if "claims" not in one.key]
    assert keys
    for key in keys:
        stored = world.store.get(key)
        assert stored is not None
        body = damage(stored.body)
        assert body != stored.body
        world.store.delete(key)
        if body is not None:
            world.store.put(key, body)
    world.model = world.session()
    if "manifest" in what:
        with pytest.raises(Invalid, match="missing, damaged or behind"):
            world.model.find_all(strategy="manifest_scan")
    world.compare(examples(8))
    world.write_more()
    world.compare(examples(8))


def test_a_table_of_other_fields_than_the_schema_names_changes_no_answer() -> None:
    world = World("all fields", 5)
    world.definition["fields"] = {**FIELDS, "extra2": {"type": "string"}}
    world.model = world.session()
    assert world.model.explain().strategy == "full_scan"
    world.compare(5)


def test_without_auto_update_a_table_that_is_behind_is_not_believed() -> None:
    world = World("all fields", 5, manifest={"enabled": True, "autoUpdate": False})
    world.session(inline=True).build_manifest()
    assert world.model.explain().strategy == "manifest_scan"
    other = world.session(inline=True)
    other.save({"id": "late", "status": "a"})
    assert world.model.explain().strategy == "full_scan"
    world.compare(5)
