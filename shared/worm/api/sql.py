"""SQL over the models that the caller may see, where DuckDB is installed.

Few statements run at the same time: each may take as much memory as `db.sql` allows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, cast

import orjson

from worm.api.call import JSON, PAGE_BYTES_MAX, PAGE_ROWS_MAX, Call, HttpAnswer, json_answer
from worm.api.problems import RETRY_SECONDS, HttpProblem
from worm.api.queries import LIMIT, AskedRows, check_members, flag_of, limit_of, within
from worm.api.routes import Route
from worm.errors import Invalid, show
from worm.formats import JsonObject
from worm.sdk import Worm, json_row

MEMBERS = frozenset({"statement", "params", "limit", "at", "branch", "allowScan"})
STATEMENTS_MAX = 4
_RUNNING = threading.BoundedSemaphore(STATEMENTS_MAX)


def run_statement(call: Call) -> HttpAnswer:
    if find_spec("duckdb") is None:
        hint = "install it: pip install 's3worm[sql]'; queries and aggregates work without it"
        raise HttpProblem(501, "not-installed", "SQL needs the package duckdb", hint=hint)
    from worm.sdk import run_sql_page

    body = call.json_object()
    check_members(body, MEMBERS)
    session, limit, allow_scan = _session(call, body), limit_of(body), flag_of(body, "allowScan")
    most = AskedRows(allow_scan=allow_scan).max_changed(call.settings.max_requests)

    def read(name: str, fields: list[str] | None) -> object:
        return session.model(name)._all_rows(fields, cast("Any", body.get("at")), most)

    statement, params = cast("Any", body.get("statement")), cast("Any", body.get("params"))
    models = {name: one for name, one in session.schema.models.items() if call.identity.sees(name)}
    with _turn(), within(call, allow_scan=allow_scan):
        found = run_sql_page(statement, params, models, read, limit + 1)
    items = [orjson.dumps(json_row(row)) for row in found[:limit]]
    fitting = sum(size <= PAGE_BYTES_MAX for size in accumulate(len(item) + 1 for item in items)) or 1
    rows = [orjson.Fragment(item) for item in items[:fitting]]
    return json_answer({"columns": found.columns, "items": rows, "hasMore": len(found) > len(rows)})


def _session(call: Call, body: JsonObject) -> Worm:
    branch = body.get("branch")
    if not isinstance(branch, str | None):
        raise Invalid(f"must be text, not {show(branch)}", path="branch")
    return call.session if branch is None else call.session.branch(branch)


@contextmanager
def _turn() -> Iterator[None]:
    if not _RUNNING.acquire(blocking=False):
        what = f"{STATEMENTS_MAX} statements are running already"
        raise HttpProblem(503, "busy", what, hint="try again", headers={"Retry-After": RETRY_SECONDS})
    try:
        yield
    finally:
        _RUNNING.release()


_STATEMENT: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "required": ["statement"],
    "properties": {
        "statement": {"type": "string", "description": "One SELECT, also as WITH, VALUES, DESCRIBE, SHOW or EXPLAIN."},
        "params": {
            "oneOf": [{"type": "array"}, {"type": "object"}],
            "description": "The values of `?` and `$1`, or of `$name`.",
        },
        "limit": {"type": "integer", "minimum": 1, "maximum": PAGE_ROWS_MAX, "default": LIMIT},
        "at": {"type": ["string", "integer"]},
        "branch": {"type": "string"},
        "allowScan": {"type": "boolean"},
    },
}
_ANSWER: JsonObject = {
    "type": "object",
    "properties": {
        "columns": {"type": "array", "items": {"type": "string"}},
        "items": {"type": "array", "items": {"type": "object"}},
        "hasMore": {"type": "boolean", "description": "The statement has more rows than the answer."},
    },
}
ROUTES = (
    Route(
        "POST",
        "/v1/sql",
        run_statement,
        "Query models with SQL, where DuckDB is installed",
        body={JSON: _STATEMENT},
        answer=_ANSWER,
        problems=(400, 404, 501, 503),
        invalid=400,
        models="filtered",
        tag="queries",
    ),
)
