"""manifest.json and lease.json of a database: the two objects of a log that change, as values.

Each body has a growing `version` and a random `put_id`, so that no body ever repeats and an old etag never fits again.
- *root*: `boundary`, below and at which slots of the log may be deleted; other rooms keep their own members in it.
- *lease*: the `epoch` of the newest writer and its `token`; `tail` is a slot that was written when it was taken, from
  which the end of the log is looked for. `minAge` is the longest `gc_min_age_seconds` that any writer of this log ever
  had: collectors keep to it, whatever their own configuration says.
How they are read and swapped is in `fence.py`, what always holds of them in `invariants.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own
from worm.errors import Corrupt

FORMAT = 1
BY_HAND = "look at the object's older versions, and bring a good one back"


@dataclass(frozen=True, slots=True)
class LogRoot:
    """manifest.json. `members` are those that this room does not know."""

    version: int = 0
    put_id: str = ""
    boundary: int = 0
    members: JsonObject = field(default_factory=dict)

    def encode(self) -> bytes:
        own: JsonObject = {"format": FORMAT, "version": self.version, "putId": self.put_id, "boundary": self.boundary}
        return dumps({**self.members, **own})

    @classmethod
    def decode(cls, body: bytes, key: str) -> LogRoot:
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
