"""The planner: which strategy, why, and at what cost. The schema is the seed's: three indexes, four manifest fields."""

from __future__ import annotations

import pytest

from worm.clock import Ids, VirtualClock
from worm.collections.entries import Row
from worm.errors import Invalid
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.query.planner import ASSUMED_MATCHES, FEW, PROMISED, usd
from worm.sdk.database import Model, Worm
from worm.store.memory import MemoryStore

CUSTOMER: dict[str, object] = {
    "path": "#org/@customers/(id:string)",
    "oplog": True,
    "fields": {
        "name": {"type": "string"},
        "email": {"type": "string"},
        "status": {"type": "string"},
        "tags": {"type": "array", "items": "string"},
        "address": {"type": "object", "properties": {"city": {"type": "string"}}},
        "notes": {"type": "string"},
    },
    "manifest": {"enabled": True, "fields": ["name", "email", "status", "tags"]},
    "indexes": {
        "byStatus": {"field": "status"},
        "byEmail": {"field": "email", "unique": True},
        "byTags": {"field": "tags", "type": "multiValue"},
    },
}
MANIFEST = ["name", "email", "status", "tags", "createdAt", "updatedAt"]
ROOT = "org/customers/.worm.manifest.json"


class Room:
    """Customers with inline tables; a fresh session for every look."""

    def __init__(self, count: int = 20, **changes: object) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(3, self.clock)
        self.store = MemoryStore(clock=self.clock, ids=self.ids)
        self.schema = load_schema({"version": "1.0", "models": {"Customer": CUSTOMER | changes}})
        if count:
            saved = self.fresh().save_many([self.document(at) for at in range(count)])
            assert all(one.ok for one in saved)

    @staticmethod
    def document(at: int) -> Row:
        return {
            "id": f"c{at:03}",
            "name": f"Name {at % 7}",
            "email": f"{at}@x.org",
            "status": "active" if at % 2 else "inactive",
            "tags": ["vip"] if at % 10 == 0 else ["all"],
            "address": {"city": "Bern"},
            "notes": f"note {at}",
        }

    def fresh(self) -> Model:
        db = Worm(self.store, self.schema, probe=False, clock=self.clock, ids=self.ids)
        return db.model("Customer")

    def spent(self, work: object) -> int:
        assert callable(work)
        with self.store.requests.measure() as requests:
            work()
        return requests["total"]


@pytest.fixture(scope="module")
def room() -> Room:
    return Room()


def test_the_example_of_the_seed(room: Room) -> None:
    plan = room.fresh().explain(filter={"status": "active"}, select=["name", "email"])
    shape = plan.shape()
    assert shape["strategy"] == "manifest_scan"
    assert shape["reason"] == "the manifest has all needed fields"
    assert shape["estimatedRequests"] == 1
    assert shape["manifestFields"] == MANIFEST
    assert "indexes" not in shape
    assert "actualRequests" not in shape
    assert shape["estimatedUsd"] == pytest.approx(0.0000004)
    stored = room.store.head(ROOT)
    assert stored is not None
    assert shape["estimatedBytes"] == stored.size


@pytest.mark.parametrize(
    ("query", "strategy", "reason", "indexes"),
    [
        ({"filter": {"email": "3@x.org"}}, "index_lookup", "index byEmail answers the filter", ["byEmail"]),
        ({"filter": {"email": "3@x.org"}, "select": ["name"]}, "index_lookup", "index byEmail answers", ["byEmail"]),
        ({"filter": {"id": "c001"}, "select": ["name"]}, "index_lookup", "the filter names the ids", None),
        ({"filter": {"status": "active"}}, "index_lookup", "index byStatus answers the filter", ["byStatus"]),
        ({"filter": {"tags": {"$contains": "vip"}}}, "index_lookup", "index byTags", ["byTags"]),
        (
            {"filter": {"status": {"$in": ["active"]}, "tags": "vip"}},
            "index_lookup",
            "indexes byStatus, byTags answer the filter",
            ["byStatus", "byTags"],
        ),
        (
            {"filter": {"$or": [{"status": "active"}, {"tags": "vip"}, {"email": "2@x.org"}]}},
            "index_lookup",
            "indexes byStatus, byTags, byEmail answer",
            ["byStatus", "byTags", "byEmail"],
        ),
        ({"filter": {"status": "active", "email": "3@x.org"}}, "index_lookup", "index byEmail", ["byEmail"]),
        (
            {"select": ["name"], "sort": {"field": "status"}},
            "manifest_scan",
            "the manifest has all needed fields",
            None,
        ),
        ({"filter": {"name": "Name 1"}}, "manifest_targeted", "needs whole documents", None),
        ({"filter": {"name": "Name 1"}, "select": ["notes"]}, "manifest_targeted", "manifest lacks notes", None),
        ({"filter": {"name": "Name 1", "notes": "x"}}, "manifest_targeted", "manifest lacks notes", None),
        ({"filter": {"notes": "note 1"}, "select": ["id"]}, "full_scan", "manifest lacks notes", None),
        ({"filter": {"$or": [{"notes": "x"}, {"name": "y"}]}}, "full_scan", "manifest lacks notes", None),
        ({"filter": {"status": None}}, "manifest_targeted", "needs whole documents", None),
        ({"filter": {"$not": {"status": "active"}}}, "manifest_targeted", "needs whole documents", None),
        (
            {"filter": {"$or": [{"status": "active"}, {"name": "x"}]}},
            "manifest_targeted",
            "needs whole documents",
            None,
        ),
    ],
)
def test_strategy_and_reason(
    room: Room, query: dict[str, JsonValue], strategy: str, reason: str, indexes: list[str] | None
) -> None:
    plan = room.fresh().explain(**query)  # type: ignore[arg-type]  # arguments of a table of cases
    assert (plan.strategy, plan.shape().get("indexes")) == (strategy, indexes)
    assert reason in plan.reason
    answered = room.fresh().find_all(**query)  # type: ignore[arg-type]  # arguments of a table of cases
    assert answered.plan.strategy == strategy
    assert answered == room.fresh().find_all(**query, strategy="full_scan")  # type: ignore[arg-type]


