"""docs/threats.md: every kind of key has its row, and its policies let each actor do its work and no more."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from typer.testing import CliRunner

import worm
from tests.cli.company import Ended
from tests.emulators import new_bucket, s3_client
from tests.fault_proxy import serving
from tests.template.policies import Guard, Policy
from tests.template.sam_document import BUCKET, ROOT, resources
from worm.cli.program import app
from worm.collections.layout import KeyKind
from worm.dev.iam import Call, Question, questions
from worm.errors import NotFound, UniqueViolation
from worm.log.keys import DbKeys
from worm.sdk.database import Worm
from worm.upkeep.session import Maintenance

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACTORS = ["Raw uploader", "Reader", "SDK writer, events", "SDK writer, background", "Schema author", "Auditor"]
PREFIXES = ["", "team/a"]
SCHEMA: dict[str, object] = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "file": "profile.json",
            "oplog": True,
            "softDelete": True,
            "snapshots": {"enabled": True, "every": 2},
            "fields": {name: {"type": "string"} for name in ("name", "status", "email")},
            "manifest": {"enabled": True, "partitionThreshold": 1},
            "indexes": {"byStatus": {"field": "status"}, "byEmail": {"field": "email", "unique": True}},
        }
    },
}


@cache
def page() -> str:
    return (ROOT / "docs" / "threats.md").read_text()


def policy(title: str, bucket: str = "BUCKET", prefix: str = "") -> Policy:
    """As the page has it, changed for a prefix as the page says."""
    found = re.search(rf"^### {re.escape(title)}$.*?```json\n(.*?)```", page(), re.DOTALL | re.MULTILINE)
    assert found, f"the page has no policy for {title}"
    text = found[1]
    if prefix:
        text = text.replace("BUCKET/", f"BUCKET/{prefix}/")
        listed = re.compile(r'("s3:prefix": )(\[[^]]*\]|"[^"]*")')
        text = listed.sub(lambda match: match[1] + re.sub(r'"([^"]+)"', rf'"{prefix}/\1"', match[2]), text)
    return Policy.of(text.replace("BUCKET", bucket))


def _rows() -> dict[str, str]:
    return dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", page(), re.MULTILINE))


def test_every_kind_of_key_has_a_row_that_says_who_writes_it() -> None:
    assert set(_rows()) == {kind.value for kind in KeyKind}


def test_every_place_below_a_database_is_named() -> None:
    """Anyone who may write there may commit."""
    keys = DbKeys("x")
    made = [keys.root, keys.lease, keys.log, keys.clock, keys.documents, *keys.swept]
    made += [keys.pointer("b"), keys.blobs("p"), keys.damaged(1, "e")]
    places = {key.removeprefix("db/x/") for key in made}
    missing = {one for one in places if not re.search(rf"`{re.escape(_place(one))}[…`]", page())}
    assert missing == set()


def _place(key: str) -> str:
    first, slash, _ = key.partition("/")
    return key if key == "gc/clock" else first + slash


def test_the_bucket_policy_of_the_page_is_that_of_the_template() -> None:
    template = resources("AWS::S3::BucketPolicy")["DocumentBucketPolicy"]["PolicyDocument"]["Statement"]
    assert policy("Bucket policy", BUCKET).statements == template


# -- what each actor does, against its policy


class Company:
    """A bucket behind a guard, and what people do with it."""

    def __init__(self, guard: Guard, upstream: str, prefix: str, patch: pytest.MonkeyPatch) -> None:
        self.guard, self.prefix, self.patch, self.upstream = guard, prefix, patch, upstream
        self.bucket = new_bucket(upstream, versioned=True)
        self.url = f"s3://{self.bucket}/{prefix}".removesuffix("/")
        guard.policies = {_access_key(one): policy(one, self.bucket, prefix) for one in ACTORS}
        guard.bucket = Policy([*policy("Bucket policy", self.bucket, prefix).statements])
        guard.bucket.statements += policy("Stricter statements", self.bucket, prefix).statements

    def become(self, actor: str) -> None:
        self.patch.setenv("AWS_ACCESS_KEY_ID", _access_key(actor))

    def connect(self, mode: Maintenance) -> Worm:
        return worm.connect(self.url, endpoint_url=self.guard.url, actor="user:ann", maintenance=mode)

    def run(self, *arguments: str, stdin: str | None = None) -> Ended:
        command = [*arguments, "--url", self.url, "--endpoint-url", self.guard.url]
        result = CliRunner().invoke(app, command, input=stdin, catch_exceptions=False)
        return Ended(result.exit_code, result.stdout, result.stderr)

    def upload(self) -> None:
        """A plain client of the guard; documents that stay, and one that goes."""
        self.become("Raw uploader")
        s3 = _plain_client(self.guard.url)
        folder = f"{self.prefix}/org/customers".removeprefix("/")
        for name in ("raw", "gone", "left"):
            document = json.dumps({"name": name, "status": "new", "email": f"{name}@x"}).encode()
            s3.put_object(Bucket=self.bucket, Key=f"{folder}/{name}/profile.json", Body=document)
        s3.put_object(Bucket=self.bucket, Key=f"{folder}/raw/profile.json", Body=b'{"name": "again", "email": "raw@x"}')
        s3.get_object(Bucket=self.bucket, Key=f"{folder}/raw/profile.json")
        s3.list_objects_v2(Bucket=self.bucket, Prefix=f"{folder}/")
        self.remove("gone")

    def remove(self, id: str) -> None:
        self.become("Raw uploader")
        key = f"{self.prefix}/org/customers/{id}/profile.json".removeprefix("/")
        _plain_client(self.guard.url).delete_object(Bucket=self.bucket, Key=key)

    def push(self, schema_file: str) -> None:
        self.become("Schema author")
        for options in (["--dry-run"], [], []):
            ended = self.run("push", schema_file, *options)
            assert ended.exit_code == 0, (ended, self.guard.refused)

    def leave_note(self) -> None:
        """Another session is at work, somewhere else: who opens one looks at its note."""
        key = f"{self.prefix}/.worm.unfolded/01M7MKZZMQ5NJX0BKHD7HKS19B.json".removeprefix("/")
        s3_client(self.upstream).put_object(Bucket=self.bucket, Key=key, Body=b'{"version": 1, "models": []}')

    def write(self, mode: Maintenance) -> None:
        self.become(f"SDK writer, {mode}")
        with self.connect(mode) as db:
            customers = db.model("Customer")
            customers.insert({"id": mode, "name": "A", "status": "new", "email": f"a@{mode}"})
            for number in range(3):
                one = customers.get(mode)
                one["name"], one["email"] = str(number), f"{number}@{mode}"
                customers.save(one)
            customers.patch(mode, {"status": "old"})
            assert [one["id"] for one in customers.find_all(filter={"email": f"2@{mode}"})] == [mode]
            with pytest.raises(UniqueViolation):
                customers.insert({"id": "other", "email": f"2@{mode}"})
            customers.insert({"id": f"{mode}-2", "name": "B"})
            customers.delete(f"{mode}-2")
            assert f"{mode}-2" in {one["id"] for one in customers.list_trashed()}
            customers.restore(f"{mode}-2")
            customers.get_history("raw")
            if mode == "background":
                db.sweep()  # puts what was removed by a plain client into the trash

    def read(self) -> None:
        self.become("Reader")
        with self.connect("events") as db:
            customers = db.model("Customer")
            assert customers.get("background")["status"] == "old"
            with pytest.raises(NotFound):
                customers.get("nobody")
            assert list(customers.find_all(filter={"status": "old"})) != []
            assert customers.get_at("background", seq=2) is not None
            assert customers.get_at("background", time="2100-01-01T00:00:00Z") is not None
            assert list(db.history()) != []
        for command in (["get", "Customer", "background"], ["table", "query", "Customer"], ["table", "list"]):
            assert self.run(*command).exit_code == 0
        for command in (["history", "Customer", "background"], ["snapshot", "list", "Customer", "background"]):
            assert self.run(*command).exit_code == 0

    def audit(self) -> None:
        self.become("Auditor")
        assert self.run("verify").exit_code in (0, 1)  # what the events mode wrote waits for workers
        assert self.run("why", "org/customers/raw/profile.json").exit_code == 0
        assert self.run("trash", "list", "Customer").exit_code == 0
        assert self.run("history", "Customer", "background").exit_code == 0


def _access_key(actor: str) -> str:
    return re.sub("[^A-Z]", "", actor.upper())


def _plain_client(url: str) -> S3Client:
    """With the credentials of the environment as it is now: the default session keeps the first it sees."""
    return boto3.Session().client("s3", endpoint_url=url, config=Config(s3={"addressing_style": "path"}))


@pytest.fixture(scope="module", params=PREFIXES, ids=["bucket", "prefix"])
def company(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, moto_endpoint: str
) -> Iterator[Company]:
    schema_file = tmp_path_factory.mktemp("threats") / "schema.json"
    schema_file.write_text(json.dumps(SCHEMA))
    guard = Guard(moto_endpoint)
    with serving(guard), pytest.MonkeyPatch.context() as patch:
        for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        one = Company(guard, moto_endpoint, str(request.param), patch)
        one.upload()
        one.push(str(schema_file))
        one.remove("left")
        one.leave_note()
        one.write("background")
        one.write("events")
        one.read()
        one.audit()
        yield one


@pytest.mark.slow
def test_nothing_that_an_actor_needs_is_refused(company: Company) -> None:
    assert company.guard.refused == []


@pytest.mark.slow
@pytest.mark.parametrize("actor", ACTORS)
def test_no_policy_grants_what_its_actor_never_uses(company: Company, actor: str) -> None:
    granted = company.guard.policies[_access_key(actor)]
    assert granted.grants() - granted.used == set()


DOCUMENT, ENTRY = "org/customers/a/profile.json", ".oplog/customers/a/0001.json"
MANIFEST, SCHEMA_OBJECT = "org/customers/.worm.manifest.json", ".worm.schema.json"
CLAIM, COPY = f"org/customers/.worm.index/email/.claims/{'0' * 64}", ".worm.trash/customers/a/profile.json"
COPIES_ELSEWHERE = ["org/customers/.worm.trash/a/profile.json", "org/customers/a/.worm.trash/profile.json"]
OTHERS = ["org/orders/a/profile.json", ".oplog/orders/a/0001.json", "db/space-main/log/00000000000000000001"]
WRITABLE: dict[str, set[str]] = {
    "Raw uploader": {DOCUMENT},
    "Reader": set(),
    "SDK writer, events": {DOCUMENT, CLAIM, COPY, *COPIES_ELSEWHERE},
    "SDK writer, background": {DOCUMENT, CLAIM, COPY, *COPIES_ELSEWHERE, ENTRY, MANIFEST},
    "Schema author": {CLAIM, COPY, ENTRY, MANIFEST, SCHEMA_OBJECT},
    "Auditor": set(),
}


@pytest.mark.parametrize("actor", ACTORS)
def test_an_actor_may_write_what_its_row_says_and_nothing_else(actor: str) -> None:
    keys = [DOCUMENT, ENTRY, MANIFEST, SCHEMA_OBJECT, CLAIM, COPY, *COPIES_ELSEWHERE, *OTHERS]
    asked = {key: Question("s3:PutObject", f"arn:aws:s3:::BUCKET/{key}") for key in keys}
    assert {key for key, question in asked.items() if policy(actor).says(question) == "Allow"} == WRITABLE[actor]


@pytest.mark.parametrize("actor", ACTORS)
def test_no_actor_may_delete_history_tables_or_versions(actor: str) -> None:
    asked = [Question("s3:DeleteObject", f"arn:aws:s3:::BUCKET/{key}") for key in (ENTRY, MANIFEST, SCHEMA_OBJECT)]
    asked += [Question("s3:DeleteObjectVersion", f"arn:aws:s3:::BUCKET/{key}") for key in (DOCUMENT, ENTRY)]
    assert [one for one in asked if policy(actor).says(one) == "Allow"] == []


def _bucket_says(title: str, method: str, key: str, headers: dict[str, str], **context: str) -> str:
    (call,) = Call.of_s3("", method, f"/BUCKET/{key}", headers)
    asked = questions(call)[0]
    return policy(title).says(dataclasses.replace(asked, context={**asked.context, **context}))


@pytest.mark.parametrize("key", [ENTRY, "org/customers/.oplog/a/0001.json", "org/customers/a/.oplog/0001.json"])
def test_the_bucket_refuses_to_overwrite_history_in_every_layout(key: str) -> None:
    assert _bucket_says("Bucket policy", "PUT", key, {}) == "Deny"
    assert _bucket_says("Bucket policy", "PUT", key, {"If-Match": '"a"'}) == "Deny"
    assert _bucket_says("Bucket policy", "PUT", key, {"If-None-Match": "*"}) == ""


def test_the_bucket_refuses_plain_http_and_old_tls() -> None:
    assert _bucket_says("Bucket policy", "GET", DOCUMENT, {}) == ""
    assert _bucket_says("Bucket policy", "GET", DOCUMENT, {}, **{"aws:SecureTransport": "false"}) == "Deny"
    assert _bucket_says("Bucket policy", "GET", DOCUMENT, {}, **{"s3:TlsVersion": "1.1"}) == "Deny"


def test_the_stricter_statements_let_only_the_compaction_delete_history_and_nobody_remove_versions() -> None:
    def says(role: str, path: str) -> str:
        return _bucket_says(
            "Stricter statements", "DELETE", path, {}, **{"aws:PrincipalArn": f"arn:aws:iam::1:role/{role}"}
        )

    assert says("Ann", ENTRY) == "Deny"
    assert says("COMPACTION-ROLE", ENTRY) == ""
    assert says("COMPACTION-ROLE", f"{ENTRY}?versionId=1") == "Deny"
    assert says("Ann", DOCUMENT) == ""
