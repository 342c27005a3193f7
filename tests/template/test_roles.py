"""What each function may do, judged as AWS would: every request that the workers make is allowed by their roles, in
every layout, and no role has a permission that no worker ever needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from tests.emulators import CREDENTIALS, new_bucket
from tests.template import scenes
from tests.template.recorder import BUCKET, Recorder
from tests.template.stack import ROOT, Roles, Stack, judged
from worm.clock import Ids, VirtualClock
from worm.dev.aws import Aws
from worm.dev.environment import Environment, Settings
from worm.dev.iam import Call, questions
from worm.dev.worker import OutcomeKind
from worm.formats import load_schema
from worm.pages.db import PageDb, create_database
from worm.sdk.database import push
from worm.store.base import Read, Store
from worm.store.s3 import S3Store

pytestmark = pytest.mark.xdist_group("roles")  # all variants need the calls of one stack

QUEUED, SCHEDULED = ("apply", "capture", "tables"), ("compact", "purge", "sweep")
FUNCTIONS = (*QUEUED, *SCHEDULED)
ARN = f"arn:aws:s3:::{BUCKET}/"
KEY_ARN = "arn:aws:kms:us-east-1:000000000000:key/11111111-2222-3333-4444-555555555555"


@dataclass(frozen=True)
class Variant:
    """Parameters of a stack, with the schema's directories and the place of its keys."""

    parameters: Mapping[str, str]
    layout: str = "root"
    snapshots: str = "root"
    trash: str = "root"
    bucket: str = BUCKET
    prefix: str = ""
    kms_key: str | None = None

    def roles(self) -> Roles:
        layout = f"{self.layout},{self.snapshots},{self.trash}"
        chosen = {"Layout": layout, "SpaceDocuments": "bank/*", **self.parameters}
        return Roles(Stack(parameters=chosen), kms_key=self.kms_key)

    def calls(self) -> set[Call]:
        places = (self.layout, self.snapshots, self.trash)
        made = scenes.collections(*places) | scenes.spaces(*places) | scenes.pages()
        return {self.moved(one) for one in made if one.role in FUNCTIONS}

    def moved(self, call: Call) -> Call:
        if call.service != "s3":
            return call
        bucket, slash, key = call.target.partition("/")
        assert bucket == BUCKET
        query = tuple((name, self.prefix + value if name == "prefix" else value) for name, value in call.query)
        return replace(call, target=f"{self.bucket}/{self.prefix}{key}" if slash else self.bucket, query=query)


VARIANTS = {
    **{layout: Variant({}, layout, layout, layout) for layout in ("root", "collection", "inline")},
    "mixed": Variant({}, "root", "collection", "inline"),
    "mixed the other way": Variant({}, "inline"),
    "prefix and key": Variant({"KeyPrefix": "team/a/", "KmsKeyArn": KEY_ARN}, prefix="team/a/", kms_key=KEY_ARN),
    "existing bucket": Variant({"ExistingBucketName": "ours"}, bucket="ours"),
}
EVERY = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@pytest.mark.slow
@EVERY
def test_every_request_of_a_worker_is_allowed(variant: Variant) -> None:
    """AWS answers 403 to any other, and no emulator would."""
    calls = variant.calls()
    assert {one.role for one in calls} == set(FUNCTIONS)
    assert variant.roles().refused(calls) == []


@pytest.mark.parametrize("layout", ["root", "collection", "inline"])
def test_every_request_of_the_jobs_that_compact_is_allowed(layout: str) -> None:
    """verify, which also rebuilds, runs on Spark only: tests/spark/test_verify.py."""
    made = scenes.archives(layout) | scenes.pages()
    calls = {one for one in made if one.role.startswith("Spark")}
    assert {one.role for one in calls} == {"SparkCompactRole", "SparkPagesRole"}
    assert Variant({"SparkArtifactsBucket": "artifacts"}, layout, layout, layout).roles().refused(calls) == []


# -- who may write and delete what

