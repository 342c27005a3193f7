"""Servers for the benchmark of HTTP, each in its own process on loopback, and a cheap client.

`python -m scripts.benchmarks._http_servers BODIES` is the bare handler: Powertools' resolver with two routes that
return values from memory, behind the same server as `worm serve`. Nothing that goes through Powertools can be faster.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aws_lambda_powertools.event_handler.lambda_function_url import LambdaFunctionUrlResolver

from worm.api.call import HttpAnswer
from worm.api.server import Server
from worm.clock import Ids, SystemClock
from worm.dev.aws import stop_group
from worm.forks import new_lock

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / ".venv-clients" / "bin"
START_SECONDS_MAX = 60.0
LAST_CHUNK = b"\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection:
    """One connection that stays open."""

    def __init__(self, port: int, token: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"Host: 127.0.0.1:{port}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")

    def get(self, target: str) -> bytes:
        """The body as received: in chunks if the server sends chunks."""
        self._socket.sendall(f"GET {target} HTTP/1.1\r\n{self._head}\r\n".encode())
        data = self._socket.recv(262144)
        while b"\r\n\r\n" not in data:
            data += self._received()
        head, _, body = data.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{target}: {head!r} {body!r}")
        length = _LENGTH.search(head)
        pieces, have = [body], len(body)
        if length is not None:
            while have < int(length[1]):
                pieces.append(self._received())
                have += len(pieces[-1])
            return b"".join(pieces)
        while not body.endswith(LAST_CHUNK):
            body += self._received()
        return body

    def json(self, target: str) -> Any:
        body = self.get(target)
        if body.endswith(LAST_CHUNK):
            body = b"".join(_chunks(body))
        return json.loads(body)

    def _received(self) -> bytes:
        piece = self._socket.recv(262144)
        if not piece:
            raise RuntimeError("the server has closed the connection")
        return piece

    def close(self) -> None:
        self._socket.close()


def _chunks(body: bytes) -> Iterator[bytes]:
    at = 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        if size == 0:
            return
        yield body[end + 2 : end + 2 + size]
        at = end + 2 + size + 2


@contextmanager
def _running(command: list[str], stdout: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(ROOT / "shared"), str(ROOT)])
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        stop_group(process)


@contextmanager
def worm_serve(url: str, token: str) -> Iterator[int]:
    """The port of `worm serve` on these documents."""
    command = [sys.executable, "-m", "worm.cli.main", "serve", "--url", url, "--token", token, "--read-only"]
    with _running(command) as process:
        assert process.stdout is not None
        found = re.search(rb"at http://127\.0\.0\.1:(\d+)/v1", process.stdout.readline())
        assert found is not None
        yield int(found[1])


@contextmanager
def datasette(database: Path) -> Iterator[int]:
    """The port of Datasette on this file. It runs with settings for a file that nobody writes, and without a cache."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    options = ["--port", str(port), "--setting", "suggest_facets", "off", "--setting", "default_cache_ttl", "0"]
    command = [str(CLIENTS / "datasette"), "serve", "-i", str(database), *options]
    with _running(command, subprocess.DEVNULL) as process:  # it prints a line for each request
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                Connection(port).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port


@contextmanager
def bare(bodies: Path) -> Iterator[int]:
    """The port of the bare handler."""
    with _running([sys.executable, "-m", "scripts.benchmarks._http_servers", str(bodies)]) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


class _BareApi:
    """Powertools keeps the event in the class, so one call at a time."""

    def __init__(self, one: Any, page: Any) -> None:
        self._resolver = LambdaFunctionUrlResolver()
        self._resolver.get("/v1/models/<model>/documents/<name>")(lambda model, name: one)
        self._resolver.get("/v1/models/<model>/documents")(lambda model: page)
        self._lock = new_lock()

    def answer(self, event: dict[str, Any], context: Any) -> HttpAnswer:
        with self._lock:
            found = self._resolver.resolve(event, context)
        headers = {"Content-Type": "application/json"}
        return HttpAnswer(found["statusCode"], headers, found["body"].encode())


def _serve_bare(bodies: Path) -> None:
    shapes = json.loads(bodies.read_text())
    clock = SystemClock()
    server = Server(_BareApi(shapes["one"], shapes["page"]), clock=clock, ids=Ids.system(clock))
    print(server.port, flush=True)
    server.serve()


if __name__ == "__main__":
    _serve_bare(Path(sys.argv[1]))
