"""Events, listings and queues of the moto endpoint, seen by real boto3 clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from worm.dev.aws import Aws, existing_endpoint, start_moto
from worm.dev.faults import FaultPolicy
from worm.errors import Unavailable
from worm.store.s3 import S3Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

pytestmark = pytest.mark.slow

BUCKET = "events-here"
PLAIN = "no-versions"
SILENT = "no-events"


class Watched:
    """An endpoint whose S3 events all land in one queue."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        self.s3: S3Client = aws.s3()
        self.sqs = aws.sqs()
        self.queue = self.sqs.create_queue(QueueName="all")["QueueUrl"]
        events = aws.events()
        pattern = {"source": ["aws.s3"], "detail": {"object": {"key": [{"anything-but": {"wildcard": ["*/.*"]}}]}}}
        events.put_rule(Name="all", EventPattern=json.dumps(pattern))
        arn = "arn:aws:sqs:us-east-1:000000000000:all"
        events.put_targets(Rule="all", Targets=[{"Id": "all", "Arn": arn}])
        for name in (BUCKET, PLAIN, SILENT):
            self.s3.create_bucket(Bucket=name)
        for name in (BUCKET, PLAIN):
            self.s3.put_bucket_notification_configuration(
                Bucket=name, NotificationConfiguration={"EventBridgeConfiguration": {}}
            )
        self.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        found: list[dict[str, Any]] = []
        while messages := self.sqs.receive_message(QueueUrl=self.queue, MaxNumberOfMessages=10).get("Messages", []):
            for message in messages:
                found.append(json.loads(message["Body"]))
                self.sqs.delete_message(QueueUrl=self.queue, ReceiptHandle=message["ReceiptHandle"])
        return found

    def brief(self) -> list[tuple[object, ...]]:
        """(detail type, key, reason, deletion type, version id) of each event since the last call."""
        return [
            (
                event["detail-type"],
                event["detail"]["object"]["key"],
                event["detail"]["reason"],
                event["detail"].get("deletion-type"),
                event["detail"]["object"].get("version-id"),
            )
            for event in self.events()
        ]


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    aws = start_moto(tmp_path_factory.mktemp("moto"), "us-east-1")
    try:
        yield Watched(aws)
    finally:
        aws.stop()


def test_a_put_is_one_event_with_everything_aws_says(moto: Watched) -> None:
    key = "org/cust omers/ä+b%20/profile.json"
    answer = moto.s3.put_object(Bucket=BUCKET, Key=key, Body=b'{"a":1}')
    (event,) = moto.events()
    detail = event["detail"]
    sequencer, request_id = detail["object"].pop("sequencer"), detail.pop("request-id")
    assert int(sequencer, 16) > 0
    assert len(request_id) == 16
    assert detail == {
        "version": "0",
        "bucket": {"name": BUCKET},
        "object": {"key": key, "size": 7, "etag": answer["ETag"].strip('"'), "version-id": answer["VersionId"]},
        "requester": "000000000000",
        "source-ip-address": "127.0.0.1",
        "reason": "PutObject",
    }
    assert (event["detail-type"], event["source"]) == ("Object Created", "aws.s3")
    assert (event["account"], event["region"]) == ("000000000000", "us-east-1")
    assert event["resources"] == [f"arn:aws:s3:::{BUCKET}"]


def test_sequencers_of_one_key_grow_with_its_writes(moto: Watched) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: moto.s3.put_object(Bucket=BUCKET, Key="same", Body=b"%d" % n), range(20)))
    events = sorted(moto.events(), key=lambda event: str(event["detail"]["object"]["sequencer"]))
    listed = moto.s3.list_object_versions(Bucket=BUCKET, Prefix="same")["Versions"]
    newest_first = [event["detail"]["object"]["version-id"] for event in reversed(events)]
    assert newest_first == [version["VersionId"] for version in listed]
    assert [version["IsLatest"] for version in listed] == [True] + [False] * 19


