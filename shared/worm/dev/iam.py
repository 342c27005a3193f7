"""Requests that were made in a role, and the permissions that AWS checks before it answers them.

Vocabulary: a *call* is a request reduced to what matters for permissions; a *question* is one permission that AWS looks
up in the policies. The needs of a call come from the S3 and SQS guides; no emulator checks them:
- a conditional PUT or DELETE that names an etag also reads the object: `s3:GetObject`;
- a missing key is a 404 only with permission to list the bucket, and a 403 otherwise;
- an object that is encrypted with a key of KMS takes `kms:GenerateDataKey` to write and `kms:Decrypt` to read.
Nothing here decides: tests/template/policies.py evaluates policies.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree

from worm.dev.cfn import ACCOUNT_ID, PARTITION

CALLS_MAX = 200_000
"""The maximum number of distinct calls in a recording; more is an error, so that none is lost silently."""
_ROLE = re.compile(r"\brole/([\w.-]+)")
_ACCESS_KEY = re.compile(r"Credential=([^/]+)/")
_CONDITIONS = ("if-match", "if-none-match")
_HEADERS = (*_CONDITIONS, "x-amz-copy-source", "x-amz-tagging")
_OBJECT_PARTS = ("acl", "attributes", "legal-hold", "restore", "retention", "select", "torrent")
_GONE = 404
Pairs = tuple[tuple[str, str], ...]


def role_of(user_agent: str, authorization: str) -> str:
    """Who makes a request: the role that our clients name, otherwise the access key, which is the role's own here."""
    named = _ROLE.search(user_agent) or _ACCESS_KEY.search(authorization)
    return named[1] if named else ""


@dataclass(frozen=True, slots=True)
class Call:
    """`operation` is S3's HTTP method or the name of an SQS operation; `target` is `bucket/key`, or a queue's name."""

    role: str
    service: str
    operation: str
    target: str
    query: Pairs = ()
    headers: Pairs = ()
    status: int = 200

    @classmethod
    def of_s3(
        cls, role: str, method: str, path: str, headers: Mapping[str, str], body: bytes = b"", status: int = 200
    ) -> list[Call]:
        """The calls of a request in path style. Removing several objects at once is one call for each."""
        parts = urlsplit(path)
        target = unquote(parts.path).removeprefix("/")
        query = tuple(sorted(parse_qsl(parts.query, keep_blank_values=True)))
        lower = {name.lower(): value for name, value in headers.items()}
        kept = tuple((name, _kept(name, lower[name])) for name in _HEADERS if name in lower)
        kept_query = tuple((name, value if name == "prefix" else "") for name, value in query)
        call = cls(role, "s3", method, target, kept_query, kept, status)
        if method == "POST" and "delete" in dict(query):
            return [call._removal(*one) for one in _removed(body)]
        return [call]

    @classmethod
    def of_sqs(cls, role: str, operation: str, body: bytes, status: int = 200) -> Call:
        """The call of a request in SQS's JSON protocol."""
        asked = json.loads(body)
        target = str(asked.get("QueueUrl") or asked.get("QueueName") or "").rstrip("/").rsplit("/", 1)[-1]
        return cls(role, "sqs", operation, target, status=status)

    def _removal(self, key: str, version: str | None, etag: str | None) -> Call:
        query = () if version is None else (("versionId", ""),)
        headers = () if etag is None else (("if-match", _kept("if-match", etag)),)
        bucket = self.target.partition("/")[0]
        return Call(self.role, "s3", "DELETE", f"{bucket}/{key}", query, headers, self.status)


def _kept(header: str, value: str) -> str:
    """Keeps of a condition only whether it names an etag: `*` needs fewer permissions, and one etag is like another."""
    return "etag" if header in _CONDITIONS and value != "*" else value


def _removed(body: bytes) -> list[tuple[str, str | None, str | None]]:
    def text(node: ElementTree.Element, name: str) -> str | None:
        return next((one.text or "" for one in node if one.tag.rpartition("}")[2] == name), None)

    objects = [one for one in ElementTree.fromstring(body).iter() if one.tag.rpartition("}")[2] == "Object"]
    return [(text(one, "Key") or "", text(one, "VersionId"), text(one, "ETag")) for one in objects]


