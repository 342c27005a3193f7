"""The rules of the planner, from values alone: no store, no table. Execution is played by `walk`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worm.errors import Invalid
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.query.needs import Needs, Request
from worm.query.planner import (
    ASSUMED_MATCHES,
    COVERED,
    FEW,
    FORCED,
    GET_BYTES,
    PROMISED,
    UNUSABLE,
    Cost,
    Decision,
    Facts,
    Question,
    ScanFacts,
    decide,
    decide_stream,
    estimate,
)
from worm.tables.root import Counted, IndexPieces, Piece, Root
from worm.tables.view import Size

CUSTOMER: dict[str, object] = {
    "path": "#org/@customers/(id:string)",
    "fields": {
        "name": {"type": "string"},
        "email": {"type": "string"},
        "status": {"type": "string"},
        "notes": {"type": "string"},
    },
    "manifest": {"enabled": True, "fields": ["name", "email", "status"]},
    "indexes": {"byStatus": {"field": "status"}, "byEmail": {"field": "email", "unique": True}},
}
DEFINITION = load_schema({"version": "1.0", "models": {"Customer": CUSTOMER}}).model("Customer")
AT_HAND = ScanFacts(0, Size(1000, 100, 100_000))
"""A whole manifest, or one whose files are all in memory."""

Rules = Callable[[Facts], "Decision | Question"]
Step = tuple[list[Question], Decision]


def needs(**query: Any) -> Needs:
    populate, strategy = query.pop("populate", ()), query.pop("strategy", None)
    return Needs(DEFINITION, Request.of(**query, populate=populate, strategy=strategy))


def missing(files: int, size: int = 0) -> ScanFacts:
    """A partitioned manifest of which so many files are still to be read."""
    pieces = tuple(Piece(f"partition-{at}", 10, 0) for at in range(files))
    return ScanFacts(files, Size(1000, 100, size, 0, Root("Customer", 1000, 0, 1, "", pieces)))


def walk(
    wanted: Needs,
    root: ScanFacts | None = AT_HAND,
    ids: int | None = None,
    *,
    rows: bool = True,
    only_root: bool = False,
    rules: Rules = decide,
) -> Step:
    """What the rules ask for, and what they decide when these are the answers."""
    asked: list[Question] = []
    while True:
        known = frozenset(asked)
        facts = Facts(
            wanted,
            only_root,
            known,
            root if "root" in known else None,
            ids if "ids" in known else None,
            rows and "rows" in known,
        )
        step = rules(facts)
        if isinstance(step, Decision):
            return asked, step
        assert step not in asked, "a question that was answered"
        asked.append(step)


ACTIVE: dict[str, JsonValue] = {"status": "active"}
BY_STATUS = Decision("index_lookup", "index byStatus answers the filter")
BY_EMAIL = Decision("index_lookup", "index byEmail answers the filter")
SCAN = Decision("manifest_scan", COVERED)
LOST = Decision("full_scan", UNUSABLE)
WHOLE = "the query needs whole documents, and the manifest has only some of their fields (manifest.fields is set)"
TARGETED = Decision("manifest_targeted", f"the manifest names the documents to read: {WHOLE}")


# The first rule: index look-ups


@pytest.mark.parametrize("select", [None, ["name"]])
def test_a_unique_value_is_looked_up_without_a_look_at_the_manifest(select: list[str] | None) -> None:
    assert walk(needs(filter={"email": "a"}, select=select), ids=1) == (["ids"], BY_EMAIL)


@pytest.mark.parametrize(("count", "asked"), [(PROMISED, ["ids"]), (PROMISED + 1, ["root", "rows"])])
def test_so_many_ids_are_worth_a_look_up_and_one_more_is_not(count: int, asked: list[Question]) -> None:
    wanted = needs(filter={"id": {"$in": [f"c{at}" for at in range(count)]}}, select=["name"])
    named = Decision("index_lookup", "the filter names the ids")
    assert walk(wanted, ids=count) == (asked, named if count == PROMISED else SCAN)


def test_unique_values_that_turn_out_to_name_many_documents_are_compared_with_a_scan() -> None:
    """Raw uploads may give one value to many documents."""
    wanted = needs(filter={"email": "a"}, select=["name"])
    assert walk(wanted, ids=PROMISED + 1) == (["ids", "root", "rows"], SCAN)
    assert walk(wanted, missing(PROMISED + 1), ids=PROMISED + 1) == (["ids", "root"], BY_EMAIL)


@pytest.mark.parametrize(("files", "is_looked_up"), [(0, False), (2, False), (3, True)])
def test_an_index_is_asked_where_a_scan_has_more_files_to_read_than_the_index(files: int, is_looked_up: bool) -> None:
    wanted = needs(filter=ACTIVE, select=["name"])
    expected: Step = (["root", "ids"], BY_STATUS) if is_looked_up else (["root", "rows"], SCAN)
    assert walk(wanted, missing(files), ids=1) == expected


@pytest.mark.parametrize(("found", "is_kept"), [(20, True), (21, False)])
def test_a_look_up_is_left_when_it_names_more_documents_than_a_scan_has_files(found: int, is_kept: bool) -> None:
    wanted = needs(filter=ACTIVE, select=["name"])
    expected: Step = (["root", "ids"], BY_STATUS) if is_kept else (["root", "ids", "rows"], SCAN)
    assert walk(wanted, missing(20), ids=found) == expected


def test_bytes_of_missing_files_count_as_files() -> None:
    wanted = needs(filter=ACTIVE, select=["name"])
    assert walk(wanted, missing(20, 42 * GET_BYTES), ids=60)[1] == BY_STATUS
    assert walk(wanted, missing(20, 42 * GET_BYTES), ids=61)[1] == SCAN


def test_a_page_without_sort_counts_only_the_documents_that_it_takes() -> None:
    first = needs(filter=ACTIVE, select=["name"], limit=3, offset=2)
    assert walk(first, missing(6), ids=500)[1] == BY_STATUS
    assert walk(first, missing(5), ids=500)[1] == SCAN
    is_sorted = needs(filter=ACTIVE, select=["name"], limit=3, offset=2, sort={"field": "name"})
    assert walk(is_sorted, missing(6), ids=500)[1] == SCAN
    is_tested_further = needs(filter={**ACTIVE, "name": "x"}, select=["name"], limit=3, offset=2)
    assert walk(is_tested_further, missing(6), ids=500)[1] == SCAN


def test_what_a_look_up_read_on_its_way_does_not_make_it_vain() -> None:
    """A look-up reads deltas, so fewer files are missing after it; by then it is paid for."""
    wanted = needs(filter=ACTIVE, select=["name"])
    assert decide(Facts(wanted, False, frozenset({"root"}), missing(2))) == "rows"
    assert decide(Facts(wanted, False, frozenset({"root", "ids"}), missing(2), 2)) == BY_STATUS


def test_where_the_manifest_cannot_answer_an_index_is_asked_first() -> None:
    assert walk(needs(filter=ACTIVE), ids=FEW) == (["ids"], BY_STATUS)


@pytest.mark.parametrize(
    ("query", "strategy"),
    [
        ({"filter": ACTIVE}, "index_lookup"),
        ({"filter": {**ACTIVE, "name": "x"}}, "manifest_targeted"),
        ({"filter": ACTIVE, "sort": {"field": "name"}, "limit": FEW}, "manifest_targeted"),
        ({"filter": ACTIVE, "sort": {"field": "notes"}, "limit": FEW}, "index_lookup"),
        ({"filter": ACTIVE, "limit": FEW - 1}, "index_lookup"),
    ],
)
def test_a_look_up_of_many_is_left_only_where_the_manifest_may_name_fewer(
    query: dict[str, object], strategy: str
) -> None:
    assert walk(needs(**query), ids=FEW + 1)[1].strategy == strategy
    assert walk(needs(**query), ids=FEW)[1] == BY_STATUS
    assert walk(needs(**query), None, ids=FEW + 1)[1] == BY_STATUS, "there is no manifest that could"


def test_an_index_that_cannot_answer_is_passed_over() -> None:
    assert walk(needs(filter={"email": "a"}, select=["name"])) == (["ids", "root", "rows"], SCAN)
    assert walk(needs(filter=ACTIVE)) == (["ids", "root", "rows"], TARGETED)
    assert walk(needs(filter=ACTIVE), None) == (["ids", "root"], LOST)


# The other rules


def test_a_manifest_with_all_fields_is_scanned() -> None:
    assert walk(needs(filter={"name": "x"}, sort={"field": "email"}, select=["status"])) == (["root", "rows"], SCAN)


@pytest.mark.parametrize(
    ("query", "lack"),
    [
        ({"filter": {"name": "x"}}, WHOLE),
        ({"filter": {"name": "x", "notes": "y"}, "select": ["name"]}, "the manifest lacks notes"),
        ({"filter": {"name": "x"}, "sort": {"field": "notes"}, "select": ["name"]}, "the manifest lacks notes"),
        ({"filter": {"name": "x"}, "select": ["name"], "populate": ("name",)}, "populate needs documents"),
    ],
)
def test_a_manifest_that_can_test_a_part_of_the_filter_names_the_documents(query: dict[str, object], lack: str) -> None:
    targeted = Decision("manifest_targeted", f"the manifest names the documents to read: {lack}")
    assert walk(needs(**query)) == (["root", "rows"], targeted)


@pytest.mark.parametrize("filter", [{"notes": "x"}, {"$or": [{"notes": "x"}, {"name": "y"}]}])
def test_a_manifest_that_can_test_nothing_is_not_even_asked_for(filter: dict[str, object]) -> None:
    assert walk(needs(filter=filter)) == ([], Decision("full_scan", "the manifest lacks notes"))


def test_a_manifest_that_cannot_be_used_or_read_leaves_all_documents() -> None:
    for query in ({"select": ["name"]}, {"filter": {"name": "x"}}):
        assert walk(needs(**query), None) == (["root"], LOST)
        assert walk(needs(**query), missing(3), rows=False) == (["root", "rows"], LOST)


def test_to_explain_nothing_but_the_root_is_asked_for() -> None:
    assert walk(needs(filter={"email": "a"}), only_root=True) == ([], BY_EMAIL)
    assert walk(needs(filter=ACTIVE, select=["name"]), missing(9), only_root=True) == (["root"], BY_STATUS)
    assert walk(needs(filter={"name": "x"}, select=["name"]), missing(9), only_root=True) == (["root"], SCAN)
    assert walk(needs(filter={"name": "x"}), None, only_root=True) == (["root"], LOST)
    forced = needs(strategy="index_lookup", filter=ACTIVE)
    assert walk(forced, only_root=True) == ([], Decision("index_lookup", FORCED))


# Forced strategies


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        ("full_scan", []),
        ("index_lookup", ["ids"]),
        ("manifest_scan", ["root", "rows"]),
        ("manifest_targeted", ["root", "rows"]),
    ],
)
def test_a_forced_strategy_asks_only_for_what_it_takes(strategy: str, asked: list[Question]) -> None:
    found, decision = walk(needs(strategy=strategy, filter=ACTIVE, select=["name"]), ids=10 * FEW)
    assert (found, decision.strategy, decision.reason) == (asked, strategy, FORCED)


@pytest.mark.parametrize(
    ("strategy", "filter", "root", "rows", "words"),
    [
        ("index_lookup", {"name": "x"}, AT_HAND, True, r"no index can answer.*byStatus \(status\)"),
        ("index_lookup", ACTIVE, AT_HAND, True, "byStatus is missing, damaged or has another definition"),
        ("manifest_scan", {"notes": "x"}, AT_HAND, True, "the manifest lacks notes"),
        ("manifest_scan", {"name": "x", "notes": "y"}, AT_HAND, True, "the manifest lacks notes"),
        ("manifest_targeted", {"notes": "x"}, AT_HAND, True, "the manifest lacks notes"),
        ("manifest_scan", ACTIVE, None, True, UNUSABLE),
        ("manifest_targeted", ACTIVE, missing(3), False, UNUSABLE),
    ],
)
def test_a_forced_strategy_that_is_not_possible_is_refused(
    strategy: str, filter: dict[str, object], root: ScanFacts | None, rows: bool, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        walk(needs(strategy=strategy, filter=filter, select=["name"]), root, rows=rows)


# Streams


@pytest.mark.parametrize(
    ("query", "root", "ids", "asked", "decision"),
    [
        ({"filter": {"email": "a"}, "select": ["name"]}, AT_HAND, 1, ["ids"], BY_EMAIL),
        ({"filter": {"email": "a"}, "select": ["name"]}, AT_HAND, None, ["ids", "root"], SCAN),
        ({"filter": ACTIVE, "select": ["name"]}, missing(99), 1, ["root"], SCAN),
        ({"filter": ACTIVE}, AT_HAND, 10 * FEW, ["ids"], BY_STATUS),
        ({"filter": {"name": "x"}, "select": ["name"]}, AT_HAND, None, ["root"], SCAN),
        ({"filter": {"name": "x"}, "select": ["name"]}, None, None, ["root"], LOST),
        ({"filter": {"name": "x"}}, AT_HAND, None, [], Decision("full_scan", WHOLE)),
    ],
)
def test_a_stream_reads_the_manifest_through_unless_few_are_named_or_it_cannot_answer(
    query: dict[str, object], root: ScanFacts | None, ids: int | None, asked: list[Question], decision: Decision
) -> None:
    assert walk(needs(**query), root, ids, rules=decide_stream) == (asked, decision)


@pytest.mark.parametrize(("count", "strategy"), [(FEW, "index_lookup"), (FEW + 1, "manifest_scan")])
def test_a_stream_looks_so_many_named_ids_up(count: int, strategy: str) -> None:
    wanted = needs(filter={"id": {"$in": [f"c{at}" for at in range(count)]}}, select=["name"])
    assert walk(wanted, ids=count, rules=decide_stream)[1].strategy == strategy


# Estimates


def test_a_whole_manifest_costs_one_get_and_its_bytes() -> None:
    size = Size(1000, 100, 100_000, 100_000)
    assert estimate(needs(select=["name"]), "manifest_scan", size) == Cost({"GET": 1}, 100_000)
    assert estimate(needs(filter={"name": "x"}), "manifest_targeted", size, 3) == Cost({"GET": 4}, 100_300)
    guessed = Cost({"GET": 1 + ASSUMED_MATCHES}, 100_000 + 100 * ASSUMED_MATCHES)
    assert estimate(needs(filter={"name": "x"}), "manifest_targeted", size) == guessed
    assert estimate(needs(), "full_scan", size) == Cost({"VERSIONS": 2, "GET": 1000}, 100_000)


def test_of_a_partitioned_table_a_look_up_reads_the_part_of_its_value_and_all_deltas() -> None:
    parts = (Piece("part-0", 5, 700), Piece("part-1", 5, 900, "m"))
    deltas = (Piece("delta-0", 1, 10), Piece("delta-1", 1, 20))
    partitions = (Piece("partition-0", 500, 4000, parquet=400), Piece("partition-1", 500, 5000))
    root: Root[Counted] = Root(
        "Customer", 1000, 9000, 1, "", partitions, deltas, None, {"email": IndexPieces("x", True, parts)}
    )
    size = Size(1000, 100, 5500, 50, root)
    assert estimate(needs(select=["name"]), "manifest_scan", size) == Cost({"GET": 5}, 5500)
    wanted = needs(filter={"email": {"$in": ["a", "b"]}})
    assert estimate(wanted, "index_lookup", size) == Cost({"GET": 1 + 1 + 1 + 2 + 2}, 50 + 700 + 30 + 2 * 100)
    both = needs(filter={"email": {"$in": ["a", "x"]}})
    assert estimate(both, "index_lookup", size) == Cost({"GET": 1 + 1 + 2 + 2 + 2}, 50 + 1600 + 30 + 2 * 100)
