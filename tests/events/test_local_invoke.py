"""`sam local invoke` against `worm dev --port 4566`: the committed variables, and every payload without Docker.

In a container only the runtime differs: here the same client of Lambda's Runtime API runs the function, with the same
variables, and nothing reads the queues of the embedded AWS, as in a container.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from tests.events.make_events import BUCKET, DOCUMENT, KEY
from tests.template.stack import ROOT, Stack
from worm.dev.aws import Aws, start_moto
from worm.dev.demo import CONTAINER_HOST
from worm.dev.provision import provision
from worm.dev.queues import peek
from worm.dev.runtime import FunctionPool, function_environment
from worm.dev.sample.documents import SCHEMA_PATH
from worm.dev.specs import Template
from worm.dev.template import read_template
from worm.dev.worker import OutcomeKind
from worm.formats import load_schema
from worm.sdk.database import Worm, push
from worm.store.s3 import S3Store

HERE = Path(__file__).resolve().parent
ENV_FILE = HERE / "env.json"
ENDPOINT = f"http://{CONTAINER_HOST}:4566"
UNRESOLVED = {"AWS_ENDPOINT_URL", "WORM_API_MODE", "WORM_BUCKET", "WORM_DLQ_URL", "WORM_PREFIX"}
"""SAM gives them the logical name of what they refer to, nothing, or the default of a parameter."""
PARAMETERS = {"ApiMode": "readonly"}
PAYLOADS = sorted(path.stem for path in HERE.glob("*-*.json"))


@cache
def variables() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(ENV_FILE.read_text())
    return found


def _declared(stack: Stack) -> dict[str, set[str]]:
    """The variables of each function by its logical id, nested stacks included."""
    shared = stack.document.get("Globals", {}).get("Function", {}).get("Environment", {}).get("Variables", {})
    found = {
        name: {*shared, *one["Properties"].get("Environment", {}).get("Variables", {})}
        for name, one in stack.document["Resources"].items()
        if one["Type"] == "AWS::Serverless::Function"
    }
    for nested in stack.nested.values():
        found |= _declared(nested)
    return found


def test_the_file_gives_every_function_what_sam_cannot_resolve_and_no_more() -> None:
    """SAM ignores a variable that the template does not declare, in silence."""
    wanted = {name: declared & UNRESOLVED for name, declared in _declared(Stack(parameters=PARAMETERS)).items()}
    assert {name: set(given) for name, given in variables().items()} == wanted
    assert all({"AWS_ENDPOINT_URL", "WORM_BUCKET"} <= given for given in wanted.values())


def test_the_file_names_the_port_the_bucket_and_the_queues_of_worm_dev() -> None:
    template = read_template(ROOT / "template.yaml")
    queues = {queue.name for queue in template.queues}
    for name, given in variables().items():
        assert (given["AWS_ENDPOINT_URL"], given["WORM_BUCKET"]) == (ENDPOINT, BUCKET)
        assert [bucket.name for bucket in template.buckets] == [BUCKET]
        if name == "ApiFunction":  # its callers wait for its answers
            continue
        queue = f"worm-dev-{name.removesuffix('Function').lower()}-dlq"
        assert queue in queues
        assert given["WORM_DLQ_URL"] == f"{ENDPOINT}/000000000000/{queue}"


@pytest.mark.tools
def test_sam_hands_the_variables_of_the_file_to_every_function() -> None:
    python = ROOT / ".venv-tools" / "bin" / "python"
    script, template = HERE / "sam_environment.py", ROOT / "template.yaml"
    command = [str(python), str(script), str(template), str(ENV_FILE)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen.keys() == variables().keys()
    assert {name: {key: seen[name].get(key) for key in given} for name, given in variables().items()} == variables()


class Local:
    """The embedded AWS without its pollers, and functions with the variables of the file."""

    def __init__(self, aws: Aws, template: Template, folder: Path) -> None:
        self.aws, self._template, self._folder = aws, template, folder
        self._pools: dict[str, FunctionPool] = {}
        self.queues = {made.spec.name: made.url for made in provision(aws, template).queues.values()}
        self.store = S3Store(BUCKET, endpoint_url=aws.endpoint_url)
        self.schema = load_schema(json.loads(SCHEMA_PATH.read_text()))
        push(self.store, self.schema)

    def pool(self, function: str) -> FunctionPool:
        if function not in self._pools:
            spec = self._template.function(function)
            given = {
                name: value.replace(ENDPOINT, self.aws.endpoint_url)
                for name, value in variables()[spec.logical_id].items()
            }
            inside = {**function_environment(spec, self.aws, self._folder), **given}
            self._pools[function] = FunctionPool(spec, inside, self._folder / f"{function}.log", 1)
        return self._pools[function]

    def invoke(self, payload: str) -> object:
        outcome = self.pool(payload.partition("-")[0]).invoke(json.loads((HERE / f"{payload}.json").read_text()))
        assert outcome.kind is OutcomeKind.OK, outcome.error
        return outcome.value

    def buried(self, function: str) -> list[str]:
        letters = peek(self.aws.sqs(), self.queues[f"worm-dev-{function}-dlq"])
        return [letter["MessageAttributes"]["reason"]["StringValue"] for letter in letters]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    folder = tmp_path_factory.mktemp("local")
    aws = start_moto(folder, "us-east-1")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in aws.environment().items():
            patch.setenv(name, value)
        try:
            one = Local(aws, read_template(ROOT / "template.yaml", parameters=PARAMETERS), folder)
            yield one
            one.close()
        finally:
            aws.stop()


@pytest.mark.slow
@pytest.mark.xdist_group("local-invoke")
def test_every_payload_ends_without_an_error_and_only_what_is_no_event_is_buried(local: Local) -> None:
    for payload in [one for one in PAYLOADS if not one.startswith("api-")]:
        answer = local.invoke(payload)
        assert answer == {"batchItemFailures": []} or isinstance(answer, list), payload
    assert local.buried("apply") == local.buried("tables") == []
    (reason,) = local.buried("capture")
    assert "Expecting value" in reason


@pytest.mark.slow
@pytest.mark.xdist_group("local-invoke")
def test_the_api_answers_who_is_signed_and_nobody_else(local: Local) -> None:
    answered, refused = (cast("dict[str, Any]", local.invoke(f"api-{one}")) for one in ("function-url", "http-api-jwt"))
    assert (answered["statusCode"], refused["statusCode"]) == (200, 401)
    assert {one["name"] for one in json.loads(answered["body"])["items"]} == set(local.schema.models)
    assert json.loads(refused["body"])["type"] == "urn:worm:unauthenticated"


@pytest.mark.slow
@pytest.mark.xdist_group("local-invoke")
def test_a_document_that_is_there_gets_its_history_by_the_payload(local: Local) -> None:
    """What the page about development shows."""
    local.store.put(KEY, DOCUMENT)
    local.invoke("capture-eventbridge-created")
    history = Worm(local.store, local.schema, maintenance="events").model("Invoice").get_history("acme")
    assert [entry.op for entry in history] == ["create"]