def test_deletes_in_a_versioned_bucket_are_events(moto: Watched) -> None:
    first = moto.s3.put_object(Bucket=BUCKET, Key="gone", Body=b"1")["VersionId"]
    moto.events()
    marker = moto.s3.delete_object(Bucket=BUCKET, Key="gone")["VersionId"]
    (event,) = moto.events()
    assert event["detail"]["object"].pop("sequencer")
    assert event["detail"]["object"] == {
        "key": "gone",
        "etag": "d41d8cd98f00b204e9800998ecf8427e",
        "version-id": marker,
    }
    moto.s3.delete_object(Bucket=BUCKET, Key="gone", VersionId=first)
    moto.s3.delete_object(Bucket=BUCKET, Key="gone", VersionId=first)
    assert moto.brief() == [("Object Deleted", "gone", "DeleteObject", "Permanently Deleted", first)]


def test_a_multi_delete_is_one_event_per_key(moto: Watched) -> None:
    versions = {key: moto.s3.put_object(Bucket=BUCKET, Key=key, Body=b"1")["VersionId"] for key in ("m 1", "m&2", "m3")}
    moto.events()
    moto.s3.delete_objects(
        Bucket=BUCKET,
        Delete={"Objects": [{"Key": "m 1"}, {"Key": "m&2"}, {"Key": "m3", "VersionId": versions["m3"]}]},
    )
    assert [event[:4] for event in moto.brief()] == [
        ("Object Deleted", "m 1", "DeleteObject", "Delete Marker Created"),
        ("Object Deleted", "m&2", "DeleteObject", "Delete Marker Created"),
        ("Object Deleted", "m3", "DeleteObject", "Permanently Deleted"),
    ]


def test_each_version_that_a_multi_delete_removes_is_an_event_beside_the_marker_that_it_makes(moto: Watched) -> None:
    """Removing a delete marker is the usual undelete; without its event the table lacks the row."""
    first = moto.s3.put_object(Bucket=BUCKET, Key="undeleted", Body=b"1")["VersionId"]
    marker = moto.s3.delete_object(Bucket=BUCKET, Key="undeleted")["VersionId"]
    moto.events()
    moto.s3.delete_object(Bucket=BUCKET, Key="undeleted", VersionId=marker)
    assert moto.brief() == [("Object Deleted", "undeleted", "DeleteObject", "Permanently Deleted", marker)]
    objects: list[ObjectIdentifierTypeDef] = [{"Key": "undeleted"}, {"Key": "undeleted", "VersionId": first}]
    moto.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
    assert sorted(str(event[3:]) for event in moto.brief())[1] == str(("Permanently Deleted", first))


def test_a_multipart_upload_is_one_event(moto: Watched) -> None:
    upload = moto.s3.create_multipart_upload(Bucket=BUCKET, Key="big")["UploadId"]
    part = moto.s3.upload_part(Bucket=BUCKET, Key="big", UploadId=upload, PartNumber=1, Body=b"x" * 100)
    answer = moto.s3.complete_multipart_upload(
        Bucket=BUCKET,
        Key="big",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]},
    )
    assert moto.brief() == [("Object Created", "big", "CompleteMultipartUpload", None, answer["VersionId"])]


def test_a_copy_is_one_event_with_its_size(moto: Watched) -> None:
    moto.s3.put_object(Bucket=BUCKET, Key="source", Body=b"12345")
    moto.events()
    answer = moto.s3.copy_object(Bucket=BUCKET, Key="target", CopySource={"Bucket": BUCKET, "Key": "source"})
    (event,) = moto.events()
    about = event["detail"]["object"]
    assert (about["key"], about["size"], about["version-id"]) == ("target", 5, answer["VersionId"])
    assert event["detail"]["reason"] == "CopyObject"


