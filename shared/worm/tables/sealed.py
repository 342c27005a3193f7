"""Sealed objects: a checksum in the object itself shows that nobody changed it.

A sealed object is a canonical JSON object whose first member is the checksum of everything else:
`{"checksum":"sha256:<hex>",…}`, the SHA-256 of the canonical bytes without that member. "checksum" sorts before every
other key that we use, so checking it is one hash over the bytes as read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from worm.errors import Corrupt
from worm.formats import JsonValue, dumps, loads_own

_HEAD = b'{"checksum":"sha256:'
_HEAD_LENGTH = len(_HEAD) + 64 + len(b'",')


def seal(shape: Mapping[str, JsonValue]) -> bytes:
    """Canonical bytes of the object with its checksum. No key may sort before "checksum"."""
    if any(key <= "checksum" for key in shape):
        raise ValueError("a sealed object's keys must sort after 'checksum'")
    rest = dumps(dict(shape))
    return _HEAD + hashlib.sha256(rest).hexdigest().encode() + b'",' + rest[1:]


def unseal(body: bytes, key: str) -> dict[str, JsonValue]:
    """The object without its checksum; `Corrupt` if the checksum is missing or wrong."""
    shape = loads_own(body, key=key)
    if "checksum" not in shape:
        raise Corrupt("has no checksum", key=key, hint="run `worm repair` to rebuild it")
    claimed = shape.pop("checksum")
    if body.startswith(_HEAD):
        actual = _hash_of_rest(body)
    else:  # reformatted by an editor: equal content is still equal
        actual = hashlib.sha256(dumps(shape)).hexdigest()
    if claimed != f"sha256:{actual}":
        raise Corrupt("its checksum does not match its content", key=key, hint="run `worm repair` to rebuild it")
    return shape


def is_intact(body: bytes) -> bool:
    """Whether the leading checksum matches, without parsing. Also False where only `unseal` can decide."""
    if not body.startswith(_HEAD):
        return False
    return body[len(_HEAD) : _HEAD_LENGTH] == _hash_of_rest(body).encode() + b'",'


def _hash_of_rest(body: bytes) -> str:
    digest = hashlib.sha256(b"{")
    digest.update(memoryview(body)[_HEAD_LENGTH:])  # a view: copying a large manifest takes longer than its hash
    return digest.hexdigest()
