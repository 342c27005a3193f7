"""Framed NDJSON: what is written reads back; a torn tail is told; damage is never taken for a record."""

from __future__ import annotations

import binascii
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.errors import Corrupt, Invalid
from worm.formats.frames import End, Frame, Torn, decode, decode_whole, encode, encode_parsed, frame
from worm.formats.strict_json import JsonObject, dumps

TEXT = st.text(alphabet=st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(TEXT, VALUES, max_size=4), max_size=8)
KEY = "log/0001"


def body_of(records: list[JsonObject]) -> bytes:
    return b"".join(encode(record) for record in records)


def test_the_line_is_as_documented() -> None:
    body = b'{"a":"\\t\\n","lsn":1}'
    assert encode({"lsn": 1, "a": "\t\n"}) == body + b"\t" + f"{binascii.crc32(body):08x}".encode() + b"\n"
    assert frame(b"{}") == b"{}\t%08x\n" % binascii.crc32(b"{}")
    assert frame(dumps({"n": 62})).endswith(b"\t%08x\n" % binascii.crc32(b'{"n":62}'))


def test_the_example_of_the_documentation_reads() -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_bytes()
    line = next(line for line in page.splitlines(keepends=True) if line.startswith(b'{"lsn"'))
    assert decode_whole(line, key=KEY, first_lsn=1)[0].value == {"lsn": 1, "op": "put"}


def test_a_crc_with_leading_zeros_has_eight_digits() -> None:
    number = next(n for n in range(100_000) if binascii.crc32(b'{"n":%d}' % n) < 0x01000000)
    assert encode({"n": number})[-10:-7] == b"\t00"
    assert decode_whole(encode({"n": number}), key=KEY)[0].value == {"n": number}


@given(records=RECORDS)
def test_parsed_records_are_written_alike_without_a_second_look(records: list[JsonObject]) -> None:
    assert [encode_parsed(json.loads(dumps(record))) for record in records] == [encode(record) for record in records]
    with pytest.raises(Invalid, match="nan is not JSON"):
        encode({"n": float("nan")})


@given(records=RECORDS, size=st.integers(1, 40))
def test_what_is_written_reads_back_however_the_bytes_arrive(records: list[JsonObject], size: int) -> None:
    body = body_of(records)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    for source in (body, chunks, iter(chunks)):
        found = list(decode(source, key=KEY))
        assert [item.value for item in found if isinstance(item, Frame)] == records
        assert not any(isinstance(item, Torn) for item in found)
        assert [dumps(record) for record in records] == [item.body for item in found if isinstance(item, Frame)]
    for item in decode_whole(body, key=KEY):
        assert body[item.offset :].startswith(item.body + b"\t")
        assert body[: item.offset].count(b"\n") == item.line - 1


@given(records=RECORDS.filter(bool), cut=st.integers(1, 10_000), size=st.integers(1, 40))
def test_a_torn_tail_is_told_with_its_place_and_nothing_before_it_is_lost(
    records: list[JsonObject], cut: int, size: int
) -> None:
    whole = body_of(records[:-1])
    last = encode(records[-1])
    torn = last[: 1 + cut % (len(last) - 1)]
    body = whole + torn
    found = list(decode([body[at : at + size] for at in range(0, len(body), size)], key=KEY))
    assert [item.value for item in found[:-1] if isinstance(item, Frame)] == records[:-1]
    assert found[-1] == Torn(len(records), len(whole), len(torn))
    with pytest.raises(Corrupt, match=rf"line {len(records)} \(byte {len(whole)}\)") as refused:
        decode_whole(body, key=KEY)
    assert refused.value.key == KEY


@pytest.mark.parametrize("tail", [b"\xff\xfe\x80", b"\t", b"\x00" * 20, '{"a":"ü"'.encode()[:-1], b"0"])
def test_a_tail_of_any_bytes_is_torn_not_corrupt(tail: bytes) -> None:
    assert list(decode(encode({"n": 1}) + tail, key=KEY))[-1] == Torn(2, len(encode({"n": 1})), len(tail))


