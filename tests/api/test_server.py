"""`worm serve` as a server: what it hands to the API, what it refuses, and that nobody can wear it out."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.raw_http import Echo, asked, connected, everything, parsed, request, serving
from worm.api.call import HttpAnswer
from worm.api.http1 import HEAD_BYTES_MAX, HEADERS_MAX, Limits
from worm.api.server import Server
from worm.clock import Ids, SystemClock
from worm.errors import Invalid, Unavailable

HURRIED = Limits(body_bytes_max=1000, idle_seconds=0.3, head_seconds=0.3, body_seconds=0.3, write_seconds=2.0)


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def server(echo: Echo) -> Iterator[Server]:
    with serving(echo) as one:
        yield one


def test_a_request_becomes_an_event_of_a_function_url(server: Server, echo: Echo) -> None:
    body = json.dumps({"name": "Kōbe"}).encode()
    headers = {"Content-Type": "application/json", "X-One": "a", "User-Agent": "test/1", "Cookie": "a=1; b=2"}
    sent = request("POST", "/v1/models/Customer/documents/a%2Fb?limit=3&x=1&x=2", headers, body)
    assert asked(server, sent.replace(b"X-One: a", b"X-One: a\r\nx-one: b")).status == 200
    [event] = echo.events
    context = event.pop("requestContext")
    assert event == {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/v1/models/Customer/documents/a%2Fb",
        "rawQueryString": "limit=3&x=1&x=2",
        "queryStringParameters": {"limit": "3", "x": "1,2"},
        "headers": {
            "host": "127.0.0.1",
            "connection": "close",
            "content-type": "application/json",
            "x-one": "a,b",
            "user-agent": "test/1",
            "content-length": str(len(body)),
        },
        "cookies": ["a=1", "b=2"],
        "body": body.decode(),
        "isBase64Encoded": False,
    }
    assert context["http"] == {
        "method": "POST",
        "path": "/v1/models/Customer/documents/a%2Fb",
        "protocol": "HTTP/1.1",
        "sourceIp": "127.0.0.1",
        "userAgent": "test/1",
    }
    assert (context["stage"], context["routeKey"]) == ("$default", "$default")
    assert context["timeEpoch"] > 1_700_000_000_000


@pytest.mark.parametrize(("kind", "body"), [("application/octet-stream", b"{}"), ("application/json", b"\xff")])
def test_a_body_that_is_no_text_is_base64(server: Server, echo: Echo, kind: str, body: bytes) -> None:
    asked(server, request("POST", "/v1", {"Content-Type": kind}, body))
    assert echo.events[0]["isBase64Encoded"] is True
    assert echo.events[0]["body"] in ("e30=", "/w==")


def test_an_answer_keeps_its_status_headers_and_bytes(echo: Echo) -> None:
    echo.given = HttpAnswer(201, {"ETag": '"a"'}, b"\x00\xff")
    with serving(echo) as server:
        found = asked(server, request())
    assert (found.status, found.headers["etag"], found.body) == (201, '"a"', b"\x00\xff")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_content_has_no_body_and_no_length(echo: Echo, status: int) -> None:
    echo.given = HttpAnswer(status, {"ETag": '"a"'})
    with serving(echo) as server:
        found = asked(server, request())
    assert (found.status, found.body, "content-length" in found.headers) == (status, b"", False)


def test_an_answer_to_head_has_no_body(server: Server) -> None:
    found = asked(server, request("HEAD"))
    assert (found.status, found.body) == (200, b"")


def test_a_connection_serves_many_requests(server: Server, echo: Echo) -> None:
    client = http.client.HTTPConnection(server.host, server.port, timeout=30)
    for at in range(3):
        client.request("POST", f"/v1/{at}", body=b"x" * at)
        assert client.getresponse().read() == b"ok"
    client.close()
    assert [event["rawPath"] for event in echo.events] == ["/v1/0", "/v1/1", "/v1/2"]


def test_requests_that_come_at_once_are_answered_in_order(server: Server, echo: Echo) -> None:
    one = request("GET", "/1").replace(b"Connection: close\r\n", b"")
    with connected(server) as connection:
        connection.sendall(one + one.replace(b"/1 ", b"/2 ") + request("GET", "/3"))
        assert everything(connection).count(b"HTTP/1.1 200 OK") == 3
    assert [event["rawPath"] for event in echo.events] == ["/1", "/2", "/3"]


def test_an_old_client_gets_one_answer(server: Server) -> None:
    found = asked(server, b"GET /v1 HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
    assert (found.status, found.headers["connection"], found.rest) == (200, "close", b"")


def test_a_client_that_asks_first_is_told_to_go_on(server: Server, echo: Echo) -> None:
    sent = request("PUT", "/v1", {"Expect": "100-continue", "Content-Length": "2"})
    with connected(server) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert parsed(everything(connection)).status == 200
    assert echo.events[0]["body"] == "e30="


# --- Host and Origin


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "127.0.0.1:{port}", "[::1]:{port}"])
def test_names_of_this_machine_are_answered(server: Server, host: str) -> None:
    assert asked(server, request(headers={"Host": host.format(port=server.port)})).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost:1", "0.0.0.0", "", "a@127.0.0.1"]
)
def test_a_name_bound_to_loopback_by_somebody_else_is_refused(server: Server, echo: Echo, host: str) -> None:
    """DNS rebinding: a page of evil.example would read the console's data under its own origin."""
    assert asked(server, request(headers={"Host": host})).status == 421
    assert asked(server, request(target=f"http://{host or 'x'}/v1")).status == 421
    assert echo.events == []


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_a_page_of_another_origin_cannot_write(server: Server, echo: Echo, method: str, origin: str) -> None:
    found = asked(server, request(method, headers={"Origin": origin.format(port=server.port)}))
    assert found.status == 403
    assert echo.events == []


