"""A call and its answer, from a Function URL, an HTTP API, or `worm serve`.

All three provide an event of payload format 2.0. A `Call` has what endpoints need: path parameters decoded once, the
query with all its values, headers by lower-case names, the body as bytes. An endpoint gets a `Call` and returns an
`HttpAnswer`, or a JSON value, which becomes an answer with status 200.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any
from urllib.parse import parse_qsl, unquote

import orjson

from worm.api.identity import EVERYTHING, Identity
from worm.api.problems import MEDIA_TYPE, HttpProblem
from worm.errors import Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue, loads
from worm.sdk import About, DocumentDict, Model, Worm
from worm.values import dataclass

Event = Mapping[str, Any]
JSON = "application/json"
LOCAL_BODY_MAX = 10 * 1024 * 1024
LAMBDA_BODY_MAX = 6_000_000
LAMBDA_ANSWER_MAX = 5_900_000
"""A Lambda function may return 6 MB, including the quotes and escapes around the body."""
PAGE_ROWS_MAX = 1000
PAGE_BYTES_MAX = 4_000_000
HEADER_CHARACTERS_MAX = 8192
NO_PARAMETERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Settings from outside. `max_answer_bytes` None: answers of any size. `max_requests`: a query that needs more is
    refused unless the caller passes `allowScan`."""

    is_readonly: bool = False
    is_local: bool = True
    max_body_bytes: int = LOCAL_BODY_MAX
    max_answer_bytes: int | None = None
    max_requests: int = 1000

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ApiSettings:
        """For a Lambda function, from the variables that template.yaml sets."""
        text, mode = environment.get("WORM_API_MAX_REQUESTS") or "1000", environment.get("WORM_API_MODE") or "readwrite"
        if not (text.isdecimal() and text.isascii()) or not 1 <= len(text) <= 9 or int(text) < 1:
            raise Invalid(f"the environment variable WORM_API_MAX_REQUESTS must be a positive number, not {show(text)}")
        if mode not in ("readonly", "readwrite"):
            raise Invalid(f"the environment variable WORM_API_MODE must be readonly or readwrite, not {show(mode)}")
        return cls(
            is_readonly=mode == "readonly",
            is_local=False,
            max_body_bytes=LAMBDA_BODY_MAX,
            max_answer_bytes=LAMBDA_ANSWER_MAX,
            max_requests=int(text),
        )


@dataclass(frozen=True, slots=True)
class QueryString:
    """The query parameters, in order; a name may occur several times."""

    pairs: tuple[tuple[str, str], ...] = ()

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.pairs if known == name]

    def one(self, name: str) -> str | None:
        """The value; None if it is missing. Two values are refused, because it is unclear which one is meant."""
        found = self.all(name)
        if len(found) > 1:
            raise Invalid(f"is given {len(found)} times", path=name, hint="pass it once")
        return found[0] if found else None

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        text = self.one(name)
        if text is None:
            return default
        if not (text.isdecimal() and text.isascii()) or len(text) > 19 or not least <= int(text) <= most:
            raise Invalid(f"must be a whole number from {least} to {most}, not {show(text)}", path=name)
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.one(name)
        if text not in (None, "true", "false"):
            raise Invalid(f"must be true or false, not {show(text)}", path=name)
        return text == "true"

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.pairs}


