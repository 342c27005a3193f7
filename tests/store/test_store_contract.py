"""The contract of every store: one suite on memory, file, moto and LocalStack."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from worm.errors import Invalid, UnsafeStore
from worm.store.base import (
    NOT_MODIFIED,
    PUT_ID,
    Gone,
    IfAbsent,
    IfMatch,
    Listed,
    Lost,
    Object,
    ObjectInfo,
    Put,
    Read,
    Store,
    Won,
    content_etag,
)

if TYPE_CHECKING:
    from tests.store.conftest import Subject


def test_a_get_returns_what_was_put_with_its_metadata_etag_and_size(store: Store) -> None:
    won = store.put("a/b.json", b'{"x":1}', metadata={"worm-actor": "Zo%C3%AB", "worm-op": "create"})
    found = store.get("a/b.json")
    assert found is not None
    assert found == Object(
        key="a/b.json",
        etag=content_etag(b'{"x":1}'),
        size=7,
        last_modified=found.last_modified,
        version_id=won.version_id,
        metadata={"worm-actor": "Zo%C3%AB", "worm-op": "create"},
        body=b'{"x":1}',
    )
    assert won.etag == found.etag


def test_last_modified_is_a_recent_whole_second_in_utc(store: Store) -> None:
    store.put("a", b"1")
    found = store.get("a")
    assert found is not None
    assert found.last_modified.tzinfo == UTC
    assert found.last_modified.microsecond == 0
    assert abs(datetime.now(UTC) - found.last_modified) < timedelta(minutes=1)


def test_get_head_listing_and_versions_agree_on_etag_size_and_time(store: Store) -> None:
    store.put("a/b", b"12345")
    found, head = store.get("a/b"), store.head("a/b")
    (listed,), (version,) = store.list("a/"), store.versions("a/b")
    assert found is not None
    assert head == ObjectInfo("a/b", found.etag, 5, found.last_modified, found.version_id, found.metadata)
    assert listed == Listed("a/b", found.etag, 5, found.last_modified)
    assert (version.etag, version.size, version.last_modified) == (found.etag, 5, found.last_modified)
    assert (version.version_id, version.is_latest, version.is_delete_marker) == (found.version_id, True, False)


def test_an_absent_key_is_none_everywhere(store: Store) -> None:
    assert store.get("nope") is None
    assert store.head("nope") is None
    assert store.get_if_changed("nope", content_etag(b"")) is None
    assert store.get("nope", version_id="nope") is None
    assert list(store.versions("nope")) == []
    assert list(store.list("nope/")) == []
    store.delete("nope/at-all")


def test_an_empty_body_is_a_body(store: Store) -> None:
    store.put("empty", b"")
    found = store.get("empty")
    assert found is not None
    assert (found.body, found.size, found.etag) == (b"", 0, content_etag(b""))


@pytest.mark.parametrize(
    "key",
    [
        "a b+c%2Fd%20e.json",
        "sp ace/q?x=1&y#z",
        "é/ü/ñ/日本/😀",
        ".worm.schema.json",
        "org/.oplog/x/0001.json",
        "quo\"te's<&>",
        "a:b|c^d`e{f}[g]~h",
        "back\\slash",
        "x" * 200 + "/" + "y" * 200,
    ],
)
def test_a_key_is_the_same_name_in_every_call(store: Store, key: str) -> None:
    won = store.put(key, key.encode())
    found = store.get(key)
    assert found is not None
    assert (found.key, found.body) == (key, key.encode())
    assert [row.key for row in store.list("")] == [key]
    assert [row.key for row in store.list_versions("")] == [key]
    assert [row.version_id for row in store.versions(key)] == [won.version_id]
    store.delete(key)
    assert store.get(key) is None


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".", "a\x00b", "a\nb", "a\x7f", "\ud800", "x" * 1025]
)
def test_a_key_that_other_clients_would_spell_differently_is_refused_by_name_before_any_request(
    store: Store, key: str
) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.put(key, b""),
        lambda: store.put_if_absent(key, b""),
        lambda: store.put_if_match(key, b"", '"x"'),
        lambda: store.delete(key),
        lambda: store.delete_if_match(key, '"x"'),
        lambda: store.versions(key),
    ]
    for call in calls:
        with pytest.raises(Invalid) as refused:
            call()
        assert refused.value.key == key
    assert store.requests.snapshot() == {}


def test_metadata_that_no_store_keeps_as_it_is_is_refused(store: Store) -> None:
    for metadata in ({"Upper": "x"}, {"x": "é"}, {"x": " padded"}, {"x": ""}, {"content-type": "x"}, {"x": "y" * 2048}):
        with pytest.raises(Invalid):
            store.put("a", b"", metadata=metadata)
    assert store.get("a") is None


def test_put_if_absent_wins_once_and_then_loses_to_what_is_there(store: Store) -> None:
    won = store.put_if_absent("a", b"first", metadata={"worm-op": "create"})
    found = store.get("a")
    assert found is not None
    assert won == Won(found.etag, found.version_id)
    assert found.metadata == {"worm-op": "create", PUT_ID: found.metadata[PUT_ID]}
    assert store.put_if_absent("a", b"second") == Lost(found)
    assert store.get("a") == found


def test_put_if_absent_wins_again_after_a_delete(store: Store) -> None:
    store.put_if_absent("a", b"first")
    store.delete("a")
    won = store.put_if_absent("a", b"second")
    assert won == Won(content_etag(b"second"), won.version_id if isinstance(won, Won) else None)


def test_put_if_match_replaces_only_what_the_etag_names(store: Store) -> None:
    first = store.put("a", b"first")
    second = store.put_if_match("a", b"second", first.etag)
    current = store.get("a")
    assert current is not None
    assert (second, current.body) == (Won(content_etag(b"second"), current.version_id), b"second")
    assert store.put_if_match("a", b"third", first.etag) == Lost(current)
    assert store.get("a") == current


def test_put_if_match_on_an_absent_or_deleted_key_is_gone(store: Store) -> None:
    assert store.put_if_match("a", b"x", content_etag(b"x")) == Gone()
    won = store.put("a", b"first")
    store.delete("a")
    assert store.put_if_match("a", b"x", won.etag) == Gone()
    assert store.get("a") is None


def test_of_eight_racing_creates_exactly_one_wins_and_the_others_see_it(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: store.put_if_absent("race", b"%d" % number), range(8)))
    winners = [number for number, answer in enumerate(answers) if isinstance(answer, Won)]
    current = store.get("race")
    assert current is not None
    assert [b"%d" % number for number in winners] == [current.body]
    assert [answer for answer in answers if not isinstance(answer, Won)] == [Lost(current)] * 7


def test_a_counter_under_compare_and_swap_loses_no_increment(store: Store) -> None:
    store.put("counter", b"0")

    def increment(_: int) -> None:
        while True:
            current = store.get("counter")
            assert current is not None
            body = b"%d" % (int(current.body) + 1)
            if isinstance(store.put_if_match("counter", body, current.etag), Won):
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(16)))
    current = store.get("counter")
    assert current is not None
    assert current.body == b"16"


def test_a_conditional_get_answers_not_modified_until_the_object_changes(store: Store) -> None:
    first = store.put("a", b"first")
    assert store.get_if_changed("a", first.etag) is NOT_MODIFIED
    store.put("a", b"second")
    assert store.get_if_changed("a", first.etag) == store.get("a")
    assert store.get_if_changed("a", None) == store.get("a")


def test_an_object_over_the_limit_is_refused_without_counting_its_bytes(store: Store) -> None:
    store.put("big", b"x" * 1000)
    before = store.requests.bytes_read
    with pytest.raises(Invalid, match="1000 bytes, more than 999"):
        store.get("big", max_bytes=999)
    assert store.requests.bytes_read == before
    found = store.get("big", max_bytes=1000)
    assert found is not None
    assert found.size == 1000


@pytest.mark.parametrize(
    ("start", "length", "piece"),
    [
        (0, 4, b"0123"),
        (3, 1, b"3"),
        (9, 1, b"9"),
        (8, 20, b"89"),
        (0, 10, b"0123456789"),
        (0, 2**40, b"0123456789"),
        (10, 1, b""),
        (11, 5, b""),
        (2**62, 1, b""),
    ],
)
def test_a_range_is_one_request_for_so_many_bytes_as_there_are(
    store: Store, start: int, length: int, piece: bytes
) -> None:
    store.put("doc", b"old and longer than the new one")
    store.put("doc", b"0123456789")
    before = store.requests.bytes_read
    with store.requests.measure() as spent:
        assert store.get_range("doc", start, length) == piece
    assert spent == {"GET": 1, "total": 1}
    assert store.requests.bytes_read - before == len(piece)


def test_a_range_of_an_absent_a_deleted_and_an_empty_object(store: Store) -> None:
    store.put("empty", b"")
    store.put("gone", b"1")
    store.delete("gone")
    assert store.get_range("empty", 0, 1) == b""
    assert store.get_range("gone", 0, 1) is None
    assert store.get_range("nope", 0, 1) is None
    assert store.get_range("empty/below", 0, 1) is None


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 0), (0, -1), (2**63 - 1, 1), (2**70, 1)])
def test_what_is_no_range_is_refused_before_any_request(store: Store, start: int, length: int) -> None:
    store.put("doc", b"0123456789")
    with store.requests.measure() as spent, pytest.raises(Invalid, match="not a valid range"):
        store.get_range("doc", start, length)
    assert spent == {"total": 0}


def test_get_many_answers_in_order_and_one_failure_does_not_spoil_the_others(store: Store) -> None:
    for number in range(40):
        store.put(f"many/{number}", b"x" * number)
    reads = [Read(f"many/{number}") for number in range(40)]
    answers = store.get_many([*reads, Read("absent"), Read("a//b")], max_bytes=38)
    assert [answer.body for answer in answers[:39] if isinstance(answer, Object)] == [b"x" * n for n in range(39)]
    assert isinstance(answers[39], Invalid)
    assert answers[40] is None
    assert isinstance(answers[41], Invalid)
    assert store.get_many([]) == []


def test_a_listing_takes_any_prefix_and_starts_after_a_key(store: Store) -> None:
    for key in ("a-b", "a/1", "a/2", "a/3/x", "ab", "b"):
        store.put(key, b"")
    assert [row.key for row in store.list("")] == ["a-b", "a/1", "a/2", "a/3/x", "ab", "b"]
    assert [row.key for row in store.list("a/")] == ["a/1", "a/2", "a/3/x"]
    assert [row.key for row in store.list("a")] == ["a-b", "a/1", "a/2", "a/3/x", "ab"]
    assert [row.key for row in store.list("a/", start_after="a/1")] == ["a/2", "a/3/x"]
    assert [row.key for row in store.list_versions("a/", start_after="a/1")] == ["a/2", "a/3/x"]
    assert list(store.list("zzz")) == []


@pytest.mark.parametrize(("limit", "keys"), [(1, ["a/2"]), (2, ["a/2", "a/3"]), (9, ["a/2", "a/3", "a/4"])])
def test_a_listing_with_a_limit_is_one_request_of_so_many_keys(store: Store, limit: int, keys: list[str]) -> None:
    for key in ("a/1", "a/2", "a/3", "a/4", "b"):
        store.put(key, b"")
    with store.requests.measure() as spent:
        assert [row.key for row in store.list("a/", start_after="a/1", limit=limit)] == keys
    assert spent == {"LIST": 1, "total": 1}


def test_a_deleted_object_leaves_the_listing(store: Store) -> None:
    store.put("a/1", b"")
    store.put("a/2", b"")
    store.delete("a/1")
    assert [row.key for row in store.list("")] == ["a/2"]


def test_delete_if_match_deletes_only_what_the_etag_names(subject: Subject) -> None:
    store = subject.store
    first = store.put("a", b"first")
    if not subject.deletes_conditionally:
        with pytest.raises(UnsafeStore):
            store.delete_if_match("a", first.etag)
        return
    store.put("a", b"second")
    current = store.get("a")
    assert current is not None
    assert store.delete_if_match("a", first.etag) == Lost(current)
    deleted = store.delete_if_match("a", current.etag)
    assert isinstance(deleted, Won)
    assert (deleted.etag, (deleted.version_id is not None)) == ("", subject.is_versioned)
    assert store.get("a") is None
    assert store.delete_if_match("a", current.etag) == Gone()


def test_every_version_can_be_listed_newest_first_and_read_by_its_id(subject: Subject) -> None:
    store = subject.store
    bodies = [b"one", b"two", b"three"]
    ids = [store.put("doc", body).version_id for body in bodies]
    store.put("doc0", b"another key with the same prefix")
    versions = list(store.versions("doc"))
    if not subject.is_versioned:
        assert [(row.version_id, row.etag, row.is_latest) for row in versions] == [(None, content_etag(b"three"), True)]
        return
    assert [(row.version_id, row.is_latest) for row in versions] == [(ids[2], True), (ids[1], False), (ids[0], False)]
    found = store.get_many([Read("doc", row.version_id) for row in versions])
    assert [(item.body, item.version_id) for item in found if isinstance(item, Object)] == [
        (b"three", ids[2]),
        (b"two", ids[1]),
        (b"one", ids[0]),
    ]
    head = store.head("doc", version_id=ids[0])
    assert head is not None
    assert (head.etag, head.version_id) == (content_etag(b"one"), ids[0])


def test_a_delete_marker_is_listed_in_its_place_and_reads_as_nothing(subject: Subject) -> None:
    store = subject.store
    first = store.put("doc", b"one")
    store.delete("doc")
    if not subject.is_versioned:
        assert list(store.versions("doc")) == []
        return
    second = store.put("doc", b"two")
    rows = list(store.versions("doc"))
    assert [(row.is_delete_marker, row.is_latest, row.etag) for row in rows] == [
        (False, True, second.etag),
        (True, False, ""),
        (False, False, first.etag),
    ]
    assert [store.get("doc", version_id=row.version_id) is None for row in rows] == [False, True, False]
    assert list(store.list_versions("")) == rows
    store.delete("doc")
    latest = next(store.versions("doc"))
    assert (latest.is_delete_marker, latest.is_latest, latest.size) == (True, True, 0)
    assert list(store.list("")) == []


def test_requests_are_counted_by_kind_with_their_bytes(store: Store) -> None:
    with store.requests.measure() as spent:
        store.put("a", b"12345")
        store.put_if_absent("a", b"123")
        store.get("a")
        store.get("absent")
        store.head("a")
        list(store.list(""))
        list(store.versions("a"))
        store.delete("a")
    assert spent == {"PUT": 2, "GET": 3, "HEAD": 1, "LIST": 1, "VERSIONS": 1, "DELETE": 1, "total": 9}
    assert (store.requests.bytes_written, store.requests.bytes_read) == (8, 10)


@pytest.mark.parametrize("prefix", ["/a", "a//b", "../a", "a/./b/", "a\nb"])
def test_a_prefix_that_no_key_can_have_is_refused(store: Store, prefix: str) -> None:
    """A client library that strips or rewrites it would list what nobody asked for, and a caller may delete that."""
    with pytest.raises(Invalid):
        list(store.list(prefix))
    with pytest.raises(Invalid):
        list(store.list_versions(prefix))


def test_puts_of_many_keys_have_each_their_own_condition_and_outcome(store: Store) -> None:
    old, other = store.put("m/old", b"1"), store.put("m/other", b"1")
    answers = store.put_many(
        [
            Put("m/new", b"new", IfAbsent(), {"note": "n"}),
            Put("m/old", b"2", IfMatch(old.etag)),
            Put("m/other", b"2", IfAbsent()),
            Put("m/gone", b"2", IfMatch(old.etag)),
            Put("m/any", b"2", None, {"note": "m"}),
            Put("m//bad", b"2"),
        ]
    )
    kinds = [type(answer) for answer in answers]
    assert kinds == [Won, Won, Lost, Gone, Won, Invalid]
    lost = answers[2]
    assert isinstance(lost, Lost)
    assert (lost.current.body, lost.current.etag) == (b"1", other.etag)
    found = {row.key: store.get(row.key) for row in store.list("m/")}
    assert {key: one.body for key, one in found.items() if one is not None} == {
        "m/any": b"2",
        "m/new": b"new",
        "m/old": b"2",
        "m/other": b"1",
    }
    notes = {key: one.metadata.get("note") for key, one in found.items() if one is not None}
    assert (notes["m/new"], notes["m/any"]) == ("n", "m")
    new = found["m/new"]
    assert new is not None
    assert answers[0] == Won(new.etag, new.version_id)
    assert PUT_ID in new.metadata


def test_a_key_is_put_once_in_one_call(store: Store) -> None:
    with pytest.raises(Invalid, match="2 times"):
        store.put_many([Put("m", b"1"), Put("n", b"1"), Put("m", b"2")])
    assert list(store.list("")) == []
    assert store.put_many([]) == []


def test_a_store_that_was_closed_is_used_again(store: Store) -> None:
    store.put("a", b"1")
    store.close()
    store.close()
    found = store.get("a")
    assert found is not None
    assert isinstance(store.put_if_match("a", b"2", found.etag), Won)