KEYS = {
    "document": "org/customers/a/profile.json",
    "document of a space": "bank/accounts/a/data.json",
    "history": ".oplog/customers/a/0001.json",
    "snapshot": ".snapshots/customers/a/0002.json",
    "trash": ".worm.trash/customers/a/profile.json",
    "tombstone": ".worm.trash/customers/a/.worm.tombstone",
    "change set": ".worm.changes/customers/01.json",
    "cursor": ".worm.sweep/customers.json",
    "note": ".worm.unfolded/01.json",
    "schema": ".worm.schema.json",
    "table": "org/customers/.worm.manifest.json",
    "part of a table": "org/customers/.worm.manifest/part-1.json",
    "index": "org/customers/.worm.index/email.json",
    "claim": "org/customers/.worm.index/email/.claims/00",
    "heads": "org/customers/.worm.heads.json",
    "replaced files": "org/customers/.worm.heads/_replaced.json",
    "sentinel": "org/customers/.worm",
    "log": "db/space-main/log/00000000000000000001",
    "root": "db/shop/manifest.json",
    "copy of the root": "db/shop/manifest.backup.json",
    "lease": "db/shop/lease.json",
    "delta": "db/shop/delta/1",
    "image": "db/shop/image/1",
    "blob": "db/space-main/blobs/ab/01/000000",
    "clock": "db/shop/gc/clock",
    "progress": "db/space-main/documents.json",
    "branch": "db/shop/branches/b/lease.json",
}
HISTORY = {"history", "snapshot", "trash", "tombstone"}
TABLES = {"table", "part of a table", "index", "claim", "heads", "replaced files", "sentinel"}
WRITES = {
    "apply": {"document of a space", "trash", "tombstone", "root", "delta", "progress"},
    "capture": {*HISTORY, "change set"},
    "compact": {"root", "copy of the root", "delta", "image", "clock"},
    "purge": {"tombstone", "replaced files"},
    "sweep": {*HISTORY, *TABLES, "document of a space", "cursor", "progress"},
    "tables": TABLES,
}
DELETES = {
    "apply": {"document of a space"},
    "capture": set(),
    "compact": {"log", "delta", "image", "branch"},
    "purge": {"snapshot", "trash", "tombstone", "part of a table", "replaced files"},
    "sweep": {"document of a space"},
    "tables": set(),
}


@pytest.mark.parametrize("role", FUNCTIONS)
def test_a_worker_writes_and_deletes_its_own_kinds_of_keys_only(role: str) -> None:
    """History is never deleted, and a document only where a space's log says so."""
    roles = VARIANTS["root"].roles()

    def allowed(action: str) -> set[str]:
        return {kind for kind, key in KEYS.items() if roles.may(role, action, ARN + key, **{"s3:if-none-match": "*"})}

    assert allowed("s3:PutObject") == WRITES[role]
    assert allowed("s3:DeleteObject") == DELETES[role]
    assert allowed("s3:DeleteObjectVersion") == set()


def test_no_worker_can_overwrite_history() -> None:
    roles, key = VARIANTS["root"].roles(), ARN + KEYS["history"]
    conditions: list[dict[str, str]] = [{}, {"s3:if-match": "etag"}, {"s3:if-none-match": "*"}]
    assert [roles.may("capture", "s3:PutObject", key, **one) for one in conditions] == [False, False, True]


@pytest.mark.parametrize("role", FUNCTIONS)
def test_nobody_gets_an_answer_over_plain_http(role: str) -> None:
    roles, plain = VARIANTS["root"].roles(), {"aws:SecureTransport": "false"}
    assert roles.may(role, "s3:GetObject", ARN + KEYS["root" if role == "compact" else "schema"])
    assert not roles.may(role, "s3:GetObject", ARN + KEYS["root" if role == "compact" else "schema"], **plain)


