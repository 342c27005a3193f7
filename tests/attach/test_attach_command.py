"""`worm attach` and `worm detach` on a bucket that others use too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.attach.attach_room import Denying, Room
from tests.emulators import new_bucket, s3_client
from tests.fault_proxy import serving
from tests.template.sam_document import document
from worm.cli.attach import KEY_PREFIX
from worm.cli.attachment import AttachRecord
from worm.cli.bucket_parts import AttachedPlace, rules
from worm.clock import Ids, SystemClock, VirtualClock
from worm.errors import Conflict
from worm.store.bucket import BucketSettings

pytestmark = pytest.mark.slow  # together more than a few seconds

RECORD = "data/.worm.attached.json"
QUEUE = "arn:aws:sqs:us-east-1:123456789012:capture"
THEIR_TOPIC: Any = {
    "Id": "theirs",
    "TopicArn": "arn:aws:sns:us-east-1:123456789012:t",
    "Events": ["s3:ObjectTagging:*"],
}
THEIR_RULE: Any = {
    "ID": "theirs",
    "Status": "Enabled",
    "Filter": {"And": {"Prefix": "logs/", "Tags": [{"Key": "keep", "Value": "no"}]}},
    "Expiration": {"Days": 30},
    "Transitions": [{"Days": 10, "StorageClass": "GLACIER"}],
}
THEIR_STATEMENT: Any = {
    "Sid": "Theirs",
    "Effect": "Allow",
    "Principal": {"AWS": "arn:aws:iam::123456789012:role/reader"},
    "Action": "s3:GetObject",
    "Resource": "arn:aws:s3:::*/public/*",
}


def settings_of_others(room: Room) -> None:
    s3, bucket = room.s3, room.bucket
    s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [THEIR_TOPIC]}, SkipDestinationValidation=True
    )
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [THEIR_RULE]})
    policy = {"Version": "2012-10-17", "Statement": [THEIR_STATEMENT]}
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "team", "Value": "sales"}]})
    s3.put_bucket_cors(
        Bucket=bucket, CORSConfiguration={"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
    )


def record(room: Room) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(room.s3.get_object(Bucket=room.bucket, Key=RECORD)["Body"].read())
    return found


def test_without_apply_nothing_is_changed_and_the_exit_code_says_that_something_is_missing(room: Room) -> None:
    with serving(proxy := Denying(room.endpoint_url)):
        before = room.settings()
        answer = room.attach(endpoint_url=proxy.url)
    assert (answer.code, answer.err) == (1, "")
    assert answer.json["ready"] is False
    assert (answer.states("versioning"), answer.states("notification")) == (["missing"], ["missing"])
    assert room.settings() == before
    assert proxy.writes == []


def test_the_printed_commands_make_the_bucket_ready(room: Room) -> None:
    settings_of_others(room)
    for _ in range(2):  # of several commands for one setting the others are printed again
        for one in room.attach().json["findings"]:
            if one["state"] == "missing":
                room.run_printed(one["command"])
    after = room.attach()
    assert (after.code, after.json["ready"]) == (0, True)
    assert "missing" not in [one["state"] for one in after.json["findings"]]
    assert THEIR_TOPIC in room.settings()["notification"]["TopicConfigurations"]
    assert THEIR_RULE in room.settings()["lifecycle"]
    assert THEIR_STATEMENT in room.settings()["policy"]["Statement"]


def test_apply_keeps_everything_that_others_set(room: Room, schema_file: str) -> None:
    """A notification, a lifecycle or a policy of another team would be gone, and nobody would know why."""
    settings_of_others(room)
    answer = room.attach("--apply", "--push", schema_file)
    assert (answer.code, answer.err) == (0, "")
    after = room.settings()
    assert after["versioning"] == "Enabled"
    assert after["notification"] == {"TopicConfigurations": [THEIR_TOPIC], "EventBridgeConfiguration": {}}
    assert after["lifecycle"][0] == THEIR_RULE
    assert len(after["lifecycle"]) == 5
    assert after["policy"]["Statement"][0] == THEIR_STATEMENT
    assert len(after["policy"]["Statement"]) == 2
    assert room.s3.get_bucket_tagging(Bucket=room.bucket)["TagSet"] == [{"Key": "team", "Value": "sales"}]
    assert room.s3.get_bucket_cors(Bucket=room.bucket)["CORSRules"][0]["AllowedMethods"] == ["GET"]


def test_apply_adopts_what_is_there_and_says_how_to_deploy(room: Room, schema_file: str) -> None:
    answer = room.attach("--apply", "--push", schema_file)
    [adopted] = answer.json["push"]["adopted"]
    assert (adopted["documents"], adopted["recorded"], adopted["rows"]) == (3, 3, 3)
    line = f"sam deploy --stack-name worm-{room.bucket}-data --region us-east-1"
    line += f" --parameter-overrides ExistingBucketName={room.bucket} KeyPrefix=data/"
    assert answer.json["deploy"] == f"{line} Events=eventbridge"
    assert room.worm("verify", "--url", room.url).code == 0
    why = room.worm("why", ".worm.attached.json", "--url", room.url)
    assert (why.code, "what `worm attach` added" in why.out) == (0, True)


def test_a_key_as_dead_letters_name_it_is_found_below_the_prefix(room: Room, schema_file: str) -> None:
    """The runbook led to "there is no such object", and to uploading it a second time somewhere else."""
    room.attach("--apply", "--push", schema_file)
    whole = room.worm("why", room.key(1), "--url", room.url)
    assert whole.out == room.worm("why", room.key(1).removeprefix("data/"), "--url", room.url).out
    assert (whole.code, "recorded" in whole.out) == (0, True)


@pytest.mark.parametrize("prefix", ["cr m/", "data/.oplog", "ü", ".worm"])
def test_a_prefix_that_the_template_refuses_is_refused_before_anything_is_changed(room: Room, prefix: str) -> None:
    before = room.settings()
    answer = room.worm("attach", f"s3://{room.bucket}/{prefix}", "--apply")
    assert (answer.code, "a stack cannot be deployed for the prefix" in answer.err) == (2, True)
    assert room.settings() == before


def test_a_prefix_is_what_the_template_takes() -> None:
    allowed = str(document()["Parameters"]["KeyPrefix"]["AllowedPattern"])
    assert allowed == f"^$|^{KEY_PREFIX.pattern}$"


def test_attaching_again_changes_nothing_and_adopts_what_is_new(room: Room, schema_file: str) -> None:
    room.attach("--apply", "--push", schema_file)
    before, noted = room.settings(), room.s3.head_object(Bucket=room.bucket, Key=RECORD)["VersionId"]
    room.upload(7, "new")
    answer = room.attach("--apply")
    assert (answer.code, answer.json["added"]) == (0, [])
    assert [one["recorded"] for one in answer.json["push"]["adopted"]] == [1]
    assert room.settings() == before
    assert room.s3.head_object(Bucket=room.bucket, Key=RECORD)["VersionId"] == noted


def test_without_a_schema_it_says_how_to_go_on(room: Room) -> None:
    answer = room.attach("--apply")
    assert (answer.code, answer.json["push"]) == (0, None)
    assert f"worm import --url {room.url}" in answer.json["next"][0]
    text = room.worm("attach", room.url, "--apply").out
    assert f"worm attach {room.url} --apply --push schema.json" in text
    assert "Deploy:  sam deploy" in text


def test_detach_leaves_the_bucket_as_it_was_but_for_versioning(room: Room, schema_file: str) -> None:
    settings_of_others(room)
    before = room.settings()
    room.attach("--apply", "--push", schema_file)
    kept = {one["Key"] for one in room.s3.list_objects_v2(Bucket=room.bucket)["Contents"]} - {RECORD}
    dry = room.detach()
    assert (dry.code, dry.json["applied"]) == (0, False)
    assert room.settings() != before
    answer = room.detach("--apply")
    assert (answer.code, answer.err) == (0, "")
    assert {one["part"]: one["outcome"] for one in answer.json["steps"]}.pop("versioning") == "stays"
    assert room.settings() == {**before, "versioning": "Enabled"}
    assert {one["Key"] for one in room.s3.list_objects_v2(Bucket=room.bucket)["Contents"]} == kept
    again = room.detach("--apply")
    assert again.code == 3
    assert "nothing is attached" in again.err


def test_detach_of_a_bucket_without_other_settings_leaves_none(room: Room) -> None:
    """An empty lifecycle or policy is refused by S3: the last rule goes with the setting."""
    room.attach("--apply")
    assert room.detach("--apply").code == 0
    after = room.settings()
    assert (after["lifecycle"], after["policy"], after["notification"]) == (None, None, {})


def test_what_was_there_before_attach_stays(room: Room) -> None:
    """EventBridge was somebody's: turning it off would silence rules that nobody here knows of."""
    room.s3.put_bucket_versioning(Bucket=room.bucket, VersioningConfiguration={"Status": "Enabled"})
    room.s3.put_bucket_notification_configuration(
        Bucket=room.bucket, NotificationConfiguration={"EventBridgeConfiguration": {}}
    )
    answer = room.attach("--apply")
    assert [one for one in answer.json["added"] if "rule" not in one and "statement" not in one] == []
    room.detach("--apply")
    assert room.settings()["notification"] == {"EventBridgeConfiguration": {}}


