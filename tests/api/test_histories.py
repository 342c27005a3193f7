"""The past by HTTP."""

from __future__ import annotations

import pytest

from tests.api.shop import Shop

NOTE = "/v1/models/Note/documents/a"


@pytest.fixture
def shop() -> Shop:
    """A note with three entries, and one that was deleted."""
    made = Shop()
    notes = made.session.model("Note")
    notes.insert({"id": "a", "title": "one", "stars": 1}, actor="bob", reason="first")
    made.tick()
    notes.patch("a", {"title": "two", "stars": None}, actor="cid")
    made.tick()
    notes.patch("a", {"title": "three"}, actor="bob", reason="better")
    notes.insert({"id": "gone", "title": "x"})
    notes.delete("gone")
    return made


def test_the_history_of_a_document_comes_newest_first(shop: Shop) -> None:
    found = shop.get(f"{NOTE}/history").json
    assert [(one["seq"], one["op"], one["actor"], one["reason"]) for one in found["items"]] == [
        (3, "update", "bob", "better"),
        (2, "update", "cid", None),
        (1, "create", "bob", "first"),
    ]
    assert found["items"][0]["diff"]["title"] == ["two", "three"]
    assert found["cursor"] is None


def test_a_long_history_is_read_in_pages(shop: Shop) -> None:
    first = shop.get(f"{NOTE}/history", {"limit": "2"}).json
    rest = shop.get(f"{NOTE}/history", {"limit": "2", "before": first["cursor"]}).json
    assert [one["seq"] for one in (*first["items"], *rest["items"])] == [3, 2, 1]
    assert rest["cursor"] is None


def test_a_document_that_never_was_has_no_history(shop: Shop) -> None:
    assert shop.get("/v1/models/Note/documents/none/history").slug == "not-found"


def test_a_model_without_oplog_has_no_history(shop: Shop) -> None:
    assert shop.get("/v1/models/Draft/documents/a/history").status == 400


def test_a_document_as_it_was_by_seq_and_by_time(shop: Shop) -> None:
    by_seq = shop.get(f"{NOTE}/at", {"seq": "1"}).json
    assert (by_seq["seq"], by_seq["document"]["title"]) == (1, "one")
    by_time = shop.get(f"{NOTE}/at", {"time": "2026-01-01T00:00:15Z"}).json
    assert (by_time["seq"], by_time["document"]["title"]) == (2, "two")


def test_a_document_that_was_deleted_then_is_null_and_one_before_its_time_is_404(shop: Shop) -> None:
    assert shop.get("/v1/models/Note/documents/gone/at", {"seq": "2"}).json == {
        "id": "gone",
        "seq": 2,
        "document": None,
    }
    assert shop.get(f"{NOTE}/at", {"time": "2020-01-01"}).slug == "not-found"
    assert shop.get(f"{NOTE}/at", {"seq": "99"}).slug == "not-found"


@pytest.mark.parametrize("query", [{}, {"seq": "1", "time": "2026-01-01"}, {"seq": "x"}, {"seq": "0"}, {"time": "x"}])
def test_a_state_needs_a_seq_or_a_time(shop: Shop, query: dict[str, str]) -> None:
    assert shop.get(f"{NOTE}/at", query).status == 400


def test_a_difference_tells_null_from_a_missing_field(shop: Shop) -> None:
    changes = shop.get(f"{NOTE}/diff", {"from": "1", "to": "2"}).json["changes"]
    by_path = {one["path"]: one for one in changes}
    assert by_path["stars"] == {"path": "stars", "from": 1, "to": None, "hasFrom": True, "hasTo": False}
    assert by_path["title"] == {"path": "title", "from": "one", "to": "two", "hasFrom": True, "hasTo": True}


def test_a_difference_needs_two_seqs(shop: Shop) -> None:
    assert shop.get(f"{NOTE}/diff", {"from": "1"}).json["pointer"] == "/to"


def test_a_rollback_saves_an_earlier_state_again(shop: Shop) -> None:
    done = shop.call("POST", f"{NOTE}/rollback", {"toSeq": 1}, {"Worm-Reason": "as%20before"})
    assert (done.status, done.json["document"]["title"], done.json["seq"]) == (200, "one", 4)
    newest = shop.get(f"{NOTE}/history", {"limit": "1"}).json["items"][0]
    assert (newest["actor"], newest["reason"], newest["metadata"]["rollback"]) == ("ann", "as before", 1)


