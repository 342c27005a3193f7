"""The interface of every store: the protocol, its typed results, the request counters, and the checks that all stores
share.

Vocabulary
- *attempt*: one PutObject with one condition, sent once. Its `AttemptOutcome` is visible only in this room.
- *write*: the result that callers get. `Won` (our bytes are stored under the key), `Lost` (another write owns it; the
  current object comes with it), `Gone` (If-Match on a key that no longer exists), or `CommitStateUnknown` raised.
- *put id*: a random name sent as object metadata with every conditional write; reading it back distinguishes our own
  write from another one (see `resolve.py`).

Reads return `None` for an absent key. Errors come from `worm.errors` (`Denied`, `Unavailable`, `Invalid`), never from a
client library. Nothing above this room sees a client library or an HTTP status.

Rules for every store
- Keys: S3 itself accepts `a//b`, `../x` and `x/` as distinct names, but other clients refuse them or silently rewrite
  them (obstore strips a leading or trailing `/`). So we refuse them before any request, with the key and the reason.
- Metadata: lowercase names, percent-encoded ASCII values, at most 2 KiB in all (S3's limit). Stores pass it through
  unchanged; free text (an actor's name) is encoded with `quote_value` and decoded with `unquote_value`.
- Etags, times and ranges are spelled as S3 spells them.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Literal, Protocol
from urllib.parse import quote, unquote

from worm import forks
from worm.errors import Invalid, WormError, show
from worm.values import dataclass

PUT_ID = "worm-put-id"
PUT_TRY = "worm-put-try"
RANGE_END_MAX = 2**63 - 1
KEY_BYTES_MAX = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
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
NULL_VERSION = "null"
Durability = Literal["power", "process"]
"""What an acknowledged write in a directory survives: a power cut, or only the end of its process."""


def check_store(given: object) -> None:
    """`Invalid` for what is not a store."""
    if not callable(getattr(given, "put_if_absent", None)):
        raise Invalid(f"takes a store, not {show(given)}", path="store", hint="`worm.open_store` opens one")


def is_directory(store: Store) -> bool:
    """Whether the store is a directory on this machine: it has no workers and keeps only the current object of each
    key."""
    return store.url.startswith("file:")


def is_remote(store: Store) -> bool:
    """Whether each read and each write is a network request. Then threads save time; otherwise they would only wait for
    each other."""
    return store.url.startswith("s3:")


def same_version(one: str | None, other: str | None) -> bool:
    """Whether two version ids name the same version of a key: None and `"null"` do (see `Version`)."""
    return (one or NULL_VERSION) == (other or NULL_VERSION)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a HEAD returns. `version_id` is None if the store keeps no versions."""

    key: str
    etag: str
    size: int
    last_modified: datetime
    version_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def is_version(self, version_id: str | None) -> bool:
        """Whether the id names this version of the key (see `Version`)."""
        return same_version(self.version_id, version_id)

    @property
    def attempt(self) -> str | None:
        """The attempt of a conditional write that stored this object, or the object that it was copied from."""
        put_id, number = self.metadata.get(PUT_ID), self.metadata.get(PUT_TRY)
        return put_id if put_id is None or number is None else f"{put_id}.{number}"

    @property
    def own_metadata(self) -> dict[str, str]:
        """The metadata that the writer gave, without the names of the attempt."""
        return {name: value for name, value in self.metadata.items() if name not in (PUT_ID, PUT_TRY)}


@dataclass(frozen=True, slots=True)
class Object(ObjectInfo):
    """An object with its bytes."""

    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a listing."""

    key: str
    etag: str
    size: int
    last_modified: datetime


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a key, or a delete marker (`etag` empty, `size` 0).

    `version_id` can always be passed to `get` to read exactly this version. A version from before versioning was
    turned on has the id None while it is the latest, and `"null"` afterward. Compare ids with `is_version`.
    """

    key: str
    version_id: str | None
    etag: str
    size: int
    last_modified: datetime
    is_latest: bool
    is_delete_marker: bool = False

    @classmethod
    def of(
        cls,
        key: str,
        version_id: str | None,
        *,
        etag: str | None,
        size: int,
        moment: datetime,
        is_latest: bool,
        is_delete_marker: bool,
    ) -> Version:
        """With its etag and time as every store has them, however a listing spells them."""
        return cls(key, version_id, exact_etag(etag), size, whole_seconds(moment), is_latest, is_delete_marker)

    def is_version(self, version_id: str | None) -> bool:
        """Whether the id names this version of the key."""
        return same_version(self.version_id, version_id)

    @property
    def exact_name(self) -> tuple[str, str]:
        """What distinguishes this version from the others of its key."""
        return self.name_of(self.version_id, self.etag)

    @staticmethod
    def name_of(version_id: str | None, etag: str | None) -> tuple[str, str]:
        """While versioning is suspended, each write replaces the null version, and only the etag distinguishes it from
        the previous one."""
        name = version_id or NULL_VERSION
        return name, (etag or "") if name == NULL_VERSION else ""


@dataclass(frozen=True, slots=True)
class Read:
    """One item of `get_many`."""

    key: str
    version_id: str | None = None


