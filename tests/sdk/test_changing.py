"""Verbs that change what is there: patches, operators, functions, and many documents at once."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import pytest

from tests.sdk.sessions import Bench, must
from worm.errors import Invalid
from worm.formats.strict_json import MISSING, JsonValue
from worm.sdk.document import DocumentDict
from worm.sdk.operators import check_operators, check_patch, merged, updated

DOCUMENT: dict[str, JsonValue] = {"id": "a", "n": 1, "tags": ["x"], "deep": {"list": [{"k": 1}], "name": "old"}}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [  # RFC 7396, appendix A, as far as the target is an object
        ({"a": "c"}, {"a": "c"}),
        ({"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": None}, {}),
        ({"a": ["c"]}, {"a": ["c"]}),
        ({"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": MISSING}, {}),
    ],
)
def test_a_patch_merges_as_rfc_7396_says(changes: Mapping[str, object], expected: dict[str, JsonValue]) -> None:
    assert merged({"a": "b"}, check_patch(changes)) == expected
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"c": None}}) == {"a": {"b": 1}}


@pytest.mark.parametrize("wrong", [{"a.b": 1}, {"$set": {"a": 1}}, [("a", 1)], None, "x", {1: 2}])
def test_a_patch_that_was_meant_otherwise_is_refused_with_the_way(wrong: object) -> None:
    with pytest.raises(Invalid, match="changes") as caught:
        check_patch(wrong)
    if isinstance(wrong, dict) and 1 not in wrong:
        assert "update(" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("operators", "path", "expected"),
    [
        ({"$set": {"deep.name": "new"}}, "name", "new"),
        ({"$set": {"deep.more.x": 1}}, "more", {"x": 1}),
        ({"$set": {"deep.list.0.k": 2}}, "list", [{"k": 2}]),
        ({"$unset": {"deep.name": ""}}, "name", MISSING),
        ({"$unset": {"deep.nothing.at.all": 1}}, "name", "old"),
        ({"$inc": {"deep.count": 2}}, "count", 2),
        ({"$push": {"deep.list": 5}}, "list", [{"k": 1}, 5]),
        ({"$push": {"deep.list": {"$each": [5, 6]}}}, "list", [{"k": 1}, 5, 6]),
        ({"$pull": {"deep.list": {"k": 1}}}, "list", []),
        ({"$pull": {"deep.list": {"$in": [1, {"k": 1}]}}}, "list", []),
        ({"$pull": {"deep.other": 1}}, "other", MISSING),
        ({"$addToSet": {"deep.list": {"$each": [{"k": 1}, 7, 7]}}}, "list", [{"k": 1}, 7]),
        ({"$addToSet": {"deep.new": True}}, "new", [True]),
    ],
)
def test_operators(operators: dict[str, object], path: str, expected: object) -> None:
    before = deepcopy(DOCUMENT)
    after = updated(before, check_operators(operators))
    deep = after["deep"]
    assert isinstance(deep, dict)
    assert deep.get(path, MISSING) == expected
    assert before == DOCUMENT  # a copy was changed


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        None,
        {"name": "x"},
        {"$rename": {"a": "b"}},
        {"$set": 5},
        {"$set": {"id": "b"}},
        {"$set": {"a..b": 1}},
        {"$set": {"a": 1}, "$inc": {"a.b": 1}},
        {"$set": {"a": object()}},
        {"$set": {5: 1}},
    ],
)
def test_wrong_operators_are_refused(wrong: object) -> None:
    with pytest.raises(Invalid):
        check_operators(wrong)


@pytest.mark.parametrize(
    "unfit",
    [
        {"$inc": {"tags": 1}},
        {"$inc": {"n": "1"}},
        {"$inc": {"n": True}},
        {"$push": {"n": 1}},
        {"$set": {"n.x": 1}},
        {"$set": {"tags.9": 1}},
        {"$set": {f"tags.{'1' * 5000}": 1}},
        {"$set": {"tags.x": 1}},
        {"$pull": {"n": 1}},
        {"$addToSet": {"deep": 1}},
        {"$push": {"tags": {"$each": 1}}},
    ],
)
def test_operators_that_do_not_fit_what_is_there_are_refused(unfit: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        updated(dict(DOCUMENT), check_operators(unfit))


def test_update_and_modify_change_what_is_there(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme", "score": 1})
    bench.tick()
    assert customers.update("a", {"$inc": {"score": 2}, "$push": {"tags": "new"}})["score"] == 3

    def rename(document: DocumentDict) -> None:
        document["name"] = f"{document['name']}!"

    assert customers.modify("a", rename)["name"] == "Acme!"
    assert customers.modify("a", lambda document: document | {"name": "Other"})["name"] == "Other"
    assert customers.modify("a", lambda document: DocumentDict({"name": "Plain"}))["name"] == "Plain"
    with pytest.raises(Invalid, match="changed the id"):
        customers.modify("a", lambda document: document | {"id": "b"})
    assert bench.ops() == ["create", *["update"] * 4]
    bench.assert_clean()


def test_who_and_why_reach_the_history(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme"}, actor="ben", reason="import", metadata={"ticket": 7})
    bench.tick()
    customers.patch("a", {"name": "New"}, reason="typo")
    customers.delete("a", reason="left", metadata={"by": "mail"})
    bench.tick()
    customers.restore("a", reason="came back")
    entries = customers.get_history("a")
    own = [{name: one.metadata[name] for name in ("reason", "ticket", "by") if name in one.metadata} for one in entries]
    assert own == [
        {"reason": "import", "ticket": 7},
        {"reason": "typo"},
        {"reason": "left", "by": "mail"},
        {"reason": "came back"},
    ]
    assert [one.actor for one in entries] == ["ben", "ann", "ann", "ann"]
    for wrong in ({"etag": "x"}, {"x": "y" * 3000}, [1]):
        with pytest.raises(Invalid, match="metadata"):
            customers.patch("a", {"name": "x"}, metadata=wrong)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(Invalid, match="reason"):
        customers.patch("a", {"name": "x"}, reason=5)  # type: ignore[arg-type]  # wrong on purpose
    bench.assert_clean()


def test_the_reason_of_a_delete_reaches_the_history_by_the_workers_too(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.customers(maintenance="events")
    customers.insert({"id": "a", "name": "Acme"}, reason="import")
    customers.delete("a", reason="left")
    bench.repair()
    assert [one.metadata.get("reason") for one in bench.customers().get_history("a")] == ["import", "left"]


def test_update_many_and_delete_many_by_a_filter(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert_many([{"id": f"c{n}", "score": n} for n in range(6)])
    bench.tick()
    which = {"score": {"$gte": 3}}
    tried = customers.update_many(which, {"$set": {"status": "inactive"}}, dry_run=True)
    assert [must(one.document)["status"] for one in tried] == ["inactive"] * 3
    assert customers.count({"status": "inactive"}) == 0
    done = customers.update_many(which, {"$set": {"status": "inactive"}})
    assert [one.id for one in done if one.ok] == ["c3", "c4", "c5"]
    assert customers.count({"status": "inactive"}) == 3
    assert [one.id for one in customers.delete_many(which, dry_run=True)] == ["c3", "c4", "c5"]
    assert customers.count() == 6
    assert all(one.ok for one in customers.delete_many(which))
    assert customers.count() == 3
    assert [one.document is not None for one in customers.delete_many(["c0", "x"])] == [True, False]
    refused = customers.update_many({"id": "c1"}, {"$set": {"score": "many"}})
    assert isinstance(refused[0].error, Invalid)
    for wrong in ("c1", 5, None):
        with pytest.raises(Invalid, match="a filter or a list of ids"):
            customers.delete_many(wrong)  # type: ignore[arg-type]  # wrong on purpose
    bench.assert_clean()


def test_update_many_leaves_alone_what_does_not_match_any_more(tmp_path: Path) -> None:
    """The table may be behind: the document decides."""
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme", "score": 5})
    other = bench.customers(maintenance="events")  # the table does not know
    bench.tick()
    other.patch("a", {"score": 0})
    (result,) = customers.update_many({"score": 5}, {"$set": {"name": "wrong"}})
    assert result.document is None
    assert result.ok
    (result,) = customers.delete_many({"score": 5})
    assert result.document is None
    assert bench.customers().get("a")["name"] == "Acme"


def test_find_one(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert_many([{"id": f"c{n}", "score": n} for n in range(3)])
    assert must(customers.find_one({"score": {"$gt": 0}}, sort={"field": "score", "order": "desc"}))["id"] == "c2"
    assert customers.find_one({"score": 9}) is None
