"""The health of the database by HTTP: the checkup, rejected messages, what happened to an upload, costs.

Modules that only these endpoints need are imported when they are called, so that a function starts faster. The AWS
resources around the bucket are known if `WORM_STACK` names the stack, or `WORM_DLQ_URL` a dead-letter queue.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from worm.api.call import Call
from worm.api.histories import NAME, TEXT, items_of
from worm.api.problems import HttpProblem
from worm.api.routes import Parameter, Route
from worm.clock import iso_seconds
from worm.errors import Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue
from worm.upkeep import costs

if TYPE_CHECKING:
    from worm.upkeep import dead_letters

STATUS = {"healthy": "ok", "trouble": "degraded", "unknown": "unknown"}
LETTERS_SHOWN = 1000
NO_QUEUE = "set WORM_STACK to the name of the stack, or WORM_DLQ_URL to the queue"


def show_health(call: Call) -> JsonObject:
    """`GET /v1/health`"""
    from worm.upkeep import Aws, Checkup, table_freshness

    call.check_sees_all()
    session = call.session
    stack = os.environ.get("WORM_STACK") or None
    is_deployed = stack is not None and _is_bucket(call)
    checkup = Checkup(
        Aws(), session.clock, lambda url: session, url=session.store.url, stack=stack if is_deployed else None
    )
    health = checkup.run()
    findings = [*health.findings, *(() if is_deployed else table_freshness(session))]
    return {
        "status": STATUS[health.verdict],
        "at": iso_seconds(health.at),
        "stack": health.stack,
        "findings": [one.shape() for one in findings],
    }


# Dead letters


def list_rejected(call: Call) -> JsonObject:
    """`GET /v1/rejected`"""
    call.check_sees_all()
    queues = _queues(call)
    found: list[dead_letters.Letter] = []
    for queue in queues:
        with queue.letters() as letters:
            found += letters
    found.sort(key=lambda one: (one.queue, one.sent, one.id))
    items: list[JsonValue] = [{**one.shape(), "model": _model(call, one)} for one in found[:LETTERS_SHOWN]]
    more = sum(queue.more for queue in queues) + max(0, len(found) - LETTERS_SHOWN)
    return {"items": items, "available": bool(queues), "more": more}


def redrive(call: Call) -> JsonObject:
    """`POST /v1/rejected/{id}/redrive`"""
    call.check_sees_all()
    wanted, queues = call.parameters["id"], _queues(call)
    if not queues:
        raise HttpProblem(501, "no-queue", "no dead-letter queue is configured", hint=NO_QUEUE)
    for queue in queues:
        with queue.letters() as letters:
            for letter in letters:
                if letter.id == wanted:
                    _check_may_redrive(call, letter)
                    return {"id": letter.id, "queue": letter.queue, "result": queue.redrive(letter)}
    hint = "it may already be redriven; while another reader has the message, the queue hides it for a minute"
    raise NotFound(f"the dead letter {show(wanted)} does not exist", hint=hint)


def _check_may_redrive(call: Call, letter: dead_letters.Letter) -> None:
    """The function does not start Spark jobs: they run under their own role, which an administrator passes on."""
    if letter.is_of_job and not call.settings.is_local:
        command = f"worm dlq redrive spark --id {letter.id} --stack {os.environ.get('WORM_STACK') or 'STACK'}"
        what = "the API cannot start Spark jobs"
        raise HttpProblem(501, "spark-job", what, hint=f"run `{command}` with credentials that may")


def _queues(call: Call) -> Sequence[dead_letters.DeadLetterQueue]:
    """None without a bucket, or if no queue is configured."""
    from worm.upkeep import Aws, dead_letters

    stack, url = os.environ.get("WORM_STACK"), os.environ.get("WORM_DLQ_URL")
    if not _is_bucket(call):
        return []
    if url:
        return [dead_letters.DeadLetterQueue(Aws(), url.rpartition("/")[2], url)]
    return dead_letters.read_queues(Aws(), stack)[0] if stack else []


def _is_bucket(call: Call) -> bool:
    return call.session.store.url.startswith("s3://")


def _place(call: Call) -> tuple[str, str]:
    """Bucket and prefix."""
    url = urlsplit(call.session.store.url)
    prefix = url.path.strip("/")
    return url.netloc, f"{prefix}/" if prefix else ""


def _model(call: Call, letter: dead_letters.Letter) -> str | None:
    _, prefix = _place(call)
    if letter.key is None or not letter.key.startswith(prefix):
        return None
    return call.session.resolver.parse(letter.key.removeprefix(prefix)).model


# Single objects, and money


def explain(call: Call) -> JsonObject:
    """`GET /v1/why`"""
    call.check_sees_all()
    key = call.query.one("key")
    if not key:
        raise Invalid("pass the key of an object", path="key")
    from worm.upkeep import dead_letters, explain_key  # they are large, and few calls need them

    queues = [one for one in _queues(call) if one.name in ("capture", "tables") or os.environ.get("WORM_DLQ_URL")]
    found = explain_key(call.session, key, dead_letters=dead_letters.find_letters(queues, call.session.store.url))
    return found.shape()


def estimate(call: Call) -> JsonObject:
    """`GET /v1/cost`"""
    change, events = call.query.one("change") or "create", call.query.one("events") or "eventbridge"
    if change not in costs.CHANGES:
        raise Invalid(f"must be one of {', '.join(costs.CHANGES)}, not {show(change)}", path="change")
    address = call.query.one("address") or "function-url"
    if address not in ("function-url", "http-api"):
        raise Invalid(f"must be function-url or http-api, not {show(address)}", path="address")
    if events not in ("eventbridge", "sqs"):
        raise Invalid(f"must be eventbridge or sqs, not {show(events)}", path="events")
    usage = costs.Usage(
        changes=_number(call, "changes", 0),
        change=change,
        batch=_number(call, "batch", costs.BATCH_MAX, 1, costs.BATCH_MAX),
        queries=_number(call, "queries", 0),
        requests_per_query=_number(call, "requestsPerQuery", 1),
        documents=_number(call, "documents", 0),
        document_bytes=_number(call, "documentBytes", 1000),
        models=_number(call, "models", len(call.session.schema.models)),
        sweeps=_number(call, "sweeps", costs.PASSES_A_MONTH),
        rebuilds=_number(call, "rebuilds", 0),
        by_eventbridge=events == "eventbridge",
        calls=_number(call, "calls", 0),
        requests_per_call=_number(call, "requestsPerCall", 1),
        by_http_api=address == "http-api",
    )
    return costs.bill_shape(usage, costs.Prices.read())


def _number(call: Call, name: str, default: float, least: float = 0, most: float = 1e15) -> float:
    text = call.query.one(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not least <= value <= most:
        raise Invalid(f"must be a number between {least:g} and {most:g}, not {show(text)}", path=name)
    return value


_FINDING: JsonObject = {
    "area": TEXT,
    "state": {"enum": ["ok", "note", "trouble", "unknown"]},
    "text": TEXT,
    "next": NAME,
}
_LETTER: JsonObject = {
    "id": TEXT,
    "queue": TEXT,
    "sent": TEXT,
    "kind": TEXT,
    "key": NAME,
    "reason": TEXT,
    "model": NAME,
}
_NUMBERS = (
    "changes",
    "batch",
    "queries",
    "requestsPerQuery",
    "calls",
    "requestsPerCall",
    "documents",
    "documentBytes",
    "models",
    "sweeps",
    "rebuilds",
)
ROUTES = (
    Route(
        "GET",
        "/v1/health",
        show_health,
        "Check whether everything works, and what to do if not",
        answer={
            "type": "object",
            "required": ["status", "findings"],
            "properties": {
                "status": {"enum": list[JsonValue](STATUS.values())},
                "at": TEXT,
                "stack": NAME,
                "findings": {"type": "array", "items": {"type": "object", "properties": _FINDING}},
            },
        },
        tag="health",
    ),
    Route(
        "GET",
        "/v1/rejected",
        list_rejected,
        "List messages that the workers could not process, and why; `available` is false if no queue is configured",
        answer=items_of(_LETTER, available={"type": "boolean"}, more={"type": "integer"}),
        tag="health",
    ),
    Route(
        "POST",
        "/v1/rejected/{id}/redrive",
        redrive,
        "Process a dead letter again",
        scope="admin",
        answer={"type": "object", "properties": {"id": TEXT, "queue": TEXT, "result": TEXT}},
        problems=(404, 501),
        tag="health",
    ),
    Route(
        "GET",
        "/v1/why",
        explain,
        "Explain what happened to an upload, and what to do",
        parameters=(Parameter("key", "The key of an object.", is_required=True),),
        answer={"type": "object"},
        tag="health",
    ),
    Route(
        "GET",
        "/v1/cost",
        estimate,
        "Estimate the monthly cost of a deployment, at list prices",
        parameters=(
            *(
                Parameter(name, "Same as the option of `worm cost`.", {"type": "number", "minimum": 0})
                for name in _NUMBERS
            ),
            Parameter("change", "Kind of changes.", {"enum": list[JsonValue](costs.CHANGES)}),
            Parameter("events", "How capture gets events.", {"enum": ["eventbridge", "sqs"]}),
            Parameter("address", "What serves calls to the API.", {"enum": ["function-url", "http-api"]}),
        ),
        answer={"type": "object"},
        models="filtered",
        tag="health",
    ),
)
