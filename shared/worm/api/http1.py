"""HTTP/1.1 on a socket: requests from bytes, answers to bytes, with a limit on everything that is read.

Strict, so that no two programs can read one stream of bytes differently: lines end in CRLF, a header has no space
before its colon and no second line, `Content-Length` occurs once and is a number, `Transfer-Encoding` is refused (alone
with 411 or 501, with `Content-Length` with 400). A request that breaks a rule is `Refused`: it gets an answer, and the
connection ends, because the start of the next request is unknown.

Time is limited as well: head and body must arrive in time, however slowly a client sends.

It only knows bytes and sockets, not events or the API.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit

from worm.clock import Clock
from worm.values import dataclass

HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
RECEIVE_BYTES = 64 * 1024
LINGER_SECONDS = 1.0
LINGER_BYTES_MAX = 64 * 1024 * 1024
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD = re.compile(r"[A-Z]{1,16}")
_TARGET = re.compile(r"[\x21\x22\x24-\x7e]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_LENGTH = re.compile(r"[0-9]{1,15}")
_BARE_LF = re.compile(rb"(?<!\r)\n")
_END = b"\r\n\r\n"
_NO_BODY = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much and how long a client may send."""

    body_bytes_max: int = 10 * 1024 * 1024
    idle_seconds: float = 75.0
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body. `path` and `query` are as they were sent; names of headers are lower-case."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    is_persistent: bool = True

    def header(self, name: str) -> str | None:
        """The value of a header; several with the same name are joined by commas."""
        found = [value for known, value in self.headers if known == name]
        return ", ".join(found) if found else None


class Refused(Exception):
    """A request that is answered without calling the API. The connection ends with the answer."""

    def __init__(self, status: int, detail: str, slug: str = "bad-request") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.slug = slug


class Closed(Exception):
    """The client is gone, or has sent nothing for too long."""


def parse_head(data: bytes) -> RequestHead:
    """The head of a request, without the empty line that ends it."""
    first, *lines = data.decode("latin-1").split("\r\n")  # other line breaks match no pattern below
    method, target, version = _request_line(first)
    headers = tuple(_header(line) for line in lines)
    if len(headers) > HEADERS_MAX:
        raise Refused(431, f"the request has more than {HEADERS_MAX} headers", "headers-too-large")
    path, query, authority = _target(target)
    if authority is not None:
        headers = (*[one for one in headers if one[0] != "host"], ("host", authority))
    if sum(name == "host" for name, _ in headers) != 1:
        raise Refused(400, "a request must have exactly one Host header")
    tokens = {one.strip().lower() for name, value in headers if name == "connection" for one in value.split(",")}
    return RequestHead(method, path, query, headers, is_persistent=version == "HTTP/1.1" and "close" not in tokens)


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise Refused(400, "the request line is not 'METHOD /path HTTP/1.1'")
    if not re.fullmatch(r"HTTP/[0-9]\.[0-9]", parts[2]):
        raise Refused(400, "the request line has no HTTP version")
    if parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise Refused(505, "this server only supports HTTP/1.1", "http-version")
    return parts[0], parts[1], parts[2]


def _target(target: str) -> tuple[str, str, str | None]:
    """Path, query, and the host of an absolute target, which replaces the header."""
    authority = None
    if not target.startswith("/"):
        with suppress(ValueError):
            whole = urlsplit(target)
            if whole.scheme == "http" and whole.netloc:
                authority, target = whole.netloc, target[len("http://") + len(whole.netloc) :] or "/"
    if not target.startswith("/"):
        raise Refused(400, "the target of the request is not a path")
    path, _, query = target.partition("?")
    return path, query, authority


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise Refused(400, "a header is not 'Name: value'")
    return name.lower(), value.strip(" \t")


