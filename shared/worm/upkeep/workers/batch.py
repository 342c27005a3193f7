"""Messages of a queue batch: what they contain, and the outcome of each.

A message carries S3 events, as an EventBridge envelope or a plain S3 notification. An event is a hint where to look. We
take from it: the key, its version (to name the actor of that version), who made it, and whether that version was
permanently removed. Messages without a hint for this bucket (`s3:TestEvent`, another bucket) are ignored.

Three outcomes: done, *failed* (a retry may succeed: the queue delivers the message again, and after maxReceiveCount it
goes to the DLQ), and *rejected* (it can never succeed, or cannot be parsed: to the DLQ at once, with the reason).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast
from urllib.parse import unquote_plus

from worm.errors import Invalid, show
from worm.formats import JsonValue, loads


@dataclass(frozen=True, slots=True)
class Message:
    """One SQS message."""

    id: str
    body: str
    deliveries: int = 1
    """How often the queue has delivered it; more than once means that some of its work may be unfinished."""


@dataclass
class BatchOutcome:
    """The outcome of a batch. A message in neither dict is done.

    `attempts`: compare-and-swaps that were tried; more than one per file means that others wrote at the same time.
    `unpublished`: by model, why its Delta table has no new version. `conflicts`: by index, the
    unique values that several documents have. `age_seconds`: how long ago the oldest folded
    change was uploaded. `facts`: what logs say about messages that failed or were rejected: the key, the model, the
    change set.
    """

    failed: dict[str, Exception] = field(default_factory=dict)
    rejected: dict[str, Invalid] = field(default_factory=dict)
    recorded: int = 0
    ignored: int = 0
    attempts: int = 0
    conflicts: dict[str, list[str]] = field(default_factory=dict)
    unpublished: dict[str, Exception] = field(default_factory=dict)
    age_seconds: float | None = None
    facts: dict[str, dict[str, str]] = field(default_factory=dict)

    def fail(self, messages: Iterable[str], error: Exception, **facts: str) -> None:
        for message in messages:
            self.failed[message] = error
            self.facts[message] = facts

    def reject(self, message: str, reason: Invalid) -> None:
        self.rejected[message] = reason

    def reject_all(self, messages: Iterable[str], reason: Invalid, **facts: str) -> None:
        for message in messages:
            self.reject(message, reason)
            self.facts[message] = facts

    def is_outage(self, messages: Iterable[Message]) -> bool:
        """Did every message fail, and was there one? A single message counts too: in a quiet bucket each batch has one,
        and a transient fault fails only once. Rejected messages are not an outage."""
        ids = {message.id for message in messages}
        return bool(ids) and ids <= self.failed.keys()


MAX_MESSAGE_BYTES = 1024 * 1024
REASON_ATTRIBUTE = "reason"
"""The message attribute that says why a worker sent a message to its dead letters."""
EVENTBRIDGE_KINDS = frozenset({"Object Created", "Object Deleted"})
REMOVED = "Permanently Deleted"
REMOVALS = frozenset({"ObjectRemoved:Delete", "LifecycleExpiration:Delete"})
"""The names of a version's removal in EventBridge and in S3 notifications. Without a version id it is a plain delete in
a bucket without versioning."""


@dataclass(frozen=True, slots=True)
class KeyHint:
    """Something may have happened to this key. `size`: the size according to the event; only used to decide how many
    documents are read at once."""

    key: str
    version_id: str | None = None
    actor: str | None = None
    is_removal: bool = False
    """The version, or the delete marker, was permanently removed. The version below it may be current again."""
    size: int = field(default=0, compare=False)


def hints_of(body: str, *, bucket: str, prefix: str = "") -> list[KeyHint]:
    """The hints of one message for our bucket and prefix; keys are relative to the prefix."""
    return [
        replace(hint, key=hint.key[len(prefix) :])
        for event_bucket, hint in events_of(body)
        if event_bucket == bucket and hint.key.startswith(prefix)
    ]


def events_of(body: str) -> list[tuple[str, KeyHint]]:
    """The bucket and the hint of each event of one message, for any bucket."""
    message = loads(body.encode("utf-8", "surrogatepass"), max_bytes=MAX_MESSAGE_BYTES)
    if not isinstance(message, dict):
        raise Invalid("the message is not a JSON object", hint="only S3 events belong in this queue")
    return list(_hints(message))


def _hints(message: Mapping[str, JsonValue]) -> Iterator[tuple[str, KeyHint]]:
    if "detail-type" in message:
        yield from _eventbridge(message)
    elif "Records" in message:
        for record in cast("list[JsonValue]", _expect(message, "Records", list)):
            yield from _notification(record)
    elif message.get("Event") == "s3:TestEvent":
        return
    else:
        raise Invalid("the message is neither an EventBridge event nor an S3 notification")


def _eventbridge(message: Mapping[str, JsonValue]) -> Iterator[tuple[str, KeyHint]]:
    if message.get("detail-type") not in EVENTBRIDGE_KINDS:
        return
    detail = cast("dict[str, JsonValue]", _expect(message, "detail", dict))
    bucket = cast("dict[str, JsonValue]", _expect(detail, "bucket", dict))
    described = cast("dict[str, JsonValue]", _expect(detail, "object", dict))
    key = cast(str, _expect(described, "key", str))
    version_id, requester = described.get("version-id"), detail.get("requester")
    is_removal = version_id is not None and detail.get("deletion-type") == REMOVED
    hint = KeyHint(key, _text(version_id), _text(requester), is_removal, _size(described))
    yield cast(str, _expect(bucket, "name", str)), hint


def _notification(record: JsonValue) -> Iterator[tuple[str, KeyHint]]:
    if not isinstance(record, dict):
        raise Invalid("a record of the S3 notification is not an object")
    s3 = cast("dict[str, JsonValue]", _expect(record, "s3", dict))
    bucket = cast("dict[str, JsonValue]", _expect(s3, "bucket", dict))
    described = cast("dict[str, JsonValue]", _expect(s3, "object", dict))
    key = unquote_plus(cast(str, _expect(described, "key", str)))
    identity = record.get("userIdentity")
    principal = identity.get("principalId") if isinstance(identity, dict) else None
    version_id, event = described.get("versionId"), record.get("eventName")
    is_removal = version_id is not None and event in REMOVALS
    hint = KeyHint(key, _text(version_id), _text(principal), is_removal, _size(described))
    yield cast(str, _expect(bucket, "name", str)), hint


def _expect(shape: Mapping[str, JsonValue], name: str, kind: type) -> JsonValue:
    value = shape.get(name)
    if not isinstance(value, kind):
        raise Invalid(f"the event has no {show(name)} of type {kind.__name__}")
    return value


def _size(described: Mapping[str, JsonValue]) -> int:
    size = described.get("size")
    return size if isinstance(size, int) and size > 0 else 0


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str) and value and value != "null" else None
