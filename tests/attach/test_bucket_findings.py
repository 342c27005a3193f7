"""What is said of the settings of a bucket, from values alone."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from worm.cli.bucket_findings import BucketFinding, FindingState, judge, kms_key, region_finding
from worm.cli.bucket_parts import NOTIFIED, AttachedPlace, Events, check_queue, history_statement, parts
from worm.errors import Invalid
from worm.store.bucket import SETTINGS, Setting, Unreadable, same

QUEUE = "arn:aws:sqs:eu-west-1:123456789012:capture"
PLACE = AttachedPlace("pets", "data/", "eu-west-1")
SQS = AttachedPlace("pets", "data/", "eu-west-1", Events.sqs, QUEUE)
HEALTHY: dict[str, Setting] = {
    **{name: {} for name in SETTINGS},
    "versioning": {"Status": "Enabled"},
    "notification": {"EventBridgeConfiguration": {}},
    "publicAccess": {
        "PublicAccessBlockConfiguration": dict.fromkeys(
            ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
        )
    },
    "ownership": {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}},
    "requestPayment": {"Payer": "BucketOwner"},
    "lifecycle": {
        "Rules": [
            *(part.value for part in parts(PLACE) if part.setting == "lifecycle"),
            {
                "ID": "abort",
                "Status": "Enabled",
                "Filter": {},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
            },
        ]
    },
    "policy": {"Version": "2012-10-17", "Statement": [history_statement(PLACE).value]},
}


def found(setting: str, value: Any, *, place: AttachedPlace = PLACE) -> list[BucketFinding]:
    """What is said of one setting of a bucket that is healthy otherwise, without what is fine."""
    findings = judge(place, {**HEALTHY, setting: value})
    return [one for one in findings if one.state is not FindingState.OK]


def with_rule(**rule: Any) -> dict[str, Any]:
    healthy: Any = HEALTHY["lifecycle"]
    return {"Rules": [*healthy["Rules"], {"ID": "theirs", "Status": "Enabled", **rule}]}


def with_statement(**statement: Any) -> dict[str, Any]:
    theirs = {"Sid": "Theirs", "Effect": "Deny", "Principal": "*", "Resource": "arn:aws:s3:::pets/*", **statement}
    healthy: Any = HEALTHY["policy"]
    return {**healthy, "Statement": [theirs, *healthy["Statement"]]}


def sent(one: BucketFinding) -> Any:
    """The JSON that the command of a finding carries."""
    assert one.command is not None
    return next(json.loads(word) for word in shlex.split(one.command) if word.startswith("{"))


def test_of_a_healthy_bucket_everything_is_fine() -> None:
    assert [one for one in judge(PLACE, HEALTHY) if one.state is not FindingState.OK] == []


@pytest.mark.parametrize(("value", "word"), [({}, "off"), ({"Status": "Suspended"}, "suspended")])
def test_versioning_that_is_off_is_another_finding_than_one_that_is_suspended(value: Setting, word: str) -> None:
    [one] = found("versioning", value)
    assert (one.state, one.is_needed) == (FindingState.MISSING, True)
    assert f"versioning is {word}" in one.reason
    assert sent(one) == {"Status": "Enabled"}


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_cannot_be_read_is_not_called_missing(setting: str) -> None:
    """An administrator who lacks a permission would replace a setting that is there by what a command made up."""
    findings = found(setting, Unreadable("s3:GetSomething"))
    [one] = [one for one in findings if one.setting == setting]
    assert one.state is FindingState.UNREADABLE
    assert "s3:GetSomething" in one.reason
    assert one.parts == ()
    assert one.command is not None
    assert " get-" in one.command
    assert one.is_needed is (setting in ("versioning", "notification", "objectLock"))


def test_the_command_for_notifications_carries_those_of_others() -> None:
    """put-bucket-notification-configuration replaces all: without them, somebody's function would go deaf."""
    others = {"Id": "theirs", "LambdaFunctionArn": "arn:aws:lambda:x", "Events": ["s3:ObjectCreated:*"]}
    [one] = found("notification", {"LambdaFunctionConfigurations": [others]})
    assert sent(one) == {"LambdaFunctionConfigurations": [others], "EventBridgeConfiguration": {}}


