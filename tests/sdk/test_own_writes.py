"""What a session keeps of its own writes: as long as a table may not know them, no longer, and not too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.sessions import Bench
from worm.clock import VirtualClock
from worm.collections.documents import DocumentVersion
from worm.collections.entries import Document, Row
from worm.errors import Unavailable
from worm.formats import IndexDef
from worm.formats.strict_json import JsonValue
from worm.query.filters import Filter
from worm.sdk import memory
from worm.sdk.database import Model
from worm.sdk.memory import OWN_SECONDS, WriteOverlay

STATUS = IndexDef(field="status")


class Asked(dict[str, Row]):
    """Rows that know which of them were asked for."""

    def __init__(self, **rows: Row) -> None:
        super().__init__(rows)
        self.asked: list[str] = []

    def get(self, key: str, default: object = None) -> Row | None:  # type: ignore[override]
        self.asked.append(key)
        return super().get(key)


class Known:
    """A table."""

    def __init__(self, **rows: Row) -> None:
        self.rows = Asked(**rows)
        self.seqs: dict[str, int] = {}


def kept(customers: Model) -> int:
    return len(customers._memory.recent_writes())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"oplog": False},
        {"manifest": {"enabled": True, "autoUpdate": False}},
        {"oplog": False, "manifest": {"enabled": True, "autoUpdate": False}},
        {"manifest": {"enabled": False}, "indexes": {}},
    ],
)
def test_inline_nothing_is_kept_and_every_write_is_seen(tmp_path: Path, changes: dict[str, object]) -> None:
    bench = Bench("memory", tmp_path, **changes)
    customers = bench.customers()
    customers.save({"id": "a", "status": "new"})
    if customers.table.collection.definition.keeps_manifest:
        customers.build_manifest()
    customers.save_many([{"id": f"c{at}", "status": "new"} for at in range(5)])
    bench.tick()
    customers.patch("a", {"status": "late"})
    customers.delete("c1")
    assert kept(customers) == 0
    assert [row["id"] for row in customers.find_all(filter={"status": "new"})] == ["c0", "c2", "c3", "c4"]
    assert customers.count({"status": "late"}) == 1


def test_inline_a_write_that_could_not_be_folded_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.save({"id": "a", "status": "new"})

    def fail(*_: object) -> None:
        raise Unavailable("no answer")

    monkeypatch.setattr(customers.table, "fold", fail)
    bench.tick()
    with pytest.raises(Unavailable, match="table are behind"):
        customers.patch("a", {"status": "late"})
    assert kept(customers) == 1
    for strategy in ("index_lookup", "manifest_scan"):
        assert len(customers.find_all(filter={"status": "late"}, strategy=strategy)) == 1


def test_a_write_that_came_while_another_was_folded_is_kept(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    memory = bench.customers()._memory
    memory.wrote("a", {"status": "one"}, None, DocumentVersion())
    earlier = memory.unfolded(["a", "b"])
    memory.wrote("a", {"status": "two"}, {"status": "one"}, DocumentVersion())
    memory.folded(earlier)
    assert memory.recent_writes()["a"].document == {"status": "two"}
    memory.folded(memory.unfolded(["a"]))
    assert memory.recent_writes() == {}


def test_without_a_manifest_nothing_is_kept_at_all(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, manifest={"enabled": False}, indexes={})
    customers = bench.customers(maintenance="events")
    customers.save({"id": "a", "status": "new"})
    assert kept(customers) == 0
    assert len(customers.find_all(filter={"status": "new"})) == 1


def test_without_auto_update_the_workers_are_waited_for(tmp_path: Path) -> None:
    """The heads do not know the write yet, so the manifest does not look behind."""
    bench = Bench("memory", tmp_path, manifest={"enabled": True, "autoUpdate": False})
    bench.customers().save({"id": "a", "status": "new"})
    customers = bench.customers(maintenance="events")
    customers.build_manifest()
    bench.tick()
    customers.save({"id": "b", "status": "new"})
    found = customers.find_all(filter={"status": "new"})
    assert ([row["id"] for row in found], found.plan.strategy) == (["a", "b"], "manifest_scan")


def own(clock: VirtualClock, tmp_path: Path) -> WriteOverlay:
    return WriteOverlay(clock, Bench("memory", tmp_path).collection.definition)


def test_old_writes_go_when_new_ones_come(tmp_path: Path) -> None:
    clock = VirtualClock()
    writes = own(clock, tmp_path)
    writes.add("a", {"status": "x"}, "1")
    clock.advance(OWN_SECONDS - 1)
    writes.add("b", {"status": "x"}, "1")
    assert len(writes) == 2
    clock.advance(1)
    writes.add("c", None, "1")
    assert len(writes) == 2
    assert list(writes.recent()) == ["b", "c"]
    assert writes.ids_with(STATUS, ["x"]) == {"b"}


def test_of_too_many_the_oldest_go_and_a_write_again_makes_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "OWN_MAX", 3)
    writes = own(VirtualClock(), tmp_path)
    for name in ("a", "b", "c", "a", "d", "e"):
        writes.add(name, {"status": name}, "1")
    assert list(writes.recent()) == ["a", "d", "e"]
    assert writes.ids_with(STATUS, ["a", "b", "c", "e"]) == {"a", "e"}


@pytest.mark.parametrize(
    ("index", "documents", "values", "expected"),
    [
        (STATUS, {"a": {"status": "x"}, "b": {"status": 1}, "c": {}}, [1.0], {"b"}),
        (STATUS, {"a": {"status": "x"}, "b": {"status": "y"}, "c": None}, ["x", "y"], {"a", "b"}),
        (STATUS, {"a": {"status": ["x"]}}, ["x"], set()),
        (
            IndexDef(field="tags", type="multiValue"),
            {"a": {"tags": ["x", "y", "x"]}, "b": {"tags": "x"}},
            ["x"],
            {"a", "b"},
        ),
        (IndexDef(field="address.city"), {"a": {"address": {"city": "Bern"}}}, ["Bern"], {"a"}),
        (IndexDef(field="other"), {"a": {"other": 1}}, [1], set()),
    ],
)
def test_ids_are_found_by_what_was_written_last(
    tmp_path: Path, index: IndexDef, documents: dict[str, Document | None], values: list[JsonValue], expected: set[str]
) -> None:
    indexes = {"s": {"field": "status"}, "t": {"field": "tags", "type": "multiValue"}, "c": {"field": "address.city"}}
    fields = {name: {"type": "object" if name == "address" else "string"} for name in ("status", "address")}
    fields |= {"tags": {"type": "array"}}
    definition = Bench(
        "memory", tmp_path, indexes=indexes, fields=fields, manifest={"enabled": True}
    ).collection.definition
    writes = WriteOverlay(VirtualClock(), definition)
    for name, document in documents.items():
        writes.add(name, {"status": "before", "tags": ["before"]}, "1")
        writes.add(name, document, "1")
    assert writes.ids_with(index, values) == expected
    assert writes.ids_with(index, ["before"]) == set()


def test_a_table_that_has_not_changed_is_asked_for_new_writes_only(tmp_path: Path) -> None:
    writes = own(VirtualClock(), tmp_path)
    for name in ("a", "b"):
        writes.add(name, {"status": "x"}, "5")
    known = Known(a={"updatedAt": "5"}, b={"updatedAt": "4"})
    assert {one: write.document for one, write in writes.unknown_to(known).items()} == {"b": {"status": "x"}}
    assert sorted(known.rows.asked) == ["a", "b"]
    writes.add("c", {"status": "y"}, "5")
    assert writes.unknown_to(known).keys() == {"b", "c"}
    assert sorted(known.rows.asked) == ["a", "b", "c"]
    newer = Known(b={"updatedAt": "5"}, c={"updatedAt": "4"})
    assert writes.unknown_to(newer).keys() == {"c"}
    writes.add("a", None, "7")
    assert writes.unknown_to(newer).keys() == {"a", "c"}


def test_a_look_up_tests_none_of_the_other_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().build_manifest()
    customers = bench.customers(maintenance="events")
    customers.save_many([{"id": f"c{at}", "status": "late" if at else "new"} for at in range(50)])
    tested: list[Row] = []
    matches = Filter.matches

    def counted(filter: Filter, row: Row) -> bool:
        tested.append(row)
        return matches(filter, row)

    monkeypatch.setattr(Filter, "matches", counted)
    assert len(customers.find_all(filter={"status": "new"}, strategy="index_lookup")) == 1
    assert {row["id"] for row in tested} == {"c0"}