class NotModified:
    """Answer of `get_if_changed` when the caller's etag is still current."""


NOT_MODIFIED = NotModified()


@dataclass(frozen=True, slots=True)
class Won:
    """Our bytes are stored. `in_doubt`: an attempt after the first one stored them. An earlier attempt may have landed
    too, and others may have seen and removed what it wrote."""

    etag: str
    version_id: str | None = None
    in_doubt: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Lost:
    """Another write owns the key. `current` is the object that it stored.

    `in_doubt` (only after put-if-absent): the outcome of an earlier attempt of ours is unknown. For a key that is never
    overwritten, this changes nothing. If others overwrite the key, our object may have been stored and then replaced.
    """

    current: Object
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """If-Match on a key that does not exist, or no longer exists."""


class AttemptOutcome(Enum):
    """The outcome of one conditional PutObject. Only `resolve.py` acts on it."""

    LANDED = "landed"
    REFUSED = "refused"  # 412: the condition did not hold
    CONTENDED = "contended"  # 409: nothing was decided, try again
    GONE = "gone"  # 404 on If-Match
    UNKNOWN = "unknown"  # timeout, reset, 5xx: may have landed
    DENIED = "denied"  # 401, 403


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one attempt, with the etag and version when it landed and the reason when it did not.
    `is_throttled`: the store said that it gets too many requests, which does not say whether this one landed."""

    outcome: AttemptOutcome
    etag: str = ""
    version_id: str | None = None
    reason: str = ""
    request_id: str | None = None
    is_throttled: bool = False


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Condition: no current object under the key (`If-None-Match: *`)."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Condition: the current object has this etag."""

    etag: str


Condition = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class Put:
    """One item of `put_many`. Without a condition, it replaces any existing object."""

    key: str
    body: bytes
    condition: Condition | None = None
    metadata: Mapping[str, str] | None = None

    def with_metadata(self, metadata: Mapping[str, str]) -> Put:
        return replace(self, metadata=metadata)


at_work = threading.local()
"""`room`: the memory limit for the work of this thread, if there is one (`parallel.Room`)."""


def about_to_read(size: int) -> None:
    """A store calls this before it reads a body of this size."""
    room = getattr(at_work, "room", None)
    if room is not None:
        room.take(size)


class RequestMeter:
    """Counts the requests of one piece of work across its threads: `parallel.carried` passes the meter on. It does not
    count what a background thread of the session does later for everybody (folding, upkeep)."""

    def __init__(self, outer: RequestMeter | None = None) -> None:
        self._lock = forks.new_lock()
        self._outer = outer
        self.requests: Counter[str] = Counter()
        self.bytes_read = 0

    def add(self, kind: str | None, read: int) -> None:
        """Count a request, or (None) more bytes of the current one."""
        with self._lock:
            if kind is not None:
                self.requests[kind] += 1
            self.bytes_read += read
        if self._outer is not None:
            self._outer.add(kind, read)

    @property
    def total(self) -> int:
        return sum(self.requests.values())


_meter: ContextVar[RequestMeter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[RequestMeter]:
    """Counts the requests that the block makes to any store, but not those of other threads at the same time."""
    meter = RequestMeter(_meter.get())
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


class RequestCounter:
    """Counts requests by kind (GET, HEAD, PUT, DELETE, LIST, VERSIONS) and bytes moved; safe across threads."""

    def __init__(self) -> None:
        self._lock = forks.new_lock()
        self._requests: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0

    def add(self, kind: str, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self._requests[kind] += 1
            self.bytes_read += read
            self.bytes_written += written
        meter = _meter.get()
        if meter is not None:
            meter.add(kind, read)

    def add_bytes_read(self, size: int) -> None:
        with self._lock:
            self.bytes_read += size
        meter = _meter.get()
        if meter is not None:
            meter.add(None, size)

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._requests)

    @property
    def total(self) -> int:
        with self._lock:
            return sum(self._requests.values())

    @contextmanager
    def measure(self) -> Iterator[dict[str, int]]:
        """Yields a dict. After the block, it holds the number of requests made inside it by kind, and `total`."""
        before = self.snapshot()
        spent: dict[str, int] = {}
        try:
            yield spent
        finally:
            after = self.snapshot()
            spent.update({kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] != before.get(kind)})
            spent["total"] = sum(spent.values())


