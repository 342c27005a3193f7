"""Real S3 clients on the embedded AWS. After each action everything derived is right once the queues are quiet, without
the sweep: nothing that a plain client does goes unnoticed. `sweep()` then changes nothing, and `worm verify` agrees.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import obstore
import pytest

from tests.outside.world import Outside

if TYPE_CHECKING:
    from mypy_boto3_s3.literals import BucketVersioningStatusType
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, CopySourceTypeDef, ObjectIdentifierTypeDef

pytestmark = [
    pytest.mark.slow,
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("outside"),
]


def profile(entity_id: str) -> str:
    return f"org/customers/{entity_id}/profile.json"


def customers(prefix: str, count: int, **values: object) -> dict[str, object]:
    """Documents by their path inside the collection's folder."""
    return {f"{prefix}{n}/profile.json": {"name": f"{prefix}{n}", "status": "new", **values} for n in range(count)}


# awscli


def test_aws_cp_mv_and_rm(world: Outside) -> None:
    local = world.folder("aws-cp", customers("aws-cp", 3))
    world.aws("s3", "cp", str(local), "s3://org/customers/", "--recursive", "--quiet")
    world.settle()
    world.aws("s3", "cp", "-", f"s3://{profile('aws-cp0')}", stdin='{"name": "piped", "tags": ["a", "b"]}')
    world.aws("s3", "cp", f"s3://{profile('aws-cp0')}", f"s3://{profile('aws-cp9')}")
    world.aws("s3", "mv", f"s3://{profile('aws-cp1')}", f"s3://{profile('aws-cp8')}")
    world.settle()
    assert [world.history(f"customers/aws-cp{n}") for n in (0, 1, 8, 9)] == [
        ["create", "update"],
        ["create", "delete"],
        ["create"],
        ["create"],
    ]
    world.aws("s3", "rm", "s3://org/customers/", "--recursive", "--exclude", "*", "--include", "aws-cp*", "--quiet")
    world.settle()
    assert [name for name in world.rows("customers") if name.startswith("aws-cp")] == []
    world.sweep()


def test_aws_sync_with_deletions(world: Outside) -> None:
    """`--delete` takes everything away that the local folder lacks: files of the table as well."""
    local = world.folder("aws-sync", customers("aws-sync", 4))
    only = ("--exclude", "*", "--include", "aws-sync*", "--quiet")
    world.aws("s3", "sync", str(local), "s3://org/customers/", *only)
    world.settle()
    (local / "aws-sync1" / "profile.json").unlink()
    world.folder("aws-sync", {"aws-sync2/profile.json": {"name": "longer than before"}})
    world.aws("s3", "sync", str(local), "s3://org/customers/", "--delete", *only)
    world.settle()
    assert [world.history(f"customers/aws-sync{n}") for n in range(4)] == [
        ["create"],
        ["create", "delete"],
        ["create", "update"],
        ["create"],
    ]
    world.sweep()


def test_aws_changes_of_metadata_and_storage_class_are_versions_with_equal_documents(world: Outside) -> None:
    key = profile("aws-meta")
    world.put(key, {"name": "same"})
    replace = ("--metadata-directive", "REPLACE", "--content-type", "application/json")
    world.aws("s3", "cp", f"s3://{key}", f"s3://{key}", *replace, "--metadata", "colour=red", "--quiet")
    world.settle()
    world.aws("s3", "cp", f"s3://{key}", f"s3://{key}", "--storage-class", "STANDARD_IA", "--quiet")
    world.aws(
        "s3api", "put-object-tagging", "--bucket", world.bucket, "--key", key, "--tagging", "TagSet=[{Key=a,Value=b}]"
    )
    world.settle()
    assert world.history("customers/aws-meta") == ["create", "update", "update"]
    assert len(world.versions(key)) == 3
    world.sweep()


# rclone