@given(records=RECORDS.filter(bool), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_flipped_byte_is_taken_for_a_record(records: list[JsonObject], at: int, flip: int) -> None:
    """Whatever byte changes: what is read is a prefix of what was written, and the end is a torn tail or an error."""
    body = bytearray(body_of(records))
    body[at % len(body)] ^= flip
    found: list[JsonObject] = []
    damage = False
    try:
        for item in decode(bytes(body), key=KEY):
            if isinstance(item, Torn):
                damage = True
            else:
                found.append(item.value)
    except Corrupt:
        damage = True
    assert damage
    assert found == records[: len(found)]
    assert len(found) < len(records)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"a":1}\t00000000\n', "CRC"),
        (b'{"a":1}\t%08X\n' % binascii.crc32(b'{"a":1}'), "CRC"),
        (b'{"a":1} %08x\n' % binascii.crc32(b'{"a":1}'), "not a framed record"),
        (b"\t00000000\n", "not a framed record"),
        (b"\n", "not a framed record"),
        (frame(b'{"a":'), "not valid JSON"),
        (frame(b'"\xff"'), "not valid JSON"),
        (frame(b"[1]"), "a JSON object, not array"),
    ],
)
def test_a_complete_line_that_is_wrong_is_corrupt_with_object_line_and_offset(line: bytes, said: str) -> None:
    good = encode({"lsn": 1})
    reader = decode(good + line + good, key=KEY)
    assert isinstance(next(reader), Frame)
    with pytest.raises(Corrupt, match=rf"line 2 \(byte {len(good)}\).*{said}") as refused:
        next(reader)
    assert refused.value.key == KEY


def test_lsns_are_checked_only_where_asked() -> None:
    body = body_of([{"lsn": 4}, {"lsn": 5}, {"lsn": 7}])
    assert len(decode_whole(body, key=KEY)) == 3
    assert len(decode_whole(body_of([{"lsn": 4}, {"lsn": 5}]), key=KEY, first_lsn=4)) == 2
    with pytest.raises(Corrupt, match=r"line 3 .*lsn 7 instead of 6"):
        decode_whole(body, key=KEY, first_lsn=4)
    records: list[JsonObject] = [{"lsn": 1.0}, {"lsn": True}, {"lsn": "1"}, {}]
    for wrong in records:
        with pytest.raises(Corrupt, match="instead of 1"):
            decode_whole(encode(wrong), key=KEY, first_lsn=1)


def test_reading_can_go_on_where_it_ended() -> None:
    body = body_of([{"lsn": 4}, {"lsn": 5}, {"lsn": 6}])
    first = decode_whole(body, key=KEY, first_lsn=4)[0]
    assert first.end == End(1, body.index(b"\n") + 1)
    rest = body[first.end.offset :]
    found = list(decode([rest[:3], rest[3:] + b"torn"], key=KEY, first_lsn=5, after=first.end))
    assert found[:2] == decode_whole(body, key=KEY)[1:]
    assert found[2] == Torn(4, len(body), 4)
    with pytest.raises(Corrupt, match=rf"line 2 \(byte {first.end.offset}\) has lsn 5 instead of 6"):
        list(decode(rest, key=KEY, first_lsn=6, after=first.end))


def test_a_stream_is_read_in_bounded_memory() -> None:
    line = encode({"text": "x" * 1000})

    def source() -> Iterator[bytes]:
        for _ in range(500):
            yield line * 10

    tracemalloc.start()
    try:
        assert sum(1 for _ in decode(source(), key=KEY)) == 5_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_line_without_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(Corrupt, match="longer than 1000 bytes"):
        list(decode((b"x" * 100 for _ in range(1_000)), key=KEY, line_max=1000))
