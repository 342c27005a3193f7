"""Layer files: what is written is read back, by single blocks; what is damaged says so and gives no wrong answer."""

from __future__ import annotations

import binascii
import hashlib
import tracemalloc
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from worm.errors import Corrupt, Invalid
from worm.formats.strict_json import JsonObject, dumps, loads_own
from worm.pages.layer_file import (
    TAIL_BYTES,
    Block,
    BlockRef,
    BuiltLayer,
    LayerIndex,
    PageVersion,
    build_layers,
    seal,
    unseal,
)

GOLDEN = Path(__file__).parent / "golden" / "small.layer"
KEY = "db/main/pages/x.layer"
LSN_MAX = 2**63 - 1

# The order of code points is not that of UTF-16: U+FFFF comes before U+10000.
names = st.text(st.sampled_from("ab/é\uffff\U00010000\x00\n"), min_size=1, max_size=4)
lsns = st.integers(1, 12) | st.sampled_from([LSN_MAX - 1, LSN_MAX])
contents = st.none() | st.binary(max_size=30) | st.integers(0, 300).map(lambda length: b"x" * length)
histories = st.dictionaries(st.tuples(names, lsns), contents, max_size=40).map(
    lambda found: [PageVersion(page, lsn, found[page, lsn]) for page, lsn in sorted(found)]
)
sizes = st.sampled_from([1, 40, 200, 100_000])


def build(versions: Sequence[PageVersion], *, target: int = 1 << 20, block: int = 64) -> list[BuiltLayer]:
    return list(build_layers(versions, target_bytes=target, block_bytes=block, bits_per_key=10))


def build_one(versions: Sequence[PageVersion], *, block: int = 64) -> BuiltLayer:
    (layer,) = build(versions, block=block)
    return layer


def index_of(layer: BuiltLayer) -> LayerIndex:
    return LayerIndex.decode(layer.body[layer.index_offset : layer.index_offset + layer.index_length], KEY)


def block_of(body: bytes, ref: BlockRef) -> Block:
    return Block.decode(body[ref.offset : ref.offset + ref.length], KEY, ref.offset)


def read_all(body: bytes, index_offset: int) -> list[PageVersion]:
    index = LayerIndex.decode(body[index_offset:], KEY)
    return [version for ref in index.blocks for version in block_of(body, ref).versions()]


def newest(versions: Sequence[PageVersion], page: str, lsn: int) -> PageVersion | None:
    found = [version for version in versions if version.page == page and version.lsn <= lsn]
    return max(found, key=lambda version: version.lsn, default=None)


def sample(pages: int = 20, revisions: int = 3) -> list[PageVersion]:
    return [
        PageVersion(
            f"page-{page:03d}", 1 + 10 * revision, None if (page + revision) % 7 == 0 else b"data %d " % page * 5
        )
        for page in range(pages)
        for revision in range(revisions)
    ]


# Round trip


@settings(max_examples=examples(80))
@given(histories, sizes, sizes)
def test_any_sorted_versions_come_back_and_the_layer_says_what_it_holds(
    versions: list[PageVersion], target: int, block: int
) -> None:
    layers = build(versions, target=target, block=block)
    held = [read_all(layer.body, layer.index_offset) for layer in layers]
    assert [version for one in held for version in one] == versions
    for layer, own in zip(layers, held, strict=True):
        pages = sorted({version.page for version in own})
        assert (layer.low, layer.high) == ((pages[0], pages[-1]) if pages else ("", ""))
        found_lsns = [version.lsn for version in own] or [0]
        assert (layer.low_lsn, layer.high_lsn) == (min(found_lsns), max(found_lsns))
        assert (layer.versions, layer.pages) == (len(own), len(pages))
        assert layer.raw_bytes == sum(len(one.page.encode()) + len(one.data or b"") for one in own)
        assert layer.digest == hashlib.sha256(layer.body).hexdigest()
        assert layer.index_offset + layer.index_length == len(layer.body)
        index = index_of(layer)
        assert index.counts == (
            layer.versions,
            layer.pages,
            layer.raw_bytes,
            layer.high,
            layer.low_lsn,
            layer.high_lsn,
        )
        assert index.filter.encode() == layer.filter.encode()
        assert all(layer.filter.may_have(page) for page in pages)
    assert all(one.high < other.low for one, other in pairwise(layers)), "a page is in two layers"


