"""The settings of a bucket, as JSON: `worm attach` checks and changes them.

S3 keeps each setting as one document. A PUT replaces all of it, without a condition. So `change` reads the setting
again right before it writes, writes the result of the change, and reads back until S3 shows it: settings of a bucket
are eventually consistent. If S3 shows something else, another process changed the setting at the same time: `Conflict`.

*Unreadable* is not absent: the caller is not allowed to read this setting. So its value is unknown, and it is never
written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from worm.clock import Clock, Ids, attempts
from worm.errors import Conflict, Denied, Invalid, NotFound, Unavailable, WormError
from worm.formats import JsonObject, JsonValue
from worm.store.s3 import endpoint_of, region_of
from worm.store.s3_boto import BotoSide, calling
from worm.store.s3_errors import Failed, Failure
from worm.version import user_agent

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ROLE = "attach"
TRIES = 5
SHOWN_TRIES = 12
TIMEOUT_SECONDS = 30.0
CLASSIC_REGION = "us-east-1"
MINIMUM_SIZE = "TransitionDefaultMinimumObjectSize"
"""A field that the answer has beside the lifecycle rules. A PUT without it resets it."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The caller is not allowed to read the setting; `action` is the missing permission."""

    action: str


@dataclass(frozen=True, slots=True)
class SettingCalls:
    """How one setting is read and written. `missing`: the error code that means that the setting is not set."""

    get: str
    read_action: str
    missing: str = ""
    put: str = ""
    write_action: str = ""
    delete: str = ""


SETTINGS: Mapping[str, SettingCalls] = {
    "versioning": SettingCalls(
        "get_bucket_versioning", "s3:GetBucketVersioning", "", "put_bucket_versioning", "s3:PutBucketVersioning"
    ),
    "notification": SettingCalls(
        "get_bucket_notification_configuration",
        "s3:GetBucketNotification",
        "",
        "put_bucket_notification_configuration",
        "s3:PutBucketNotification",
    ),
    "lifecycle": SettingCalls(
        "get_bucket_lifecycle_configuration",
        "s3:GetLifecycleConfiguration",
        "NoSuchLifecycleConfiguration",
        "put_bucket_lifecycle_configuration",
        "s3:PutLifecycleConfiguration",
        "delete_bucket_lifecycle",
    ),
    "policy": SettingCalls(
        "get_bucket_policy",
        "s3:GetBucketPolicy",
        "NoSuchBucketPolicy",
        "put_bucket_policy",
        "s3:PutBucketPolicy",
        "delete_bucket_policy",
    ),
    "encryption": SettingCalls(
        "get_bucket_encryption", "s3:GetEncryptionConfiguration", "ServerSideEncryptionConfigurationNotFoundError"
    ),
    "objectLock": SettingCalls(
        "get_object_lock_configuration", "s3:GetBucketObjectLockConfiguration", "ObjectLockConfigurationNotFoundError"
    ),
    "publicAccess": SettingCalls(
        "get_public_access_block", "s3:GetBucketPublicAccessBlock", "NoSuchPublicAccessBlockConfiguration"
    ),
    "ownership": SettingCalls(
        "get_bucket_ownership_controls", "s3:GetBucketOwnershipControls", "OwnershipControlsNotFoundError"
    ),
    "requestPayment": SettingCalls("get_bucket_request_payment", "s3:GetBucketRequestPayment"),
}
Setting = JsonObject | Unreadable
"""The answer of S3; empty if the setting is not set."""


