"""The templates for the tests of this folder: as written, and as a stack with given parameters has them.

A resolved stack holds the resources of all templates, with names and ARNs in the place of references.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from worm.dev.cfn import load
from worm.dev.template import read_resources

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "template.yaml"
NESTED = [ROOT / "functions" / name for name in ("roles.yaml", "pages.yaml", "api.yaml", "observability.yaml")]
TEMPLATES = [TEMPLATE, *NESTED, ROOT / "spark_jobs" / "template.yaml"]

Json = dict[str, Any]
BUCKET = "worm-dev-documentbucket"
STACK = "worm-dev"
FULL = {"SparkArtifactsBucket": "artifacts", "SpaceDocuments": "*", "ApiMode": "readwrite"}
"""A stack with all parts, where models in spaces may have any documents; other parameters have their defaults."""


@cache
def document(path: Path = TEMPLATE) -> Json:
    """As written: `{"Ref": …}`, `{"Fn::GetAtt": […]}`."""
    return load(path.read_text())


def parameter_defaults() -> Json:
    return {name: spec["Default"] for name, spec in document()["Parameters"].items()}


@cache
def _stack(parameters: frozenset[tuple[str, str]]) -> dict[str, Json]:
    return read_resources(TEMPLATE, parameters=dict(parameters))


def stack(**parameters: str) -> dict[str, Json]:
    """Logical id → resource. Parameters that are not given are those of `FULL`."""
    return _stack(frozenset({**FULL, **parameters}.items()))


def resources(kind: str, **parameters: str) -> dict[str, Json]:
    """Logical id → properties, of one resource type."""
    return {name: one["Properties"] for name, one in stack(**parameters).items() if one["Type"] == kind}


def queue_id(arn_or_url: str, **parameters: str) -> str:
    """The logical id of the queue with this ARN or URL."""
    name = arn_or_url.replace("/", ":").rsplit(":", 1)[1]
    queues = resources("AWS::SQS::Queue", **parameters)
    return next(logical_id for logical_id, one in queues.items() if one["QueueName"] == name)


@dataclass(frozen=True)
class Function:
    """One function with the parts of the stack that belong to it."""

    id: str
    properties: Json = field(hash=False)

    @property
    def folder(self) -> str:
        return Path(self.properties["CodeUri"]).name

    @property
    def events(self) -> dict[str, Json]:
        return dict(self.properties.get("Events", {}))

    def queue_event(self) -> Json | None:
        return next((event["Properties"] for event in self.events.values() if event["Type"] == "SQS"), None)

    def schedule_event(self) -> Json | None:
        return next((event["Properties"] for event in self.events.values() if event["Type"] == "ScheduleV2"), None)

    def queue(self) -> tuple[str, Json] | None:
        event = self.queue_event()
        if event is None:
            return None
        name = queue_id(event["Queue"])
        return name, resources("AWS::SQS::Queue")[name]

    def dead_letter_queue(self) -> str:
        """Where its failed work ends: by the queue's redrive, or by the on-failure destination of a schedule."""
        queue = self.queue()
        if queue is not None:
            return queue_id(queue[1]["RedrivePolicy"]["deadLetterTargetArn"])
        return queue_id(self.properties["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]["Destination"])

    def role(self) -> str:
        """Logical id of its role."""
        roles = resources("AWS::IAM::Role")
        return next(name for name in roles if self.properties["Role"].endswith(f"-{name}"))

    def statements(self, **parameters: str) -> list[Json]:
        return role_statements(self.role(), **parameters)


def role_statements(role: str, **parameters: str) -> list[Json]:
    """What a role may do, by its own policies and by those that it shares, in a stack with these parameters."""
    properties = resources("AWS::IAM::Role", **parameters)[role]
    shared = resources("AWS::IAM::ManagedPolicy", **parameters)
    policies = [one["PolicyDocument"] for one in properties["Policies"]]
    policies += [shared[arn.rsplit("-", 1)[1]]["PolicyDocument"] for arn in properties.get("ManagedPolicyArns", [])]
    return [statement for policy in policies for statement in policy["Statement"]]


def functions() -> list[Function]:
    return [Function(name, properties) for name, properties in resources("AWS::Serverless::Function").items()]


def function(folder: str) -> Function:
    return next(one for one in functions() if one.folder == folder)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def object_patterns(statements: list[Json], action: str, effect: str = "Allow", *, bucket: str = BUCKET) -> set[str]:
    """Key patterns of the document bucket that the statements allow (or deny) for an action."""
    here = f"arn:aws:s3:::{bucket}/"
    return {
        resource.removeprefix(here)
        for statement in statements
        if action in as_list(statement["Action"]) and statement["Effect"] == effect
        for resource in as_list(statement["Resource"])
        if resource.startswith(here)
    }


def is_allowed(statements: list[Json], action: str, key: str) -> bool:
    """Does a role with these statements get the answer? A denial counts more than any permission."""

    def is_named(effect: str) -> bool:
        return any(fnmatch.fnmatchcase(key, one) for one in object_patterns(statements, action, effect))

    return is_named("Allow") and not is_named("Deny")