def test_rclone_copy_moveto_and_sync(world: Outside) -> None:
    local = world.folder("rc", customers("rc", 3))
    world.rclone("copy", str(local), "r:org/customers")
    world.settle()
    world.rclone("moveto", f"r:{profile('rc0')}", f"r:{profile('rc7')}")
    world.rclone("copyto", f"r:{profile('rc1')}", f"r:{profile('rc6')}")
    world.rclone("touch", f"r:{profile('rc1')}")
    world.settle()
    assert world.history("customers/rc0") == ["create", "delete"]
    assert world.history("customers/rc7") == ["create"]
    world.folder("rc", {"rc2/profile.json": {"name": "changed by sync"}})
    world.rclone("sync", str(local), "r:org/customers", "--include", "rc*/**")
    world.settle()
    assert world.history("customers/rc7") == ["create", "delete"]
    assert world.history("customers/rc0") == ["create", "delete", "create"]
    world.sweep()


def test_rclone_rename_of_a_folder(world: Outside) -> None:
    """A renamed folder takes the files of its table with it."""
    for number in range(6):
        world.put(f"org/items/rc-move{number}/data.json", {"name": f"i{number}", "kind": "moved"})
    world.settle()
    world.rclone("moveto", "r:org/items", "r:org/things")
    world.settle(tables_complete=False)
    world.sweep()
    world.rclone("moveto", "r:org/things", "r:org/items", "--exclude", ".worm*", "--exclude", ".worm*/**")
    world.settle()
    assert world.history("items/rc-move0") == ["create", "delete", "create"]
    world.sweep()


def test_rclone_purge_and_cleanup_of_hidden_versions(world: Outside) -> None:
    local = world.folder("purged", {"data.json": {"name": "p", "kind": "purged"}})
    for number in range(2):
        world.rclone("copy", str(local), f"r:org/items/rc-purge{number}")
    world.settle()
    world.rclone("purge", "r:org/items/rc-purge0")
    world.settle()
    assert world.history("items/rc-purge0") == ["create", "delete"]
    world.rclone("delete", "r:org/items/rc-purge1")
    world.settle()
    world.rclone("backend", "cleanup-hidden", "r:org/items/rc-purge1")
    world.settle()
    assert world.history("items/rc-purge1") == ["create", "delete"]
    world.sweep()


# s3cmd


def test_s3cmd_put_cp_mv_modify_sync_and_del(world: Outside) -> None:
    local = world.folder("cmd", customers("cmd", 3))
    world.s3cmd("put", "--recursive", f"{local}/", "s3://org/customers/")
    world.settle()
    world.s3cmd("cp", f"s3://{profile('cmd0')}", f"s3://{profile('cmd5')}")
    world.s3cmd("mv", f"s3://{profile('cmd1')}", f"s3://{profile('cmd4')}")
    world.s3cmd("modify", "--add-header=x-amz-meta-colour:red", f"s3://{profile('cmd0')}")
    world.settle()
    assert [world.history(f"customers/cmd{n}") for n in (0, 1, 4, 5)] == [
        ["create", "update"],
        ["create", "delete"],
        ["create"],
        ["create"],
    ]
    world.s3cmd("sync", "--delete-removed", "--exclude=*", "--include=cmd*", f"{local}/", "s3://org/customers/")
    world.settle()
    world.s3cmd("del", "--recursive", "--force", f"s3://{profile('cmd2').removesuffix('profile.json')}")
    world.settle()
    assert world.history("customers/cmd2") == ["create", "delete"]
    world.sweep()


# s3fs and minio


def test_s3fs_pipe_cp_mv_touch_and_rm(world: Outside) -> None:
    documents = {profile(f"fs{n}"): json.dumps({"name": f"fs{n}", "score": n}) for n in range(3)}
    world.drive(("s3fs", "pipe", [documents]))
    world.settle()
    world.drive(
        ("s3fs", "cp", [profile("fs0"), profile("fs7")]),
        ("s3fs", "mv", [profile("fs1"), profile("fs8")]),
        ("s3fs", "cp", ["org/customers/fs2/", "org/customers/fs9/"]),
        ("s3fs", "rm", ["org/customers/fs2"]),
    )
    world.settle()
    assert [world.history(f"customers/fs{n}") for n in (1, 2, 8, 9)] == [
        ["create", "delete"],
        ["create", "delete"],
        ["create"],
        ["create"],
    ]
    world.drive(("s3fs", "touch", [profile("fs0")]), ("s3fs", "rm", ["org/customers/fs8"]))
    world.settle(dead_letters=[profile("fs0")])
    assert world.history("customers/fs0") == ["create"], "0 bytes are no document: the last valid one counts"
    world.drive(("s3fs", "pipe", [{profile("fs0"): '{"name": "again"}'}]))
    world.settle(dead_letters=[profile("fs0")])
    assert world.environment.redrive("capture") == 1
    world.settle()
    assert world.history("customers/fs0") == ["create", "update"]
    world.sweep()


