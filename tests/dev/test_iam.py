"""Which permissions AWS looks for, by request: what its guides say, which no emulator checks."""

from __future__ import annotations

import pytest

from worm.dev.iam import Call, Recording, questions, role_of

KEY = "arn:aws:kms:eu-central-1:111122223333:key/k"
OBJECT = "/b/org/a%20b/profile.json"


def _asked(
    method: str, path: str, headers: dict[str, str] | None = None, status: int = 200, **options: str
) -> list[str]:
    (call,) = Call.of_s3("capture", method, path, headers or {}, status=status)
    found = questions(call, kms_key=options.get("kms_key"))
    return [f"{one.action} {one.resource.removeprefix('arn:aws:s3:::')}" for one in found]


@pytest.mark.parametrize(
    ("method", "path", "headers", "actions"),
    [
        ("GET", OBJECT, {}, ["GetObject"]),
        ("HEAD", OBJECT, {}, ["GetObject"]),
        ("GET", OBJECT, {"If-None-Match": '"e"'}, ["GetObject"]),
        ("GET", OBJECT + "?versionId=1", {}, ["GetObjectVersion"]),
        ("HEAD", OBJECT + "?versionId=1", {}, ["GetObjectVersion"]),
        ("GET", OBJECT + "?tagging", {}, ["GetObjectTagging"]),
        ("PUT", OBJECT, {}, ["PutObject"]),
        ("PUT", OBJECT, {"If-None-Match": "*"}, ["PutObject"]),
        ("PUT", OBJECT, {"If-Match": '"e"'}, ["PutObject", "GetObject"]),
        ("PUT", OBJECT, {"x-amz-tagging": "worm=derived"}, ["PutObject", "PutObjectTagging"]),
        ("PUT", OBJECT + "?tagging", {}, ["PutObjectTagging"]),
        ("POST", OBJECT + "?uploads", {}, ["PutObject"]),
        ("PUT", OBJECT + "?partNumber=1&uploadId=u", {}, ["PutObject"]),
        ("GET", OBJECT + "?uploadId=u", {}, ["ListMultipartUploadParts"]),
        ("DELETE", OBJECT + "?uploadId=u", {}, ["AbortMultipartUpload"]),
        ("DELETE", OBJECT, {}, ["DeleteObject"]),
        ("DELETE", OBJECT, {"If-Match": "*"}, ["DeleteObject"]),
        ("DELETE", OBJECT, {"If-Match": '"e"'}, ["DeleteObject", "GetObject"]),
        ("DELETE", OBJECT + "?versionId=1", {}, ["DeleteObjectVersion"]),
    ],
)
def test_what_a_request_for_an_object_needs(
    method: str, path: str, headers: dict[str, str], actions: list[str]
) -> None:
    assert _asked(method, path, headers) == [f"s3:{one} b/org/a b/profile.json" for one in actions]


def test_a_missing_key_is_told_only_to_those_who_may_list() -> None:
    """Without the permission S3 says 403, and no unclear write could ever be resolved."""
    for method in ("GET", "HEAD"):
        assert _asked(method, "/b/k", status=404) == ["s3:GetObject b/k", "s3:ListBucket b"]
    assert _asked("PUT", "/b/k", {"If-Match": '"e"'}, 404) == [
        "s3:PutObject b/k",
        "s3:GetObject b/k",
        "s3:ListBucket b",
    ]


@pytest.mark.parametrize(
    ("method", "path", "headers", "actions"),
    [
        ("PUT", "/b/k", {}, ["GenerateDataKey"]),
        ("PUT", "/b/k", {"x-amz-copy-source": "/b/s"}, ["GenerateDataKey", "Decrypt"]),
        ("POST", "/b/k?uploadId=u", {}, ["GenerateDataKey", "Decrypt"]),
        ("GET", "/b/k", {}, ["Decrypt"]),
        ("GET", "/b/k?versionId=1", {}, ["Decrypt"]),
        ("HEAD", "/b/k", {}, []),
        ("DELETE", "/b/k", {}, []),
        ("PUT", "/b/k?tagging", {}, []),
        ("GET", "/b?list-type=2", {}, []),
    ],
)
def test_a_bucket_with_a_key_of_kms_needs_the_key_for_the_bytes_of_an_object(
    method: str, path: str, headers: dict[str, str], actions: list[str]
) -> None:
    asked = [one for one in _asked(method, path, headers, kms_key=KEY) if one.startswith("kms:")]
    assert asked == [f"kms:{one} {KEY}" for one in actions]
    assert [one for one in _asked(method, path, headers) if one.startswith("kms:")] == []


