"""Can the workers use this bucket? One finding for each relevant setting, from values; no requests.

A finding says what is the case, the consequence, and the command that fixes it. A command replaces a whole setting of
the bucket, so it includes everything that the setting has now: if there are two commands for one setting, run one and
check again.

States: `ok`; `missing`, which `worm attach --apply` adds; `problem`, which needs a decision; `advice`, which may be
ignored; `unreadable`. *Needed* settings are those that the workers require.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import reduce
from typing import cast

from worm.cli.bucket_parts import (
    NOTIFIED,
    AttachedPlace,
    Events,
    SettingPart,
    abort_rule,
    attached_prefixes,
    eventbridge,
    history_statement,
    is_of_library,
    members,
    notification,
    rule_prefix,
    rules,
    versioning,
)
from worm.collections import layout
from worm.formats import JsonObject, JsonValue
from worm.store import MINIMUM_SIZE, SETTINGS, Setting, Unreadable

NONCURRENT_DAYS_MIN = 14
"""The time that a dead-letter queue keeps a message: capture reads old versions to record what it missed."""
FROZEN = frozenset({"GLACIER", "DEEP_ARCHIVE"})
WORKER_ACTIONS = (
    "s3:GetObject",
    "s3:GetObjectVersion",
    "s3:PutObject",
    "s3:PutObjectTagging",
    "s3:DeleteObject",
    "s3:ListBucket",
    "s3:ListBucketVersions",
)
TLS_MIN = 1.2
BLOCKS = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
ENCRYPTION_HEADERS = ("s3:x-amz-server-side-encryption", "s3:x-amz-server-side-encryption-aws-kms-key-id")


class FindingState(StrEnum):
    """See above."""

    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"
    ADVICE = "advice"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class BucketFinding:
    """A finding about one setting. `parts`: what attach would add."""

    setting: str
    state: FindingState
    reason: str
    is_needed: bool = False
    command: str | None = None
    parts: tuple[SettingPart, ...] = ()

    @property
    def stands_in_the_way(self) -> bool:
        return self.is_needed and self.state is not FindingState.OK

    def shape(self) -> JsonObject:
        return {
            "setting": self.setting,
            "state": self.state.value,
            "needed": self.is_needed,
            "reason": self.reason,
            "command": self.command,
        }


Settings = Mapping[str, Setting]


def judge(place: AttachedPlace, settings: Settings) -> list[BucketFinding]:
    """All findings, in the order in which they are shown."""
    judges: list[tuple[str, bool, Callable[[AttachedPlace, JsonObject], Iterator[BucketFinding]]]] = [
        ("versioning", True, _versioning),
        ("notification", True, _notification),
        ("encryption", False, _encryption),
        ("objectLock", True, _object_lock),
        ("lifecycle", False, _lifecycle),
        ("policy", False, _policy),
        ("publicAccess", False, _public_access),
        ("ownership", False, _ownership),
        ("requestPayment", False, _payment),
    ]
    found = list[BucketFinding]()
    for name, is_needed, judged in judges:
        current = settings[name]
        if isinstance(current, Unreadable):
            found.append(_unreadable(place, name, current, is_needed))
        else:
            found += judged(place, current)
    found += _neighbours(place, settings["lifecycle"])
    return [_with_command(place, settings, found, one) for one in found]


def _unreadable(place: AttachedPlace, name: str, current: Unreadable, is_needed: bool) -> BucketFinding:
    reason = f"it cannot be checked: you lack {current.action}. Ask somebody with this permission"
    look = _aws(place, SETTINGS[name].get.replace("_", "-"))
    return BucketFinding(name, FindingState.UNREADABLE, reason, is_needed, look)


def kms_key(encryption: Setting) -> str | None:
    """The customer-managed key of the bucket; None for keys of S3 and AWS."""
    rule = {} if isinstance(encryption, Unreadable) else _default_encryption(encryption)
    key = str(rule.get("KMSMasterKeyID") or "")
    is_kms = str(rule.get("SSEAlgorithm", "")).startswith("aws:kms")
    return key if is_kms and key and not key.endswith("alias/aws/s3") else None


def command(place: AttachedPlace, setting: str, value: JsonObject) -> str:
    """The exact command for this setting."""
    put = SETTINGS[setting].put.replace("_", "-")
    extra: list[str] = []
    if setting == "lifecycle" and MINIMUM_SIZE in value:
        extra = ["--transition-default-minimum-object-size", str(value[MINIMUM_SIZE])]
        value = {name: part for name, part in value.items() if name != MINIMUM_SIZE}
    option = {
        "versioning": "versioning-configuration",
        "notification": "notification-configuration",
        "lifecycle": "lifecycle-configuration",
        "policy": "policy",
    }[setting]
    return _aws(place, put, f"--{option}", _json(value), *extra)


def _aws(place: AttachedPlace, verb: str, *options: str) -> str:
    endpoint = ["--endpoint-url", place.endpoint_url] if place.endpoint_url else []
    return shlex.join(["aws", "s3api", verb, "--bucket", place.bucket, "--region", place.region, *endpoint, *options])


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _of_parts(
    current: JsonObject, parts: Sequence[SettingPart], met: str, missing: str, *, is_needed: bool = False
) -> BucketFinding:
    lacking = tuple(one for one in parts if not one.is_met(current))
    state, reason = (FindingState.MISSING, missing) if lacking else (FindingState.OK, met)
    return BucketFinding(parts[0].setting, state, reason, is_needed, parts=lacking)


def _with_command(
    place: AttachedPlace, settings: Settings, found: Sequence[BucketFinding], one: BucketFinding
) -> BucketFinding:
    """One command adds all that a setting lacks: a second one would undo the first."""
    current = settings.get(one.setting)
    if one.state is not FindingState.MISSING or current is None or isinstance(current, Unreadable):
        return one
    lacking = [part for other in found if other.setting == one.setting for part in other.parts]
    wanted = reduce(lambda made, part: part.added_to(made), lacking, current)
    return replace(one, command=command(place, one.setting, wanted))


# Versioning and events


def _versioning(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    missing = "versioning is off: an overwrite that capture has not seen yet would be lost forever"
    if current.get("Status") == "Suspended":
        missing = "versioning is suspended: overwrites replace the version `null`, and what they replace is lost"
    met = "versioning is enabled: no change gets lost"
    yield _of_parts(current, [versioning()], met, missing, is_needed=True)
    if current.get("MFADelete") == "Enabled":
        reason = "MFA delete is on: S3 refuses lifecycle rules, and changing versioning needs an MFA code"
        yield BucketFinding("versioning", FindingState.ADVICE, reason)


def _notification(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    what = "uploads" if place.events is Events.eventbridge else "change sets"
    met = f"the bucket reports {what} to EventBridge"
    missing = f"the bucket reports nothing to EventBridge, so the workers do not see {what}"
    yield _of_parts(current, [eventbridge()], met, missing, is_needed=True)
    if place.events is Events.sqs:
        yield _queue_finding(place, current)
    elif notification(place).there(current) is not None:
        reason = "an earlier attach with --events sqs still reports uploads to a queue: detach, then attach again"
        yield BucketFinding("notification", FindingState.ADVICE, reason)


def _queue_finding(place: AttachedPlace, current: JsonObject) -> BucketFinding:
    if place.queue is None:
        reason = (
            "no queue was named: first deploy the stack with Events=sqs, then run this again with --queue and the ARN "
            "of its capture queue"
        )
        return BucketFinding("notification", FindingState.PROBLEM, reason, is_needed=True)
    listed = members(current, "QueueConfigurations")
    if any(one.get("QueueArn") == place.queue and _reports_all(place, one) for one in listed):
        return BucketFinding(
            "notification", FindingState.OK, f"the bucket reports uploads to {place.queue}", is_needed=True
        )
    part = notification(place)
    rival = next((one for one in _destinations(current) if one != part.there(current) and _overlaps(place, one)), None)
    if rival is not None:
        reason = (
            f"the notification {rival.get('Id')} already receives these events, and S3 sends an event to only one of "
            "several such destinations: use --events eventbridge, or narrow that notification"
        )
        return BucketFinding("notification", FindingState.PROBLEM, reason, is_needed=True)
    missing = f"the bucket does not report uploads to {place.queue}"
    return _of_parts(current, [part], "", missing, is_needed=True)


def _destinations(current: JsonObject) -> list[JsonObject]:
    names = ("QueueConfigurations", "TopicConfigurations", "LambdaFunctionConfigurations")
    return [one for name in names for one in members(current, name)]


def _filters(configuration: JsonObject) -> dict[str, str]:
    key = cast(JsonObject, configuration.get("Filter") or {}).get("Key")
    found = members(cast(JsonObject, key or {}), "FilterRules")
    return {str(one.get("Name")).lower(): str(one.get("Value") or "") for one in found}


def _reports_all(place: AttachedPlace, configuration: JsonObject) -> bool:
    filters, listed = _filters(configuration), cast("list[str]", configuration.get("Events") or [])
    is_wide = place.prefix.startswith(filters.get("prefix", "")) and not filters.get("suffix")
    return is_wide and all(any(fnmatchcase(event, one) for one in listed) for event in NOTIFIED)


def _overlaps(place: AttachedPlace, configuration: JsonObject) -> bool:
    prefix, listed = _filters(configuration).get("prefix", ""), cast("list[str]", configuration.get("Events") or [])
    is_same_event = any(fnmatchcase(event, one) or fnmatchcase(one, event) for one in listed for event in NOTIFIED)
    return is_same_event and _meet(prefix, place.prefix)


def _meet(one: str, other: str) -> bool:
    """Can a key start with both?"""
    return one.startswith(other) or other.startswith(one)


# Encryption and locks


def _default_encryption(current: JsonObject) -> JsonObject:
    configuration = cast(JsonObject, current.get("ServerSideEncryptionConfiguration") or {})
    first = next(iter(members(configuration, "Rules")), {})
    return cast(JsonObject, first.get("ApplyServerSideEncryptionByDefault") or {})


def _encryption(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    key, algorithm = kms_key(current), str(_default_encryption(current).get("SSEAlgorithm") or "AES256")
    if not algorithm.startswith("aws:kms"):
        yield BucketFinding("encryption", FindingState.OK, "SSE-S3: the workers need no key")
        return
    reason = f"{algorithm} with the key {key}: pass it as KmsKeyArn, so that each role may use it"
    if key is None:
        reason = f"{algorithm} with AWS's own key of S3: roles of the bucket's account need no grant"
    yield BucketFinding("encryption", FindingState.OK, reason)
    configuration = cast(JsonObject, current["ServerSideEncryptionConfiguration"])
    first = members(configuration, "Rules")[0]
    if algorithm == "aws:kms" and not first.get("BucketKeyEnabled"):
        mended: JsonObject = {**configuration, "Rules": [{**first, "BucketKeyEnabled": True}]}
        options = ("--server-side-encryption-configuration", _json(mended))
        reason = "without an S3 Bucket Key, every request of the workers also pays for a KMS request"
        yield BucketFinding(
            "encryption", FindingState.ADVICE, reason, command=_aws(place, "put-bucket-encryption", *options)
        )


def _object_lock(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    configuration = cast(JsonObject, current.get("ObjectLockConfiguration") or {})
    rule = cast(JsonObject, configuration.get("Rule") or {})
    retention = cast(JsonObject, rule.get("DefaultRetention") or {})
    if not retention:
        state = "on, without a default retention" if configuration else "off"
        yield BucketFinding(
            "objectLock", FindingState.OK, f"Object Lock is {state}: derived files are not locked", True
        )
        return
    span = f"{retention['Days']} days" if "Days" in retention else f"{retention.get('Years')} years"
    reason = (
        f"new objects are locked for {span} ({retention.get('Mode')}): S3 refuses uploads without a checksum header, "
        "which the workers do not send, and no rule could expire old "
        "versions of tables. Lock individual documents instead"
    )
    mended = _aws(
        place, "put-object-lock-configuration", "--object-lock-configuration", _json({"ObjectLockEnabled": "Enabled"})
    )
    yield BucketFinding("objectLock", FindingState.PROBLEM, reason, is_needed=True, command=mended)


# Lifecycle


def _lifecycle(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    for rule in members(current, "Rules"):
        is_enabled = rule.get("Status") == "Enabled"
        if is_enabled and not is_of_library(rule, place) and _meet(rule_prefix(rule), place.prefix):
            yield from _of_rule(place, current, rule)
    missing = (
        "no rule removes objects that this library no longer needs (change "
        "sets, old versions of tables), so storage costs grow"
    )
    yield _of_parts(current, rules(place), "rules remove objects that this library no longer needs", missing)
    if not any(one.get("AbortIncompleteMultipartUpload") for one in members(current, "Rules")):
        reason = "no rule aborts incomplete multipart uploads, so leftovers of uploads cost storage forever"
        mended = command(place, "lifecycle", abort_rule(place).added_to(current))
        yield BucketFinding("lifecycle", FindingState.ADVICE, reason, command=mended)


def _of_rule(place: AttachedPlace, current: JsonObject, rule: JsonObject) -> Iterator[BucketFinding]:
    """The effects of other rules on documents, history and tables."""
    prefix = rule_prefix(rule)
    is_system = layout.is_system_key(prefix.removeprefix(place.prefix)) and prefix.startswith(place.prefix)
    covers_all = is_system or (place.prefix.startswith(prefix) and not _narrowed(rule))
    name = f"the rule {rule.get('ID')!r}"
    expiration = cast(JsonObject, rule.get("Expiration") or {})
    frozen = _frozen(rule, "Transitions")
    off = command(place, "lifecycle", _with_rule(current, rule, {**rule, "Status": "Disabled"}))
    if covers_all and (expiration.get("Days") or expiration.get("Date")):
        what = f"{prefix!r}, which belongs to this library" if is_system else "everything, including history and tables"
        reason = f"{name} eventually deletes {what}: narrow or disable it"
        yield BucketFinding("lifecycle", FindingState.PROBLEM, reason, is_needed=True, command=off)
    elif expiration.get("Days") or expiration.get("Date"):
        reason = (
            f"{name} eventually deletes objects under {prefix!r}: history records the deletion of documents, "
            "but table files there are deleted as well"
        )
        yield BucketFinding("lifecycle", FindingState.ADVICE, reason, command=off)
    if frozen:
        reason = f"{name} moves objects to {frozen}, from where neither workers nor queries can read them"
        state = FindingState.PROBLEM if covers_all else FindingState.ADVICE
        yield BucketFinding("lifecycle", state, reason, is_needed=covers_all, command=off)
    yield from _of_old_versions(place, current, rule, name)


def _of_old_versions(place: AttachedPlace, current: JsonObject, rule: JsonObject, name: str) -> Iterator[BucketFinding]:
    noncurrent = cast(JsonObject, rule.get("NoncurrentVersionExpiration") or {})
    days = noncurrent.get("NoncurrentDays")
    if isinstance(days, int) and days < NONCURRENT_DAYS_MIN:
        longer: JsonObject = {
            **rule,
            "NoncurrentVersionExpiration": {**noncurrent, "NoncurrentDays": NONCURRENT_DAYS_MIN},
        }
        reason = (
            f"{name} removes old versions after {days} days: messages that wait longer in a dead-letter queue "
            f"(up to {NONCURRENT_DAYS_MIN} days) could no longer be recorded"
        )
        mended = command(place, "lifecycle", _with_rule(current, rule, longer))
        yield BucketFinding("lifecycle", FindingState.ADVICE, reason, command=mended)
    if frozen := _frozen(rule, "NoncurrentVersionTransitions"):
        reason = f"{name} moves old versions to {frozen}: capture cannot read them to record what it missed"
        yield BucketFinding("lifecycle", FindingState.ADVICE, reason)


def _narrowed(rule: JsonObject) -> bool:
    """Does the rule select by more than a prefix of the key?"""
    return bool(set(cast(JsonObject, rule.get("Filter") or {})) - {"Prefix"})


def _frozen(rule: JsonObject, member: str) -> str:
    classes = {str(one.get("StorageClass")) for one in members(rule, member)}
    return " and ".join(sorted(classes & FROZEN))


def _with_rule(current: JsonObject, rule: JsonObject, changed: JsonObject) -> JsonObject:
    listed: list[JsonValue] = [changed if one is rule else one for one in members(current, "Rules")]
    return {**current, "Rules": listed}


# Policy


def _policy(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    part = history_statement(place)
    for statement in members(current, "Statement"):
        if statement.get("Effect") == "Deny" and not part.is_met({"Statement": [statement]}):
            yield from _of_denial(place, current, statement)
    missing = "anyone who may put objects can overwrite history: the policy does not require If-None-Match there"
    yield _of_parts(current, [part], "nobody can overwrite history", missing)


def _of_denial(place: AttachedPlace, current: JsonObject, statement: JsonObject) -> Iterator[BucketFinding]:
    if not (_is_for_roles(statement) and _is_of_workers(statement) and _is_here(place, statement)):
        return
    name = f"the statement {statement.get('Sid') or _json(statement)[:60]!r}"
    keys = _condition_keys(statement)
    if any(_never_holds(statement, key, tests) for key, tests in keys.items()):
        return  # a denial needs all conditions
    if not keys:
        reason = f"{name} denies requests that the workers need: exclude the roles of the stack"
        yield BucketFinding("policy", FindingState.PROBLEM, reason, is_needed=True)
    elif keys.keys() <= set(ENCRYPTION_HEADERS):
        yield _encryption_header(place, current, statement, name)
    else:
        asked = ", ".join(sorted(keys))
        reason = f"{name} denies requests by {asked}: check whether the functions of the stack satisfy it"
        yield BucketFinding("policy", FindingState.ADVICE, reason)


def _encryption_header(place: AttachedPlace, current: JsonObject, statement: JsonObject, name: str) -> BucketFinding:
    reason = (
        f"{name} refuses uploads without an encryption header, which the workers do not send: the bucket encrypts by "
        "default"
    )
    condition = cast(JsonObject, statement["Condition"])
    others: list[JsonValue] = [one for one in members(current, "Statement") if one is not statement]
    if "Null" not in condition:  # otherwise it only requires the header, and the default does the rest
        narrowed: JsonObject = {**condition, "Null": {ENCRYPTION_HEADERS[0]: "false"}}
        others.append({**statement, "Condition": narrowed})
    mended = command(place, "policy", {**current, "Statement": others})
    if not others:
        mended = _aws(place, "delete-bucket-policy")
    return BucketFinding("policy", FindingState.PROBLEM, reason, is_needed=True, command=mended)


def _texts(value: JsonValue) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [] if value is None else [str(value)]


def _is_for_roles(statement: JsonObject) -> bool:
    """A denial for named users and roles does not affect roles that the stack will create."""
    principal = statement.get("Principal")
    if "NotPrincipal" in statement or principal == "*":
        return True
    named = _texts(principal.get("AWS")) if isinstance(principal, dict) else []
    return any(one == "*" or one.endswith(":root") or one.isdecimal() for one in named)


def _is_of_workers(statement: JsonObject) -> bool:
    if "NotAction" in statement:
        spared = [one.lower() for one in _texts(statement["NotAction"])]
        return any(not any(fnmatchcase(action.lower(), one) for one in spared) for action in WORKER_ACTIONS)
    named = [one.lower() for one in _texts(statement.get("Action"))]
    return any(fnmatchcase(action.lower(), one) for action in WORKER_ACTIONS for one in named)


def _is_here(place: AttachedPlace, statement: JsonObject) -> bool:
    """Does it apply to the bucket, or to keys below the prefix? A `NotResource` counts as if it did."""
    for one in _texts(statement.get("Resource")) or ["*"]:
        literal = one.partition("*")[0].partition("?")[0]
        bucket, slash, key = literal.partition("/")
        if (slash and bucket == place.arn and _meet(key, place.prefix)) or (not slash and _meet(literal, place.arn)):
            return True
    return False


Tests = list[tuple[str, list[str]]]
"""Operators, each with the values that a key is compared with."""


def _condition_keys(statement: JsonObject) -> dict[str, Tests]:
    found: dict[str, Tests] = {}
    for operator, compared in cast(JsonObject, statement.get("Condition") or {}).items():
        for key, values in cast(JsonObject, compared).items():
            found.setdefault(key, []).append((operator, _texts(values)))
    return found


def _never_holds(statement: JsonObject, key: str, tests: Tests) -> bool:
    """Do requests of the workers never satisfy this condition?"""
    if key.lower() == "aws:securetransport":
        return any(values == ["false"] for _, values in tests)
    if key.lower() == "s3:tlsversion":
        return any(operator.startswith("NumericLessThan") and _below(values) for operator, values in tests)
    if key.lower() == "s3:if-none-match":
        resources = _texts(statement.get("Resource"))
        return bool(resources) and all(f"/{layout.OPLOG_DIR}/" in one for one in resources)
    return key in ENCRYPTION_HEADERS and any(not _holds_without(*test) for test in tests)


def _below(values: list[str]) -> bool:
    return all(one.replace(".", "", 1).isdecimal() and float(one) <= TLS_MIN for one in values)


def _holds_without(operator: str, values: list[str]) -> bool:
    """Is the condition true for a request without the header?"""
    return values == ["true"] if operator == "Null" else "Not" in operator or operator.endswith("IfExists")


# Other settings


def _public_access(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    blocked = cast(JsonObject, current.get("PublicAccessBlockConfiguration") or {})
    off = [name for name in BLOCKS if not blocked.get(name)]
    if not off:
        yield BucketFinding("publicAccess", FindingState.OK, "public access is blocked")
        return
    wanted = ",".join(f"{name}=true" for name in BLOCKS)
    mended = _aws(place, "put-public-access-block", "--public-access-block-configuration", wanted)
    reason = f"{', '.join(off)} off: history and tables are as public as the documents"
    yield BucketFinding("publicAccess", FindingState.ADVICE, reason, command=mended)


def _ownership(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    controls = cast(JsonObject, current.get("OwnershipControls") or {})
    owned = {str(one.get("ObjectOwnership")) for one in members(controls, "Rules")}
    if owned == {"BucketOwnerEnforced"}:
        yield BucketFinding("ownership", FindingState.OK, "the bucket's account owns every object")
        return
    mended = _aws(
        place,
        "put-bucket-ownership-controls",
        "--ownership-controls",
        _json({"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}),
    )
    reason = (
        "ACLs are in use: objects that another account uploads belong to that "
        "account, and the workers may be unable to read them"
    )
    yield BucketFinding("ownership", FindingState.ADVICE, reason, command=mended)


def _payment(place: AttachedPlace, current: JsonObject) -> Iterator[BucketFinding]:
    if current.get("Payer") != "Requester":
        yield BucketFinding("requestPayment", FindingState.OK, "the bucket's owner pays for requests")
        return
    reason = (
        "requesters pay: deploy the stack in the bucket's own account, because other accounts' requests are refused"
    )
    mended = _aws(place, "put-bucket-request-payment", "--request-payment-configuration", "Payer=BucketOwner")
    yield BucketFinding("requestPayment", FindingState.ADVICE, reason, command=mended)


def region_finding(place: AttachedPlace, configured: str | None) -> BucketFinding:
    if configured in (None, place.region):
        return BucketFinding("region", FindingState.OK, f"the bucket is in {place.region}: deploy the stack there")
    reason = (
        f"the bucket is in {place.region}, but AWS_REGION is {configured}: change "
        "it, and deploy the stack in the bucket's region"
    )
    return BucketFinding("region", FindingState.ADVICE, reason, command=f"export AWS_REGION={place.region}")


def _neighbours(place: AttachedPlace, lifecycle: Setting) -> Iterator[BucketFinding]:
    for other in sorted(attached_prefixes(lifecycle) - {place.prefix}):
        if _meet(other, place.prefix):
            yield nested(place, other)


def nested(place: AttachedPlace, other: str) -> BucketFinding:
    """One attached prefix inside another."""
    outer, inner = sorted((other, place.prefix), key=len)
    reason = (
        f"s3://{place.bucket}/{other} is attached as well: the workers of {outer or 'the whole bucket'!r} also get "
        f"every change below {inner!r}. Keep their models apart, or attach only one of the two"
    )
    return BucketFinding("prefix", FindingState.ADVICE, reason)