class Store(Protocol):
    """Object storage as this library sees it. Keys are relative to the url's prefix."""

    @property
    def url(self) -> str: ...
    @property
    def identity(self) -> str:
        """The URL and the endpoint, if there is one. The probe's answer applies to this identity."""
        ...

    @property
    def requests(self) -> RequestCounter: ...

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        """The object, or None. A delete marker's version is None. An object larger than `max_bytes` raises `Invalid`,
        and its body is not read."""
        ...

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        """Conditional GET: `NOT_MODIFIED` when `etag` is still current (one request, no bytes)."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """One GET with a Range: `length` bytes from `start`. It returns fewer bytes if the object ends earlier, none at
        or past its end, and None for an absent key."""
        ...

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        """Concurrent GETs, answers in the order asked; for an item that fails, the answer is its exception, and the
        others continue."""
        ...

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None: ...

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        """Unconditional write. It is safe to retry, so it is retried. Nothing may depend on who wrote last."""
        ...

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        """Create the object. Raises `CommitStateUnknown` if the outcome could not be read back in time."""
        ...

    def put_if_match(
        self, key: str, body: bytes, etag: str, *, metadata: Mapping[str, str] | None = None
    ) -> Won | Lost | Gone:
        """Compare-and-swap. Raises `CommitStateUnknown` like `put_if_absent`."""
        ...

    def put_many(self, puts: Sequence[Put]) -> list[Won | Lost | Gone | WormError]:
        """Puts of different keys, each with its own condition and outcome, in the given order. For a put that fails,
        the outcome is its error, and the others continue. Remote stores send several at once; in a directory, one fsync
        makes all of them durable."""
        ...

    def close(self) -> None:
        """Release what the store keeps open. You can use it again afterward."""
        ...

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        """One conditional PutObject, never retried. For `resolve.py` and fault injection only."""
        ...

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        """One DeleteObject with If-Match, never retried. For `resolve.py` and fault injection only."""
        ...

    def delete(self, key: str) -> None:
        """Delete the key (on a versioned store: add a delete marker). Absent is fine."""
        ...

    def delete_if_match(self, key: str, etag: str) -> Won | Lost | Gone:
        """Conditional delete of the current version."""
        ...

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        """Current objects under the prefix, paged lazily; at most `limit`, and S3 is asked for no more than that. The
        order is by bytes, but it is only for display and hints: never base a decision on it."""
        ...

    def versions(self, key: str) -> Iterator[Version]:
        """All versions of exactly this key, newest first. Without versioning: the current object, if any."""
        ...

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        """All versions of all keys under the prefix: keys ascending, newest first within a key."""
        ...


def content_etag(body: bytes) -> str:
    """The etag that S3 returns for a single PUT without KMS: the quoted MD5. Used by the stores that emulate S3."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def exact_etag(raw: str | None) -> str:
    """One spelling for all clients: quoted, as the ETag header has it."""
    etag = raw or ""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'


def whole_seconds(moment: datetime) -> datetime:
    """S3 keeps whole seconds. Rounding here keeps emulators and clients from giving two readers different times."""
    return moment.astimezone(UTC).replace(microsecond=0)


def check_range(key: str, start: int, length: int) -> None:
    """Raise `Invalid` for an impossible range of bytes, before any request."""
    if start < 0 or length < 1 or start + length > RANGE_END_MAX:
        raise Invalid(f"{length} bytes from byte {start} is not a valid range", key=key)


def check_key(key: str) -> str:
    """The key itself, or `Invalid` with the reason."""
    reason = _reason_against(key)
    if reason is not None:
        raise Invalid(f"{show(key)} cannot be an object key: {reason}", key=key)
    return key


def check_different(puts: Sequence[Put]) -> None:
    """Raise `Invalid` if a key appears twice: nothing says which one should win."""
    for key, times in Counter(put.key for put in puts).items():
        if times > 1:
            raise Invalid(f"{key!r} is given {times} times", key=key, hint="put each key once")


def check_prefix(prefix: str) -> str:
    """A prefix may be empty or end in `/`. The part before that must follow the rule for keys."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def acceptable(key: str) -> bool:
    """Whether `check_key` would accept the key."""
    return _reason_against(key) is None


def _reason_against(key: str) -> str | None:
    if not key:
        return "it is empty"
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        return "it contains a lone surrogate"
    if size_bytes > KEY_BYTES_MAX:
        return f"it has {size_bytes} bytes; the limit is {KEY_BYTES_MAX}"
    if _CONTROL.search(key):
        return "it contains a control character"
    segments = key.split("/")
    if "" in segments:
        return "it has an empty path segment (a leading, trailing or double slash)"
    if "." in segments or ".." in segments:
        return "it has a path segment '.' or '..'"
    return None


def quote_value(text: str) -> str:
    """Any text as printable ASCII."""
    return quote(text, safe="!#$&'()*+,-./:;=?@[]^_`{|}~<>")


def unquote_value(value: str) -> str:
    """The text that `quote_value` was given."""
    return unquote(value)


def check_metadata(metadata: Mapping[str, str] | None, key: str) -> dict[str, str]:
    """A copy of the metadata, or `Invalid` naming the entry that a store would change or refuse."""
    checked = dict(metadata or {})
    for name, value in checked.items():
        if not _NAME.fullmatch(name) or name in _HEADERS:
            raise Invalid(
                f"metadata name {show(name)} must be lowercase letters, digits and dashes, and not a header's",
                key=key,
            )
        if not _VALUE.fullmatch(value):
            raise Invalid(
                f"metadata {name} is not printable ASCII: {show(value)}", key=key, hint="encode with quote_value"
            )
    if sum(len(name) + len(value) for name, value in checked.items()) > METADATA_BYTES_MAX:
        raise Invalid(f"metadata is larger than {METADATA_BYTES_MAX} bytes", key=key)
    return checked
