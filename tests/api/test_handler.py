"""The function: what it loads, and the same answers by a Function URL and by an HTTP API."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from tests.api.client import event, reply
from tests.api.conftest import SCHEMA
from tests.project.source_tree import ROOT
from tests.workers.function_room import Deployed, Functions
from worm.api.app import Api, failure_of
from worm.api.call import ApiSettings
from worm.api.opening import open_on_lambda
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Invalid, Unavailable
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store

DOCUMENTS = "/v1/models/Customer/documents"
UNWANTED = [
    "boto3",
    "botocore.session",
    "moto",
    "msgspec",
    "pandas",
    "pyarrow",
    "pyspark",
    "rich",
    "typer",
    "worm.spaces.space",
]
CONTEXT = SimpleNamespace(
    function_name="api", memory_limit_in_mb=512, invoked_function_arn="arn:aws:lambda:x", aws_request_id="r"
)


def by_http_api(sent: dict[str, Any], stage: str = "$default") -> dict[str, Any]:
    """The same call as an HTTP API brings it: another domain, a route key, a stage before the path."""
    prefix = "" if stage == "$default" else f"/{stage}"
    context = {**sent["requestContext"], "domainName": "x.execute-api.eu-central-1.amazonaws.com", "stage": stage}
    context["routeKey"] = key = f"{context['http']['method']} /{{proxy+}}"
    parameters = {"proxy": sent["rawPath"].removeprefix("/")}
    path = prefix + sent["rawPath"]
    return {**sent, "rawPath": path, "routeKey": key, "requestContext": context, "pathParameters": parameters}


def test_the_function_loads_only_what_a_call_needs() -> None:
    code = f"import sys, functions.api.handler; print([one for one in {UNWANTED} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_function_url_and_an_http_api_give_the_same_answers(session: Worm) -> None:
    api = Api(lambda: session)
    calls = [
        event("PUT", f"{DOCUMENTS}/a%2Fb", {"name": "A"}, {"If-Match": "*"}),
        event("GET", "/v1"),
        event("GET", DOCUMENTS, query={"filter": "status=active"}),
        event("GET", f"{DOCUMENTS}/none"),
        event("POST", DOCUMENTS, b'{"name": ', {"content-type": "application/json"}),
        event("PATCH", "/nothing"),
    ]
    for sent in calls:
        first = api.handle(sent)
        assert first == api.handle(by_http_api(sent))
        staged = api.handle(by_http_api(sent, "prod"))
        assert (staged["statusCode"], staged["body"]) == (first["statusCode"], first["body"])


def test_settings_come_from_the_environment() -> None:
    assert ApiSettings.from_environment({}).is_readonly is False
    made = ApiSettings.from_environment({"WORM_API_MODE": "readonly", "WORM_API_MAX_REQUESTS": "7"})
    assert (made.is_readonly, made.max_requests, made.is_local) == (True, 7, False)
    for wrong in ({"WORM_API_MODE": "no"}, {"WORM_API_MAX_REQUESTS": "0"}, {"WORM_API_MAX_REQUESTS": "x"}):
        with pytest.raises(Invalid):
            ApiSettings.from_environment(wrong)


def test_the_function_answers_from_its_bucket(
    moto_endpoint: str, aws_environment: None, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3

    bucket = f"api-{uuid4()}"
    boto3.client("s3", endpoint_url=moto_endpoint).create_bucket(Bucket=bucket)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_endpoint)
    monkeypatch.setenv("WORM_BUCKET", bucket)
    S3Store(bucket, "", endpoint_url=moto_endpoint).put(SCHEMA_KEY, load_schema(SCHEMA).to_json())
    handler = functions.load("api").module
    monkeypatch.setattr(handler, "api", Api(open_on_lambda, ApiSettings(is_local=False, max_answer_bytes=2000)))
    made = reply(handler.lambda_handler(event("POST", DOCUMENTS, {"id": "a", "name": "A"}), CONTEXT))
    assert made.status == 201, made.body
    again = reply(handler.lambda_handler(event("GET", f"{DOCUMENTS}/a"), CONTEXT))
    assert (again.etag, again.headers["Worm-Requests"]) == (made.etag, "1")
    large = event("PUT", f"{DOCUMENTS}/large", {"name": "x" * 3000}, {"If-None-Match": "*"})
    stored = reply(handler.lambda_handler(large, CONTEXT))
    assert (stored.status, stored.json["id"], stored.json["document"]) == (201, "large", None)
    found = reply(handler.lambda_handler(event("GET", f"{DOCUMENTS}/large"), CONTEXT))
    assert (found.status, found.etag) == (303, stored.etag)
    assert "X-Amz-Expires=60" in found.headers["Location"] or "Expires=" in found.headers["Location"]
    assert f"{bucket}/org/customers/large/data.json" in found.headers["Location"]


# What it reports


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Functions:
    monkeypatch.setenv("WORM_BUCKET", "documents")
    return Functions(monkeypatch, capsys)


def loaded(functions: Functions, session: Worm) -> Deployed:
    made = functions.load("api")
    made.module.api = Api(lambda: session)
    return made


def test_requests_and_cold_starts_are_counted_as_those_of_the_workers(functions: Functions, session: Worm) -> None:
    deployed = loaded(functions, session)
    made = reply(deployed.call(event("POST", DOCUMENTS, {"id": "a", "name": "A"})))
    lines = deployed.lines()
    assert lines.dimensions == [(["service", "stack"], "shop", "api")]
    assert (lines.metric("ColdStart"), lines.metric("Failures")) == ([1.0], [])
    assert lines.metric("StoreRequests") == [float(made.headers["Worm-Requests"])]
    assert lines.metric("ReadRequests")[0] + lines.metric("WriteRequests")[0] == lines.metric("StoreRequests")[0] > 0
    deployed.call(event("GET", f"{DOCUMENTS}/a"))
    again = deployed.lines()
    assert (again.metric("ColdStart"), again.metric("StoreRequests")) == ([], [1.0])


def test_an_answer_with_5xx_counts_as_a_failure_and_says_why_in_the_log(
    functions: Functions, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The invocation itself succeeds, so no alarm would ring while every call fails."""
    deployed = loaded(functions, session)

    def broken(*arguments: Any, **options: Any) -> Any:
        raise Unavailable("the store did not answer", key="org/customers/a/data.json")

    monkeypatch.setattr(MemoryStore, "get", broken)
    found = reply(deployed.call(event("GET", f"{DOCUMENTS}/a")))
    lines = deployed.lines()
    [said] = lines.said("call failed")
    assert (found.status, lines.metric("Failures")) == (503, [1.0])
    assert (said["error"], said["reason"], said["path"]) == (
        "urn:worm:unavailable",
        "the store did not answer",
        f"{DOCUMENTS}/a",
    )
    assert reply(deployed.call(event("HEAD", f"{DOCUMENTS}/a"))).status == 503
    assert deployed.lines().metric("Failures") == [1.0]


def test_what_a_caller_did_wrong_or_cannot_have_is_no_failure(
    functions: Functions, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed = loaded(functions, session)
    monkeypatch.setattr("worm.api.sql.find_spec", lambda name: None)
    asked = event("POST", "/v1/sql", {"statement": "select 1"})
    statuses = [reply(deployed.call(one)).status for one in (event("GET", f"{DOCUMENTS}/none"), asked)]
    assert (statuses, deployed.lines().metric("Failures")) == ([404, 501], [])


def test_a_call_before_the_first_push_rings_no_alarm() -> None:
    no_schema = {"statusCode": 503, "body": '{"type": "urn:worm:no-schema", "detail": "no schema yet"}'}
    assert failure_of(no_schema) is None
    assert failure_of({**no_schema, "body": '{"type": "urn:worm:unavailable"}'}) is not None
