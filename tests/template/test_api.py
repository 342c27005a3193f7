"""The HTTP API of a stack: who reaches the function in each mode, and what its role may do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest

from tests.api.client import Client
from tests.cli.deployed import Deployed
from tests.emulators import new_bucket
from tests.template.recorder import BUCKET, Recorder
from tests.template.sam_document import ROOT, STACK, Json, document, resources, stack
from tests.template.scenes import TABLE, SpaceLife
from tests.template.stack import Roles, Stack, judged
from tests.template.test_roles import ARN, KEYS, VARIANTS, Variant
from worm.api.app import Api
from worm.api.call import ApiSettings
from worm.api.credentials import DeployedCallers, Trust
from worm.api.tokens import create_token
from worm.clock import Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.dev.environment import Environment, Settings
from worm.dev.iam import Call
from worm.dev.worker import OutcomeKind
from worm.formats import load_schema
from worm.sdk.database import Worm, push
from worm.store.probe import ensure_safe
from worm.store.s3 import S3Store
from worm.upkeep.deployment.aws import Aws
from worm.upkeep.pushed_schema import load_pushed_schema

JWT = "readwrite,https://issuer.example/pool,app-1"
MODES = ["readonly", "readwrite", "readonly,tokens", JWT]
QUEUE = "arn:aws:sqs:us-east-1:000000000000:worm-dev-"


def _of(kind: str, mode: str) -> dict[str, Json]:
    return resources(kind, ApiMode=mode)


def _variables(mode: str) -> dict[str, Any]:
    found = _of("AWS::Serverless::Function", mode)["ApiFunction"]["Environment"]["Variables"]
    return {name: value for name, value in found.items() if name.startswith("WORM_")}


def test_without_a_mode_there_is_nothing_of_it() -> None:
    made = stack(ApiMode="off")
    assert [name for name in made if "Api" in name or "Http" in name or "Console" in name] == []


@pytest.mark.parametrize("place", [{}, {"ExistingBucketName": "mine", "KeyPrefix": "data/"}], ids=["own", "existing"])
def test_the_function_knows_its_bucket_and_whom_it_believes(place: dict[str, str]) -> None:
    found = resources("AWS::Serverless::Function", ApiMode=JWT, **place)["ApiFunction"]["Environment"]["Variables"]
    assert found == {
        "WORM_BUCKET": place.get("ExistingBucketName", BUCKET),
        "WORM_PREFIX": place.get("KeyPrefix", ""),
        "WORM_STACK": STACK,
        "WORM_MAX_DOCUMENT_BYTES": 10485760,
        "WORM_ROLE": "api",
        "WORM_API_MODE": "readwrite",
        "WORM_API_AUTH": "jwt",
        "WORM_API_ISSUER": "https://issuer.example/pool",
        "WORM_API_AUDIENCE": "app-1",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        "POWERTOOLS_METRICS_NAMESPACE": "S3Worm",
        "POWERTOOLS_SERVICE_NAME": "api",
    }


@pytest.mark.parametrize(
    ("mode", "settings", "trust"),
    [
        ("readonly", True, Trust("iam")),
        ("readwrite", False, Trust("iam")),
        ("readonly,tokens", True, Trust("tokens")),
        (JWT, False, Trust("jwt", "https://issuer.example/pool", "app-1")),
    ],
)
def test_the_function_understands_its_variables(mode: str, settings: bool, trust: Trust) -> None:
    variables = {name: str(value) for name, value in _variables(mode).items()}
    assert ApiSettings.from_environment(variables).is_readonly is settings
    assert Trust.from_environment(variables) == trust


@pytest.mark.parametrize("mode", ["readonly", "readwrite"])
def test_a_function_url_takes_signed_requests_only(mode: str) -> None:
    """A URL without authentication would be open to the world."""
    assert _of("AWS::Lambda::Url", mode) == {
        "ApiUrl": {
            "TargetFunctionArn": f"arn:aws:lambda:us-east-1:000000000000:function:{STACK}-api",
            "AuthType": "AWS_IAM",
            "InvokeMode": "BUFFERED",
        }
    }
    assert _of("AWS::ApiGatewayV2::Api", mode) == {}
    assert _of("AWS::Lambda::Permission", mode) == {}


def test_an_authorizer_checks_tokens_of_the_issuer_for_the_audience() -> None:
    [authorizer] = _of("AWS::ApiGatewayV2::Authorizer", JWT).values()
    assert authorizer["JwtConfiguration"] == {"Issuer": "https://issuer.example/pool", "Audience": ["app-1"]}
    routes = _of("AWS::ApiGatewayV2::Route", JWT)
    assert {one["RouteKey"]: one["AuthorizationType"] for one in routes.values()} == {
        "$default": "JWT",
        "GET /": "NONE",
        "GET /console/{proxy+}": "NONE",
    }
    assert "AuthorizerId" in routes["HttpRoute"]
    assert _of("AWS::Lambda::Url", JWT) == {}


def test_with_read_tokens_the_function_itself_asks_and_cannot_write() -> None:
    mode = "readonly,tokens"
    assert _of("AWS::ApiGatewayV2::Authorizer", mode) == {}
    assert [one["AuthorizationType"] for one in _of("AWS::ApiGatewayV2::Route", mode).values()] == ["NONE"]
    assert _variables(mode)["WORM_API_AUTH"] == "tokens"


@pytest.mark.parametrize("mode", ["readonly,tokens", JWT])
def test_an_http_api_is_throttled_logged_and_without_cors(mode: str) -> None:
    [api], [stage] = _of("AWS::ApiGatewayV2::Api", mode).values(), _of("AWS::ApiGatewayV2::Stage", mode).values()
    assert "CorsConfiguration" not in api
    assert stage["DefaultRouteSettings"] == {"ThrottlingBurstLimit": 100, "ThrottlingRateLimit": 50}
    assert stage["AccessLogSettings"]["DestinationArn"].endswith(f"/aws/apigateway/{STACK}-api:*")
    [integration] = _of("AWS::ApiGatewayV2::Integration", mode).values()
    assert (integration["PayloadFormatVersion"], integration["TimeoutInMillis"]) == ("2.0", 30000)
    [permission] = _of("AWS::Lambda::Permission", mode).values()
    assert permission["SourceArn"].endswith(":worm-dev-ApiStack-HttpApi/*")


def test_the_function_may_not_work_longer_than_its_caller_waits() -> None:
    assert document(ROOT / "functions" / "api.yaml")["Resources"]["ApiFunction"]["Properties"]["Timeout"] == 30


# -- what the role may do


def _roles(mode: str, variant: Variant = VARIANTS["root"], **parameters: str) -> Roles:
    layout = f"{variant.layout},{variant.snapshots},{variant.trash}"
    chosen = {"Layout": layout, "SpaceDocuments": "bank/*", "ApiMode": mode, **variant.parameters, **parameters}
    return Roles(Stack(parameters=chosen), kms_key=variant.kms_key)


def _allowed(roles: Roles, action: str) -> set[str]:
    keys = {**KEYS, "token": ".worm.api/tokens/01.json", "answer": ".worm.api/idempotency/00.json"}
    return {kind for kind, key in keys.items() if roles.may("api", action, ARN + key, **{"s3:if-none-match": "*"})}


WRITTEN = {"document", "document of a space", "trash", "tombstone", "claim", "answer", "note"}
DATABASES = {
    "log",
    "root",
    "copy of the root",
    "lease",
    "delta",
    "image",
    "blob",
    "clock",
    "progress",
    "branch",
}


@pytest.mark.parametrize("action", ["s3:PutObject", "s3:DeleteObject"])
def test_a_role_that_writes_leaves_history_tables_schema_and_tokens_alone(action: str) -> None:
    assert _allowed(_roles("readwrite"), action) == WRITTEN | DATABASES
    assert _allowed(_roles("readwrite", SpaceDocuments=""), action) == WRITTEN
    assert _allowed(_roles("readwrite"), "s3:DeleteObjectVersion") == set()


@pytest.mark.parametrize("mode", ["readonly", "readonly,tokens", JWT.replace("readwrite", "readonly")])
def test_a_role_that_only_reads_has_no_action_that_changes_anything(mode: str) -> None:
    """The function may have a bug; the role has none."""
    roles = _roles(mode)
    actions = {action for policy in roles.policies["api"] for _, action, _ in policy.grants()}
    assert actions == {
        "cloudformation:DescribeStacks",
        "cloudwatch:DescribeAlarms",
        "cloudwatch:GetMetricData",
        "lambda:GetFunctionConfiguration",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
        "s3:GetBucketNotification",
        "s3:GetBucketPublicAccessBlock",
        "s3:GetBucketVersioning",
        "s3:GetEncryptionConfiguration",
        "s3:GetObject",
        "s3:GetObjectVersion",
        "s3:ListBucket",
        "s3:ListBucketVersions",
        "sqs:ChangeMessageVisibility",
        "sqs:GetQueueAttributes",
        "sqs:ReceiveMessage",
        "xray:PutTelemetryRecords",
        "xray:PutTraceSegments",
    }
    assert [_allowed(roles, action) for action in ("s3:PutObject", "s3:DeleteObject")] == [set(), set()]


def test_dead_letters_go_back_to_the_queues_of_this_stack_only() -> None:
    roles = _roles("readwrite")
    assert roles.may("api", "sqs:SendMessage", f"{QUEUE}capture")
    assert roles.may("api", "sqs:DeleteMessage", f"{QUEUE}capture-dlq")
    for action, queue in (
        ("sqs:SendMessage", f"{QUEUE}capture-dlq"),
        ("sqs:DeleteMessage", f"{QUEUE}capture"),
        ("sqs:ReceiveMessage", f"{QUEUE}capture"),
        ("sqs:ReceiveMessage", QUEUE.replace("worm-dev-", "other-") + "capture-dlq"),
    ):
        assert not roles.may("api", action, queue), (action, queue)


# -- what health and dead letters ask for

ACTIONS = {
    "s3:GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "s3:GetBucketNotificationConfiguration": "s3:GetBucketNotification",
    "s3:GetPublicAccessBlock": "s3:GetBucketPublicAccessBlock",
    "lambda:Invoke": "lambda:InvokeFunction",
}
"""Operations whose action has another name."""


def _asked(service: str, operation: str, given: Mapping[str, Any]) -> tuple[str, str]:
    """Action and resource that AWS asks a role for."""
    action = f"{service}:{operation.removesuffix('Batch')}"
    here, queue = ":us-east-1:000000000000:", str(given.get("QueueUrl", "")).rsplit("/", 1)[-1]
    resource = {
        "cloudformation": f"arn:aws:cloudformation{here}stack/{given.get('StackName')}/1",
        "cloudwatch": f"arn:aws:cloudwatch{here}alarm:*",
        "lambda": f"arn:aws:lambda{here}function:{given.get('FunctionName')}",
        "s3": f"arn:aws:s3:::{BUCKET}",
        "sqs": f"arn:aws:sqs{here}{queue}",
    }
    return ACTIONS.get(action, action), resource[service]


@pytest.fixture
def asked_of_aws(
    moto_endpoint: str, aws_environment: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Client, set[tuple[str, str]]]]:
    """The API of a stack on moto, and what it asks of AWS besides objects."""
    bucket = new_bucket(moto_endpoint, versioned=True)
    deployed = Deployed(moto_endpoint, STACK, bucket).create().create_functions()
    found: set[tuple[str, str]] = set()

    usual = Aws.client

    def watched(self: Aws, service: str) -> Any:
        made = usual(self, service)

        def saw(params: Mapping[str, Any], model: Any, **others: Any) -> None:
            found.add(_asked(service, model.name, params))

        made.meta.events.register_first("provide-client-params.*.*", saw, unique_id="watched")
        return made

    monkeypatch.setattr(Aws, "client", watched)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    monkeypatch.setenv("WORM_STACK", STACK)
    store = S3Store(bucket, endpoint_url=moto_endpoint)
    push(store, load_schema({"models": {"Note": {"path": "#org/@notes/(id:string)", "fields": {}}}}))
    deployed.send("capture-dlq", "no event", reason="a test")
    deployed.send("sweep-dlq", "{}", reason="a test")
    yield Client(Api(lambda: Worm(store, load_pushed_schema(store), maintenance="events"))), found
    deployed.client("cloudformation").delete_stack(StackName=STACK)


@pytest.mark.slow
def test_health_and_dead_letters_need_no_more_than_the_role_has(
    asked_of_aws: tuple[Client, set[tuple[str, str]]],
) -> None:
    client, asked = asked_of_aws
    assert client.get("/v1/health").status == 200
    letters = client.get("/v1/rejected").json["items"]
    assert {one["queue"] for one in letters} == {"capture", "sweep"}
    reading = set(asked)
    assert [one for one in sorted(reading) if not _roles("readonly").may("api", *one)] == []
    for one in letters:
        client.call("POST", f"/v1/rejected/{one['id']}/redrive")
    assert [one for one in sorted(asked) if not _roles("readwrite").may("api", *one)] == []
    granted = {
        (action, sid)
        for policy in _roles("readwrite").policies["api"]
        for sid, action, _ in policy.grants()
        if sid.startswith(("See", "Redrive", "Fill", "Run"))
    }
    assert {one for one in granted if one[0] not in {action for action, _ in asked}} == set()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["readonly", "readwrite"])
def test_the_function_answers_in_the_embedded_aws_and_its_role_allows_it(mode: str) -> None:
    call = json.loads((ROOT / "tests" / "events" / "api-function-url.json").read_text())
    settings = Settings(run_schedules=False, parameters={"ApiMode": mode})
    with Environment(ROOT / "template.yaml", settings) as env, judged(env), pytest.MonkeyPatch.context() as patch:
        for name, value in env.environment.items():
            patch.setenv(name, value)
        store = S3Store(env.bucket, endpoint_url=env.endpoint_url)
        push(store, load_schema({"models": {"Note": {"path": "#org/@notes/(id:string)", "fields": {}}}}))
        outcome = env.invoke("api", call)
        assert outcome.kind is OutcomeKind.OK, outcome.error
        answer = cast("dict[str, Any]", outcome.value)
        assert (answer["statusCode"], [one["name"] for one in json.loads(answer["body"])["items"]]) == (200, ["Note"])
        path = {"rawPath": "/v1/models/Note/documents", "body": "{}", "headers": {"content-type": "application/json"}}
        http = {**call["requestContext"]["http"], "method": "POST", "path": path["rawPath"]}
        written = env.invoke("api", {**call, **path, "requestContext": {**call["requestContext"], "http": http}})
        assert cast("dict[str, Any]", written.value)["statusCode"] == (201 if mode == "readwrite" else 403)
        env.wait_quiet(60)


# -- what the API asks for


class ApiLife:
    """Calls by HTTP and the verbs behind them, on a store that keeps what they ask of S3."""

    def __init__(self, storage: Mapping[str, object]) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(21, self.clock)
        self.store = Recorder(versioned=True, clock=self.clock, ids=self.ids)
        model = {
            "path": "#org/@customers/(id:string)",
            "fields": {name: {"type": "string"} for name in ("name", "status")},
            "oplog": True,
            **TABLE,
        }
        self.schema = load_schema({"version": "1.0", "storage": storage, "models": {"Customer": model}})
        self.store.put(SCHEMA_KEY, self.schema.to_json())
        ensure_safe(self.store, ids=self.ids)
        _, self.token = create_token(self.store, self.ids)

    def session(self) -> Worm:
        """As the function opens it."""
        return Worm(self.store, self.schema, maintenance="events", clock=self.clock, ids=self.ids)

    def tables(self) -> None:
        """What the workers do meanwhile."""
        other = Worm(self.store, self.schema, maintenance="inline", clock=self.clock, ids=self.ids)
        other.sweep()
        other.close()

    def write(self) -> None:
        with self.store.acting("api"):
            client = Client(Api(self.session))
            path = "/v1/models/Customer/documents"
            once = {"Idempotency-Key": "1"}
            made, again = (client.call("POST", path, {"id": "a", "name": "A"}, once) for _ in range(2))
            assert (made.status, again.status) == (201, 201)
            assert client.call("PUT", f"{path}/b", {"name": "B"}, {"If-None-Match": "*"}).status == 201
            assert client.call("PUT", f"{path}/a", {"name": "C"}, {"If-Match": made.etag}).status == 200
            merge = {"Content-Type": "application/merge-patch+json"}
            assert client.call("PATCH", f"{path}/a", '{"status": "x"}', merge).status == 200
        self.tables()
        with self.store.acting("api"):
            assert client.call("DELETE", f"{path}/a").status == 204
            assert client.call("PATCH", f"{path}/none", "{}", merge).status == 404
        self.tables()
        copies = [one.key for one in self.store.list("") if ".worm.trash" in one.key and "data.json" in one.key]
        for key in copies:  # a copy that is lost: the version of the document is read instead
            self.store.delete(key)
        with self.store.acting("api"):
            customers = self.session().model("Customer")
            customers.restore("a")
            customers.rollback("b", to_seq=1)
            customers.delete("b")
            customers.purge("b")
        self.tables()

    def read(self) -> None:
        """Also of what somebody has uploaded twice, and no worker has recorded yet."""
        raw = "org/customers/raw/data.json"
        self.store.put(raw, b'{"name": "raw"}')
        self.tables()
        for name in (b"one", b"two"):
            self.store.put(raw, b'{"name": "%b"}' % name)
        trust = DeployedCallers(Trust("tokens"))
        with self.store.acting("api"):
            client = Client(Api(self.session, ApiSettings(is_readonly=True), trust))
            given = {"Authorization": f"Bearer {self.token}"}
            for path in ("/v1/models", "/v1/models/Customer/documents/a"):
                assert client.call("GET", path, headers=given).status == 200
            session = self.session()
            customers = session.model("Customer")
            customers.find_all({"status": "x"})
            customers.get_history("a")
            customers.list_trashed()
            customers.get_at("a", seq=1)
            session.history()
            for one in ("a", "raw", "never-there"):
                session.why(f"org/customers/{one}/data.json")
            customers.get("raw")


def _untagged(calls: Iterable[Call]) -> frozenset[Call]:
    """The recorder tags what can be rebuilt, as the workers do; the store of the API does not."""
    kept = [[pair for pair in one.headers if pair[0] != "x-amz-tagging"] for one in calls]
    return frozenset(replace(one, headers=tuple(pairs)) for one, pairs in zip(calls, kept, strict=True))


@cache
def api_calls(layout: str, snapshots: str, trash: str) -> tuple[frozenset[Call], frozenset[Call]]:
    """Those of reading, and those of writing."""
    life = ApiLife({"layout": layout, "snapshots": snapshots, "trash": trash})
    life.write()
    written = _untagged(life.store.calls)
    life.store.calls.clear()
    life.read()
    return _untagged(life.store.calls), written


@cache
def space_calls() -> frozenset[Call]:
    """A commit, a branch and its merge."""
    life = SpaceLife({"layout": "root"})
    with life.store.acting("api"):
        life.commit(("a", {"email": "a@x", "balance": 1}))
        session = life.bench.session(maintenance="events")
        session.create_branch("trial")
        session.branch("trial").model("Account").patch("a", {"email": "b@x"})
        session.merge("trial")
        session.delete_branch("trial")
    return _untagged(life.store.calls)


EVERY = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@EVERY
def test_every_request_of_the_api_is_allowed(variant: Variant) -> None:
    reading, writing = api_calls(variant.layout, variant.snapshots, variant.trash)
    assert _roles("readonly", variant).refused({variant.moved(one) for one in reading}) == []
    assert _roles("readwrite", variant).refused({variant.moved(one) for one in reading | writing}) == []
    assert _roles("readonly", variant).refused({variant.moved(one) for one in writing}) != []


def test_every_request_for_models_in_spaces_is_allowed() -> None:
    assert _roles("readwrite").refused(set(space_calls())) == []


@EVERY
def test_no_permission_on_objects_is_there_for_nothing(variant: Variant) -> None:
    roles = _roles("readwrite", variant)
    reading, writing = api_calls(variant.layout, variant.snapshots, variant.trash)
    roles.refused({variant.moved(one) for one in reading | writing})
    unused = {(sid, action) for _, sid, action, _ in roles.unused("api") if action.startswith(("s3:", "kms:"))}
    assert {one for one in unused if not one[0].startswith(("Leave", "See"))} == set()
