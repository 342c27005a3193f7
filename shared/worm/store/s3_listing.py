"""Parses S3's listings from the raw XML.

botocore parses `<Version>` and `<DeleteMarker>` elements into two lists and so loses their order. But the order is the
only record of the sequence of events: `LastModified` has whole seconds, and for a multipart upload it is the time when
the upload began. AWS interleaves both kinds, keys ascending and newest first within a key, so we keep document order.

moto writes all versions and then all markers; LocalStack does the reverse. Such a page is easy to recognize: a key is
out of order, a latest row is not the first of its key, or a row is as new as one of the other kind above it. We then
merge the two kinds by key, latest flag and time. Both emulators give whole seconds, so the order within one second is a
guess: a marker is taken to be as new as possible, but never two in a row. That is right for a delete followed by a
create, and wrong for two versions after a marker. Answers of AWS itself, recognized by the Server header, are never
changed.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from urllib.parse import unquote_plus

from worm.store.base import NULL_VERSION, Listed, Version, exact_etag, whole_seconds

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
    """Raises `ElementTree.ParseError` for a truncated document."""
    root = ElementTree.fromstring(document)
    fields = _Fields(root, encoded=_is_encoded(root))
    rows = [fields.listed(element) for element in root if _name(element) == "Contents"]
    return ObjectPage(rows, fields.text(root, "NextContinuationToken") or None)


def parse_versions(document: bytes, server: str = "") -> VersionPage:
    """Raises `ElementTree.ParseError` for a truncated document. `server` is the Server header of the answer."""
    root = ElementTree.fromstring(document)
    fields = _Fields(root, encoded=_is_encoded(root))
    timed = [fields.version(element) for element in root if _name(element) in ("Version", "DeleteMarker")]
    if server != AWS_SERVER and _is_grouped(timed):
        timed = _merged(timed)
    more = fields.text(root, "IsTruncated") == "true"
    return VersionPage(
        [row.version for row in timed],
        fields.key(root, "NextKeyMarker") if more else None,
        (fields.text(root, "NextVersionIdMarker") or None) if more else None,
    )


@dataclass(frozen=True, slots=True)
class _Timed:
    """A version with its time, as precise as in the page."""

    version: Version
    at: datetime

    @property
    def is_marker(self) -> bool:
        return self.version.is_delete_marker


def _is_grouped(rows: list[_Timed]) -> bool:
    markers = [row.is_marker for row in rows]
    is_interleaved = markers != sorted(markers) and markers != sorted(markers, reverse=True)
    if is_interleaved or not any(markers) or all(markers):
        return False
    return any(_out_of_order(above, below) for above, below in pairwise(rows)) or _has_newer_below(rows)


def _out_of_order(above: _Timed, below: _Timed) -> bool:
    if above.version.key != below.version.key:
        return above.version.key.encode() > below.version.key.encode()
    return below.version.is_latest


def _has_newer_below(rows: list[_Timed]) -> bool:
    oldest: dict[tuple[str, bool], datetime] = {}
    for row in rows:
        above = oldest.get((row.version.key, not row.is_marker))
        if above is not None and row.at >= above:
            return True
        oldest[row.version.key, row.is_marker] = row.at
    return False


def _merged(rows: list[_Timed]) -> list[_Timed]:
    """Keys ascending; within a key, both kinds keep their own order and are merged."""
    out: list[_Timed] = []
    ordered = sorted(rows, key=lambda row: row.version.key.encode())
    for _, same_key in groupby(ordered, key=lambda row: row.version.key):
        both = list(same_key)
        versions = deque(row for row in both if not row.is_marker)
        markers = deque(row for row in both if row.is_marker)
        after_marker = False
        while versions or markers:
            after_marker = _marker_is_next(versions, markers, after_marker)
            out.append((markers if after_marker else versions).popleft())
    return out


def _marker_is_next(versions: deque[_Timed], markers: deque[_Timed], after_marker: bool) -> bool:
    if not versions or not markers:
        return bool(markers)
    version, marker = versions[0], markers[0]
    if version.version.is_latest or marker.version.is_latest:
        return marker.version.is_latest
    return not after_marker if marker.at == version.at else marker.at > version.at


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
        row = Version.of(
            self.key(element),
            exact_version(version_id) if is_latest else version_id or NULL_VERSION,
            etag="" if is_marker else self.text(element, "ETag"),
            size=0 if is_marker else int(self.text(element, "Size")),
            moment=at,
            is_latest=is_latest,
            is_delete_marker=is_marker,
        )
        return _Timed(row, at)
