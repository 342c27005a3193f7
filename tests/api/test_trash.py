"""Trash by HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.api.shop import Shop


@pytest.fixture
def shop() -> Shop:
    made = Shop()
    notes = made.session.model("Note")
    for one in ("a", "b/c", "d"):
        notes.insert({"id": one, "title": one})
        notes.delete(one, actor="bob", reason="old")
    made.session.model("Account").insert({"id": "x"})
    made.session.model("Account").delete("x")
    return made


def test_trash_lists_who_deleted_what_and_until_when_it_is_kept(shop: Shop) -> None:
    found = shop.get("/v1/trash", {"model": "Note"}).json["items"]
    assert [one["id"] for one in found] == ["a", "b/c", "d"]
    assert found[0] == {
        "model": "Note",
        "id": "a",
        "deletedAt": "2026-01-01T00:00:00Z",
        "deletedBy": "bob",
        "expiresAt": "2026-01-31T00:00:00Z",
        "reason": "old",
    }


def test_trash_of_all_models_is_read_in_pages(shop: Shop) -> None:
    found, query = [], {"limit": "1"}
    while True:
        page = shop.get("/v1/trash", query).json
        found += [(one["model"], one["id"]) for one in page["items"]]
        if page["cursor"] is None:
            break
        query = {"limit": "1", "cursor": page["cursor"]}
    assert found == [("Account", "x"), ("Note", "a"), ("Note", "b/c"), ("Note", "d")]


def test_a_wrong_question_is_refused(shop: Shop) -> None:
    assert shop.get("/v1/trash", {"cursor": "x"}).status == 400
    assert shop.get("/v1/trash", {"model": "Draft"}).status == 400
    assert shop.get("/v1/trash", {"model": "None"}).status == 404


def test_a_deleted_document_comes_back_as_it_was(shop: Shop) -> None:
    done = shop.call("POST", "/v1/trash/Note/b%2Fc/restore", None, {"Worm-Reason": "needed"})
    assert (done.status, done.json["document"]["title"]) == (200, "b/c")
    assert done.headers["ETag"] == shop.get("/v1/models/Note/documents/b%2Fc").etag
    entry = shop.session.model("Note").get_history("b/c")[-1]
    assert (entry.op, entry.actor, entry.reason) == ("restore", "ann", "needed")


def test_what_is_not_in_trash_cannot_be_restored(shop: Shop) -> None:
    assert shop.call("POST", "/v1/trash/Note/none/restore").slug == "not-found"
    assert shop.call("POST", "/v1/trash/Draft/a/restore").status == 422


def test_a_document_that_exists_again_is_not_overwritten(shop: Shop) -> None:
    shop.session.model("Note").insert({"id": "a", "title": "new"})
    assert shop.call("POST", "/v1/trash/Note/a/restore").slug == "conflict"
    assert shop.session.model("Note").get("a")["title"] == "new"


def test_a_purged_document_is_gone_for_good(shop: Shop) -> None:
    assert shop.call("DELETE", "/v1/trash/Note/a").status == 204
    assert shop.call("DELETE", "/v1/trash/Note/a").slug == "not-found"
    assert shop.call("POST", "/v1/trash/Note/a/restore").slug == "not-found"
    assert shop.call("DELETE", "/v1/trash/Draft/a").status == 422


def test_only_models_that_the_caller_may_see_are_listed() -> None:
    shop = Shop(models=frozenset({"Account"}))
    for name in ("Note", "Account"):
        shop.session.model(name).insert({"id": "a"})
        shop.session.model(name).delete("a")
    assert [one["model"] for one in shop.get("/v1/trash").json["items"]] == ["Account"]
    assert shop.call("POST", "/v1/trash/Note/a/restore").slug == "not-found"


def test_trash_of_a_branch_is_what_the_branch_deleted() -> None:
    shop = Shop()
    shop.session.model("Account").insert({"id": "a"})
    shop.session.create_branch("trial")
    shop.session.branch("trial").model("Account").delete("a", actor="bob")
    assert shop.get("/v1/trash").json["items"] == []
    found = shop.get("/v1/trash", {"branch": "trial"}).json["items"]
    assert [(one["id"], one["deletedBy"], one["expiresAt"]) for one in found] == [("a", "bob", None)]


@pytest.mark.parametrize("name", ["Note", "Account"])
def test_the_version_that_was_deleted_is_restored_and_no_other(shop: Shop, name: str) -> None:
    """In a space the ETag is a commit alone, and the tombstone knows an etag: nothing matched."""
    place = f"/v1/models/{name}/documents/v"
    old = shop.call("POST", f"/v1/models/{name}/documents", {"id": "v"}).etag
    shop.tick()
    patch = {"Content-Type": "application/merge-patch+json"}
    last = shop.call("PATCH", place, '{"title": "w", "name": "w"}', patch).etag
    assert shop.call("DELETE", place).status == 204
    refused = shop.call("POST", f"/v1/trash/{name}/v/restore", None, {"If-Match": old})
    assert (refused.status, refused.slug) == (412, "precondition-failed")
    assert shop.call("POST", f"/v1/trash/{name}/v/restore", None, {"If-Match": last}).status == 200


def test_of_many_restores_of_a_document_in_a_space_one_happens_and_leaves_no_tombstone(shop: Shop) -> None:
    """Two threads took each other's restore for their own. The tombstone stayed without its copy, and each later
    restore was a 500."""
    trash = shop.session.collection("Account").trash
    for at in range(12):
        shop.session.model("Account").insert({"id": f"r{at}"})
        shop.session.model("Account").delete(f"r{at}")
        with ThreadPoolExecutor(6) as threads:
            calls = [threads.submit(shop.call, "POST", f"/v1/trash/Account/r{at}/restore") for _ in range(6)]
            found = sorted(one.result().status for one in calls)
        assert (found[0], set(found[1:]) <= {404, 409}) == (200, True)
        assert trash.tombstone(f"r{at}") is None