def test_minio_copies_batch_deletes_and_removed_versions(world: Outside) -> None:
    keys = [profile(f"mi{n}") for n in range(4)]
    world.drive(*(("minio", "put", [key, json.dumps({"name": key, "email": key})]) for key in keys))
    world.settle()
    world.drive(
        ("minio", "copy", [keys[0], keys[1]]),
        ("minio", "retag", [keys[2], {"colour": "red"}]),
        ("minio", "compose", [[keys[0]], keys[3]]),
    )
    world.settle()
    assert world.history("customers/mi1") == ["create", "update"]
    world.drive(("minio", "remove_many", [[[key] for key in keys]]))
    world.settle()
    assert [world.history(f"customers/mi{n}")[-1] for n in range(4)] == ["delete"] * 4
    newest = world.versions(keys[0])[-1]
    assert newest.is_marker
    world.drive(("minio", "remove", [keys[0], newest.id]))
    world.settle()
    assert world.history("customers/mi0") == ["create", "delete", "restore"]
    world.sweep()


# Plain requests: boto3 and obstore


def test_uploads_by_parts_and_by_obstore(world: Outside) -> None:
    large = {"name": "large", "text": "x" * (11 * 2**19)}
    key, bucket = profile("parts"), world.bucket
    body = json.dumps(large).encode()
    upload = world.s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    pieces = [body[: 5 * 2**20], body[5 * 2**20 :]]
    parts: list[CompletedPartTypeDef] = [
        {
            "PartNumber": number,
            "ETag": world.s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=piece)[
                "ETag"
            ],
        }
        for number, piece in enumerate(pieces, start=1)
    ]
    world.put(key, {"name": "small, while the parts are on their way"})
    world.s3.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
    given_up = world.s3.create_multipart_upload(Bucket=bucket, Key=profile("given-up"))["UploadId"]
    world.s3.abort_multipart_upload(Bucket=bucket, Key=profile("given-up"), UploadId=given_up)
    store = obstore.store.S3Store(
        bucket,
        endpoint=world.environment.endpoint_url,
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",
        client_options={"allow_http": True},
    )
    store.put(profile("ob0"), b'{"name": "ob"}')
    store.copy(profile("ob0"), profile("ob1"))
    store.rename(profile("ob0"), profile("ob2"))
    world.settle()
    assert world.history("customers/parts") == ["create", "update"]
    assert world.history("customers/given-up") == []
    assert [world.history(f"customers/ob{n}") for n in range(3)] == [["create", "delete"], ["create"], ["create"]]
    store.delete([profile("ob1"), profile("ob2")])
    world.settle()
    world.delete(key)
    world.settle()
    world.sweep()


def test_copies_onto_itself_and_between_documents(world: Outside) -> None:
    first, second = profile("copy-1"), profile("copy-2")
    old = world.put(first, {"name": "one", "email": "one@x"})
    world.put(first, {"name": "two"})
    world.put(second, {"id": "copy-2", "name": "other"})
    world.settle()
    source: CopySourceTypeDef = {"Bucket": world.bucket, "Key": first}
    world.s3.copy_object(Bucket=world.bucket, Key=first, CopySource={**source, "VersionId": old})
    world.s3.copy_object(Bucket=world.bucket, Key=second, CopySource=source)
    world.settle()
    assert world.history("customers/copy-1") == ["create", "update", "update"]
    world.s3.copy_object(Bucket=world.bucket, Key=profile("copy-3"), CopySource={"Bucket": world.bucket, "Key": second})
    world.put(second, {"id": "copy-2", "name": "named"})
    world.settle()
    world.s3.copy_object(Bucket=world.bucket, Key=profile("copy-3"), CopySource={"Bucket": world.bucket, "Key": second})
    world.settle(dead_letters=[profile("copy-3")])
    assert world.history("customers/copy-3") == ["create"], "its field id names another document"
    world.delete(profile("copy-3"))
    world.settle(dead_letters=[profile("copy-3")])
    assert world.environment.redrive("capture") == 1
    world.settle()
    world.sweep()


