"""The demo's load: plain boto3 requests, as any S3 client would send them. Nothing here uses the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from worm.dev.sample.documents import Change, Workload

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

THREADS = 6
BULK_DELETE = 10

Tick = Callable[[str, int], None]
"""Called after every request, with the phase and the number of changes."""


def apply_workload(s3: S3Client, bucket: str, load: Workload, tick: Tick) -> None:
    """Uploads, then overwrites, then deletes. Changes of one key keep their order; those of different keys race."""
    _each_key(load.uploads, lambda change: _put(s3, bucket, change), lambda: tick("upload", 1))
    _each_key(load.overwrites, lambda change: _put(s3, bucket, change), lambda: tick("overwrite", 1))
    singly, at_once = load.deletes[BULK_DELETE:], load.deletes[:BULK_DELETE]
    _each_key(singly, lambda change: _delete(s3, bucket, change), lambda: tick("delete", 1))
    if at_once:
        s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": change.key} for change in at_once], "Quiet": True})
        tick("delete", len(at_once))


def _each_key(changes: Sequence[Change], send: Callable[[Change], None], done: Callable[[], None]) -> None:
    by_key: dict[str, list[Change]] = {}
    for change in changes:
        by_key.setdefault(change.key, []).append(change)

    def one_key(same_key: list[Change]) -> None:
        for change in same_key:
            send(change)
            done()

    with ThreadPoolExecutor(THREADS, thread_name_prefix="client") as pool:
        list(pool.map(one_key, by_key.values()))


def _put(s3: S3Client, bucket: str, change: Change) -> None:
    s3.put_object(Bucket=bucket, Key=change.key, Body=change.body or b"", ContentType="application/json")


def _delete(s3: S3Client, bucket: str, change: Change) -> None:
    s3.delete_object(Bucket=bucket, Key=change.key)