@pytest.mark.parametrize("role", FUNCTIONS)
def test_a_role_names_its_actions_and_only_traces_have_every_resource(role: str) -> None:
    roles = VARIANTS["root"].roles()
    grants = {grant for policy in roles.policies[role] for grant in policy.grants()}
    assert {one for one in grants if "*" in one[1]} == set()
    assert {action for _, action, resource in grants if resource == "*"} == {
        "xray:PutTelemetryRecords",
        "xray:PutTraceSegments",
    }


# -- the queues: only the embedded AWS has them


SERVICE = {"aws:PrincipalServiceName": "events.amazonaws.com", "aws:SourceAccount": "000000000000"}


def _fed() -> set[tuple[str, str]]:
    """The ARNs of each rule and of each queue that it sends to, or gives up to."""
    found: set[tuple[str, str]] = set()
    for owner, name, rule in Stack().resources("AWS::Events::Rule", "Targets"):
        for target in rule["Targets"]:
            arns = [target["Arn"], *([target["DeadLetterConfig"]["Arn"]] if "DeadLetterConfig" in target else [])]
            found |= {(owner.attribute(name, "Arn"), one) for one in arns}
    return found


def test_every_rule_may_send_to_its_queues() -> None:
    roles, fed = VARIANTS["root"].roles(), _fed()
    assert {(rule, queue) for rule, queue in fed if not _sends(roles, queue, rule)} == set()
    assert {queue.rsplit(":", 1)[1] for _, queue in fed} >= {f"worm-dev-{name}" for name in QUEUED}


def test_every_queue_is_encrypted_and_takes_no_message_from_outside_of_its_stack() -> None:
    """Anyone who can send to a queue can make a worker run."""
    roles, rules = VARIANTS["root"].roles(), {rule for rule, _ in _fed()}
    for owner, name, queue in Stack().resources("AWS::SQS::Queue", "SqsManagedSseEnabled"):
        arn = owner.attribute(name, "Arn")
        assert queue["SqsManagedSseEnabled"] is True, name
        assert not _sends(roles, arn, "arn:aws:events:us-east-1:000000000000:rule/another-stack-CaptureRule"), name
        for rule in rules:
            assert not _sends(roles, arn, rule, **{"aws:SourceAccount": "111111111111"}), name
            assert not _sends(roles, arn, rule, **{"aws:SecureTransport": "false"}), name
            assert not _sends(roles, arn, rule, **{"aws:PrincipalServiceName": "s3.amazonaws.com"}), name


def _sends(roles: Roles, queue: str, rule: str, **context: str) -> bool:
    return roles.may("", "sqs:SendMessage", queue, **{**SERVICE, "aws:SourceArn": rule, **context})


def _record(body: str) -> dict[str, object]:
    return {"Records": [{"messageId": "1", "body": body, "attributes": {}}]}


