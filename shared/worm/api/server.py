"""`worm serve`: an HTTP server on loopback that passes every request to the API like Lambda, as a payload 2.0 event.

This does what Lambda's Function URL does for the deployed API: it limits and parses requests (`worm.api.http1`), and
turns the answer's dictionary into bytes. Two checks are for browsers, in which any page can reach loopback: `Host` must
be a name of this machine, so that no other name can be bound to it (DNS rebinding), and a write must not come from a
foreign page (`Origin`). The API identifies the caller by the token.

Each connection has a thread; beyond `connections_max` a client gets 503.
"""

from __future__ import annotations

import base64
import errno
import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import parse_qsl

from worm.api.call import HttpAnswer
from worm.api.http1 import HEAD_BYTES_MAX, Closed, Limits, Refused, RequestHead, Wire, lower_joined
from worm.clock import Clock, Ids
from worm.errors import Invalid, Unavailable
from worm.values import dataclass

_log = logging.getLogger("worm.api")

CONNECTIONS_MAX = 64
CLOSE_SECONDS = 5.0
TURN_AWAY_SECONDS = 0.1
READING = frozenset({"GET", "HEAD", "OPTIONS"})
QUERY_FIELDS_MAX = 1000
_BUSY_BODY = b'{"type": "urn:worm:busy", "title": "Service Unavailable", "status": 503, "detail": "too many"}'
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: application/problem+json\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_BUSY_BODY), _BUSY_BODY)
)


class Answering(Protocol):
    """Answers events: the API."""

    def answer(self, event: dict[str, Any], context: Any) -> HttpAnswer: ...


@dataclass(frozen=True, slots=True)
class Context:
    """What Lambda says to a function about its invocation."""

    aws_request_id: str
    function_name: str = "worm-serve"

    def get_remaining_time_in_millis(self) -> int:
        return 15 * 60 * 1000


class Server:
    """Listens from the start; `serve` answers until `close`."""

    def __init__(
        self,
        api: Answering,
        *,
        clock: Clock,
        ids: Ids,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._api = api
        self._clock = clock
        self._ids = ids
        self._limits = limits or Limits()
        self._listener = _listening(host, port)
        self.host: str = self._listener.getsockname()[0]
        self.port: int = self._listener.getsockname()[1]
        self._names = {f"{name}{end}" for name in _names(self.host) for end in ("", f":{self.port}")}
        self._origins = {f"http://{name}:{self.port}" for name in _names(self.host)}
        self._slots = threading.BoundedSemaphore(connections_max)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._busy: set[socket.socket] = set()
        self._closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    # --- life

    def serve(self) -> None:
        """Answers until `close` is called, from another thread or by an interrupt."""
        while not self._closing.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                if self._closing.is_set() or error.errno == errno.EBADF:
                    return
                self._clock.sleep(0.05)  # too many open files, or a client that is already gone
                continue
            if self._slots.acquire(blocking=False):
                self._begin(connection, str(address[0]))
            else:
                _turn_away(connection)

    def _begin(self, connection: socket.socket, client: str) -> None:
        # Without it, an answer in two pieces waits until the client has acknowledged the first.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=self._converse, args=(connection, client), name="worm-serve", daemon=True)
        with self._lock:
            self._open[connection] = thread
        thread.start()

    def close(self) -> None:
        """Accepts no new requests; open ones have a few seconds."""
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            idle = [one for one in self._open if one not in self._busy]
            threads = list(self._open.values())
        for connection in idle:
            _shut(connection)
        deadline = self._clock.monotonic() + CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - self._clock.monotonic()))
        with self._lock:
            left = list(self._open)
        for connection in left:
            _shut(connection)

    # --- one connection

    def _converse(self, connection: socket.socket, client: str) -> None:
        wire = Wire(connection, self._limits, self._clock)
        try:
            with suppress(Closed):
                while not self._closing.is_set() and self._exchange(wire, connection, client):
                    pass
        finally:
            with self._lock:
                self._open.pop(connection, None)
                self._busy.discard(connection)
            connection.close()
            self._slots.release()

    def _exchange(self, wire: Wire, connection: socket.socket, client: str) -> bool:
        """One request and its answer; returns whether another may follow."""
        try:
            head = wire.read_head()
            with self._lock:
                self._busy.add(connection)
            self._check(head)
            body = wire.read_body(head)
            event = event_of(head, body, client=client, request_id=self._ids.uuid(), now=self._clock.now())
        except Refused as refused:
            wire.refuse(refused)
            return False
        self._answer(wire, head, event)
        with self._lock:
            self._busy.discard(connection)
        return head.is_persistent

    def _check(self, head: RequestHead) -> None:
        host = (head.header("host") or "").lower()
        if host not in self._names:
            raise Refused(421, "the Host header does not name this machine", "misdirected-request")
        origin = head.header("origin")
        if head.method not in READING and origin is not None and origin.lower() not in self._origins:
            raise Refused(403, "pages of another origin must not write", "foreign-origin")

    def _answer(self, wire: Wire, head: RequestHead, event: dict[str, Any]) -> None:
        request_id = event["requestContext"]["requestId"]
        try:
            answer = self._api.answer(event, Context(request_id))
            if isinstance(answer.body, bytes):
                wire.write(head, answer.status, answer.headers.items(), answer.body)
                return
        except Closed:
            raise
        except Exception:  # noqa: BLE001 - a defect; the other requests go on
            _log.exception("the request %s failed", request_id)
            wire.refuse(Refused(500, f"the request {request_id} failed; see the log of `worm serve`", "defect"))
            raise Closed from None
        self._stream(wire, head, answer, answer.body)

    def _stream(self, wire: Wire, head: RequestHead, answer: HttpAnswer, body: Iterator[bytes]) -> None:
        try:
            wire.write_stream(head, answer.status, answer.headers.items(), self._until_closing(body))
        except Closed:
            raise
        except Exception:  # noqa: BLE001 - whatever the source of the answer raises: the status is sent already
            if not self._closing.is_set():
                _log.exception("an answer was interrupted")
            raise Closed from None
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()

    def _until_closing(self, body: Iterator[bytes]) -> Iterator[bytes]:
        for piece in body:
            yield piece
            if self._closing.is_set():
                raise Closed


