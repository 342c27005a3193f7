"""An HTTP proxy in front of an S3 server that fails as told: what networks and servers do to single requests.

    proxy.fail("PUT", "/log/", drop(after=True))            the next PUT of a slot is applied, its answer is lost
    proxy.fail("GET", "manifest.json", answer(503), times=None)
    proxy.storm(0.05)                                       every twentieth request fails, in any of the ways

A rule meets the requests of its method whose key contains its text, `times` of them, after `skip` others. Each request
is kept in `seen` with what the server said and what the client was told, so a test can count and prove.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

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
    `delayed`: after `seconds`, when the client has long given up. `twice`: two times, and the client hears the second
    answer. `stale`: not at all, if the same question was answered before: the client gets that answer.
    """

    when: Literal["before", "after", "late", "delayed", "twice", "stale"]
    how: Literal["drop", "hang", "answer", "cut", "shorten", "slow", "pass"]
    status: int = 0
    cut_at: int | None = None
    seconds: float = 0.0


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


def slow(seconds: float) -> Fault:
    """The answer takes so long."""
    return Fault("after", "slow", seconds=seconds)


def twice() -> Fault:
    """The server gets the request two times: something between sent it again."""
    return Fault("twice", "pass")


def delayed(seconds: float) -> Fault:
    """No answer; the request arrives so much later, whatever happened meanwhile."""
    return Fault("delayed", "drop", seconds=seconds)


def stale() -> Fault:
    """A listing is answered as it was answered before, if it was."""
    return Fault("stale", "pass")


@dataclass
class Rule:
    """Which requests a fault meets. `only`: of these, those that it says yes to."""

    method: str
    key_part: str
    fault: Fault
    times: int | None = 1
    skip: int = 0
    share: float = 1.0
    only: Callable[[Seen], bool] = lambda _: True

    def takes(self, seen: Seen, chance: Random) -> bool:
        if self.times == 0 or self.method not in (seen.method, "*") or self.key_part not in seen.key:
            return False
        if not self.only(seen):
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
    """One request. `key` is the path, and for a listing of objects the query as well. `applied` is the server's status,
    None while it did not get it; `told` the client's, None for silence."""

    method: str
    key: str
    is_conditional: bool
    is_match: bool = False
    is_listing: bool = False
    path: str = ""
    query: str = ""
    fault: Fault | None = None
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
    _told: dict[str, Reply] = field(default_factory=dict)
    _timers: list[threading.Timer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: set[int] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)

    def fail(
        self,
        method: str,
        key_part: str,
        fault: Fault,
        *,
        times: int | None = 1,
        skip: int = 0,
        share: float = 1.0,
        only: Callable[[Seen], bool] = lambda _: True,
    ) -> Rule:
        rule = Rule(method, key_part, fault, times, skip, share, only)
        with self._lock:
            self._rules.append(rule)
        return rule

    def storm(self, share: float, *, late_seconds: float = 2.0) -> None:
        """Every fault, by chance, until `heal`: about this share of the requests, of listings and writes more, because
        they are few. A put-if-absent never comes late: without a commit that tells its age, nothing could stop it."""
        self.fail("GET", "", stale(), times=None, share=2 * share, only=lambda seen: seen.is_listing)
        for method in ("PUT", "DELETE"):
            self.fail(method, "", delayed(late_seconds), times=None, share=share, only=lambda seen: seen.is_match)
            self.fail(method, "", twice(), times=None, share=share / 2, only=lambda seen: seen.is_conditional)
        self.fail("PUT", "", answer(409), times=None, share=share / 4, only=lambda seen: seen.is_conditional)
        self.fail("PUT", "", answer(500, after=True), times=None, share=share / 4)
        self.fail("GET", "", cut(), times=None, share=share / 6)
        for fault in (answer(500), answer(503), drop(after=False), drop(after=True), slow(0.3)):
            self.fail("*", "", fault, times=None, share=share / 6)

    def heal(self) -> None:
        """No more faults; what was held back arrives now, and what is on its way before this returns. That includes
        requests whose clients have given up: the server may be slower than they are patient."""
        with self._lock:
            self._rules.clear()
            timers, self._timers = self._timers, []
            on_their_way = set(self._open)
        self._land("")
        for timer in timers:
            timer.join()
        deadline = time.monotonic() + HANG_SECONDS_MAX
        while on_their_way & self._open:
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.01)

    def count(self, method: str = "", key_part: str = "") -> int:
        """Requests that came in so far."""
        return sum(1 for one in self.seen if one.method.startswith(method) and key_part in one.key)

    def struck(self) -> Counter[str]:
        """How often which fault met a request."""
        return Counter(f"{one.fault.when} {one.fault.how}" for one in self.seen if one.fault is not None)

    def end(self) -> None:
        self._ended.set()
        for timer in self._timers:
            timer.cancel()

    def handle(self, handler: _Handler) -> None:
        """One request of a client."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parts, headers = urlsplit(handler.path), dict(handler.headers.items())
        key = unquote(parts.path) if "list-type" not in parts.query else f"{unquote(parts.path)}?{unquote(parts.query)}"
        conditions = {"if-match", "if-none-match"}
        given = {name.lower() for name in headers}
        is_listing = "list-type" in parts.query or "versions" in parse_qs(parts.query, keep_blank_values=True)
        where = (unquote(parts.path), parts.query)
        seen = Seen(handler.command, key, bool(given & conditions), "if-match" in given, is_listing, *where)
        with self._lock:
            self.seen.append(seen)
            rule = next((one for one in self._rules if one.takes(seen, self._chance)), None)
            self._open.add(id(seen))
        fault = seen.fault = rule.fault if rule is not None else None
        try:
            reply = self._carried_out(_Held(handler.path, headers, body, seen), fault)
        finally:
            self._open.discard(id(seen))
        if fault is None and seen.method in ("GET", "HEAD"):
            self._land(key)
        self._answer(handler, seen, fault, reply)

    def _carried_out(self, request: _Held, fault: Fault | None) -> Reply | None:
        """What the server says to it, if it gets it before the client is answered."""
        when = "after" if fault is None else fault.when
        if when == "before":
            return None
        if when == "late":
            with self._lock:
                self._held.append(request)
            return None
        if when == "delayed":
            assert fault is not None
            timer = threading.Timer(fault.seconds, self._forward_held, [request])
            with self._lock:
                self._timers.append(timer)
            timer.start()
            return None
        told = self._told.get(request.path) if when == "stale" else None
        if told is not None:
            return told
        if when == "twice":
            self._forward_held(request)
        reply = self._forward_held(request)
        if request.seen.is_listing:
            self._told[request.path] = reply
        return reply

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
        if fault is not None and fault.how == "slow":
            self._ended.wait(fault.seconds)
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
            self._forward_held(one)

    def _forward_held(self, one: _Held) -> Reply:
        return self._forward(one.path, one.seen, one.headers, one.body)

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
    with serving(proxy, patience_seconds):
        yield proxy


@contextlib.contextmanager
def serving(proxy: FaultProxy, patience_seconds: float = 2.0) -> Iterator[None]:
    bound = type("BoundHandler", (_Handler,), {"proxy": proxy, "patience_seconds": patience_seconds})
    server = _Server(("127.0.0.1", 0), bound)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield
    finally:
        proxy.end()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