@settings(max_examples=examples(80))
@given(histories, sizes, names, lsns)
def test_one_block_answers_for_any_page_at_any_lsn(
    versions: list[PageVersion], block: int, other: str, other_lsn: int
) -> None:
    layer = build_one(versions, block=block)
    index = index_of(layer)
    asked = [(version.page, version.lsn + more) for version in versions for more in (-1, 0, 1)]
    for page, lsn in [*asked, (other, other_lsn), ("", 1), ("\ud800", 5), ("a", 0)]:
        ref = index.block_for(page, lsn)
        found = None if ref is None else block_of(layer.body, ref).find(page, lsn)
        assert found == newest(versions, page, lsn)


@settings(max_examples=examples(80))
@given(histories, sizes, names, names)
def test_the_blocks_of_a_page_and_of_a_range_leave_none_out(
    versions: list[PageVersion], block: int, one: str, other: str
) -> None:
    layer = build_one(versions, block=block)
    index = index_of(layer)

    def inside(refs: Sequence[BlockRef]) -> set[tuple[str, int]]:
        return {(version.page, version.lsn) for ref in refs for version in block_of(layer.body, ref).versions()}

    for page in (one, other):
        assert inside(index.blocks_between(page, page + "\0")) >= {
            (own.page, own.lsn) for own in versions if own.page == page
        }
    for start, end in ((one, other), (one, None), ("", one), ("", None)):
        due = {(own.page, own.lsn) for own in versions if own.page >= start and (end is None or own.page < end)}
        assert inside(index.blocks_between(start, end)) >= due
    assert list(index.blocks_between("", None)) == list(index.blocks)


def test_no_more_blocks_are_named_than_may_hold_the_page() -> None:
    index = index_of(build_one(sample(), block=64))
    whole = list(index.blocks)
    assert len(whole) == 60
    at = next(place for place, ref in enumerate(whole) if ref.page == "page-010")
    assert [ref.page for ref in index.blocks_between("page-010", "page-010" + "\0")] == ["page-010"] * 3
    assert list(index.blocks_between("page-010", "page-011")) == whole[at : at + 3]
    assert list(index.blocks_between("page-010x", "page-010x" + "\0")) == whole[at + 2 : at + 3]
    for absent in (
        index.blocks_between("page", "page" + "\0"),
        index.blocks_between("z", "z" + "\0"),
        index.blocks_between("z", None),
    ):
        assert list(absent) == []
    for start, end in (("b", "a"), ("page-003", "page-003"), ("page-003x", "page-003x"), ("page-005", "page-003x")):
        assert list(index.blocks_between(start, end)) == []
    assert index.block_for("z", 1) is None
    assert index.block_for("page-000", 0) is None


def test_a_layer_of_nothing_is_a_layer() -> None:
    layer = build_one([])
    index = index_of(layer)
    assert (layer.low, layer.high, layer.low_lsn, layer.high_lsn) == ("", "", 0, 0)
    assert (layer.versions, layer.pages, layer.raw_bytes, layer.index_offset) == (0, 0, 0, 0)
    assert (list(index.blocks), index.block_for("a", 9), list(index.blocks_between("a", "a" + "\0"))) == ([], None, [])
    assert list(index.blocks_between("", None)) == []


