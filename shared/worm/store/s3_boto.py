"""The boto3 side of `S3Store`: listings, versions and deletes, which obstore lacks or does differently.

(obstore's delete is the bulk POST, its listing fails as a whole on one key it cannot spell, such as `a//b`, strips a
trailing slash, and takes no prefix but a directory.) boto3 is imported by the first call, never by importing this
module: it costs 330 ms of a cold start, and the hot path of a worker does not need it. It never retries by itself.

A module of its own because boto3 is another client, loaded only when it is needed.
"""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from worm.errors import Denied
from worm.store.base import Attempt, AttemptOutcome, IfMatch
from worm.store.s3_errors import Failure, TryAgain, attempt_of, failure_of_status, lasting_error
from worm.store.s3_listing import ObjectPage, VersionPage, exact_version, parse_objects, parse_versions

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2RequestTypeDef, ListObjectVersionsRequestTypeDef

_RAW = "WormRawBody"
_EMPTY = b"<Empty/>"
PageT = TypeVar("PageT")


class _Failed(Exception):
    """A boto3 call did not succeed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@dataclass
class BotoSide:
    """One lazily made client for one bucket."""

    bucket: str
    endpoint_url: str | None
    region: str | None
    agent: str
    timeout_seconds: float
    _made: S3Client | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    def delete(self, path: str, key: str) -> None:
        """One DeleteObject. Repeating it is harmless, so a passing failure is `TryAgain`."""
        try:
            _calling(lambda: self.client.delete_object(Bucket=self.bucket, Key=path))
        except _Failed as failed:
            if failed.failure.is_passing:
                raise TryAgain(failed.failure.reason) from failed
            if not failed.failure.is_absent:
                raise lasting_error(failed.failure, key) from failed

    def attempt_delete(self, path: str, key: str, etag: str) -> Attempt:
        """One DeleteObject with If-Match."""
        try:
            answer = _calling(lambda: self.client.delete_object(Bucket=self.bucket, Key=path, IfMatch=etag))
        except _Failed as failed:
            return attempt_of(failed.failure, key, IfMatch(etag))
        version_id = answer.get("VersionId")
        return Attempt(
            AttemptOutcome.LANDED, version_id=exact_version(version_id if isinstance(version_id, str) else None)
        )

    @property
    def client(self) -> S3Client:
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> S3Client:
        import boto3
        from botocore.config import Config

        config = Config(
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path" if self.endpoint_url else "auto"},
            user_agent_extra=self.agent,
            connect_timeout=self.timeout_seconds,
            read_timeout=self.timeout_seconds,
            request_checksum_calculation="when_required",
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
            answer = _calling(lambda: call(self.client))
        except _Failed as failed:
            if failed.failure.is_passing:
                raise TryAgain(failed.failure.reason) from failed
            raise lasting_error(failed.failure, prefix) from failed
        return _raw_of(answer)


def _raw_of(answer: Mapping[str, object]) -> tuple[bytes, str]:
    kept = answer[_RAW]
    match kept:
        case (bytes() as document, str() as server):
            return document, server
    raise TypeError(f"botocore handed back {type(kept).__name__} where the listing's bytes were kept")


def _keep_raw_body(response_dict: dict[str, object], customized_response_dict: dict[str, object], **_: object) -> None:
    """Hand the XML through and give botocore nothing to parse: it would spend longer on it and lose the order."""
    if response_dict.get("status_code") == 200:
        headers = response_dict.get("headers")
        server = str(headers.get("server", "")) if isinstance(headers, Mapping) else ""
        customized_response_dict[_RAW] = (response_dict["body"], server)
        response_dict["body"] = _EMPTY


def _parsed(parse: Callable[[bytes], PageT], document: bytes) -> PageT:
    try:
        return parse(document)
    except ElementTree.ParseError as error:
        raise TryAgain(f"a listing was not whole: {error}") from error


def _calling(call: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        return call()
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        raise _Failed(failure_of_status(status, error.response["Error"].get("Code", ""))) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Denied(f"no usable credentials: {error}") from error
    except BotoCoreError as error:
        raise _Failed(Failure(None, "", str(error))) from error
