"""Which kinds of objects of a bucket have the tag of derived files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.collections.layout import StorageResolver
from worm.formats import Schema

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

DERIVED = [{"Key": "worm", "Value": "derived"}]


def of_each_kind(s3: S3Client, bucket: str, prefix: str, schema: Schema) -> tuple[set[str], set[str]]:
    """The kinds of keys of which all objects have the tag, and of which none has it. Every kind is one of both."""
    resolver = StorageResolver(schema)
    found: dict[str, set[bool]] = {}
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for one in page.get("Contents", []):
            key = one["Key"].removeprefix(prefix)
            kind = "sweep" if key.startswith(".worm.sweep/") else resolver.parse(key).kind.value
            tags = s3.get_object_tagging(Bucket=bucket, Key=one["Key"])["TagSet"]
            found.setdefault(kind, set()).add(tags == DERIVED)
            assert tags in ([], DERIVED), key
    assert all(len(one) == 1 for one in found.values()), found
    tagged = {kind for kind, one in found.items() if one == {True}}
    return tagged, found.keys() - tagged
