"""The order of versions and delete markers is the history of a document; it must survive every spelling of the page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from worm.store.base import NULL_VERSION, Version
from worm.store.s3_listing import AWS_SERVER, parse_objects, parse_versions

NOW = datetime(2026, 11, 16, 1, 0, 0, tzinfo=UTC)
HEAD = '<?xml version="1.0"?><ListVersionsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'


def row(name: str, key: str = "k", *, latest: bool = False, second: int = 0) -> str:
    """A version `v…` or a marker `d…`."""
    flag = "true" if latest else "false"
    time = f"2026-11-16T01:00:{second:02d}.000Z"
    common = f"<Key>{key}</Key><VersionId>{name}</VersionId><IsLatest>{flag}</IsLatest>"
    common += f"<LastModified>{time}</LastModified>"
    if name.startswith("d"):
        return f"<DeleteMarker>{common}</DeleteMarker>"
    return f"<Version>{common}<ETag>&quot;{name}&quot;</ETag><Size>1</Size></Version>"


def order(*rows: str, server: str = "") -> list[tuple[str, str | None]]:
    document = (HEAD + "".join(rows) + "<IsTruncated>false</IsTruncated></ListVersionsResult>").encode()
    return [(version.key, version.version_id) for version in parse_versions(document, server).rows]


def test_an_interleaved_page_keeps_its_order_within_one_second() -> None:
    """botocore's two lists lose it, and the times are equal."""
    rows = [row("v4", latest=True), row("v3"), row("d2"), row("v2"), row("d1"), row("v1")]
    assert order(*rows) == [("k", name) for name in ("v4", "v3", "d2", "v2", "d1", "v1")]


def test_the_order_of_aws_is_kept_against_the_times_of_multipart_uploads() -> None:
    """A multipart upload bears the time it was begun, which can be before the marker that it came after."""
    rows = [row("v2", latest=True, second=1), row("v1", second=1), row("d1", second=5)]
    assert order(*rows, server=AWS_SERVER) == [("k", "v2"), ("k", "v1"), ("k", "d1")]


@pytest.mark.parametrize("markers_first", [True, False])
def test_a_grouped_page_is_put_in_order_by_key_latest_and_time(markers_first: bool) -> None:
    """moto writes the versions first, LocalStack the markers."""
    versions = [row("v3", "a", second=4), row("v2", "a", second=2), row("v1", "a"), row("v9", "b", latest=True)]
    markers = [row("d3", "a", latest=True, second=5), row("d2", "a", second=3), row("d1", "a", second=1)]
    rows = markers + versions if markers_first else versions + markers
    expected = [("a", name) for name in ("d3", "v3", "d2", "v2", "d1", "v1")]
    assert order(*rows) == [*expected, ("b", "v9")]


@pytest.mark.parametrize("markers_first", [True, False])
def test_delete_and_create_again_within_a_second_is_right_on_a_grouped_page(markers_first: bool) -> None:
    versions, markers = [row("v2", latest=True), row("v1")], [row("d1")]
    rows = markers + versions if markers_first else versions + markers
    assert order(*rows) == [("k", "v2"), ("k", "d1"), ("k", "v1")]
    versions, markers = [row("v2"), row("v1")], [row("d2", latest=True), row("d1")]
    rows = markers + versions if markers_first else versions + markers
    assert order(*rows) == [("k", "d2"), ("k", "v2"), ("k", "d1"), ("k", "v1")]


def test_a_whole_page_is_read_with_markers_for_the_next() -> None:
    document = (
        HEAD + "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
        "<NextKeyMarker>a+b%2Fc</NextKeyMarker><NextVersionIdMarker>v7</NextVersionIdMarker>"
        + row("v1", "a+b%2Fc", latest=True)
        + row("null", "a+b%2Fc")
        + "</ListVersionsResult>"
    ).encode()
    page = parse_versions(document)
    assert (page.next_key, page.next_version) == ("a b/c", "v7")
    assert page.rows == [
        Version("a b/c", "v1", '"v1"', 1, NOW, is_latest=True),
        Version("a b/c", NULL_VERSION, '"null"', 1, NOW, is_latest=False),
    ]


def test_a_listing_without_quotes_or_namespace_reads_the_same() -> None:
    document = (
        b"<ListBucketResult><Contents><Key>a</Key><LastModified>2026-11-16T01:00:00.900Z</LastModified>"
        b"<ETag>abc</ETag><Size>3</Size></Contents><NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    )
    page = parse_objects(document)
    assert [(row.key, row.etag, row.size, row.last_modified) for row in page.rows] == [("a", '"abc"', 3, NOW)]
    assert page.next_token == "t"
