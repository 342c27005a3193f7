"""Calls as Lambda Function URLs bring them (payload format 2.0), for tests of the API."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from worm.api.app import Api
from worm.clock import Clock, Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.memory import MemoryStore
from worm.upkeep.session import Maintenance


def memory_session(
    schema: Mapping[str, object], *, maintenance: Maintenance = "inline", clock: Clock | None = None
) -> Worm:
    """A session on a store of its own, to which the schema is pushed."""
    clock = clock or VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(versioned=True, clock=clock, ids=ids)
    definition = load_schema(schema)
    store.put(SCHEMA_KEY, definition.to_json())
    return Worm(store, definition, maintenance=maintenance, probe=False, clock=clock, ids=ids)


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def etag(self) -> str:
        return self.headers["ETag"]

    @property
    def slug(self) -> str:
        """That of a problem."""
        assert self.headers["Content-Type"] == "application/problem+json"
        problem = self.json
        assert problem["status"] == self.status
        slug = problem["type"].removeprefix("urn:worm:")
        assert isinstance(slug, str)
        return slug


def event(
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, str] | list[tuple[str, str]] | str = "",
) -> dict[str, Any]:
    """`path` as it is sent, percent-encoded; a body that is neither text nor bytes is sent as JSON."""
    raw = query if isinstance(query, str) else urlencode(query)
    is_text = isinstance(body, str | bytes | None)
    content = body if is_text else json.dumps(body)
    given = {**({} if is_text else {"Content-Type": "application/json"}), **(headers or {})}
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": raw,
        "headers": given,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "x",
            "domainName": "x.lambda-url.eu-central-1.on.aws",
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1", "userAgent": "t"},
            "requestId": "request-1",
            "routeKey": "$default",
            "stage": "$default",
        },
        "body": base64.b64encode(content).decode() if isinstance(content, bytes) else content,
        "isBase64Encoded": isinstance(content, bytes),
    }


class Client:
    """Speaks to an `Api` as a caller would."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | list[tuple[str, str]] | str = "",
    ) -> Reply:
        return reply(self.api.handle(event(method, path, body, headers, query)))

    def get(self, path: str, query: Mapping[str, str] | list[tuple[str, str]] | str = "", **headers: str) -> Reply:
        return self.call("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()}, query)


def reply(answer: Mapping[str, Any]) -> Reply:
    body = answer["body"]
    content = base64.b64decode(body) if answer["isBase64Encoded"] else body.encode()
    return Reply(answer["statusCode"], answer["headers"], content)
