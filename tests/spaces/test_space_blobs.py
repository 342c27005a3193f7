"""Blobs: stored once by their hash, described by ordinary entities, collected only on request (seed 3.8, 10)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.spaces.space_room import Room, drop, value
from worm.clock import Ids, VirtualClock
from worm.errors import Corrupt, Invalid, NotFound, Unavailable
from worm.spaces.backend import Backend
from worm.spaces.blobs import Blob
from worm.spaces.page_backend import PageBackend
from worm.spaces.rows import BlobRow
from worm.spaces.space import Space
from worm.store.memory import MemoryStore

SMALL = b"\x00\xff" * 50
LARGE = bytes(range(256)) * 4096 * 3  # three times what is read at a time


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "data",
    [b"", SMALL, LARGE, LARGE[: 1024 * 1024], LARGE[: 1024 * 1024 + 1]],
    ids=["empty", "small", "large", "a chunk", "a chunk and a byte"],
)
@pytest.mark.parametrize("source", [bytes, io.BytesIO, lambda data: iter([data[:7], b"", data[7:]])])
def test_a_blob_reads_back_whatever_it_was_put_from(space: Space, data: bytes, source: Callable[[bytes], Any]) -> None:
    blob = space.put_blob(source(data), content_type="image/png")
    assert blob == Blob(_hash(data), len(data), "image/png")
    assert space.blob(blob.hash) == blob
    assert space.read_blob(blob.hash) == data
    assert max(map(len, space.stream_blob(blob.hash)), default=0) <= 1024 * 1024


def test_what_is_known_of_a_blob_is_an_entity_with_ordinary_revisions(space: Space) -> None:
    blob = space.put_blob(SMALL, content_type="text/plain", metadata={"name": "a.txt"})
    id = f"urn:blob-meta:{blob.hash}"  # noqa: A001  # as the formats call it
    first = {"contentType": "text/plain", "hash": blob.hash, "size": 100, "name": "a.txt"}
    assert value(space, id) == first
    space.put_blob(SMALL, content_type="text/html")
    assert value(space, id) == {"contentType": "text/html", "hash": blob.hash, "size": 100}
    assert value(space, id, at=1) == first
    assert space.blob(blob.hash).content_type == "text/plain", "the payload keeps the first one"
    space.create_branch("dev")
    space.put_blob(SMALL, metadata={"on": "dev"}, branch="dev")
    assert value(space, id, branch="dev") == {"contentType": None, "hash": blob.hash, "size": 100, "on": "dev"}
    assert space.seq == 4


def test_a_blob_is_stored_once_and_described_once(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    blob = space.put_blob(SMALL, content_type="a/b")
    assert space.put_blob(io.BytesIO(SMALL), content_type="a/b") == blob
    assert (space.seq, len(backend.blobs())) == (1, 1)
    row = BlobRow(blob.hash, "x/y", 100, "2026-01-01 00:00:00.000")
    assert backend.put_blob(row, [b"z" * 100]) is False
    assert space.read_blob(blob.hash) == SMALL
    done = space.put_blob(SMALL, content_type="a/b", session_id="s", local_seq=1)
    assert (done, space.put_blob(SMALL, content_type="a/b", session_id="s", local_seq=1)) == (blob, blob)
    assert space.seq == 2


def test_what_is_no_blob_is_refused(room: Room) -> None:
    space = room.open(blob_bytes_max=10)
    with pytest.raises(NotFound, match="there is no blob"):
        space.read_blob(_hash(b"x"))
    for bad in ("x", _hash(b"x").upper(), ""):
        with pytest.raises(Invalid, match="is not the hash of a blob"):
            space.blob(bad)
    for source in (b"x" * 11, io.BytesIO(b"x" * 11), iter([b"x" * 5] * 3)):
        with pytest.raises(Invalid, match="larger than 10 bytes"):
            space.put_blob(source)
    with pytest.raises(Invalid, match="content type"):
        space.put_blob(b"x", content_type="a\nb")
    with pytest.raises(NotFound):
        space.put_blob(b"x", branch="nope")
    assert (space.seq, space.gc_blobs(older_than=timedelta(0))) == (0, ())


class Meddling:
    """A backend to whose payloads something happens."""

    def __init__(self, backend: Backend, **calls: Callable[..., Any]) -> None:
        self._backend = backend
        self._calls = calls

    @classmethod
    def of(cls, backend: Backend, **calls: Callable[..., Any]) -> Backend:
        return cast(Backend, cls(backend, **calls))

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._backend, name)


@pytest.mark.parametrize("wrong", [SMALL[:-1], SMALL + b"x", b"x" * 100])
def test_bytes_that_are_not_those_of_the_hash_are_reported(room: Room, wrong: bytes) -> None:
    backend = room.backend()
    digest = room.space(backend).put_blob(SMALL).hash

    def chunks(_: str) -> Iterator[bytes]:
        yield wrong

    with pytest.raises(Corrupt, match="do not match its hash"):
        room.space(Meddling.of(backend, blob_chunks=chunks)).read_blob(digest)


def test_a_source_that_fails_leaves_nothing(space: Space) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        space.put_blob(broken())
    assert space.seq == 0


def test_only_what_nobody_describes_is_collected_and_only_on_request(room: Room) -> None:
    space = room.open()
    kept, on_branch, gone, ended = (space.put_blob(f"{n}".encode()) for n in range(4))
    space.create_branch("dev")
    space.create_branch("old")
    dropped = [drop(f"urn:blob-meta:{one.hash}") for one in (on_branch, gone, ended)]
    space.transact(dropped)
    space.transact([drop(f"urn:blob-meta:{one.hash}") for one in (gone, ended)], branch="dev")
    assert space.gc_blobs(older_than=timedelta(0)) == (), "made in this very moment"
    room.clock.advance(10)
    assert space.gc_blobs(older_than=timedelta(0), history="drop") == (), "the branch `old` describes all"
    space.delete_branch("old")
    assert space.gc_blobs(older_than=timedelta(seconds=11), history="drop") == ()
    assert space.gc_blobs(older_than=timedelta(0)) == (), "the past describes all"
    assert space.read_blob(gone.hash) == b"2"
    assert set(space.gc_blobs(older_than=timedelta(seconds=5), history="drop")) == {gone.hash, ended.hash}
    assert (space.read_blob(kept.hash), space.read_blob(on_branch.hash)) == (b"0", b"1")
    with pytest.raises(NotFound):
        space.read_blob(gone.hash)
    assert space.read(f"urn:blob-meta:{gone.hash}", at=3).exists, "history stays"
    assert space.put_blob(b"2") == gone
    with pytest.raises(Invalid, match="zero or more"):
        space.gc_blobs(older_than=timedelta(seconds=-1))


def test_what_a_past_state_names_is_kept(room: Room) -> None:
    """On a branch that was deleted, too; what was never described is not."""
    backend = room.backend()
    space = room.space(backend)
    space.create_branch("dev")
    kept = space.put_blob(b"kept"), space.put_blob(b"dev", branch="dev")
    space.transact([drop(f"urn:blob-meta:{kept[0].hash}")])
    space.delete_branch("dev")
    lost = BlobRow(_hash(b"lost"), None, 4, "2025-01-01 00:00:00.000")
    backend.put_blob(lost, [b"lost"])
    room.clock.advance(7200)
    assert space.gc_blobs() == (lost.hash,)
    assert [space.read_blob(one.hash) for one in kept] == [b"kept", b"dev"]
    assert space.gc_blobs(history="drop") == tuple(sorted(one.hash for one in kept))
    with pytest.raises(Invalid, match="'keep' or 'drop'"):
        space.gc_blobs(history="all")  # type: ignore[arg-type]  # that is the mistake


class Cut(Exception):
    """The process ends here."""


def _pages(clock: VirtualClock) -> tuple[PageBackend, Space]:
    store = MemoryStore(clock=clock)
    backend = PageBackend(store, "space-main", create=True, clock=clock, ids=Ids.system(clock))
    return backend, Space(backend, clock=clock)


def _keys(backend: PageBackend) -> set[str]:
    return {listed.key for listed in backend._store.list("db/space-main/blobs/")}


def test_what_crashed_uploads_left_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that no row names, once no upload can still be on its way."""
    clock = VirtualClock()
    backend, space = _pages(clock)
    blob = space.put_blob(LARGE)
    needed = _keys(backend)

    def cut(*_: object) -> bool:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(backend, "_name_blob", cut)
        with pytest.raises(Cut):
            space.put_blob(b"x" * 20_000_000)
    assert len(_keys(backend) - needed) == 3
    clock.advance(3599)
    space.gc_blobs(older_than=timedelta(0))
    assert len(_keys(backend) - needed) == 3, "it may be on its way"
    clock.advance(2)
    space.gc_blobs(older_than=timedelta(hours=2))
    assert len(_keys(backend) - needed) == 3, "younger than what was asked for"
    assert space.gc_blobs() == ()
    assert _keys(backend) == needed
    assert space.read_blob(blob.hash) == LARGE