class BucketSettings:
    """Settings of one bucket; `region` is its region."""

    def __init__(self, bucket: str, *, endpoint_url: str | None, clock: Clock, ids: Ids) -> None:
        self.bucket = bucket
        self.endpoint_url = endpoint_of(endpoint_url)
        self._clock, self._ids = clock, ids
        self.configured_region = region_of(None)
        self._client = self._side(self.configured_region)
        self.region = self._found_region()
        if self.region != self.configured_region:
            self._client = self._side(self.region)

    def _side(self, region: str | None) -> S3Client:
        return BotoSide(self.bucket, self.endpoint_url, region, user_agent(ROLE), TIMEOUT_SECONDS).client

    def _found_region(self) -> str:
        """The region, found with one HeadBucket. boto3 follows S3 to the right region by itself."""
        try:
            found = self._asked(lambda: self._client.head_bucket(Bucket=self.bucket))
        except Failed as failed:
            raise self._no_bucket(failed.failure) from failed
        region = found.get("BucketRegion") or found["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
        return str(region or CLASSIC_REGION)

    def _no_bucket(self, failure: Failure) -> WormError:
        if failure.status == 404:
            return NotFound(f"there is no bucket {self.bucket!r}", hint="check the name and --endpoint-url")
        if failure.is_denied:
            hint = "grant s3:ListBucket, or use credentials of the account that owns the bucket"
            return Denied(
                f"this account is not allowed to see the bucket {self.bucket!r} ({failure.reason})", hint=hint
            )
        hint = "check AWS_REGION, and whether the credentials have expired"
        return Invalid(f"S3 rejected a request for the bucket {self.bucket!r}: {failure.reason}", hint=hint)

    # Reading

    def read_all(self) -> dict[str, Setting]:
        return {name: self.read(name) for name in SETTINGS}

    def read(self, name: str) -> Setting:
        calls = SETTINGS[name]
        call: Callable[..., Any] = getattr(self._client, calls.get)
        try:
            answer = dict(self._asked(lambda: call(Bucket=self.bucket)))
        except Failed as failed:
            if calls.missing and failed.failure.code == calls.missing:
                return {}
            if failed.failure.is_denied:
                return Unreadable(calls.read_action)
            if failed.failure.status in (405, 501):  # a store other than AWS, without this setting
                return Unreadable(f"this store does not support {calls.read_action}")
            raise self._refused(calls.read_action, failed.failure) from failed
        del answer["ResponseMetadata"]
        if name == "policy":
            answer = json.loads(answer["Policy"])
        if (
            answer.get("MFADelete") == "Disabled"
        ):  # the same as never set, and S3 accepts it in a PUT only with an MFA code
            del answer["MFADelete"]
        plain: JsonObject = _plain(answer)
        return plain

    # Writing

    def change(self, name: str, changed: Callable[[JsonObject], JsonObject], *, validate: bool = True) -> bool:
        """Set the setting to the result of `changed`. Returns False if it already has that value. `validate`: S3 checks
        that it may send to every destination of a notification, and sends each a test event."""
        current = self.read(name)
        if isinstance(current, Unreadable):
            raise Denied(f"S3 refused {current.action}. The setting cannot be read, so it was not changed")
        wanted = changed(current)
        if is_nothing(name, wanted):
            wanted = {}
        if same(current, wanted):
            return False
        self._write(name, wanted, validate)
        for _ in attempts(SHOWN_TRIES, self._clock, self._ids, base_seconds=0.2):
            if same(_without_default(self.read(name), wanted), wanted):
                return True
        what = f"the {name} setting of {self.bucket!r} is not what was written"
        raise Conflict(
            f"{what}: another process changed it at the same time, or S3 has not applied it yet",
            hint="check the setting, then run the same command again",
        )

    def _write(self, name: str, wanted: JsonObject, validate: bool) -> None:
        calls = SETTINGS[name]
        call: Callable[..., Any] = getattr(self._client, calls.put)
        sent: dict[str, Any] = {}
        if name == "versioning":
            sent = {"VersioningConfiguration": wanted}
        elif name == "notification":
            sent = {"NotificationConfiguration": wanted, "SkipDestinationValidation": not validate}
        elif name == "policy":
            sent = {"Policy": json.dumps(wanted)}
        else:
            sent = {"LifecycleConfiguration": {"Rules": wanted.get("Rules", [])}}
            sent |= {MINIMUM_SIZE: wanted[MINIMUM_SIZE]} if wanted.get(MINIMUM_SIZE) else {}
        if not wanted and calls.delete:
            call, sent = getattr(self._client, calls.delete), {}
        try:
            self._asked(lambda: call(Bucket=self.bucket, **sent))
        except Failed as failed:
            raise self._refused(calls.write_action, failed.failure) from failed

    def _refused(self, action: str, failure: Failure) -> WormError:
        if failure.is_denied:
            return Denied(f"S3 refused {action} on the bucket {self.bucket!r}", hint="allow this action")
        return Invalid(f"S3 rejected {action} on the bucket {self.bucket!r}: {failure.reason}")

    def _asked(self, call: Callable[[], Any]) -> Mapping[str, Any]:
        """One request. Every write replaces the whole setting, so it is safe to repeat."""
        reason = ""
        for _ in attempts(TRIES, self._clock, self._ids, base_seconds=0.2):
            try:
                return calling(call)
            except Failed as failed:
                if not failed.failure.is_passing:
                    raise
                reason = failed.failure.reason
        raise Unavailable(f"S3 did not answer in {TRIES} tries: {reason}", hint="check the endpoint and the network")


def is_nothing(name: str, wanted: JsonObject) -> bool:
    """Whether the setting is empty and S3 can delete it. S3 refuses to store an empty one."""
    members = {"lifecycle": "Rules", "policy": "Statement"}
    return name in members and not wanted.get(members[name])


def same(one: Setting, other: Setting) -> bool:
    """Whether both mean the same. The order of members, empty members, and a list with one value do not matter."""
    if isinstance(one, Unreadable) or isinstance(other, Unreadable):
        return False
    return bool(_meaning(one) == _meaning(other))


def _without_default(found: Setting, wanted: JsonObject) -> Setting:
    """S3 returns the minimum size of transitions even if nobody set one."""
    if isinstance(found, Unreadable) or MINIMUM_SIZE in wanted:
        return found
    return {name: part for name, part in found.items() if name != MINIMUM_SIZE}


def _meaning(value: JsonValue) -> Any:
    if isinstance(value, dict):
        kept = {name: _meaning(part) for name, part in value.items()}
        if kept.keys() == {"Name", "Value"}:  # a filter of notifications: S3 writes `Prefix` where `prefix` was sent
            kept["Name"] = str(kept["Name"]).lower()
        return {name: part for name, part in sorted(kept.items()) if part != ()}
    if isinstance(value, list):
        parts = [_meaning(one) for one in value]
        return parts[0] if len(parts) == 1 else tuple(sorted(parts, key=repr))
    return value


def _plain(value: Any) -> Any:
    """The result of boto3 as JSON: times become text, which boto3 accepts again."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, date) else value
