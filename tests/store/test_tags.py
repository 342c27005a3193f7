"""All writers tag derived files, for a lifecycle rule; a write that may not be tagged goes without the tag."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import worm
from tests.emulators import new_bucket, s3_client
from tests.store.scripted_s3 import Answer, ScriptedS3, scripted_s3
from tests.tagging import of_each_kind
from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Denied
from worm.store.base import Won
from worm.store.s3 import S3Store, derived_kind

ROOT, INDEX = "org/customers/.worm.manifest.json", "org/customers/.worm.index/status.json"
STORED = Answer(200, headers={"ETag": '"stored"'})
TAGS = "x-amz-tagging"
SCHEMA = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "oplog": True,
            "softDelete": True,
            "snapshots": {"enabled": True, "every": 2},
            "fields": {"name": {"type": "string"}, "email": {"type": "string"}},
            "manifest": {"enabled": True, "partitionThreshold": 2},
            "lake": {"format": "delta"},
            "indexes": {"byName": {"field": "name"}, "byEmail": {"field": "email", "unique": True}},
        },
        "Note": {
            "path": "#org/@notes/(id:string)",
            "fields": {"text": {"type": "string"}},
            "manifest": {"enabled": True},
        },
    },
}


@pytest.fixture
def script() -> Iterator[ScriptedS3]:
    with scripted_s3() as server:
        yield server


@pytest.fixture
def store(script: ScriptedS3) -> S3Store:
    clock = VirtualClock()
    return S3Store("bucket", endpoint_url=script.url, clock=clock, ids=Ids.seeded(1, clock))


def tags(script: ScriptedS3) -> list[str | None]:
    return [request.headers.get(TAGS) for request in script.requests if request.method == "PUT"]


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (ROOT, "manifest"),
        ("org/customers/.worm.manifest/stage-01/part-3.json", "manifest"),
        ("org/customers/.worm.lake/_delta_log/00000000000000000000.json", "lake"),
        ("org/customers/.worm.index/byName/part-0-0123456789abcdef.json", "index"),
        ("org/customers/.worm.index/email/.claims/ab/cd.json", None),
        ("org/customers/.worm.heads/heads-0-0123456789abcdef.json", "heads"),
        (".worm.sweep/Customer.json", "sweep"),
        (".worm", "sentinel"),
        ("org/customers/.worm", "sentinel"),
        (".worm.schema.json", None),
        (".worm.changes/customers/01KDVDNA003DGBDWYGH920DN3Z.json", None),
        ("org/customers/a/profile.json", None),
        ("org/customers/a.worm.manifest.json", None),
        (".oplog/customers/a/0001.json", None),
    ],
)
def test_a_key_says_whether_its_object_can_be_rebuilt(key: str, kind: str | None) -> None:
    assert derived_kind(key) == kind


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (501, "NotImplemented"), (400, "InvalidArgument")])
def test_a_write_that_may_not_be_tagged_is_sent_again_without_the_tag_and_so_are_the_next_ones(
    script: ScriptedS3, store: S3Store, status: int, code: str
) -> None:
    script.error(status, code)
    script.answers += [STORED, STORED, STORED]
    assert store.put(ROOT, b"1").etag == '"stored"'
    assert tags(script) == ["worm=derived", None]
    assert isinstance(store.put_if_match(ROOT, b"2", '"e"'), Won)
    assert tags(script) == ["worm=derived", None, None]
    store.put(INDEX, b"3")
    assert tags(script)[-1] == "worm=derived", "another kind of file may have another policy"


def test_a_conditional_write_that_may_not_be_tagged_keeps_its_condition(script: ScriptedS3, store: S3Store) -> None:
    script.error(403, "AccessDenied")
    script.answers.append(STORED)
    assert isinstance(store.put_if_absent(ROOT, b"1"), Won)
    first, second = script.requests
    assert first.headers["if-none-match"] == second.headers["if-none-match"] == "*"
    assert first.headers["x-amz-meta-worm-put-id"] == second.headers["x-amz-meta-worm-put-id"]


def test_a_write_that_is_denied_in_any_case_stays_denied_and_the_next_one_is_tagged(
    script: ScriptedS3, store: S3Store
) -> None:
    for _ in range(4):
        script.error(403, "AccessDenied")
    with pytest.raises(Denied):
        store.put(ROOT, b"1")
    with pytest.raises(Denied):
        store.put_if_absent(ROOT, b"1")
    script.answers.append(STORED)
    store.put(ROOT, b"1")
    assert tags(script) == ["worm=derived", None, "worm=derived", None, "worm=derived"]


@pytest.mark.parametrize(
    ("status", "code"), [(403, "ExpiredToken"), (403, "SignatureDoesNotMatch"), (400, "BadDigest")]
)
def test_another_refusal_is_not_taken_for_one_of_the_tag(
    script: ScriptedS3, store: S3Store, status: int, code: str
) -> None:
    script.error(status, code)
    with pytest.raises(worm.errors.WormError):
        store.put(ROOT, b"1")
    assert tags(script) == ["worm=derived"]


def test_an_unclear_answer_to_the_untagged_write_is_resolved_as_any_other(script: ScriptedS3, store: S3Store) -> None:
    script.error(403, "AccessDenied")
    script.answers.append(Answer(hang_up=True))
    for _ in range(40):
        script.error(503, "SlowDown")
    with pytest.raises(CommitStateUnknown):
        store.put_if_absent(ROOT, b"1")


def test_an_object_that_is_not_derived_is_denied_at_once(script: ScriptedS3, store: S3Store) -> None:
    script.error(403, "AccessDenied")
    with pytest.raises(Denied):
        store.put("org/customers/a/profile.json", b"{}")
    assert tags(script) == [None]


def test_everything_that_the_sdk_derives_has_the_tag_and_nothing_else_has(moto_endpoint: str) -> None:
    bucket = new_bucket(moto_endpoint, versioned=True)
    url = f"s3://{bucket}/team"
    with worm.connect(url, schema=worm.load_schema(SCHEMA), endpoint_url=moto_endpoint, maintenance="inline") as db:
        db.push()
        for number in range(6):
            db.model("Customer").save({"id": f"c{number}", "name": "n", "email": f"{number}@y"})
            db.model("Note").save({"id": f"n{number}", "text": "t"})
        db.model("Customer").upsert({"id": "c1", "name": "again", "email": "1@y"})
        db.model("Customer").delete("c0")
        db.sweep()
        db.repair()
    tagged, untagged = of_each_kind(s3_client(moto_endpoint), bucket, "team/", worm.load_schema(SCHEMA))
    assert tagged == {"manifest", "lake", "index", "heads", "sentinel"}
    assert untagged >= {"document", "oplog", "claim", "schema", "snapshot", "trash", "tombstone"}
