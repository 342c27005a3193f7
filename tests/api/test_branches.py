"""Branches by HTTP."""

from __future__ import annotations

import pytest

from tests.api.client import Client, memory_session
from tests.api.shop import SCHEMA, Shop
from worm.api import branches
from worm.api.app import Api
from worm.spaces.merging import POLICIES


def test_the_policies_are_those_of_merges() -> None:
    assert list(branches.POLICIES) == list(POLICIES)


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    made.session.model("Account").insert_many([{"id": "a", "balance": 1}, {"id": "b", "balance": 1}])
    made.session.create_branch("trial")
    return made


def test_branches_are_listed_with_where_they_began(shop: Shop) -> None:
    main, trial = shop.get("/v1/branches").json["items"]
    assert (main["name"], main["parent"], main["isDeleted"]) == ("main", None, False)
    assert (trial["name"], trial["parent"], trial["forkSeq"], trial["isDeleted"]) == ("trial", "main", 2, False)


def test_a_database_without_spaces_has_no_branches() -> None:
    schema = {"models": {"Note": SCHEMA["models"]["Note"]}}
    client = Client(Api(lambda: memory_session(schema)))
    assert client.get("/v1/branches").json == {"items": []}
    assert client.call("POST", "/v1/branches", {"name": "x"}).status == 422


def test_a_branch_is_made_of_now_or_of_then(shop: Shop) -> None:
    made = shop.call("POST", "/v1/branches", {"name": "then", "at": 1})
    assert (made.status, made.json["name"], made.json["forkSeq"]) == (201, "then", 1)
    assert shop.get("/v1/models/Account/documents/b", {"branch": "then"}).status == 404
    assert shop.get("/v1/models/Account/documents/b", {"branch": "trial"}).status == 200


def test_a_name_that_is_used_is_a_conflict(shop: Shop) -> None:
    assert shop.call("POST", "/v1/branches", {"name": "trial"}).slug == "conflict"


@pytest.mark.parametrize("body", [{}, {"name": 1}, {"name": "x", "at": True}, {"name": "x", "y": 1}, {"name": ""}, []])
def test_a_wrong_branch_is_refused(shop: Shop, body: object) -> None:
    assert shop.call("POST", "/v1/branches", body).status == 422


def test_a_branch_is_deleted_and_undeleted(shop: Shop) -> None:
    assert shop.call("DELETE", "/v1/branches/trial").status == 204
    assert shop.get("/v1/branches").json["items"][1]["isDeleted"]
    assert shop.call("POST", "/v1/branches/trial/undelete").json["isDeleted"] is False
    assert shop.call("DELETE", "/v1/branches/none").slug == "not-found"


def test_a_difference_shows_what_a_merge_would_change(shop: Shop) -> None:
    shop.session.branch("trial").model("Account").patch("a", {"balance": 5})
    shop.session.branch("trial").model("Account").delete("b")
    found = shop.get("/v1/branches/trial/diff").json
    assert found["count"] == 2
    assert found["items"][0] == {
        "model": "Account",
        "id": "a",
        "change": "updated",
        "isConflict": False,
        "fields": [{"path": "balance", "from": 1, "to": 5}],
    }
    assert found["items"][1]["change"] == "deleted"
    assert len(shop.get("/v1/branches/trial/diff", {"limit": "1"}).json["items"]) == 1


def test_a_merge_brings_the_changes_and_says_who_and_why(shop: Shop) -> None:
    shop.session.branch("trial").model("Account").patch("a", {"balance": 5})
    dry = shop.call("POST", "/v1/branches/trial/merge", {"dryRun": True}).json["items"][0]
    assert (dry["seqs"], dry["count"]) == ([], 1)
    assert shop.session.model("Account").get("a")["balance"] == 1
    done = shop.call("POST", "/v1/branches/trial/merge", None, {"Worm-Reason": "tried"}).json["items"][0]
    assert (done["branch"], done["into"], len(done["seqs"]), done["count"]) == ("trial", "main", 1, 1)
    assert shop.session.model("Account").get("a")["balance"] == 5
    entry = shop.session.model("Account").get_history("a")[-1]
    assert (entry.actor, entry.reason) == ("ann", "tried")


def test_a_conflict_says_what_both_have(shop: Shop) -> None:
    shop.session.branch("trial").model("Account").patch("a", {"balance": 5})
    shop.session.model("Account").patch("a", {"balance": 7})
    refused = shop.call("POST", "/v1/branches/trial/merge", {})
    assert (refused.status, refused.slug) == (409, "merge-conflict")
    [conflict] = refused.json["conflicts"]
    assert (conflict["model"], conflict["id"]) == ("Account", "a")
    assert [conflict[side]["balance"] for side in ("base", "ours", "theirs")] == [1, 7, 5]
    assert shop.call("POST", "/v1/branches/trial/merge", {"policy": "theirs"}).status == 200
    assert shop.session.model("Account").get("a")["balance"] == 5


@pytest.mark.parametrize("body", [{"policy": "x"}, {"policy": 1}, {"dryRun": "yes"}, {"x": 1}, {"into": 5}])
def test_a_wrong_merge_is_refused(shop: Shop, body: object) -> None:
    assert shop.call("POST", "/v1/branches/trial/merge", body).status == 422


def test_somebody_with_some_models_can_neither_make_nor_merge_branches() -> None:
    shop = Shop(models=frozenset({"Account"}))
    shop.session.model("Account").insert({"id": "a"})
    shop.session.create_branch("trial")
    assert shop.call("POST", "/v1/branches", {"name": "x"}).slug == "scope"
    assert shop.call("DELETE", "/v1/branches/trial").slug == "scope"
    assert shop.call("POST", "/v1/branches/trial/merge").slug == "scope"
    assert shop.call("POST", "/v1/branches/trial/undelete").slug == "scope"
    assert shop.get("/v1/branches/trial/diff").status == 200
