"""IAM for tests: policies as JSON, how AWS evaluates them, and a proxy before an S3 server that asks them.

It knows the parts of the policy language that our policies use, and refuses any other when it reads a policy: a
condition that it took for true would prove nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tests.fault_proxy import FaultProxy, Reply, Seen, _Handler
from worm.dev.iam import Call, Question, questions, role_of

Json = dict[str, Any]
Grant = tuple[str, str, str]
"""Sid, action, resource (or the key and the value of a condition)."""
_REFUSED = b"<Error><Code>AccessDenied</Code><Message>by policy</Message></Error>"
_UNCLEAR = b"<Error><Code>InternalError</Code><Message>applied all the same</Message></Error>"
_KNOWN = {"Sid", "Effect", "Principal", "Action", "Resource", "Condition"}
_OPERATORS = {
    "ArnEquals",
    "ArnLike",
    "ArnNotLike",
    "Bool",
    "Null",
    "NumericLessThan",
    "StringEquals",
    "StringEqualsIfExists",
    "StringLike",
    "StringLikeIfExists",
}


class NotUnderstood(Exception):
    """A policy uses what is not evaluated here."""


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def is_like(text: str, pattern: str) -> bool:
    """`*` is any text, `?` any character, as in resources and in conditions with `Like`."""
    return _compiled(pattern).fullmatch(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = [".*" if one == "*" else "." if one == "?" else re.escape(one) for one in pattern]
    return re.compile("".join(parts), re.DOTALL)


@dataclass
class Policy:
    """Statements, and which of their grants were needed."""

    statements: list[Json]
    name: str = ""
    used: set[Grant] = field(default_factory=set)

    def __post_init__(self) -> None:
        for one in self.statements:
            _check(one)

    @classmethod
    def of(cls, document: str | Json, name: str = "") -> Policy:
        policy = json.loads(document) if isinstance(document, str) else document
        if policy["Version"] != "2012-10-17":
            raise NotUnderstood(f"version {policy['Version']}")
        return cls(as_list(policy["Statement"]), name)

    def says(self, question: Question) -> str:
        """`Allow`, `Deny` or nothing; a denial counts more than any permission."""
        found = {one["Effect"] for one in self.statements if self._fits(one, question)}
        return "Deny" if "Deny" in found else "Allow" if found else ""

    def grants(self) -> set[Grant]:
        """All that is allowed: each action on each resource, and each value of a condition."""
        allowed = [one for one in self.statements if one["Effect"] == "Allow"]
        found = {(_sid(s), a, r) for s in allowed for a in as_list(s["Action"]) for r in as_list(s["Resource"])}
        return found | {
            (_sid(one), key, value) for one in allowed for _, key, values in _tests(one) for value in values
        }

    def _fits(self, statement: Json, question: Question) -> bool:
        asked = question.action.lower()
        actions = [one for one in as_list(statement["Action"]) if is_like(asked, one.lower())]
        named = [one for one in as_list(statement["Resource"]) if is_like(question.resource, one)]
        conditions = [_holds(*test, question.context) for test in _tests(statement)]
        if not actions or not named or not all(held is not None for held in conditions):
            return False
        if not _is_for(statement, question):
            return False
        sid = _sid(statement)
        self.used |= {(sid, action, one) for action in actions for one in named}
        self.used |= {(sid, *held) for held in conditions if held}
        return True


def is_allowed(question: Question, policies: Iterable[Policy]) -> bool:
    """As AWS decides inside one account: nothing may deny, and a policy of the role or of the resource must allow."""
    verdicts = [one.says(question) for one in policies]
    return "Deny" not in verdicts and "Allow" in verdicts


def _check(statement: Json) -> None:
    unknown = set(statement) - _KNOWN
    operators = set(statement.get("Condition", {})) - _OPERATORS
    texts = [*as_list(statement["Action"]), *as_list(statement["Resource"])]
    texts += [value for _, _, values in _tests(statement) for value in values]
    variables = [one for one in texts if not isinstance(one, str) or "${" in one]
    if unknown or operators or variables or statement["Effect"] not in ("Allow", "Deny"):
        raise NotUnderstood(f"{statement.get('Sid')}: {sorted(unknown)} {sorted(operators)} {variables}")


def _sid(statement: Json) -> str:
    return str(statement.get("Sid", ""))


def _is_for(statement: Json, question: Question) -> bool:
    """Only a policy of a resource names whom it is for: everybody, roles, or services of AWS."""
    principal = statement.get("Principal", "*")
    if principal == "*":
        return True
    if not isinstance(principal, dict) or set(principal) - {"AWS", "Service"}:
        raise NotUnderstood(f"principal {principal}")
    services, named = as_list(principal.get("Service", [])), as_list(principal.get("AWS", []))
    is_service = question.context.get("aws:PrincipalServiceName") in services
    return is_service or "*" in named or question.context.get("aws:PrincipalArn") in named


def _tests(statement: Json) -> list[tuple[str, str, list[str]]]:
    found = statement.get("Condition", {})
    return [(operator, key, as_list(value)) for operator, keys in found.items() for key, value in keys.items()]


def _holds(
    operator: str, key: str, values: list[str], context: Mapping[str, str]
) -> tuple[str, str] | tuple[()] | None:
    """None: it does not hold. Else which value made it hold, where one did."""
    value = context.get(key)
    if operator == "Null":
        return () if [str(value is None).lower()] == values else None
    if value is None:
        return () if operator.endswith("IfExists") else None
    if operator == "ArnNotLike":
        return () if not any(is_like(value, one) for one in values) else None
    if operator == "Bool":
        return () if [value] == values else None
    if operator == "NumericLessThan":
        return () if float(value) < float(values[0]) else None
    exact = operator in ("StringEquals", "StringEqualsIfExists")  # AWS takes wildcards in ArnEquals, too
    fitting = [one for one in values if (value == one if exact else is_like(value, one))]
    return (key, fitting[0]) if fitting else None


class Guard(FaultProxy):
    """Answers 403 where the policy of the caller (by its access key), or that of the bucket, says so. Without one, a
    caller may do everything. Each caller's first snapshot has an unclear answer, so that it is read back."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.policies: dict[str, Policy] = {}
        self.bucket = Policy([])
        self.refused: list[Question] = []
        self._unclear: set[str] = set()

    def handle(self, handler: _Handler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        headers = dict(handler.headers.items())
        caller = role_of("", handler.headers.get("Authorization") or "")
        reply = Reply(403, {"Content-Type": "application/xml"}, _REFUSED)
        calls = Call.of_s3(caller, handler.command, handler.path, headers, body) if caller in self.policies else []
        if self._allows(caller, calls):
            told = self._forward(handler.path, Seen(handler.command, handler.path, False), headers, body)
            if self._allows(caller, [replace(one, status=told.status) for one in calls]):
                reply = told
            if handler.command == "PUT" and "/.snapshots/" in handler.path and caller not in self._unclear:
                self._unclear.add(caller)
                reply = Reply(500, {"Content-Type": "application/xml"}, _UNCLEAR)
        handler.send(reply, is_cut=False)

    def _allows(self, caller: str, calls: Sequence[Call]) -> bool:
        asked = [question for call in calls for question in questions(call)]
        refused = [one for one in asked if not is_allowed(one, (self.policies[caller], self.bucket))]
        self.refused += refused
        return not refused
