"""S3: obstore reads and writes objects, boto3 (loaded when first needed) lists, deletes and knows versions.

Retries: neither client repeats anything by itself. Reads and unconditional writes are repeated here, bounded and
jittered; a conditional write is one attempt, and `resolve.py` owns what follows. So every request is counted once,
when it is sent.

Etags come exactly as S3 has them, quotes included, the same from every call; `null` versions are None; times are whole
seconds. A body shorter than its declared size is read again, never handed out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError, NotModifiedError
from obstore.store import S3Store as ObjectClient

from worm.clock import Clock, Ids, SystemClock, attempts
from worm.errors import Denied, Invalid, Unavailable, WormError
from worm.store.base import (
    NOT_MODIFIED,
    Attempt,
    AttemptOutcome,
    Condition,
    IfAbsent,
    Listed,
    NotModified,
    Object,
    ObjectInfo,
    Read,
    RequestCounter,
    Version,
    Won,
    check_key,
    check_metadata,
    check_prefix,
    check_range,
    exact_etag,
    whole_seconds,
)
from worm.store.resolve import ResolvedWrites
from worm.store.s3_boto import BotoSide
from worm.store.s3_errors import TryAgain, absent_or_raise, attempt_of, failure_of_text
from worm.store.s3_listing import ObjectPage, VersionPage, exact_version
from worm.version import DEFAULT_ROLE, user_agent

if TYPE_CHECKING:
    from obstore import Attributes, GetOptions, GetResult, PutResult
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Config


CONTENT_TYPES = {".json": "application/json", ".ndjson": "application/x-ndjson"}
PROXIES = frozenset({"http_proxy", "all_proxy"})
CREDENTIAL_TTL = timedelta(minutes=5)  # below botocore's own margin before expiry, so what it hands out stays valid


def object_client(
    bucket: str, endpoint_url: str | None, region: str | None, agent: str, timeout_seconds: float
) -> ObjectClient:
    """A client that never repeats a request. Endpoints given by the operator are addressed by path."""
    is_plain = endpoint_url is not None and endpoint_url.startswith("http://")
    config: S3Config = {"virtual_hosted_style_request": endpoint_url is None and "." not in bucket}
    if endpoint_url is not None:
        config["endpoint"] = endpoint_url
    if region is not None:
        config["region"] = region
    return ObjectClient(
        bucket,
        config=config,
        retry_config={"max_retries": 0},
        client_options={
            "allow_http": is_plain,
            "allow_invalid_certificates": is_plain and not _has_proxy(),
            "user_agent": agent,
            "timeout": timedelta(seconds=timeout_seconds),
            "connect_timeout": timedelta(seconds=min(5.0, timeout_seconds)),
        },
        credential_provider=None if "AWS_ACCESS_KEY_ID" in os.environ else _credential_chain(region),
    )


def _has_proxy() -> bool:
    """May requests to a plain endpoint go through a proxy, which may have a certificate? Without one nobody shows any,
    so those of the system need not be read, which takes longer than a request nearby."""
    return any(name.lower() in PROXIES and value for name, value in os.environ.items())


def _credential_chain(region: str | None) -> Boto3CredentialProvider:
    """boto3's chain (profiles, containers, instances), for where no key is in the environment."""
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session(region_name=region)
    if session.get_credentials() is None:
        raise Denied("no AWS credentials were found", hint="set AWS_ACCESS_KEY_ID or AWS_PROFILE, or give a role")
    return Boto3CredentialProvider(session, ttl=CREDENTIAL_TTL)


def attributes(key: str, metadata: Mapping[str, str]) -> Attributes:
    """What obstore sends beside the body: our metadata, and the content type by the key's ending."""
    sent: dict[str, str] = dict(metadata)
    for ending, content_type in CONTENT_TYPES.items():
        if key.endswith(ending):
            sent["Content-Type"] = content_type
    return sent


def info_of(key: str, found: GetResult) -> ObjectInfo:
    """The headers of an answer. Names of metadata are lower-case; the capitalised ones are headers."""
    meta = found.meta
    return ObjectInfo(
        key=key,
        etag=exact_etag(meta["e_tag"]),
        size=meta["size"],
        last_modified=whole_seconds(meta["last_modified"]),
        version_id=exact_version(meta["version"]),
        metadata={str(name): value for name, value in found.attributes.items() if str(name) == str(name).lower()},
    )


def won_of(stored: PutResult) -> Won:
    """The answer of a PUT that succeeded."""
    return Won(exact_etag(stored["e_tag"]), exact_version(stored["version"]))