def test_one_command_adds_all_that_a_setting_lacks() -> None:
    """Two commands for one setting would undo each other."""
    findings = found("notification", {}, place=SQS)
    assert [one.is_needed for one in findings] == [True, True]
    assert len({one.command for one in findings}) == 1
    wanted = sent(findings[0])
    assert wanted["EventBridgeConfiguration"] == {}
    [queue] = wanted["QueueConfigurations"]
    assert (queue["QueueArn"], queue["Events"]) == (QUEUE, list(NOTIFIED))
    assert queue["Filter"] == {"Key": {"FilterRules": [{"Name": "prefix", "Value": "data/"}]}}


def test_a_notification_of_somebody_that_tells_everything_is_enough() -> None:
    wide = {"Id": "theirs", "QueueArn": QUEUE, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", NOTIFIED[2]]}
    value = {"EventBridgeConfiguration": {}, "QueueConfigurations": [wide]}
    assert found("notification", value, place=SQS) == []
    narrow = {**wide, "Filter": {"Key": {"FilterRules": [{"Name": "Suffix", "Value": ".csv"}]}}}
    assert found("notification", {**value, "QueueConfigurations": [narrow]}, place=SQS) != []


def test_a_destination_that_takes_the_same_events_stands_in_the_way_of_a_queue() -> None:
    """S3 refuses two destinations for one event: the PUT would fail with an error about ambiguity."""
    rival = {"Id": "theirs", "TopicArn": "arn:aws:sns:x", "Events": ["s3:ObjectCreated:Put"]}
    value = {"EventBridgeConfiguration": {}, "TopicConfigurations": [rival]}
    [one] = found("notification", value, place=SQS)
    assert (one.state, one.is_needed, one.parts) == (FindingState.PROBLEM, True, ())
    assert "theirs" in one.reason
    elsewhere = {**rival, "Filter": {"Key": {"FilterRules": [{"Name": "Prefix", "Value": "logs/"}]}}}
    [one] = found("notification", {**value, "TopicConfigurations": [elsewhere]}, place=SQS)
    assert one.state is FindingState.MISSING


def test_without_a_queue_it_says_to_deploy_first() -> None:
    place = AttachedPlace("pets", "data/", "eu-west-1", Events.sqs)
    [one] = found("notification", {"EventBridgeConfiguration": {}}, place=place)
    assert one.is_needed
    assert "deploy the stack with Events=sqs" in one.reason


def test_a_queue_that_an_earlier_attach_left_is_mentioned() -> None:
    left = {"EventBridgeConfiguration": {}, "QueueConfigurations": [parts(SQS)[2].value]}
    [one] = found("notification", left)
    assert one.state is FindingState.ADVICE
    assert "detach" in one.reason


@pytest.mark.parametrize(
    ("arn", "word"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/capture", "not the ARN"),
        ("arn:aws:sns:eu-west-1:123456789012:topic", "not the ARN"),
        ("arn:aws:sqs:eu-west-1:123456789012:capture.fifo", "FIFO"),
        ("arn:aws:sqs:us-east-1:123456789012:capture", "in us-east-1, but the bucket is in eu-west-1"),
        ("", "not the ARN"),
    ],
)
def test_an_arn_that_the_bucket_cannot_notify_is_refused(arn: str, word: str) -> None:
    with pytest.raises(Invalid, match=word) as refused:
        check_queue(arn, "eu-west-1")
    assert refused.value.hint


def encrypted(algorithm: str, key: str | None, *, bucket_key: bool = True) -> dict[str, Any]:
    rule = {"SSEAlgorithm": algorithm, **({"KMSMasterKeyID": key} if key else {})}
    rules = [{"ApplyServerSideEncryptionByDefault": rule, "BucketKeyEnabled": bucket_key}]
    return {"ServerSideEncryptionConfiguration": {"Rules": rules}}


def test_a_key_of_the_customer_is_named_for_the_stack() -> None:
    arn = "arn:aws:kms:eu-west-1:123456789012:key/1234"
    assert kms_key(encrypted("aws:kms", arn)) == arn
    assert kms_key(encrypted("aws:kms:dsse", arn)) == arn
    assert kms_key(encrypted("aws:kms", None)) is None
    assert kms_key(encrypted("aws:kms", "arn:aws:kms:eu-west-1:123456789012:alias/aws/s3")) is None
    assert kms_key(encrypted("AES256", None)) is None
    assert kms_key(Unreadable("s3:GetEncryptionConfiguration")) is None
    [reason] = [
        one.reason for one in judge(PLACE, {**HEALTHY, "encryption": encrypted("aws:kms", arn)}) if arn in one.reason
    ]
    assert "KmsKeyArn" in reason


def test_a_bucket_key_is_advised_with_the_key_that_is_there() -> None:
    [one] = found("encryption", encrypted("aws:kms", "k1", bucket_key=False))
    assert (one.state, one.is_needed) == (FindingState.ADVICE, False)
    [rule] = sent(one)["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["KMSMasterKeyID"] == "k1"
    assert rule["BucketKeyEnabled"] is True


def test_a_default_retention_stands_in_the_way_and_object_lock_alone_does_not() -> None:
    """S3 refuses uploads without a checksum to such a bucket: every oplog entry would fail."""
    locked = {"ObjectLockEnabled": "Enabled"}
    assert found("objectLock", {"ObjectLockConfiguration": locked}) == []
    retention = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 30}}
    [one] = found("objectLock", {"ObjectLockConfiguration": {**locked, "Rule": retention}})
    assert (one.state, one.is_needed) == (FindingState.PROBLEM, True)
    assert "30 days (COMPLIANCE)" in one.reason
    assert sent(one) == locked


