"""What the workers need in an existing bucket, as parts of its settings.

A *part* is one value that is added to a setting and can be found and removed again: versioning, EventBridge, one
notification, one lifecycle rule, one statement of the policy. All functions here work on values and send no requests.

The lifecycle rules name only keys of this library, so they cannot delete anything else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from worm.collections import layout
from worm.errors import Invalid, show
from worm.formats import JsonObject, JsonValue
from worm.store import DERIVED_TAG, PROBE_PREFIX, bucket_settings

CHANGE_SET_DAYS = 7
ABORT_DAYS = 7
ANSWER_DAYS = 2
NOTIFIED = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:DeleteMarkerCreated")
"""A lifecycle rule that removes old versions changes no document, so it is not included."""
DERIVED: list[JsonValue] = [{"Key": key, "Value": value} for key, value in DERIVED_TAG.items()]
_QUEUE = re.compile(r"arn:(?P<partition>aws[a-z-]*):sqs:(?P<region>[a-z0-9-]+):[0-9]{12}:[A-Za-z0-9_-]{1,80}")
_PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
CHANGES_RULE = "worm-change-sets-"


class Events(StrEnum):
    """How the bucket reports uploads."""

    eventbridge = "eventbridge"
    sqs = "sqs"


@dataclass(frozen=True, slots=True)
class AttachedPlace:
    """What is attached: a bucket, or a prefix of it (empty, or ending in `/`)."""

    bucket: str
    prefix: str
    region: str
    events: Events = Events.eventbridge
    queue: str | None = None
    endpoint_url: str | None = None

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def arn(self) -> str:
        partition = next((one for start, one in _PARTITIONS.items() if self.region.startswith(start)), "aws")
        return f"arn:{partition}:s3:::{self.bucket}"

    @property
    def digest(self) -> str:
        """Distinguishes the parts of several prefixes of one bucket."""
        return hashlib.sha256(self.prefix.encode()).hexdigest()[:12]


def check_queue(arn: str, region: str) -> str:
    """The ARN of a queue that a bucket of this region can notify, or `Invalid`."""
    found = _QUEUE.fullmatch(arn)
    if found is None and arn.endswith(".fifo"):
        raise Invalid(f"{show(arn)} is a FIFO queue, which S3 cannot notify", hint="use the stack's capture queue")
    if found is None:
        hint = "write arn:aws:sqs:REGION:ACCOUNT:NAME, as `aws sqs get-queue-attributes` shows it (QueueArn)"
        raise Invalid(f"{show(arn)} is not the ARN of an SQS queue", hint=hint)
    if found["region"] != region:
        raise Invalid(
            f"the queue is in {found['region']}, but the bucket is in {region}",
            hint="S3 can only notify queues in its own region: deploy the stack there",
        )
    return arn


@dataclass(frozen=True, slots=True)
class SettingPart:
    """A value in a member of a setting. `id_name`: the member is a list, and this member of the value has its name."""

    setting: str
    member: str
    value: JsonValue
    id_name: str = ""

    @property
    def name(self) -> str:
        """Its name for people."""
        if self.id_name:
            return f"{NOUNS[self.member]} {cast(JsonObject, self.value)[self.id_name]}"
        return NOUNS[self.member]

    def there(self, current: JsonObject) -> JsonValue:
        """The current value in its place; None if there is none."""
        if not self.id_name:
            return current.get(self.member)
        wanted = cast(JsonObject, self.value)[self.id_name]
        return next((one for one in members(current, self.member) if one.get(self.id_name) == wanted), None)

    def is_met(self, current: JsonObject) -> bool:
        """Does the setting have this value, under any name?"""
        if not self.id_name:
            return bucket_settings.same({"": current.get(self.member)}, {"": self.value})
        wanted = _unnamed(cast(JsonObject, self.value), self.id_name)
        return any(
            bucket_settings.same(_unnamed(one, self.id_name), wanted) for one in members(_modern(current), self.member)
        )

    def added_to(self, current: JsonObject) -> JsonObject:
        if not self.id_name:
            return {**current, self.member: self.value}
        made = _modern(current) if self.member == "Rules" else dict(current)
        if self.member == "Statement":
            made.setdefault("Version", "2012-10-17")
        others = [one for one in members(made, self.member) if one.get(self.id_name) != self._id]
        made[self.member] = [*others, self.value]
        return made

    def removed_from(self, current: JsonObject) -> JsonObject:
        """The setting without the part, if it is unchanged."""
        found = self.there(current)
        if found is None or not bucket_settings.same({"": found}, {"": self.value}):
            return current
        if not self.id_name:
            return {name: value for name, value in current.items() if name != self.member}
        kept = [one for one in members(current, self.member) if one.get(self.id_name) != self._id]
        return {**current, self.member: cast("list[JsonValue]", kept)}

    @property
    def _id(self) -> JsonValue:
        return cast(JsonObject, self.value)[self.id_name]


NOUNS = {
    "Status": "versioning",
    "EventBridgeConfiguration": "EventBridge notifications",
    "QueueConfigurations": "the notification",
    "Rules": "the lifecycle rule",
    "Statement": "the policy statement",
}


def versioning() -> SettingPart:
    return SettingPart("versioning", "Status", "Enabled")


def eventbridge() -> SettingPart:
    return SettingPart("notification", "EventBridgeConfiguration", {})


def notification(place: AttachedPlace) -> SettingPart:
    """The bucket notifies the queue of every document below the prefix."""
    rules: list[JsonValue] = [{"Name": "prefix", "Value": place.prefix}]
    value: JsonObject = {"Id": f"worm-{place.digest}", "QueueArn": place.queue, "Events": [*NOTIFIED]}
    if place.prefix:
        value["Filter"] = {"Key": {"FilterRules": rules}}
    return SettingPart("notification", "QueueConfigurations", value, "Id")


def rules(place: AttachedPlace) -> list[SettingPart]:
    """Change sets are messages, saved answers are valid for 24 hours, probes leave versions, and every batch rewrites
    derived files."""
    derived: JsonObject = {"And": {"Prefix": place.prefix, "Tags": DERIVED}} if place.prefix else {"Tag": DERIVED[0]}
    soon: JsonObject = {"NoncurrentDays": 1}
    return [
        _rule(
            f"{CHANGES_RULE}{place.digest}", {"Prefix": f"{place.prefix}{layout.CHANGES_DIR}/"}, soon, CHANGE_SET_DAYS
        ),
        _rule(f"worm-derived-{place.digest}", derived, soon),
        _rule(f"worm-probes-{place.digest}", {"Prefix": f"{place.prefix}{PROBE_PREFIX}"}, soon),
        _rule(f"worm-answers-{place.digest}", {"Prefix": f"{place.prefix}{layout.ANSWERS_PREFIX}"}, soon, ANSWER_DAYS),
    ]


def _rule(id: str, filter: JsonObject, noncurrent: JsonObject, days: int | None = None) -> SettingPart:
    value: JsonObject = {"ID": id, "Status": "Enabled", "Filter": filter, "NoncurrentVersionExpiration": noncurrent}
    if days is not None:
        value["Expiration"] = {"Days": days}
    return SettingPart("lifecycle", "Rules", value, "ID")


def abort_rule(place: AttachedPlace) -> SettingPart:
    """Leftovers of uploads. They belong to the uploaders, so only they decide."""
    value: JsonObject = {"ID": f"abort-multipart-{place.digest}", "Status": "Enabled"}
    value |= {"Filter": {"Prefix": place.prefix}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": ABORT_DAYS}}
    return SettingPart("lifecycle", "Rules", value, "ID")


def history_statement(place: AttachedPlace) -> SettingPart:
    """Nobody can write an oplog entry without `If-None-Match: *`: `Null: true` matches requests that lack the
    header."""
    here = f"{place.arn}/{place.prefix}"
    value: JsonObject = {
        "Sid": f"WormHistory{place.digest}",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:PutObject",
        "Resource": [f"{here}{layout.OPLOG_DIR}/*", f"{here}*/{layout.OPLOG_DIR}/*"],
        "Condition": {"Null": {"s3:if-none-match": "true"}},
    }
    return SettingPart("policy", "Statement", value, "Sid")


def parts(place: AttachedPlace) -> list[SettingPart]:
    """Everything that attach may add, starting with events, so that nothing is missed."""
    queue = [notification(place)] if place.events is Events.sqs and place.queue else []
    return [versioning(), eventbridge(), *queue, *rules(place), history_statement(place)]


def attached_prefixes(lifecycle: bucket_settings.Setting) -> set[str]:
    """Attached prefixes of the bucket, according to our rules."""
    if isinstance(lifecycle, bucket_settings.Unreadable):
        return set()
    ours = [one for one in members(lifecycle, "Rules") if str(one.get("ID")).startswith(CHANGES_RULE)]
    return {rule_prefix(one).removesuffix(f"{layout.CHANGES_DIR}/") for one in ours}


def rule_prefix(rule: JsonObject) -> str:
    """Which keys a lifecycle rule selects, in any of the three forms."""
    selected = rule.get("Filter")
    if not isinstance(selected, dict):
        return str(rule.get("Prefix") or "")
    both = selected.get("And")
    return str((both if isinstance(both, dict) else selected).get("Prefix") or "")


def is_of_library(rule: JsonObject, place: AttachedPlace) -> bool:
    """Does the rule only remove objects that this library no longer needs, for any prefix or for a stack's own
    bucket?"""
    prefix = rule_prefix(rule)
    selected = cast(JsonObject, rule.get("Filter") or {})
    tags = [selected.get("Tag"), *members(cast(JsonObject, selected.get("And") or {}), "Tags")]
    is_database = prefix == f"{place.prefix}{layout.LOG_PREFIX}" and "Expiration" not in rule
    return (
        is_database
        or prefix.endswith((f"{layout.CHANGES_DIR}/", PROBE_PREFIX, layout.ANSWERS_PREFIX))
        or DERIVED[0] in tags
    )


def members(current: JsonObject, name: str) -> list[JsonObject]:
    """A list of a setting. In a policy, a single statement need not be in a list."""
    found = current.get(name) or []
    listed: Iterable[JsonValue] = [found] if isinstance(found, dict) else cast("list[JsonValue]", found)
    return [one for one in listed if isinstance(one, dict)]


def _unnamed(value: JsonObject, id_name: str) -> JsonObject:
    return {name: part for name, part in value.items() if name != id_name}


def _modern(current: JsonObject) -> JsonObject:
    """Old-style lifecycle rules with a bare `Prefix`, written as filters. S3 refuses to mix the two."""
    if not members(current, "Rules"):
        return dict(current)
    made: list[JsonValue] = []
    for rule in members(current, "Rules"):
        if "Filter" not in rule:
            old = {name: value for name, value in rule.items() if name != "Prefix"}
            made.append({**old, "Filter": {"Prefix": rule.get("Prefix") or ""}})
        else:
            made.append(rule)
    return {**current, "Rules": made}
