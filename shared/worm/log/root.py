"""manifest.json and lease.json of a database: the two objects that change, by compare-and-swap only.

Each body has a growing `version` and a random `put_id`, so that no body ever repeats and an old etag never fits again.
Damage is never taken for absence: a root that cannot be read stops everything.
- *root*: `boundary`, below and at which slots of the log may be deleted; other rooms keep their own members in it.
- *lease*: the `epoch` of the newest writer and its `token`; `tail` is a slot that was written when it was taken, from
  which the end of the log is looked for. `minAge` is the longest `gc_min_age_seconds` that any writer of this log ever
  had: collectors keep to it, whatever their own configuration says.
A log always has a root: where there are segments and none, it was lost, and with it what is collected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from worm.clock import Clock, Ids, iso_millis
from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own
from worm.errors import Corrupt
from worm.log.keys import DbKeys
from worm.store.base import Store
from worm.store.cas import CasFile

FORMAT = 1
BY_HAND = "look at the object's older versions, and bring a good one back"


class Versioned(Protocol):
    """A body that never repeats."""

    @property
    def version(self) -> int: ...
    def encode(self) -> bytes: ...
    def numbered(self: V, version: int, put_id: str) -> V: ...


V = TypeVar("V", bound="Versioned")


@dataclass(frozen=True, slots=True)
class Root:
    """manifest.json. `members` are those that this room does not know."""

    version: int = 0
    put_id: str = ""
    boundary: int = 0
    members: JsonObject = field(default_factory=dict)

    def numbered(self, version: int, put_id: str) -> Root:
        return replace(self, version=version, put_id=put_id)

    def encode(self) -> bytes:
        own: JsonObject = {"format": FORMAT, "version": self.version, "putId": self.put_id, "boundary": self.boundary}
        return dumps({**self.members, **own})

    @classmethod
    def decode(cls, body: bytes, key: str) -> Root:
        shape = _shape(body, key)
        known = {"format", "version", "putId", "boundary"}
        members = {name: value for name, value in shape.items() if name not in known}
        version, boundary = _number(shape, "version", key), _number(shape, "boundary", key)
        return cls(version, str(shape.get("putId", "")), boundary, members)


@dataclass(frozen=True, slots=True)
class Lease:
    """lease.json. `token` names the writer; `taken` is for people."""

    version: int = 0
    put_id: str = ""
    epoch: int = 0
    token: str = ""
    writer: str = ""
    tail: int = 0
    taken: str = ""
    min_age: float = 0

    def numbered(self, version: int, put_id: str) -> Lease:
        return replace(self, version=version, put_id=put_id)

    def encode(self) -> bytes:
        return dumps(
            {
                "format": FORMAT,
                "version": self.version,
                "putId": self.put_id,
                "epoch": self.epoch,
                "token": self.token,
                "writer": self.writer,
                "tail": self.tail,
                "taken": self.taken,
                "minAge": self.min_age,
            }
        )

    @classmethod
    def decode(cls, body: bytes, key: str) -> Lease:
        shape = _shape(body, key)
        numbers = [_number(shape, name, key) for name in ("version", "epoch", "tail")]
        texts = [str(shape.get(name, "")) for name in ("putId", "token", "writer", "taken")]
        age = shape.get("minAge")
        if isinstance(age, bool) or not isinstance(age, int | float):
            raise Corrupt(f"minAge is {age!r}, not a number of seconds", key=key, hint=BY_HAND)
        return cls(numbers[0], texts[0], numbers[1], texts[1], texts[2], numbers[2], texts[3], age)


class CasObject(Generic[V]):
    """One of the two. A damaged one raises `Corrupt`. Not for several threads at once."""

    def __init__(self, store: Store, key: str, decode: Callable[[bytes, str], V], *, clock: Clock, ids: Ids) -> None:
        self._ids = ids
        self._file: CasFile[V] = CasFile(store, key, decode, lambda value: value.encode(), ids=ids, clock=clock)

    def read(self) -> V | None:
        """One conditional GET."""
        self._file.read()
        return self._intact()

    def update(self, change: Callable[[V | None], V | None]) -> V | None:
        """Change it until that is stored, or `change` says that there is nothing to do. The change must be idempotent:
        after an unknown outcome it is made again."""

        def numbered(_: V | None) -> V | None:
            current = self._intact()
            wanted = change(current)
            if wanted is None:
                return None
            return wanted.numbered((0 if current is None else current.version) + 1, self._ids.ulid())

        return self._file.update(numbered)

    def _intact(self) -> V | None:
        held = self._file.held
        if held.damage is not None:
            raise held.damage
        return held.value


def root_file(store: Store, keys: DbKeys, *, clock: Clock, ids: Ids) -> CasObject[Root]:
    return CasObject(store, keys.root, Root.decode, clock=clock, ids=ids)


class RootFile(Protocol):
    """Where the root is read."""

    def read(self) -> Root | None: ...


def boundary_of(store: Store, keys: DbKeys, root: RootFile) -> int:
    """The boundary; 0 where no log was ever begun. `Corrupt` where there is a log and no root."""
    found = root.read()
    if found is None and next(iter(store.list(keys.log, limit=1)), None) is not None:
        found = root.read()  # it may have been begun just now: the root comes first
        if found is None:
            raise Corrupt("the root is gone, and with it what is collected", key=keys.root, hint=BY_HAND)
    return 0 if found is None else found.boundary


def take_lease(
    store: Store, keys: DbKeys, writer: str, *, tail: int, epoch: int, min_age: float, clock: Clock, ids: Ids
) -> Lease:
    """Become the writer of a new epoch, later than that of the log's last segment (`epoch` in slot `tail`), should the
    lease be lost. Whoever held it before finds out at its next append."""
    token = ids.ulid()

    def taken(lease: Lease | None) -> Lease:
        before = lease or Lease()
        newest = max(before.epoch, epoch)
        hint, age = max(tail, before.tail), max(min_age, before.min_age)
        return Lease(0, "", newest + 1, token, writer, hint, iso_millis(clock.now()), age)

    lease = lease_file(store, keys, clock=clock, ids=ids).update(taken)
    if lease is None:
        raise Corrupt("the lease is gone", key=keys.lease, hint="open the writer again")
    return lease


def lease_file(store: Store, keys: DbKeys, *, clock: Clock, ids: Ids) -> CasObject[Lease]:
    return CasObject(store, keys.lease, Lease.decode, clock=clock, ids=ids)


def _shape(body: bytes, key: str) -> JsonObject:
    shape = loads_own(body, key=key)
    if shape.get("format") != FORMAT:
        raise Corrupt(f"format {shape.get('format')!r}; this code reads format {FORMAT}", key=key, hint=BY_HAND)
    return shape


def _number(shape: JsonObject, name: str, key: str) -> int:
    value: JsonValue = shape.get(name)
    if type(value) is not int or value < 0:
        raise Corrupt(f"{name} is {value!r}, not a number", key=key, hint=BY_HAND)
    return value
