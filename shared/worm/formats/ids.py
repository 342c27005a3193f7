"""Ids of documents: what they may be, and their segments in keys.

- An id is any text in Unicode normal form C without lone surrogates, text direction marks and the control characters
  from U+007F to U+009F. Models with typed ids (`uuid`, `int`, `slug`, `ulid`) allow less.
- The *segment* of an id represents it in keys; it has at most 200 bytes. An id is its own segment, unless it *needs an
  escape*: it contains `/`, `%` or a character below U+0020, or starts with a dot (like system names). Then its first
  character, and every later one that sorts before `0`, are written as `%XX` of their UTF-8 bytes.
- Every id has exactly one segment; a segment with an unnecessary or missing escape belongs to no id. Escaped ids sort
  among themselves as their segments do, and so do all others: ranges of ids stay ranges of keys (`id_ranges.py`).
- Names of folders, files, databases and branches (`segment_problem`) are narrower: ASCII letters, digits, `. _ ~ -`.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import Literal, get_args
from uuid import UUID

from worm.clock import Ids
from worm.errors import Invalid, shown
from worm.formats.strict_json import INT_MAX

IdType = Literal["uuid", "string", "slug", "int", "ulid"]
ID_TYPES: tuple[IdType, ...] = get_args(IdType)
SINGLETON_ID = "_"
"""The id of a singleton's only document. No other document may have it."""
ID_BYTES_MAX = 200
INT_ID_MAX = 2**63 - 1

_SAFE = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,199}")
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_REFUSED = re.compile(f"[\x7f-\x9f\ud800-\udfff{_BIDI}]")
_NEEDS_ESCAPE = re.compile(r"^\.|[\x00-\x1f/%]")
_ESCAPED_LATER = re.compile(r"[\x00-/]")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
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


def id_problem(id_type: IdType, text: str) -> str | None:
    """Why `text` is not an id of this type, or None if it is."""
    problem = _text_problem(text)
    if problem:
        return problem
    pattern = _TYPED.get(id_type)
    if pattern is None:
        return None
    if not pattern.fullmatch(text) or (id_type == "int" and int(text) > INT_ID_MAX):
        return _TYPE_RULES[id_type]
    return None


def _text_problem(text: str) -> str | None:
    """Why `text` is not an id of any type."""
    if _SAFE.fullmatch(text):
        return None
    if not text:
        return "must not be empty"
    refused = _REFUSED.search(text)
    if refused:
        return _refusal(refused[0])
    if not unicodedata.is_normalized("NFC", text):
        return "is not in Unicode normal form C (text that looks the same must be the same)"
    size_bytes = len(id_segment(text).encode())
    if size_bytes > ID_BYTES_MAX:
        escaped = " with its escapes" if needs_escape(text) else ""
        return f"has {size_bytes} bytes{escaped}, and the limit is {ID_BYTES_MAX}"
    return None


def _refusal(character: str) -> str:
    if "\ud800" <= character <= "\udfff":
        return "contains a lone surrogate"
    kind = "control character" if character <= "\x9f" else "text direction mark"
    return f"contains the {kind} U+{ord(character):04X}"


def needs_escape(id: str) -> bool:
    return _NEEDS_ESCAPE.search(id) is not None


def id_segment(id: str) -> str:
    """The segment of the id in keys; see above. The id must be valid."""
    return escape_id(id) if needs_escape(id) else id


def escape_id(text: str) -> str:
    """The segment prefix for ids that start like this and need an escape. Keeps the order of texts."""
    return _percent(text[:1]) + _ESCAPED_LATER.sub(lambda match: _percent(match[0]), text[1:])


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def segment_id(segment: str) -> str | None:
    """The id of a segment in a key; None if it belongs to no id (an escape is broken, missing or unnecessary)."""
    if "%" not in segment:
        return None if needs_escape(segment) else segment
    named = unescaped(segment) if segment.startswith("%") else None
    return named if named is not None and needs_escape(named) and escape_id(named) == segment else None


