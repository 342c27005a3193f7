"""Which keys this room accepts: one rule for every store, so that a key means the same object in all of them.

S3 itself takes `a//b`, `../x` or `x/` as names of their own, while other clients refuse or silently rewrite them
(obstore strips a leading or trailing `/`). So they are refused here, before any request, with the key and the reason.
"""

from __future__ import annotations

import re

from worm.errors import Invalid

KEY_BYTES_MAX = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_key(key: str) -> str:
    """The key itself, or `Invalid` with the reason."""
    reason = _reason_against(key)
    if reason is not None:
        raise Invalid(f"{key!r} cannot be an object key: {reason}", key=key)
    return key


def check_prefix(prefix: str) -> str:
    """A prefix may be empty or end in `/`; what it says up to there follows the rule for keys."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def acceptable(key: str) -> bool:
    """Whether `check_key` would let it pass."""
    return _reason_against(key) is None


def _reason_against(key: str) -> str | None:
    if not key:
        return "it is empty"
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "it has a lone surrogate"
    if size_bytes > KEY_BYTES_MAX:
        return f"it has {size_bytes} bytes, more than {KEY_BYTES_MAX}"
    if _CONTROL.search(key):
        return "it has a control character"
    segments = key.split("/")
    if "" in segments:
        return "it has an empty path segment (a leading, trailing or double slash)"
    if "." in segments or ".." in segments:
        return "it has a path segment '.' or '..'"
    return None
