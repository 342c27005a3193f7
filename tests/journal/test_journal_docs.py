"""What docs/formats.md and docs/journal.md say of logs is what is written."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.markdown import ROOT, blocks
from tests.journal.log_room import log_bytes
from worm.formats.frames import decode_whole
from worm.formats.strict_json import JsonValue, dumps
from worm.log.config import LogConfig
from worm.log.journal.file import OPLOG
from worm.log.journal.pack import MAGIC, unpack
from worm.log.journal.records import TOKENS, Insert, Record, record_of
from worm.log.journal.store import LogStore
from worm.log.segment import Segment

FORMATS = ROOT / "docs" / "formats.md"


def test_the_example_of_a_log_is_a_record() -> None:
    (text,) = [block.text for block in blocks(FORMATS) if block.text.startswith('{"doc"')]
    (found,) = decode_whole(text.encode(), key="docs", first_lsn=0)
    assert record_of(found, "docs") == Record(0, 0, Insert("c", 1, {"_id": 1, "v": "row-1"}))


def test_the_example_of_a_segment_is_one() -> None:
    (text,) = [block.text for block in blocks(FORMATS) if block.text.startswith('{"epoch"')]
    segment = Segment.decode(text.encode(), 2, "docs")
    assert segment.encode() == text.encode()
    assert [(entry.lsn, entry.txn) for entry in segment.entries] == [(3, "order-7")]


def test_every_setting_of_a_commit_log_is_described() -> None:
    page = (ROOT / "docs" / "journal.md").read_text()
    assert [name for name in LogConfig.model_fields if f"`{name}`" not in page] == []


def test_the_example_of_an_archive_is_one(tmp_path: Path) -> None:
    (text,) = [block.text for block in blocks(FORMATS) if block.text.encode().startswith(MAGIC)]
    (tmp_path / "a").write_text(text)
    assert unpack(tmp_path / "a", tmp_path / "b").documents == 1


def test_every_op_and_every_file_is_described() -> None:
    page = FORMATS.read_text()
    assert [token for token in TOKENS.values() if f"`{token}`" not in page] == []
    assert [name for name in (OPLOG, "LOCK", f"{OPLOG}.compacting", f"{OPLOG}.damaged-") if name not in page] == []


def test_the_example_of_the_store_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [one.text for one in blocks(ROOT / "docs" / "journal.md") if "LogStore.open" in one.text]
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "journal.md", "exec"), {})
    assert log_bytes(tmp_path / "app.omgdb").count(b"\n") == 7
    with LogStore.open(tmp_path / "app.omgdb") as store:
        assert store.get("people", 1) == {"_id": 1, "name": "Ada L."}


def as_documented(value: JsonValue) -> str:
    """Canonical JSON, written down a second time from the page alone."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, str):
        return '"' + "".join(map(_character, value)) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(as_documented, value)) + "]"
    names = sorted(value, key=lambda name: name.encode())
    return "{" + ",".join(f"{as_documented(name)}:{as_documented(value[name])}" for name in names) + "}"


def _character(one: str) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    return short.get(one) or (f"\\u{ord(one):04x}" if ord(one) < 0x20 else one)


def _float(value: float) -> str:
    sign = "-" if math.copysign(1, value) < 0 else ""
    _, digits, exponent = Decimal(repr(abs(value))).as_tuple()  # repr has the shortest digits
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0") or "0"
    stripped = text.rstrip("0") or "0"
    power = exponent + len(text) - 1
    if value == 0 or 1e-5 <= abs(value) < 1e16:
        plain = f"{Decimal(repr(abs(value))):f}"
        return sign + (plain if "." in plain else plain + ".0")
    mantissa = stripped[0] + ("." + stripped[1:] if len(stripped) > 1 else "")
    return f"{sign}{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1.0, 1e-5, 1e-6, 9.999e-6, 1e15, 1e16, 1e22, 5e-324, 1.7976931348623157e308, 2.0**53]
)
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


@given(VALUES)
def test_canonical_json_is_as_documented(value: JsonValue) -> None:
    assert dumps(value) == as_documented(value).encode()


def test_every_control_character_and_the_odd_names_are_as_documented() -> None:
    value: JsonValue = {
        chr(code): chr(code) for code in (*range(0x21), 0x22, 0x2F, 0x5C, 0x7F, 0x9F, 0x2028, 0xE000, 0x10000)
    }
    assert dumps(value) == as_documented(value).encode()
    assert re.search(rb"[\x00-\x1f]", dumps(value)) is None