def test_blocks_have_the_size_asked_for_and_a_large_version_has_its_own() -> None:
    versions = [PageVersion(f"p{number:04d}", 1, b"12345678" * 10) for number in range(400)]
    versions[200] = PageVersion("p0200", 1, bytes(50_000))
    layer = build_one(versions, block=4096)
    held = [list(block_of(layer.body, ref).versions()) for ref in index_of(layer).blocks]
    assert [one.page for one in held[next(at for at, own in enumerate(held) if versions[200] in own)]] == ["p0200"]
    full = [own for own, after in pairwise(held) if versions[200] not in (*own, *after)]
    assert {len(own) for own in full} == {4096 // (14 + 5 + 80)}


def test_layers_are_made_one_by_one_and_end_between_pages() -> None:
    taken: list[PageVersion] = []

    def source() -> Iterator[PageVersion]:
        for version in sample(pages=100, revisions=10):
            taken.append(version)
            yield version

    layers = build_layers(source(), target_bytes=2000, block_bytes=500, bits_per_key=10)
    assert taken == []
    first = next(layers)
    assert len(taken) == first.versions + 1
    assert first.versions % 10 == 0
    rest = list(layers)
    assert first.versions + sum(layer.versions for layer in rest) == len(taken) == 1000
    assert all(1400 < layer.index_offset < 3000 for layer in [first, *rest][:-1])


def test_sizes_in_memory_are_told_about_right() -> None:
    """The cache keeps to its limit by them."""
    layer = build_one(
        [PageVersion(f"p{number:05d}", 2**40 + number, b"x" * 100) for number in range(6000)], block=64 * 1024
    )
    tail, ref = layer.body[layer.index_offset :], index_of(layer).blocks[0]
    piece = layer.body[: ref.length]
    large = build_one([PageVersion(f"p{number:05d}", 2**40 + number, b"x") for number in range(6000)], block=16)
    large_tail = large.body[large.index_offset :]
    for make in (
        lambda: Block.decode(piece, KEY, 0),
        lambda: LayerIndex.decode(tail, KEY),
        lambda: LayerIndex.decode(large_tail, KEY),
    ):
        made: Block | LayerIndex = make()
        tracemalloc.start()
        made = make()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.5 < made.size / taken < 2


# What cannot be written


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ([PageVersion("b", 1, b""), PageVersion("a", 1, b"")], "the page 'a' follows 'b'"),
        ([PageVersion("a", 2, b""), PageVersion("a", 1, b"")], "lsn 1 of the page 'a' follows lsn 2"),
        ([PageVersion("a", 1, b""), PageVersion("a", 1, None)], "lsn 1 of the page 'a' follows lsn 1"),
        ([PageVersion("a", 1, b""), PageVersion("b", 1, b""), PageVersion("a", 2, b"")], "the page 'a' follows 'b'"),
        ([PageVersion("\U00010000", 1, b""), PageVersion("\uffff", 1, b"")], "follows"),
        ([PageVersion("", 1, b"")], "have a name"),
        ([PageVersion("a", 0, b"")], "from 1 to"),
        ([PageVersion("a", -1, b"")], "from 1 to"),
        ([PageVersion("a", 2**63, b"")], "from 1 to"),
        ([PageVersion("x" * 1025, 1, b"")], "1025 bytes"),
        ([PageVersion("é" * 513, 1, b"")], "1026 bytes"),
        ([PageVersion("a\ud800", 1, b"")], "lone surrogate"),
    ],
)
def test_versions_that_are_no_history_are_refused(versions: list[PageVersion], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        build(versions)


def test_a_version_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.pages.layer_file.DATA_BYTES_MAX", 10)
    assert build_one([PageVersion("a", 1, bytes(10))], block=5).versions == 1
    with pytest.raises(Invalid, match="11 bytes; the limit is 10"):
        build([PageVersion("a", 1, bytes(11))], block=5)


@pytest.mark.parametrize(("target", "block", "bits"), [(0, 1, 1), (1, 0, 1), (1, 1, -1), (1, 1, 65), (1, 2**30, 1)])
def test_settings_that_make_no_layer_are_refused_at_once(target: int, block: int, bits: int) -> None:
    with pytest.raises(Invalid, match="cannot write layers of"):
        build_layers([], target_bytes=target, block_bytes=block, bits_per_key=bits)


def test_the_longest_name_and_the_greatest_lsn_are_fine() -> None:
    versions = [PageVersion("é" * 512, LSN_MAX, None), PageVersion("é" * 511 + "ü", LSN_MAX, b"")]
    assert read_all((layer := build_one(versions)).body, layer.index_offset) == versions


# Damage


def test_a_bit_that_is_wrong_anywhere_is_damage_that_names_object_and_place() -> None:
    layer = build_one(sample(pages=6), block=200)
    starts = [ref.offset for ref in index_of(layer).blocks]
    body = bytearray(layer.body)
    for place in range(len(body)):
        body[place] ^= 1 << place % 8
        if place < layer.index_offset:
            start = max(offset for offset in starts if offset <= place)
            expected = rf"block at byte {start} .*\[{KEY}\]"
        else:
            expected = rf"(index at byte \d+|its last {layer.index_length} bytes) .*\[{KEY}\]"
        with pytest.raises(Corrupt, match=expected) as refusal:
            read_all(bytes(body), layer.index_offset)
        assert refusal.value.key == KEY
        assert refusal.value.hint
        body[place] ^= 1 << place % 8
    assert read_all(bytes(body), layer.index_offset) == sample(pages=6)


@settings(max_examples=examples(80))
@given(histories.filter(bool), st.data())
def test_any_damage_is_told_or_does_not_touch_what_was_read(versions: list[PageVersion], data: st.DataObject) -> None:
    layer = build_one(versions, block=100)
    body = bytearray(layer.body)
    start = data.draw(st.integers(0, len(body) - 1))
    body[start : start + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    asked = data.draw(st.sampled_from(versions))
    try:
        index = LayerIndex.decode(bytes(body[layer.index_offset :]), KEY)
        ref = index.block_for(asked.page, asked.lsn)
        found = None if ref is None else block_of(bytes(body), ref).find(asked.page, asked.lsn)
    except Corrupt:
        return
    assert found == asked


def test_an_index_that_is_cut_or_begins_elsewhere_is_corrupt() -> None:
    layer = build_one(sample(pages=6), block=200)
    tail = layer.body[layer.index_offset :]
    pieces = [tail[:length] for length in range(len(tail))] + [tail[at:] for at in range(1, len(tail))]
    for piece in [*pieces, layer.body, layer.body[layer.index_offset - 1 :], tail + b"\0"]:
        with pytest.raises(Corrupt):
            LayerIndex.decode(piece, KEY)


def test_a_block_that_is_cut_or_begins_elsewhere_is_corrupt() -> None:
    layer = build_one(sample(pages=6), block=200)
    ref = index_of(layer).blocks[1]
    piece = layer.body[ref.offset : ref.offset + ref.length]
    pieces = [piece[:length] for length in range(len(piece))] + [piece[at:] for at in range(1, len(piece))]
    for wrong in [*pieces, piece + b"\0", layer.body[ref.offset - 1 : ref.offset + ref.length]]:
        with pytest.raises(Corrupt, match="block at byte 77"):
            Block.decode(wrong, KEY, 77)


def sealed(body: bytes) -> bytes:
    """Flag and payload as they are, with a CRC that is right: what only a wrong writer would make."""
    return body + binascii.crc32(body).to_bytes(4, "little")


def test_a_block_is_never_inflated_beyond_the_size_that_it_says() -> None:
    bomb = zlib.compress(bytes(50_000_000))
    pieces = [
        b"\1" + (1000).to_bytes(4, "little") + bomb,
        b"\1" + (2**32 - 1).to_bytes(4, "little") + bomb,
        b"\1" + (60_000_000).to_bytes(4, "little") + bomb,
    ]
    tracemalloc.start()
    try:
        for piece in pieces[:2]:
            with pytest.raises(Corrupt, match="bytes"):
                Block.decode(sealed(piece), KEY, 0)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(Corrupt, match="bytes"):
        Block.decode(sealed(pieces[2]), KEY, 0)


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (b"", "is truncated: it has 4 bytes"),
        (b"\2abc", "flag 2"),
        (b"\2" + (3).to_bytes(4, "little") + zlib.compress(b"abc"), "flag 2"),
        (b"\1abc", "flag 1"),
        (b"\1" + (3).to_bytes(4, "little") + b"nothing", "cannot be decompressed"),
        (b"\1" + (3).to_bytes(4, "little") + zlib.compress(b"abc") + b"more", "does not have the 3 bytes"),
        (b"\1" + (3).to_bytes(4, "little") + zlib.compress(b"abc")[:-1], "does not have the 3 bytes"),
        (b"\1" + (3).to_bytes(4, "little") + zlib.compress(b"ab"), "does not have the 3 bytes"),
        (b"\0", "is not a block"),
        (b"\0" + bytes(4), "0 versions"),
        (b"\0" + (9).to_bytes(4, "little") + bytes(20), "9 versions in 24 bytes"),
        (b"\0" + (1).to_bytes(4, "little") + bytes(15), "19 bytes instead of 18"),
    ],
)
def test_a_block_that_was_written_wrong_is_corrupt_whatever_its_crc_says(piece: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=f"block at byte 0 .*{message}"):
        Block.decode(sealed(piece), KEY, 0)


