"""The boto3 side of `S3Store`: listings, versions and deletes, which obstore lacks or does differently, and all
requests of a forked child, where obstore cannot be used.

(obstore's delete is the bulk POST. Its listing fails as a whole on one key that it cannot represent, such as `a//b`; it
strips a trailing slash and accepts only directories as prefixes.) The first call imports boto3, not the import of this
module: it costs 330 ms of a cold start, and a worker's hot path does not need it. It never retries by itself.

boto3 is another client, loaded only when needed.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlencode

from worm import forks
from worm.errors import Denied
from worm.store.base import (
    NOT_MODIFIED,
    Attempt,
    AttemptOutcome,
    Condition,
    IfAbsent,
    IfMatch,
    NotModified,
    ObjectInfo,
    Won,
    exact_etag,
    whole_seconds,
)
from worm.store.s3_errors import Failed, Failure, TryAgain, attempt_of, failure_of_status, lasting_error
from worm.store.s3_listing import ObjectPage, VersionPage, exact_version, parse_objects, parse_versions

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2RequestTypeDef, ListObjectVersionsRequestTypeDef

_RAW = "WormRawBody"
_EMPTY = b"<Empty/>"
PageT = TypeVar("PageT")
Tags = Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Ask:
    """The options of one GET: HEAD only, an old version, only if the etag differs, only a range of bytes."""

    head: bool = False
    version_id: str | None = None
    etag: str | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ObjectAnswer:
    """The headers of an object, and a function that reads the body. `span_size` is the number of bytes in the range."""

    info: ObjectInfo
    body: Callable[[], bytes]
    span_size: int = 0


class ObjectEngine(Protocol):
    """Reads and writes single objects; raises `Failed`."""

    def get(self, path: str, ask: Ask) -> ObjectAnswer | NotModified: ...
    def put(self, path: str, body: bytes, sent: Mapping[str, str], tags: Tags, condition: Condition | None) -> Won: ...


@dataclass
class BotoSide:
    """One client for one bucket, created when first needed."""

    bucket: str
    endpoint_url: str | None
    region: str | None
    agent: str
    timeout_seconds: float
    concurrency: int = 10
    _made: S3Client | None = None
    _lock: threading.Lock = field(default_factory=forks.new_lock)

    def __post_init__(self) -> None:
        forks.in_child(self._begin_again)

    def _begin_again(self) -> None:
        """A forked child opens its own connections."""
        self._made = None

    def list_page(
        self, prefix: str, *, start_after: str | None, token: str | None, limit: int | None = None
    ) -> ObjectPage:
        """One ListObjectsV2 of at most `limit` keys."""
        page: ListObjectsV2RequestTypeDef = {"Bucket": self.bucket, "Prefix": prefix, "EncodingType": "url"}
        if token:
            page["ContinuationToken"] = token
        elif start_after:
            page["StartAfter"] = start_after
        if limit is not None:
            page["MaxKeys"] = limit
        raw, _ = self._raw(lambda client: client.list_objects_v2(**page), prefix)
        return _parsed(parse_objects, raw)

    def versions_page(self, prefix: str, *, key_marker: str | None, version_marker: str | None) -> VersionPage:
        """One ListObjectVersions."""
        page: ListObjectVersionsRequestTypeDef = {"Bucket": self.bucket, "Prefix": prefix, "EncodingType": "url"}
        if key_marker:
            page["KeyMarker"] = key_marker
        if version_marker:
            page["VersionIdMarker"] = version_marker
        raw, server = self._raw(lambda client: client.list_object_versions(**page), prefix)
        return _parsed(lambda document: parse_versions(document, server), raw)

    def link(self, path: str, version_id: str | None, seconds: int) -> str:
        """A URL that reads this object without credentials for the given time. Sends no request."""
        params = {"Bucket": self.bucket, "Key": path, **({} if version_id is None else {"VersionId": version_id})}
        return str(self.client.generate_presigned_url("get_object", Params=params, ExpiresIn=seconds))

    def upload_link(
        self, path: str, sent: Mapping[str, str], condition: Condition, seconds: int
    ) -> tuple[str, dict[str, str]]:
        """A URL that writes this object without credentials for the given time, and the headers that its signature
        covers. Sends no request."""
        params = self._put_params(path, sent, condition)
        url = str(self.client.generate_presigned_url("put_object", Params=params, ExpiresIn=seconds))
        headers = {f"x-amz-meta-{name}": value for name, value in params["Metadata"].items()}
        named = {"ContentType": "Content-Type", "IfMatch": "If-Match", "IfNoneMatch": "If-None-Match"}
        return url, {header: params[name] for name, header in named.items() if name in params} | headers

    def delete(self, path: str, key: str) -> None:
        """One DeleteObject. It is safe to repeat, so a transient failure is `TryAgain`."""
        try:
            calling(lambda: self.client.delete_object(Bucket=self.bucket, Key=path))
        except Failed as failed:
            if failed.failure.is_passing:
                raise TryAgain.after(failed.failure) from failed
            if not failed.failure.is_absent:
                raise lasting_error(failed.failure, key) from failed

    def attempt_delete(self, path: str, key: str, etag: str) -> Attempt:
        """One DeleteObject with If-Match."""
        try:
            answer = calling(lambda: self.client.delete_object(Bucket=self.bucket, Key=path, IfMatch=etag))
        except Failed as failed:
            return attempt_of(failed.failure, key, IfMatch(etag))
        version_id = answer.get("VersionId")
        return Attempt(
            AttemptOutcome.LANDED, version_id=exact_version(version_id if isinstance(version_id, str) else None)
        )

    def get(self, path: str, ask: Ask) -> ObjectAnswer | NotModified:
        """One GetObject or HeadObject."""
        asked: dict[str, str] = {"Bucket": self.bucket, "Key": path}
        if ask.version_id is not None:
            asked["VersionId"] = ask.version_id
        if ask.etag is not None:
            asked["IfNoneMatch"] = ask.etag
        if ask.span is not None:
            asked["Range"] = f"bytes={ask.span[0]}-{ask.span[1] - 1}"
        client = self.client
        call: Callable[..., Mapping[str, Any]] = client.head_object if ask.head else client.get_object
        try:
            found = calling(lambda: call(**asked))
        except Failed as failed:
            if failed.failure.status == 304:
                return NOT_MODIFIED
            raise
        info = ObjectInfo(
            key=path,
            etag=exact_etag(found["ETag"]),
            size=found["ContentLength"],
            last_modified=whole_seconds(found["LastModified"]),
            version_id=exact_version(found.get("VersionId")),
            metadata={name.lower(): value for name, value in found["Metadata"].items()},
        )
        return ObjectAnswer(info, lambda: _body(found["Body"]), found["ContentLength"])

    def put(self, path: str, body: bytes, sent: Mapping[str, str], tags: Tags, condition: Condition | None) -> Won:
        """One PutObject."""
        asked = {**self._put_params(path, sent, condition), "Body": body}
        if tags:
            asked["Tagging"] = urlencode(tags)
        stored: Mapping[str, Any] = calling(lambda: self.client.put_object(**asked))
        return Won(exact_etag(stored["ETag"]), exact_version(stored.get("VersionId")))

    def _put_params(self, path: str, sent: Mapping[str, str], condition: Condition | None) -> dict[str, Any]:
        metadata = {name: value for name, value in sent.items() if name == name.lower()}
        asked: dict[str, Any] = {"Bucket": self.bucket, "Key": path, "Metadata": metadata}
        if "Content-Type" in sent:
            asked["ContentType"] = sent["Content-Type"]
        if isinstance(condition, IfAbsent):
            asked["IfNoneMatch"] = "*"
        elif isinstance(condition, IfMatch):
            asked["IfMatch"] = condition.etag
        return asked

    @property
    def client(self) -> S3Client:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> S3Client:
        with forks.importing:
            return self._made_client()

    def _made_client(self) -> S3Client:
        import boto3
        from botocore.config import Config

        config = Config(
            retries={"total_max_attempts": 1},
            signature_version="s3v4",  # a link with the old one leaves conditions unsigned
            s3={"addressing_style": "path" if self.endpoint_url else "auto"},
            user_agent_extra=self.agent,
            connect_timeout=self.timeout_seconds,
            read_timeout=self.timeout_seconds,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=self.concurrency,
        )
        client = boto3.session.Session().client(
            "s3", endpoint_url=self.endpoint_url, region_name=self.region, config=config
        )
        for operation in ("ListObjectsV2", "ListObjectVersions"):
            client.meta.events.register(f"before-parse.s3.{operation}", _keep_raw_body)
        return client

    def _raw(self, call: Callable[[S3Client], Mapping[str, object]], prefix: str) -> tuple[bytes, str]:
        """The XML of a listing and the Server header."""
        try:
            answer = calling(lambda: call(self.client))
        except Failed as failed:
            if failed.failure.is_passing:
                raise TryAgain.after(failed.failure) from failed
            raise lasting_error(failed.failure, prefix) from failed
        return _raw_of(answer)


def _body(stream: Any) -> bytes:
    from botocore.exceptions import BotoCoreError

    try:
        return bytes(stream.read())
    except BotoCoreError as error:
        raise TryAgain(f"the body was truncated: {error}") from error


def _raw_of(answer: Mapping[str, object]) -> tuple[bytes, str]:
    kept = answer[_RAW]
    match kept:
        case (bytes() as document, str() as server):
            return document, server
    raise TypeError(f"botocore returned {type(kept).__name__} instead of the bytes of the listing")


def _keep_raw_body(response_dict: dict[str, object], customized_response_dict: dict[str, object], **_: object) -> None:
    """Keep the raw XML and give botocore nothing to parse: it would be slower and lose the order."""
    if response_dict.get("status_code") == 200:
        headers = response_dict.get("headers")
        server = str(headers.get("server", "")) if isinstance(headers, Mapping) else ""
        customized_response_dict[_RAW] = (response_dict["body"], server)
        response_dict["body"] = _EMPTY


def _parsed(parse: Callable[[bytes], PageT], document: bytes) -> PageT:
    try:
        return parse(document)
    except ElementTree.ParseError as error:
        raise TryAgain(f"a listing was incomplete: {error}") from error


def calling(call: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    with forks.importing:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        return call()
    except ClientError as error:
        answer = error.response["ResponseMetadata"]
        code, request_id = error.response["Error"].get("Code", ""), answer.get("RequestId")
        raise Failed(failure_of_status(answer["HTTPStatusCode"], code, request_id)) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Denied(f"no usable credentials: {error}") from error
    except BotoCoreError as error:
        raise Failed(Failure(None, "", str(error))) from error
