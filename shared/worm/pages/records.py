"""Pages in the commit log: `{"op":"page","page":"a/1","text":"…"}`, `"data"` (base64) for bytes that are not text, or
`"delete":true`. One record of op `space` stands for all pages of a space's commit (`space_record.py`). Records of other
ops belong to other rooms and are skipped.

All pages of a transaction have the LSN of its last record, its commit LSN: a read at any LSN sees all of a transaction
or nothing. If it writes a page several times, the last write counts.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress

from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, type_name
from worm.log import Segment, hints
from worm.pages.layer_file import PageVersion
from worm.pages.space_record import OP as SPACE_OP
from worm.pages.space_record import space_pages

OP = "page"
PAGE_NAME_MAX = 1024
_CONTROLS = bytes(range(32))


def check_page(page: object) -> str:
    """The page's id: 1 to 1,024 bytes of UTF-8."""
    if not isinstance(page, str):
        raise Invalid(f"a page's id must be a string, not {type_name(page)}")
    try:
        size = len(page.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= PAGE_NAME_MAX:
        raise Invalid(f"a page's id must have 1 to {PAGE_NAME_MAX} bytes, not {page!r:.80}")
    return page


def check_data(page: str, data: bytes, max_bytes: int) -> None:
    given: object = data
    if not isinstance(given, bytes):
        raise Invalid(f"page {page!r:.80} must be bytes, not {type_name(given)}", hint="pass None to delete a page")
    if len(data) > max_bytes:
        raise Invalid(
            f"page {page!r:.80} has {len(data)} bytes; the limit is {max_bytes}",
            hint="split it over several pages, or raise `page_max_bytes`",
        )


def page_record(page: str, data: bytes | None, *, max_bytes: int) -> JsonObject:
    """The record that writes a page; None deletes it."""
    record: JsonObject = {"op": OP, "page": check_page(page)}
    if data is None:
        return {**record, "delete": True}
    check_data(page, data, max_bytes)
    controls = len(data) - len(data.translate(None, _CONTROLS))
    if 15 * controls <= len(data):  # each takes six bytes as text, so base64 is shorter if there are many
        with suppress(UnicodeDecodeError):
            return {**record, "text": data.decode()}
    return {**record, "data": b64encode(data).decode()}


def page_of(record: Mapping[str, object]) -> tuple[str, bytes | None] | None:
    """The page that a record writes; None for a record of another op. `Invalid` if it is malformed."""
    if record.get("op") != OP:
        return None
    page = record.get("page")
    contents = [name for name in ("text", "data", "delete") if name in record]
    if not isinstance(page, str) or len(contents) != 1 or len(record) != 3:
        raise Invalid('a record of a page must have "page" and one of "text", "data" and "delete"')
    check_page(page)
    content = record[contents[0]]
    if contents[0] == "delete" and content is True:
        return page, None
    if not isinstance(content, str):
        raise Invalid(f"{contents[0]!r} of page {page!r:.80} has the wrong value {content!r:.40}")
    if contents[0] == "text":
        try:
            return page, content.encode()
        except UnicodeEncodeError as error:
            raise Invalid(f"the text of page {page!r:.80} contains a lone surrogate") from error
    try:
        return page, b64decode(content, validate=True)
    except ValueError as error:
        raise Invalid(f"the data of page {page!r:.80} is not base64") from error


def pages_of(record: Mapping[str, object]) -> Mapping[str, bytes | None]:
    """All pages that a record writes; none for a record of another op. `Invalid` if it is malformed."""
    if record.get("op") == SPACE_OP:
        return space_pages(record)
    written = page_of(record)
    return {} if written is None else {written[0]: written[1]}


def versions_of(segment: Segment, base: int, key: str) -> Iterator[PageVersion]:
    """The changes of a segment to pages, in the order of LSNs; `base` is added to the LSNs of a branch's log."""
    pages: dict[str, bytes | None] = {}
    for at, entry in enumerate(segment.entries):
        try:
            pages |= pages_of(entry.record)
        except Invalid as mistake:
            raise Corrupt(f"lsn {entry.lsn}: {mistake.message}", key=key, hint=hints.VERIFY) from mistake
        if at + 1 == len(segment.entries) or segment.entries[at + 1].txn != entry.txn:
            for page, data in pages.items():
                yield PageVersion(page, base + entry.lsn, data)
            pages = {}
