"""S3: obstore reads and writes objects; boto3 (loaded when first needed) lists, deletes and handles versions. In a
forked child, boto3 does everything, because obstore's threads do not exist there.

Retries: neither client retries by itself. Reads and unconditional writes are retried here, bounded and jittered. A
conditional write is one attempt; `resolve.py` decides what follows. So every request is counted once, when it is sent.
If S3 throttles the process, `pace.py` delays the requests of all its threads. A store that is opened *patiently* (the
jobs') does not count throttled tries: it slows down instead of failing.

Derived files are written with a tag, for a lifecycle rule that expires their old versions early. The tag is not
essential: if the credentials may write but not tag (`s3:PutObjectTagging`), or the store has no tags, the refused
write, which had no effect, is sent again without it, and further ones of the same kind have none from the start.

Etags are exactly as S3 sends them, quotes included, and the same from every call; `null` versions are None; times are
whole seconds. A body shorter than its declared size is read again, never handed out.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from itertools import islice
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, NotModifiedError
from obstore.store import S3Store as ObjectClient

from worm import forks
from worm.clock import Clock, Ids, SystemClock, attempts
from worm.errors import Denied, Invalid, Unavailable, WormError, show
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
    about_to_read,
    check_key,
    check_metadata,
    check_prefix,
    check_range,
    exact_etag,
    whole_seconds,
)
from worm.store.pace import PATIENCE_SECONDS, Rate, pace_of
from worm.store.parallel import carried
from worm.store.resolve import ResolvedWrites
from worm.store.s3_boto import Ask, BotoSide, ObjectAnswer, ObjectEngine, Tags
from worm.store.s3_errors import Failed, Failure, TryAgain, absent_or_raise, attempt_of, failure_of_text
from worm.store.s3_listing import ObjectPage, VersionPage, exact_version
from worm.version import user_agent

if TYPE_CHECKING:
    from obstore import Attributes, GetOptions, GetResult, PutMode
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Config


COPIED_TWICE_MAX = 1 << 16
CONTENT_TYPES = {".json": "application/json", ".ndjson": "application/x-ndjson"}
PROXIES = frozenset({"http_proxy", "all_proxy"})
CREDENTIAL_TTL = timedelta(minutes=5)  # shorter than botocore's own margin before expiry, so its credentials stay valid
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # obstore reads the last one by itself
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_HOST = re.compile(rf"({_LABEL}\.)*{_LABEL}\.?")
_REGION = re.compile(rf"(?![0-9]+$){_LABEL}")


# Settings. Neither client checks them: obstore panics at the first request, and boto3 raises plain Python errors.


def endpoint_of(given: str | None) -> str | None:
    """The given endpoint, or the one from the environment. `Invalid` if it is not a server's URL."""
    url: object = given or _from_environment(ENDPOINTS)
    if url is None or (isinstance(url, str) and _is_server(url)):
        return url
    hint = (
        "set AWS_ENDPOINT_URL (--endpoint-url, endpoint_url=) to a URL such as http://localhost:9000; for AWS, unset it"
    )
    raise Invalid(f"the endpoint {show(url)} is not a server's URL", hint=hint)


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        is_host = _HOST.fullmatch(host) is not None or ip_address(host).version == 6
    except ValueError:  # invalid brackets, port or address
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return is_plain and parts.scheme in ("http", "https") and is_host and not (parts.query or parts.fragment)


def region_of(given: str | None) -> str | None:
    """The given region, or the one from the environment. `Invalid` if it cannot be a region."""
    name: object = given or _from_environment(REGIONS)
    if name is None or (isinstance(name, str) and _REGION.fullmatch(name)):
        return name
    raise Invalid(f"{show(name)} is not a valid region name", hint="set AWS_REGION to a name such as eu-central-1")


def _from_environment(names: Sequence[str]) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _check_credentials() -> None:
    for name in CREDENTIALS:
        value = os.environ.get(name, "")
        if not (value.isascii() and value.isprintable()):
            what = "characters that are not allowed in a request, such as a line break"
            raise Invalid(f"{name} has {what}", hint=f"set {name} again, without the extra characters")


