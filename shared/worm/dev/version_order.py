"""Version listings as AWS writes them: versions and delete markers of a key interleaved, newest first.

moto writes all versions and then all markers, with whole seconds, so its page does not show the order within one
second. Here the elements of the page are sorted by order of writing, and the page says that it comes from S3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from moto.s3.models import s3_backends

from worm.dev.cfn import ACCOUNT_ID, PARTITION

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
ROWS = frozenset({"Version", "DeleteMarker"})
SERVER = ("Server", "AmazonS3")
Headers = list[tuple[str, str]]

ElementTree.register_namespace("", NAMESPACE)


def answer_in_order(
    respond: Callable[[Callable[..., Any]], Iterable[bytes]], bucket: str, start_response: Callable[..., Any]
) -> list[bytes]:
    """Returns the answer of `respond`, with its rows in the order of writing."""
    started: list[tuple[str, Headers]] = []

    def keep(status: str, headers: Headers, exc_info: object = None, /) -> None:
        started.append((status, headers))

    body = b"".join(respond(keep))
    status, headers = started[-1]
    if status.startswith("200"):
        body = in_order_of_writing(body, bucket)
        headers = [pair for pair in headers if pair[0].lower() not in ("content-length", "server")]
        headers += [("Content-Length", str(len(body))), SERVER]
    start_response(status, headers)
    return [body]


def in_order_of_writing(page: bytes, bucket: str) -> bytes:
    root = ElementTree.fromstring(page)
    ranks: dict[str, dict[str, int]] = {}
    stored = s3_backends[ACCOUNT_ID][PARTITION].get_bucket(bucket).keys

    def rank(row: ElementTree.Element) -> tuple[bytes, int]:
        key = _text(row, "Key")
        name = unquote_plus(key) if _is_encoded(root) else key
        if name not in ranks:
            newest_first = reversed(stored.getlist(name, []))
            ranks[name] = {version.version_id or "null": index for index, version in enumerate(newest_first)}
        return name.encode(), ranks[name].get(_text(row, "VersionId"), len(ranks[name]))

    rows = sorted((child for child in root if _name(child) in ROWS), key=rank)
    others = [child for child in root if _name(child) not in ROWS]
    root[:] = [*others, *rows]
    ordered: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return ordered


def _is_encoded(root: ElementTree.Element) -> bool:
    return any(_name(child) == "EncodingType" and child.text == "url" for child in root)


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(row: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in row if _name(child) == name), "")
