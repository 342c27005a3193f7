"""The eight records: what is written reads back; what is not exactly a record is damage with its place."""

from __future__ import annotations

import binascii

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.errors import Corrupt, Invalid
from worm.formats.frames import Frame, decode_whole, encode, frame
from worm.formats.strict_json import JsonObject, JsonValue, dumps
from worm.log.journal.records import (
    TOKENS,
    Abort,
    Begin,
    Commit,
    CreateIndex,
    Define,
    Delete,
    Insert,
    Op,
    Record,
    Replace,
    id_order,
    record_of,
)

KEY = "app.omgdb/oplog.ndjson"
OPS: list[Op] = [
    Insert("c", 1, {"_id": 1, "v": "row-1"}),
    Replace("c", "a", {"_id": "a"}),
    Delete("c", None),
    Define("c", {"fields": {}, "strict": True}),
    CreateIndex("c", "address.city"),
]
MARKERS: list[Op] = [Begin(), Commit(), Abort()]


def first(line: bytes) -> Record:
    return record_of(decode_whole(line, key=KEY)[0], KEY)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("txn", [None, 0, 7])
def test_every_op_reads_back(op: Op, txn: int | None) -> None:
    record = Record(3, 1_700_000_000_123, op, txn)
    assert first(encode(record.to_json())) == record
    assert record.to_json()["op"] == TOKENS[type(op)]
    assert ("txn" in record.to_json()) is (txn is not None)


@pytest.mark.parametrize("op", MARKERS)
def test_markers_name_their_transaction(op: Op) -> None:
    assert first(encode(Record(0, 0, op, 4).to_json())) == Record(0, 0, op, 4)
    with pytest.raises(Corrupt, match="does not name a txn"):
        first(encode(Record(0, 0, op).to_json()))


def test_there_are_eight_ops() -> None:
    tokens = ["insert", "replace", "delete", "define", "create_index", "begin", "commit", "abort"]
    assert list(TOKENS.values()) == tokens


def test_the_line_is_canonical_json_a_tab_and_the_crc() -> None:
    line = encode(Record(0, 0, Insert("c", 1, {"v": "a\tb", "_id": 1})).to_json())
    body = b'{"doc":{"_id":1,"v":"a\\tb"},"id":1,"lsn":0,"ns":"c","op":"insert","ts":{"$date":0}}'
    assert line == body + b"\t" + f"{binascii.crc32(body):08x}".encode() + b"\n"


def test_the_seeds_example_reads_in_its_own_order_of_members() -> None:
    body = b'{"lsn":0,"ts":{"$date":0},"op":"insert","ns":"c","id":1,"doc":{"_id":1,"v":"row-1"}}'
    assert first(frame(body)) == Record(0, 0, Insert("c", 1, {"_id": 1, "v": "row-1"}))


def test_a_plain_integer_is_read_as_time() -> None:
    value = Record(0, 0, Delete("c", 1)).to_json() | {"ts": 12}
    assert first(encode(value)).ts == 12


GOOD: JsonObject = Record(0, 5, Insert("c", 1, {"_id": 1})).to_json()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "upsert"}, "unknown op 'upsert'"),
        ({"op": 1}, "unknown op 1"),
        ({"op": None}, "unknown op None"),
        ({"more": 1}, "unknown fields: more"),
        ({"spec": {}}, "unknown fields: spec"),
        ({"ts": {"$date": 1, "x": 1}}, "ts must be a time"),
        ({"ts": "now"}, "ts must be a time in milliseconds, not 'now'"),
        ({"ts": 1.5}, "ts must be a time in milliseconds, not 1.5"),
        ({"ts": True}, "ts must be a time in milliseconds, not True"),
        ({"lsn": -1}, "lsn must be .* not -1"),
        ({"lsn": 0.0}, "lsn must be .* not 0.0"),
        ({"txn": -1}, "txn must be .* not -1"),
        ({"txn": None}, "txn must be .* not None"),
        ({"ns": ""}, "ns ''"),
        ({"ns": 5}, "ns must be a string, not integer"),
        ({"ns": "a\nb"}, "no control characters"),
        ({"ns": "x" * 201}, "1 to 200 bytes"),
        ({"doc": []}, "doc must be an object, not array"),
        ({"doc": {"v": 1}}, "id differs from the _id of doc"),
        ({"doc": {"_id": 1.0}}, "id differs from the _id of doc"),
        ({"doc": {"_id": True}}, "id differs from the _id of doc"),
        ({"op": "define", "spec": {}}, "unknown fields: doc, id"),
    ],
)
def test_what_is_not_exactly_a_record_is_corrupt_with_line_and_offset(change: JsonObject, said: str) -> None:
    before = encode(GOOD)
    found = decode_whole(before + encode(GOOD | change), key=KEY)[1]
    with pytest.raises(Corrupt, match=rf"line 2 \(byte {len(before)}\) is not a record: .*{said}") as refused:
        record_of(found, KEY)
    assert refused.value.key == KEY


@pytest.mark.parametrize("member", sorted(GOOD))
def test_every_member_is_needed(member: str) -> None:
    value = {name: one for name, one in GOOD.items() if name != member}
    with pytest.raises(Corrupt, match=f"lacks {member}|{member} is missing"):
        record_of(Frame(value, dumps(value), 1, 0), KEY)


def test_a_spec_is_an_object_and_a_field_is_a_name() -> None:
    for value, said in (
        (Record(0, 0, Define("c", {})).to_json() | {"spec": 1}, "spec must be an object, not integer"),
        (Record(0, 0, CreateIndex("c", "f")).to_json() | {"field": ["f"]}, "field must be a string, not array"),
    ):
        with pytest.raises(Invalid, match=said):
            Record.from_json(value)


def test_the_order_of_ids_is_one_for_all_json() -> None:
    ordered: list[JsonValue] = [
        None, False, True, -(2**63), -1.5, -0.0, 0, 0.0, 1, 1.0, 2**53, 2**64 - 1, 1e300,
        "", "A", "a", "aa", "é", "\ue000", "\U00010000", [1], [], {"a": 1}, {},
    ]  # fmt: skip
    backwards = ordered[::-1]
    assert [dumps(one) for one in sorted(backwards, key=id_order)] == [dumps(one) for one in ordered]


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)


@given(st.data(), st.lists(SCALARS | st.text(st.characters(codec="utf-8"), max_size=3), max_size=8))
def test_the_order_of_ids_does_not_depend_on_where_they_stood(data: st.DataObject, ids: list[JsonValue]) -> None:
    shuffled = data.draw(st.permutations(ids))
    assert [dumps(one) for one in sorted(ids, key=id_order)] == [dumps(one) for one in sorted(shuffled, key=id_order)]
