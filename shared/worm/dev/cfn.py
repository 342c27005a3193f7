"""CloudFormation documents as plain data: YAML tags, parameters, conditions and intrinsic functions.

Role: turns one part of a template into values, with nothing left to resolve. It knows no resource type; the caller's
`Resources` says what `Ref` and `Fn::GetAtt` of a resource mean. Invariant: an intrinsic that is not understood is an
error that names it and its path in the template, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import yaml

from worm.errors import Invalid

try:
    from yaml import CSafeLoader as SafeLoader  # ten times as fast
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader  # type: ignore[assignment]  # the same in Python

ACCOUNT_ID = "000000000000"
PARTITION = "aws"
_SUB_VARIABLE = re.compile(r"\$\{(!?)([^}]*)\}")

Node = Any
"""A piece of a template: what YAML can hold. Only this module and template.py look inside."""


class _NoValue:
    """`AWS::NoValue`: the property it is assigned to does not exist."""


NO_VALUE = _NoValue()


class Resources(Protocol):
    """Gives meaning to references to resources. Raises `KeyError` if it has none."""

    def ref(self, logical_id: str) -> str: ...
    def attribute(self, logical_id: str, name: str) -> str: ...


class _Loader(SafeLoader):
    """YAML with CloudFormation's short tags (`!Sub x` is read as `{"Fn::Sub": x}`)."""


def _short_tag(loader: _Loader, suffix: str, node: yaml.Node) -> Node:
    value: Node
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    elif isinstance(node, yaml.MappingNode):
        value = loader.construct_mapping(node, deep=True)
    else:
        raise Invalid(f"unexpected YAML node under !{suffix}")
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(node.value)


_Loader.add_multi_constructor("!", _short_tag)
# 2010-09-09 stays text, as CloudFormation reads it.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", _text)


def load(text: str) -> dict[str, Node]:
    """The template as plain data, intrinsics in their long form."""
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise Invalid(f"not YAML: {error}") from error
    if not isinstance(document, dict):
        raise Invalid("a template must be a mapping with Resources")
    return document