def body_length(head: RequestHead, limits: Limits) -> int:
    """How many bytes follow the head. A body that is too large is refused before it is read."""
    lengths = [value for name, value in head.headers if name == "content-length"]
    coding = head.header("transfer-encoding")
    if coding is not None and lengths:
        raise Refused(400, "a request may have Content-Length or Transfer-Encoding, but not both")
    if coding is not None:
        if coding.strip().lower() == "chunked":
            raise Refused(411, "send the body with a Content-Length, not in chunks", "length-required")
        raise Refused(501, "this server does not support Transfer-Encoding", "transfer-encoding")
    if len(lengths) > 1 or any(not _LENGTH.fullmatch(one) for one in lengths):
        raise Refused(400, "Content-Length must be one number")
    length = int(lengths[0]) if lengths else 0
    if length > limits.body_bytes_max:
        raise Refused(
            413, f"the body has {length:,} bytes, and the limit is {limits.body_bytes_max:,}", "body-too-large"
        )
    expected = head.header("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise Refused(417, "this server does not support the Expect header", "expectation-failed")
    return length


class Wire:
    """One connection: reads requests one after the other and writes their answers."""

    def __init__(self, connection: socket.socket, limits: Limits, clock: Clock) -> None:
        self._socket = connection
        self._limits = limits
        self._clock = clock
        self._buffer = b""

    def read_head(self) -> RequestHead:
        """The head of the next request. `Closed` if there is none."""
        if not self._buffer:
            self._receive(self._clock.monotonic() + self._limits.idle_seconds, is_between=True)
        deadline = self._clock.monotonic() + self._limits.head_seconds
        while True:
            self._buffer = self._buffer.removeprefix(b"\r\n")  # some clients send one after a body
            end = self._buffer.find(_END, 0, HEAD_BYTES_MAX + len(_END))
            if end >= 0:
                break
            if len(self._buffer) >= HEAD_BYTES_MAX:
                raise Refused(
                    431, f"the head of the request has more than {HEAD_BYTES_MAX:,} bytes", "headers-too-large"
                )
            if _BARE_LF.search(self._buffer):
                raise Refused(400, "a line of the request does not end in CRLF")
            self._receive(deadline)
        head, self._buffer = self._buffer[:end], self._buffer[end + len(_END) :]
        return parse_head(head)

    def read_body(self, head: RequestHead) -> bytes:
        """The body; every limit is checked before it is read."""
        length = body_length(head, self._limits)
        if length > len(self._buffer) and head.header("expect") is not None:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        deadline = self._clock.monotonic() + self._limits.body_seconds
        pieces, have = [self._buffer[:length]], min(length, len(self._buffer))
        self._buffer = self._buffer[length:]
        while have < length:
            self._receive(deadline, most=length - have)
            pieces.append(self._buffer)
            have += len(self._buffer)
            self._buffer = b""
        return b"".join(pieces)

    def _receive(self, deadline: float, *, is_between: bool = False, most: int = RECEIVE_BYTES) -> None:
        left = deadline - self._clock.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            piece = self._socket.recv(min(most, RECEIVE_BYTES))
        except TimeoutError as error:
            if is_between:
                raise Closed from error
            raise Refused(408, "the request took too long to arrive", "request-timeout") from error
        except OSError as error:
            raise Closed from error
        if not piece:
            raise Closed
        self._buffer += piece

    # --- answers

    def write(self, head: RequestHead | None, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        """A whole answer. `head` is that of the request, None if it could not be read."""
        is_bare = head is not None and head.method == "HEAD"
        given = [one for one in headers if one[0].lower() != "content-length"]
        if status not in _NO_BODY and not is_bare:
            given.append(("Content-Length", str(len(body))))
        start = _start(status, given, is_persistent=head is not None and head.is_persistent)
        self._send(start if status in _NO_BODY or is_bare else start + body)

    def write_stream(
        self, head: RequestHead, status: int, headers: Iterable[tuple[str, str]], body: Iterable[bytes]
    ) -> None:
        """An answer of unknown length, in chunks. If it is interrupted, the last chunk is missing, so the client knows
        that it is incomplete."""
        given = [one for one in headers if one[0].lower() not in ("content-length", "transfer-encoding")]
        if not head.is_persistent:  # also for HTTP/1.0, which has no chunks: closing the connection ends the body
            self._send(_start(status, given, is_persistent=False))
            for piece in body if head.method != "HEAD" else ():
                self._send(piece)
            return
        self._send(_start(status, [*given, ("Transfer-Encoding", "chunked")], is_persistent=True))
        if head.method == "HEAD":
            return
        for piece in body:
            if piece:
                self._send(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._send(b"0\r\n\r\n")

    def refuse(self, refused: Refused) -> None:
        """Answer and let the client read it: closing with unread bytes would discard the answer."""
        problem = {
            "type": f"urn:worm:{refused.slug}",
            "title": HTTPStatus(refused.status).phrase,
            "status": refused.status,
            "detail": refused.detail,
        }
        headers = {
            "Content-Type": "application/problem+json",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        self.write(None, refused.status, headers.items(), json.dumps(problem).encode())
        self._linger()

    def _linger(self) -> None:
        deadline, left = self._clock.monotonic() + LINGER_SECONDS, LINGER_BYTES_MAX
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := deadline - self._clock.monotonic()) > 0:
                self._socket.settimeout(seconds)
                piece = self._socket.recv(RECEIVE_BYTES)
                if not piece:
                    return
                left -= len(piece)

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._limits.write_seconds)
            self._socket.sendall(data)
        except OSError as error:
            raise Closed from error


def _start(status: int, headers: Iterable[tuple[str, str]], *, is_persistent: bool) -> bytes:
    """Status line and headers. A value with a line break would start another header, so it is refused."""
    lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
    for name, value in headers:
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"not a valid header: {name!r}")
        lines.append(f"{name}: {value}")
    if not is_persistent:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def lower_joined(headers: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Headers as Lambda passes them on: one value per name."""
    found: dict[str, str] = {}
    for name, value in headers:
        found[name] = f"{found[name]},{value}" if name in found else value
    return found
