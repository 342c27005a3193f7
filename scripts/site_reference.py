#!/usr/bin/env python3
"""Writes the pages of `docs/reference/` that come from the code: settings, metrics and alarms, HTTP endpoints.

The pages are committed, so that GitHub shows them; tests/docs/test_reference.py compares them with what this script
writes. Names, defaults and thresholds come from the templates, the routes and the calls that report a metric. What a
variable or a metric means is below: a new one without a meaning is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "shared"), str(ROOT)]

from worm.api.app import ROUTES  # noqa: E402 - after the path is set
from worm.api.openapi import USUAL, openapi  # noqa: E402 - after the path is set
from worm.dev.cfn import load  # noqa: E402 - after the path is set

REFERENCE = ROOT / "docs" / "reference"
WRITTEN = "<!-- Written by scripts/site_reference.py. -->\n"
FUNCTIONS_VARIABLES = {
    "AWS_ENDPOINT_URL": "Another S3 endpoint, such as the embedded AWS. The SDK and the command read it, too.",
    "POWERTOOLS_LOG_LEVEL": "The log level, from the parameter `LogLevel`.",
    "POWERTOOLS_METRICS_NAMESPACE": "The namespace of all metrics.",
    "WORM_API_AUDIENCE": "`api` with JWTs: the audience that a token must name.",
    "WORM_API_AUTH": "`api`: which credentials it accepts: `iam`, `jwt` or `tokens`.",
    "WORM_API_ISSUER": "`api` with JWTs: the issuer of the tokens.",
    "WORM_API_MAX_REQUESTS": "`api`: the most requests of a query, unless the call says `allowScan`. Default: 1,000.",
    "WORM_API_MODE": "`api`: `readonly` or `readwrite`.",
    "WORM_BUCKET": "The bucket. Workers ignore events of any other bucket.",
    "WORM_DLQ_URL": "The queue for messages that can never succeed. `worm why` reads it, too.",
    "WORM_MAX_DOCUMENT_BYTES": "Workers reject larger documents.",
    "WORM_PREFIX": "The folder that holds everything, from the parameter `KeyPrefix`. Empty: the whole bucket.",
    "WORM_ROLE": "The role in the User-Agent. Access logs show which worker sent a request.",
    "WORM_SWEEP_EVERY": "`sweep`: hours between two passes, from the parameter `SweepEvery`. Default: 24.",
    "WORM_THREADS": "How many documents one invocation works on at the same time. Default: 16.",
}
CLIENT_VARIABLES = {
    "WORM_ACTOR": "The command: who makes the changes, as `--actor`.",
    "WORM_DURABILITY": "A directory: `power` (default) survives a power cut, `process` only the end of the process.",
    "WORM_MAINTENANCE": "`background` (default), `inline` or `events`. Clients of a deployed bucket set `events`.",
    "WORM_STACK": "The stack that `worm doctor` and `worm dlq` look at. In the functions: a dimension of all metrics.",
    "WORM_TOKEN": "`worm serve`: the token that callers must send. Default: a random one.",
    "WORM_URL": "The command: where the data is, as `--url`. Default: `./data`.",
}
METRICS = {
    "Attempts": "compare-and-swaps tried; in `apply`: flushes",
    "Collected": "objects deleted",
    "ColdStart": "1 for the first invocation of a process, also if it fails",
    "CompactFailures": "databases with an error",
    "Damaged": "documents or entries that cannot be read",
    "Databases": "databases looked at",
    "Failed": "messages that come again",
    "Failures": "answers with 5xx, except 501",
    "FoundUnapplied": "segments that no event had brought to `apply`",
    "FoundUnreported": "changes that no event reported; if it grows, events get lost",
    "FreshnessSeconds": "`tables` only: age of the oldest change in a batch when its table has it",
    "Ignored": "messages without work, such as system keys",
    "Images": "image layers made",
    "Materialized": "documents written for models in spaces",
    "Merged": "layers merged",
    "Messages": "messages received",
    "Overtaken": "compactions that another one made unnecessary",
    "Pruned": "snapshots removed",
    "PurgeProblems": "problems while purging",
    "Purged": "trashed documents removed",
    "ReadRequests": "GET and HEAD requests to S3",
    "Recorded": "changes recorded; in `apply`: segments",
    "LeftToSpark": "1 if a table must be built again and is too large for the function; sent only then",
    "Rejected": "messages that can never succeed",
    "StoreRequests": "all requests to S3",
    "Swept": "documents compared with their history",
    "SweepUnfinished": "1 if time ran out; the next run continues there",
    "UniqueConflicts": "unique values that several documents have",
    "WriteRequests": "PUT and LIST requests to S3",
}
_VARIABLE = re.compile(r"[\"'](WORM_[A-Z_]*[A-Z])[\"']")
_REPORTED = re.compile(r"(?:\.count|\.add_metric)\(\"([A-Z]\w+)\"")


def pages() -> dict[str, str]:
    """The text of each page by its name."""
    made = {"settings.md": settings(), "metrics.md": metrics(), "http-api.md": http_api()}
    return {name: WRITTEN + "\n".join(lines).rstrip() + "\n" for name, lines in made.items()}


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    cells = [[*titles], *([one.replace("|", "\\|") for one in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(cells[0]) + "|", *lines[1:], ""]


def described(names: Iterable[str], texts: Mapping[str, str], place: str) -> list[tuple[str, str]]:
    """Name and text. Both sides must agree: nothing is missing, nothing is left over."""
    found = {*names}
    if found != {*texts}:
        raise SystemExit(f"scripts/site_reference.py: {place} differs from the code: {sorted(found ^ {*texts})}")
    return [(f"`{name}`", texts[name]) for name in sorted(found)]


def template(name: str) -> Any:
    return load((ROOT / name).read_text())


# Settings


def settings() -> list[str]:
    variables = described(set(_variables()), FUNCTIONS_VARIABLES | CLIENT_VARIABLES, "the list of variables")
    of_client = [one for one in variables if one[0].strip("`") in CLIENT_VARIABLES]
    of_functions = [one for one in variables if one[0].strip("`") in FUNCTIONS_VARIABLES]
    spark = template("spark_jobs/template.yaml")["Parameters"].items()
    return [
        "# Settings",
        "",
        "```sh",
        "export WORM_URL=s3://acme-data WORM_ACTOR=user:ann WORM_MAINTENANCE=events",
        "```",
        "",
        "This page lists every environment variable and every parameter of the deployment. The arguments of a session",
        "are in [The Python SDK](../sdk.md#sessions). How to deploy is in [Operations](../operations.md#deploy).",
        "",
        "## SDK and command",
        "",
        *table(("Variable", "Meaning"), of_client),
        "The credentials and the region come from the usual variables of AWS, such as `AWS_PROFILE` and `AWS_REGION`.",
        "",
        "## Stack",
        "",
        "Set these with `sam deploy --parameter-overrides NAME=VALUE`.",
        "",
        *table(("Parameter", "Default", "Meaning"), map(_parameter, template("template.yaml")["Parameters"].items())),
        "## Spark stack",
        "",
        "These are parameters of the nested stack `spark_jobs/template.yaml`; see [EMR](../emr.md). To change one,",
        "edit its default in the template.",
        "",
        *table(("Parameter", "Default", "Meaning"), (_parameter(one) for one in spark if "Default" in one[1])),
        "## Functions",
        "",
        "The template sets these. You need them only to run a handler yourself.",
        "",
        *table(("Variable", "Meaning"), of_functions),
    ]


def _variables() -> Iterator[str]:
    for folder in ("shared", "functions"):
        for path in (ROOT / folder).rglob("*.py"):
            yield from _VARIABLE.findall(path.read_text())
    yield from template("template.yaml")["Globals"]["Function"]["Environment"]["Variables"]


def _parameter(one: tuple[str, Mapping[str, Any]]) -> tuple[str, str, str]:
    name, facts = one
    default = f"`{facts['Default']}`" if str(facts["Default"]) else "empty"
    allowed = ", ".join(f"`{value}`" for value in facts.get("AllowedValues", ()))
    return f"`{name}`", default, facts["Description"] + (f" One of {allowed}." if allowed else "")


# Metrics and alarms


def metrics() -> list[str]:
    reported = _metrics_of_functions()
    meanings = dict(described((name for names in reported.values() for name in names), METRICS, "the list of metrics"))
    rows = [
        (service, f"`{name}`", meanings[f"`{name}`"]) for service, names in reported.items() for name in sorted(names)
    ]
    return [
        "# Metrics and alarms",
        "",
        "## Alarms",
        "",
        "The name of an alarm is `STACK-` and the word below, which has a [runbook](../how-to/recover-from-alarms.md).",
        "",
        *table(("Alarm", "Means", "Watches", "Rings when"), _alarms()),
        "## Metrics",
        "",
        "All are in the namespace `S3Worm`, with the dimensions `stack` and `service` (the function).",
        "",
        *table(("Function", "Metric", "Counts"), rows),
    ]


def _metrics_of_functions() -> dict[str, set[str]]:
    """By the functions that report them. Those of `lambdas.py` are in every function, or in all that take batches."""
    common, _, batches = (ROOT / "shared/worm/upkeep/workers/lambdas.py").read_text().partition("def run_batch")
    handlers = {path.parent.name: path.read_text() for path in sorted(ROOT.glob("functions/*/handler.py"))}
    batched = [f"`{name}`" for name, text in handlers.items() if ".run_batch(" in text]
    found = {"all": set(_REPORTED.findall(common)), ", ".join(batched): set(_REPORTED.findall(batches))}
    found |= {f"`{name}`": set(_REPORTED.findall(text)) for name, text in handlers.items()}
    return {service: names for service, names in found.items() if names}


def _alarms() -> Iterator[tuple[str, str, str, str]]:
    for name in ("functions/observability.yaml", "spark_jobs/template.yaml"):
        for resource in template(name)["Resources"].values():
            if resource["Type"] == "AWS::CloudWatch::Alarm":
                facts = resource["Properties"]
                title = facts["AlarmName"]["Fn::Sub"].partition("}-")[2]
                link = f"[`{title}`](../how-to/recover-from-alarms.md#alarm-{title})"
                yield link, facts["AlarmDescription"], ", ".join(sorted(_watched(facts))), _threshold(facts)


def _watched(node: Any) -> set[str]:
    """The names of the metrics anywhere in an alarm."""
    if isinstance(node, list):
        return {name for one in node for name in _watched(one)}
    if not isinstance(node, dict):
        return set()
    own = {f"`{node['MetricName']}`"} if "MetricName" in node else set()
    return own | _watched([*node.values()])


def _threshold(facts: Mapping[str, Any]) -> str:
    sign = {"GreaterThanThreshold": "above", "LessThanThreshold": "below"}[facts["ComparisonOperator"]]
    period = facts.get("Period") or next(one["MetricStat"]["Period"] for one in facts["Metrics"] if "MetricStat" in one)
    periods = facts["EvaluationPeriods"]
    needed = facts.get("DatapointsToAlarm", periods)
    often = "" if needed == periods == 1 else f" in {needed} of {periods}"
    return f"{sign} {facts['Threshold']}{often} ({PERIODS[period]})"


PERIODS = {60: "each minute", 300: "each 5 minutes", 3_600: "each hour", 86_400: "each day"}


# HTTP


def http_api() -> list[str]:
    """HEAD is left out: every GET answers it."""
    document: Any = openapi(ROUTES)
    usual = ", ".join(map(str, sorted({*USUAL, 400})))
    lines = [
        "# HTTP endpoints",
        "",
        "```sh",
        'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8765/openapi.json',
        "```",
        "",
        "This page lists what the OpenAPI document says. A running server returns the document itself, with the",
        "schemas of all bodies. [The HTTP API](../http.md) explains conditions, errors, paging and costs.",
        "",
        f"A GET also answers HEAD. Every call may return one of these problems: {usual}.",
        "",
    ]
    for tag, operations in _by_tag(document["paths"]).items():
        lines += [f"## {tag.capitalize()}", ""]
        for method, path, operation in operations:
            lines += _operation(method, path, operation)
    return lines


def _by_tag(paths: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Any]]]:
    found: dict[str, list[tuple[str, str, Any]]] = {}
    for path, operations in paths.items():
        for method, operation in operations.items():
            if method != "head":
                found.setdefault(operation["tags"][0], []).append((method, path, operation))
    return found


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> list[str]:
    scope = f"Scope: `{operation['x-scope']}`." if "x-scope" in operation else "No credentials needed."
    lines = [f"### {method.upper()} {path}", "", f"{operation['summary']}. {scope}", ""]
    if "description" in operation:
        lines += [operation["description"], ""]
    shown = [_request_part(one) for one in operation["parameters"] if one["in"] != "path"]
    if shown:
        lines += table(("Parameter", "In", "Type", "Meaning"), shown)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        lines += [f"Body `{kind}`: {_members(content['schema'])}", ""]
    special = [status for status in operation["responses"] if int(status) not in {*USUAL, 400}]
    return [*lines, f"Returns {', '.join(special)}.", ""]


def _request_part(one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    schema = one["schema"]
    repeated = schema.get("type") == "array"
    inner = schema["items"] if repeated else schema
    kind = " or ".join(f"`{value}`" for value in inner["enum"]) if "enum" in inner else str(inner.get("type", "any"))
    limits = [f"{word} {inner[name]}" for word, name in LIMITS.items() if name in inner]
    text = one["description"] + (" May be repeated." if repeated else "") + (" Required." if one["required"] else "")
    return f"`{one['name']}`", one["in"], ", ".join([kind, *limits]), text


LIMITS = {"from": "minimum", "to": "maximum", "default": "default"}


def _members(schema: Mapping[str, Any]) -> str:
    names = [f"`{name}`" for name in schema.get("properties", {})]
    return ", ".join(names) + "." if names else f"{schema.get('description') or 'JSON'}".rstrip(".") + "."


def main() -> int:
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
        print(f"docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
