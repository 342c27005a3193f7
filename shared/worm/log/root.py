"""manifest.json and lease.json of a database: the two mutable objects of a log, as values.

Each body has a growing `version` and a random `put_id`, so that no body ever repeats and an old etag never matches
again.
- *root*: `boundary`: slots of the log up to here may be deleted. `kind`: what the database is, so that opening it as
  something else cannot damage it. Other rooms keep their own members in it. `deleted`: when somebody deleted the
  database; nobody may write then.
- *lease*: the `epoch` of the newest writer and its `token`. `tail` is a slot that existed when the lease was taken; the
  search for the end of the log starts there. `minAge` is the longest `gc_min_age_seconds` that any writer of this log
  ever had: collectors respect it, whatever their own configuration says.
`fence.py` reads and swaps them; `invariants.py` has their invariants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from worm.errors import Corrupt, Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue, dumps, loads_own
from worm.log.hints import BY_HAND

FORMAT = 1
DatabaseKind = Literal["documents", "pages", "space"]
"""What a database is: a bare log of records, a page store, or a page store that holds a space."""
KINDS: dict[str, tuple[str, str]] = {
    "documents": ("a log", "open it with `worm.open_log`, or `worm log`"),
    "pages": ("a page store", "open it with `worm.open_pages`, or `worm db`"),
    "space": ("a space", "open it with `worm.open_space` (its name without `space-`), or `worm space`"),
}
"""How messages name each kind, and how to open it."""


@dataclass(frozen=True, slots=True)
class LogRoot:
    """manifest.json. `members` belong to other rooms."""

    version: int = 0
    put_id: str = ""
    boundary: int = 0
    members: JsonObject = field(default_factory=dict)
    kind: DatabaseKind = "documents"
    deleted: int = 0

    def encode(self) -> bytes:
        own: JsonObject = {
            "format": FORMAT,
            "version": self.version,
            "putId": self.put_id,
            "kind": self.kind,
            "boundary": self.boundary,
        }
        return dumps({**self.members, **own, **({"deleted": self.deleted} if self.deleted else {})})

    @classmethod
    def decode(cls, body: bytes, key: str) -> LogRoot:
        shape = _shape(body, key)
        known = {"format", "version", "putId", "kind", "boundary", "deleted"}
        members = {name: value for name, value in shape.items() if name not in known}
        version, boundary = _number(shape, "version", key), _number(shape, "boundary", key)
        deleted = _number(shape, "deleted", key) if "deleted" in shape else 0
        return cls(version, str(shape.get("putId", "")), boundary, members, _kind(shape, key), deleted)

    def check(self, kind: DatabaseKind, key: str) -> None:
        """`Invalid` unless the database is of this kind, `NotFound` if it was deleted."""
        if self.kind != kind:
            (found, hint), (wanted, _) = KINDS[self.kind], KINDS[kind]
            raise Invalid(f"this is {found}, not {wanted}", key=key, hint=hint)
        self.check_there(key)

    def check_there(self, key: str) -> None:
        if self.deleted:
            raise NotFound(
                "the database was deleted", key=key, hint="for a while, you can bring it back with `worm db undelete`"
            )


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
            raise Corrupt(f"minAge is {show(age)}, not a number of seconds", key=key, hint=BY_HAND)
        return cls(numbers[0], texts[0], numbers[1], texts[1], texts[2], numbers[2], texts[3], age)


def _shape(body: bytes, key: str) -> JsonObject:
    shape = loads_own(body, key=key)
    if shape.get("format") != FORMAT:
        raise Corrupt(
            f"has format {show(shape.get('format'))}; this version of worm reads format {FORMAT}",
            key=key,
            hint=BY_HAND,
        )
    return shape


def _kind(shape: JsonObject, key: str) -> DatabaseKind:
    for kind in get_args(DatabaseKind):
        if shape.get("kind") == kind:
            found: DatabaseKind = kind
            return found
    raise Corrupt(f"kind is {show(shape.get('kind'))}, not one of {', '.join(KINDS)}", key=key, hint=BY_HAND)


def _number(shape: JsonObject, name: str, key: str) -> int:
    value: JsonValue = shape.get(name)
    if type(value) is not int or value < 0:
        raise Corrupt(f"{name} is {show(value)}, not a number", key=key, hint=BY_HAND)
    return value
