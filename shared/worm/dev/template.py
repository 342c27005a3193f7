"""template.yaml as typed specs: what the embedded AWS has to create.

Role: reads the deployed SAM template, so that the wiring under test is the wiring in production. Only what the
embedded AWS acts on is read (buckets, queues, rules, functions, event sources, schedules); roles, alarms, dashboards,
log groups, bucket policies (TLS-only would refuse a loopback endpoint) and KMS keys have no effect here.
A nested template (`AWS::Serverless::Application` with a local `Location`) has its own reader, with the given
parameters; its specs join those of the parent template, which can use its outputs. Vocabulary: *logical id* is the name
in the template; *physical name* is what AWS would call it; a function's *name* is its folder (`functions/capture/` is
`capture`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from worm.dev.cfn import ACCOUNT_ID, Node, Resolver, load
from worm.dev.names import NAME_PROPERTY, arn
from worm.dev.sam import event_source_spec, flag, merge, schedule_spec, text_of, without
from worm.dev.specs import (
    PACKAGE_FOLDER,
    BucketSpec,
    EventSourceSpec,
    FunctionSpec,
    QueueSpec,
    RuleSpec,
    RuleTarget,
    ScheduleSpec,
    Template,
)
from worm.errors import Invalid

DEFAULT_REGION = "us-east-1"
DEFAULT_STACK = "worm-dev"
_NESTED = "AWS::Serverless::Application"
_LISTS = ("buckets", "queues", "rules", "functions", "event_sources", "schedules")


def read_template(
    path: Path, *, parameters: Mapping[str, str] | None = None, region: str = DEFAULT_REGION, stack: str = DEFAULT_STACK
) -> Template:
    """Reads and resolves the template; `Invalid` names the path of anything that cannot be read."""
    return _reader(path.resolve(), parameters or {}, region, stack, {}).read()


def read_resources(path: Path, *, parameters: Mapping[str, str] | None = None) -> dict[str, dict[str, Node]]:
    """Every resource of the template and its nested templates, by its logical id, with nothing left to resolve.
    Includes resources that the embedded AWS does not act on, such as roles and alarms."""
    return _reader(path.resolve(), parameters or {}, DEFAULT_REGION, DEFAULT_STACK, {}).resources()


@lru_cache(maxsize=16)
def _loaded(text: str) -> dict[str, Node]:
    """Cached, so nobody must change it: parsing YAML takes most of the time of reading a template."""
    return load(text)


def _reader(path: Path, parameters: Mapping[str, str], region: str, stack: str, layers: Mapping[str, Path]) -> _Reader:
    document = _loaded(path.read_text(encoding="utf-8"))
    resolver = Resolver(document, parameters, region, stack)
    reader = _Reader(path, document, resolver, region, stack, layers)
    resolver.resources = reader
    return reader


_QUEUE_ATTRIBUTES = (
    "VisibilityTimeout",
    "MessageRetentionPeriod",
    "MaximumMessageSize",
    "DelaySeconds",
    "ReceiveMessageWaitTimeSeconds",
    "SqsManagedSseEnabled",
    "FifoQueue",
    "ContentBasedDeduplication",
)


@dataclass
class _Reader:
    """One pass over the resources; also answers `Ref` and `Fn::GetAtt` (the `Resources` of cfn.py)."""

    path: Path
    document: Mapping[str, Node]
    resolver: Resolver
    region: str
    stack: str
    given_layers: Mapping[str, Path]
    """Layers of the parent template, by the value of their `Ref` there."""
    _names: dict[str, str] = field(default_factory=dict)
    _nested: dict[str, _Reader] = field(default_factory=dict)

    def read(self) -> Template:
        nested = [self._nested_reader(i).read() for i in self._of_type(_NESTED)]
        own = self._own()
        together = {name: sum((getattr(one, name) for one in nested), getattr(own, name)) for name in _LISTS}
        return replace(own, **together)

    def _own(self) -> Template:
        functions = self._functions()
        by_arn = {spec.arn: spec.name for spec in functions}
        sources, schedules = self._function_events(functions)
        return Template(
            path=self.path,
            region=self.region,
            buckets=tuple(self._bucket(i) for i in self._of_type("AWS::S3::Bucket")),
            queues=self._queues(),
            rules=self._rules(),
            functions=functions,
            event_sources=tuple(sources) + self._mappings(by_arn),
            schedules=tuple(schedules) + self._schedule_resources(by_arn),
            outputs={name: self.output(name) for name in self.document.get("Outputs") or {} if self._has_output(name)},
        )

    def resources(self) -> dict[str, dict[str, Node]]:
        found: dict[str, dict[str, Node]] = {}
        for logical_id, resource in (self.document.get("Resources") or {}).items():
            path = f"Resources.{logical_id}"
            if "Condition" in resource and not self.resolver.holds(resource["Condition"], path):
                continue
            shared = self.document.get("Globals", {}).get(resource["Type"].removeprefix("AWS::Serverless::"), {})
            properties = merge(shared, resource.get("Properties") or {})
            new = {logical_id: {**resource, "Properties": self.resolver.resolve(properties, f"{path}.Properties")}}
            if resource["Type"] == _NESTED:
                new |= self._nested_reader(logical_id).resources()
            repeated = sorted(set(new) & set(found))
            if repeated:
                raise Invalid(f"two templates of one stack have a resource {', '.join(repeated)}", path=path)
            found |= new
        return found

    # --- nested templates

    def _nested_reader(self, logical_id: str) -> _Reader:
        """Created at its first use: a parameter may be the output of another nested template."""
        if logical_id not in self._nested:
            path = f"Resources.{logical_id}.Properties"
            location = self._property(logical_id, "Location")
            file = self.path.parent / str(location)
            if not (isinstance(location, str) and file.is_file()):
                raise Invalid(f"{location} is not a template on this machine", path=f"{path}.Location")
            parameters = {name: str(value) for name, value in self._property(logical_id, "Parameters", {}).items()}
            stack, layers = f"{self.stack}-{logical_id}", {**self.given_layers, **self._own_layers()}
            try:
                self._nested[logical_id] = _reader(file.resolve(), parameters, self.region, stack, layers)
            except Invalid as error:
                raise Invalid(f"{location}: {error.message}", path=f"{path}.Parameters") from error
        return self._nested[logical_id]

    def _has_output(self, name: str) -> bool:
        output = self.document["Outputs"][name]
        return "Condition" not in output or self.resolver.holds(output["Condition"], f"Outputs.{name}")

    def output(self, name: str) -> str:
        outputs = self.document.get("Outputs") or {}
        if name not in outputs:
            raise KeyError(f"no output {name} in {self.path.name}")
        return str(self.resolver.resolve(outputs[name]["Value"], f"Outputs.{name}.Value"))

    # --- Resources of cfn.py

    def ref(self, logical_id: str) -> str:
        kind = self._resource(logical_id)["Type"]
        name = self._physical_name(logical_id)
        if kind == "AWS::IAM::ManagedPolicy":
            return arn(kind, self.region, name)
        return f"https://sqs.{self.region}.amazonaws.com/{ACCOUNT_ID}/{name}" if kind == "AWS::SQS::Queue" else name

    def attribute(self, logical_id: str, name: str) -> str:
        kind = self._resource(logical_id)["Type"]
        if kind == _NESTED and name.startswith("Outputs."):
            return self._nested_reader(logical_id).output(name.removeprefix("Outputs."))
        if name == "Arn":
            return arn(kind, self.region, self._physical_name(logical_id))
        if name == "QueueName" and kind == "AWS::SQS::Queue":
            return self._physical_name(logical_id)
        if name == "FunctionUrl" and kind == "AWS::Lambda::Url":
            return f"https://{self._physical_name(logical_id).lower()}.lambda-url.{self.region}.on.aws/"
        raise KeyError(f"attribute {name} of {kind}")

    def _resource(self, logical_id: str) -> Mapping[str, Node]:
        resource: Mapping[str, Node] | None = (self.document.get("Resources") or {}).get(logical_id)
        if resource is None:
            raise KeyError(f"no resource {logical_id}")
        return resource

    def _physical_name(self, logical_id: str) -> str:
        if logical_id not in self._names:
            resource = self._resource(logical_id)
            kind = resource["Type"]
            given = (resource.get("Properties") or {}).get(NAME_PROPERTY.get(kind, ""))
            name = given and self.resolver.resolve(given, f"Resources.{logical_id}.Properties.{NAME_PROPERTY[kind]}")
            default = f"{self.stack}-{logical_id}"
            self._names[logical_id] = (
                name if isinstance(name, str) and name else default.lower() if kind == "AWS::S3::Bucket" else default
            )
        return self._names[logical_id]

    def _of_type(self, kind: str) -> list[str]:
        found = []
        for logical_id, resource in (self.document.get("Resources") or {}).items():
            path = f"Resources.{logical_id}"
            wanted = resource.get("Type") == kind
            if wanted and ("Condition" not in resource or self.resolver.holds(resource["Condition"], path)):
                found.append(logical_id)
        return found

    def _property(self, logical_id: str, name: str, default: Node = None) -> Node:
        properties = self._resource(logical_id).get("Properties") or {}
        if name not in properties:
            return default
        value = self.resolver.resolve(properties[name], f"Resources.{logical_id}.Properties.{name}")
        return value if isinstance(value, (str, int, float, bool, dict, list)) else default

    # --- storage and queues

    def _bucket(self, logical_id: str) -> BucketSpec:
        notifications = self._property(logical_id, "NotificationConfiguration", {})
        for kind in ("QueueConfigurations", "TopicConfigurations", "LambdaConfigurations"):
            if notifications.get(kind):
                where = f"Resources.{logical_id}.Properties.NotificationConfiguration.{kind}"
                raise Invalid("is not supported by the embedded AWS: send bucket events to EventBridge", path=where)
        on = "EventBridgeConfiguration" in notifications
        enabled = notifications.get("EventBridgeConfiguration", {}).get("EventBridgeEnabled", True) if on else False
        return BucketSpec(
            logical_id=logical_id,
            name=self._physical_name(logical_id),
            versioning=self._property(logical_id, "VersioningConfiguration", {}).get("Status") == "Enabled",
            event_bridge=flag(enabled),
            lifecycle_rules=tuple(self._property(logical_id, "LifecycleConfiguration", {}).get("Rules", ())),
            public_access_block={
                key: flag(value)
                for key, value in self._property(logical_id, "PublicAccessBlockConfiguration", {}).items()
            },
        )

    def _queues(self) -> tuple[QueueSpec, ...]:
        policies = {
            queue: json.dumps(self._property(logical_id, "PolicyDocument"))
            for logical_id in self._of_type("AWS::SQS::QueuePolicy")
            for queue in self._property(logical_id, "Queues", ())
        }
        return tuple(self._queue(i, policies.get(self.ref(i))) for i in self._of_type("AWS::SQS::Queue"))

    def _queue(self, logical_id: str, policy: str | None) -> QueueSpec:
        values = {name: self._property(logical_id, name) for name in _QUEUE_ATTRIBUTES}
        redrive = self._property(logical_id, "RedrivePolicy", {})
        return QueueSpec(
            logical_id=logical_id,
            name=self._physical_name(logical_id),
            arn=self.attribute(logical_id, "Arn"),
            attributes={name: text_of(value) for name, value in values.items() if value is not None},
            dead_letter_arn=redrive.get("deadLetterTargetArn"),
            receive_count_max=int(redrive.get("maxReceiveCount", 0)),
            policy=policy,
        )

    def _rules(self) -> tuple[RuleSpec, ...]:
        rules = []
        for logical_id in self._of_type("AWS::Events::Rule"):
            pattern = self._property(logical_id, "EventPattern")
            if pattern is None:
                continue
            targets = self._resource(logical_id)["Properties"].get("Targets", ())
            path = f"Resources.{logical_id}.Properties.Targets"
            rules.append(
                RuleSpec(
                    logical_id=logical_id,
                    name=self._physical_name(logical_id),
                    event_pattern=json.dumps(pattern),
                    enabled=self._property(logical_id, "State", "ENABLED") == "ENABLED",
                    targets=tuple(self._target(target, f"{path}[{i}]") for i, target in enumerate(targets)),
                )
            )
        return tuple(rules)

    def _target(self, target: Mapping[str, Node], path: str) -> RuleTarget:
        target_arn = str(self.resolver.resolve(target["Arn"], f"{path}.Arn"))
        if f":sqs:{self.region}:" not in target_arn:
            raise Invalid(f"rule target {target_arn} is not a queue: workers are fed by their queues", path=path)
        for unsupported in ("Input", "InputPath", "InputTransformer"):
            if unsupported in target:
                raise Invalid("is not supported by the embedded AWS", path=f"{path}.{unsupported}")
        return RuleTarget(id=str(self.resolver.resolve(target["Id"], f"{path}.Id")), arn=target_arn)

    # --- functions

    def _functions(self) -> tuple[FunctionSpec, ...]:
        ids = self._of_type("AWS::Serverless::Function")
        shared = self.document.get("Globals", {}).get("Function", {})
        merged = {i: merge(shared, self._resource(i).get("Properties") or {}) for i in ids}
        folders = {i: self._directory(merged[i], "CodeUri", i) for i in ids}
        repeated = {folder for folder, count in Counter(folders.values()).items() if count > 1}
        return tuple(
            self._function(i, merged[i], folders[i], i if folders[i] in repeated else folders[i].name) for i in ids
        )

    def _function(self, logical_id: str, properties: Mapping[str, Node], code: Path, name: str) -> FunctionSpec:
        path = f"Resources.{logical_id}.Properties"

        def value(key: str, default: Node) -> Node:
            return self.resolver.resolve(properties[key], f"{path}.{key}") if key in properties else default

        environment = value("Environment", {}).get("Variables", {})
        reserved = value("ReservedConcurrentExecutions", None)
        layers = properties.get("Layers", ())
        return FunctionSpec(
            logical_id=logical_id,
            name=name,
            function_name=self._physical_name(logical_id),
            arn=self.attribute(logical_id, "Arn"),
            code_dir=code,
            handler=str(value("Handler", "handler.lambda_handler")),
            environment={key: text_of(text) for key, text in environment.items()},
            timeout_seconds=int(value("Timeout", 3)),
            memory_mb=int(value("MemorySize", 128)),
            layer_dirs=tuple(self._layer(layer, f"{path}.Layers[{i}]") for i, layer in enumerate(layers)),
            reserved_concurrency=None if reserved is None else int(reserved),
            tmp_mb=int(value("EphemeralStorage", {}).get("Size", 512)),
        )

    def _directory(self, properties: Mapping[str, Node], key: str, logical_id: str) -> Path:
        path = f"Resources.{logical_id}.Properties.{key}"
        if key not in properties:
            raise Invalid("is missing", path=path)
        folder = (self.path.parent / str(self.resolver.resolve(properties[key], path))).resolve()
        if not folder.is_dir():
            raise Invalid(f"{properties[key]} is not a directory", path=path)
        return folder

    def _layer(self, layer: Node, path: str) -> Path:
        """The folder a layer is built from: its content is what /opt/python would hold."""
        layers = {**self.given_layers, **self._own_layers()}
        name = str(self.resolver.resolve(layer, path))
        if name not in layers:
            raise Invalid("only a layer of this template or the one above can be used locally", path=path)
        return layers[name]

    def _own_layers(self) -> dict[str, Path]:
        """The template of the wheel has no folder for its layer, which is the installed package with all it needs."""
        ids = self._of_type("AWS::Serverless::LayerVersion")
        if self.path.is_relative_to(PACKAGE_FOLDER):
            return {self.ref(i): PACKAGE_FOLDER for i in ids}
        return {self.ref(i): self._directory(self._resource(i)["Properties"], "ContentUri", i) for i in ids}

    def _function_events(self, functions: tuple[FunctionSpec, ...]) -> tuple[list[EventSourceSpec], list[ScheduleSpec]]:
        sources: list[EventSourceSpec] = []
        schedules: list[ScheduleSpec] = []
        for function in functions:
            events = self._resource(function.logical_id)["Properties"].get("Events") or {}
            for name, event in events.items():
                path = f"Resources.{function.logical_id}.Properties.Events.{name}"
                properties = without(event.get("Properties") or {}, "DeadLetterConfig", "RoleArn")
                values = self.resolver.resolve(properties, f"{path}.Properties")
                if event["Type"] == "SQS":
                    if flag(values.get("Enabled", True)):
                        sources.append(event_source_spec(function.name, str(values["Queue"]), values, path))
                elif event["Type"] in ("Schedule", "ScheduleV2"):
                    default_name = f"{function.logical_id}{name}"
                    schedules.append(schedule_spec(default_name, values, function.arn, function.name, path))
                else:
                    raise Invalid(f"event type {event['Type']} is not supported by the embedded AWS", path=path)
        return sources, schedules

    def _mappings(self, functions: Mapping[str, str]) -> tuple[EventSourceSpec, ...]:
        specs = []
        for logical_id in self._of_type("AWS::Lambda::EventSourceMapping"):
            path = f"Resources.{logical_id}.Properties"
            values = self.resolver.resolve(self._resource(logical_id)["Properties"], path)
            target = str(values["FunctionName"])
            names = {self.template_name(arn): name for arn, name in functions.items()} | dict(functions)
            if target not in names:
                raise Invalid(f"{target} is not a function of this template", path=f"{path}.FunctionName")
            specs.append(event_source_spec(names[target], str(values["EventSourceArn"]), values, path))
        return tuple(specs)

    @staticmethod
    def template_name(arn: str) -> str:
        return arn.rsplit(":", 1)[1]

    def _schedule_resources(self, functions: Mapping[str, str]) -> tuple[ScheduleSpec, ...]:
        specs = []
        for logical_id in self._of_type("AWS::Scheduler::Schedule"):
            path = f"Resources.{logical_id}"
            properties = self._resource(logical_id)["Properties"]
            target = without(properties["Target"], "RoleArn", "DeadLetterConfig", "RetryPolicy")
            resolved = self.resolver.resolve(target, f"{path}.Properties.Target")
            values = self.resolver.resolve(without(properties, "Target", "KmsKeyArn"), f"{path}.Properties")
            values["Input"] = resolved.get("Input")
            target_arn = str(resolved["Arn"])
            name = self._physical_name(logical_id)
            specs.append(schedule_spec(name, values, target_arn, functions.get(target_arn), path))
        return tuple(specs)