@dataclass(frozen=True, slots=True)
class Call:
    """See above. `session` is the session on the main branch that all calls of the process share. No write depends on
    what it remembers: conditions come from the call."""

    method: str
    path: str
    session: Worm
    settings: ApiSettings = field(default_factory=ApiSettings)
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: QueryString = field(default_factory=QueryString)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    identity: Identity = EVERYTHING
    request_id: str = ""
    event: Event = field(default_factory=dict, repr=False)
    is_outdated: Callable[[], bool] = field(default=lambda: False, repr=False)
    """Was the schema replaced since the call began? Then a stream should end, so that the client reconnects."""

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())

    @property
    def has_precondition(self) -> bool:
        return "if-match" in self.headers or "if-none-match" in self.headers

    @property
    def media_type(self) -> str:
        """The media type of the body, in lower case and without parameters."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def json(self, media_types: tuple[str, ...] = (JSON,)) -> JsonValue:
        """The body. A body without a media type counts as JSON."""
        if self.media_type and self.media_type not in media_types:
            what = f"the body is {show(self.media_type)}, but must be {', '.join(media_types)}"
            raise HttpProblem(415, "unsupported-media-type", what, headers={"Accept": ", ".join(media_types)})
        try:
            return loads(self.body, max_bytes=self.settings.max_body_bytes)
        except Invalid as mistake:
            raise HttpProblem(
                400, "malformed-json", f"the body is not JSON: {mistake.message}", hint=mistake.hint
            ) from None

    def json_object(self, media_types: tuple[str, ...] = (JSON,)) -> JsonObject:
        value = self.json(media_types)
        if not isinstance(value, dict):
            raise Invalid(f"the body must be a JSON object, not {show(value)}")
        return value

    @property
    def reason(self) -> str | None:
        """The reason for a write: the header `Worm-Reason`, percent-encoded, or the parameter `reason`."""
        given = self.header("worm-reason")
        return self.query.one("reason") if given is None else decoded(given, "Worm-Reason")

    @property
    def about(self) -> About:
        """The history's note of a write. The author is always the caller."""
        return {"actor": self.identity.actor, "reason": self.reason}

    def on_branch(self) -> Worm:
        """The session on the branch that the call names."""
        name = self.query.one("branch")
        return self.session if name is None or name == "main" else self.session.branch(name)

    def model_named(self, name: str) -> Model[DocumentDict]:
        """A model on the branch of the call; `NotFound` for one that the caller may not see, as if it did not exist."""
        self.check_model(name)
        return self.on_branch().model(name)

    @property
    def model(self) -> Model[DocumentDict]:
        """The model in the path."""
        return self.model_named(self.parameters["model"])

    def check_model(self, name: str) -> None:
        if name not in self.session.schema.models or not self.identity.sees(name):
            known = [one for one in self.session.schema.models if self.identity.sees(one)]
            raise NotFound(f"the model {show(name)} does not exist", hint=f"models: {', '.join(known) or 'none'}")

    def check_sees_all(self) -> None:
        """For calls that are not about single models."""
        if self.identity.models is not None:
            what = "this call needs access to the whole database, but your token is limited to some models"
            raise HttpProblem(403, "scope", what, hint="use a token for all models")


Body = bytes | Iterator[bytes]
NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What the caller gets. A body of several pieces is streamed if possible."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Body = b""


class StreamedBody:
    """A body of several pieces, and what to do when it ends: after it was sent, interrupted, or never requested."""

    def __init__(self, pieces: Iterator[bytes], at_end: Callable[[], None]) -> None:
        self._pieces = pieces
        self._at_end = at_end

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The source of the pieces is released first."""
        close = getattr(self._pieces, "close", None)
        self._pieces = iter(())
        try:
            if close is not None:
                close()
        finally:
            self._at_end()


Endpoint = Callable[[Call], "HttpAnswer | JsonValue"]


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> HttpAnswer:
    return HttpAnswer(status, {"Content-Type": JSON, **headers}, orjson.dumps(value))


def problem_answer(problem: HttpProblem, request_id: str = "") -> HttpAnswer:
    headers = {**problem.headers, "Content-Type": MEDIA_TYPE, "Cache-Control": "no-store"}
    return json_answer(problem.shape(request_id), problem.status, headers)


# From an event


def query_of(text: str) -> QueryString:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=False, errors="strict", max_num_fields=1000)
    except ValueError as error:  # also for bytes that are not UTF-8
        raise Invalid(f"the query string is not valid: {show(str(error))}") from None
    return QueryString(tuple(pairs))


def decoded(raw: str, where: str) -> str:
    """Percent-encoded text, decoded once."""
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise Invalid(f"{show(raw)} in {where} is not UTF-8") from None


def body_of(event: Event) -> bytes:
    """The bytes that were sent. Text with half a surrogate pair cannot be encoded."""
    text = event.get("body")
    if text is None:
        return b""
    if not isinstance(text, str):
        raise Invalid("the body of the event is not text")
    try:
        return base64.b64decode(text, validate=True) if event.get("isBase64Encoded") else text.encode()
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raise Invalid("the body is neither UTF-8 nor base64") from None


def headers_of(event: Event) -> dict[str, str]:
    given = event.get("headers") or {}
    return {str(name).lower(): str(value) for name, value in given.items()}
