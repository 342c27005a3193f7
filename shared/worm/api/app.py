"""The API as a whole: an event in, an answer out.

`Api.handle` takes and returns what Lambda does (payload format 2.0). `Api.answer` returns the `HttpAnswer` before it is
packed, for a server that can stream a long body. Nothing raises: every mistake becomes a problem answer.

Every answer reports its cost: `Worm-Requests`, and `Worm-Usd` at the prices of `upkeep/prices.json`. For a streamed
body they count only the requests before its first piece.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial
from typing import Any

import orjson

from worm.api import (
    branches,
    changes,
    documents,
    exports,
    health,
    histories,
    models,
    queries,
    sql,
    static,
    transactions,
    trash,
    uploads,
)
from worm.api.call import (
    ApiSettings,
    Call,
    Event,
    HttpAnswer,
    StreamedBody,
    body_of,
    decoded,
    headers_of,
    json_answer,
    problem_answer,
    query_of,
)
from worm.api.idempotency import answered_once
from worm.api.identity import EVERYTHING, Identity
from worm.api.problems import HttpProblem, problem_of
from worm.api.routes import Route, RouteTable
from worm.api.sessions import SessionLease, SharedSession
from worm.errors import Invalid, NotFound, WormError
from worm.sdk import Worm
from worm.store import RequestMeter, metered
from worm.upkeep import costs

Identify = Callable[[Call, Event], Identity]
"""Identifies the caller. Raises a `HttpProblem` with 401 if it cannot. The call has no path parameters yet."""

ROUTES: tuple[Route, ...] = (
    *models.ROUTES,
    *queries.ROUTES,
    *sql.ROUTES,
    *documents.ROUTES,
    *uploads.ROUTES,
    *exports.ROUTES,
    *histories.ROUTES,
    *trash.ROUTES,
    *branches.ROUTES,
    *transactions.ROUTES,
    *changes.ROUTES,
    *health.ROUTES,
    *static.ROUTES,
)
"""The routes of all modules. A module with endpoints adds its own here."""

TEXTUAL = ("application/json", "application/problem+json", "text/", "application/x-ndjson", "application/javascript")
NO_STORE = (
    "create it and push a schema (`worm push schema.json`), or correct the address of the store that this API serves"
)
PLUS_AS_SPACE = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)? \d\d:?\d\d")
"""A time whose zone lost its sign: in a query string, + means a space."""
log = logging.getLogger("worm.api")


def as_local(call: Call, event: Event) -> Identity:
    """Everything is allowed: for tests, and for a server that has already identified the caller."""
    return EVERYTHING


class Api:
    """See above. `open_session` is called once, by the first call."""

    def __init__(
        self,
        open_session: Callable[[], Worm],
        settings: ApiSettings | None = None,
        identify: Identify = as_local,
        routes: tuple[Route, ...] = ROUTES,
    ) -> None:
        self.settings = settings or ApiSettings()
        self.sessions = SharedSession(open_session)
        self._identify = identify
        described = Route("GET", "/openapi.json", self._openapi, "This description", scope="public", tag="models")
        self.table = RouteTable((*routes, described))

    def close(self) -> None:
        self.sessions.close()

    def _openapi(self, call: Call) -> HttpAnswer:
        from worm.api.openapi import openapi

        return json_answer(openapi(self.table.routes), headers={"Cache-Control": "no-cache"})

    def handle(self, event: Event, context: Any = None) -> dict[str, Any]:
        """For Lambda: the answer as payload format 2.0."""
        return _packed(self._answer(event, context, partial(self._whole, event)))

    def answer(self, event: Event, context: Any = None) -> HttpAnswer:
        """The answer, with all its headers. Its body may be streamed; errors during that are raised."""
        return self._answer(event, context, lambda answer: answer)

    def _answer(self, event: Event, context: Any, finish: Callable[[HttpAnswer], HttpAnswer]) -> HttpAnswer:
        with metered() as meter:
            try:
                answer = finish(self.table.resolve(event, context, partial(self._deliver, event)))
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the caller gets an answer
                answer = _failed(error, _request_id(event))
        return _finished(answer, meter)

    def _whole(self, event: Event, answer: HttpAnswer) -> HttpAnswer:
        """With its body in one piece, if that is not too large."""
        most, size, pieces = self.settings.max_answer_bytes, 0, list[bytes]()
        for piece in [answer.body] if isinstance(answer.body, bytes) else answer.body:
            size += len(piece)
            pieces.append(piece)
            if most is not None and size > most:
                _without_body(answer)
                return _shortened(answer, event, most)
        return replace(answer, body=b"".join(pieces))

    def _deliver(self, event: Event, route: Route, parameters: Mapping[str, str]) -> HttpAnswer:
        """What the endpoint answers, or the problem."""
        try:
            with ExitStack() as ending:
                lease = ending.enter_context(closing(self.sessions.lease()))
                call = self._admitted(self._call(event, lease, parameters), route)
                answer = self._answered(call, route)
                if not isinstance(answer.body, bytes):
                    answer = replace(answer, body=StreamedBody(answer.body, ending.pop_all().close))
        except NotFound as error:  # the endpoint's own errors are answers by now, so the session could not be opened
            problem = HttpProblem(503, "no-schema", error.message, hint=error.hint or NO_STORE)
            answer = problem_answer(problem, _request_id(event))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets an answer
            answer = _failed(error, _request_id(event))
        return _without_body(answer) if _method(event) == "HEAD" else answer

    def _answered(self, call: Call, route: Route) -> HttpAnswer:
        work = partial(_attempted, call, route)
        if not route.is_idempotent:
            return work()
        try:
            return answered_once(call, work)
        except HttpProblem as problem:
            return problem_answer(problem, call.request_id)

    def _call(self, event: Event, lease: SessionLease, parameters: Mapping[str, str]) -> Call:
        body = event.get("body") or ""
        if len(body) > self.settings.max_body_bytes * (4 / 3 if event.get("isBase64Encoded") else 1) + 4:
            raise self._too_large()
        content = body_of(event)
        if len(content) > self.settings.max_body_bytes:
            raise self._too_large()
        return Call(
            method=_method(event),
            path=str(event.get("rawPath") or "/"),
            session=lease.session,
            settings=self.settings,
            parameters={name: decoded(raw, "the path") for name, raw in parameters.items()},
            query=query_of(str(event.get("rawQueryString") or "")),
            headers=headers_of(event),
            body=content,
            request_id=_request_id(event),
            event=event,
            is_outdated=lease.is_outdated,
        )

    def _too_large(self) -> HttpProblem:
        most = self.settings.max_body_bytes
        return HttpProblem(413, "body-too-large", f"the body has more than {most:,} bytes", hint="send less per call")

    def _admitted(self, call: Call, route: Route) -> Call:
        """The call with its identity, if it has permission for the route."""
        if route.scope == "public":
            route.check_parameters(call.query.names)
            return call
        identity = self._identify(call, call.event)
        if self.settings.is_readonly and route.scope != "read":
            way = "start it without --read-only" if self.settings.is_local else "deploy it with ApiMode=readwrite"
            raise HttpProblem(403, "read-only", "this API is read-only", hint=way)
        if not identity.may(route.scope):
            what = f"this call needs the scope {route.scope}"
            raise HttpProblem(
                403, "scope", what, hint=f"scopes of {identity.actor}: {', '.join(sorted(identity.scopes)) or 'none'}"
            )
        route.check_parameters(call.query.names)
        admitted = replace(call, identity=identity)
        if identity.models is not None:
            _hold_to_models(admitted, route)
        return admitted


def _without_body(answer: HttpAnswer) -> HttpAnswer:
    if isinstance(answer.body, StreamedBody):
        answer.body.close()
    return replace(answer, body=b"")


def _hold_to_models(call: Call, route: Route) -> None:
    """For a caller who may see only some models: other models do not exist."""
    if route.models_shown == "all":
        call.check_sees_all()
    named = [call.parameters["model"]] if "model" in call.parameters else []
    for name in [*named, *call.query.all("model")]:
        try:
            call.check_model(name)
        except NotFound as error:
            raise problem_of(error) from None


def _attempted(call: Call, route: Route) -> HttpAnswer:
    """The endpoint's answer. Its errors are answers too, and are kept with an `Idempotency-Key`."""
    try:
        result = route.endpoint(call)
        return result if isinstance(result, HttpAnswer) else json_answer(result)
    except WormError as error:
        if isinstance(error, Invalid) and any(PLUS_AS_SPACE.search(value) for _, value in call.query.pairs):
            error.hint = "in a URL, + means a space: write %2B"
        known = problem_of(error, has_precondition=call.has_precondition, invalid=route.invalid_status)
        return problem_answer(known, call.request_id)
    except Exception as error:  # noqa: BLE001 - the answer says so, the log says what
        return _failed(error, call.request_id)