def test_a_rollback_to_a_time(shop: Shop) -> None:
    done = shop.call("POST", f"{NOTE}/rollback", {"time": "2026-01-01T00:00:15Z"})
    assert done.json["document"]["title"] == "two"


def test_a_rollback_of_another_version_is_refused(shop: Shop) -> None:
    old = shop.get(NOTE).etag
    shop.session.model("Note").patch("a", {"title": "four"})
    assert shop.call("POST", f"{NOTE}/rollback", {"toSeq": 1}, {"If-Match": old}).slug == "precondition-failed"
    assert shop.session.model("Note").get("a")["title"] == "four"


@pytest.mark.parametrize(
    "body", [{}, {"toSeq": "1"}, {"toSeq": True}, {"seq": 1}, {"toSeq": 1, "time": "2026-01-01"}, {"time": 5}, []]
)
def test_a_rollback_needs_a_seq_or_a_time(shop: Shop, body: object) -> None:
    assert shop.call("POST", f"{NOTE}/rollback", body).status == 422


def test_a_rollback_to_a_deletion_is_refused(shop: Shop) -> None:
    path = "/v1/models/Note/documents/gone/rollback"
    assert shop.call("POST", path, {"toSeq": 2}).status == 422
    assert shop.call("POST", path, {"time": "2026-01-02"}).status == 422


def test_a_search_finds_who_changed_what(shop: Shop) -> None:
    found = shop.get("/v1/history", {"actor": "bob"}).json
    assert [(one["model"], one["id"], one["seq"]) for one in found["items"]] == [("Note", "a", 3), ("Note", "a", 1)]
    assert found["damages"] == []
    assert [one["seq"] for one in shop.get("/v1/history", {"reason": "BETTER"}).json["items"]] == [3]
    assert [one["id"] for one in shop.get("/v1/history", {"op": "delete"}).json["items"]] == ["gone"]


def test_a_search_is_read_in_pages(shop: Shop) -> None:
    found, query = [], {"limit": "2"}
    while True:
        page = shop.get("/v1/history", query).json
        found += [(one["id"], one["seq"]) for one in page["items"]]
        if page["cursor"] is None:
            break
        query = {"limit": "2", "cursor": page["cursor"]}
    assert sorted(found) == [("a", 1), ("a", 2), ("a", 3), ("gone", 1), ("gone", 2)]


@pytest.mark.parametrize("query", [{"op": "x"}, {"since": "x"}, {"limit": "0"}, {"cursor": "x"}, {"model": "Draft"}])
def test_a_wrong_search_is_refused(shop: Shop, query: dict[str, str]) -> None:
    assert shop.get("/v1/history", query).status == 400


def test_a_search_shows_only_the_models_that_the_caller_may_see() -> None:
    shop = Shop(models=frozenset({"Account"}))
    shop.session.model("Note").insert({"id": "a"})
    shop.session.model("Account").insert({"id": "b"})
    assert [one["model"] for one in shop.get("/v1/history").json["items"]] == ["Account"]
    assert shop.get("/v1/history", {"model": "Note"}).slug == "not-found"
    assert Shop(models=frozenset({"Draft"})).get("/v1/history").json["items"] == []


def test_the_history_of_a_branch_is_that_of_the_branch() -> None:
    shop = Shop()
    shop.session.model("Account").insert({"id": "a", "balance": 1})
    shop.session.create_branch("trial")
    shop.session.branch("trial").model("Account").patch("a", {"balance": 2})
    path = "/v1/models/Account/documents/a/history"
    assert len(shop.get(path).json["items"]) == 1
    newest = shop.get(path, {"branch": "trial"}).json["items"][0]
    assert (newest["seq"], newest["branch"]) == (2, "trial")


def test_whoever_sees_some_models_searches_the_history_of_a_branch() -> None:
    """Of their models only some are in a space, and the others have no branches."""
    shop = Shop(models=frozenset({"Note", "Account"}))
    shop.session.model("Account").insert({"id": "x"})
    shop.session.create_branch("draft")
    found = shop.get("/v1/history", {"branch": "draft"})
    assert (found.status, [one["id"] for one in found.json["items"]]) == (200, ["x"])