def test_what_somebody_changed_since_stays_and_is_reported(room: Room) -> None:
    room.attach("--apply")
    changed = room.settings()["lifecycle"]
    changed[0]["Expiration"]["Days"] = 99
    removed = changed.pop(1)
    room.s3.put_bucket_lifecycle_configuration(Bucket=room.bucket, LifecycleConfiguration={"Rules": changed})
    answer = room.detach("--apply")
    outcomes = {one["part"]: one["outcome"] for one in answer.json["steps"]}
    assert outcomes[f"the lifecycle rule {changed[0]['ID']}"] == "stays"
    assert outcomes[f"the lifecycle rule {removed['ID']}"] == "gone"
    assert room.settings()["lifecycle"] == [changed[0]]


def test_eventbridge_stays_while_another_prefix_is_attached(room: Room) -> None:
    """The other prefix found it on and recorded nothing: without it, its workers would hear of no upload."""
    room.attach("--apply")
    other = f"s3://{room.bucket}/other/"
    room.attach("--apply", url=other)
    answer = room.detach("--apply")
    [step] = [one for one in answer.json["steps"] if one["part"] == "EventBridge notifications"]
    assert step["outcome"] == "stays"
    assert other in step["reason"]
    assert room.settings()["notification"] == {"EventBridgeConfiguration": {}}
    assert room.attach(url=other).code == 0