def unescaped(segment: str) -> str | None:
    """The segment with its escapes decoded, canonical or not; None if one is broken."""
    if "%" in _ESCAPES.sub("", segment):
        return None
    try:
        return _ESCAPES.sub(lambda match: bytes.fromhex(match[0].replace("%", "")).decode(), segment)
    except UnicodeDecodeError:
        return None


def segment_problem(text: object) -> str | None:
    """Why `text` cannot be the name of a folder, a file, a database or a branch, or None if it can."""
    if not isinstance(text, str):
        return "must be text"
    if _SAFE.fullmatch(text):
        return None
    if not text:
        return "must not be empty"
    if text.startswith("."):
        return "must not start with a dot (system names do)"
    odd = next((one for one in text if one in "/\\%"), None)
    if odd:
        return f"must not contain {odd}"
    if text.isascii() and len(text) > ID_BYTES_MAX:
        return f"has {len(text)} bytes, and the limit is {ID_BYTES_MAX}"
    return "must have only ASCII letters, digits and . _ ~ -"


_ID_HINT = 'name the document by its id, such as "acme"'
_INT_ID_BITS = 53  # the largest size that JavaScript can represent exactly


def check_id(id_type: IdType | None, id: str) -> str:
    """Return the id, or raise `Invalid` with the reason. `id_type` None is a singleton."""
    _check_text(id)
    problem = typed_problem(id_type, id)
    if problem:
        raise Invalid(f"id {shown(id)} {problem}")
    return id


def _check_text(id: object) -> None:
    if not isinstance(id, str):
        raise Invalid(f"an id must be a string, not {shown(id)}", hint=_ID_HINT)


def id_text(id_type: IdType | None, value: object) -> str:
    """The id as text: text, a UUID, or an integer in a model with integer ids."""
    if isinstance(value, str):
        return value.value if isinstance(value, StrEnum) else value
    if isinstance(value, UUID):
        return str(value)
    if id_type == "int" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    wanted = "a whole number or its digits as a string" if id_type == "int" else "a string"
    raise Invalid(f"must be {wanted}, not {shown(value)}", path="id")


def typed_problem(id_type: IdType | None, id: str) -> str | None:
    """Why `id` is not an id of this type, or None."""
    if id_type is None:
        return None if id == SINGLETON_ID else f"must be {SINGLETON_ID!r}, because the model has a single document"
    if id == SINGLETON_ID:
        return "is reserved for the only document of a singleton"
    return id_problem(id_type, id)


def check_safe(id: str) -> str:
    """Return the id if it is valid for any type, or raise `Invalid`."""
    _check_text(id)
    problem = _text_problem(id)
    if problem:
        raise Invalid(f"id {shown(id)} {problem}")
    return id


def id_of(id_type: IdType | None, given: object) -> str:
    """The id that a caller passes, as text: a string, an integer if ids are `int`, a `UUID` if they are `uuid`.
    Anything else is `Invalid`."""
    if isinstance(given, str):
        return check_id(id_type, str.__str__(given))
    if id_type == "int" and isinstance(given, int) and not isinstance(given, bool) and abs(given) <= INT_MAX:
        return check_id(id_type, str(int(given)))
    if id_type == "uuid" and isinstance(given, UUID):
        return str(given)
    wanted = {"int": "a whole number or its digits", "uuid": "a UUID or its text"}.get(id_type or "", "a string")
    said = "None" if given is None else f"{type(given).__name__} {shown(given)}"
    is_plain = isinstance(given, UUID) or (type(given) is int and abs(given) <= INT_MAX)
    raise Invalid(f"an id must be {wanted}, not {said}", hint=f"pass {shown(str(given))}" if is_plain else _ID_HINT)


def new_id(id_type: IdType | None, ids: Ids) -> str:
    """A new random id of the type. ULIDs and ids made from them sort by creation time."""
    if id_type is None:
        return SINGLETON_ID
    if id_type == "uuid":
        return ids.uuid()
    if id_type == "int":
        return str(ids.rng.getrandbits(_INT_ID_BITS))
    return ids.ulid() if id_type == "ulid" else ids.ulid().lower()
