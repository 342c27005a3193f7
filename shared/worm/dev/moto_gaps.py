"""What moto's S3, EventBridge and SQS leave out or get wrong, filled in only here.

1. *Events.* moto sends no event for deletes in versioned buckets, two for a multipart upload, and neither version id
   nor sequencer. Its own S3 → EventBridge emission is switched off; instead the versions of the keys of every S3 write
   are compared before and after, under one lock, and each version that came or went is exactly one event. A refused
   conditional write changes nothing and so emits nothing. Events go through the rules and the pattern matching of
   moto's EventBridge, so the pattern in the template decides. (Browser form uploads emit nothing.)
2. *Version listings.* moto orders versions by millisecond, so the latest of two quick writes may be listed second, and
   copies the whole bucket for every listing. Here: order of writing, only the requested prefix (`version_order.py` puts
   versions and markers of a page into one order, too). And moto ignores `encoding-type` there, so a key that XML cannot
   hold, such as one with a control character, is a server error; here it is encoded, as in S3.
3. *Queues.* moto rebuilds a queue's list without a lock on delete, so a message sent in the meantime can be lost, and
   walks the whole queue for each message received. Here: under the queue's lock, only as far as needed (standard
   queues).
"""

from __future__ import annotations

import copy
import json
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import moto.s3.notifications
from moto.core.responses import ActionResult
from moto.core.utils import unix_time_millis
from moto.events.models import events_backends
from moto.events.utils import EventMessageType
from moto.s3.models import FakeBucket, FakeDeleteMarker, FakeKey, S3Backend, s3_backends
from moto.s3.responses import S3Response
from moto.sqs.exceptions import QueueDoesNotExist, ReceiptHandleIsInvalid
from moto.sqs.models import Message, Queue, SQSBackend, _filter_message_attributes, sqs_backends

from worm.dev.cfn import ACCOUNT_ID, PARTITION
from worm.dev.faults import Deliveries
from worm.dev.s3_requests import Environ, Request

ETAG_OF_NOTHING = "d41d8cd98f00b204e9800998ecf8427e"
Stored = FakeKey | FakeDeleteMarker


class ObjectEvents:
    """Watches S3 writes and emits their events. `watch` wraps the handling of one write request."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries
        self._write_lock = threading.Lock()
        self._sequence = 0

    def watch(self, request: Request, environ: Environ, body: bytes, respond: Any) -> list[bytes]:
        """Calls `respond()` and emits one event for each version that the request added or removed."""
        with self._write_lock:
            bucket = _bucket_with_events(request.bucket)
            keys = request.written_keys(body) if bucket else []
            before = [_versions(bucket, key) for key in keys]
            chunks: list[bytes] = list(respond())
            bucket = _bucket_with_events(request.bucket)
            for key, old in zip(keys, before, strict=True):
                for version, created in _changes(old, _versions(bucket, key)):
                    self._emit(self._event(request, environ, bucket, version, created))
        return chunks

    def _event(
        self, request: Request, environ: Environ, bucket: Any, version: Stored, created: bool
    ) -> EventMessageType:
        self._sequence = max(self._sequence + 1, time.time_ns())
        marker = isinstance(version, FakeDeleteMarker)
        about: dict[str, Any] = {"key": version.name}
        detail: dict[str, Any] = {"version": "0", "bucket": {"name": bucket.name}, "object": about}
        if isinstance(version, FakeKey) and created:
            about |= {"size": version.size, "etag": version.etag.strip('"')}
        elif created:
            about["etag"] = ETAG_OF_NOTHING
        if bucket.is_versioned:
            about["version-id"] = version.version_id
        about["sequencer"] = f"{self._sequence:016x}"
        detail["request-id"] = uuid.uuid4().hex[:16].upper()
        detail["requester"] = ACCOUNT_ID
        detail["source-ip-address"] = environ.get("REMOTE_ADDR", "127.0.0.1")
        detail["reason"] = request.reason(environ)
        deleted = marker or not created
        if deleted:
            detail["deletion-type"] = "Delete Marker Created" if created else "Permanently Deleted"
        return {
            "version": "0",
            "id": str(uuid.uuid4()),
            "detail-type": "Object Deleted" if deleted else "Object Created",
            "source": "aws.s3",
            "account": ACCOUNT_ID,
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": bucket.region_name,
            "resources": [bucket.arn],
            "detail": detail,
        }

    def _emit(self, event: EventMessageType) -> None:
        self._deliveries.submit(lambda: _route(event))


def _bucket_with_events(name: str) -> FakeBucket | None:
    bucket = s3_backends[ACCOUNT_ID][PARTITION].buckets.get(name)
    configuration = bucket.notification_configuration if bucket else None
    return bucket if configuration is not None and configuration.event_bridge is not None else None


def _versions(bucket: FakeBucket | None, key: str) -> list[Stored]:
    return list(bucket.keys.getlist(key, [])) if bucket else []


def _changes(before: list[Stored], after: list[Stored]) -> Iterator[tuple[Stored, bool]]:
    """(version, True) for each added version; (version, False) for each removed one, unless it was replaced: then an
    added version has the same id, because the bucket keeps no versions, or none at the moment."""
    known = {id(version) for version in before}
    kept = {id(version) for version in after}
    added = [version for version in after if id(version) not in known]
    replaced = {version.version_id or "null" for version in added}
    yield from ((version, True) for version in added)
    for version in before:
        if id(version) not in kept and (version.version_id or "null") not in replaced:
            yield version, False


def _route(event: EventMessageType) -> None:
    """Send the event to the queues of every matching rule. A target that fails is reported here and not to the writer,
    as on AWS."""
    backend = events_backends[ACCOUNT_ID][event["region"]]
    rules = [rule for bus in list(backend.event_buses.values()) for rule in list(bus.rules.values())]
    for rule in rules:
        if rule.state != "ENABLED" or rule.scheduled_expression or not rule.event_pattern.matches_event(event):
            continue
        for target in rule.targets:
            try:
                _send(str(target["Arn"]), event)
            except (QueueDoesNotExist, NotImplementedError, ValueError):
                sys.stderr.write(f"rule {rule.name} could not deliver:\n{traceback.format_exc()}")


def _send(queue_arn: str, event: EventMessageType) -> None:
    """Bypasses moto's SendMessage, which scans the whole queue several times for each message."""
    _, _, service, region, account, name = queue_arn.split(":", 5)
    if service != "sqs":
        raise NotImplementedError(f"rule target {queue_arn}")
    queue = sqs_backends[account][region].get_queue(name)
    message = Message(str(uuid.uuid4()), json.dumps(event))
    message.mark_sent()
    queue.add_message(message)


