"""Listings of S3, read from the raw XML.

botocore parses `<Version>` and `<DeleteMarker>` elements into two lists and so loses their order, which is the only
record of what came after what: `LastModified` has whole seconds, and for a multipart upload it is the time it was
begun. AWS writes both kinds interleaved, keys ascending and newest first inside a key, so document order is kept.

moto writes all versions and then all markers, LocalStack the other way round. Such a page betrays itself (a key out of
order, a latest row that is not the first of its key, a marker as new as a version above it); it is put in order by
key, latest and time. Both give whole seconds, so inside one second it is a guess: after the latest row, a marker counts
as newer than the versions (right for delete-then-create-again, wrong for two versions after a marker). The answers of
AWS itself, told by the Server header, are never touched.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from urllib.parse import unquote_plus

from worm.store.base import NULL_VERSION, Listed, Version
from worm.store.content import exact_etag, whole_seconds

AWS_SERVER = "AmazonS3"


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """One page of ListObjectsV2; `next_token` is None on the last."""

    rows: list[Listed]
    next_token: str | None


@dataclass(frozen=True, slots=True)
class VersionPage:
    """One page of ListObjectVersions; `next_key` is None on the last."""

    rows: list[Version]
    next_key: str | None
    next_version: str | None


def exact_version(raw: str | None) -> str | None:
    """`null` is S3's name for 'no version id'."""
    return None if raw in (None, "", NULL_VERSION) else raw


def parse_objects(document: bytes) -> ObjectPage:
    """Raises `ElementTree.ParseError` for a document that was cut."""
    root = ElementTree.fromstring(document)
    fields = _Fields(root, encoded=_is_encoded(root))
    rows = [fields.listed(element) for element in root if _name(element) == "Contents"]
    return ObjectPage(rows, fields.text(root, "NextContinuationToken") or None)


def parse_versions(document: bytes, server: str = "") -> VersionPage:
    """Raises `ElementTree.ParseError` for a document that was cut. `server` is the Server header of the answer."""
    root = ElementTree.fromstring(document)
    fields = _Fields(root, encoded=_is_encoded(root))
    timed = [fields.version(element) for element in root if _name(element) in ("Version", "DeleteMarker")]
    if server != AWS_SERVER and _is_grouped(timed):
        timed.sort(key=lambda row: (row.version.key.encode(), not row.version.is_latest, -row.at.timestamp(), row.rank))
    more = fields.text(root, "IsTruncated") == "true"
    return VersionPage(
        [row.version for row in timed],
        fields.key(root, "NextKeyMarker") if more else None,
        (fields.text(root, "NextVersionIdMarker") or None) if more else None,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """A version with its time as precise as the page has it."""

    version: Version
    at: datetime

    @property
    def rank(self) -> int:
        return 0 if self.version.is_delete_marker else 1


def _is_grouped(rows: list[_Timed]) -> bool:
    markers = [row.version.is_delete_marker for row in rows]
    is_interleaved = markers != sorted(markers) and markers != sorted(markers, reverse=True)
    if is_interleaved or not any(markers) or all(markers):
        return False
    return any(_out_of_order(above, below) for above, below in pairwise(rows)) or _marker_too_low(rows)


def _out_of_order(above: _Timed, below: _Timed) -> bool:
    if above.version.key != below.version.key:
        return above.version.key.encode() > below.version.key.encode()
    return below.version.is_latest


def _marker_too_low(rows: list[_Timed]) -> bool:
    oldest: dict[str, datetime] = {}
    for row in rows:
        if row.version.is_delete_marker and row.at >= oldest.get(row.version.key, datetime.max.replace(tzinfo=UTC)):
            return True
        if not row.version.is_delete_marker:
            oldest[row.version.key] = row.at
    return False


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _is_encoded(root: ElementTree.Element) -> bool:
    return any(_name(child) == "EncodingType" and child.text == "url" for child in root)


class _Fields:
    """Reads the children of an element, with or without the namespace, keys decoded."""

    def __init__(self, root: ElementTree.Element, *, encoded: bool) -> None:
        self._namespace = root.tag[: root.tag.find("}") + 1]
        self._encoded = encoded

    def text(self, element: ElementTree.Element, name: str) -> str:
        return element.findtext(self._namespace + name) or ""

    def key(self, element: ElementTree.Element, name: str = "Key") -> str:
        text = self.text(element, name)
        return unquote_plus(text) if self._encoded else text

    def time(self, element: ElementTree.Element) -> datetime:
        return datetime.fromisoformat(self.text(element, "LastModified"))

    def listed(self, element: ElementTree.Element) -> Listed:
        return Listed(
            key=self.key(element),
            etag=exact_etag(self.text(element, "ETag")),
            size=int(self.text(element, "Size")),
            last_modified=whole_seconds(self.time(element)),
        )

    def version(self, element: ElementTree.Element) -> _Timed:
        is_marker = _name(element) == "DeleteMarker"
        is_latest = self.text(element, "IsLatest") == "true"
        version_id = self.text(element, "VersionId")
        at = self.time(element)
        row = Version(
            key=self.key(element),
            version_id=exact_version(version_id) if is_latest else version_id or NULL_VERSION,
            etag="" if is_marker else exact_etag(self.text(element, "ETag")),
            size=0 if is_marker else int(self.text(element, "Size")),
            last_modified=whole_seconds(at),
            is_latest=is_latest,
            is_delete_marker=is_marker,
        )
        return _Timed(row, at)