def test_explaining_takes_one_request_and_a_repeated_query_one_that_reads_nothing(room: Room) -> None:
    customers = room.fresh()
    for query in ({"status": "active"}, {"email": "1@x.org"}, {"name": "x"}, {"notes": "x"}):
        assert room.spent(lambda query=query: customers.explain(filter=query)) == 1
    customers = room.fresh()
    assert room.spent(lambda: customers.find_all(filter={"status": "active"}, select=["name"])) == 1
    before = room.store.requests.bytes_read
    assert room.spent(lambda: customers.find_all(filter={"tags": "vip"}, select=["name"])) == 1
    assert room.store.requests.bytes_read == before
    assert room.spent(lambda: customers.count({"status": "active"})) == 1
    assert room.spent(lambda: customers.aggregate(count=True, group_by="status")) == 1


def test_looking_up_ten_documents_takes_eleven_requests(room: Room) -> None:
    customers = room.fresh()
    assert room.spent(lambda: customers.find_all(filter={"status": "active"})) == 11
    assert len(customers.find_all(filter={"status": "active"})) == 10
    assert room.spent(lambda: room.fresh().find_all(filter={"email": "3@x.org"}, select=["name"])) == 2
    assert room.spent(lambda: room.fresh().find_all(filter={"id": {"$in": ["c001", "c002", "no"]}})) == 3


def test_what_an_id_cannot_be_is_not_asked_for(room: Room) -> None:
    assert room.spent(lambda: room.fresh().find_all(filter={"id": {"$in": ["c001\x7f", "", "e\u0301"]}})) == 0
    assert room.fresh().find_all(filter={"id": "c001\x7f"}) == []


def test_many_ids_or_values_of_a_unique_index_are_left_to_one_read_of_the_manifest(room: Room) -> None:
    few = [f"{at}@x.org" for at in range(PROMISED)]
    assert room.fresh().explain(filter={"email": {"$in": [*few]}}, select=["name"]).strategy == "index_lookup"
    many: list[JsonValue] = [*few, "x@x.org"]
    assert room.fresh().explain(filter={"email": {"$in": many}}, select=["name"]).strategy == "manifest_scan"
    assert room.fresh().explain(filter={"email": {"$in": many}}).strategy == "index_lookup"


def test_a_look_up_that_finds_many_is_left_where_the_manifest_names_fewer() -> None:
    room = Room(2 * FEW + 10)
    both = room.fresh().find_all(filter={"status": "active", "name": "Name 1"}, select=["notes"])
    assert both.plan.strategy == "manifest_targeted"
    assert len(both) == 15
    assert room.spent(lambda: room.fresh().find_all(filter={"status": "active", "name": "Name 1"})) == 1 + 1 + 15
    paged = room.fresh().find_all(filter={"status": "active"}, sort={"field": "name"}, limit=3)
    assert paged.plan.strategy == "manifest_targeted"
    exact = room.fresh().find_all(filter={"status": "active"})
    assert exact.plan.strategy == "index_lookup"  # the manifest would name the same documents
    assert len(exact) == FEW + 5