def event_of(head: RequestHead, body: bytes, *, client: str, request_id: str, now: datetime) -> dict[str, Any]:
    """The request as a Function URL would pass it to a function (payload format 2.0)."""
    headers = dict(lower_joined(head.headers))
    cookies = [one.strip() for one in headers.pop("cookie", "").split(";") if one.strip()]
    host = headers.get("host", "")
    text = _text(headers.get("content-type", ""), body)
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": head.path,
        "rawQueryString": head.query,
        "headers": headers,
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "local",
            "domainName": host,
            "domainPrefix": host.partition(":")[0],
            "http": {
                "method": head.method,
                "path": head.path,
                "protocol": "HTTP/1.1",
                "sourceIp": client,
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": request_id,
            "routeKey": "$default",
            "stage": "$default",
            "time": now.astimezone(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000"),
            "timeEpoch": int(now.timestamp() * 1000),
        },
        "isBase64Encoded": bool(body) and text is None,
    }
    if cookies:
        event["cookies"] = cookies
    if head.query:
        event["queryStringParameters"] = dict(lower_joined(_fields(head.query)))
    if body:
        event["body"] = base64.b64encode(body).decode() if text is None else text
    return event


def _fields(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="replace")
    except ValueError as error:
        raise Refused(400, f"the query has more than {QUERY_FIELDS_MAX:,} fields") from error


def _text(content_type: str, body: bytes) -> str | None:
    """The body as text if its media type is text; None for bytes."""
    kind = content_type.partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind == "application/json" or kind.endswith("+json")):
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _listening(host: str, port: int) -> socket.socket:
    address = "127.0.0.1" if host.lower() == "localhost" else host
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        hint = "use 127.0.0.1, localhost or ::1; to serve others, deploy the API (docs/operations.md)"
        raise Invalid(f"{host} is not a loopback address", hint=hint)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "choose another --port, or leave it out to use a free one"
            raise Unavailable(f"port {port} of {host} is in use", hint=hint) from error
        raise Unavailable(f"cannot listen on port {port} of {host}: {error.strerror or error}") from error


def _names(host: str) -> list[str]:
    shown = f"[{host}]" if ":" in host else host
    return sorted({"127.0.0.1", "localhost", "[::1]", shown})


def _turn_away(connection: socket.socket) -> None:
    """Pending bytes are read first: closing with unread bytes would discard the answer."""
    with suppress(OSError):
        connection.settimeout(TURN_AWAY_SECONDS)
        connection.sendall(_BUSY)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(HEAD_BYTES_MAX)
    connection.close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