def test_undelete_and_removal_of_versions(world: Outside) -> None:
    """The usual undelete of S3 removes the delete marker."""
    key = profile("undo")
    first = world.put(key, {"name": "first", "status": "undo"})
    world.settle()
    marker = world.delete(key)
    world.settle()
    assert world.history("customers/undo") == ["create", "delete"]
    world.delete(key, marker)
    world.settle()
    assert world.history("customers/undo") == ["create", "delete", "restore"]
    assert "undo" in world.rows("customers")
    second = world.put(key, {"name": "second"})
    world.settle()
    world.delete(key, second)
    world.settle()
    assert world.history("customers/undo")[-1] == "update"
    third = world.put(key, {"name": "third"})
    world.settle()
    world.delete(key, first)
    world.settle()
    assert len(world.history("customers/undo")) == 6, "an old version that goes changes nothing"
    world.delete(key, third)
    world.settle()
    assert world.history("customers/undo")[-1] == "delete"
    assert "undo" not in world.rows("customers")
    world.sweep()


def test_an_undelete_and_a_second_delete_in_a_row(world: Outside) -> None:
    """Whether capture sees the document in between or not, nothing is missing afterwards."""
    keys = [profile(f"again{number}") for number in range(5)]
    for key in keys:
        world.put(key, {"name": "first"})
    world.settle()
    markers = [world.delete(key) for key in keys]
    world.settle()
    for key, marker in zip(keys, markers, strict=True):
        world.delete(key, marker)
        world.delete(key)
    world.settle()
    assert {tuple(world.history(f"customers/again{number}")) for number in range(5)} <= {
        ("create", "delete"),
        ("create", "delete", "restore", "delete"),
    }
    world.sweep()


def test_undelete_and_removal_of_versions_without_an_oplog(world: Outside) -> None:
    key = "org/notes/undo/note.json"
    world.put(key, {"text": "first"})
    marker = world.delete(key)
    world.settle()
    world.delete(key, marker)
    world.settle()
    assert world.rows("notes")["undo"] == {"text": "first"}
    second = world.put(key, {"text": "second"})
    world.settle()
    world.delete(key, second)
    world.settle()
    assert world.rows("notes")["undo"] == {"text": "first"}
    world.sweep()


def test_uploads_that_are_no_documents_and_odd_names(world: Outside) -> None:
    odd = ["jane doe+1@acme.com", "Müller", "a=b&c", "x'y\"z", "%61%2Fb", "ü" * 90, "tab%09", "(id)", "日本", "~"]
    odd = ["%74ab%09" if name == "tab%09" else name for name in odd]
    for name in odd:
        world.put(profile(name), {"name": "odd"})
    world.put("org/customers/folder/", b"")
    world.put("org/customers/", b"")
    world.put("org/customers/readme.txt", b"not a document")
    bad = {
        profile("bad-json"): b"{oops",
        profile("bad-empty"): b"",
        profile("bad-list"): b"[]",
        profile("bad-type"): b'{"name": 5}',
        profile("bad-twice"): b'{"name": "a", "name": "b"}',
        profile("bad-bom"): b'\xef\xbb\xbf{"name": "a"}',
        profile("bad-deep"): b'{"name": "a", "x": ' + b"[" * 70 + b"]" * 70 + b"}",
    }
    no_ids = {profile("%2fslash"): b'{"name": "lower case"}', profile("a%2Fb"): b'{"name": "escaped in part"}'}
    for key, body in {**bad, **no_ids}.items():
        world.put(key, body)
    world.settle(dead_letters=[*bad, *no_ids])
    world.hopeless.update(no_ids)
    assert {"jane doe+1@acme.com", "Müller", "a/b", "tab\t", "日本"} <= set(world.rows("customers"))
    for key in bad:
        world.delete(key)
    world.settle(dead_letters=list(bad))
    assert world.environment.redrive("capture") == len(bad) + len(no_ids)
    world.settle()
    world.sweep()