def test_the_own_page_writes_and_every_page_may_ask(server: Server) -> None:
    assert asked(server, request("POST", headers={"Origin": server.url})).status == 200
    assert asked(server, request("GET", headers={"Origin": "https://evil.example"})).status == 200


# --- smuggling, sizes, time


SMUGGLED = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "two lengths": b"Content-Length: 4\r\nContent-Length: 5\r\n",
    "twice the same length": b"Content-Length: 4\r\nContent-Length: 4\r\n",
    "a list of lengths": b"Content-Length: 4, 4\r\n",
    "signed": b"Content-Length: +4\r\n",
    "negative": b"Content-Length: -1\r\n",
    "hex": b"Content-Length: 0x4\r\n",
    "digits of another script": "Content-Length: ٤\r\n".encode(),
    "empty": b"Content-Length: \r\n",
    "far too long": b"Content-Length: 99999999999999999999\r\n",
    "space before the colon": b"Content-Length : 4\r\n",
    "a folded header": b"X: a\r\n Content-Length: 4\r\n",
    "line feed alone": b"X: a\nContent-Length: 4\r\n",
    "carriage return alone": b"X: a\rContent-Length: 4\r\n",
    "a zero byte": b"X: a\x00b\r\n",
    "no colon": b"Content-Length\r\n",
    "no name": b": 4\r\n",
    "two hosts": b"Host: localhost\r\n",
}


@pytest.mark.parametrize("headers", SMUGGLED.values(), ids=SMUGGLED.keys())
def test_a_request_that_two_programs_could_read_differently_is_refused(
    server: Server, echo: Echo, headers: bytes
) -> None:
    """The second request, hidden in the body of the first, must never be answered."""
    hidden = request("DELETE", "/hidden")
    with connected(server) as connection:
        connection.sendall(b"POST /v1 HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n0\r\n\r\n" + hidden)
        connection.shutdown(socket.SHUT_WR)
        data = everything(connection)
    assert (parsed(data).status, data.count(b"HTTP/1.1 ")) == (400, 1)
    assert parsed(data).headers["connection"] == "close"
    assert echo.events == []


@pytest.mark.parametrize(("coding", "status"), [("chunked", 411), ("Chunked", 411), ("gzip, chunked", 501), ("x", 501)])
def test_a_body_in_chunks_is_refused(server: Server, echo: Echo, coding: str, status: int) -> None:
    sent = request("POST", headers={"Transfer-Encoding": coding}) + b"0\r\n\r\n" + request("DELETE", "/hidden")
    found = asked(server, sent)
    assert (found.status, found.rest, echo.events) == (status, b"", [])