AnswerT = TypeVar("AnswerT")
TRIES = 6
RETRY_SECONDS = 60.0
DERIVED_TAG = {"worm": "derived"}
_DERIVED = re.compile(r"(^|/)\.worm(\.(manifest|index|heads|sweep)[./]|$)")


class S3Store(ResolvedWrites):
    """A bucket, or a prefix of one; see the module header."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        role: str | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        concurrency: int = 32,
        tag_derived: bool = False,
        timeout_seconds: float = 30.0,
    ) -> None:
        self.bucket = bucket
        self.prefix = check_prefix(f"{prefix.strip('/')}/" if prefix.strip("/") else "")
        self.endpoint_url = endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        agent = user_agent(role or os.environ.get("WORM_ROLE") or DEFAULT_ROLE)
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.requests = RequestCounter()
        self._concurrency = concurrency
        self._tag_derived = tag_derived
        self._objects = object_client(bucket, self.endpoint_url, region, agent, timeout_seconds)
        self._boto = BotoSide(bucket, self.endpoint_url, region, agent, timeout_seconds)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def identity(self) -> str:
        return f"{self.url} at {self.endpoint_url or 'AWS'}"

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        path = self._path(key)
        return self._retried(key, lambda: self._get_once(key, path, version_id, max_bytes))

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        if etag is None:
            return self.get(key)
        path = self._path(key)
        return self._retried(key, lambda: self._get_changed_once(key, path, etag))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        path = self._path(key)
        check_range(key, start, length)
        return self._retried(key, lambda: self._get_range_once(key, path, start, start + length))

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        found: list[Object | Exception | None] = [None] * len(reads)
        positions = iter(range(len(reads)))  # shared: every thread takes the next one

        def work() -> None:
            for at in positions:
                try:
                    found[at] = self.get(reads[at].key, version_id=reads[at].version_id, max_bytes=max_bytes)
                except WormError as error:
                    found[at] = error

        threads = min(self._concurrency, len(reads))
        if threads <= 1:
            work()
            return found
        with ThreadPoolExecutor(threads, "worm-get") as pool:
            for ended in [pool.submit(work) for _ in range(threads)]:
                ended.result()
        return found

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        path = self._path(key)

        def once() -> ObjectInfo | None:
            found = self._ask("HEAD", key, path, {"head": True}, version_id)
            return None if found is None else info_of(key, found)

        return self._retried(key, once)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        path, checked = self._path(key), check_metadata(metadata, key)

        def once() -> Won:
            self.requests.add("PUT", written=len(body))
            try:
                sent = attributes(key, checked)
                stored = obstore.put(self._objects, path, body, attributes=sent, tags=self._tags(key))
            except (BaseError, FileNotFoundError) as error:
                absent_or_raise(failure_of_text(str(error)), key)
                raise Unavailable(f"the store answered a PUT with {error}", key=key) from error
            return won_of(stored)

        return self._retried(key, once)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        path, checked = self._path(key), check_metadata(metadata, key)
        self.requests.add("PUT", written=len(body))
        try:
            stored = obstore.put(
                self._objects,
                path,
                body,
                attributes=attributes(key, checked),
                tags=self._tags(key),
                mode="create" if isinstance(condition, IfAbsent) else {"e_tag": condition.etag},
            )
        except (BaseError, FileNotFoundError) as error:
            return attempt_of(failure_of_text(str(error)), key, condition)
        won = won_of(stored)
        return Attempt(AttemptOutcome.LANDED, won.etag, won.version_id)

    def delete(self, key: str) -> None:
        path = self._path(key)

        def once() -> None:
            self.requests.add("DELETE")
            self._boto.delete(path, key)

        self._retried(key, once)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        path = self._path(key)
        self.requests.add("DELETE")
        return self._boto.attempt_delete(path, key, etag)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        check_prefix(prefix)
        after = f"{self.prefix}{start_after}" if start_after else None
        return islice(self._list(prefix, after, limit), limit)

    def _list(self, prefix: str, start_after: str | None, limit: int | None) -> Iterator[Listed]:
        token: str | None = None
        while True:
            page = self._retried(prefix, partial(self._list_page, self.prefix + prefix, start_after, token, limit))
            for row in page.rows:
                yield replace(row, key=row.key.removeprefix(self.prefix))
            token = page.next_token
            if token is None:
                return

    def versions(self, key: str) -> Iterator[Version]:
        path = self._path(key)
        return (row for row in self._versions(path, None, lambda page: page.next_key == path) if row.key == key)

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        check_prefix(prefix)
        after = f"{self.prefix}{start_after}" if start_after else None
        return self._versions(self.prefix + prefix, after, lambda page: page.next_key is not None)

    def _versions(self, prefix: str, after: str | None, goes_on: Callable[[VersionPage], bool]) -> Iterator[Version]:
        marker: tuple[str | None, str | None] = (after, None)
        while True:
            page = self._retried(prefix, partial(self._versions_page, prefix, marker))
            for row in page.rows:
                yield replace(row, key=row.key.removeprefix(self.prefix))
            if not goes_on(page):
                return
            marker = (page.next_key, page.next_version)

    def _list_page(self, prefix: str, start_after: str | None, token: str | None, limit: int | None) -> ObjectPage:
        self.requests.add("LIST")
        return self._boto.list_page(prefix, start_after=start_after, token=token, limit=limit)

    def _versions_page(self, prefix: str, marker: tuple[str | None, str | None]) -> VersionPage:
        self.requests.add("VERSIONS")
        return self._boto.versions_page(prefix, key_marker=marker[0], version_marker=marker[1])

    def _tags(self, key: str) -> dict[str, str] | None:
        """Derived files are rewritten all the time; the tag lets a lifecycle rule expire their old versions soon."""
        return DERIVED_TAG if self._tag_derived and _DERIVED.search(key) else None

    def _path(self, key: str) -> str:
        return check_key(self.prefix + check_key(key))

    def _get_once(self, key: str, path: str, version_id: str | None, max_bytes: int | None) -> Object | None:
        found = self._ask("GET", key, path, {}, version_id)
        return None if found is None else self._whole(key, found, max_bytes)

    def _get_changed_once(self, key: str, path: str, etag: str) -> Object | NotModified | None:
        try:
            found = self._ask("GET", key, path, {"if_none_match": etag}, None)
        except NotModifiedError:
            return NOT_MODIFIED
        return None if found is None else self._whole(key, found, None)

    def _get_range_once(self, key: str, path: str, start: int, end: int) -> bytes | None:
        self.requests.add("GET")
        try:
            found = obstore.get(self._objects, path, options={"range": (start, end)})
        except (BaseError, FileNotFoundError) as error:
            failure = failure_of_text(str(error))
            if failure.is_past_end:
                return b""
            absent_or_raise(failure, key)
            return None
        start, end = found.range  # obstore has compared it with what was asked for and the size of the object
        return self._body(found, end - start)

    def _ask(self, kind: str, key: str, path: str, options: GetOptions, version_id: str | None) -> GetResult | None:
        """One GET or HEAD: the answer with its body unread, or None for an absent key."""
        self.requests.add(kind)
        if version_id is not None:
            options = {**options, "version": version_id}
        try:
            return obstore.get(self._objects, path, options=options)
        except NotModifiedError:
            raise
        except (BaseError, FileNotFoundError) as error:
            absent_or_raise(failure_of_text(str(error)), key, version_id)
            return None

    def _whole(self, key: str, found: GetResult, max_bytes: int | None) -> Object:
        """The object with its body, checked against the size that the answer declared."""
        info = info_of(key, found)
        if max_bytes is not None and info.size > max_bytes:
            raise Invalid(f"the object has {info.size} bytes, more than {max_bytes}", key=key)
        body = self._body(found, info.size)
        return Object(key, info.etag, info.size, info.last_modified, info.version_id, info.metadata, body)

    def _body(self, found: GetResult, size: int) -> bytes:
        """All the bytes that the answer declared, or `TryAgain`."""
        try:
            body = b"".join(found.stream(size + 1))  # one chunk, so one copy; `found.bytes()` makes two
        except BaseError as error:
            raise TryAgain(f"the body was cut: {failure_of_text(str(error)).reason}") from error
        if len(body) != size:
            raise TryAgain(f"{len(body)} bytes came of {size}")
        self.requests.add_bytes_read(len(body))
        return body

    def _retried(self, key: str, once: Callable[[], AnswerT]) -> AnswerT:
        """Repeat a request that carries no decision, until it succeeds or patience ends."""
        started = self.clock.monotonic()
        for tried in attempts(TRIES, self.clock, self.ids):
            try:
                return once()
            except TryAgain as failure:
                if tried + 1 == TRIES or self.clock.monotonic() - started > RETRY_SECONDS:
                    raise Unavailable(f"the store did not answer in {tried + 1} tries: {failure}", key=key) from failure
        raise AssertionError("unreachable")
