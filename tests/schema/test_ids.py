"""Ids: what may be one, what stands for it in keys, and what a caller may pass."""

from __future__ import annotations

import re
import unicodedata
from enum import Enum, IntEnum
from itertools import pairwise
from urllib.parse import unquote
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worm.errors import Invalid
from worm.formats.fields import IdType, decode_id, encode_id, escape_id, id_of, id_problem, needs_escape

UUID_TEXT = "1b4e28ba-2fa1-4d2e-883f-0016d3cca427"
ODD = st.text("aA0b./%@+ -~é\x00\x1f\U0010ffff", max_size=6)
ANY = ODD | st.text(st.characters(), max_size=30).map(lambda text: unicodedata.normalize("NFC", text))
IDS = ANY.filter(lambda text: id_problem("string", text) is None)
UNSAFE = re.compile(r"[\x00-\x1f\x7f/]|^\.")


@given(IDS)
@example("100%")
@example("..")
def test_an_id_comes_back_from_its_segment(id: str) -> None:
    segment = encode_id(id)
    assert decode_id(segment) == id == unquote(segment)
    assert not UNSAFE.search(segment)
    assert len(segment.encode()) <= 200
    assert (segment == id) is not needs_escape(id)


@given(IDS, IDS)
@example("a", "A")
@example("a/b", "a%2Fb")
@example("a/b", "%61%2Fb")
def test_two_ids_never_share_a_segment(one: str, other: str) -> None:
    assert (encode_id(one) == encode_id(other)) is (one == other)


@given(ANY)
@example("%61b")
@example("a%2Fb")
@example("%2f")
@example("%ED%A0%80")
def test_a_segment_is_of_one_id_or_of_none(segment: str) -> None:
    found = decode_id(segment)
    assert found is None or id_problem("string", found) is not None or encode_id(found) == segment


@given(st.lists(IDS, max_size=6))
def test_escaped_ids_and_all_others_sort_as_their_segments_do(ids: list[str]) -> None:
    escaped = sorted(one for one in ids if needs_escape(one))
    plain = sorted(one for one in ids if not needs_escape(one))
    for one, other in [*pairwise(escaped), *pairwise(plain)]:
        assert encode_id(one).encode() <= encode_id(other).encode()
    assert all(escape_id(one) <= escape_id(other) for one, other in pairwise(sorted(ids)))


class Named(str, Enum):  # noqa: UP042  # the case is the point
    """As people wrote them before StrEnum."""

    ACME = "acme"


class Numbered(IntEnum):
    """Numbers with names."""

    ONE = 1


@pytest.mark.parametrize(
    ("id_type", "given", "id"),
    [
        ("string", "jane@acme.com", "jane@acme.com"),
        ("string", Named.ACME, "acme"),
        ("slug", "acme", "acme"),
        ("int", 7, "7"),
        ("int", "7", "7"),
        ("int", Numbered.ONE, "1"),
        ("uuid", UUID(UUID_TEXT), UUID_TEXT),
        ("uuid", UUID_TEXT, UUID_TEXT),
        (None, "_", "_"),
    ],
)
def test_what_a_caller_may_pass_as_an_id(id_type: IdType | None, given: object, id: str) -> None:
    found = id_of(id_type, given)
    assert (found, type(found)) == (id, str)


@pytest.mark.parametrize(
    ("id_type", "given", "reason"),
    [
        ("string", None, r"an id must be a string, not None .*by its id"),
        ("string", True, r"an id must be a string, not bool True"),
        ("string", 5, r"an id must be a string, not int 5 .*pass '5'"),
        ("string", UUID(UUID_TEXT), f"not UUID .*pass '{UUID_TEXT}'"),
        ("string", ["a"], r"an id must be a string, not list"),
        ("string", b"a", r"an id must be a string, not bytes"),
        ("string", "", "must not be empty"),
        ("string", "_", "is reserved"),
        ("int", True, r"an id must be a whole number or its digits, not bool True"),
        ("int", None, r"an id must be a whole number or its digits, not None"),
        ("int", -1, "id '-1' must be a whole number from 0"),
        ("int", 2**63, "must be a whole number from 0"),
        ("int", 1.0, "not float 1.0"),
        ("uuid", 5, "an id must be a UUID or its text, not int 5"),
        ("uuid", UUID_TEXT.upper(), "must be a lower-case UUID"),
        (None, "a", "the model has a single document"),
        (None, None, "an id must be a string, not None"),
    ],
)
def test_what_cannot_be_an_id_is_refused_with_a_way_out(id_type: IdType | None, given: object, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        id_of(id_type, given)