@pytest.fixture(scope="module")
def deployed_calls() -> Iterator[set[Call]]:
    """What the functions ask for in a stack where each has a message that it takes and one that it buries."""
    settings = Settings(window_seconds=0.1, run_schedules=False, parameters={"SpaceDocuments": "bank/*"})
    with (
        Environment(ROOT / "template.yaml", settings) as env,
        judged(env),
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in env.environment.items():
            patch.setenv(name, value)
        store = S3Store(env.bucket, endpoint_url=env.endpoint_url)
        push(store, load_schema(scenes.COLLECTION))
        store.put("org/customers/a/profile.json", b'{"name": "a"}')
        create_database(store, "shop")
        with PageDb.open(store, "shop") as db:
            db.write({"p": b"1"})
        env.wait_quiet(60)
        for name in QUEUED:
            outcome = env.invoke(name, _record("this is no event"))
            assert outcome.value == {"batchItemFailures": []}, outcome
        for name in SCHEDULED:
            assert env.fire(name).kind is OutcomeKind.OK
        yield env.aws.calls()


BY_AWS_ITSELF = {
    "logs:CreateLogStream": "Lambda writes what a function prints, in the role of the function",
    "logs:PutLogEvents": "Lambda writes what a function prints, in the role of the function",
    "xray:PutTelemetryRecords": "Lambda sends the traces",
    "xray:PutTraceSegments": "Lambda sends the traces",
    "sqs:GetQueueAttributes": "Lambda looks at a queue before it reads it",
    "sqs:ChangeMessageVisibility": "a poller may give messages back early (SAM's SQSPollerPolicy has it as well)",
    "ReportFailure": "Lambda and Scheduler send invocations there that failed after all retries",
}
"""Permissions that no request of ours needs: an action, or all actions of a statement."""


@pytest.mark.slow
@EVERY
def test_no_role_has_a_permission_that_no_worker_needs(variant: Variant, deployed_calls: set[Call]) -> None:
    """What nobody needs, somebody can misuse."""
    roles = variant.roles()
    assert roles.refused(variant.calls() | {one for one in deployed_calls if one.service == "sqs"}) == []
    unused = {one for one in roles.unused(*FUNCTIONS) if one[1] not in BY_AWS_ITSELF and one[2] not in BY_AWS_ITSELF}
    assert unused == set()


@pytest.mark.slow
def test_the_functions_read_their_own_queue_and_bury_in_their_own_dead_letter_queue(deployed_calls: set[Call]) -> None:
    found = {(one.role, one.operation, one.target) for one in deployed_calls if one.service == "sqs"}
    wanted = {(name, "ReceiveMessage", f"worm-dev-{name}") for name in QUEUED}
    wanted |= {(name, "DeleteMessageBatch", f"worm-dev-{name}") for name in QUEUED}
    assert found == wanted | {(name, "SendMessage", f"worm-dev-{name}-dlq") for name in QUEUED}


# -- the recorder that all of this rests on


def _every_request(store: Store) -> None:
    """Each method of a store in each of its ways."""
    key, derived, gone = "org/a/profile.json", "org/.worm.manifest.json", "org/none.json"
    first = store.put(key, b"1")
    store.put(derived, b"1")
    made = store.put_if_absent("org/b/profile.json", b"1")
    store.put_if_absent("org/b/profile.json", b"2")
    store.put_if_absent("org/.worm.heads.json", b"1")
    store.put_if_match(key, b"2", first.etag)
    store.put_if_match(derived, b"2", first.etag)
    store.put_if_match(key, b"3", first.etag)
    store.put_if_match(gone, b"3", first.etag)
    for one in (key, gone):
        store.get(one)
        store.get_if_changed(one, None)
        store.get_if_changed(one, first.etag)
        store.get_range(one, 0, 1)
        store.head(one)
    store.get(key, version_id=first.version_id)
    store.head(key, version_id=first.version_id)
    store.get_many([Read(key), Read(gone), Read(key, first.version_id)])
    list(store.list("org/"))
    list(store.versions(key))
    list(store.list_versions("org/"))
    store.delete_if_match("org/b/profile.json", made.etag)  # type: ignore[union-attr]  # it was won
    store.delete_if_match(key, first.etag)
    store.delete(key)


def _asked(calls: Iterable[Call], bucket: str) -> set[tuple[str, str, str]]:
    asked = [one for call in calls for one in questions(call, kms_key=KEY_ARN)]
    return {
        (one.action, one.resource.replace(bucket, "bucket"), json.dumps(one.context, sort_keys=True)) for one in asked
    }


def test_a_store_in_memory_records_what_s3_is_asked_for(moto_endpoint: str, aws_environment: None) -> None:
    """All else here is recorded in memory."""
    aws, bucket = Aws(moto_endpoint, "us-east-1", CREDENTIALS, is_moto=True), new_bucket(moto_endpoint, versioned=True)
    aws.record(["capture"])
    _every_request(S3Store(bucket, endpoint_url=moto_endpoint, role="capture"))
    clock = VirtualClock()
    memory = Recorder(versioned=True, clock=clock, ids=Ids.seeded(1, clock))
    with memory.acting("capture"):
        _every_request(memory)
    assert _asked(memory.calls, BUCKET) == _asked(aws.calls(), bucket)
