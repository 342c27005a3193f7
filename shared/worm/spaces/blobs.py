"""Blobs: bytes by their SHA-256, with metadata as ordinary entities `urn:blob-meta:<hash>`.

A payload is stored once, however often it is put. Its metadata has revisions like every document, also on branches.
Payloads are collected only on request. The past is kept, so a payload is needed if its metadata was ever committed.
With `history="drop"`, only the present counts: a payload is then needed as long as its metadata is on an active branch.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, Literal, Protocol, TypeAlias, get_args

from worm.errors import Corrupt, Invalid, NotFound, Unavailable, show
from worm.formats import JsonObject, type_name
from worm.spaces.backend import Backend, Reads
from worm.spaces.replay import line_of, load
from worm.spaces.rows import ACTIVE, MAIN, BlobRow, blob_meta_id, check_hash, time_text
from worm.store import in_chunks

CHUNK = 1024 * 1024
STRAY_SECONDS = 3600.0
_SPOOL_BYTES = 8 * CHUNK
_TRIES = 5
_PAGE = 500


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


Source: TypeAlias = bytes | bytearray | memoryview | Readable | Iterable[bytes | bytearray | memoryview]


History: TypeAlias = Literal["keep", "drop"]


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored payload. `content_type` comes from the first put."""

    hash: str
    size: int
    content_type: str | None


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes with their hash, which can be read again from the start."""

    hash: str
    size: int
    chunks: Callable[[], Iterator[bytes]]


@contextmanager
def payload_of(source: Source, bytes_max: int) -> Iterator[Payload]:
    """Large payloads and streams go through a temporary file: the hash must be known before the first byte is
    stored."""
    if isinstance(source, bytearray | memoryview):
        source = bytes(source)
    if isinstance(source, bytes):
        _check_size(len(source), bytes_max)
        yield Payload(hashlib.sha256(source).hexdigest(), len(source), lambda: _slices(source))
        return
    digest, size = hashlib.sha256(), 0
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
        for chunk in map(_checked, _chunks(source)):
            size += len(chunk)
            _check_size(size, bytes_max)
            digest.update(chunk)
            spool.write(chunk)
        yield Payload(digest.hexdigest(), size, lambda: _from_start(spool))


def put(
    backend: Backend, payload: Payload, content_type: str | None, now: datetime, describe: Callable[[], None]
) -> Blob:
    """Store the payload, then commit its metadata with `describe`, which raises `NotFound` if the payload was collected
    in between; then both are repeated."""
    row = BlobRow(payload.hash, content_type, payload.size, time_text(now))
    for _ in range(_TRIES):
        backend.put_blob(row, payload.chunks())
        try:
            describe()
        except NotFound:
            if backend.blob(payload.hash) is not None:
                raise
            continue
        return info(backend, payload.hash)
    raise Unavailable(f"blob {payload.hash} was garbage-collected on every attempt", hint="put it again later")


def metadata(payload: Payload, content_type: str | None, more: JsonObject | None) -> JsonObject:
    """The document of the metadata entity."""
    given: object = content_type
    if given is not None and not (isinstance(given, str) and given.isprintable()):
        raise Invalid(f"{show(content_type)} is not a content type")
    own: JsonObject = {"contentType": content_type, "hash": payload.hash, "size": payload.size}
    return {"value": {**(more or {}), **own}}


def info(reads: Reads, hash: str) -> Blob:
    row = reads.blob(check_hash(hash))
    if row is None:
        raise NotFound(f"there is no blob {hash}")
    return Blob(row.hash, row.size, row.content_type)


def stream(backend: Backend, hash: str) -> Iterator[bytes]:
    """The payload; `Corrupt` at its end if it does not match its hash."""
    blob, digest, size = info(backend, hash), hashlib.sha256(), 0
    for chunk in backend.blob_chunks(blob.hash):
        digest.update(chunk)
        size += len(chunk)
        if size > blob.size:
            break
        yield chunk
    if digest.hexdigest() != hash or size != blob.size:
        raise Corrupt("the bytes of the blob do not match its hash", key=f"blob {hash}")


def collect(backend: Backend, before: datetime, history: History) -> tuple[str, ...]:
    """Remove payloads that were stored before a time and that nobody needs. In one turn, so nobody can commit metadata
    between the check and the removal."""
    with backend.turn() as turn:
        gone = unneeded(turn, before, history)
        if gone:
            turn.drop_blobs(gone)
    return tuple(gone)


def unneeded(reads: Reads, before: datetime, history: History) -> list[str]:
    """The payloads that would be collected now."""
    if history not in get_args(History):
        raise Invalid(f"history must be 'keep' or 'drop', not {show(history)}", hint="use one of the two")
    text = time_text(before)
    old = sorted(row.hash for row in reads.blobs() if row.created_at < text)
    find = _undescribed if history == "keep" else _unreferenced
    return [digest for some in in_chunks(old, _PAGE) for digest in find(reads, some)]


def stray(backend: Backend, now: datetime, before: datetime) -> Sequence[str]:
    """Places with bytes that belong to no blob. An upload in progress is younger."""
    return backend.stray_parts(min(before, now - timedelta(seconds=STRAY_SECONDS)))


def _undescribed(reads: Reads, hashes: Sequence[str]) -> list[str]:
    """The payloads whose metadata was never committed on any branch."""
    newest, left = reads.newest().seq, {blob_meta_id(digest): digest for digest in hashes}
    for branch in (MAIN, *(row.name for row in reads.branches() if row.name != MAIN)):
        for entity in reads.heads(branch, list(left), newest) if left else ():
            del left[entity]
    return list(left.values())


def grace(now: datetime, older_than: timedelta) -> datetime:
    given: object = older_than
    if not isinstance(given, timedelta) or given < timedelta(0):
        raise Invalid(f"older_than must be a timedelta of zero or more, not {show(given)}")
    return now - min(given, now - datetime.min.replace(tzinfo=UTC))


def _unreferenced(reads: Reads, hashes: Sequence[str]) -> list[str]:
    newest, left = reads.newest().seq, {blob_meta_id(digest): digest for digest in hashes}
    names = {MAIN, *(row.name for row in reads.branches() if row.status == ACTIVE)}
    for branch in sorted(names):
        states = load(reads, line_of(reads, branch, newest), list(left))
        left = {
            entity: digest for entity, digest in left.items() if entity not in states or states[entity].body is None
        }
    return list(left.values())


def _check_size(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise Invalid(f"the blob is larger than {bytes_max} bytes", hint="split it, or raise `blob_bytes_max`")


def _chunks(source: object) -> Iterator[object]:
    if isinstance(source, Iterable) and not isinstance(source, str | Mapping):
        yield from source
        return
    read = getattr(source, "read", None)
    if not callable(read):
        hint = "pass bytes, a file that is open for reading, or chunks of bytes"
        raise Invalid(f"the bytes of a blob cannot come from {type_name(source)}", hint=hint)
    while chunk := read(CHUNK):
        yield chunk


def _checked(chunk: object) -> bytes:
    if isinstance(chunk, bytes | bytearray | memoryview):
        return bytes(chunk)
    raise Invalid(f"a chunk of a blob must be bytes, not {type_name(chunk)}", hint="open the file in binary mode")


def _slices(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), CHUNK):
        yield data[at : at + CHUNK]


def _from_start(spool: IO[bytes]) -> Iterator[bytes]:
    spool.seek(0)
    while chunk := spool.read(CHUNK):
        yield chunk