def test_an_upload_that_took_too_long_to_be_named_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts may be gone by then: a blob without bytes would be there."""
    clock = VirtualClock()
    backend, space = _pages(clock)
    name = backend._name_blob

    def later(*args: Any) -> bool:
        clock.advance(601)
        return name(*args)

    monkeypatch.setattr(backend, "_name_blob", later)
    with pytest.raises(Unavailable, match="too long ago"):
        space.put_blob(b"late")
    assert (space.seq, backend.blobs()) == (0, [])


def test_a_payload_that_is_collected_before_it_is_described_is_put_again(room: Room) -> None:
    backend, collections = room.backend(), [2]

    def put_blob(row: BlobRow, chunks: Iterable[bytes]) -> bool:
        done = backend.put_blob(row, chunks)
        if collections[0]:
            collections[0] -= 1
            room.clock.advance(1)
            assert room.open().gc_blobs(older_than=timedelta(0)) == (row.hash,)
        return done

    space = room.space(Meddling.of(backend, put_blob=put_blob))
    blob = space.put_blob(io.BytesIO(LARGE))
    assert space.read_blob(blob.hash) == LARGE
    assert (space.seq, collections) == (1, [0])
    collections[0] = 100
    with pytest.raises(Unavailable, match="garbage-collected on every attempt"):
        space.put_blob(b"other")
    assert space.seq == 1, "no metadata without its payload"


@pytest.mark.slow
def test_many_blobs_are_collected(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    for n in range(1, 1100):
        data = b"%d" % n
        backend.put_blob(BlobRow(_hash(data), None, len(data), "2025-01-01 00:00:00.000"), [data])
    kept = space.put_blob(b"7")
    assert len(space.gc_blobs()) == 1098
    assert [row.hash for row in backend.blobs()] == [kept.hash]
