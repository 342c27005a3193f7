"""moto as a server process: `python -m worm.dev.moto_server [HOST [PORT]]`, with the gaps of moto_gaps.py filled.

The first line on stdout is `{"port": n}`, or `{"error": "…"}` if it cannot listen there. It serves on loopback unless
another address is given, and ends when its stdin closes, so it never outlives the process that started it. Connections
are kept alive and the body is read before anything else, which makes it several times faster than moto's own server
(that one waits 10 ms after each answer and closes). Besides AWS it answers: `GET /_worm/requests` (counts by role and
kind), `GET /_worm/deliveries` (events, dropped, pending), `POST /_worm/faults` (a `FaultPolicy` as JSON), `POST
/_worm/age` (`{"bucket", "key", "days"}`: the object becomes this much older in listings), `POST /_worm/record` (a list
of roles: from now on their calls are kept) and `GET /_worm/calls` (the calls that were kept; iam.py).
"""

from __future__ import annotations

import io
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from typing import Any, cast
from urllib.parse import quote

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import ThreadedWSGIServer

from worm.dev.faults import Deliveries, FaultPolicy
from worm.dev.iam import Call, Recording, role_of
from worm.dev.moto_gaps import ObjectEvents, date_back, fill_gaps
from worm.dev.s3_requests import Environ, Request, RoleCounts
from worm.dev.version_order import answer_in_order
from worm.errors import Invalid

_CREDENTIAL = re.compile(r"Credential=[^/]*/[^/]*/[^/]*/([^/]*)/")
_SERVICES = ("s3", "sqs", "events")

StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


class Gateway:
    """The WSGI application: finds the service, counts, watches writes, answers the internal paths."""

    def __init__(self) -> None:
        fill_gaps()
        self._deliveries = Deliveries()
        self._events = ObjectEvents(self._deliveries)
        self._counts = RoleCounts()
        self._recording = Recording()
        self._apps: dict[str, Application] = {name: create_backend_app(cast(Any, name)) for name in _SERVICES}
        self._other: Application = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith("/_worm/"):
            return self._internal(environ, start_response)
        service = _service(environ)
        role = role_of(environ.get("HTTP_USER_AGENT", ""), environ.get("HTTP_AUTHORIZATION", ""))
        if self._recording.wants(role):
            start_response = self._recorded(role, service, environ, start_response)
        app = self._apps.get(service, self._other)
        if service != "s3":
            return app(environ, start_response)
        request = Request.of(environ)
        self._counts.add(request, environ.get("HTTP_USER_AGENT", ""))
        if request.kind == "VERSIONS":
            return answer_in_order(lambda start: app(environ, start), request.bucket, start_response)
        if request.method not in ("PUT", "POST", "DELETE"):
            return app(environ, start_response)
        body: bytes = environ["wsgi.input"].getvalue()
        return self._events.watch(request, environ, body, lambda: app(environ, start_response))

    def _recorded(self, role: str, service: str, environ: Environ, start_response: StartResponse) -> StartResponse:
        """Records the call when its answer begins: the needs of a call depend on whether the key exists."""

        def start(status: str, headers: list[tuple[str, str]], *rest: object) -> Any:
            self._recording.add(_calls(role, service, environ, int(status.split()[0])))
            return start_response(status, headers, *rest)

        return start

    def _internal(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        status, answer = "200 OK", cast(object, None)
        call = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        if call == "GET /_worm/requests":
            answer = self._counts.snapshot()
        elif call == "GET /_worm/deliveries":
            answer = self._deliveries.counts()
        elif call == "GET /_worm/calls":
            answer = self._recording.snapshot()
        elif call == "POST /_worm/record":
            self._recording.start(json.loads(environ["wsgi.input"].read()))
        elif call == "POST /_worm/faults":
            try:
                policy = FaultPolicy(**json.loads(environ["wsgi.input"].read()))
                self._deliveries.set_policy(policy)
                answer = asdict(policy)
            except (TypeError, ValueError, Invalid) as error:
                status, answer = "400 Bad Request", {"error": str(error)}
        elif call == "POST /_worm/age":
            try:
                answer = date_back(**json.loads(environ["wsgi.input"].read()))
            except (TypeError, ValueError, LookupError) as error:
                status, answer = "400 Bad Request", {"error": str(error)}
        else:
            status, answer = "404 Not Found", {"error": f"no such path: {call}"}
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def _service(environ: Environ) -> str:
    match = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", ""))
    if match:
        return match[1].lower()
    return "s3" if "X-Amz-Credential" in environ.get("QUERY_STRING", "") else ""


def _calls(role: str, service: str, environ: Environ, status: int) -> list[Call]:
    body: bytes = environ["wsgi.input"].getvalue()
    if service == "sqs":
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        return [Call.of_sqs(role, operation, body, status)]
    if service != "s3":
        return [Call(role, service, environ["REQUEST_METHOD"], environ["PATH_INFO"], status=status)]
    path = quote(environ["PATH_INFO"].encode("latin-1")) + "?" + environ.get("QUERY_STRING", "")
    headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")}
    return Call.of_s3(role, environ["REQUEST_METHOD"], path, headers, body, status)


class _Handler(MotoRequestHandler):
    """One connection: reads a whole request, answers with a length, keeps the connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def run_wsgi(self) -> None:
        environ = self.make_environ()
        length = int(self.headers.get("Content-Length") or 0)
        terminated = environ.get("wsgi.input_terminated")
        body = environ["wsgi.input"].read() if terminated else self.rfile.read(length)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        answer: list[tuple[str, list[tuple[str, str]]]] = []
        payload_parts: list[bytes] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None, /
        ) -> Callable[[bytes], object]:
            answer.append((status, headers))
            return payload_parts.append

        payload_parts += self.server.app(environ, start_response)
        status, headers = answer[-1]
        self._send(status, headers, b"".join(payload_parts))

    def _send(self, status: str, headers: list[tuple[str, str]], payload: bytes) -> None:
        code, _, reason = status.partition(" ")
        lines = [f"HTTP/1.1 {code} {reason}"]
        lines += [f"{name}: {value}" for name, value in headers]
        names = {name.lower() for name, _ in headers}
        head = self.command == "HEAD"
        if "content-length" not in names and code not in ("204", "304") and not head:
            lines.append(f"Content-Length: {len(payload)}")
        if "date" not in names:
            lines.append(f"Date: {self.date_time_string()}")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if not head:
            self.wfile.write(payload)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.wfile.flush()  # boto3 waits a second for it otherwise
        return True

    def handle(self) -> None:
        try:
            BaseHTTPRequestHandler.handle(self)
        except (ConnectionError, TimeoutError):
            self.close_connection = True  # the client disconnected; nobody is left to answer

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Requests are counted, not logged."""


class _Server(ThreadedWSGIServer):
    request_queue_size = 128
    daemon_threads = True


def main(host: str = "127.0.0.1", port: str = "0") -> None:
    try:
        listener = socket.create_server((host, int(port)), backlog=128)
    except OSError as error:
        sys.stdout.write(json.dumps({"error": error.strerror or str(error)}) + "\n")
        return
    server = _Server(host, int(port), cast(Any, Gateway()), handler=_Handler, fd=listener.fileno())
    threading.Thread(target=server.serve_forever, name="serve", daemon=True).start()
    sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
