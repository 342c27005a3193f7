"""What an id may be. Ids become path segments in S3, on disk, in obstore and in Hadoop, which all treat odd names
differently, so only names that mean the same everywhere are allowed: ASCII letters, digits and `. _ ~ -`, at most
200 bytes, no leading dot (system names start with one). Nothing is normalised or escaped: an id is its key segment.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, get_args

IdType = Literal["uuid", "string", "slug", "int", "ulid"]
ID_TYPES: tuple[IdType, ...] = get_args(IdType)
SINGLETON_ID = "_"
"""The id of a singleton's only document, and of no other."""
ID_BYTES_MAX = 200
INT_ID_MAX = 2**63 - 1

_SAFE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}")
_TYPED: dict[IdType, re.Pattern[str]] = {
    "uuid": re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    "slug": re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*"),
    "int": re.compile(r"0|[1-9][0-9]{0,18}"),
    "ulid": re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}"),
}
_TYPE_RULES: dict[IdType, str] = {
    "uuid": "must be a lower-case UUID such as 1b4e28ba-2fa1-4d2e-883f-0016d3cca427",
    "slug": "must be a slug: lower-case letters and digits in groups joined by single hyphens",
    "int": f"must be a whole number from 0 to {INT_ID_MAX} without leading zeros",
    "ulid": "must be a ULID: 26 upper-case Crockford characters, the first 0 to 7",
}
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def id_problem(id_type: IdType, text: str) -> str | None:
    """Why `text` is no id of this type, or None when it is one."""
    if not _SAFE.fullmatch(text):
        return _unsafe_reason(text)
    pattern = _TYPED.get(id_type)
    if pattern is None:
        return None
    if not pattern.fullmatch(text) or (id_type == "int" and int(text) > INT_ID_MAX):
        return _TYPE_RULES[id_type]
    return None


def segment_problem(text: str) -> str | None:
    """Why `text` cannot be one segment of a key (a folder, a file, an id), or None when it can."""
    return None if _SAFE.fullmatch(text) else _unsafe_reason(text)


def _unsafe_reason(text: str) -> str:
    if not text:
        return "must not be empty"
    if text.startswith("."):
        return "must not start with a dot (system names do)"
    for character in text:
        reason = _character_reason(character)
        if reason:
            return reason
    if unicodedata.normalize("NFC", text) != text:
        return "is not in Unicode normal form C, and only ASCII letters, digits and . _ ~ - are allowed"
    if not text.isascii():
        return "must have only ASCII letters, digits and . _ ~ -"
    if len(text) > ID_BYTES_MAX:
        return f"has {len(text)} bytes, more than the {ID_BYTES_MAX} allowed"
    return "must have only ASCII letters, digits and . _ ~ -"


def _character_reason(character: str) -> str | None:
    if character in "/\\%":
        return f"must not contain {character}"
    if "\ud800" <= character <= "\udfff":
        return "holds a lone surrogate"
    if character in _BIDI:
        return f"holds the text direction mark U+{ord(character):04X}"
    if unicodedata.category(character) == "Cc":
        return f"holds the control character U+{ord(character):04X}"
    return None
