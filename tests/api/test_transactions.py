"""Transactions by HTTP: all or nothing."""

from __future__ import annotations

import pytest

from tests.api.client import Reply
from tests.api.shop import Shop


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    made.session.model("Account").insert_many([{"id": "a", "balance": 100}, {"id": "b", "balance": 0}])
    return made


def version(shop: Shop, id: str) -> str:
    found = shop.get(f"/v1/models/Account/documents/{id}").json["version"]
    assert isinstance(found, str)
    return found


def commit(shop: Shop, *operations: object, **headers: str) -> Reply:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return shop.call("POST", "/v1/transactions", {"operations": operations}, given)


def save(id: str, balance: int, **more: object) -> dict[str, object]:
    return {"op": "save", "model": "Account", "document": {"id": id, "balance": balance}, **more}


def balances(shop: Shop) -> dict[str, object]:
    return {str(one["id"]): one["balance"] for one in shop.session.model("Account").find_all(sort="id")}


def test_all_operations_are_one_commit(shop: Shop) -> None:
    done = commit(
        shop,
        save("a", 70, version=version(shop, "a")),
        save("b", 30, version=version(shop, "b")),
        {"op": "save", "model": "Account", "document": {"balance": 1}},
    )
    assert done.status == 200, done.body
    assert done.json["seq"] == 3
    assert [one["op"] for one in done.json["items"]] == ["save"] * 3
    assert balances(shop) == {"a": 70, "b": 30, done.json["items"][2]["id"]: 1}
    assert shop.session.model("Account").get_history("a")[-1].actor == "ann"


def test_a_version_that_is_not_there_any_more_writes_nothing(shop: Shop) -> None:
    old = version(shop, "a")
    shop.session.model("Account").patch("a", {"balance": 50})
    refused = commit(shop, save("b", 30), save("a", 70, version=old))
    assert (refused.status, refused.slug) == (412, "precondition-failed")
    assert balances(shop) == {"a": 50, "b": 0}


def test_require_checks_without_writing(shop: Shop) -> None:
    old = version(shop, "a")
    entries = len(shop.session.model("Account").get_history("a"))
    require = {"op": "require", "model": "Account", "id": "a", "version": old}
    assert commit(shop, require, save("b", 1)).status == 200
    assert len(shop.session.model("Account").get_history("a")) == entries
    shop.session.model("Account").patch("a", {"balance": 5})
    assert commit(shop, require, save("b", 2)).status == 412
    assert balances(shop)["b"] == 1


def test_require_without_a_version_needs_any_and_with_null_none(shop: Shop) -> None:
    assert commit(shop, {"op": "require", "model": "Account", "id": "a"}).json["seq"] is None
    assert commit(shop, {"op": "require", "model": "Account", "id": "none"}).status == 412
    assert commit(shop, {"op": "require", "model": "Account", "id": "none", "version": None}).status == 200
    assert commit(shop, {"op": "require", "model": "Account", "id": "a", "version": None}).status == 412


def test_a_save_with_version_null_only_creates(shop: Shop) -> None:
    assert commit(shop, save("a", 1, version=None)).status == 412
    assert commit(shop, save("c", 1, version=None)).status == 200


def test_a_delete_says_whether_something_was_there(shop: Shop) -> None:
    delete = {"op": "delete", "model": "Account", "id": "a", "version": version(shop, "a")}
    done = commit(shop, delete, {"op": "delete", "model": "Account", "id": "none"})
    assert [one["wasThere"] for one in done.json["items"]] == [True, False]
    assert balances(shop) == {"b": 0}


def test_one_that_is_refused_refuses_all_and_is_named(shop: Shop) -> None:
    refused = commit(shop, save("b", 30), {"op": "save", "model": "Account", "document": {"id": "a", "balance": "x"}})
    assert refused.status == 422
    assert refused.json["pointer"] == "/operations/1/document/balance"
    assert balances(shop) == {"a": 100, "b": 0}


def test_a_model_in_no_space_has_no_transactions(shop: Shop) -> None:
    refused = commit(shop, {"op": "save", "model": "Note", "document": {"id": "n"}})
    assert (refused.status, refused.json["pointer"]) == (422, "/operations/0")


@pytest.mark.parametrize(
    ("operation", "pointer"),
    [
        (5, "/operations/0"),
        ({}, "/operations/0/op"),
        ({"op": "x"}, "/operations/0/op"),
        ({"op": "save"}, "/operations/0/model"),
        ({"op": "save", "model": "Account"}, "/operations/0/document"),
        ({"op": "delete", "model": "Account"}, "/operations/0/id"),
        ({"op": "delete", "model": "Account", "id": "a", "document": {}}, "/operations/0/document"),
        ({"op": "require", "model": "Account", "id": 5}, "/operations/0/id"),
        ({"op": "require", "model": "Account", "id": "a", "version": 5}, "/operations/0/version"),
        ({"op": "require", "model": "Account", "id": "a", "more": 5}, "/operations/0/more"),
        ({"op": "require", "model": "Account", "id": "a", "version": "nonsense"}, "/operations/0"),
        ({"op": "save", "model": "Account", "document": {}, "version": "x"}, "/operations/0/version"),
    ],
)
def test_a_wrong_operation_is_named(shop: Shop, operation: object, pointer: str) -> None:
    refused = commit(shop, operation)
    assert refused.status == 422
    assert refused.json["pointer"].startswith(pointer)


@pytest.mark.parametrize("body", [{}, {"operations": []}, {"operations": {}}, {"operations": [5] * 1001}, [], 5])
def test_a_wrong_body_is_refused(shop: Shop, body: object) -> None:
    assert shop.call("POST", "/v1/transactions", body).status == 422


def test_a_mistake_in_a_document_has_its_place_in_the_body(shop: Shop) -> None:
    wrong = {"op": "save", "model": "Account", "id": "a", "document": {"name": 1, "balance": "x"}}
    found = shop.call("POST", "/v1/transactions", {"operations": [wrong]}).json
    places = [f"/operations/0/document/{name}" for name in ("name", "balance")]
    assert [one["pointer"] for one in found["errors"]] == places
    assert found["pointer"] == places[0]


def test_an_unknown_model_is_not_found(shop: Shop) -> None:
    assert commit(shop, {"op": "delete", "model": "None", "id": "a"}).slug == "not-found"
    hidden = Shop(models=frozenset({"Note"}))
    assert commit(hidden, {"op": "delete", "model": "Account", "id": "a"}).slug == "not-found"


def test_a_transaction_on_a_branch_leaves_main_alone(shop: Shop) -> None:
    shop.session.create_branch("trial")
    body = {"operations": [save("a", 1)]}
    assert shop.call("POST", "/v1/transactions", body, query={"branch": "trial"}).status == 200
    assert balances(shop) == {"a": 100, "b": 0}
    assert shop.session.branch("trial").model("Account").get("a")["balance"] == 1


def test_the_same_key_commits_once(shop: Shop) -> None:
    operation = {"op": "save", "model": "Account", "document": {"balance": 1}}
    first = commit(shop, operation, Idempotency_Key="k1")
    again = commit(shop, operation, Idempotency_Key="k1")
    assert (first.status, again.status) == (200, 200)
    assert first.json == again.json
    assert len(balances(shop)) == 3