def object_client(
    bucket: str, endpoint_url: str | None, region: str | None, agent: str, timeout_seconds: float
) -> ObjectClient:
    """A client that never retries a request. A custom endpoint is addressed by path."""
    is_plain = endpoint_url is not None and endpoint_url.lower().startswith("http://")
    config: S3Config = {"virtual_hosted_style_request": endpoint_url is None and "." not in bucket}
    if endpoint_url is not None:
        config["endpoint"] = endpoint_url
    if region is not None:
        config["region"] = region
    _check_credentials()
    try:
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
    except BaseError as error:
        reason = failure_of_text(str(error)).reason
        raise Invalid(
            f"the S3 client rejected its settings: {reason}", hint="check the AWS_… variables in the environment"
        ) from error


def _has_proxy() -> bool:
    """Whether requests to a plain HTTP endpoint may go through a proxy, which may have a certificate. Without a proxy,
    nothing shows a certificate, so the system's certificates need not be loaded. Loading them takes longer than a
    request to a nearby server."""
    return any(name.lower() in PROXIES and value for name, value in os.environ.items())


def _credential_chain(region: str | None) -> Boto3CredentialProvider:
    """boto3's chain (profiles, containers, instances), used if the environment has no key."""
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.session.Session(region_name=region)
    if session.get_credentials() is None:
        raise Denied("no AWS credentials were found", hint="set AWS_ACCESS_KEY_ID or AWS_PROFILE, or use a role")
    return Boto3CredentialProvider(session, ttl=CREDENTIAL_TTL)


def attributes(key: str, metadata: Mapping[str, str]) -> Attributes:
    """What obstore sends with the body: our metadata, and a content type based on the key's extension."""
    sent: dict[str, str] = dict(metadata)
    for ending, content_type in CONTENT_TYPES.items():
        if key.endswith(ending):
            sent["Content-Type"] = content_type
    return sent


def info_of(key: str, found: GetResult) -> ObjectInfo:
    """The headers of an answer. Metadata names are lowercase; capitalized names are headers."""
    meta = found.meta
    return ObjectInfo(
        key=key,
        etag=exact_etag(meta["e_tag"]),
        size=meta["size"],
        last_modified=whole_seconds(meta["last_modified"]),
        version_id=exact_version(meta["version"]),
        metadata={name: value for name, value in found.attributes.items() if name == name.lower()},
    )


