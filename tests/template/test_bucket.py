"""The document bucket: versioned, encrypted, private, reporting to EventBridge, and kept when the stack goes."""

from __future__ import annotations

from tests.template.sam_document import document, resources, stack

KEY = "arn:aws:kms:eu-central-1:123456789012:key/1"


def test_the_bucket_outlives_the_stack() -> None:
    bucket = document()["Resources"]["DocumentBucket"]
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_the_bucket_is_versioned_encrypted_private_and_reports_to_eventbridge() -> None:
    bucket = dict(resources("AWS::S3::Bucket")["DocumentBucket"])
    del bucket["LifecycleConfiguration"]
    assert bucket == {
        "VersioningConfiguration": {"Status": "Enabled"},
        "BucketEncryption": {
            "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
        },
        "PublicAccessBlockConfiguration": {
            "BlockPublicAcls": True,
            "BlockPublicPolicy": True,
            "IgnorePublicAcls": True,
            "RestrictPublicBuckets": True,
        },
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "NotificationConfiguration": {"EventBridgeConfiguration": {"EventBridgeEnabled": True}},
    }


def test_a_key_of_the_account_encrypts_the_bucket_where_one_is_given() -> None:
    bucket = resources("AWS::S3::Bucket", KmsKeyArn=KEY)["DocumentBucket"]
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule == {
        "BucketKeyEnabled": True,
        "ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY},
    }


def test_with_a_bucket_of_your_own_none_is_made_and_its_policy_is_left_alone() -> None:
    made = {one["Type"] for one in stack(ExistingBucketName="mine").values()}
    assert made & {"AWS::S3::Bucket", "AWS::S3::BucketPolicy"} == set()


def test_the_lifecycle_follows_the_prefix() -> None:
    rules = resources("AWS::S3::Bucket", KeyPrefix="data/")["DocumentBucket"]["LifecycleConfiguration"]["Rules"]
    assert {one["Prefix"] for one in rules if "Prefix" in one} == {
        "data/.worm.api/idempotency/",
        "data/.worm.changes/",
        "data/.worm.probe/",
        "data/db/",
    }


def test_the_lifecycle_removes_change_sets_and_leftovers_and_never_a_current_document() -> None:
    rules = resources("AWS::S3::Bucket")["DocumentBucket"]["LifecycleConfiguration"]["Rules"]
    assert rules == [
        {
            "Id": "ExpireChangeSets",
            "Status": "Enabled",
            "Prefix": ".worm.changes/",
            "ExpirationInDays": 7,
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "Id": "ExpireOldDerivedFiles",
            "Status": "Enabled",
            "TagFilters": [{"Key": "worm", "Value": "derived"}],
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "Id": "ExpireAnswers",
            "Status": "Enabled",
            "Prefix": ".worm.api/idempotency/",
            "ExpirationInDays": 2,
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "Id": "ExpireProbes",
            "Status": "Enabled",
            "Prefix": ".worm.probe/",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "Id": "ExpireOldDatabaseObjects",
            "Status": "Enabled",
            "Prefix": "db/",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 8},
        },
        {
            "Id": "AbortMultipartUploads",
            "Status": "Enabled",
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        },
        {"Id": "RemoveExpiredDeleteMarkers", "Status": "Enabled", "ExpiredObjectDeleteMarker": True},
        {
            "Id": "ExpireNoncurrentVersions",
            "Status": "Enabled",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 90},
        },
    ]


def test_versions_are_kept_longer_than_a_message_can_wait() -> None:
    """A version that vanished before capture read it would be a hole in the history."""
    retention_seconds = [queue["MessageRetentionPeriod"] for queue in resources("AWS::SQS::Queue").values()]
    rules = resources("AWS::S3::Bucket")["DocumentBucket"]["LifecycleConfiguration"]["Rules"]
    days = rules[-1]["NoncurrentVersionExpiration"]["NoncurrentDays"]
    assert days * 86400 > 2 * max(retention_seconds)