@pytest.mark.parametrize("of_library", ["data/.oplog/", "data/org/customers/.worm.", "data/db/"])
def test_a_rule_that_deletes_files_of_the_library_stands_in_the_way(of_library: str) -> None:
    [one] = found("lifecycle", with_rule(Filter={"Prefix": of_library}, Expiration={"Days": 365}))
    assert (one.state, one.is_needed) == (FindingState.PROBLEM, True)
    assert of_library in one.reason


@pytest.mark.parametrize(
    "covering", [{"Filter": {}}, {"Prefix": ""}, {"Filter": {"Prefix": "data/"}}, {"Prefix": "da"}]
)
def test_a_rule_that_deletes_history_stands_in_the_way(covering: dict[str, Any]) -> None:
    """History and tables would go with the documents, and `worm verify` would find gaps everywhere."""
    [one] = found("lifecycle", with_rule(**covering, Expiration={"Days": 30}))
    assert (one.state, one.is_needed, one.parts) == (FindingState.PROBLEM, True, ())
    statuses = {rule["ID"]: rule["Status"] for rule in sent(one)["Rules"]}
    assert statuses.pop("theirs") == "Disabled"
    assert set(statuses.values()) == {"Enabled"}


@pytest.mark.parametrize(
    "narrow",
    [
        {"Filter": {"Prefix": "data/org/customers/"}},
        {"Filter": {"Tag": {"Key": "temporary", "Value": "yes"}}},
        {"Filter": {"And": {"Prefix": "", "ObjectSizeGreaterThan": 10}}},
    ],
)
def test_a_rule_that_deletes_some_documents_is_mentioned(narrow: dict[str, Any]) -> None:
    [one] = found("lifecycle", with_rule(**narrow, Expiration={"Date": "2030-01-01T00:00:00+00:00"}))
    assert (one.state, one.is_needed) == (FindingState.ADVICE, False)


