"""A stack of template.yaml as CloudFormation would make it, nested stacks included: what its roles may do.

Values are resolved, with the names that the embedded AWS gives to resources, so that requests it recorded can be held
against the policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.template.policies import Json, NotUnderstood, Policy, as_list, is_allowed, is_like
from worm.dev.cfn import ACCOUNT_ID, PARTITION, Resolver, load
from worm.dev.environment import Environment
from worm.dev.iam import Call, Question, questions
from worm.dev.names import NAME_PROPERTY, arn

ROOT = Path(__file__).resolve().parents[2]
REGION = "us-east-1"
STACK = "worm-dev"
NESTED = ("AWS::Serverless::Application", "AWS::CloudFormation::Stack")


class Stack:
    """One template with its parameters (the `Resources` of worm.dev.cfn); `nested` are the stacks that it makes."""

    def __init__(
        self, path: Path = ROOT / "template.yaml", parameters: Mapping[str, str] | None = None, name: str = STACK
    ) -> None:
        self.path, self.name = path, name
        self.document = load(path.read_text())
        self.resolver = Resolver(self.document, parameters or {}, REGION, name)
        self.resolver.resources = self
        self._made: dict[str, Stack] = {}

    @property
    def nested(self) -> dict[str, Stack]:
        return {one: self._nested(one) for kind in NESTED for one in self._ids(kind)}

    def _nested(self, logical_id: str) -> Stack:
        """Made when first asked for: the parameters of one may be outputs of another."""
        if logical_id not in self._made:
            properties = self.document["Resources"][logical_id]["Properties"]
            path = self.path.parent / str(properties.get("Location") or properties["TemplateURL"])
            given = self.resolver.resolve(properties.get("Parameters", {}), f"Resources.{logical_id}")
            values = {name: str(value) for name, value in given.items()}
            self._made[logical_id] = Stack(path, values, f"{self.name}-{logical_id}")
        return self._made[logical_id]

    def ref(self, logical_id: str) -> str:
        kind, name = self._kind(logical_id), self._physical_name(logical_id)
        if kind == "AWS::IAM::ManagedPolicy":
            return f"arn:{PARTITION}:iam::{ACCOUNT_ID}:policy/{name}"
        return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT_ID}/{name}" if kind == "AWS::SQS::Queue" else name

    def attribute(self, logical_id: str, name: str) -> str:
        kind = self._kind(logical_id)
        if kind in NESTED:
            nested, output = self._nested(logical_id), name.removeprefix("Outputs.")
            return str(nested.resolver.resolve(nested.document["Outputs"][output]["Value"], f"Outputs.{output}"))
        if name in ("QueueName", "RoleName"):
            return self._physical_name(logical_id)
        return arn(kind, REGION, self._physical_name(logical_id))

    def _kind(self, logical_id: str) -> str:
        return str(self.document["Resources"][logical_id]["Type"])

    def _physical_name(self, logical_id: str) -> str:
        kind = self._kind(logical_id)
        given = self.document["Resources"][logical_id].get("Properties", {}).get(NAME_PROPERTY.get(kind, ""))
        named = self.resolver.resolve(given, f"Resources.{logical_id}") if given else None
        default = f"{self.name}-{logical_id}"
        return named if isinstance(named, str) else default.lower() if kind == "AWS::S3::Bucket" else default

    def _ids(self, kind: str) -> list[str]:
        found = [(name, one) for name, one in self.document["Resources"].items() if one["Type"] == kind]
        return [
            name for name, one in found if "Condition" not in one or self.resolver.holds(one["Condition"], f"{name}")
        ]

    def resources(self, kind: str, *names: str) -> Iterator[tuple[Stack, str, Json]]:
        """Stack, logical id and properties (only those of these names) of what exists, in this stack and below it."""
        for logical_id in self._ids(kind):
            given = self.document["Resources"][logical_id].get("Properties", {})
            chosen = {name: given[name] for name in names if name in given}
            yield self, logical_id, self.resolver.resolve(chosen, f"Resources.{logical_id}.Properties")
        for nested in self.nested.values():
            yield from nested.resources(kind, *names)


class Roles:
    """The roles of a stack as AWS judges them, and what was needed of their policies. A role is known by its function
    (`capture`), one that no function has by its logical id."""

    def __init__(self, stack: Stack, *, kms_key: str | None = None) -> None:
        self._kms_key = kms_key
        self._arns: dict[str, str] = {}
        self.policies: dict[str, list[Policy]] = {}
        self.managed = {
            owner.ref(name): Policy.of(found["PolicyDocument"], name)
            for owner, name, found in stack.resources("AWS::IAM::ManagedPolicy", "PolicyDocument")
        }
        takers = _functions(stack)
        for owner, name, found in stack.resources("AWS::IAM::Role", "Policies", "ManagedPolicyArns"):
            role_arn = owner.attribute(name, "Arn")
            taker = takers.get(role_arn, name)
            self._arns[taker], self.policies[taker] = role_arn, self._of_role(name, found)
        self.attached = [*_attached(stack)]

    def _of_role(self, name: str, found: Json) -> list[Policy]:
        attached = as_list(found.get("ManagedPolicyArns", []))
        foreign = [one for one in attached if one not in self.managed]
        if foreign:
            raise NotUnderstood(f"{name} has policies that are not in the template: {foreign}")
        own = [Policy.of(one["PolicyDocument"], name) for one in found.get("Policies", [])]
        return [*own, *(self.managed[one] for one in attached)]

    def may(self, role: str, action: str, resource: str, **context: str) -> bool:
        """One question that no call has asked, of a role or (with an empty name) of a service; it uses nothing up."""
        known = {"aws:SecureTransport": "true", "s3:TlsVersion": "1.3", **context}
        policies = [Policy(one.statements) for one in self._asked(role, resource)]
        return is_allowed(Question(action, resource, known), policies)

    def _asked(self, role: str, resource: str) -> list[Policy]:
        """The policies of the role, and those of the resource."""
        own = [policy for policy, arns in self.attached if any(is_like(resource, one) for one in arns)]
        return [*self.policies.get(role, []), *own]

    def refused(self, calls: set[Call]) -> list[str]:
        """What a role needs and has no permission for: role, action and resource, and the call that needs it."""
        found = []
        for call in sorted(calls, key=str):
            for question in questions(call, region=REGION, kms_key=self._kms_key):
                asked = Question(
                    question.action, question.resource, {**question.context, "aws:PrincipalArn": self._arns[call.role]}
                )
                if not is_allowed(asked, self._asked(call.role, asked.resource)):
                    found.append(f"{call.role}: {asked.action} on {asked.resource} ({call.operation}, {call.status})")
        return sorted(set(found))

    def unused(self, *roles: str) -> set[tuple[str, str, str, str]]:
        """Policy, sid, action and resource (or condition) that no call needed."""
        chosen = {id(one): one for role in roles for one in self.policies[role]}.values()
        return {(one.name, *grant) for one in chosen for grant in one.grants() - one.used}


def _attached(stack: Stack) -> Iterator[tuple[Policy, list[str]]]:
    """The policies of buckets and queues, each with the ARNs that it is for."""
    for _, name, found in stack.resources("AWS::S3::BucketPolicy", "Bucket", "PolicyDocument"):
        bucket = arn("AWS::S3::Bucket", REGION, str(found["Bucket"]))
        yield Policy.of(found["PolicyDocument"], name), [bucket, f"{bucket}/*"]
    for _, name, found in stack.resources("AWS::SQS::QueuePolicy", "Queues", "PolicyDocument"):
        queues = [arn("AWS::SQS::Queue", REGION, str(url).rsplit("/", 1)[1]) for url in found["Queues"]]
        yield Policy.of(found["PolicyDocument"], name), queues


def _functions(stack: Stack) -> dict[str, str]:
    """The role of each function → the function, by its folder."""
    found: dict[str, str] = {}
    for _, name, properties in stack.resources("AWS::Serverless::Function", "Role", "CodeUri", "Policies"):
        if "Policies" in properties or "Role" not in properties:
            raise NotUnderstood(f"{name} has a role that SAM makes")
        found[str(properties["Role"])] = Path(str(properties["CodeUri"])).name
    return found


@contextmanager
def judged(environment: Environment) -> Iterator[None]:
    """What the functions of the embedded AWS ask for meanwhile, their roles must allow, in this very stack."""
    environment.aws.record(spec.name for spec in environment.template.functions)
    yield
    stack = Stack(environment.template.path, environment.settings.parameters)
    refused = Roles(stack).refused(environment.aws.calls())
    assert refused == [], "\n".join(refused)