def test_batch_deletes_of_documents_versions_and_markers_in_one_request(world: Outside) -> None:
    keys = [profile(f"batch{n}") for n in range(4)]
    versions = [world.put(key, {"name": key, "status": "batch"}) for key in keys]
    newer = world.put(keys[1], {"name": "newer"})
    marker = world.delete(keys[2])
    world.settle()
    objects: list[ObjectIdentifierTypeDef] = [
        {"Key": keys[0]},
        {"Key": keys[1], "VersionId": newer},
        {"Key": keys[2], "VersionId": marker},
        {"Key": keys[3], "VersionId": versions[3]},
        {"Key": profile("batch-never")},
    ]
    world.s3.delete_objects(Bucket=world.bucket, Delete={"Objects": objects})
    world.settle()
    assert [world.history(f"customers/batch{n}")[-1] for n in range(4)] == ["delete", "update", "restore", "delete"]
    assert world.history("customers/batch-never") == []
    world.sweep()


def test_clients_at_once_on_the_same_keys(world: Outside) -> None:
    """Two programs that overwrite each other's documents: every version is recorded once, in S3's order."""
    keys = [profile(f"race{n}") for n in range(3)] + ["org/items/race/data.json", "org/notes/race/note.json"]

    def client(number: int) -> None:
        for turn in range(8):
            for key in keys:
                world.put(key, {"name": f"{number}.{turn}", "text": f"{number}.{turn}"})
                if turn % 3 == number:
                    world.delete(key)

    local = world.folder("race", customers("race", 3))
    with ThreadPoolExecutor(4) as pool:
        work: list[Future[Any]] = [pool.submit(client, number) for number in range(2)]
        work.append(pool.submit(world.rclone, "copy", str(local), "r:org/customers", "--ignore-times", "--s3-no-head"))
        work.append(pool.submit(world.aws, "s3", "cp", str(local), "s3://org/customers/", "--recursive", "--quiet"))
        for one in work:
            one.result()
    world.settle()
    assert len(world.history("customers/race0")) >= 18
    world.sweep()


def test_versioning_suspended_and_resumed(world: Outside) -> None:
    def versioning(status: BucketVersioningStatusType) -> None:
        world.s3.put_bucket_versioning(Bucket=world.bucket, VersioningConfiguration={"Status": status})

    keys = [profile(f"null{n}") for n in range(4)]
    for key in keys:
        world.put(key, {"name": "versioned"})
    world.settle()
    versioning("Suspended")
    try:
        for key in keys[:3]:
            world.put(key, {"name": "null"})
        world.settle()
        assert world.history("customers/null0") == ["create", "update"]
        world.put(keys[0], {"name": "null again"})
        world.delete(keys[1])
        world.delete(keys[3])
        world.settle()
        assert [world.history(f"customers/null{n}")[-1] for n in range(4)] == ["update", "delete", "update", "delete"]
        world.put(keys[1], {"name": "null, after a marker"})
        world.settle()
    finally:
        versioning("Enabled")
    for key in keys:
        world.put(key, {"name": "versioned again"})
    world.settle()
    world.delete(keys[2], "null")
    world.delete(keys[0])
    world.settle()
    assert [world.history(f"customers/null{n}") for n in range(4)] == [
        ["create", "update", "update", "update", "delete"],
        ["create", "update", "delete", "create", "update"],
        ["create", "update", "update"],
        ["create", "delete", "create"],
    ]
    world.sweep()


def test_aws_rm_recursive_of_a_whole_collection(world: Outside) -> None:
    """It takes the files of the table with it. What is uploaded after it has a table again."""
    for number in range(3):
        world.put(profile(f"last{number}"), {"name": "last", "email": "same@x"})
    world.settle()
    world.aws("s3", "rm", "s3://org/customers/", "--recursive", "--quiet")
    world.settle(tables_complete=False)
    world.sweep()
    assert world.rows("customers") == {}
    world.put(profile("phoenix"), {"name": "phoenix"})
    world.settle()
    assert world.rows("customers") == {"phoenix": {"name": "phoenix"}}
    world.sweep()
