"""An HTTP proxy in front of an S3 server that fails as told: what networks and servers do to single requests.

    proxy.fail("PUT", "/log/", drop(after=True))            the next PUT of a slot is applied, its answer is lost
    proxy.fail("GET", "manifest.json", answer(503), times=None)

A rule meets the requests of its method whose key contains its text, `times` of them, after `skip` others. Each request
is kept in `seen` with what the server said and what the client was told, so a test can count and prove.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Literal
from urllib.parse import unquote, urlsplit

HANG_SECONDS_MAX = 30.0
CODES = {
    403: "AccessDenied",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    500: "InternalError",
    503: "SlowDown",
}
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


@dataclass(frozen=True)
class Fault:
    """What happens to a request: `when` the server gets it, and `how` the client is answered.

    `late`: the server gets it only after the next GET or HEAD of the same key was answered: after the client looked.
    """

    when: Literal["before", "after", "late"]
    how: Literal["drop", "hang", "answer", "cut", "shorten"]
    status: int = 0
    cut_at: int | None = None


def drop(*, after: bool) -> Fault:
    """The connection is closed without an answer."""
    return Fault("after" if after else "before", "drop")


def hang(*, after: bool) -> Fault:
    """No answer until the client has given up."""
    return Fault("after" if after else "before", "hang")


def answer(status: int, *, after: bool = False) -> Fault:
    """An error of S3 instead of the server's answer."""
    return Fault("after" if after else "before", "answer", status)


def late(*, hangs: bool = False) -> Fault:
    """No answer; the request arrives after the client looked for its effect."""
    return Fault("late", "hang" if hangs else "drop")


def cut() -> Fault:
    """The body ends in the middle, against its Content-Length."""
    return Fault("after", "cut")


def shorten(at: int) -> Fault:
    """Only so many bytes of the body, and a Content-Length that agrees."""
    return Fault("after", "shorten", cut_at=at)


@dataclass
class Rule:
    """Which requests a fault meets."""

    method: str
    key_part: str
    fault: Fault
    times: int | None = 1
    skip: int = 0
    share: float = 1.0

    def takes(self, method: str, key: str, chance: Random) -> bool:
        if self.times == 0 or self.method not in (method, "*") or self.key_part not in key:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.share < 1.0 and chance.random() >= self.share:
            return False
        self.times = None if self.times is None else self.times - 1
        return True


@dataclass(frozen=True)
class Reply:
    """What the server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Seen:
    """One request. `applied` is the server's status, None while it did not get it; `told` the client's, None for
    silence."""

    method: str
    key: str
    is_conditional: bool
    applied: int | None = None
    told: int | None = None


@dataclass(frozen=True)
class _Held:
    path: str
    headers: Mapping[str, str]
    body: bytes
    seen: Seen


@dataclass
class FaultProxy:
    """See the module header. `url` is what clients are given, `upstream` what they would have been given."""

    upstream: str
    seed: int = 0
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _held: list[_Held] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)

    def fail(
        self, method: str, key_part: str, fault: Fault, *, times: int | None = 1, skip: int = 0, share: float = 1.0
    ) -> Rule:
        rule = Rule(method, key_part, fault, times, skip, share)
        with self._lock:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """No more faults; what was held back arrives now."""
        with self._lock:
            self._rules.clear()
        self._land("")

    def count(self, method: str = "", key_part: str = "") -> int:
        """Requests that came in so far."""
        return sum(1 for one in self.seen if one.method.startswith(method) and key_part in one.key)

    def end(self) -> None:
        self._ended.set()

    def handle(self, handler: _Handler) -> None:
        """One request of a client."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parts, headers = urlsplit(handler.path), dict(handler.headers.items())
        key = unquote(parts.path) if "list-type" not in parts.query else f"{unquote(parts.path)}?{unquote(parts.query)}"
        conditions = {"if-match", "if-none-match"}
        seen = Seen(handler.command, key, any(name.lower() in conditions for name in headers))
        with self._lock:
            self.seen.append(seen)
            rule = next((one for one in self._rules if one.takes(seen.method, key, self._chance)), None)
        fault = rule.fault if rule is not None else None
        if fault is not None and fault.when == "late":
            with self._lock:
                self._held.append(_Held(handler.path, headers, body, seen))
        reply = None
        if fault is None or fault.when == "after":
            reply = self._forward(handler.path, seen, headers, body)
        if fault is None and seen.method in ("GET", "HEAD"):
            self._land(key)
        self._answer(handler, seen, fault, reply)

    def _answer(self, handler: _Handler, seen: Seen, fault: Fault | None, reply: Reply | None) -> None:
        if fault is not None and fault.how in ("drop", "hang"):
            if fault.how == "hang":
                self._ended.wait(min(HANG_SECONDS_MAX, handler.patience_seconds))
            handler.close_connection = True
            return
        if fault is not None and fault.how == "answer":
            code = CODES.get(fault.status, "Error")
            xml = f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()
            reply = Reply(fault.status, {"Content-Type": "application/xml"}, xml)
        assert reply is not None, "a fault that neither forwards nor answers"
        if fault is not None and fault.how == "shorten":
            kept = reply.body[: fault.cut_at]
            headers = {name: value for name, value in reply.headers.items() if name.lower() != "content-length"}
            reply = Reply(reply.status, headers, kept)
        seen.told = reply.status
        handler.send(reply, is_cut=fault is not None and fault.how == "cut")

    def _land(self, key: str) -> None:
        """What was held back for this key (or for any) arrives."""
        with self._lock:
            due = [one for one in self._held if key in ("", one.seen.key)]
            self._held = [one for one in self._held if one not in due]
        for one in due:
            self._forward(one.path, one.seen, one.headers, one.body)

    def _forward(self, path: str, seen: Seen, headers: Mapping[str, str], body: bytes) -> Reply:
        where = urlsplit(self.upstream)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=HANG_SECONDS_MAX)
        try:
            passed = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
            if body or seen.method in ("PUT", "POST"):
                passed["Content-Length"] = str(len(body))
            connection.request(seen.method, path, body=body, headers=passed)
            found = connection.getresponse()
            reply = Reply(found.status, dict(found.getheaders()), found.read())
        finally:
            connection.close()
        seen.applied = reply.status
        return reply


class _Handler(BaseHTTPRequestHandler):
    """A connection of a client."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    proxy: FaultProxy
    patience_seconds: float

    def do_any(self) -> None:
        try:
            self.proxy.handle(self)
        except ConnectionError:
            self.close_connection = True  # the client has given up

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = do_any  # noqa: N815 - names of http.server

    def send(self, reply: Reply, *, is_cut: bool) -> None:
        self.send_response_only(reply.status)
        declared = {name.lower(): value for name, value in reply.headers.items()}.get("content-length")
        for name, value in reply.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if reply.status not in (204, 304):
            self.send_header("Content-Length", declared if declared is not None else str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: len(reply.body) // 2] if is_cut else reply.body)
        self.wfile.flush()
        self.close_connection = self.close_connection or is_cut

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextlib.contextmanager
def fault_proxy(upstream: str, *, seed: int = 0, patience_seconds: float = 2.0) -> Iterator[FaultProxy]:
    """A proxy on the loopback. A request that hangs does so for `patience_seconds`; clients should give up before."""
    proxy = FaultProxy(upstream, seed)
    bound = type("BoundHandler", (_Handler,), {"proxy": proxy, "patience_seconds": patience_seconds})
    server = _Server(("127.0.0.1", 0), bound)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        proxy.end()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
