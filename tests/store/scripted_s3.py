"""An HTTP server that answers as told: for what no emulator does (409, cut bodies, AWS's own listings)."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Answer:
    """One response. `declared` is a Content-Length that the body does not keep; `hang_up` closes without a word."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    declared: int | None = None
    hang_up: bool = False


NO_SUCH_KEY = Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")


@dataclass(frozen=True)
class Request:
    """What came in; the names of headers in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class ScriptedS3:
    """Gives the scripted answers in turn, then 404; keeps every request."""

    url: str
    answers: deque[Answer] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)

    def error(self, status: int, code: str) -> None:
        """Script an error of S3."""
        self.answers.append(Answer(status, f"<Error><Code>{code}</Code></Error>".encode()))

    def piece(self, body: bytes, content_range: str, *, declared: int | None = None) -> None:
        """Script the answer to a GET with a Range."""
        headers = {"ETag": '"e"', "Last-Modified": "Mon, 16 Nov 2026 01:02:03 GMT", "Content-Range": content_range}
        self.answers.append(Answer(206, body, headers, declared))

    def object(self, body: bytes, *, declared: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Script a GET's answer."""
        basics = {"ETag": '"e"', "Last-Modified": "Mon, 16 Nov 2026 01:02:03 GMT"}
        self.answers.append(Answer(200, body, {**basics, **(headers or {})}, declared))


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextlib.contextmanager
def scripted_s3() -> Iterator[ScriptedS3]:
    script = ScriptedS3("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            script.requests.append(Request(self.command, self.path, _lower(self.headers), body))
            answer = script.answers.popleft() if script.answers else NO_SUCH_KEY
            self.close_connection = answer.hang_up or answer.declared is not None
            if answer.hang_up:
                return
            self.send_response_only(answer.status)
            length = len(answer.body) if answer.declared is None else answer.declared
            for name, value in {"Content-Length": str(length), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _answer  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)