@dataclass(frozen=True, slots=True)
class _Row:
    """A version as in moto's version listing."""

    name: str
    version_id: str
    is_latest: bool
    last_modified_ISO8601: str  # noqa: N815 - moto's spelling
    etag: str
    size: int
    storage_class: str

    @classmethod
    def of(cls, version: Stored, is_latest: bool) -> _Row:
        about = (version.name, version.version_id or "null", is_latest, version.last_modified_ISO8601)
        if isinstance(version, FakeKey):
            return cls(*about, version.etag, version.size, version.storage_class or "STANDARD")
        return cls(*about, "", 0, "")


_Listing = tuple[list[Any], list[str], list[Any], str | None, str | None]
_moto_list_object_versions = S3Backend.list_object_versions


def _list_object_versions(
    self: S3Backend,
    bucket_name: str,
    delimiter: str | None = None,
    key_marker: str | None = None,
    max_keys: int | None = 1000,
    prefix: str = "",
    version_id_marker: str | None = None,
) -> _Listing:
    """Keys ascending, newest first within a key, by order of writing."""
    if delimiter:
        return _moto_list_object_versions(self, bucket_name, delimiter, key_marker, max_keys, prefix, version_id_marker)
    stored: dict[str, list[Stored]] = dict(self.get_bucket(bucket_name).keys)
    rows: list[_Row] = []
    markers: list[_Row] = []
    last: Stored | None = None
    for version, is_latest in _after_markers(stored, prefix, key_marker, version_id_marker):
        if max_keys is not None and len(rows) + len(markers) >= max_keys:
            return rows, [], markers, last.name if last else None, last.version_id if last else None
        last = version
        (rows if isinstance(version, FakeKey) else markers).append(_Row.of(version, is_latest))
    return rows, [], markers, None, None


_moto_versions_response = S3Response.list_object_versions


def _versions_response(self: S3Response) -> Any:
    """The response, with keys encoded if the client asks for that."""
    if self.querystring.get("encoding-type") == ["url"]:
        serialized = self.serialized

        def encoded(action: ActionResult) -> Any:
            result: Any = action.result
            if isinstance(result, Exception):
                return serialized(action)
            for one in (*result["Versions"], *result["DeleteMarkers"]):
                one["Key"] = quote(one["Key"])
            for name in ("Prefix", "KeyMarker", "NextKeyMarker", "Delimiter"):
                if result.get(name):
                    result[name] = quote(result[name])
            return serialized(ActionResult({**result, "EncodingType": "url"}))

        self.serialized = encoded  # type: ignore[assignment, method-assign]  # of this one request
    return _moto_versions_response(self)


def _after_markers(
    stored: dict[str, list[Stored]], prefix: str, key_marker: str | None, version_id_marker: str | None
) -> Iterator[tuple[Stored, bool]]:
    names = sorted(name for name in stored if name.startswith(prefix) and (not key_marker or name >= key_marker))
    for name in names:
        newest_first = list(reversed(stored[name]))
        first = 0
        if name == key_marker:
            ids = [version.version_id for version in newest_first]
            first = ids.index(version_id_marker) + 1 if version_id_marker in ids else len(ids)
        for index, version in enumerate(newest_first[first:], start=first):
            yield version, index == 0