def test_estimates_follow_what_is_known(room: Room) -> None:
    customers = room.fresh()
    assert customers.explain(filter={"status": "active"}).estimate.total == 1 + ASSUMED_MATCHES
    assert customers.explain(filter={"email": {"$in": ["a", "b"]}}).estimate.total == 3
    assert customers.explain(filter={"name": "Name 1"}).estimate.total == 1 + 3
    assert customers.explain(filter={"name": "Name 1"}, limit=2).estimate.total == 1 + 2
    assert customers.explain(filter={"notes": "x"}).estimate.requests == {"VERSIONS": 2, "GET": 20}
    assert customers.explain(strategy="full_scan").estimate.usd == pytest.approx(2 * 0.005 / 1000 + 20 * 0.0004 / 1000)


def test_without_a_manifest_the_sentinel_tells_how_many() -> None:
    room = Room(7, manifest={"enabled": False}, indexes={})
    plan = room.fresh().explain(filter={"status": "active"})
    assert (plan.strategy, plan.reason) == ("full_scan", "Customer keeps no manifest")
    assert plan.estimate.requests == {"VERSIONS": 2, "GET": 7}
    assert plan.manifest_fields == ()
    assert room.spent(lambda: room.fresh().explain()) == 1
    kept = Room(7)
    kept.store.delete(ROOT)
    lost = kept.fresh().explain(filter={"name": "x"}, select=["name"])
    assert (lost.strategy, lost.reason) == ("full_scan", "the manifest is missing, damaged or behind")
    assert lost.estimate.total == 9
    assert (lost.misses_manifest, plan.misses_manifest) == (True, False)


def test_analyzing_runs_the_query_and_tells_what_it_took(room: Room) -> None:
    plan = room.fresh().explain(filter={"status": "active"}, analyze=True)
    assert plan.actual is not None
    shape = plan.shape()
    assert (shape["strategy"], shape["actualRequests"], shape["actualRows"]) == ("index_lookup", 11, 10)
    sizes = [room.store.head(f"org/customers/c{at:03}/data.json") for at in range(1, 20, 2)]
    index = room.store.head("org/customers/.worm.index/status.json")
    assert index is not None
    assert shape["actualBytes"] == index.size + sum(one.size for one in sizes if one is not None)
    assert shape["actualUsd"] == pytest.approx(11 * 0.0004 / 1000)
    scan = room.fresh().explain(strategy="full_scan", analyze=True)
    assert scan.actual is not None
    assert scan.actual.cost.requests == {"VERSIONS": 2, "GET": 20}


def test_prices_are_per_thousand_requests_and_know_every_kind() -> None:
    assert usd({"GET": 1000}) == 0.0004
    assert usd({"LIST": 1000, "PUT": 1000, "HEAD": 1000, "DELETE": 9}) == pytest.approx(0.0104)
    with pytest.raises(KeyError):
        usd({"COPY": 1})