@pytest.mark.parametrize(
    "harmless",
    [
        {"Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 1}},
        {"Status": "Disabled", "Filter": {}, "Expiration": {"Days": 1}},
        {"Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}},
        {"Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 14}},
        {"Filter": {"Prefix": "data/db/"}, "NoncurrentVersionExpiration": {"NoncurrentDays": 8}},
        {"Filter": {}, "Transitions": [{"Days": 30, "StorageClass": "GLACIER_IR"}]},
    ],
)
def test_rules_that_hurt_nothing_are_not_mentioned(harmless: dict[str, Any]) -> None:
    assert found("lifecycle", with_rule(**harmless)) == []


def test_old_versions_must_outlive_a_dead_letter() -> None:
    """What waits in a dead-letter queue could not be recorded when somebody redrives it."""
    short = {"NoncurrentDays": 3, "NewerNoncurrentVersions": 2}
    [one] = found("lifecycle", with_rule(Filter={}, NoncurrentVersionExpiration=short))
    assert (one.state, one.is_needed) == (FindingState.ADVICE, False)
    theirs = next(rule for rule in sent(one)["Rules"] if rule["ID"] == "theirs")
    assert theirs["NoncurrentVersionExpiration"] == {"NoncurrentDays": 14, "NewerNoncurrentVersions": 2}


def test_what_is_frozen_cannot_be_read() -> None:
    [one] = found("lifecycle", with_rule(Filter={}, Transitions=[{"Days": 90, "StorageClass": "DEEP_ARCHIVE"}]))
    assert (one.state, one.is_needed) == (FindingState.PROBLEM, True)
    [one] = found("lifecycle", with_rule(Filter={}, NoncurrentVersionTransitions=[{"StorageClass": "GLACIER"}]))
    assert (one.state, one.is_needed) == (FindingState.ADVICE, False)


def test_rules_are_added_beside_old_ones_in_one_form_and_with_the_minimum_size() -> None:
    """S3 refuses to mix rules with a bare prefix and rules with filters, and resets a minimum size that is not sent."""
    old = {"ID": "old", "Status": "Enabled", "Prefix": "logs/", "Expiration": {"Days": 1}}
    findings = found("lifecycle", {"Rules": [old], "TransitionDefaultMinimumObjectSize": "varies_by_storage_class"})
    one = next(one for one in findings if one.state is FindingState.MISSING)
    first, *ours = sent(one)["Rules"]
    assert first == {"ID": "old", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 1}}
    assert [rule["Filter"] for rule in ours] == [
        {"Prefix": "data/.worm.changes/"},
        {"And": {"Prefix": "data/", "Tags": [{"Key": "worm", "Value": "derived"}]}},
        {"Prefix": "data/.worm.probe/"},
        {"Prefix": "data/.worm.api/idempotency/"},
    ]
    assert "--transition-default-minimum-object-size varies_by_storage_class" in str(one.command)


def test_rules_and_statement_of_an_earlier_stack_are_recognized_under_other_names() -> None:
    """A stack's own bucket outlives it: adopting it again must not double its rules."""
    whole = AttachedPlace("pets", "", "eu-west-1")
    settings: dict[str, Any] = json.loads(json.dumps(HEALTHY))
    settings["lifecycle"] = {"Rules": [dict(part.value, ID=f"Stack{at}") for at, part in enumerate(parts(whole)[2:6])]}  # type: ignore[arg-type]  # a rule is an object
    settings["policy"]["Statement"] = [{**history_statement(whole).value, "Sid": "DenyOverwriteOfHistory"}]  # type: ignore[dict-item]  # a statement is an object
    assert [one.state for one in judge(whole, settings) if one.parts] == []


@pytest.mark.parametrize(
    "harmless",
    [
        {"Action": "s3:*", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
        {"Action": "s3:*", "Condition": {"NumericLessThan": {"s3:TlsVersion": "1.2"}}},
        {"Action": "s3:PutBucketPolicy"},
        {"Action": "s3:PutObject", "Resource": "arn:aws:s3:::pets/logs/*"},
        {"Action": "s3:*", "Resource": "arn:aws:s3:::petshop/*"},
        {"Action": "s3:*", "Principal": {"AWS": "arn:aws:iam::123456789012:user/intern"}},
        {"Action": "s3:*", "Effect": "Allow"},
        {
            "Action": "s3:PutObject",
            "Resource": "arn:aws:s3:::pets/*/.oplog/*",
            "Condition": {"Null": {"s3:if-none-match": "true"}},
        },
        {
            "Action": "s3:PutObject",
            "Condition": {
                "StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"},
                "Null": {"s3:x-amz-server-side-encryption": "false"},
            },
        },
        {"Action": "s3:PutObject", "Condition": {"StringEquals": {"s3:x-amz-server-side-encryption": "AES256"}}},
    ],
)
def test_statements_that_deny_the_workers_nothing_are_not_mentioned(harmless: dict[str, Any]) -> None:
    assert found("policy", with_statement(**harmless)) == []


@pytest.mark.parametrize(
    "denial",
    [
        {"Action": "s3:*"},
        {"Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::pets/data/org/*"},
        {"Action": ["s3:Get*", "s3:List*"], "Resource": "arn:aws:s3:::pets"},
        {"Action": "s3:PutObject", "Principal": {"AWS": "123456789012"}},
        {"NotAction": "s3:GetObject"},
        {"Action": "s3:*", "Principal": None, "NotPrincipal": {"AWS": "arn:aws:iam::123456789012:role/admin"}},
        {"Action": "s3:*", "Resource": None, "NotResource": "arn:aws:s3:::other/*"},
    ],
)
def test_a_statement_that_denies_the_workers_stands_in_the_way(denial: dict[str, Any]) -> None:
    """All of it would end in the dead-letter queue, after the stack is deployed."""
    [one] = found("policy", with_statement(**denial))
    assert (one.state, one.is_needed, one.parts) == (FindingState.PROBLEM, True, ())
    assert "Theirs" in one.reason


@pytest.mark.parametrize(
    "condition",
    [
        {"StringNotEquals": {"aws:SourceVpce": "vpce-1"}},
        {"StringNotLike": {"aws:PrincipalArn": "arn:aws:iam::123456789012:role/*"}},
        {"NotIpAddress": {"aws:SourceIp": "10.0.0.0/8"}},
        {"NumericLessThan": {"s3:TlsVersion": "1.3"}},
    ],
)
def test_a_condition_that_only_the_operator_can_judge_is_mentioned(condition: dict[str, Any]) -> None:
    [one] = found("policy", with_statement(Action="s3:*", Condition=condition))
    assert (one.state, one.is_needed) == (FindingState.ADVICE, False)
    assert next(iter(next(iter(condition.values())))) in one.reason


def test_a_policy_that_asks_for_an_encryption_header_is_narrowed_to_those_who_send_one() -> None:
    """The classic statement of older buckets refuses every upload that leaves encryption to the bucket."""
    asks = {"StringNotEquals": {"s3:x-amz-server-side-encryption": "aws:kms"}}
    [one] = found("policy", with_statement(Action="s3:PutObject", Condition=asks))
    assert (one.state, one.is_needed) == (FindingState.PROBLEM, True)
    wanted = sent(one)
    assert found("policy", wanted) == []
    theirs = next(each for each in wanted["Statement"] if each["Sid"] == "Theirs")
    assert theirs["Condition"] == {**asks, "Null": {"s3:x-amz-server-side-encryption": "false"}}


def test_a_statement_that_asks_for_nothing_but_the_header_goes() -> None:
    only = {"Null": {"s3:x-amz-server-side-encryption": "true"}}
    [one] = found("policy", with_statement(Action="s3:PutObject", Condition=only))
    assert [each["Sid"] for each in sent(one)["Statement"]] == ["WormHistory" + PLACE.digest]


@pytest.mark.parametrize(
    ("setting", "value", "verb"),
    [
        ("publicAccess", {}, "put-public-access-block"),
        ("publicAccess", {"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}}, "put-public-access-block"),
        ("ownership", {}, "put-bucket-ownership-controls"),
        ("requestPayment", {"Payer": "Requester"}, "put-bucket-request-payment"),
        ("versioning", {"Status": "Enabled", "MFADelete": "Enabled"}, None),
    ],
)
def test_what_is_for_the_owner_to_decide_is_advice(setting: str, value: Setting, verb: str | None) -> None:
    [one] = found(setting, value)
    assert (one.state, one.is_needed, one.parts) == (FindingState.ADVICE, False, ())
    assert (one.command is None) if verb is None else (f"s3api {verb} " in str(one.command))


def test_another_region_than_the_configured_one_is_mentioned() -> None:
    assert region_finding(PLACE, None).state is FindingState.OK
    assert region_finding(PLACE, "eu-west-1").state is FindingState.OK
    one = region_finding(PLACE, "us-east-1")
    assert (one.state, one.command) == (FindingState.ADVICE, "export AWS_REGION=eu-west-1")


@pytest.mark.parametrize("other", ["", "data/inner/"])
def test_prefixes_that_lie_in_each_other_are_mentioned(other: str) -> None:
    """The outer one's capture would meet documents that are not its own."""
    rules = [part.value for part in parts(AttachedPlace("pets", other, "eu-west-1")) if part.setting == "lifecycle"]
    healthy: Any = HEALTHY["lifecycle"]
    [one] = found("lifecycle", {"Rules": [*healthy["Rules"], *rules]})
    assert (one.setting, one.state) == ("prefix", FindingState.ADVICE)
    assert f"s3://pets/{other} is attached" in one.reason
    beside = [part.value for part in parts(AttachedPlace("pets", "other/", "eu-west-1")) if part.setting == "lifecycle"]
    assert found("lifecycle", {"Rules": [*healthy["Rules"], *beside]}) == []


@pytest.mark.parametrize("region", ["cn-north-1", "us-gov-west-1", "eu-west-1"])
def test_names_of_resources_are_of_the_partition_of_the_region(region: str) -> None:
    partition = {"cn-north-1": "aws-cn", "us-gov-west-1": "aws-us-gov"}.get(region, "aws")
    statement: Any = history_statement(AttachedPlace("pets", "", region)).value
    assert statement["Resource"] == [f"arn:{partition}:s3:::pets/.oplog/*", f"arn:{partition}:s3:::pets/*/.oplog/*"]


def test_a_part_that_was_added_is_met_and_taking_it_out_leaves_the_rest() -> None:
    others: dict[str, Any] = {
        "versioning": {},
        "notification": {"TopicConfigurations": [{"Id": "t", "TopicArn": "arn", "Events": ["s3:TestEvent"]}]},
        "lifecycle": {
            "Rules": [{"ID": "x", "Status": "Enabled", "Filter": {"Prefix": "x"}, "Expiration": {"Days": 1}}]
        },
        "policy": {"Version": "2012-10-17", "Statement": [{"Sid": "Mine", "Effect": "Allow"}]},
    }
    for part in parts(SQS):
        added = part.added_to(others[part.setting])
        assert part.is_met(added)
        assert same(part.added_to(added), added)
        assert same(part.removed_from(added), others[part.setting])
        assert not part.is_met(others[part.setting])


def test_a_part_that_somebody_changed_is_not_taken_out() -> None:
    for part in parts(SQS):
        changed: dict[str, Any] = {part.member: "Suspended"}
        if part.id_name:
            changed = {part.member: [{**part.value, "Status": "Disabled"}]}  # type: ignore[dict-item]  # it is an object
        elif part.member == "EventBridgeConfiguration":
            continue  # it has nothing that could be changed
        assert part.removed_from(changed) == changed


def test_the_order_of_members_and_the_case_of_filters_mean_nothing() -> None:
    one = {"a": [{"Name": "Prefix", "Value": "x"}, {"y": 1, "x": [2, 1]}], "empty": []}
    other = {"a": [{"x": [1, 2], "y": 1}, {"Value": "x", "Name": "prefix"}]}
    assert same(one, other)  # type: ignore[arg-type]  # JSON
    assert not same(one, {"a": [{"Name": "Suffix", "Value": "x"}, {"y": 1, "x": [2, 1]}]})  # type: ignore[arg-type]  # JSON
    assert not same(Unreadable("x"), Unreadable("x"))
