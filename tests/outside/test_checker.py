"""The checker against a bucket that is right, and against the same bucket with one thing damaged by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.outside.checker import Bucket, Checker, Document, canonical, document_of, segment
from tests.outside.schema import SCHEMA
from tests.project.source_tree import imported_modules
from worm.dev.aws import start_moto
from worm.formats import load_schema
from worm.formats.strict_json import dumps
from worm.sdk.database import Worm, push
from worm.store.s3 import S3Store
from worm.tables.sealed import seal
from worm.upkeep.session import Session
from worm.upkeep.sweep import Sweep

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outside-checker")]

BUCKET = "watched"
OPLOG, ITEMS, TABLE = ".oplog/customers/", "org/items/", "org/customers/"
OURS = ("worm", "worm.dev", "spark_jobs", "functions", "scripts", "tests")


@dataclass
class Watched:
    """A bucket in which everything is right, and hands that change single objects of it."""

    s3: S3Client
    bucket: Bucket
    written: list[tuple[str, str]] = field(default_factory=list)

    def put(self, key: str, body: bytes) -> None:
        self.written.append((key, self.s3.put_object(Bucket=BUCKET, Key=key, Body=body)["VersionId"]))

    def delete(self, key: str) -> None:
        self.written.append((key, self.s3.delete_object(Bucket=BUCKET, Key=key)["VersionId"]))

    def json(self, key: str) -> Document:
        document = document_of(self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        assert document is not None
        return document

    def edit(self, key: str, change: Callable[[Document], object], *, sealed: bool = False) -> None:
        """Change a JSON file; `sealed`: with a checksum that is right."""
        document = self.json(key)
        change(document)
        if sealed:
            del document["checksum"]
        self.put(key, seal(document) if sealed else canonical(document))

    def first(self, prefix: str) -> str:
        return self.bucket.keys(prefix)[0]

    def piece(self, kind: str) -> str:
        """A file that the root of the partitioned table names."""
        root = self.json(ITEMS + ".worm.manifest.json")
        if kind == "parts":
            return str(ITEMS + ".worm.index/kind/" + root["indexes"]["kind"]["parts"][0]["file"])
        return str(ITEMS + ".worm.manifest/" + root[kind][0]["file"])

    def problems(self, *, tables_complete: bool = True) -> list[str]:
        """As a new checker sees it."""
        checker = Checker(self.s3, BUCKET)
        checker.bucket.bodies = self.bucket.bodies
        return checker.problems(tables_complete=tables_complete)

    def mend(self) -> None:
        """Take away what was written since the bucket was right."""
        while self.written:
            key, version_id = self.written.pop()
            self.s3.delete_object(Bucket=BUCKET, Key=key, VersionId=version_id)


def _fill(db: Worm, put: Callable[[str, bytes], object], delete: Callable[[str], object]) -> None:
    customers = db.model("Customer")
    for number, status in enumerate(["new", "=odd", "old"]):
        document = {"id": "a", "name": f"n{number}", "status": status, "tags": ["r", "s", "r"][: number + 1]}
        customers.upsert({**document, "score": number * 1e-6, "address": {"city": "Bern"}, "x.y": 1})
    customers.insert({"id": "b", "name": "b", "email": "b@x"})
    customers.delete("b")
    customers.insert({"id": "c", "name": "c", "email": "c@x"})
    for body in (b'{"name": "raw", "email": "c@x"}', b'{"name": 1}', b'{"name": "raw", "email": null}'):
        put("org/customers/raw/profile.json", body)
    put("org/customers/.%2F/profile.json", b"{}")
    put("org/customers/bad/profile.json", b'{"name": "a", "name": "b"}')
    put("org/customers/d/profile.json", b'{"name": "d", "email": "c@x"}')
    for number in range(24):
        put(f"org/items/i{number}/data.json", b'{"name": "i%d", "kind": "k%d", "x": 1}' % (number, number % 2))
    for number in range(3):
        put(f"org/notes/n{number}/note.json", b'{"text": "t%d"}' % number)
    put("org/notes/bad/note.json", b"{")
    put("org/settings/data.json", b'{"theme": "dark"}')
    delete("org/items/i3/data.json")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    aws = start_moto(tmp_path_factory.mktemp("moto"), "us-east-1")
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in aws.environment().items():
                patch.setenv(name, value)
            s3 = aws.s3()
            s3.create_bucket(Bucket=BUCKET)
            s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
            watched = Watched(s3, Bucket(s3, BUCKET))
            store, schema = S3Store(BUCKET, endpoint_url=aws.endpoint_url), load_schema(SCHEMA)
            push(store, schema)
            _fill(Worm(store, schema, actor="user:ann"), watched.put, watched.delete)
            sweep = Sweep(Session(store))
            sweep.run(lambda: 1.0)
            watched.put("org/items/late/data.json", b'{"name": "late", "kind": "k1"}')  # in a delta, not in the base
            assert [report.error for report in sweep.run(lambda: 1.0)] == [None] * 4
            watched.bucket.look()
            watched.written.clear()
            yield watched
    finally:
        aws.stop()


@pytest.fixture
def watched(healthy: Watched) -> Iterator[Watched]:
    yield healthy
    healthy.mend()


def test_the_checker_knows_nothing_of_what_it_checks() -> None:
    """Code that checks itself repeats its own mistakes."""
    found = imported_modules(Path(__file__).parent / "checker.py", at_run_time_only=False)
    assert [name for name in found if name.partition(".")[0] in OURS] == []


def test_a_bucket_in_which_everything_is_right_has_no_problems(watched: Watched) -> None:
    assert watched.problems() == []
    assert watched.json(ITEMS + ".worm.manifest.json")["deltas"] != [], "the table has base and deltas"
    assert watched.json(TABLE + ".worm.index/email.json")["conflicts"] == {"c@x": ["c", "d"]}


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 1e-5, 0.000123, 1e16, 1.5e-7, 123456.789, 1e22, 5e-324, 2**64 - 1])
def test_numbers_are_written_as_the_formats_say(value: float) -> None:
    assert canonical([value]) == dumps([value])


@pytest.mark.parametrize("id", ["acme", "a/b", ".env", "https://acme.com", "a+b:c", "Müller", "%", "a\tb"])
def test_ids_are_escaped_as_the_formats_say(id: str) -> None:
    examples = {"a/b": "%61%2Fb", ".env": "%2Eenv", "https://acme.com": "%68ttps:%2F%2Facme%2Ecom", "%": "%25"}
    assert segment(id) == {**examples, "a\tb": "%61%09b"}.get(id, id)


def _nested(document: Document, *path: str, **values: object) -> None:
    for name in path:
        document = document[name]
    document.update(values)


DAMAGES: dict[str, tuple[Callable[[Watched], object], str]] = {
    "an entry in the middle is gone": (lambda w: w.delete(OPLOG + "a/0002.json"), "the numbers of its entries are"),
    "the last entry is gone": (lambda w: w.delete(OPLOG + "a/0003.json"), "has no entry"),
    "an upload has no entry": (lambda w: w.put("org/customers/new/profile.json", b'{"name": "n"}'), "has no entry"),
    "a delete has no entry": (lambda w: w.delete("org/customers/c/profile.json"), "the delete marker"),
    "an entry has another document": (
        lambda w: w.edit(OPLOG + "c/0001.json", lambda entry: _nested(entry, "snapshot", name="other")),
        "the document after it is",
    ),
    "an entry names no version": (
        lambda w: w.edit(OPLOG + "c/0001.json", lambda entry: _nested(entry, "metadata", versionId="none")),
        "names a version that does not exist",
    ),
    "a version is recorded twice": (
        lambda w: w.put(OPLOG + "c/0002.json", canonical({**w.json(OPLOG + "c/0001.json"), "seq": 2})),
        "names a version that had its turn",
    ),
    "a diff does not fit": (
        lambda w: w.edit(OPLOG + "a/0002.json", lambda entry: _nested(entry, "diff", name=["never", "n1"])),
        "its diff of 'name' does not fit",
    ),
    "an entry says another time": (
        lambda w: w.edit(OPLOG + "c/0001.json", lambda e: e.update(ts="2001-01-01T00:00:00Z")),
        "ts is",
    ),
    "an entry says another actor": (
        lambda w: w.edit(OPLOG + "c/0001.json", lambda e: e.update(actor="eve")),
        "actor is",
    ),
    "an entry says another number": (lambda w: w.edit(OPLOG + "c/0001.json", lambda e: e.update(seq=7)), "seq is 7"),
    "an entry says another op": (
        lambda w: w.edit(OPLOG + "c/0001.json", lambda e: e.update(op="restore")),
        "op is 'restore'",
    ),
    "an entry does not name what it passed over": (
        lambda w: w.edit(OPLOG + "raw/0002.json", lambda entry: entry["metadata"].pop("skipped")),
        "skipped is []",
    ),
    "an entry goes back for no reason": (
        lambda w: w.put(
            OPLOG + "c/0002.json",
            canonical({"seq": 2, "op": "delete", "ts": w.json(OPLOG + "c/0001.json")["ts"], "metadata": {}}),
        ),
        "the document is not what its 2 entries say",
    ),
    "a checkpoint has no snapshot": (
        lambda w: w.edit(OPLOG + "a/0003.json", lambda e: e.pop("snapshot")),
        "every 3th update",
    ),
    "an entry is not canonical": (
        lambda w: w.put(OPLOG + "c/0001.json", json.dumps(w.json(OPLOG + "c/0001.json")).encode()),
        "is not canonical JSON",
    ),
    "a time mark is gone": (lambda w: w.delete(w.first(OPLOG + "a/.times/")), "the time mark is missing"),
    "a snapshot is gone": (
        lambda w: w.delete(w.first(".snapshots/customers/a/")),
        "the snapshot of entry 3 is missing",
    ),
    "a snapshot is another": (
        lambda w: w.edit(w.first(".snapshots/customers/a/"), lambda e: _nested(e, "document", name="x")),
        "the snapshot of entry 3 is",
    ),
    "a tombstone is gone": (lambda w: w.delete(".worm.trash/customers/b/.worm.tombstone"), "is not in trash"),
    "a copy in trash is another": (
        lambda w: w.put(".worm.trash/customers/b/profile.json", b'{"name": "x"}'),
        "the copy is not the version that its tombstone names",
    ),
    "a row is another": (
        lambda w: w.edit(TABLE + ".worm.manifest.json", lambda e: _nested(e, "entities", "c", name="x"), sealed=True),
        "the row of 'c' is",
    ),
    "a row of a deleted document is left": (
        lambda w: w.edit(TABLE + ".worm.manifest.json", lambda e: _nested(e, "entities", b={"name": "b"}), sealed=True),
        "the row of 'b' is",
    ),
    "a row is gone": (
        lambda w: w.edit(TABLE + ".worm.manifest.json", lambda e: e["entities"].pop("c"), sealed=True),
        "the row of 'c' is null",
    ),
    "a checksum is wrong": (
        lambda w: w.edit(TABLE + ".worm.manifest.json", lambda e: e.update(checksum="sha256:0")),
        "checksum is",
    ),
    "a manifest is gone": (lambda w: w.delete(TABLE + ".worm.manifest.json"), "is missing"),
    "an index has an entry less": (
        lambda w: w.edit(TABLE + ".worm.index/status.json", lambda e: e["entries"].clear(), sealed=True),
        "entries is {}",
    ),
    "an index hides a conflict": (
        lambda w: w.edit(TABLE + ".worm.index/email.json", lambda e: e.pop("conflicts"), sealed=True),
        "conflicts is {}",
    ),
    "an index is of an older manifest": (
        lambda w: w.edit(TABLE + ".worm.index/tags.json", lambda e: e.update(revision=1), sealed=True),
        "revision is 1",
    ),
    "a head is old": (
        lambda w: w.edit(TABLE + ".worm.heads.json", lambda e: e["heads"]["a"].__setitem__(0, 2)),
        "the head of 'a' is",
    ),
    "a count is wrong": (lambda w: w.edit(TABLE + ".worm", lambda e: e.update(count=99)), "count is 99"),
    "a partition is gone": (lambda w: w.delete(w.piece("partitions")), "a root names it"),
    "a partition is another": (lambda w: w.put(w.piece("partitions"), b"{}"), "does not hash to its name"),
    "a delta is gone": (lambda w: w.delete(w.piece("deltas")), "the row of 'late' is null"),
    "a part of an index is another": (
        lambda w: w.put(w.piece("parts"), b"{}"),
        "entries and conflicts is",
    ),
    "a row of a model without oplog is old": (
        lambda w: w.put("org/notes/n1/note.json", b'{"text": "newer"}'),
        "the row of 'n1' is",
    ),
    "a claim is of another value": (
        lambda w: w.edit(w.first(TABLE + ".worm.index/email/.claims/"), lambda e: e.update(value="x@x")),
        "the claim's name is not the hash of its value",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_reported(watched: Watched, what: str) -> None:
    damage, wanted = DAMAGES[what]
    damage(watched)
    problems = watched.problems()
    assert [problem for problem in problems if wanted in problem] != [], problems


def test_files_of_tables_that_somebody_deleted_may_be_missing_until_the_next_sweep(watched: Watched) -> None:
    for name in (".worm.manifest.json", ".worm.index/status.json", ".worm.heads.json"):
        watched.delete(TABLE + name)
    assert watched.problems(tables_complete=False) == []
    missing = [f"{TABLE}.worm.manifest.json: is missing"]
    assert watched.problems() == missing


def test_a_checker_that_saw_a_version_still_judges_its_entry_after_somebody_removed_it(watched: Watched) -> None:
    """Removing versions is what makes histories hard to judge: what is gone can be claimed to have been anything."""
    checker = Checker(watched.s3, BUCKET)
    key = "org/customers/d/profile.json"
    watched.put(key, b'{"name": "second"}')
    before = checker.problems()
    assert [problem for problem in before if problem.startswith(f"{key}: the version")] != []
    newest = checker.bucket.versions[key][-1]
    watched.s3.delete_object(Bucket=BUCKET, Key=key, VersionId=newest.id)
    assert checker.problems() == [], "nobody recorded it, and it is gone"
    entry = {"seq": 2, "op": "update", "ts": newest.modified, "diff": {"name": ["d", "third"]}}
    watched.put(OPLOG + "d/0002.json", canonical({**entry, "metadata": {"etag": newest.etag, "versionId": newest.id}}))
    found = checker.problems()
    assert any("the document after it is" in problem for problem in found), found
    assert any("the document is not what its 2 entries say" in problem for problem in found), found


def test_an_undelete_has_the_time_at_which_it_was_seen(healthy: Watched) -> None:
    """In a bucket of its own: no other checker has seen the delete marker that is gone."""
    s3, bucket, key = healthy.s3, "undeleted", "org/customers/u/profile.json"
    entry = f"{OPLOG}u/0003.json"
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    store, checker = S3Store(bucket, endpoint_url=s3.meta.endpoint_url), Checker(s3, bucket)
    push(store, load_schema(SCHEMA))

    def problems() -> list[str]:
        assert [report.error for report in Sweep(Session(store)).run(lambda: 1.0)] == [None] * 4
        return checker.problems()

    s3.put_object(Bucket=bucket, Key=key, Body=b'{"name": "u"}')
    assert problems() == []
    marker = s3.delete_object(Bucket=bucket, Key=key)["VersionId"]
    assert problems() == []
    s3.delete_object(Bucket=bucket, Key=key, VersionId=marker)
    assert problems() == []
    restored = document_of(s3.get_object(Bucket=bucket, Key=entry)["Body"].read())
    assert restored is not None
    assert (restored["op"], restored["metadata"]["reverted"]) == ("restore", True)
    s3.delete_object(Bucket=bucket, Key=key)
    assert problems() == []
    for wrong in ("2001-01-01T00:00:00Z", "2101-01-01T00:00:00Z"):
        s3.put_object(Bucket=bucket, Key=entry, Body=canonical({**restored, "ts": wrong}))
        assert [one for one in checker.problems() if one.startswith(f"{entry}: ts is {wrong}")] != []
