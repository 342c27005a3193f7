"""Field names as file names of indexes. Letters, digits, `_`, `-` and inner dots stay; every other byte of the UTF-8
form becomes `~XX` (upper-case hex), so that each field has exactly one file name and each file name at most one field.
"""

from __future__ import annotations

import re

from worm.errors import Invalid

FIELD_FILE_BYTES_MAX = 200

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_DOT = ord(".")
_ESCAPED = re.compile(r"(?:[A-Za-z0-9_.-]|~[0-9A-F]{2})+")
_ESCAPE = re.compile(rb"~([0-9A-F]{2})")


def escape_field(field: str) -> str:
    """The file name (without `.json`) of a field's index; `Invalid` when the name is empty or too long."""
    try:
        raw = field.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(f"field {field!r} holds a lone surrogate") from error
    escaped = "".join(
        chr(byte) if byte in _PLAIN and not (at == 0 and byte == _DOT) else f"~{byte:02X}"
        for at, byte in enumerate(raw)
    )
    if not 1 <= len(escaped) <= FIELD_FILE_BYTES_MAX:
        raise Invalid(f"field {field!r} must have 1 to {FIELD_FILE_BYTES_MAX} bytes as a file name")
    return escaped


def unescape_field(name: str) -> str | None:
    """The field of a file name, or None when no field has this name."""
    if not _ESCAPED.fullmatch(name) or len(name) > FIELD_FILE_BYTES_MAX:
        return None
    raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), name.encode("ascii"))
    try:
        field = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return field if escape_field(field) == name else None