class Resolver:
    """Resolves intrinsics against parameters, conditions, mappings and resources of one template."""

    def __init__(self, document: Mapping[str, Node], parameters: Mapping[str, str], region: str, stack: str) -> None:
        self._document = document
        self._values: dict[str, Node] = {
            "AWS::AccountId": ACCOUNT_ID,
            "AWS::Region": region,
            "AWS::Partition": PARTITION,
            "AWS::StackName": stack,
            "AWS::StackId": f"arn:{PARTITION}:cloudformation:{region}:{ACCOUNT_ID}:stack/{stack}/dev",
            "AWS::URLSuffix": "amazonaws.com",
            "AWS::NoValue": NO_VALUE,
        }
        self._values.update(_parameter_values(document.get("Parameters") or {}, parameters))
        self.resources: Resources | None = None
        self._functions: dict[str, Callable[[Node, str], Node]] = {
            "Ref": self._ref,
            "Condition": self._condition,
            "Fn::Sub": self._sub,
            "Fn::GetAtt": self._get_att,
            "Fn::Join": self._join,
            "Fn::Select": self._select,
            "Fn::Split": self._split,
            "Fn::FindInMap": self._find_in_map,
            "Fn::If": self._if,
            "Fn::Equals": lambda node, path: _pair(self.resolve(node, path), path),
            "Fn::Not": lambda node, path: not _booleans(self.resolve(node, path), path)[0],
            "Fn::And": lambda node, path: all(_booleans(self.resolve(node, path), path)),
            "Fn::Or": lambda node, path: any(_booleans(self.resolve(node, path), path)),
        }

    def resolve(self, node: Node, path: str) -> Node:
        """The value of `node`; `path` (like `Resources.Queue.Properties`) is for error messages."""
        if isinstance(node, list):
            items = (self.resolve(item, f"{path}[{index}]") for index, item in enumerate(node))
            return [item for item in items if item is not NO_VALUE]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            (name,) = node
            if name in self._functions and (name != "Condition" or isinstance(node[name], str)):
                return self._functions[name](node[name], path)
            if isinstance(name, str) and name.startswith("Fn::"):
                raise Invalid(f"intrinsic {name} is not supported by the embedded AWS", path=path)
        values = {key: self.resolve(value, f"{path}.{key}") for key, value in node.items()}
        return {key: value for key, value in values.items() if value is not NO_VALUE}

    def holds(self, condition: str, path: str) -> bool:
        """Whether the named condition of the template holds."""
        conditions = self._document.get("Conditions") or {}
        if condition not in conditions:
            raise Invalid(f"condition {condition} is not defined", path=path)
        return bool(self.resolve(conditions[condition], f"Conditions.{condition}"))

    def _condition(self, node: Node, path: str) -> bool:
        return self.holds(str(node), path)

    def _ref(self, node: Node, path: str) -> Node:
        name = str(node)
        if name in self._values:
            return self._values[name]
        return self._ask(lambda resources: resources.ref(name), f"Ref {name}", path)

    def _get_att(self, node: Node, path: str) -> str:
        if not (isinstance(node, list) and len(node) == 2):
            raise Invalid("Fn::GetAtt takes a resource and an attribute", path=path)
        logical_id, attribute = str(node[0]), str(node[1])
        question = f"Fn::GetAtt {logical_id}.{attribute}"
        return self._ask(lambda resources: resources.attribute(logical_id, attribute), question, path)

    def _ask(self, question: Callable[[Resources], str], name: str, path: str) -> str:
        if self.resources is None:
            raise Invalid(f"{name} cannot be used here: only parameters can", path=path)
        try:
            return question(self.resources)
        except KeyError as error:
            raise Invalid(f"the embedded AWS cannot resolve {name} ({error.args[0]})", path=path) from error

    def _sub(self, node: Node, path: str) -> str:
        text, extra = (node[0], node[1]) if isinstance(node, list) else (node, {})
        local = {name: self.resolve(value, f"{path}.{name}") for name, value in extra.items()}

        def replace(match: re.Match[str]) -> str:
            literal, name = match.groups()
            if literal:
                return f"${{{name}}}"
            if name in local:
                return str(local[name])
            if "." in name:
                return self._get_att(name.split(".", 1), path)
            return str(self._ref(name, path))

        return _SUB_VARIABLE.sub(replace, str(text))

    def _join(self, node: Node, path: str) -> str:
        separator, parts = self.resolve(node, path)
        return str(separator).join(str(part) for part in parts)

    def _select(self, node: Node, path: str) -> Node:
        index, parts = self.resolve(node, path)
        return parts[int(index)]

    def _split(self, node: Node, path: str) -> list[str]:
        separator, text = self.resolve(node, path)
        return str(text).split(str(separator))

    def _find_in_map(self, node: Node, path: str) -> Node:
        name, top, second = self.resolve(node, path)
        try:
            return self._document["Mappings"][name][top][second]
        except KeyError as error:
            raise Invalid(f"Fn::FindInMap [{name}, {top}, {second}] finds nothing", path=path) from error

    def _if(self, node: Node, path: str) -> Node:
        condition, when_true, when_false = node
        return self.resolve(when_true if self.holds(condition, path) else when_false, path)


def _parameter_values(declared: Mapping[str, Node], given: Mapping[str, str]) -> dict[str, Node]:
    unknown = sorted(set(given) - set(declared))
    if unknown:
        raise Invalid(f"the template has no parameter {', '.join(unknown)}", path="Parameters")
    values: dict[str, Node] = {}
    for name, declaration in declared.items():
        path = f"Parameters.{name}"
        value = given.get(name, declaration.get("Default"))
        if value is None:
            raise Invalid("has no default and no value was given", path=path)
        allowed = declaration.get("AllowedValues")
        if allowed is not None and str(value) not in {str(item) for item in allowed}:
            raise Invalid(f"{value!r} is not one of {allowed}", path=path)
        is_list = str(declaration.get("Type", "")).startswith(("CommaDelimitedList", "List<"))
        parts = [part.strip() for part in str(value).split(",")] if is_list else [str(value)]
        pattern = str(declaration.get("AllowedPattern", ".*"))
        if not all(re.fullmatch(pattern, part, re.DOTALL) for part in parts):
            raise Invalid(f"{value!r} does not match {pattern}", path=path)
        values[name] = parts if is_list else parts[0]
    return values


def _pair(values: Node, path: str) -> bool:
    if not (isinstance(values, list) and len(values) == 2):
        raise Invalid("Fn::Equals takes two values", path=path)
    return str(values[0]) == str(values[1])


def _booleans(values: Node, path: str) -> list[bool]:
    if not (isinstance(values, list) and values and all(isinstance(value, bool) for value in values)):
        raise Invalid("a condition function takes a list of conditions", path=path)
    return values