BAD_LINES = [
    b"GET",
    b"GET /v1",
    b"GET  /v1 HTTP/1.1",
    b"get /v1 HTTP/1.1",
    b"GET v1 HTTP/1.1",
    b"GET /v1 HTTP/1.1 x",
    b"GET /v1 http/1.1",
    b"GET /v1#part HTTP/1.1",
    b"GET /a b HTTP/1.1",
    b"GET /\xff HTTP/1.1",
    b"GET https://localhost/v1 HTTP/1.1",
    b"GET http://[ HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"CONNECT localhost:80 HTTP/1.1",
    b"\x16\x03\x01",
    b"",
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_is_no_request_is_a_400(server: Server, echo: Echo, line: bytes) -> None:
    assert asked(server, line + b"\r\nHost: localhost\r\n\r\n").status == 400
    assert echo.events == []


def test_another_version_of_http_is_a_505(server: Server) -> None:
    assert asked(server, b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n").status == 505


def test_a_request_without_host_is_a_400(server: Server) -> None:
    assert asked(server, b"GET / HTTP/1.1\r\n\r\n").status == 400


def test_a_body_is_too_large_before_a_byte_of_it_is_read(server: Server, echo: Echo) -> None:
    with connected(server) as connection:
        connection.sendall(request("POST", headers={"Content-Length": str(10 * 1024 * 1024 + 1)}))
        found = parsed(everything(connection))
    assert (found.status, json.loads(found.body)["type"]) == (413, "urn:worm:body-too-large")
    assert echo.events == []


def test_a_client_that_sends_too_much_all_the_same_can_read_the_answer() -> None:
    with serving(Echo(), HURRIED) as server, connected(server) as connection:
        connection.sendall(request("POST", body=b"x" * 500_000))
        assert parsed(everything(connection)).status == 413


def test_a_client_that_sends_before_it_reads_learns_that_it_is_too_much(server: Server) -> None:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    client.request("POST", "/v1/models", body=b"x" * (16 * 1024 * 1024))
    assert client.getresponse().status == 413
    client.close()


def test_headers_are_bounded(server: Server, echo: Echo) -> None:
    long = request(headers={"X": "a" * HEAD_BYTES_MAX})
    many = request(headers={f"X-{at}": "a" for at in range(HEADERS_MAX)})
    endless = b"GET / HTTP/1.1\r\nX: " + b"a" * (2 * HEAD_BYTES_MAX)
    target = request(target="/" + "a" * HEAD_BYTES_MAX)
    assert [asked(server, one).status for one in (long, many, endless, target)] == [431] * 4
    assert echo.events == []


def test_a_query_of_too_many_fields_is_a_400(server: Server, echo: Echo) -> None:
    assert asked(server, request(target="/v1?" + "a&" * 5000)).status == 400
    assert echo.events == []


@pytest.mark.parametrize(
    "sent", [b"GET / HTT", request("POST", headers={"Content-Length": "10"}) + b"12345"], ids=["head", "body"]
)
def test_a_request_that_does_not_arrive_is_given_up(sent: bytes) -> None:
    echo = Echo()
    with serving(echo, HURRIED) as server, connected(server) as connection:
        connection.sendall(sent)
        assert parsed(everything(connection)).status == 408
    assert echo.events == []


def test_a_trickle_of_bytes_does_not_stretch_the_time() -> None:
    """A byte now and then would keep a thread for ever if every byte began the time anew."""
    with serving(Echo(), HURRIED) as server, connected(server) as connection:
        connection.sendall(request("POST", headers={"Content-Length": "900"}))
        connection.settimeout(0.05)
        data = b""
        while not data:
            connection.sendall(b"x")
            try:
                data = connection.recv(1000)
            except TimeoutError:
                continue
        assert parsed(data).status == 408  # after the last of the 900 bytes it would be 200


def test_an_idle_connection_ends() -> None:
    with serving(Echo(), HURRIED) as server, connected(server) as connection:
        assert everything(connection) == b""


def test_beyond_the_limit_a_client_is_told_to_come_again() -> None:
    with serving(Echo(), connections_max=2) as server:
        waiting = [connected(server) for _ in range(2)]
        deadline = time.monotonic() + 30
        found = asked(server, b"")
        assert (found.status, found.headers["retry-after"]) == (503, "1")
        json.loads(found.body)
        for one in waiting:
            one.close()
        while asked(server, request()).status != 200:
            assert time.monotonic() < deadline


# --- defects and streams


def test_a_defect_is_a_500_without_its_traceback(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    echo.error = RuntimeError("a secret path /home/ann")
    with serving(echo) as server:
        found = asked(server, request())
        assert (found.status, b"secret" in found.body, b"Traceback" in found.body) == (500, False, False)
        assert "a secret path" in caplog.text
        echo.error = None
        assert asked(server, request()).status == 200


def test_an_answer_cannot_smuggle_a_header(echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    echo.given = HttpAnswer(200, {"Location": "/a\r\nSet-Cookie: a=1"})
    with serving(echo) as server:
        found = asked(server, request())
    assert (found.status, "set-cookie" in found.headers) == (500, False)


def test_a_stream_is_sent_piece_by_piece() -> None:
    gate = threading.Event()

    def pieces() -> Iterator[bytes]:
        yield b"first\n"
        gate.wait(30)
        yield b""
        yield b"second\n"

    with serving(Echo(HttpAnswer(body=pieces()))) as server:
        client = http.client.HTTPConnection(server.host, server.port, timeout=30)
        client.request("GET", "/v1")
        answer = client.getresponse()
        assert answer.getheader("transfer-encoding") == "chunked"
        assert answer.readline() == b"first\n"
        gate.set()
        assert answer.read() == b"second\n"
        client.close()


def test_a_stream_that_fails_is_seen_to_be_incomplete(caplog: pytest.LogCaptureFixture) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first\n"
        raise RuntimeError("the store is gone")

    with serving(Echo(HttpAnswer(body=pieces()))) as server:
        client = http.client.HTTPConnection(server.host, server.port, timeout=30)
        client.request("GET", "/v1")
        with pytest.raises(http.client.IncompleteRead):
            client.getresponse().read()


def test_closing_ends_streams_and_idle_connections() -> None:
    ended = threading.Event()

    def ticks() -> Iterator[bytes]:
        try:
            while True:
                time.sleep(0.01)
                yield b"tick\n"
        finally:
            ended.set()

    with serving(Echo(HttpAnswer(body=ticks()))) as server:
        idle = connected(server)
        streaming = connected(server)
        streaming.sendall(request())
        assert streaming.recv(10)
        server.close()
        assert ended.is_set()
        assert everything(idle) == b""


# --- where it listens


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "example.com", "::", ""])
def test_only_loopback_is_listened_on(host: str) -> None:
    with pytest.raises(Invalid, match="not a loopback address"):
        Server(Echo(), clock=SystemClock(), ids=Ids.system(), host=host)


def test_a_port_in_use_is_one_sentence(server: Server) -> None:
    with pytest.raises(Unavailable, match=f"port {server.port} of 127.0.0.1 is in use"):
        Server(Echo(), clock=SystemClock(), ids=Ids.system(), port=server.port)


# --- a thousand malformed requests


def _malformed(rng: random.Random) -> bytes:
    base = request(
        rng.choice(["GET", "POST", "PUT", "DELETE"]),
        rng.choice(["/v1", "/v1/models/Customer/documents?limit=1", "/../../etc/passwd", "/%00"]),
        {"Content-Type": "application/json"},
        b'{"name": "Acme"}',
    )
    data = bytearray(base)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                data[at:at] = rng.choice([b"\r\n", b"\n", b"\r\n\r\n", b"\x00", b"Content-Length: 3\r\n", b" ", b":"])
            case _:
                del data[at:]
        if not data:
            break
    return bytes(data)


def test_a_thousand_malformed_requests_do_no_harm(server: Server, echo: Echo, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(21)
    statuses: dict[Any, int] = {}
    for at in range(1000):
        sent = _malformed(rng)
        with connected(server) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            data = everything(connection)
        status = parsed(data).status if data else None
        statuses[status] = statuses.get(status, 0) + 1
        assert status is None or status < 500 or status in (501, 505), (at, sent, data)
        assert b"Traceback" not in data
    assert caplog.records == []
    assert statuses[400] > 100
    assert asked(server, request()).status == 200