def test_a_name_that_is_no_text_is_corrupt_when_it_is_read() -> None:
    numbers = (1).to_bytes(4, "little") + (2).to_bytes(8, "little") + bytes(4) + (1).to_bytes(2, "little")
    block = Block.decode(sealed(b"\0" + numbers + b"\xff"), KEY, 5)
    assert block.find("a", 9) is None
    with pytest.raises(Corrupt, match="block at byte 5 has a name that is not UTF-8"):
        block.versions()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2; this version of worm reads format 1"),
        ({"blocks": None}, "is not an index"),
        ({"blocks": {"pages": ["b", "a"], "lsns": [1, 1], "bytes": [10, 10]}}, "not in order"),
        ({"blocks": {"pages": ["a", "b"], "lsns": [1], "bytes": [20]}}, "differ in length"),
        ({"blocks": {"pages": ["a"], "lsns": [1, 1], "bytes": [20]}}, "differ in length"),
        ({"blocks": {"pages": ["a"], "lsns": [1], "bytes": [20, 0]}}, "differ in length"),
        ({"blocks": {"pages": ["a", "b"], "lsns": [1, 1], "bytes": [21, -1]}}, "differ in length"),
        ({"blocks": {"pages": [1], "lsns": [1], "bytes": [20]}}, "no first version"),
        ({"blocks": {"pages": ["a"], "lsns": ["1"], "bytes": [20]}}, "no first version"),
        ({"blocks": {"pages": ["a"], "lsns": [1], "bytes": [20.0]}}, "no first version"),
        ({"blocks": {"pages": ["a"], "lsns": [1], "bytes": [19]}}, "should begin at byte 19, according to its blocks"),
        ({"versions": -1}, "is not a number"),
        ({"lsns": [1]}, "is not an index"),
        ({"filter": "AQ=="}, "filter is damaged"),
        ({"filter": None}, "filter"),
    ],
)
def test_an_index_that_was_written_wrong_is_corrupt_whatever_its_crc_says(changes: JsonObject, message: str) -> None:
    layer = build_one([PageVersion("a", 1, b"")])
    tail = layer.body[layer.index_offset :]
    shape = loads_own(unseal(tail[:-TAIL_BYTES], KEY, "index"), KEY)
    blocks: JsonObject = {"pages": ["a"], "lsns": [1], "bytes": [20]}
    end = (20).to_bytes(8, "little") + tail[-8:]
    assert LayerIndex.decode(seal(dumps({**shape, "blocks": blocks})) + end, KEY).blocks[0].length == 20
    with pytest.raises(Corrupt, match=message):
        LayerIndex.decode(seal(dumps({**shape, "blocks": blocks, **changes})) + end, KEY)


