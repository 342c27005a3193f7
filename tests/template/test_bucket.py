"""The document bucket: versioned, encrypted, private, reporting to EventBridge, and kept when the stack goes."""

from __future__ import annotations

from tests.template.sam_document import default, document, resources


def test_the_bucket_outlives_the_stack() -> None:
    bucket = document()["Resources"]["DocumentBucket"]
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_the_bucket_is_versioned_encrypted_private_and_reports_to_eventbridge() -> None:
    bucket = dict(resources("AWS::S3::Bucket")["DocumentBucket"])
    del bucket["LifecycleConfiguration"]
    assert bucket == {
        "BucketName": {"Fn::If": ["HasBucketName", {"Ref": "BucketName"}, {"Ref": "AWS::NoValue"}]},
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


def test_the_lifecycle_removes_change_sets_and_leftovers_and_never_a_current_document() -> None:
    rules = resources("AWS::S3::Bucket")["DocumentBucket"]["LifecycleConfiguration"]["Rules"]
    noncurrent = {
        "Id": "ExpireNoncurrentVersions",
        "Status": "Enabled",
        "NoncurrentVersionExpiration": {"NoncurrentDays": {"Ref": "NoncurrentVersionDays"}},
    }
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
            "Id": "ExpireProbes",
            "Status": "Enabled",
            "Prefix": ".worm.probe/",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        },
        {
            "Id": "AbortMultipartUploads",
            "Status": "Enabled",
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        },
        {"Id": "RemoveExpiredDeleteMarkers", "Status": "Enabled", "ExpiredObjectDeleteMarker": True},
        {"Fn::If": ["ExpireNoncurrentVersions", noncurrent, {"Ref": "AWS::NoValue"}]},
    ]


def test_versions_are_kept_longer_than_a_message_can_wait() -> None:
    """A version that vanished before capture read it would be a hole in the history."""
    retention_seconds = [queue["MessageRetentionPeriod"] for queue in resources("AWS::SQS::Queue").values()]
    assert default({"Ref": "NoncurrentVersionDays"}) * 86400 > 2 * max(retention_seconds)
