"""Queries: rows by filter, totals, counts, plans.

The parameters of a GET and the members of a POST mean the same. A filter in a parameter is a JSON object, or conditions
as in `worm table query --filter`: `filter=status=active&filter=amount>100`.

A query that would take too many requests is refused with its plan, unless the caller passes `allowScan`. A page has at
most 1,000 rows and about 4 MB; `cursor` continues after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from itertools import accumulate
from typing import Any, TypedDict, cast

import orjson

from worm.api.call import JSON, PAGE_BYTES_MAX, PAGE_ROWS_MAX, Call, HttpAnswer, json_answer
from worm.api.documents import shape_of
from worm.api.problems import HttpProblem
from worm.api.routes import BRANCH, DOCUMENT, Parameter, Route
from worm.errors import Invalid, show
from worm.formats import JsonObject, JsonValue, ModelDef, loads
from worm.query import (
    Aggregate,
    Plan,
    Request,
    Sort,
    add_actual,
    budget,
    request_text,
)
from worm.sdk import CHANGED_MAX, DocumentDict, Model, Rows, populated_models
from worm.store import metered
from worm.values import dataclass

LIMIT = 100
MEMBERS = frozenset(
    {"filter", "sort", "select", "populate", "limit", "cursor", "at", "branch", "explain", "allowScan", "count"}
)
TOTALS = frozenset({"filter", "groupBy", "metrics", "having", "sort", "limit", "at", "branch", "allowScan"})
OPTIONS = {"--filter": "filter", "--where": "filter=", "--sort": "sort", "--select": "select"}
METRICS = frozenset({"count", "sum", "avg", "min", "max", "percentiles"})


class Chosen(TypedDict):
    """The arguments for `find_all` and `explain`."""

    filter: Mapping[str, JsonValue]
    sort: Sort | None
    select: Sequence[str] | None
    populate: Sequence[str] | None
    limit: int
    cursor: str | None
    at: Any
    max_changed: int | None


@dataclass(frozen=True, slots=True)
class AskedRows:
    """A query, from a GET or a POST."""

    filter: Mapping[str, JsonValue] = field(default_factory=dict)
    sort: Sort | None = None
    select: Sequence[str] | None = None
    populate: Sequence[str] | None = None
    limit: int = LIMIT
    cursor: str | None = None
    at: JsonValue = None
    explain: str | None = None
    allow_scan: bool = False
    count: bool = False

    def chosen(self, most: int) -> Chosen:
        return {
            "filter": self.filter,
            "sort": self.sort,
            "select": self.select,
            "populate": self.populate,
            "limit": self.limit,
            "cursor": self.cursor,
            "at": self.at,
            "max_changed": self.max_changed(most),
        }

    def fields(self) -> set[str]:
        """Every field in the query."""
        return Request.of(filter=self.filter, sort=self.sort, select=self.select).query.fields()

    def max_changed(self, most: int) -> int | None:
        """Each document that changed since a moment takes one lookup."""
        return None if self.allow_scan else min(most, CHANGED_MAX)


# The question


def asked_by_parameters(call: Call, definition: ModelDef) -> AskedRows:
    """From a GET."""
    query = call.query
    explain = query.one("explain")
    if explain not in (None, "true", "false", "analyze"):
        raise Invalid(f"must be true or analyze, not {show(explain)}", path="explain")
    select, populate = query.one("select"), query.one("populate")
    with spoken():
        return AskedRows(
            filter=filter_of(definition, query.all("filter")),
            sort=cast("Sort", request_text.parse_sort(query.one("sort"))) or None,
            select=None if select is None else request_text.parse_names(select, "select") if select else [],
            populate=request_text.parse_names(populate, "populate") if populate else None,
            limit=query.number("limit", LIMIT, least=1, most=PAGE_ROWS_MAX),
            cursor=query.one("cursor"),
            at=query.one("at"),
            explain=None if explain == "false" else explain,
            allow_scan=query.flag("allowScan"),
            count=query.flag("count"),
        )


def filter_of(definition: ModelDef, texts: list[str]) -> Mapping[str, JsonValue]:
    """All must hold. Text that starts with a brace is a JSON filter."""
    chosen = request_text.parse_filter(definition, [text for text in texts if not text.lstrip().startswith("{")])
    for text in texts:
        if text.lstrip().startswith("{"):
            chosen = request_text.both(chosen, _json_filter(text))
    return chosen


def _json_filter(text: str) -> JsonObject:
    try:
        return cast("JsonObject", loads(text.encode()))
    except Invalid as mistake:
        hint = 'such as {"status": "active"}, percent-encoded; or conditions such as status=active'
        raise Invalid(f"is not JSON: {mistake.message}", path="filter", hint=hint) from None


def filter_member(definition: ModelDef, body: JsonObject) -> Mapping[str, JsonValue]:
    """The filter of a POST: an object, or text as in a parameter, or a list of these."""
    given = {} if body.get("filter") is None else body["filter"]
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list) and any(texts) and all(isinstance(one, str) for one in texts):
        with spoken():
            return filter_of(definition, cast("list[str]", texts))
    return cast("JsonObject", given)


@contextmanager
def spoken() -> Iterator[None]:
    """Turns errors about command options into errors about parameters."""
    try:
        yield
    except Invalid as mistake:
        for option, name in OPTIONS.items():
            mistake.message = mistake.message.replace(option, name)
            mistake.hint = None if mistake.hint is None else mistake.hint.replace(option, name)
        raise


def asked_by_members(definition: ModelDef, body: JsonObject) -> AskedRows:
    """From a POST. The library checks the rest."""
    check_members(body, MEMBERS)
    explain = body.get("explain")
    if explain not in (None, True, False, "true", "analyze"):
        raise Invalid(f"must be true or analyze, not {show(explain)}", path="explain")
    cursor = body.get("cursor")
    if not isinstance(cursor, str | None):
        raise Invalid(f"must be text, not {show(cursor)}", path="cursor")
    return AskedRows(
        filter=filter_member(definition, body),
        sort=cast("Sort | None", body.get("sort")),
        select=names_of(body, "select"),
        populate=names_of(body, "populate"),
        limit=limit_of(body),
        cursor=cursor,
        at=body.get("at"),
        explain="analyze" if explain == "analyze" else "true" if explain else None,
        allow_scan=flag_of(body, "allowScan"),
        count=flag_of(body, "count"),
    )


def check_members(body: JsonObject, known: frozenset[str]) -> None:
    unknown = sorted(body.keys() - known)
    if unknown:
        raise Invalid("is not a known member", path=unknown[0], hint=f"known: {', '.join(sorted(known))}")


def names_of(body: JsonObject, name: str) -> list[str] | None:
    given = body.get(name)
    listed = [given] if isinstance(given, str) else given
    if listed is None:
        return None
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise Invalid(f"must be a list of names, not {show(given)}", path=name)
    return cast("list[str]", listed)


def limit_of(body: JsonObject, default: int = LIMIT) -> int:
    given = body.get("limit", default)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= PAGE_ROWS_MAX:
        raise Invalid(f"must be a whole number from 1 to {PAGE_ROWS_MAX}, not {show(given)}", path="limit")
    return given


def flag_of(body: JsonObject, name: str) -> bool:
    given = body.get(name, False)
    if not isinstance(given, bool):
        raise Invalid(f"must be true or false, not {show(given)}", path=name)
    return given


def model_of(call: Call, body: JsonObject) -> Model[DocumentDict]:
    """The model in the path, on the branch of the body or the query."""
    branch = body.get("branch")
    if branch is None:
        return call.model
    if not isinstance(branch, str):
        raise Invalid(f"must be text, not {show(branch)}", path="branch")
    call.check_model(call.parameters["model"])
    return call.session.branch(branch).model(call.parameters["model"])


# The answer


@contextmanager
def within(call: Call, *, allow_scan: bool) -> Iterator[None]:
    """Limits the requests of queries inside the block."""
    try:
        with budget.at_most(None if allow_scan else call.settings.max_requests):
            yield
    except budget.TooExpensive as refused:
        hint = "filter by an indexed field, ask for less, or pass allowScan=true"
        raise HttpProblem(400, "too-expensive", refused.message, hint=hint, plan=refused.plan.shape()) from None
    except Invalid as mistake:
        if mistake.path == "max_changed":  # its name in the SDK
            what = mistake.message.removeprefix("max_changed: ").replace("max_changed is", "the limit is")
            mistake.message, mistake.path = what, None
        raise


def list_documents(call: Call) -> HttpAnswer:
    model = call.model
    return _rows_answer(call, model, asked_by_parameters(call, call.session.schema.model(model.name)))


def query_documents(call: Call) -> HttpAnswer:
    body = call.json_object()
    model = model_of(call, body)
    return _rows_answer(call, model, asked_by_members(call.session.schema.model(model.name), body))


def _rows_answer(call: Call, model: Model[DocumentDict], asked: AskedRows) -> HttpAnswer:
    check_populated(call, model.name, asked.populate)
    chosen = asked.chosen(call.settings.max_requests)
    if asked.explain == "true":
        explained: JsonObject = {"plan": model.explain(**chosen).shape()}
        return json_answer(noted(call, model.name, explained, asked.fields()))
    with within(call, allow_scan=asked.allow_scan):
        with metered() as meter:
            rows, items = _page(model, chosen)
        shape: dict[str, object] = {"items": items, "cursor": rows.cursor}
        if asked.count:
            shape["count"] = model.count(asked.filter, at=chosen["at"], max_changed=chosen["max_changed"])
    if asked.explain == "analyze":
        plan = _estimated(rows.plan, model.explain(**chosen))
        shape["plan"] = add_actual(plan, meter.requests, meter.bytes_read, len(rows)).shape()
    return json_answer(noted(call, model.name, shape, asked.fields()))


def noted(call: Call, model: str, shape: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """The answer, with `notes` about undeclared fields, which may be typos."""
    notes = call.session.schema.model(model).undeclared_notes(sorted(fields))
    return {**shape, "notes": notes} if notes else shape


def _page(model: Model[DocumentDict], chosen: Chosen) -> tuple[Rows[DocumentDict], list[orjson.Fragment]]:
    """The rows, and each as JSON. If they are too large for one page, the query is repeated for fewer."""
    while True:
        rows = model.find_all(**chosen)
        items = [orjson.dumps(shape_of(row)) for row in rows]
        fitting = sum(size <= PAGE_BYTES_MAX for size in accumulate(len(item) + 1 for item in items))
        if fitting == len(items) or len(items) == 1:
            return rows, [orjson.Fragment(item) for item in items]
        chosen = {**chosen, "limit": max(1, fitting)}


def _estimated(plan: Plan, explained: Plan) -> Plan:
    """With the estimate for the chosen strategy."""
    return replace(plan, estimate=explained.estimate) if plan.strategy == explained.strategy else plan


def check_populated(call: Call, name: str, populate: Sequence[str] | None) -> None:
    """A reference may lead to a model that the caller may not see."""
    definition = call.session.schema.model(name)
    for one in populated_models(definition, None if populate is None else list(populate)):
        call.check_model(one)


def count_documents(call: Call) -> JsonObject:
    model = call.model
    with spoken():
        chosen = filter_of(call.session.schema.model(model.name), call.query.all("filter"))
    allow_scan = call.query.flag("allowScan")
    most = AskedRows(allow_scan=allow_scan).max_changed(call.settings.max_requests)
    with within(call, allow_scan=allow_scan):
        count = model.count(chosen, at=call.query.one("at"), max_changed=most)
    return noted(call, model.name, {"count": count}, request_text.filter_fields(chosen))


def aggregate_documents(call: Call) -> JsonValue:
    body = call.json_object()
    check_members(body, TOTALS)
    metrics = body.get("metrics", {"count": True})
    if not isinstance(metrics, dict):
        raise Invalid('must be an object such as {"count": true, "sum": ["total"]}', path="metrics")
    check_members(metrics, METRICS)
    groups, allow_scan = names_of(body, "groupBy"), flag_of(body, "allowScan")
    if groups is None and not body.keys().isdisjoint({"sort", "limit", "having"}):
        raise Invalid("sort, limit and having need groupBy", path="groupBy", hint='{"groupBy": ["status"], …}')
    given: dict[str, Any] = {**metrics, "count": flag_of(metrics, "count")}
    model = model_of(call, body)
    given |= {"having": body.get("having"), "group_by": groups}
    given["filter"] = filter_member(call.session.schema.model(model.name), body)
    most = AskedRows(allow_scan=allow_scan).max_changed(call.settings.max_requests)
    with within(call, allow_scan=allow_scan):
        found: JsonObject = model.aggregate(**given, at=cast(Any, body.get("at")), max_changed=most)
    answer = found if groups is None else {"groups": _arranged(found, body)}
    return noted(call, model.name, answer, Aggregate.of(**given).fields())


def _arranged(found: JsonObject, body: JsonObject) -> JsonValue:
    """The groups, sorted and cut: by `count`, `sum.total`, `key.status`."""
    groups = cast("list[JsonObject]", found["groups"])
    limit = limit_of(body) if "limit" in body else None
    rows: list[JsonObject] = [{"id": f"{at:012}", **group} for at, group in enumerate(groups)]
    query = Request.of(sort=cast("Sort | None", body.get("sort")), limit=limit).query
    return [{name: value for name, value in row.items() if name != "id"} for row in query.run(rows)]


# Routes

FILTER = Parameter(
    "filter",
    'Conditions such as `status=active,amount>100`, or a filter as JSON: `{"status": "active"}`.',
    is_repeated=True,
)
SORT = Parameter("sort", "Fields separated by commas; a leading `-` sorts in descending order: `-score,name`.")
SELECT = Parameter("select", "Only these fields, separated by commas; the id is always included.")
LIMITED = Parameter(
    "limit",
    "Maximum number of rows per page.",
    {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX, "default": LIMIT},
)
EXPLAIN = Parameter(
    "explain",
    "`true` returns the plan instead of rows; `analyze` returns rows and plan.",
    {"enum": ["true", "false", "analyze"]},
)
AT = Parameter("at", "The state at a time, or at a commit of the model's space.")
ALLOW_SCAN = Parameter("allowScan", "Allow any number of requests.", {"type": "boolean"})
_PLAN: JsonObject = {"type": "object", "description": "Strategy, reason and cost."}
_NOTES: JsonObject = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Possible mistakes: fields that the schema does not declare.",
}
_LIST: JsonObject = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": DOCUMENT},
        "cursor": {"type": ["string", "null"], "description": "The start of the next page; null on the last page."},
        "count": {"type": "integer"},
        "plan": _PLAN,
        "notes": _NOTES,
    },
}
_FILTER: JsonObject = {
    "oneOf": [{"type": "object"}, {"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    "description": "A filter, or conditions as text.",
}
_NAMES: JsonObject = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_QUESTION: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "filter": _FILTER,
        "sort": {"oneOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]},
        "select": _NAMES,
        "populate": _NAMES,
        "limit": {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX},
        "cursor": {"type": "string"},
        "at": {"type": ["string", "integer"]},
        "branch": {"type": "string"},
        "explain": {"enum": [True, False, "analyze"]},
        "allowScan": {"type": "boolean"},
        "count": {"type": "boolean"},
    },
}
_TOTALS: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "filter": _FILTER,
        "groupBy": _NAMES,
        "metrics": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "count": {"type": "boolean"},
                **dict.fromkeys(("sum", "avg", "min", "max"), _NAMES),
                "percentiles": {"type": "object"},
            },
        },
        "having": {"type": "object"},
        "sort": {"oneOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]},
        "limit": {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX},
        "at": {"type": ["string", "integer"]},
        "branch": {"type": "string"},
        "allowScan": {"type": "boolean"},
    },
}
ROUTES = (
    Route(
        "GET",
        "/v1/models/{model}/documents",
        list_documents,
        "Query documents, one page at a time",
        parameters=(
            FILTER,
            SORT,
            SELECT,
            Parameter("populate", "Reference fields to replace by the referenced documents."),
            Parameter(
                "limit",
                "Maximum number of rows per page.",
                {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX, "default": LIMIT},
            ),
            Parameter("cursor", "The `cursor` of the previous page."),
            AT,
            BRANCH,
            EXPLAIN,
            ALLOW_SCAN,
            Parameter("count", "Also count all documents that match.", {"type": "boolean"}),
        ),
        answer=_LIST,
        problems=(400, 404),
        tag="queries",
    ),
    Route(
        "POST",
        "/v1/models/{model}/query",
        query_documents,
        "Query documents with a JSON body",
        parameters=(BRANCH,),
        body={JSON: _QUESTION},
        answer=_LIST,
        problems=(400, 404),
        invalid=400,
        tag="queries",
    ),
    Route(
        "GET",
        "/v1/models/{model}/count",
        count_documents,
        "Count documents",
        parameters=(FILTER, AT, BRANCH, ALLOW_SCAN),
        answer={"type": "object", "properties": {"count": {"type": "integer"}}},
        problems=(400, 404),
        tag="queries",
    ),
    Route(
        "POST",
        "/v1/models/{model}/aggregate",
        aggregate_documents,
        "Compute sums, averages, minimums, maximums and percentiles, overall or by group",
        parameters=(BRANCH,),
        body={JSON: _TOTALS},
        answer={"type": "object", "description": "Totals by name, or `groups`: a list of them, each with its `key`."},
        problems=(400, 404),
        invalid=400,
        tag="queries",
    ),
)