def _shortened(answer: HttpAnswer, event: Event, most: int) -> HttpAnswer:
    """A write has already happened, so its answer is sent without the document. Any other answer is refused."""
    if isinstance(answer.body, bytes) and _method(event) != "GET" and "ETag" in answer.headers:
        return replace(answer, body=orjson.dumps({**orjson.loads(answer.body), "document": None}))
    what = f"the answer has more than the {most:,} bytes that a function may return"
    hint = "ask for less: use limit, select or a filter"
    return problem_answer(HttpProblem(413, "answer-too-large", what, hint=hint), _request_id(event))


def _failed(error: Exception, request_id: str) -> HttpAnswer:
    if isinstance(error, HttpProblem):
        return problem_answer(error, request_id)
    if isinstance(error, WormError):
        return problem_answer(problem_of(error, invalid=400), request_id)
    log.error("a call failed: %s", request_id, exc_info=error)
    what = "an internal error occurred"
    hint = "look up the id of the request in the log"
    return problem_answer(HttpProblem(500, "internal", what, hint=hint), request_id)


@cache
def _prices() -> costs.Prices:
    return costs.Prices.read()


def _finished(answer: HttpAnswer, meter: RequestMeter) -> HttpAnswer:
    """With the headers that every answer has."""
    usual = {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Worm-Requests": str(meter.total),
        "Worm-Usd": usd_text(_prices().s3(meter.requests)),
    }
    return replace(answer, headers={**usual, **answer.headers})


