"""Bad input ends as a clear reason; the other messages of the batch go on; the document itself is never touched."""

from __future__ import annotations

import json

import pytest

from tests.harness import BUCKET, DataPath, created, schema_of
from worm.errors import Invalid
from worm.upkeep.workers.batch import KeyHint, hints_of

BAD_DOCUMENTS = {
    "not JSON": (b"{oops", "JSON"),
    "empty": (b"", "JSON"),
    "an array": (b"[1]", "object"),
    "wrong type": (b'{"name": 5}', "name"),
    "wrong id": (b'{"id": "other"}', "id"),
    "duplicate keys": (b'{"name": "a", "name": "b"}', "name"),
    "NaN": (b'{"score": NaN}', "NaN"),
    "an infinite number": (b'{"score": 1e999}', "1e999"),
    "a number beyond 64 bits": (b'{"score": 1' + b"0" * 40 + b"}", "score"),
    "a lone surrogate": (b'{"name": "\\ud800"}', "surrogate"),
    "a byte order mark": (b'\xef\xbb\xbf{"name": "a"}', "BOM"),
    "not UTF-8": (b'{"name": "\xff"}', "UTF-8"),
    "depth": (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth"),
}


@pytest.mark.parametrize("name", BAD_DOCUMENTS)
def test_a_bad_document_is_rejected_with_its_reason_and_the_rest_of_the_batch_goes_on(name: str) -> None:
    body, word = BAD_DOCUMENTS[name]
    path = DataPath()
    path.put("good", {"name": "Acme"})
    path.put("bad", body)
    path.put("fine", {"name": "Widgets"})

    outcome = path.run_capture()
    path.run_fold()

    assert list(outcome.rejected) == ["m1"]
    assert outcome.failed == {}
    assert word.lower() in str(outcome.rejected["m1"]).lower()
    assert path.key("bad") in str(outcome.rejected["m1"])
    stored = path.store.get(path.key("bad"))
    assert stored is not None
    assert stored.body == body
    assert sorted(path.rows()) == ["fine", "good"]
    assert list(path.verify().rejected) == [path.key("bad")]
    path.assert_true()


def test_a_document_over_the_size_limit_is_rejected_without_being_read() -> None:
    path = DataPath(max_document_bytes=1000)
    path.put("bad", b'{"name": "' + b"x" * 50_000 + b'"}')
    before = path.store.requests.bytes_read
    outcome = path.run_capture()
    assert "50012" in str(outcome.rejected["m0"])
    assert path.store.requests.bytes_read - before < 5000
    path.assert_true()


def test_the_last_valid_state_counts_until_a_valid_document_comes() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    bad = path.put("a", b"{oops")
    assert list(path.run_capture().rejected) == ["m0"]
    path.run_fold()
    assert path.rows() == {"a": {"name": "one"}}

    path.put("a", {"name": "two"})
    path.settle()
    entry = path.history("a")[1]
    assert entry.diff == {"name": ["one", "two"]}
    skipped = entry.metadata["skipped"]
    assert isinstance(skipped, list)
    assert isinstance(skipped[0], dict)
    assert skipped[0]["versionId"] == bad
    path.assert_true()


def test_deleting_a_document_that_was_never_valid_leaves_nothing() -> None:
    path = DataPath()
    path.put("a", b"{oops")
    path.remove("a")
    path.settle()
    assert path.history("a") == []
    path.assert_true()


def test_a_bad_id_among_our_documents_is_rejected_and_a_foreign_key_is_ignored() -> None:
    path = DataPath(schema_of(path="#org/@customers/(id:uuid)"))
    with path.store.requests.measure() as spent:
        outcome = path.run_capture(
            [
                created("org/customers/NOT-A-UUID/profile.json"),
                created("org/customers/../x/profile.json"),
                created("pictures/cat.png"),
                created("org/customers/.oplog/x/0001.json"),
                created(".worm.changes/customers/x.json"),
                created("org/customers/a\x00b/profile.json"),
            ]
        )
    assert sorted(outcome.rejected) == ["m0", "m1", "m5"]
    assert outcome.failed == {}
    assert spent["total"] == 1, "only the schema is looked at"


def test_messages_that_carry_no_hint_for_us_are_done() -> None:
    path = DataPath()
    test_event = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": BUCKET})
    foreign = created("org/customers/a/profile.json", bucket="somebody-elses")
    other_kind = created("org/customers/a/profile.json").replace("Object Created", "Object Tags Added")
    outcome = path.run_capture([test_event, foreign, other_kind])
    assert (outcome.failed, outcome.rejected, outcome.ignored) == ({}, {}, 3)


@pytest.mark.parametrize(
    "body",
    ["", "not json", "[]", '{"hello": 1}', '{"Records": [1]}', '{"detail-type": "Object Created"}', '{"Records": 5}'],
)
def test_a_message_that_is_no_event_is_rejected(body: str) -> None:
    outcome = DataPath().run_capture([body])
    assert list(outcome.rejected) == ["m0"]


def test_keys_of_plain_notifications_are_decoded_and_those_of_eventbridge_are_not() -> None:
    record = {
        "eventVersion": "2.9",
        "userIdentity": {"principalId": "AWS:ann"},
        "s3": {"bucket": {"name": BUCKET}, "object": {"key": "a+b%2Bc%20d", "versionId": "v1"}},
    }
    assert hints_of(json.dumps({"Records": [record]}), bucket=BUCKET) == [KeyHint("a b+c d", "v1", "AWS:ann")]
    assert hints_of(created("a+b%2B", "v2"), bucket=BUCKET) == [KeyHint("a+b%2B", "v2", "123456789012")]


def test_keys_outside_the_prefix_are_not_ours() -> None:
    inside, outside = created("t/acme/x/1.json"), created("t/acme-evil/x/1.json")
    assert hints_of(inside, bucket=BUCKET, prefix="t/acme/") == [KeyHint("x/1.json", None, "123456789012")]
    assert hints_of(outside, bucket=BUCKET, prefix="t/acme/") == []


def test_an_event_without_a_key_names_what_is_missing() -> None:
    with pytest.raises(Invalid, match="'key'"):
        hints_of(created("x").replace('"key"', '"kex"'), bucket=BUCKET)