class ObstoreSide:
    """Reads and writes single objects with obstore. It runs on its own threads, which a forked child lacks: there it
    would wait forever. So a child of a process that has loaded obstore uses boto3."""

    def __init__(self, client: ObjectClient) -> None:
        self._client = client

    def get(self, path: str, ask: Ask) -> ObjectAnswer | NotModified:
        """One GET or HEAD."""
        options: GetOptions = {}
        if ask.head:
            options["head"] = True
        if ask.version_id is not None:
            options["version"] = ask.version_id
        if ask.etag is not None:
            options["if_none_match"] = ask.etag
        if ask.span is not None:
            options["range"] = ask.span
        try:
            found = obstore.get(self._client, path, options=options)
        except NotModifiedError:
            return NOT_MODIFIED
        except BaseException as error:
            with _translated():  # only here: most requests succeed
                raise error
        start, end = found.range  # obstore has compared it with the request and the object's size
        return ObjectAnswer(info_of(path, found), partial(_streamed, found, end - start), end - start)

    def put(self, path: str, body: bytes, sent: Mapping[str, str], tags: Tags, condition: Condition | None) -> Won:
        """One PUT."""
        mode: PutMode = "overwrite"
        if condition is not None:
            mode = "create" if isinstance(condition, IfAbsent) else {"e_tag": condition.etag}
        with _translated():
            stored = obstore.put(self._client, path, body, attributes=dict(sent), tags=dict(tags or {}), mode=mode)
        return Won(exact_etag(stored["e_tag"]), exact_version(stored["version"]))


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of obstore as `Failed`. Some settings make it panic, and a panic is not an `Exception`. Nothing then says
    whether a request was sent, so it counts as a request without an answer."""
    try:
        yield
    except NotModifiedError:
        raise
    except (BaseError, FileNotFoundError) as error:
        raise Failed(failure_of_text(str(error))) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Failed(Failure(None, "", f"the client failed: {error}")) from error


def _streamed(found: GetResult, size: int) -> bytes:
    try:
        if size <= COPIED_TWICE_MAX:
            return found.bytes().to_bytes()  # waits once for obstore's threads; a stream waits twice
        return b"".join(found.stream(size + 1))  # one chunk, so one copy; `found.bytes()` makes two
    except BaseError as error:
        raise TryAgain(f"the body was truncated: {failure_of_text(str(error)).reason}") from error


class _Forks:
    """Whether this process was forked from one that had loaded obstore."""

    def __init__(self) -> None:
        self.is_child = False
        forks.in_child(self._mark)

    def _mark(self) -> None:
        self.is_child = True


_forks = _Forks()


_log = logging.getLogger("worm")
AnswerT = TypeVar("AnswerT")
TRIES = 6
RETRY_SECONDS = 60.0
WORD_SECONDS = 5.0
NO_ANSWER = "check the endpoint (AWS_ENDPOINT_URL), the network and the service, then try again"
"""How long a store may take for its first answer before a warning says what we are waiting for."""
TOO_FAST = "try again later; if other programs use the bucket, or a job has many executors, run fewer at once"
DERIVED_TAG = {"worm": "derived"}
_DERIVED = re.compile(r"(?:^|/)\.worm(?:\.(manifest|lake|heads|sweep)[./]|\.(index)/(?![^/]+/\.claims/)|$)")
"""What can be rebuilt, and is rewritten often. A claim is neither: it decides which document holds a unique value."""


def derived_kind(key: str) -> str | None:
    """Which kind of derived file it is; None: another object."""
    found = _DERIVED.search(key)
    return None if found is None else found[1] or found[2] or "sentinel"


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
        timeout_seconds: float = 30.0,
        patient: bool = False,
    ) -> None:
        self.bucket = bucket
        self.prefix = check_prefix(f"{prefix.strip('/')}/" if prefix.strip("/") else "")
        self.endpoint_url, region = endpoint_of(endpoint_url), region_of(region)
        agent = user_agent(role or os.environ.get("WORM_ROLE"))
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.requests = RequestCounter()
        self.pace = pace_of(bucket, self.endpoint_url, self.clock, self.ids)
        self._patient = patient
        self._concurrency = concurrency
        self._untagged: set[str] = set()
        """Kinds of derived files that these credentials may write, but not tag."""
        self._has_answered = self._has_spoken = False
        self._waited = 0.0
        self._boto = BotoSide(bucket, self.endpoint_url, region, agent, timeout_seconds, concurrency)
        self._objects: ObjectEngine = self._boto
        if not _forks.is_child:
            self._objects = ObstoreSide(object_client(bucket, self.endpoint_url, region, agent, timeout_seconds))
            forks.in_child(self._use_boto)

    def _use_boto(self) -> None:
        self._left, self._objects = self._objects, self._boto  # keep obstore's client: closing it might wait, too

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
        positions = iter(range(len(reads)))  # shared: each thread takes the next one

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
            for ended in [pool.submit(carried(work)) for _ in range(threads)]:
                ended.result()
        return found

    def link(self, key: str, *, version_id: str | None = None, seconds: int = 60) -> str:
        """A URL with which anybody can read this object for the given time. Sends no request."""
        return self._boto.link(self._path(key), version_id, seconds)

    def upload_link(
        self, key: str, condition: Condition, metadata: Mapping[str, str], *, seconds: int
    ) -> tuple[str, dict[str, str]]:
        """A URL with which anybody can write this object once within the given time, and the headers to send with it,
        which are signed. Sends no request."""
        path, sent = self._path(key), attributes(key, check_metadata(metadata, key))
        return self._boto.upload_link(path, sent, condition, seconds)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        path = self._path(key)

        def once() -> ObjectInfo | None:
            found = self._ask(key, path, Ask(head=True, version_id=version_id))
            return None if not isinstance(found, ObjectAnswer) else replace(found.info, key=key)

        return self._retried(key, once)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        path, checked = self._path(key), check_metadata(metadata, key)

        def once() -> Won:
            self.requests.add("PUT", written=len(body))
            try:
                return self._put_once(key, path, body, attributes(key, checked), None)
            except Failed as error:
                absent_or_raise(error.failure, key)
                raise Unavailable(f"the store answered a PUT with {error}", key=key) from error

        return self._retried(key, once, self.pace.writes)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        path, checked = self._path(key), check_metadata(metadata, key)

        def once() -> Attempt:
            self.requests.add("PUT", written=len(body))
            try:
                won = self._put_once(key, path, body, attributes(key, checked), condition)
            except Failed as error:
                return attempt_of(error.failure, key, condition)
            return Attempt(AttemptOutcome.LANDED, won.etag, won.version_id)

        return self._attempted(once)

    def delete(self, key: str) -> None:
        path = self._path(key)

        def once() -> None:
            self.requests.add("DELETE")
            self._boto.delete(path, key)

        self._retried(key, once, self.pace.writes)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        path = self._path(key)

        def once() -> Attempt:
            self.requests.add("DELETE")
            return self._boto.attempt_delete(path, key, etag)

        return self._attempted(once)

    def _attempted(self, once: Callable[[], Attempt]) -> Attempt:
        """One conditional write, which is never repeated here."""
        sent = self.pace.wait(self.pace.writes)
        attempt = once()
        if attempt.is_throttled:
            self.pace.refused(self.pace.writes, sent)
        elif attempt.outcome is not AttemptOutcome.UNKNOWN:
            self.pace.succeeded(self.pace.writes)
        return attempt

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

    def _put_once(self, key: str, path: str, body: bytes, sent: Mapping[str, str], condition: Condition | None) -> Won:
        """One PUT, with the tag of a derived file; a second one without the tag if the store refused the first."""
        kind = derived_kind(key)
        if kind is None or kind in self._untagged:
            return self._objects.put(path, body, sent, None, condition)
        try:
            return self._objects.put(path, body, sent, DERIVED_TAG, condition)
        except Failed as error:
            if not error.failure.may_be_the_tag:
                raise
            refused = error
        self.requests.add("PUT", written=len(body))
        try:
            won = self._objects.put(path, body, sent, None, condition)
        except Failed as error:
            if error.failure.may_be_the_tag:
                raise refused from error  # it was not the tag
            raise
        self._untagged.add(kind)
        _log.info("%s: stored %r without the tag worm=derived, which was refused: %s", self.url, key, refused)
        return won

    def _path(self, key: str) -> str:
        return check_key(self.prefix + check_key(key))

    def _get_once(self, key: str, path: str, version_id: str | None, max_bytes: int | None) -> Object | None:
        found = self._ask(key, path, Ask(version_id=version_id))
        return self._whole(key, found, max_bytes) if isinstance(found, ObjectAnswer) else None

    def _get_changed_once(self, key: str, path: str, etag: str) -> Object | NotModified | None:
        found = self._ask(key, path, Ask(etag=etag))
        return self._whole(key, found, None) if isinstance(found, ObjectAnswer) else found

    def _get_range_once(self, key: str, path: str, start: int, end: int) -> bytes | None:
        self.requests.add("GET")
        try:
            found = self._objects.get(path, Ask(span=(start, end)))
        except Failed as error:
            if error.failure.is_past_end:
                return b""
            absent_or_raise(error.failure, key)
            return None
        return self._body(found, found.span_size) if isinstance(found, ObjectAnswer) else None

    def _ask(self, key: str, path: str, ask: Ask) -> ObjectAnswer | NotModified | None:
        """One GET or HEAD: the answer with its body unread, or None for an absent key."""
        self.requests.add("HEAD" if ask.head else "GET")
        try:
            return self._objects.get(path, ask)
        except Failed as error:
            absent_or_raise(error.failure, key, ask.version_id)
            return None

    def _whole(self, key: str, found: ObjectAnswer, max_bytes: int | None) -> Object:
        """The object with its body, checked against the size that the answer declared."""
        info = found.info
        if max_bytes is not None and info.size > max_bytes:
            raise Invalid(f"the object has {info.size} bytes, more than {max_bytes}", key=key)
        about_to_read(info.size)
        body = self._body(found, info.size)
        return Object(key, info.etag, info.size, info.last_modified, info.version_id, info.metadata, body)

    def _body(self, found: ObjectAnswer, size: int) -> bytes:
        """All bytes that the answer declared, or `TryAgain`."""
        body = found.body()
        if len(body) != size:
            raise TryAgain(f"received {len(body)} of {size} bytes")
        self.requests.add_bytes_read(len(body))
        return body

    def _retried(self, key: str, once: Callable[[], AnswerT], rate: Rate | None = None) -> AnswerT:
        """Repeat a request that is safe to repeat, until it succeeds or the attempts run out. The rate is that of reads
        if none is given."""
        started, paced = self.clock.monotonic(), rate or self.pace.reads
        for tried in attempts(TRIES, self.clock, self.ids):
            try:
                return self._paced(key, once, paced, started)
            except TryAgain as failure:
                _log.debug(
                    "no answer for %r on attempt %d (request %s): %s", key, tried + 1, failure.request_id, failure
                )
                is_late = not self._patient and self.clock.monotonic() - started > RETRY_SECONDS
                if tried + 1 == TRIES or is_late:
                    raise self._gave_up(key, tried + 1, failure) from failure
        raise AssertionError("unreachable")

    def _paced(self, key: str, once: Callable[[], AnswerT], rate: Rate, began: float) -> AnswerT:
        """One request when its turn comes; again, if the store throttles a patient one."""
        for _ in attempts(sys.maxsize, self.clock, self.ids):
            sent = self.pace.wait(rate)
            try:
                found = once() if self._has_answered else self._first(key, once)
            except TryAgain as failure:
                if not failure.is_throttled:
                    raise
                self.pace.refused(rate, sent)
                if not self.is_patient(began):
                    raise
            else:
                self.pace.succeeded(rate)
                return found
        raise AssertionError("unreachable")

    def is_patient(self, began: float) -> bool:
        is_late = self.clock.monotonic() - began >= PATIENCE_SECONDS
        return self._patient and not is_late and self.pace.has_hope()

    def _gave_up(self, key: str, tries: int, failure: TryAgain) -> Unavailable:
        what, hint = f"the store did not answer in {tries} tries: {failure}", NO_ANSWER
        if failure.is_throttled:
            hint = TOO_FAST
            if self._patient:
                refused = "this request" if self.pace.has_hope() else "all requests of this process"
                what = f"the store refused {refused} for {PATIENCE_SECONDS / 60:.0f} minutes: {failure}"
        error = Unavailable(what, key=key, hint=hint)
        error.request_id = failure.request_id
        return error

    def _first(self, key: str, once: Callable[[], AnswerT]) -> AnswerT:
        """Until the store has answered once, warn what we are waiting for if it takes long."""
        timer = threading.Timer(WORD_SECONDS - self._waited, self._say, [key])
        timer.daemon = True
        timer.start()
        began = self.clock.monotonic()
        try:
            found = once()
        except TryAgain:
            self._waited = min(WORD_SECONDS, self._waited + self.clock.monotonic() - began)
            raise
        finally:
            timer.cancel()
        self._has_answered = True
        return found

    def _say(self, key: str) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            _log.warning(
                "no answer yet from %s for %r after %.0f s; giving up after about %.0f s",
                *(self.identity, key, WORD_SECONDS, RETRY_SECONDS),
            )