def usd_text(usd: float) -> str:
    """US dollars, never in exponents."""
    return f"{usd:.10f}".rstrip("0").rstrip(".") or "0"


def _packed(answer: HttpAnswer) -> dict[str, Any]:
    body = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
    is_text = answer.headers.get("Content-Type", "text/").startswith(TEXTUAL)
    return {
        "statusCode": answer.status,
        "headers": dict(answer.headers),
        "body": body.decode() if is_text else base64.b64encode(body).decode(),
        "isBase64Encoded": not is_text,
    }


def failure_of(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The failure on our side, for the log, in an answer of `Api.handle`; None if there is none. An unsupported call
    (501) is not a failure, and neither is a call before the first `worm push`."""
    if answer["statusCode"] < 500 or answer["statusCode"] == 501:
        return None
    problem = orjson.loads(answer["body"] or b"{}")
    if problem.get("type") == "urn:worm:no-schema":
        return None
    facts = {"status": answer["statusCode"], "error": problem.get("type"), "reason": problem.get("detail")}
    known = {**facts, "failed_key": problem.get("key"), "s3_request_id": problem.get("storeRequestId")}
    return {name: fact for name, fact in known.items() if fact is not None}


def _request_id(event: Event) -> str:
    return str((event.get("requestContext") or {}).get("requestId") or "")


def _method(event: Event) -> str:
    return str(event["requestContext"]["http"]["method"]).upper()
