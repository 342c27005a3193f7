"""The filter of a layer: it never hides a key, seldom lets another pass, and its text says when it is damaged."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from worm.errors import Corrupt, Invalid
from worm.pages.filters import KeyFilter

KEYS = [f"org/customers/{number}" for number in range(2000)]


@settings(max_examples=examples(50))
@given(st.sets(st.text(), max_size=60), st.integers(1, 64))
def test_a_key_that_is_there_always_passes_also_after_a_round_trip(keys: set[str], bits_per_key: int) -> None:
    built = KeyFilter.build(keys, bits_per_key)
    read = KeyFilter.decode(built.encode(), "k")
    assert all(built.may_have(key) and read.may_have(key) for key in keys)
    assert (read.encode(), read.size) == (built.encode(), built.size)


@pytest.mark.parametrize(("bits_per_key", "most"), [(10, 0.013), (16, 0.002), (4, 0.18)])
def test_few_keys_pass_that_are_not_there(bits_per_key: int, most: float) -> None:
    built = KeyFilter.build(KEYS, bits_per_key)
    passed = sum(built.may_have(f"org/orders/{number}") for number in range(20_000))
    assert 0 < passed / 20_000 < most
    assert built.size == len(KEYS) * bits_per_key // 8


def test_a_filter_of_nothing_lets_nothing_pass_and_takes_no_bytes() -> None:
    built = KeyFilter.build([], 10)
    assert (built.size, built.may_have("a"), KeyFilter.decode(built.encode(), "k").may_have("a")) == (0, False, False)


def test_the_same_keys_give_the_same_text_on_every_machine() -> None:
    """Stored filters must be understood for ever: this text was written once."""
    assert KeyFilter.build(["a", "b", "é"], 10).encode() == "AQdAAAAAAAAAALAsXQCAIwjipSrRuQ=="


def test_a_name_that_no_page_can_have_may_be_asked_for() -> None:
    assert KeyFilter.build(["a"], 10).may_have("\ud800") is False


def test_without_bits_it_lets_everything_pass_and_stays_small() -> None:
    found = KeyFilter.build([str(number) for number in range(1000)], 0)
    assert found.size == 8
    assert all(KeyFilter.decode(found.encode(), "k").may_have(one) for one in ("5", "never", ""))
    assert not KeyFilter.build([], 0).may_have("5")


@pytest.mark.parametrize("bits_per_key", [-1, 65])
def test_a_number_of_bits_that_makes_no_filter_is_refused(bits_per_key: int) -> None:
    with pytest.raises(Invalid, match="bits per key"):
        KeyFilter.build(["a"], bits_per_key)


def test_a_bit_that_is_wrong_anywhere_is_damage_and_names_the_object() -> None:
    body = bytearray(b64decode(KeyFilter.build(["a", "b"], 10).encode()))
    for place in range(len(body) * 8):
        body[place // 8] ^= 1 << place % 8
        with pytest.raises(Corrupt, match=r"filter .*\[some/key\]"):
            KeyFilter.decode(b64encode(body).decode(), "some/key")
        body[place // 8] ^= 1 << place % 8


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda body: b64encode(body).decode()))
def test_nonsense_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="filter"):
        KeyFilter.decode(text, "k")


@pytest.mark.parametrize("keep", [0, 1, 9, 10, 13, -1])
def test_a_cut_text_is_corrupt(keep: int) -> None:
    body = b64decode(KeyFilter.build(KEYS, 10).encode())
    with pytest.raises(Corrupt, match="damaged"):
        KeyFilter.decode(b64encode(body[:keep]).decode(), "k")


def test_a_text_that_is_too_short_or_has_other_letters_is_corrupt_whatever_its_crc_says() -> None:
    short = b"\1\7" + binascii.crc32(b"\1\7").to_bytes(4, "little")
    with pytest.raises(Corrupt, match="damaged"):
        KeyFilter.decode(b64encode(short).decode(), "k")
    whole = KeyFilter.build(["a"], 10).encode()
    for text in (whole + "\n", f"{whole[:5]}!{whole[5:]}"):
        with pytest.raises(Corrupt, match="not base64"):
            KeyFilter.decode(text, "k")


def test_another_version_and_numbers_that_do_not_fit_are_told() -> None:
    whole = KeyFilter.build(["a"], 10)
    body = bytes([2]) + b64decode(whole.encode())[1:]
    with pytest.raises(Corrupt, match="version 2; this version of worm reads version 1"):
        KeyFilter.decode(b64encode(body).decode(), "k")
    for bits, count, hashes in ((b"\xff" * 8, 65, 7), (b"\xff" * 8, 64, 0), (b"\xff", 8, 7)):
        with pytest.raises(Corrupt, match=f"{len(bits)} bytes for {count} bits and {hashes} hashes"):
            KeyFilter.decode(KeyFilter(bits, count, hashes).encode(), "k")