def test_a_missing_object_has_no_key() -> None:
    assert _asked("GET", "/b/k", status=404, kms_key=KEY) == ["s3:GetObject b/k", "s3:ListBucket b"]


def test_a_copy_also_reads_its_source() -> None:
    source = {"x-amz-copy-source": "/other/a%20b?versionId=7"}
    assert _asked("PUT", "/b/k", source) == ["s3:PutObject b/k", "s3:GetObjectVersion other/a b"]
    assert _asked("PUT", "/b/k", {"x-amz-copy-source": "b/s"})[1] == "s3:GetObject b/s"


def test_several_objects_deleted_at_once_are_asked_for_one_by_one() -> None:
    body = (
        b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>a</Key></Object>'
        b"<Object><Key>b/c</Key><VersionId>1</VersionId></Object>"
        b"<Object><Key>d</Key><ETag>e</ETag></Object></Delete>"
    )
    calls = Call.of_s3("purge", "POST", "/bucket?delete", {}, body)
    asked = [(one.action, one.resource.rpartition(":::")[2]) for call in calls for one in questions(call)]
    assert asked == [
        ("s3:DeleteObject", "bucket/a"),
        ("s3:DeleteObjectVersion", "bucket/b/c"),
        ("s3:DeleteObject", "bucket/d"),
        ("s3:GetObject", "bucket/d"),
    ]


@pytest.mark.parametrize(
    ("path", "action", "prefix"),
    [
        ("/b?list-type=2&prefix=org%2F", "s3:ListBucket", "org/"),
        ("/b?list-type=2&start-after=x&max-keys=2", "s3:ListBucket", None),
        ("/b?versions&prefix=org%2F", "s3:ListBucketVersions", "org/"),
    ],
)
def test_a_listing_tells_its_prefix_to_conditions(path: str, action: str, prefix: str | None) -> None:
    (call,) = Call.of_s3("capture", "GET", path, {})
    (asked,) = questions(call)
    assert (asked.action, asked.resource, asked.context.get("s3:prefix")) == (action, "arn:aws:s3:::b", prefix)


def test_only_a_write_tells_its_conditions() -> None:
    (put,) = Call.of_s3("capture", "PUT", "/b/k", {"If-None-Match": "*"})
    (get,) = Call.of_s3("capture", "GET", "/b/k", {"If-None-Match": '"e"'})
    assert questions(put)[0].context["s3:if-none-match"] == "*"
    assert "s3:if-none-match" not in questions(get)[0].context


@pytest.mark.parametrize("operation", ["SendMessage", "SendMessageBatch"])
def test_a_request_to_a_queue_is_an_action_on_the_queue(operation: str) -> None:
    call = Call.of_sqs("capture", operation, b'{"QueueUrl": "https://sqs.us-east-1.amazonaws.com/0/worm-capture-dlq"}')
    (asked,) = questions(call)
    assert asked.action == "sqs:SendMessage"
    assert asked.resource == "arn:aws:sqs:us-east-1:000000000000:worm-capture-dlq"


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/b"), ("GET", "/b?policy"), ("GET", "/b/k?acl"), ("PATCH", "/b/k"), ("PUT", "/b/k?acl")],
)
def test_what_nobody_has_described_is_an_error(method: str, path: str) -> None:
    with pytest.raises(ValueError, match="no rule says which permissions"):
        _asked(method, path)


def test_another_service_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rule says which permissions"):
        questions(Call("capture", "dynamodb", "POST", "/"))


def test_a_role_is_what_the_client_says_else_whose_credentials_it_has() -> None:
    signed = "AWS4-HMAC-SHA256 Credential=capture/20261117/us-east-1/sqs/aws4_request, SignedHeaders=host"
    assert role_of("worm/0.1.0 role/tables", signed) == "tables"
    assert role_of("Boto3/1.4", signed) == "capture"
    assert role_of("curl", "") == ""


def test_a_recording_keeps_each_call_of_its_roles_once_and_never_drops_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    assert not recording.wants("capture")
    recording.start(["capture"])
    assert [recording.wants(one) for one in ("capture", "tables", "")] == [True, False, False]
    recording.add([Call("capture", "s3", "GET", "b/k")] * 3)
    assert len(recording.snapshot()) == 1
    recording.start(["tables"])
    assert recording.snapshot() == []
    monkeypatch.setattr("worm.dev.iam.CALLS_MAX", 1)
    with pytest.raises(OverflowError):
        recording.add([Call("tables", "s3", "GET", f"b/{number}") for number in range(2)])