_moto_receive_message = SQSBackend.receive_message
_moto_change_visibility = SQSBackend.change_message_visibility


def _receive_message(
    self: SQSBackend,
    queue_name: str,
    count: int,
    wait_seconds_timeout: int,
    visibility_timeout: int,
    message_attribute_names: list[str] | None = None,
) -> list[Message]:
    queue = self.get_queue(queue_name)
    if queue.fifo_queue:
        arguments = (queue_name, count, wait_seconds_timeout, visibility_timeout, message_attribute_names)
        return _moto_receive_message(self, *arguments)
    deadline = time.monotonic() + float(wait_seconds_timeout or 0)
    with queue._messages_lock:
        while True:
            taken = _take(queue, count, visibility_timeout)
            seconds_left = deadline - time.monotonic()
            if taken or seconds_left <= 0:
                break
            queue._messages_lock.wait(min(seconds_left, 0.25))  # a message may become visible without a notification
    for message in taken:
        _filter_message_attributes(message, message_attribute_names or [])
    return taken


def _take(queue: Queue, count: int, visibility_timeout: int) -> list[Message]:
    """Copies of up to `count` visible messages, now in flight; those received too often go to the dead-letter queue."""
    now = unix_time_millis()
    taken: list[Message] = []
    for message in list(queue._messages):
        if len(taken) >= count:
            break
        if message.visible_at > now or message.delayed_until > now:
            continue
        dead_letters, redrive = queue.dead_letter_queue, queue.redrive_policy
        if dead_letters and redrive and message.approximate_receive_count >= redrive["maxReceiveCount"]:
            queue._messages.remove(message)
            queue.pending_messages.discard(message)
            dead_letters.add_message(message)
            continue
        queue.pending_messages.add(message)
        message.mark_received(visibility_timeout=visibility_timeout)
        taken.append(copy.copy(message))
    return taken


def _change_visibility(self: SQSBackend, queue_name: str, *args: Any, **kwargs: Any) -> None:
    with self.get_queue(queue_name)._messages_lock:
        _moto_change_visibility(self, queue_name, *args, **kwargs)


def _delete_message(self: Queue, receipt_handle: str) -> None:
    with self._messages_lock:
        if receipt_handle in self.deleted_messages:
            return
        for index, message in enumerate(self._messages):
            if message.had_receipt_handle(receipt_handle):
                self.pending_messages.discard(message)
                self.deleted_messages.update(handle for handle in message.all_receipt_handles if handle)
                del self._messages[index]
                return
        raise ReceiptHandleIsInvalid


_moto_notification = S3Response.get_bucket_notification


def _notification_response(self: S3Response) -> Any:
    """The response with EventBridge, which moto stores but does not show."""
    status, headers, body = _moto_notification(self)
    configuration = self.backend.get_bucket_notification_configuration(self.bucket_name)
    if configuration is not None and configuration.event_bridge is not None:
        text = body if isinstance(body, str) else body.decode()
        body = text.replace("</NotificationConfiguration>", "").rstrip().removesuffix("/>")
        body += ("" if body.endswith(">") else ">") + "<EventBridgeConfiguration/></NotificationConfiguration>"
    return status, headers, body


def _permission(self: FakeBucket, action: str, resource: str) -> Any:
    """Judged by the statements without a condition. moto ignores conditions, so it would take "deny unless …" for
    "deny"."""
    from moto.iam.access_control import IAMPolicy, PermissionResult  # here: few buckets have a policy

    policy: Any = json.loads(self.policy or b'{"Statement": []}')
    listed = policy["Statement"] if isinstance(policy["Statement"], list) else [policy["Statement"]]
    plain = [one for one in listed if "Condition" not in one]
    if not plain:
        return PermissionResult.NEUTRAL
    return IAMPolicy(json.dumps({**policy, "Statement": plain})).is_action_permitted(action, resource)


def date_back(bucket: str, key: str, days: float) -> str:
    """Makes the current version of the object this much older in listings; returns its new date."""
    version: Any = s3_backends[ACCOUNT_ID][PARTITION].buckets[bucket].keys[key]
    version.last_modified -= timedelta(days=days)
    return str(version.last_modified)


def fill_gaps() -> None:
    """Puts the replacements above in place. Once per process, before the first request."""
    replacements: Iterable[tuple[Any, str, Any]] = (
        (moto.s3.notifications, "_send_event_bridge_message", lambda *args, **kwargs: None),
        (S3Backend, "list_object_versions", _list_object_versions),
        (S3Response, "list_object_versions", _versions_response),
        (S3Response, "get_bucket_notification", _notification_response),
        (FakeBucket, "get_permission", _permission),
        (SQSBackend, "receive_message", _receive_message),
        (SQSBackend, "change_message_visibility", _change_visibility),
        (Queue, "delete_message", _delete_message),
    )
    for owner, name, replacement in replacements:
        setattr(owner, name, replacement)