# The bytes themselves

SMALL = [
    PageVersion("blob", 8, hashlib.sha512(b"does not shrink").digest()),
    PageVersion("customer/1", 3, b'{"name":"Acme"}'),
    PageVersion("customer/1", 7, None),
    PageVersion("customer/é", 5, b"\x00\xff"),
    PageVersion("order/1", 6, b""),
    PageVersion("order/2", 9, b"x" * 200),
]


def pieces_of(body: bytes) -> list[bytes]:
    """Every sealed piece, opened: another zlib may compress to other bytes."""
    start = int.from_bytes(body[-16:-8], "little")
    index = LayerIndex.decode(body[start:], KEY)
    return [unseal(body[ref.offset : ref.offset + ref.length], KEY, "block") for ref in index.blocks]


def test_a_layer_that_was_written_once_is_read_for_ever_and_written_the_same() -> None:
    golden = GOLDEN.read_bytes()
    start = int.from_bytes(golden[-16:-8], "little")
    assert read_all(golden, start) == SMALL
    layer = build_one(SMALL, block=120)
    assert pieces_of(layer.body) == pieces_of(golden)
    written, due = (
        loads_own(unseal(body[at:-TAIL_BYTES], KEY, "index"), KEY)
        for body, at in ((layer.body, layer.index_offset), (golden, start))
    )
    for shape in (written, due):
        assert isinstance(shape["blocks"], dict)
        shape["blocks"]["bytes"] = len(cast("list[int]", shape["blocks"]["bytes"]))
    assert written == due
    stored = 1 + 4 + 14 + len("blob") + 64 + 4
    assert golden[:stored] == layer.body[:stored]
    assert (golden[0], golden[stored], golden[-8:]) == (0, 1, b"WORMLAY1")


def test_versions_of_a_page_stand_together() -> None:
    layer = build_one(sample(), block=64)
    runs = [page for page, _ in groupby(version.page for version in read_all(layer.body, layer.index_offset))]
    assert len(runs) == len(set(runs)) == layer.pages