def test_what_changes_no_version_is_no_event(moto: Watched) -> None:
    """A refused conditional write that reported itself would make a worker look for a version that is not there."""
    moto.s3.put_object(Bucket=BUCKET, Key="kept", Body=b"1")
    moto.events()
    with pytest.raises(ClientError, match="PreconditionFailed"):
        moto.s3.put_object(Bucket=BUCKET, Key="kept", Body=b"2", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        moto.s3.put_object(Bucket=BUCKET, Key="kept", Body=b"2", IfMatch='"0"')
    moto.s3.put_object_tagging(Bucket=BUCKET, Key="kept", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    moto.s3.put_object_acl(Bucket=BUCKET, Key="kept", ACL="private")
    moto.s3.get_object(Bucket=BUCKET, Key="kept")
    moto.s3.put_object(Bucket=SILENT, Key="kept", Body=b"1")
    assert moto.brief() == []


def test_the_pattern_of_the_rule_decides(moto: Watched) -> None:
    for key in ("a/.system", "a/.oplog/x/0001.json", "a/document"):
        moto.s3.put_object(Bucket=BUCKET, Key=key, Body=b"1")
    assert [event[1] for event in moto.brief()] == ["a/document"]


def test_a_bucket_without_versions_reports_one_event_per_change(moto: Watched) -> None:
    moto.s3.put_object(Bucket=PLAIN, Key="a", Body=b"1")
    moto.s3.put_object(Bucket=PLAIN, Key="a", Body=b"2")
    moto.s3.delete_object(Bucket=PLAIN, Key="a")
    moto.s3.delete_object(Bucket=PLAIN, Key="a")
    assert moto.brief() == [
        ("Object Created", "a", "PutObject", None, None),
        ("Object Created", "a", "PutObject", None, None),
        ("Object Deleted", "a", "DeleteObject", "Permanently Deleted", None),
    ]


def test_version_listings_page_through_everything_once(moto: Watched) -> None:
    expected = []
    for key in ("page/a", "page/b", "page/c"):
        ids = [moto.s3.put_object(Bucket=BUCKET, Key=key, Body=b"%d" % n)["VersionId"] for n in range(3)]
        expected += [(key, version_id) for version_id in reversed(ids)]
    marker = moto.s3.delete_object(Bucket=BUCKET, Key="page/b")["VersionId"]
    expected.insert(3, ("page/b", marker))
    pages = moto.s3.get_paginator("list_object_versions").paginate(
        Bucket=BUCKET, Prefix="page/", PaginationConfig={"PageSize": 2}
    )
    listed = [
        (row["Key"], row["VersionId"])
        for page in pages
        for row in [*page.get("DeleteMarkers", []), *page.get("Versions", [])]
    ]
    assert sorted(listed) == sorted(expected)
    only = moto.s3.list_object_versions(Bucket=BUCKET, KeyMarker="page/b", Prefix="page/")
    assert {row["Key"] for row in only["Versions"]} == {"page/c"}
    moto.events()


@pytest.mark.parametrize("key", ["odd/x\x01y/profile.json", "odd/q\x1f", "odd/ä +%2F b"])
def test_version_listings_hold_keys_that_xml_cannot(moto: Watched, key: str) -> None:
    """One upload under such a key ended every `verify` and sweep: the listing was an error of the server."""
    version_id = moto.s3.put_object(Bucket=BUCKET, Key=key, Body=b"{}")["VersionId"]
    listed = moto.s3.list_object_versions(Bucket=BUCKET, Prefix="odd/", EncodingType="url")
    found = [unquote_plus(row["Key"]) for row in listed["Versions"] if row["VersionId"] == version_id]
    assert found == [key]
    moto.events()


def test_versions_of_a_bucket_that_is_not_there_are_an_error_of_s3(moto: Watched) -> None:
    """The connection was closed without an answer."""
    with pytest.raises(moto.s3.exceptions.NoSuchBucket):
        moto.s3.list_object_versions(Bucket="no-such-bucket")


def test_no_message_is_lost_while_others_are_deleted(moto: Watched) -> None:
    """moto's own queue loses a message that is sent while another one is deleted."""
    queue = moto.sqs.create_queue(QueueName="race")["QueueUrl"]
    got: set[str] = set()

    def send(start: int) -> None:
        for n in range(start, start + 40):
            moto.sqs.send_message(QueueUrl=queue, MessageBody=str(n))

    with ThreadPoolExecutor(3) as pool:
        sending = [pool.submit(send, start) for start in (0, 100, 200)]
        while len(got) < 120:
            answer = moto.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            messages = answer.get("Messages", [])
            assert messages or not all(future.done() for future in sending)
            for message in messages:
                got.add(message["Body"])
                moto.sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert got == {str(n) for start in (0, 100, 200) for n in range(start, start + 40)}


def test_requests_are_counted_by_role_and_kind(moto: Watched) -> None:
    before = moto.aws.requests_by_role().get("capture", {})
    assert before == {}
    config = Config(user_agent_extra="worm/0.1 role/capture")
    session = moto.aws._session()
    s3 = session.client("s3", endpoint_url=moto.aws.endpoint_url, config=config)
    s3.put_object(Bucket=SILENT, Key="n", Body=b"1")
    s3.get_object(Bucket=SILENT, Key="n")
    s3.head_object(Bucket=SILENT, Key="n")
    s3.list_objects_v2(Bucket=SILENT)
    s3.list_object_versions(Bucket=SILENT)
    s3.get_bucket_versioning(Bucket=SILENT)
    s3.delete_object(Bucket=SILENT, Key="n")
    assert moto.aws.requests_by_role()["capture"] == {
        "DELETE": 1,
        "GET": 1,
        "HEAD": 1,
        "LIST": 1,
        "PUT": 1,
        "VERSIONS": 1,
    }


def test_a_fault_policy_repeats_drops_and_replays_by_its_seed(moto: Watched) -> None:
    def run(name: str) -> list[int]:
        moto.aws.set_faults(FaultPolicy(copies=3, drop=0.3, seed=7))
        for n in range(20):
            moto.s3.put_object(Bucket=BUCKET, Key=f"{name}/{n}", Body=b"1")
        keys = [str(event[1]).removeprefix(f"{name}/") for event in moto.brief()]
        return [keys.count(str(n)) for n in range(20)]

    first, second = run("one"), run("two")
    moto.aws.set_faults(FaultPolicy())
    assert set(first) == {0, 3}
    assert first == second


def test_a_delay_shuffles_and_pending_events_are_counted(moto: Watched) -> None:
    moto.aws.set_faults(FaultPolicy(delay_seconds=0.6, seed=3))
    for n in range(15):
        moto.s3.put_object(Bucket=BUCKET, Key=f"late/{n:02d}", Body=b"1")
    seen: list[object] = []
    while moto.aws.deliveries()["pending"]:
        seen += [event[1] for event in moto.brief()]
    moto.aws.set_faults(FaultPolicy())
    seen += [event[1] for event in moto.brief()]
    assert sorted(map(str, seen)) == [f"late/{n:02d}" for n in range(15)]
    assert seen != sorted(map(str, seen))


def test_faults_need_the_moto_endpoint(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="delivery faults need the moto endpoint"):
        existing_endpoint("http://127.0.0.1:9", "us-east-1").set_faults(FaultPolicy())


def test_versions_and_markers_of_one_second_are_listed_in_the_order_of_writing(
    moto: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History comes from this order; two uploads, a delete and two more within a second must not be shuffled."""
    for name, value in moto.aws.environment().items():
        monkeypatch.setenv(name, value)
    written = []
    for action in ["put", "put", "delete", "put", "delete", "put", "put"]:
        if action == "put":
            written.append(moto.s3.put_object(Bucket=BUCKET, Key="order/a b+c.json", Body=b"{}")["VersionId"])
        else:
            written.append(moto.s3.delete_object(Bucket=BUCKET, Key="order/a b+c.json")["VersionId"])
    store = S3Store(BUCKET, endpoint_url=moto.aws.endpoint_url)
    assert [version.version_id for version in store.versions("order/a b+c.json")] == written[::-1]
    assert [version.is_delete_marker for version in store.list_versions("order/")] == [
        *(False, False, True, False, True, False, False)
    ]
