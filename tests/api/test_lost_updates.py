"""Two clients of one process change one document: no change gets lost, and only what a caller says is a condition.

A warm process has one session, which remembers the documents that it read. If that were a condition of a write, or if
`If-Match` were none, one of two clients would overwrite what the other one has written.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.api.client import Reply, memory_session
from tests.api.shop import SCHEMA
from worm.api.local import LocalApi
from worm.clock import SystemClock

TOKEN = "of-this-test"
CLIENTS, SAVES, ATTEMPTS_MAX = 2, 15, 1000
PATHS = ["/v1/models/Draft/documents/counter", "/v1/models/Note/documents/counter"]
PATHS_IN_A_SPACE = ["/v1/models/Account/documents/counter"]
MERGE, OPERATORS = "application/merge-patch+json", "application/vnd.worm.update+json"


class HttpClient:
    """A connection of its own."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = self._connection.getresponse()
        return Reply(answer.status, dict(answer.getheaders()), answer.read())


@pytest.fixture(scope="module")
def local() -> Iterator[LocalApi]:
    with LocalApi(memory_session(SCHEMA, clock=SystemClock()), token=TOKEN) as one:
        yield one


@pytest.fixture
def client(local: LocalApi) -> HttpClient:
    return HttpClient(local.port)


def counter(client: HttpClient, path: str) -> Reply:
    """The document, with a count of 0."""
    client.call("DELETE", path)
    made = client.call("PUT", path, count(0), If_None_Match="*")
    assert made.status == 201, made.body
    return made


def count(number: int) -> dict[str, int]:
    return {"stars": number, "balance": number}  # the models call it differently


def _replaced(client: HttpClient, path: str, read: Reply) -> Reply:
    return client.call("PUT", path, count(read.json["document"]["stars"] + 1), If_Match=read.etag)


def _merged(client: HttpClient, path: str, read: Reply) -> Reply:
    after = count(read.json["document"]["stars"] + 1)
    return client.call("PATCH", path, after, If_Match=read.etag, Content_Type=MERGE)


@pytest.mark.parametrize("write", [_replaced, _merged])
@pytest.mark.parametrize("path", PATHS + PATHS_IN_A_SPACE)
def test_of_two_clients_that_read_and_write_none_loses_a_change(
    local: LocalApi, client: HttpClient, path: str, write: Callable[[HttpClient, str, Reply], Reply]
) -> None:
    counter(client, path)
    start = Barrier(CLIENTS)

    def work(_: int) -> list[int]:
        mine, statuses = HttpClient(local.port), list[int]()
        start.wait()
        while statuses.count(200) < SAVES and len(statuses) < ATTEMPTS_MAX:
            statuses.append(write(mine, path, mine.call("GET", path)).status)
        return statuses

    with ThreadPoolExecutor(CLIENTS) as pool:
        statuses = [one for several in pool.map(work, range(CLIENTS)) for one in several]
    assert set(statuses) <= {200, 412}
    assert 412 in statuses, "the clients never met"
    assert client.call("GET", path).json["document"]["stars"] == statuses.count(200) == CLIENTS * SAVES


@pytest.mark.parametrize("path", PATHS + PATHS_IN_A_SPACE)
def test_increments_without_a_condition_are_all_counted(local: LocalApi, client: HttpClient, path: str) -> None:
    counter(client, path)

    def work(_: int) -> list[int]:
        mine = HttpClient(local.port)
        change = {"$inc": count(1)}
        return [mine.call("PATCH", path, change, Content_Type=OPERATORS).status for _ in range(SAVES)]

    with ThreadPoolExecutor(CLIENTS) as pool:
        statuses = [one for several in pool.map(work, range(CLIENTS)) for one in several]
    assert set(statuses) <= {200, 409, 503}
    assert client.call("GET", path).json["document"]["stars"] == statuses.count(200) > 0


@pytest.mark.parametrize("path", PATHS + PATHS_IN_A_SPACE)
def test_what_the_process_remembers_is_no_condition(local: LocalApi, client: HttpClient, path: str) -> None:
    """The process has read both versions by then, and knows the second one."""
    other = HttpClient(local.port)
    first = counter(client, path)
    read = client.call("GET", path)
    assert read.etag == first.etag
    second = other.call("PUT", path, count(2), If_Match=read.etag)
    assert second.status == 200
    assert other.call("GET", path).etag == second.etag
    for refused in (
        client.call("PUT", path, count(9), If_Match=read.etag),
        client.call("PATCH", path, count(9), If_Match=read.etag, Content_Type=MERGE),
        client.call("DELETE", path, If_Match=read.etag),
    ):
        assert (refused.status, refused.slug) == (412, "precondition-failed")
    assert client.call("PUT", path, count(9)).status == 428, "no condition is none, whoever has read it before"
    assert client.call("GET", path).json["document"]["stars"] == 2


@pytest.mark.parametrize("path", PATHS + PATHS_IN_A_SPACE)
def test_a_change_without_a_condition_applies_to_what_is_there(local: LocalApi, client: HttpClient, path: str) -> None:
    """A document that somebody has read through this process does not make the write of another one a conflict."""
    counter(client, path)
    client.call("GET", path)
    assert HttpClient(local.port).call("PATCH", path, {"stars": 5}, Content_Type=MERGE).status == 200
    assert client.call("PATCH", path, {"balance": 6}, Content_Type=MERGE).status == 200
    document = client.call("GET", path).json["document"]
    assert (document["stars"], document["balance"]) == (5, 6)


@pytest.mark.parametrize("path", PATHS + PATHS_IN_A_SPACE)
def test_of_two_who_create_one_does(local: LocalApi, client: HttpClient, path: str) -> None:
    start = Barrier(CLIENTS)

    def work(number: int) -> int:
        mine = HttpClient(local.port)
        start.wait()
        return mine.call("PUT", path, count(number), If_None_Match="*").status

    for _ in range(5):
        client.call("DELETE", path)
        with ThreadPoolExecutor(CLIENTS) as pool:
            assert sorted(pool.map(work, range(CLIENTS))) == [201, 412]
    client.call("GET", path)
    assert client.call("PUT", path, count(9), If_None_Match="*").status == 412
    assert client.call("GET", path).json["document"]["stars"] < CLIENTS