@dataclass(frozen=True, slots=True)
class Question:
    """An action on a resource, with the values that conditions may use."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict, compare=False)


def questions(call: Call, *, region: str = "us-east-1", kms_key: str | None = None) -> list[Question]:
    """What AWS checks for a call; `kms_key` is the key that the bucket encrypts with. Raises `ValueError` for a call
    that is not described here: a guess would prove nothing."""
    # TLS as on AWS's endpoints: on loopback there is none.
    context = {"aws:SecureTransport": "true", "s3:TlsVersion": "1.3"}
    if call.service == "sqs":
        queue = f"arn:{PARTITION}:sqs:{region}:{ACCOUNT_ID}:{call.target}"
        return [Question(f"sqs:{call.operation.removesuffix('Batch')}", queue, context)]
    if call.service != "s3":
        raise ValueError(f"no rule says which permissions {call} needs")
    bucket, _, key = call.target.partition("/")
    here = f"arn:{PARTITION}:s3:::{bucket}"
    if not key:
        return [_of_bucket(call, here, context)]
    asked = [Question(action, f"{here}/{key}", context | _conditions(call)) for action in _of_object(call)]
    source = dict(call.headers).get("x-amz-copy-source")
    if source is not None:
        asked.append(_of_source(source, context))
    if call.status == _GONE:
        # Nothing is listed, so S3 compares no prefix: a condition on one must not be needed here.
        asked.append(Question("s3:ListBucket", here, context))
    via = {**context, "kms:ViaService": f"s3.{region}.amazonaws.com"}
    return asked + [Question(action, kms_key, via) for action in _of_key(call, asked) if kms_key]


def _of_bucket(call: Call, bucket: str, context: Mapping[str, str]) -> Question:
    query = dict(call.query)
    listed = {**context, **({"s3:prefix": query["prefix"]} if "prefix" in query else {})}
    if call.operation == "HEAD":
        return Question("s3:ListBucket", bucket, context)
    if call.operation == "GET" and "versions" in query:
        return Question("s3:ListBucketVersions", bucket, listed)
    settings = set(query) - {"prefix", "list-type", "delimiter", "max-keys", "start-after", "continuation-token"}
    if call.operation == "GET" and settings <= {"encoding-type", "fetch-owner", "marker"}:
        return Question("s3:ListBucket", bucket, listed)
    raise ValueError(f"no rule says which permissions {call} needs")


def _of_object(call: Call) -> list[str]:
    query, headers = dict(call.query), dict(call.headers)
    if query.keys() & set(_OBJECT_PARTS):
        raise ValueError(f"no rule says which permissions {call} needs")
    version = "Version" if "versionId" in query else ""
    tagging = "Tagging" if "tagging" in query else ""
    reads = ["s3:GetObject"] if headers.get("if-match") == "etag" else []
    if call.operation in ("GET", "HEAD"):
        return ["s3:ListMultipartUploadParts" if "uploadId" in query else f"s3:GetObject{version}{tagging}"]
    if call.operation == "DELETE" and "uploadId" in query:
        return ["s3:AbortMultipartUpload"]
    if call.operation == "DELETE":
        return [f"s3:DeleteObject{version}{tagging}", *reads]
    if call.operation not in ("PUT", "POST"):
        raise ValueError(f"no rule says which permissions {call} needs")
    if tagging:
        return [f"s3:PutObject{version}Tagging"]
    return ["s3:PutObject", *reads, *(["s3:PutObjectTagging"] if "x-amz-tagging" in headers else [])]


def _of_source(source: str, context: Mapping[str, str]) -> Question:
    path, _, version = unquote(source).removeprefix("/").partition("?versionId=")
    return Question("s3:GetObjectVersion" if version else "s3:GetObject", f"arn:{PARTITION}:s3:::{path}", context)


def _of_key(call: Call, asked: Iterable[Question]) -> list[str]:
    """The data key of each object: a new one for a write, the stored one for a read of its bytes. The parts of a
    multipart upload are read again when they are combined."""
    if call.operation in ("PUT", "POST") and "tagging" not in dict(call.query):
        parts = bool({"uploads", "uploadId"} & dict(call.query).keys())
        copies = "x-amz-copy-source" in dict(call.headers)
        return ["kms:GenerateDataKey", *(["kms:Decrypt"] if parts or copies else [])]
    reads = any(one.action in ("s3:GetObject", "s3:GetObjectVersion") for one in asked)
    return ["kms:Decrypt"] if call.operation == "GET" and reads and call.status != _GONE else []


def _conditions(call: Call) -> dict[str, str]:
    """The condition keys of writes; S3 knows none for the conditions of a read."""
    if call.operation in ("GET", "HEAD"):
        return {}
    return {f"s3:{name}": value for name, value in call.headers if name in _CONDITIONS}


class Recording:
    """The distinct calls of some roles, from `start` on; before that, it costs one set lookup."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roles: frozenset[str] = frozenset()
        self._calls: dict[Call, None] = {}

    def start(self, roles: Iterable[str]) -> None:
        with self._lock:
            self._roles, self._calls = frozenset(roles), {}

    def wants(self, role: str) -> bool:
        return role in self._roles

    def add(self, calls: Iterable[Call]) -> None:
        with self._lock:
            self._calls.update(dict.fromkeys(calls))
            if len(self._calls) > CALLS_MAX:
                raise OverflowError(f"more than {CALLS_MAX} different calls were recorded")

    def snapshot(self) -> list[tuple[object, ...]]:
        """The calls as JSON; `calls_from` reads it."""
        with self._lock:
            return [astuple(one) for one in self._calls]


def calls_from(rows: Iterable[Any]) -> set[Call]:
    """The result of `Recording.snapshot`, read from JSON."""
    return {_call(*row) for row in rows}


def _call(
    role: str, service: str, operation: str, target: str, query: list[list[str]], headers: list[list[str]], status: int
) -> Call:
    def pairs(rows: list[list[str]]) -> Pairs:
        return tuple((name, value) for name, value in rows)

    return Call(role, service, operation, target, pairs(query), pairs(headers), status)
