"""Names in a space: ids of entities, branches, sessions, and numbers of transactions."""

from __future__ import annotations

import re

from worm.codec.strict_json import type_name
from worm.errors import Invalid
from worm.spaces.rows import MAIN

ID_BYTES_MAX = 512
NAME_BYTES_MAX = 200
SEQ_MAX = 2**63 - 1
BLOB_META = "urn:blob-meta:"

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HASH = re.compile(r"[0-9a-f]{64}")


def check_id(id: object, path: str | None = None) -> str:
    return _text(id, "an id", ID_BYTES_MAX, path)


def check_branch(name: object) -> str:
    return MAIN if name == MAIN else _text(name, "the name of a branch", NAME_BYTES_MAX, None)


def check_session(session_id: object) -> str:
    return _text(session_id, "session_id", NAME_BYTES_MAX, None)


def check_seq(seq: object, what: str, path: str | None = None) -> int:
    if type(seq) is not int or not 0 <= seq <= SEQ_MAX:
        raise Invalid(f"{what} must be an integer from 0 to 2^63-1, not {seq!r}", path=path)
    return seq


def check_hash(hash: object) -> str:
    if not isinstance(hash, str) or not _HASH.fullmatch(hash):
        raise Invalid(f"{hash!r} is not the hash of a blob", hint="64 lower-case hex digits, the SHA-256 of its bytes")
    return hash


def blob_meta_id(hash: str) -> str:
    """The entity with what is known of a blob."""
    return f"{BLOB_META}{check_hash(hash)}"


def branch_title(name: str) -> str:
    """A branch in messages."""
    return "the main branch" if name == MAIN else f"branch {name!r}"


def _text(value: object, what: str, bytes_max: int, path: str | None) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a string, not {type_name(value)}", path=path)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {value!r} holds a lone surrogate", path=path) from error
    if not 1 <= size <= bytes_max or _CONTROL.search(value):
        shown = value if size <= bytes_max else f"{value[:40]}…"
        raise Invalid(f"{what} must have 1 to {bytes_max} bytes and no control characters, not {shown!r}", path=path)
    return value
