"""template.yaml for the tests of this folder: parsed, with questions that several tests ask.

Values stay as written (`{"Ref": …}`, `{"Fn::GetAtt": […]}`): the tests compare wiring, not physical names.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from worm_dev.cfn import load

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "template.yaml"

Json = dict[str, Any]
DOCUMENTS = "*"
"""The default of `SpaceDocuments`: the schema names the folders, and may name any."""


@cache
def document() -> Json:
    return load(TEMPLATE.read_text())


def parameter_defaults() -> Json:
    return {name: spec["Default"] for name, spec in document()["Parameters"].items()}


def default(value: Any) -> Any:
    """The value, or the default of the parameter that it refers to."""
    return document()["Parameters"][value["Ref"]]["Default"] if isinstance(value, dict) else value


def resources(kind: str) -> dict[str, Json]:
    """Logical id → properties, of one resource type."""
    found = document()["Resources"].items()
    return {name: resource["Properties"] for name, resource in found if resource["Type"] == kind}


def logical_id(reference: Any) -> str:
    """The resource that `Ref` or `GetAtt` names."""
    name = reference["Ref"] if "Ref" in reference else reference["Fn::GetAtt"][0]
    assert isinstance(name, str)
    return name


@dataclass(frozen=True)
class Function:
    """One function with the parts of the template that belong to it."""

    id: str
    properties: Json

    @property
    def folder(self) -> str:
        return str(self.properties["CodeUri"]).removeprefix("functions/").removesuffix("/")

    @property
    def events(self) -> dict[str, Json]:
        return dict(self.properties["Events"])

    def queue_event(self) -> Json | None:
        return next((event["Properties"] for event in self.events.values() if event["Type"] == "SQS"), None)

    def schedule_event(self) -> Json | None:
        return next((event["Properties"] for event in self.events.values() if event["Type"] == "ScheduleV2"), None)

    def queue(self) -> tuple[str, Json] | None:
        event = self.queue_event()
        if event is None:
            return None
        name = logical_id(event["Queue"])
        return name, resources("AWS::SQS::Queue")[name]

    def dead_letter_queue(self) -> str:
        """Where its failed work ends: by the queue's redrive, or by the on-failure destination of a schedule."""
        queue = self.queue()
        if queue is not None:
            return logical_id(queue[1]["RedrivePolicy"]["deadLetterTargetArn"])
        return logical_id(self.properties["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]["Destination"])

    def statements(self) -> list[Json]:
        return role_statements(logical_id(self.properties["Role"]))


def role_statements(role: str, **values: str) -> list[Json]:
    """What a role may do, in a stack with these parameters."""
    policies = resources("AWS::IAM::Role")[role]["Policies"]
    statements = [_chosen(one, values) for policy in policies for one in policy["PolicyDocument"]["Statement"]]
    return [one for one in statements if one != {"Ref": "AWS::NoValue"}]


def _chosen(node: Any, values: Json) -> Any:
    """The branch of an `If` that counts for these parameters."""
    if "Fn::If" in node:
        condition, yes, no = node["Fn::If"]
        return yes if is_true(condition, values) else no
    return node


def functions() -> list[Function]:
    return [Function(name, properties) for name, properties in resources("AWS::Serverless::Function").items()]


def function(folder: str) -> Function:
    return next(one for one in functions() if one.folder == folder)


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_true(condition: str, values: Json) -> bool:
    """Whether a condition of the template holds for these parameters; the others have their defaults."""
    given = parameter_defaults() | values

    def holds(node: Json) -> bool:
        ((function, arguments),) = node.items()
        if function == "Condition":
            return is_true(str(arguments), values)
        if function == "Fn::Equals":
            left, right = (given[side["Ref"]] if isinstance(side, dict) else side for side in arguments)
            return bool(left == right)
        parts = [holds(argument) for argument in arguments]
        return {"Fn::Not": not parts[0], "Fn::And": all(parts), "Fn::Or": any(parts)}[function]

    return holds(document()["Conditions"][condition])


def object_patterns(
    statements: list[Json], action: str, layout: str, effect: str = "Allow", **overrides: str
) -> set[str]:
    """Key patterns of the document bucket that the statements allow (or deny) for an action, in a bucket of the given
    layout. `overrides` are the parameters of single directories: `TrashLayout="inline"`."""
    patterns = set()
    for statement in statements:
        if action in as_list(statement["Action"]) and statement["Effect"] == effect:
            values = {"Layout": layout, **overrides}
            patterns |= {_key_pattern(resource, values) for resource in as_list(statement["Resource"])}
    return patterns


def _key_pattern(resource: Any, values: Json) -> str:
    text = str(_chosen(resource, values)["Fn::Sub"])
    bucket = "${DocumentBucket.Arn}/"
    assert text.startswith(bucket), text
    return text.removeprefix(bucket).replace("${SpaceDocuments}", str(values.get("SpaceDocuments", DOCUMENTS)))


def is_allowed(statements: list[Json], action: str, key: str, layout: str, **overrides: str) -> bool:
    """Does a role with these statements get the answer? A denial counts more than any permission."""

    def is_named(effect: str) -> bool:
        patterns = object_patterns(statements, action, layout, effect, **overrides)
        return any(fnmatch.fnmatchcase(key, one) for one in patterns)

    return is_named("Allow") and not is_named("Deny")