def test_an_interrupted_attach_goes_on_and_detach_knows_what_it_began(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between two settings would leave rules that nobody remembers."""
    whole = BucketSettings.change

    def crash(self: BucketSettings, name: str, *args: Any, **options: Any) -> bool:
        if name == "policy":
            raise KeyboardInterrupt
        return whole(self, name, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(BucketSettings, "change", crash)
        assert room.attach("--apply").code == 130
    assert [one["isDone"] for one in record(room)["added"]] == [*[True] * 6, False]
    assert room.attach("--apply").json["added"] == [f"the policy statement {record(room)['added'][-1]['value']['Sid']}"]
    assert [one["isDone"] for one in record(room)["added"]] == [True] * 7
    room.detach("--apply")
    assert (room.settings()["lifecycle"], room.settings()["policy"]) == (None, None)


def test_a_switch_that_an_interrupted_attach_may_not_have_turned_stays(room: Room) -> None:
    """The record comes first: somebody who turned EventBridge on after a crash would lose it to a detach."""
    room.attach("--apply")
    shape = record(room)
    for one in shape["added"]:
        one["isDone"] = False
    room.s3.put_object(Bucket=room.bucket, Key=RECORD, Body=json.dumps(shape).encode())
    outcomes = {one["part"]: one["outcome"] for one in room.detach("--apply").json["steps"]}
    assert outcomes["EventBridge notifications"] == "stays"
    assert [outcome for part, outcome in outcomes.items() if "rule" in part or "statement" in part] == ["removed"] * 5


def test_a_forged_record_cannot_make_detach_remove_what_is_not_attachs(room: Room) -> None:
    """Anyone who may upload below the prefix could have an administrator delete another team's policy statement."""
    settings_of_others(room)
    room.attach("--apply")
    shape = record(room)
    about = {"was": None, "at": "2026-01-01T00:00:00Z", "isDone": True}
    shape["added"] += [
        {"setting": "policy", "member": "Statement", "id": "Sid", "value": THEIR_STATEMENT, **about},
        {"setting": "lifecycle", "member": "Rules", "id": "ID", "value": THEIR_RULE, **about},
        {"setting": "lifecycle", "member": "Rules", "id": "", "value": [], **about},
    ]
    room.s3.put_object(Bucket=room.bucket, Key=RECORD, Body=json.dumps(shape).encode())
    assert len(room.detach("--apply").json["steps"]) == 7
    assert room.settings()["policy"]["Statement"] == [THEIR_STATEMENT]
    assert room.settings()["lifecycle"] == [THEIR_RULE]


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (b"{}", 9, "version is missing"),
        (b"no json", 9, "JSON"),
        (
            b'{"version": 1, "bucket": "elsewhere", "prefix": "data/", "events": "sqs", "queue": null, "added": []}',
            2,
            "belongs to another location: s3://elsewhere/data/",
        ),
    ],
)
def test_a_record_that_is_not_ours_changes_nothing(room: Room, body: bytes, code: int, word: str) -> None:
    room.s3.put_object(Bucket=room.bucket, Key=RECORD, Body=body)
    before = room.settings()
    for answer in (room.attach("--apply"), room.detach("--apply")):
        assert answer.code == code
        assert word in answer.err
    assert room.settings() == before


