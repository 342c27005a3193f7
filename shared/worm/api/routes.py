"""Routes, and finding the route of a call: Powertools' resolver, made thread-safe.

A module of endpoints has a tuple `ROUTES`; `app.py` names the modules. The OpenAPI description is generated from the
same routes, so each declares its input and output.

Powertools keeps the current event in an attribute of the *class*, where two threads overwrite each other's, and wraps a
route at its first call, which two threads would do twice. Here each call resolves on a shallow copy of the resolver
with its own event, and all routes are wrapped at startup. Endpoints never see Powertools.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

try:
    from aws_lambda_powertools.event_handler.api_gateway import Response
    from aws_lambda_powertools.event_handler.lambda_function_url import LambdaFunctionUrlResolver
except ModuleNotFoundError as error:
    needs = "worm.api needs the package aws-lambda-powertools: pip install 's3worm[api]'"
    raise ModuleNotFoundError(needs, name=error.name) from error

from worm.api.call import Endpoint, Event, HttpAnswer, problem_answer
from worm.api.problems import HttpProblem
from worm.errors import Invalid, show
from worm.formats import JsonObject
from worm.values import dataclass

Scope = Literal["public", "read", "write", "admin"]
Models = Literal["named", "filtered", "all"]
"""How a caller who may see only some models is limited to them. `named`: the path names the model. `filtered`: the
endpoint leaves out what the caller may not see (`Identity.sees`). `all`: such a caller is refused."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header. `schema` is its JSON Schema."""

    name: str
    description: str
    schema: JsonObject = field(default_factory=lambda: {"type": "string"})
    place: Literal["query", "header"] = "query"
    is_required: bool = False
    is_repeated: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """`path` has parameters in braces: `/v1/models/{model}/documents/{id}`; `{rest}` is everything that follows. A GET
    also answers HEAD.

    `invalid` is the status of `Invalid`: 400 if the call only asks, 422 if it sends content; None: by the method.
    `body`: the JSON Schema of the body by media type. `answer`: the schema of the answer with `status`; `media_types`
    if it is not JSON.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    scope: Scope = "read"
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, JsonObject] | None = None
    answer: JsonObject | None = None
    status: int = 200
    media_types: Sequence[str] = ("application/json",)
    problems: Sequence[int] = ()
    invalid: int | None = None
    description: str = ""
    tag: str = ""
    models: Models | None = None
    """None: `named` if the path has a `{model}`, else `all`."""
    is_idempotent: bool = False
    """Does the route support `Idempotency-Key`? Then the second of two equal calls gets the answer of the first."""
    is_described: bool = True
    """Is it in `/openapi.json`? Files of the console are not part of the API."""

    @property
    def names(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    @property
    def models_shown(self) -> Models:
        return self.models or ("named" if "model" in self.names else "all")

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.method, "HEAD") if self.method == "GET" else (self.method,)

    def check_parameters(self, names: set[str]) -> None:
        """Refuses unknown parameters, so that a typo does not silently change the question."""
        known = {one.name for one in self.parameters if one.place == "query"}
        unknown = sorted(names - known) if self.is_described else []
        if unknown:
            raise Invalid("is not a parameter of this path", path=unknown[0], hint=f"known: {', '.join(sorted(known))}")

    @property
    def invalid_status(self) -> int:
        return self.invalid or (400 if self.method == "GET" else 422)


# Shared by several routes

BRANCH = Parameter("branch", "Use this branch; only models in a space have branches.")
REASON = Parameter("reason", "The reason for the change, kept in the history.")
WORM_REASON = Parameter(
    "Worm-Reason", "The reason, percent-encoded; takes precedence over the parameter `reason`.", place="header"
)
IF_MATCH = Parameter("If-Match", "The required version, in quotes, or `*` for any.", place="header")
IF_NONE_MATCH = Parameter(
    "If-None-Match",
    "For a GET: the version that you have, to get 304. For a write: `*` means that the document must not exist.",
    place="header",
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "A random name for this call. For 24 hours an equal call with the same "
    "name gets the same answer and changes nothing.",
    {"type": "string", "minLength": 1, "maxLength": 255},
    place="header",
)
DOCUMENT: JsonObject = {
    "type": "object",
    "required": ["id", "version", "seq", "document"],
    "properties": {
        "id": {"type": "string"},
        "version": {
            "type": ["string", "null"],
            "description": "For If-Match. Null if the document cannot be saved as it is.",
        },
        "seq": {"type": ["integer", "null"], "description": "Its entry in the history, if known."},
        "document": {"type": "object"},
    },
}


Deliver = Callable[["Route", Mapping[str, str]], HttpAnswer]


class _Resolver(LambdaFunctionUrlResolver):
    """See above. `event` and `deliver` belong to one call; `answer` is the result."""

    table: RouteTable
    deliver: Deliver
    answer: HttpAnswer
    _event: Any = None

    @property
    def current_event(self) -> Any:  # type: ignore[override]  # Powertools has an attribute of the class there
        return self._event

    def _to_proxy_event(self, event: dict[str, Any]) -> Any:
        self._event = super()._to_proxy_event(event)
        return self._event

    @staticmethod
    def _compile_regex(rule: str, base_regex: str = r"{}\Z") -> re.Pattern[str]:
        """A parameter is a whole segment, with any characters. Powertools allows fewer, and accepts a path that ends in
        a line break."""
        pattern = re.sub(r"<(\w+)>", r"(?P<\1>[^/]+)", rule).replace("(?P<rest>[^/]+)", "(?P<rest>.+)")
        return re.compile(base_regex.format(pattern))


class RouteTable:
    """Finds the route of an event and answers it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)
        self._resolver = _Resolver(debug=False)
        self._resolver.use([_deliver])
        self._resolver.table = self
        self._routes: dict[int, Route] = {}
        for route in self.routes:
            self._register(route)

    def _register(self, route: Route) -> None:
        rule = re.sub(r"{(\w+)}", r"<\1>", route.path)
        self._resolver.route(rule, list(route.methods))(_unreached)
        dynamic, static = self._resolver._dynamic_routes, self._resolver._static_routes
        for made in (dynamic if route.names else static)[-len(route.methods) :]:
            self._routes[id(made)] = route
            made._build_middleware_stack(self._resolver._router_middlewares, self._resolver)

    def resolve(self, event: Event, context: Any, deliver: Deliver) -> HttpAnswer:
        """The answer of `deliver` for the route of the event. `HttpProblem` if there is no route."""
        mine = copy.copy(self._resolver)
        mine.context, mine.processed_stack_frames = {}, []
        mine.deliver = deliver
        mine.resolve(event, context)
        return mine.answer

    def found(self, made: Any) -> Route | None:
        """The route of one of Powertools' routes."""
        return self._routes.get(id(made))

    def unknown(self, method: str, path: str) -> HttpProblem:
        """404, or 405 if only the method is wrong."""
        everywhere = (*self._resolver._static_routes, *self._resolver._dynamic_routes)
        allowed = sorted({one.method for one in everywhere if one.rule.match(path)})
        if not allowed:
            return HttpProblem(
                404, "no-such-path", f"the path {show(path)} does not exist", hint="GET /openapi.json lists all paths"
            )
        what = f"{show(method)} is not allowed on this path"
        methods = ", ".join(allowed)
        return HttpProblem(405, "method-not-allowed", what, hint=f"possible: {methods}", headers={"Allow": methods})


def _deliver(app: _Resolver, next_middleware: Any) -> Response[str]:
    """Powertools' middleware; it ends the chain. (A plain function, because Powertools reads the types of a method on
    every call.)"""
    path, event = app.context["_path"], app.current_event
    route = app.table.found(app.context["_route"])
    if route is None:
        problem = app.table.unknown(event.http_method, path)
        app.answer = problem_answer(problem, str(event.request_context.request_id or ""))
    else:
        app.answer = app.deliver(route, app.context["_route_args"])
    return Response(status_code=app.answer.status)


def _unreached() -> None:
    raise AssertionError("the middleware answers")
