"""The requests of the contract, one after the other, and how AWS hands them to the function.

`python -m tests.api.recordings` writes events/function-url.json and events/http-api.json again: each request as an
event of payload format 2.0, in the shapes of the Lambda guide (Function URL, IAM) and of the API Gateway guide (HTTP
API, JWT authorizer). What differs between the two, besides the domain and the caller: an HTTP API has decoded the path,
and its console has routes of its own, without an authorizer.

`${name}` in a path or a header stands for what an earlier answer had: see `Request.keep`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from tests.api import conftest, shop

HERE = Path(__file__).resolve().parent / "events"
FUNCTION_URL, HTTP_API = HERE / "function-url.json", HERE / "http-api.json"
MODELS: Any = conftest.SCHEMA["models"]
SCHEMA: dict[str, Any] = {"models": {**MODELS, **shop.SCHEMA["models"]}}
JSON = "application/json"
MERGE, PATCH, UPDATE = (f"application/{kind}+json" for kind in ("merge-patch", "json-patch", "vnd.worm.update"))
ARN = "arn:aws:sts::123456789012:assumed-role/Editor/ann"
ISSUER, AUDIENCE, SUBJECT = "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_Example", "app-1", "user-1"


@dataclass(frozen=True)
class Request:
    """`target` as it is sent. `status`: what is to come back. `keep`: the name under which the ETag of the answer is
    kept, or else its cursor."""

    name: str
    method: str
    target: str
    status: int = 200
    body: object = None
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = JSON
    keep: str = ""

    @property
    def content(self) -> bytes:
        if self.body is None or isinstance(self.body, bytes):
            return self.body or b""
        return json.dumps(self.body, ensure_ascii=False).encode()

    @property
    def sent_headers(self) -> dict[str, str]:
        return {**({"content-type": self.kind} if self.content else {}), **self.headers}


CUSTOMERS, ORDERS, NOTES, ACCOUNTS = (
    f"/v1/models/{name}/documents" for name in ("Customer", "Order", "Note", "Account")
)
ACME = {"id": "acme", "name": "Acme", "email": "info@acme.example", "status": "active", "visits": 3}
ODD = f"{CUSTOMERS}/b%20c%2B%C3%BC"
ONCE = {"idempotency-key": "0b9e8a52-6c1d"}
OPERATIONS = [
    {"op": "save", "model": "Account", "document": {"id": "one", "name": "One", "balance": 5}},
    {"op": "save", "model": "Account", "document": {"id": "two", "name": "Two", "balance": 0}},
]

REQUESTS: tuple[Request, ...] = (
    # What there is
    Request("root", "GET", "/v1"),
    Request("openapi", "GET", "/openapi.json"),
    Request("models", "GET", "/v1/models"),
    Request("model", "GET", "/v1/models/Customer"),
    Request("no model", "GET", "/v1/models/Nothing", 404),
    Request("no path", "GET", "/v1/nothing", 404),
    Request("no method", "DELETE", "/v1/models", 405),
    Request("no parameter", "GET", "/v1/models/Customer/count?limits=1", 400),
    # One document
    Request("create", "POST", CUSTOMERS, 201, ACME, {"worm-reason": "first%20contact"}, keep="created"),
    Request("create again", "POST", CUSTOMERS, 409, ACME),
    Request("create another with its email", "POST", CUSTOMERS, 409, {**ACME, "id": "other"}),
    Request("create without an id", "POST", CUSTOMERS, 201, {"name": "Nameless", "status": "active"}),
    Request("create what breaks the schema", "POST", CUSTOMERS, 422, {"id": "x", "name": 1}),
    Request("create from what is no JSON", "POST", CUSTOMERS, 400, b'{"name": '),
    Request("create from text", "POST", CUSTOMERS, 415, b"name=Acme", kind="text/plain"),
    Request("create once", "POST", ORDERS, 201, {"id": 1, "customer": "acme", "total": 9.5}, ONCE),
    Request("create once, again", "POST", ORDERS, 201, {"id": 1, "customer": "acme", "total": 9.5}, ONCE),
    Request("create once, other content", "POST", ORDERS, 422, {"id": 2, "customer": "acme"}, ONCE),
    Request("read", "GET", f"{CUSTOMERS}/acme"),
    Request("read its head", "HEAD", f"{CUSTOMERS}/acme"),
    Request("read what I have", "GET", f"{CUSTOMERS}/acme", 304, headers={"if-none-match": "${created}"}),
    Request("read nothing", "GET", f"{CUSTOMERS}/nobody", 404),
    Request("read with a broken header", "GET", f"{CUSTOMERS}/acme", 400, headers={"if-none-match": "x"}),
    Request("replace without a condition", "PUT", f"{CUSTOMERS}/acme", 428, {"name": "Acme Ltd"}),
    Request("replace", "PUT", f"{CUSTOMERS}/acme", 200, {**ACME, "name": "Acme Ltd"}, {"if-match": "${created}"}),
    Request("replace an old version", "PUT", f"{CUSTOMERS}/acme", 412, ACME, {"if-match": "${created}"}),
    Request("create by name", "PUT", ODD, 201, {"name": "Bücher & Co", "visits": 1}, {"if-none-match": "*"}),
    Request("read an odd id", "GET", ODD),
    Request("merge", "PATCH", f"{CUSTOMERS}/acme", 200, {"address": {"city": "Köln"}}, kind=MERGE),
    Request("patch", "PATCH", f"{CUSTOMERS}/acme", 200, [{"op": "add", "path": "/tags", "value": ["a"]}], kind=PATCH),
    Request(
        "patch on a test that fails",
        "PATCH",
        f"{CUSTOMERS}/acme",
        422,
        [{"op": "test", "path": "/name", "value": "x"}],
        kind=PATCH,
    ),
    Request("update", "PATCH", f"{CUSTOMERS}/acme", 200, {"$inc": {"visits": 1}}, {"worm-reason": "visit"}, UPDATE),
    Request("change by another kind", "PATCH", f"{CUSTOMERS}/acme", 415, {"visits": 1}),
    # Queries
    Request("page", "GET", f"{CUSTOMERS}?filter=status%3Dactive&filter=visits%3E2&sort=-visits&select=name%2Cvisits"),
    Request("first page", "GET", f"{CUSTOMERS}?sort=name&limit=1&count=true", keep="page"),
    Request("second page", "GET", f"{CUSTOMERS}?sort=name&limit=1&cursor=${{page}}"),
    Request("filter as JSON", "GET", f"{CUSTOMERS}?filter=%7B%22address.city%22%3A%22K%C3%B6ln%22%7D"),
    Request("populate", "GET", f"{ORDERS}?populate=customer"),
    Request("explain", "GET", f"{CUSTOMERS}?filter=status%3Dactive&explain=true"),
    Request("filter that is none", "GET", f"{CUSTOMERS}?filter=%7B", 400),
    Request("query", "POST", "/v1/models/Customer/query", 200, {"filter": {"visits": {"$gte": 1}}, "sort": "name"}),
    Request("query with an unknown member", "POST", "/v1/models/Customer/query", 400, {"where": {}}),
    Request("count", "GET", "/v1/models/Customer/count?filter=status%3Dactive"),
    Request(
        "aggregate",
        "POST",
        "/v1/models/Customer/aggregate",
        200,
        {"groupBy": ["status"], "metrics": {"count": True, "sum": ["visits"]}},
    ),
    Request("aggregate nonsense", "POST", "/v1/models/Customer/aggregate", 400, {"metrics": 1}),
    Request("sql", "POST", "/v1/sql", 200, {"statement": "select name from Customer where visits > ?", "params": [1]}),
    Request("sql that writes", "POST", "/v1/sql", 400, {"statement": "delete from Customer"}),
    Request("export csv", "GET", "/v1/models/Customer/export?format=csv"),
    Request("export ndjson", "GET", "/v1/models/Customer/export?format=ndjson&select=name"),
    Request("export arrow", "GET", "/v1/models/Customer/export?format=arrow"),
    Request("export nonsense", "GET", "/v1/models/Customer/export?format=xls", 400),
    # The past
    Request("history", "GET", f"{CUSTOMERS}/acme/history?limit=3"),
    Request("history of a model without", "GET", "/v1/models/Plain/documents/x/history", 400),
    Request("state", "GET", f"{CUSTOMERS}/acme/at?seq=1"),
    Request("state without a moment", "GET", f"{CUSTOMERS}/acme/at", 400),
    Request("difference", "GET", f"{CUSTOMERS}/acme/diff?from=1&to=2"),
    Request("difference to nothing", "GET", f"{CUSTOMERS}/acme/diff?from=1&to=99", 404),
    Request("roll back", "POST", f"{CUSTOMERS}/acme/rollback", 200, {"toSeq": 1}),
    Request("roll back to nowhere", "POST", f"{CUSTOMERS}/acme/rollback", 422, {"toSeq": "x"}),
    Request(
        "roll back an old version", "POST", f"{CUSTOMERS}/acme/rollback", 412, {"toSeq": 1}, {"if-match": "${created}"}
    ),
    Request("history of all", "GET", "/v1/history?model=Customer&op=update"),
    Request("history since when", "GET", "/v1/history?since=x", 400),
    # Trash
    Request("delete an old version", "DELETE", f"{CUSTOMERS}/acme", 412, headers={"if-match": "${created}"}),
    Request("delete", "DELETE", f"{CUSTOMERS}/acme?reason=gone", 204),
    Request("delete again", "DELETE", f"{CUSTOMERS}/acme", 404),
    Request("trash", "GET", "/v1/trash?model=Customer"),
    Request("trash of a model without", "GET", "/v1/trash?model=Plain", 400),
    Request("restore", "POST", "/v1/trash/Customer/acme/restore"),
    Request("restore again", "POST", "/v1/trash/Customer/acme/restore", 404),
    Request("delete to purge", "DELETE", ODD, 204),
    Request("purge", "DELETE", "/v1/trash/Customer/b%20c%2B%C3%BC", 204),
    Request("purge again", "DELETE", "/v1/trash/Customer/b%20c%2B%C3%BC", 404),
    # Branches and transactions
    Request("transaction", "POST", "/v1/transactions", 200, {"operations": OPERATIONS}),
    Request(
        "transaction on an old version",
        "POST",
        "/v1/transactions",
        412,
        {"operations": [{"op": "delete", "model": "Account", "id": "one", "version": None}]},
    ),
    Request("transaction of nothing", "POST", "/v1/transactions", 422, {"operations": []}),
    Request("new branch", "POST", "/v1/branches", 201, {"name": "draft"}),
    Request("new branch without a name", "POST", "/v1/branches", 422, {}),
    Request("branches", "GET", "/v1/branches"),
    Request("change on a branch", "PATCH", f"{ACCOUNTS}/one?branch=draft", 200, {"balance": 6}, kind=MERGE),
    Request("read on a branch", "GET", f"{ACCOUNTS}/one?branch=draft"),
    Request("read on no branch", "GET", f"{ACCOUNTS}/one?branch=none", 404),
    Request("branch difference", "GET", "/v1/branches/draft/diff?into=main"),
    Request("difference of no branch", "GET", "/v1/branches/none/diff", 404),
    Request("merge a branch", "POST", "/v1/branches/draft/merge", 200, {"into": "main"}),
    Request("merge by no policy", "POST", "/v1/branches/draft/merge", 422, {"policy": "x"}),
    Request("delete a branch", "DELETE", "/v1/branches/draft", 204),
    Request("delete no branch", "DELETE", "/v1/branches/none", 404),
    Request("undelete a branch", "POST", "/v1/branches/draft/undelete"),
    Request("undelete what is there", "POST", "/v1/branches/main/undelete", 409),
    # Changes
    Request("now", "GET", "/v1/changes?model=Note", keep="now"),
    Request("change", "POST", NOTES, 201, {"id": "n", "title": "N"}),
    Request("what is new", "GET", "/v1/changes?after=${now}&wait=1&model=Note"),
    Request("changes after nothing", "GET", "/v1/changes?after=x", 400),
    # How it is
    Request("health", "GET", "/v1/health"),
    Request("upload", "POST", f"{CUSTOMERS}/acme/upload", 501, headers={"if-match": "*"}),
    Request("rejected", "GET", "/v1/rejected"),
    Request("redrive", "POST", "/v1/rejected/1/redrive", 501),
    Request("why", "GET", "/v1/why?key=org%2Fcustomers%2Facme%2Fdata.json"),
    Request("why nothing", "GET", "/v1/why", 400),
    Request("cost", "GET", "/v1/cost?changes=1000&queries=10"),
    Request("cost of nonsense", "GET", "/v1/cost?changes=-1", 400),
    # The console
    Request("console", "GET", "/"),
    Request("console without a slash", "GET", "/console"),
    Request("console with a slash", "GET", "/console/"),
    Request("console file", "GET", "/console/style.css", keep="file"),
    Request("console file that I have", "GET", "/console/style.css", 304, headers={"if-none-match": "${file}"}),
    Request("console view", "GET", "/console/models/Customer", headers={"accept": "text/html"}),
    Request("no console file", "GET", "/console/none.js", 404),
)


def by_function_url(request: Request) -> dict[str, Any]:
    """As a Function URL with IAM brings it: the path as it was sent."""
    iam = {
        "accessKey": "ASIAEXAMPLE",
        "accountId": "123456789012",
        "callerId": "AROAEXAMPLE:ann",
        "cognitoIdentity": None,
        "principalOrgId": "o-example",
        "userArn": ARN,
        "userId": "AROAEXAMPLE:ann",
    }
    signed = "AWS4-HMAC-SHA256 Credential=ASIAEXAMPLE/20260224/us-east-1/lambda/aws4_request, Signature=0"
    headers = {"authorization": signed, "x-amz-date": "20260224T120000Z"}
    return _event(request, "abcdefg.lambda-url.us-east-1.on.aws", {"iam": iam}, headers, _path(request))


def by_http_api(request: Request) -> dict[str, Any]:
    """As an HTTP API with a JWT authorizer brings it: the path decoded."""
    claims = {
        "aud": AUDIENCE,
        "exp": "1771938000",
        "iat": "1771934400",
        "iss": ISSUER,
        "scope": "openid worm/read worm/write worm/admin",
        "sub": SUBJECT,
        "token_use": "access",
    }
    path, domain = unquote(_path(request)), "abc123.execute-api.us-east-1.amazonaws.com"
    headers = {"authorization": "Bearer e30.e30.e30"}
    made = _event(request, domain, {"jwt": {"claims": claims, "scopes": None}}, headers, path)
    if request.method == "GET" and (path == "/" or path.startswith("/console/")):
        name = "GET /" if path == "/" else "GET /console/{proxy+}"
        made["routeKey"] = made["requestContext"]["routeKey"] = name
        del made["requestContext"]["authorizer"]
        if path != "/":
            made["pathParameters"] = {"proxy": path.removeprefix("/console/")}
    return made


def _path(request: Request) -> str:
    return request.target.partition("?")[0]


def _event(
    request: Request, domain: str, authorizer: dict[str, Any], headers: dict[str, str], path: str
) -> dict[str, Any]:
    query, content = request.target.partition("?")[2], request.content
    sent = {
        "accept": "*/*",
        "content-length": str(len(content)),
        "host": domain,
        "user-agent": "curl/8.5.0",
        "x-amzn-trace-id": "Root=1-699d9a40-0123456789abcdef01234567",
        "x-forwarded-for": "203.0.113.7",
        "x-forwarded-port": "443",
        "x-forwarded-proto": "https",
        **headers,
        **request.sent_headers,
    }
    made: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": dict(sorted(sent.items())),
        "requestContext": {
            "accountId": "123456789012",
            "apiId": domain.partition(".")[0],
            "authentication": None,
            "authorizer": authorizer,
            "domainName": domain,
            "domainPrefix": domain.partition(".")[0],
            "http": {
                "method": request.method,
                "path": path,
                "protocol": "HTTP/1.1",
                "sourceIp": "203.0.113.7",
                "userAgent": "curl/8.5.0",
            },
            "requestId": "e1506fd5-9e7b-434f-bd42-4f8fa224b599",
            "routeKey": "$default",
            "stage": "$default",
            "time": "24/Feb/2026:12:00:00 +0000",
            "timeEpoch": 1771934400000,
        },
        "isBase64Encoded": False,
    }
    if query:
        joined: dict[str, str] = {}
        for name, value in parse_qsl(query, keep_blank_values=True):
            joined[name] = f"{joined[name]},{value}" if name in joined else value
        made["queryStringParameters"] = joined
    if content:
        is_text = request.kind.startswith("text/") or request.kind == JSON  # AWS takes +json for bytes
        made["isBase64Encoded"] = not is_text
        made["body"] = content.decode() if is_text else base64.b64encode(content).decode()
    return made


def recordings() -> dict[Path, str]:
    """What the files hold."""
    made = {FUNCTION_URL: by_function_url, HTTP_API: by_http_api}
    return {
        path: json.dumps({one.name: record(one) for one in REQUESTS}, indent=1, ensure_ascii=False) + "\n"
        for path, record in made.items()
    }


if __name__ == "__main__":
    for path, text in recordings().items():
        path.write_text(text)
