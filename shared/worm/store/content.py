"""Etags, times and ranges as S3 has them, in one spelling for every store and client."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from worm.errors import Invalid

RANGE_END_MAX = 2**63 - 1


def content_etag(body: bytes) -> str:
    """What S3 answers for a single PUT without KMS: the quoted MD5. For the stores that stand in for S3."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def exact_etag(raw: str | None) -> str:
    """One spelling for all clients: quoted, as the ETag header has it."""
    etag = raw or ""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'


def whole_seconds(moment: datetime) -> datetime:
    """S3 keeps whole seconds; emulators and clients must not make two readers disagree."""
    return moment.astimezone(UTC).replace(microsecond=0)


def check_range(key: str, start: int, length: int) -> None:
    """`Invalid` for what is no range of bytes, before any request."""
    if start < 0 or length < 1 or start + length > RANGE_END_MAX:
        raise Invalid(f"{length} bytes from byte {start} on are no range", key=key)