@pytest.mark.parametrize(
    ("query", "strategy", "words"),
    [
        ({"filter": {"name": "x"}}, "index_lookup", r"no index can answer.*byStatus \(status\)"),
        ({"filter": {"status": None}}, "index_lookup", "no index can answer"),
        ({"filter": {"notes": "x"}}, "manifest_scan", "not possible: the manifest lacks notes"),
        ({}, "manifest_scan", "not possible: the query needs whole documents"),
        ({"filter": {"notes": "x"}}, "manifest_targeted", "not possible: the manifest lacks notes"),
        ({}, "index", "unknown strategy 'index'; known: index_lookup, manifest_scan"),
    ],
)
def test_a_strategy_that_is_not_possible_is_refused_with_the_reason(
    room: Room, query: dict[str, JsonValue], strategy: str, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        room.fresh().find_all(**query, strategy=strategy)  # type: ignore[arg-type]  # arguments of a table of cases
    with pytest.raises(Invalid, match=words):
        room.fresh().explain(**query, _strategy=strategy)  # type: ignore[arg-type]  # arguments of a table of cases


def test_a_forced_strategy_is_taken_by_either_name(room: Room) -> None:
    plain = room.fresh().find_all({"status": "active"}, select=["name"])
    assert plain.plan.strategy == "manifest_scan"
    for strategy in ("index_lookup", "manifest_targeted", "full_scan"):
        forced = room.fresh().find_all({"status": "active"}, select=["name"], strategy=strategy)
        as_in_the_seed = room.fresh().find_all({"status": "active"}, select=["name"], _strategy=strategy)
        assert (forced, forced.plan.strategy) == (as_in_the_seed, as_in_the_seed.plan.strategy) == (plain, strategy)


def test_a_forced_strategy_without_its_file_says_how_to_make_it() -> None:
    room = Room(3)
    room.store.delete("org/customers/.worm.index/status.json")
    with pytest.raises(Invalid, match=r"byStatus is missing.*build_indexes"):
        room.fresh().find_all(filter={"status": "active"}, strategy="index_lookup")
    room.store.delete(ROOT)
    with pytest.raises(Invalid, match=r"missing, damaged or behind.*build_manifest"):
        room.fresh().find_all(select=["name"], strategy="manifest_scan")


def test_an_intersection_does_without_an_index_that_is_lost() -> None:
    room = Room(20)
    room.store.delete("org/customers/.worm.index/status.json")
    vip = {"status": "inactive", "tags": "vip"}
    found = room.fresh().find_all(filter=vip)
    assert (found.plan.strategy, [row["id"] for row in found]) == ("index_lookup", ["c000", "c010"])
    either: dict[str, JsonValue] = {"$or": [{"status": "inactive"}, {"tags": "vip"}]}
    assert room.fresh().find_all(filter=either).plan.strategy == "manifest_targeted"
    with pytest.raises(Invalid, match="byStatus, byTags is missing"):
        room.fresh().find_all(filter=either, strategy="index_lookup")


def test_one_index_is_read_once_for_several_values(room: Room) -> None:
    either: dict[str, JsonValue] = {"$or": [{"status": "active"}, {"status": "inactive"}, {"status": "x"}]}
    assert room.spent(lambda: room.fresh().find_all(filter=either)) == 1 + 20
    twice: dict[str, JsonValue] = {"$and": [{"tags": "vip"}, {"tags": "vip"}]}
    assert room.spent(lambda: room.fresh().find_all(filter=twice)) == 1 + 2


def test_the_ids_of_several_indexes_are_intersected(room: Room) -> None:
    both: dict[str, JsonValue] = {"status": "inactive", "tags": {"$in": ["vip"]}}
    assert room.spent(lambda: room.fresh().find_all(filter=both)) == 2 + 2


@pytest.mark.parametrize("wanted", [2**53 + 1, float(2**53), -(2**60), 2**64 - 1, 1e300])
def test_numbers_that_one_type_cannot_hold_exactly_are_looked_up_by_what_they_equal(wanted: JsonValue) -> None:
    fields = {"fields": {"n": {"type": "number"}}, "manifest": {"enabled": True}, "indexes": {"byN": {"field": "n"}}}
    room = Room(0, **fields)
    assert isinstance(wanted, int | float)
    same: JsonValue = int(wanted) if isinstance(wanted, float) and wanted < 2**64 else float(wanted)
    room.fresh().save({"id": "a", "n": same})
    expected = ["a"] if same == wanted else []
    for strategy in ("index_lookup", "manifest_scan", "full_scan"):
        found = room.fresh().find_all(filter={"n": wanted}, strategy=strategy)
        assert [row["id"] for row in found] == expected


def test_a_part_of_a_text_is_not_looked_up(room: Room) -> None:
    found = room.fresh().find_all(filter={"status": {"$contains": "inact"}}, select=["notes"])
    assert (found.plan.strategy, len(found)) == ("manifest_targeted", 10)
    with pytest.raises(Invalid, match="no index can answer"):
        room.fresh().find_all(filter={"status": {"$contains": "active"}}, strategy="index_lookup")


def test_without_auto_update_no_index_is_asked() -> None:
    room = Room(4, manifest={"enabled": True, "autoUpdate": False})
    room.fresh().build_manifest()
    assert room.fresh().explain(filter={"email": "1@x.org"}).strategy == "manifest_scan"
    with pytest.raises(Invalid, match="no index can answer"):
        room.fresh().find_all(filter={"email": "1@x.org"}, strategy="index_lookup")


def test_a_dotted_column_that_may_lead_through_an_array_does_not_filter() -> None:
    free = {"fields": {"meta": {"type": "object"}}, "manifest": {"enabled": True, "fields": ["meta.a.b"]}}
    room = Room(0, **free, indexes={"byB": {"field": "meta.a.b"}})
    room.fresh().save({"id": "a", "meta": {"a": [{"b": 1}]}})
    room.fresh().save({"id": "b", "meta": {"a": {"b": 1}}})
    found = room.fresh().find_all(filter={"meta.a.b": 1}, select=["meta.a.b"])
    assert found == [{"id": "a"}, {"id": "b", "meta.a.b": 1}]
    assert found.plan.strategy == "full_scan"
    with pytest.raises(Invalid, match="no index can answer"):
        room.fresh().find_all(filter={"meta.a.b": 1}, strategy="index_lookup")
