"""HTTP as bytes: what a careful client library would never send, and answers read without one."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Protocol

from worm.api.call import HttpAnswer
from worm.api.http1 import Limits
from worm.api.server import Server
from worm.clock import Ids, SystemClock

ANSWER_SECONDS = 30.0


@dataclass
class Echo:
    """Answers every event with the same; remembers the events."""

    given: HttpAnswer = field(default_factory=lambda: HttpAnswer(body=b"ok"))
    events: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None

    def answer(self, event: dict[str, Any], context: Any) -> HttpAnswer:
        self.events.append(event)
        if self.error is not None:
            raise self.error
        return self.given


@dataclass(frozen=True)
class Received:
    """An answer; `rest` is what came after it on the connection."""

    status: int
    headers: dict[str, str]
    body: bytes
    rest: bytes = b""


@contextmanager
def serving(api: Any, limits: Limits | None = None, **options: Any) -> Iterator[Server]:
    """A server on a free port, in a thread."""
    clock = SystemClock()
    server = Server(api, clock=clock, ids=Ids.system(clock), limits=limits, **options)
    thread = Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(ANSWER_SECONDS)


class Listening(Protocol):
    """A server, or what runs one."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


def connected(server: Listening) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=ANSWER_SECONDS)


def everything(connection: socket.socket) -> bytes:
    """Until the other side closes."""
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def parsed(data: bytes) -> Received:
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", len(rest)))
    return Received(int(first.split(" ")[1]), headers, rest[:length], rest[length:])


def asked(server: Listening, data: bytes) -> Received:
    """The answer to these bytes; nothing else is sent."""
    with connected(server) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return parsed(everything(connection))


def request(
    method: str = "GET", target: str = "/v1", headers: Mapping[str, str] | None = None, body: bytes = b""
) -> bytes:
    """A proper request for one connection each."""
    given = {"Host": "127.0.0.1", "Connection": "close", **(headers or {})}
    if body:
        given.setdefault("Content-Length", str(len(body)))
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in given.items()]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