def test_a_queue_is_notified_of_documents_and_goes_again(room: Room, moto_endpoint: str) -> None:
    import boto3

    sqs = boto3.client("sqs", endpoint_url=moto_endpoint)
    queue = sqs.create_queue(QueueName=room.bucket)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    first = room.attach("--apply", "--events", "sqs")
    assert first.code == 1
    assert "deploy the stack with Events=sqs" in first.reasons("notification")
    assert room.settings()["versioning"] is None, "a bucket that is not ready is left as it is"
    answer = room.attach("--apply", "--events", "sqs", "--queue", arn)
    assert (answer.code, answer.err) == (0, "")
    assert answer.json["deploy"].endswith("Events=sqs")
    [configured] = room.settings()["notification"]["QueueConfigurations"]
    assert configured["QueueArn"] == arn
    assert configured["Filter"]["Key"]["FilterRules"][0]["Value"] == "data/"
    assert "EventBridgeConfiguration" in room.settings()["notification"], "change sets come by EventBridge"
    assert room.attach("--apply", "--events", "sqs", "--queue", arn).json["added"] == []
    room.detach("--apply")
    assert room.settings()["notification"] == {}


def test_versioning_that_was_just_turned_on_is_given_time_once(
    room: Room, schema_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS answers 404 to reads now and then in these minutes: an adopted document could look deleted."""
    slept: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda self, seconds: slept.append(seconds))
    answer = room.attach("--apply", "--push", schema_file, "--settle", "900")
    assert answer.code == 0
    assert 700 < max(slept) <= 900  # less what the command took
    assert "waiting" in answer.err
    again = Room(room.endpoint_url)
    again.s3.put_bucket_versioning(Bucket=again.bucket, VersioningConfiguration={"Status": "Enabled"})
    slept.clear()
    assert again.attach("--apply", "--push", schema_file, "--settle", "900").code == 0
    assert max(slept, default=0) < 10


# Wrong input


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("attach", "./data"), 2, "not a bucket"),
        (("attach", "memory://x"), 2, "not a bucket"),
        (("attach", "s3://"), 2, "does not name a bucket"),
        (("attach", "s3://BAD_name"), 2, "is not a valid bucket name"),
        (("attach", "s3://bucket/a//b"), 2, "key"),
        (("attach", "s3://shop--use1-az4--x-s3"), 2, "directory bucket"),
        (("attach", "s3://no-such-bucket-here"), 3, "there is no bucket"),
        (("detach", "s3://no-such-bucket-here"), 3, "there is no bucket"),
        (("detach", "./data"), 2, "not a bucket"),
        (("attach", "s3://x-y-z", "--push", "schema.json"), 2, "add --apply"),
        (("attach", "s3://x-y-z", "--queue", QUEUE), 2, "--events sqs"),
        (("attach", "s3://x-y-z", "--apply", "--push", "no/such.json"), 3, "does not exist"),
    ],
)
def test_wrong_places_and_options_are_told_in_one_line(
    room: Room, arguments: tuple[str, ...], code: int, word: str
) -> None:
    answer = room.worm(*arguments)
    assert answer.code == code
    assert word in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_a_queue_of_another_region_is_refused(room: Room) -> None:
    answer = room.attach("--events", "sqs", "--queue", "arn:aws:sqs:eu-west-1:123456789012:capture")
    assert answer.code == 2
    assert "the queue is in eu-west-1, but the bucket is in us-east-1" in answer.err


def test_a_prefix_with_and_without_a_slash_is_the_same_place(room: Room) -> None:
    room.attach("--apply", url=f"s3://{room.bucket}/data/")
    assert room.attach("--apply", url=f"s3://{room.bucket}/data").json["added"] == []
    assert room.detach(url=f"s3://{room.bucket}/data/").code == 0


def test_a_bucket_of_another_region_is_attached_there(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = f"{room.bucket}-eu"
    client = s3_client(room.endpoint_url)
    client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    answer = room.attach("--apply", url=f"s3://{bucket}")
    assert (answer.code, answer.json["region"]) == (0, "eu-west-1")
    assert answer.states("region") == ["advice"]
    assert "--region eu-west-1" in answer.json["deploy"]


def test_a_prefix_inside_an_attached_one_is_mentioned(room: Room) -> None:
    room.attach("--apply")
    inner = room.attach(url=f"s3://{room.bucket}/data/inner")
    assert inner.states("prefix") == ["advice"]
    room.s3.delete_bucket_lifecycle(Bucket=room.bucket)  # the record tells it all the same
    inner = room.attach(url=f"s3://{room.bucket}/data/inner")
    assert f"s3://{room.bucket}/data/ is attached" in inner.reasons("prefix")
    assert room.attach(url=f"s3://{room.bucket}/database").states("prefix") == []


def test_a_key_of_the_customer_is_in_the_deploy_line(room: Room) -> None:
    arn = "arn:aws:kms:us-east-1:123456789012:key/1234"
    for key, told in ((arn, f"KmsKeyArn={arn}"), ("alias/pets", "--key-id alias/pets")):
        rule: Any = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
        room.s3.put_bucket_encryption(Bucket=room.bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})
        assert told in room.attach().json["deploy"]


def test_a_bucket_that_the_workers_cannot_use_is_left_as_it_is(room: Room) -> None:
    """Attach would promise a history that the next night's rule deletes."""
    rule: Any = {"ID": "all", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    room.s3.put_bucket_lifecycle_configuration(Bucket=room.bucket, LifecycleConfiguration={"Rules": [rule]})
    before = room.settings()
    answer = room.attach("--apply")
    assert (answer.code, answer.json["ready"], answer.json["added"]) == (1, False, [])
    assert room.settings() == before
    assert "Nothing was changed" in answer.json["next"][0]


# Missing permissions

READS = {
    "versioning": "GET versioning",
    "notification": "GET notification",
    "encryption": "GET encryption",
    "objectLock": "GET object-lock",
    "lifecycle": "GET lifecycle",
    "policy": "GET policy",
    "publicAccess": "GET publicAccessBlock",
    "ownership": "GET ownershipControls",
    "requestPayment": "GET requestPayment",
}


@pytest.mark.parametrize("setting", READS)
def test_a_setting_that_may_not_be_read_is_neither_missing_nor_written(room: Room, setting: str) -> None:
    """Writing it would wipe what the caller could not see."""
    settings_of_others(room)
    before = room.settings()
    with serving(proxy := Denying(room.endpoint_url, READS[setting])):
        answer = room.attach("--apply", endpoint_url=proxy.url)
    assert answer.states(setting) == ["unreadable"]
    is_needed = setting in ("versioning", "notification", "objectLock")
    assert answer.code == (1 if is_needed else 0)
    after = room.settings()
    assert after == before if is_needed else after.get(setting) == before.get(setting)


@pytest.mark.parametrize(("setting", "code"), [("versioning", 1), ("notification", 1), ("lifecycle", 0), ("policy", 0)])
def test_a_setting_that_may_not_be_written_is_reported_and_the_rest_is_done(
    room: Room, schema_file: str, setting: str, code: int
) -> None:
    with serving(proxy := Denying(room.endpoint_url, f"PUT {setting}")):
        answer = room.attach("--apply", "--push", schema_file, endpoint_url=proxy.url)
    assert answer.code == code
    assert "missing" in answer.states(setting)
    assert "It was not added: S3 refused s3:Put" in answer.reasons(setting)
    assert [one["setting"] for one in record(room)["added"] if one["setting"] == setting] == []
    assert len(record(room)["added"]) == {"lifecycle": 3}.get(setting, 6)
    assert (answer.json["push"] is None) is (code == 1)
    assert room.attach("--apply").code == 0, "with the permission it goes on"


@pytest.mark.parametrize(
    ("denied", "word"),
    [
        ("HEAD /", "is not allowed to see the bucket"),
        ("PUT .worm.attached", "the store refused"),
    ],
)
def test_without_the_permission_to_begin_nothing_is_changed(room: Room, denied: str, word: str) -> None:
    """A change that no record knows of could never be taken out."""
    before = room.settings()
    with serving(proxy := Denying(room.endpoint_url, denied)):
        answer = room.attach("--apply", endpoint_url=proxy.url)
    assert answer.code == 8
    assert word in answer.err
    assert room.settings() == before


@pytest.mark.parametrize("setting", ["notification", "lifecycle", "policy"])
def test_what_detach_may_not_change_stays_in_the_record(room: Room, setting: str) -> None:
    room.attach("--apply")
    verb = "DELETE" if setting in ("lifecycle", "policy") else "PUT"
    with serving(proxy := Denying(room.endpoint_url, f"{verb} {setting}")):
        answer = room.detach("--apply", endpoint_url=proxy.url)
    assert answer.code == 8
    assert list(answer.json["failures"]) == [setting]
    assert {one["setting"] for one in record(room)["added"]} == {setting}
    assert room.detach("--apply").code == 0
    assert (room.settings()["lifecycle"], room.settings()["policy"]) == (None, None)


# Somebody else at the same time


def settings_client(room: Room) -> BucketSettings:
    clock = VirtualClock()
    return BucketSettings(room.bucket, endpoint_url=room.endpoint_url, clock=clock, ids=Ids.seeded(1, clock))


def test_a_change_is_made_to_what_is_there_now(room: Room) -> None:
    """Between looking and writing somebody added a rule: it would be gone."""
    bucket, part = settings_client(room), rules(AttachedPlace(room.bucket, "data/", "us-east-1"))[0]
    bucket.read_all()
    room.s3.put_bucket_lifecycle_configuration(Bucket=room.bucket, LifecycleConfiguration={"Rules": [THEIR_RULE]})
    assert bucket.change("lifecycle", part.added_to) is True
    assert [one["ID"] for one in room.settings()["lifecycle"]] == ["theirs", part.value["ID"]]  # type: ignore[index,call-overload]  # an object
    assert bucket.change("lifecycle", part.added_to) is False


def test_a_change_that_another_writer_replaced_is_a_conflict(room: Room) -> None:
    """S3 has no condition for settings: who does not look again believes that the rule is there."""
    bucket, part = settings_client(room), rules(AttachedPlace(room.bucket, "data/", "us-east-1"))[0]
    write = bucket._write

    def then_replaced(*arguments: Any) -> None:
        write(*arguments)
        room.s3.put_bucket_lifecycle_configuration(Bucket=room.bucket, LifecycleConfiguration={"Rules": [THEIR_RULE]})

    bucket._write = then_replaced  # type: ignore[method-assign, assignment]  # the other writer is exactly there
    with pytest.raises(Conflict, match="another process changed it"):
        bucket.change("lifecycle", part.added_to)


def test_of_two_attaches_at_once_one_ends_before_it_changes_anything(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would write a record without what the other added."""
    whole, others = AttachRecord.planning, list[int]()

    def after_another(self: AttachRecord, *arguments: Any) -> AttachRecord:
        if not others:
            others.append(0)
            others[0] = room.attach("--apply").code
        return whole(self, *arguments)

    monkeypatch.setattr(AttachRecord, "planning", after_another)
    answer = room.attach("--apply")
    assert (answer.code, others) == (4, [0])
    assert "another attach or detach is running" in answer.err
    assert [one["isDone"] for one in record(room)["added"]] == [True] * 7


def test_an_attach_that_looked_before_another_one_adds_nothing_twice(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BucketSettings.read_all
    seen = list[str]()

    def with_another(self: BucketSettings) -> Any:
        found = whole(self)
        if not seen:
            seen.append("first")
            assert room.attach("--apply").code == 0
        return found

    monkeypatch.setattr(BucketSettings, "read_all", with_another)
    answer = room.attach("--apply")
    assert answer.code == 0
    assert [one["isDone"] for one in record(room)["added"]] == [True] * 7


def test_plain_buckets_without_a_prefix_are_served_too(moto_endpoint: str, aws_environment: None) -> None:
    room = Room(moto_endpoint, new_bucket(moto_endpoint, versioned=True), documents=0)
    answer = room.attach("--apply", url=f"s3://{room.bucket}")
    assert answer.code == 0
    assert "KeyPrefix" not in answer.json["deploy"]
    [derived] = [one for one in room.settings()["lifecycle"] if one["ID"].startswith("worm-derived")]
    assert derived["Filter"] == {"Tag": {"Key": "worm", "Value": "derived"}}
    [answers] = [one for one in room.settings()["lifecycle"] if one["ID"].startswith("worm-answers")]
    assert (answers["Filter"], answers["Expiration"]) == ({"Prefix": ".worm.api/idempotency/"}, {"Days": 2})
    assert room.detach("--apply", url=f"s3://{room.bucket}").code == 0
    assert room.settings()["lifecycle"] is None
