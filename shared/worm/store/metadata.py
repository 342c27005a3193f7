"""Object metadata: lower-case names, percent-encoded ASCII values, at most 2 KiB in all (S3's limit).

Stores pass metadata through unchanged; who writes a free text (an actor's name) encodes it with `quote_value` and who
reads it decodes it with `unquote_value`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from worm.errors import Invalid

METADATA_BYTES_MAX = 2048
_HEADERS = {
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "storage-class",
}
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def quote_value(text: str) -> str:
    """Any text as printable ASCII."""
    return quote(text, safe="!#$&'()*+,-./:;=?@[]^_`{|}~<>")


def unquote_value(value: str) -> str:
    """The text that `quote_value` was given."""
    return unquote(value)


def check_metadata(metadata: Mapping[str, str] | None, key: str) -> dict[str, str]:
    """A copy of it, or `Invalid` naming the entry that no store would keep as it is."""
    checked = dict(metadata or {})
    for name, value in checked.items():
        if not _NAME.fullmatch(name) or name in _HEADERS:
            raise Invalid(f"metadata name {name!r} is a header's or not lower-case letters, digits, dashes", key=key)
        if not _VALUE.fullmatch(value):
            raise Invalid(f"metadata {name} is not printable ASCII: {value!r}", key=key, hint="encode with quote_value")
    if sum(len(name) + len(value) for name, value in checked.items()) > METADATA_BYTES_MAX:
        raise Invalid(f"metadata is larger than {METADATA_BYTES_MAX} bytes", key=key)
    return checked
