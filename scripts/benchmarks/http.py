"""HTTP reads from `worm serve`, against Datasette on the same rows and a bare Powertools handler.

Documents in a directory, the same rows in a SQLite file. One document by its id; a page of 100 rows, filtered by status
and sorted by name, of columns that the table has. The bare handler is behind the same server and has both answers in
memory. Each server is a process. They take turns, in another order each round: one read after the other on one
connection, then from four connections at once. Answers are compared before anything is timed.

`cold`: a process that imports functions/api/handler.py, and one that answers a first GET from moto, compared with one
that does nothing. Goal: 400 ms for either. `requests`: the requests of a call, against the verb of the SDK. Goal: the
same.

Datasette comes from .venv-clients (`scripts/setup --clients`); without it, only the bare handler is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import worm
from scripts.benchmarks import _customers as customers
from scripts.benchmarks._bars import bars, save_charts
from scripts.benchmarks._http_servers import CLIENTS, ROOT, Connection, bare, datasette, worm_serve
from scripts.benchmarks._turns import embedded_s3
from scripts.benchmarks.coldstart import process_cost
from worm.api.app import Api
from worm.sdk.database import Worm
from worm.store.base import metered

ROWS, PAGE, CONNECTIONS = 1000, 100, 4
COLD_MS_MAX = 400
TOKEN = "of-this-bench"
DOCUMENTS = f"/v1/models/{customers.MODEL}/documents"
COLUMNS = ["name", "email", "status", "city", "amount", "score"]
WARM = 20
BUCKET = "documents"
FIRST_CALL = """
import json, sys, types
import handler
event = json.loads(sys.argv[1])
found = handler.lambda_handler(event, types.SimpleNamespace(
    function_name="api", memory_limit_in_mb=512, invoked_function_arn="arn:aws:lambda:x", aws_request_id="r"))
assert found["statusCode"] == 200, found
"""


class Contestant:
    """A server, and its paths."""

    def __init__(self, port: int, targets: Mapping[str, Callable[[int], str]], token: str = "") -> None:
        self._port, self._token, self._targets = port, token, targets
        self._connections = [Connection(port, token) for _ in range(CONNECTIONS)]

    def answer(self, kind: str, number: int = 0) -> Any:
        return self._connections[0].json(self._targets[kind](number))

    def latencies(self, kind: str, numbers: list[int]) -> list[float]:
        """Milliseconds of each, on one connection."""
        target, connection, taken = self._targets[kind], self._connections[0], list[float]()
        for number in numbers:
            asked = target(number)
            start = time.perf_counter()
            connection.get(asked)
            taken.append((time.perf_counter() - start) * 1000)
        return taken

    def rate(self, kind: str, numbers: list[int]) -> float:
        """Reads per second, from all connections at once."""
        target = self._targets[kind]

        def work(at: int) -> None:
            for number in numbers[at::CONNECTIONS]:
                self._connections[at].get(target(number))

        start = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(work, range(CONNECTIONS)))
        return len(numbers) / (time.perf_counter() - start)

    def close(self) -> None:
        for one in self._connections:
            one.close()


# Contestants


def _worm_targets() -> dict[str, Callable[[int], str]]:
    page = {"filter": "status=active", "sort": "name", "limit": PAGE, "select": ",".join(COLUMNS)}
    return {
        "one": lambda number: f"{DOCUMENTS}/{customers.customer_id(number)}",
        "page": lambda number: f"{DOCUMENTS}?{urlencode(page)}",
    }


def _datasette_targets() -> dict[str, Callable[[int], str]]:
    asked: list[tuple[str, str | int]] = [("status", "active"), ("_sort", "name"), ("_size", PAGE)]
    asked += [("_shape", "array"), ("_nocount", 1), ("_nofacet", 1), *(("_col", one) for one in COLUMNS)]
    return {
        "one": lambda number: f"/rows/customers/{customers.customer_id(number)}.json?_shape=array",
        "page": lambda number: f"/rows/customers.json?{urlencode(asked)}",
    }


def seed(directory: Path, database: Path) -> None:
    documents = [customers.document(number) for number in range(ROWS)]
    with worm.connect(str(directory), schema=customers.schema()) as db:
        db.push()
        db.model(customers.MODEL).insert_many(documents)
        db.flush()
    names = list(documents[0])
    with sqlite3.connect(database) as rows:
        columns = ", ".join(f"{name} {'PRIMARY KEY' if name == 'id' else ''}" for name in names)
        rows.execute(f"CREATE TABLE customers ({columns})")
        rows.execute("CREATE INDEX by_status ON customers (status, name)")
        marks = ", ".join("?" * len(names))
        rows.executemany(
            f"INSERT INTO customers VALUES ({marks})", [[one[name] for name in names] for one in documents]
        )
    rows.close()


@contextmanager
def contestants(scratch: Path) -> Iterator[dict[str, Contestant]]:
    directory, database, bodies = scratch / "documents", scratch / "rows.db", scratch / "bodies.json"
    seed(directory, database)
    with ExitStack() as stack:
        ours = Contestant(stack.enter_context(worm_serve(str(directory), TOKEN)), _worm_targets(), TOKEN)
        bodies.write_text(json.dumps({"one": ours.answer("one"), "page": ours.answer("page")}))
        found = {"worm serve": ours, "bare": Contestant(stack.enter_context(bare(bodies)), _worm_targets())}
        if (CLIENTS / "datasette").exists():
            found["datasette"] = Contestant(stack.enter_context(datasette(database)), _datasette_targets())
        check(found)
        yield found
        for one in found.values():
            one.close()


def check(found: Mapping[str, Contestant]) -> None:
    """All give the same rows."""
    ours = found["worm serve"]
    one, page = ours.answer("one", 7)["document"], ours.answer("page")["items"]
    rows = [{name: item["document"][name] for name in COLUMNS} for item in page]
    if len(rows) != PAGE or one["id"] != customers.customer_id(7):
        raise RuntimeError("worm serve gives a different answer")
    if found["bare"].answer("page")["items"] != page:
        raise RuntimeError("the bare handler gives a different answer")
    if "datasette" in found:
        theirs = found["datasette"]
        same = {**one, **cast("dict[str, object]", theirs.answer("one", 7)[0])}
        given = [{name: row[name] for name in COLUMNS} for row in theirs.answer("page")]
        if given != rows or same["email"] != one["email"]:
            raise RuntimeError("Datasette gives a different answer")


# Measurements


def percentile(taken: list[float], share: float) -> float:
    return sorted(taken)[min(len(taken) - 1, int(len(taken) * share))]


def loaded(found: Mapping[str, Contestant], kind: str, rounds: int, calls: int) -> dict[str, object]:
    """In turns; all serve the same documents."""
    taken: dict[str, list[float]] = {name: [] for name in found}
    rates: dict[str, list[float]] = {name: [] for name in found}
    for one in found.values():
        one.latencies(kind, list(range(WARM)))
    for turn in range(rounds):
        rng = random.Random(f"{kind}{turn}")
        numbers = [rng.randrange(ROWS) for _ in range(calls)]
        for name in rng.sample(list(found), len(found)):
            taken[name] += found[name].latencies(kind, numbers)
            rates[name].append(found[name].rate(kind, numbers))
    figures: dict[str, dict[str, float]] = {
        name: {
            "p50_ms": round(statistics.median(values), 3),
            "p99_ms": round(percentile(values, 0.99), 3),
            "reads_per_second": round(statistics.median(rates[name])),
        }
        for name, values in taken.items()
    }
    ours, ratios = figures["worm serve"], dict[str, float]()
    for name in (one for one in figures if one != "worm serve"):
        for figure, value in figures[name].items():
            ratios[f"{figure}: worm serve / {name}"] = round(ours[figure] / value, 2)
    return {**figures, "ratio": ratios}


def cold_starts(repeats: int) -> dict[str, object]:
    """Wall and processor time over an interpreter that does nothing, in turns."""
    folder = str(ROOT / "functions" / "api")
    identity = {"iam": {"userArn": "arn:aws:iam::123456789012:user/ann"}}
    path = f"{DOCUMENTS}/{customers.customer_id(1)}"
    event = {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": "",
        "headers": {},
        "requestContext": {"http": {"method": "GET", "path": path}, "authorizer": identity, "stage": "$default"},
        "isBase64Encoded": False,
    }
    begin = f"import sys; sys.path.insert(0, {folder!r})\n"
    commands = {
        "empty": ("-c", "pass"),
        "import": ("-c", begin + "import handler"),
        "first answer": ("-c", begin + FIRST_CALL, json.dumps(event)),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    with embedded_s3(BUCKET) as aws:
        with worm.connect(f"s3://{BUCKET}", schema=customers.schema(), endpoint_url=aws.endpoint_url) as db:
            db.push()
            db.model(customers.MODEL).insert(customers.document(1))
        with _variables({"AWS_ENDPOINT_URL": aws.endpoint_url, "WORM_BUCKET": BUCKET, "POWERTOOLS_DEV": "false"}):
            for turn in range(repeats + 1):
                for name, command in commands.items():
                    cost = process_cost(sys.executable, *command)
                    if turn > 0:  # the first turn compiles modules that were never imported
                        taken[name].append(cost)
    medians = {name: [statistics.median(one) for one in zip(*costs, strict=True)] for name, costs in taken.items()}
    over = {
        name: [round(one - least, 1) for one, least in zip(found, medians["empty"], strict=True)]
        for name, found in medians.items()
    }
    return {
        "wall_and_cpu_ms": {name: [round(one, 1) for one in found] for name, found in medians.items()},
        "wall_and_cpu_ms_over_empty": {name: one for name, one in over.items() if name != "empty"},
        "goals": {
            f"{name}: at most {COLD_MS_MAX} ms over an empty interpreter": over[name][0] <= COLD_MS_MAX
            for name in ("import", "first answer")
        },
    }


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def requests_per_call() -> dict[str, object]:
    """The store requests of each call and of its verb, each on its own store."""
    ours, theirs = _in_memory("http"), _in_memory("sdk")
    api, model = Api(lambda: ours), theirs.model(customers.MODEL)
    merge, at = "application/merge-patch+json", f"{DOCUMENTS}/{customers.customer_id(1)}"
    one, other = customers.document(1), customers.document(2)
    entity_id = customers.customer_id(1)
    chosen: dict[str, Any] = {"sort": "name", "limit": PAGE, "select": COLUMNS}
    page = _worm_targets()["page"](0).partition("?")[2]
    calls: dict[str, tuple[Callable[[], int], Callable[[], object]]] = {
        "insert": (lambda: _called(api, "POST", DOCUMENTS, one), lambda: model.insert(one)),
        "insert of another": (lambda: _called(api, "POST", DOCUMENTS, other), lambda: model.insert(other)),
        "get": (lambda: _called(api, "GET", at), lambda: model.get(entity_id)),
        "page": (
            lambda: _called(api, "GET", DOCUMENTS, query=page),
            lambda: model.find_all({"status": "active"}, **chosen),
        ),
        "count": (lambda: _called(api, "GET", f"/v1/models/{customers.MODEL}/count"), model.count),
        "history": (lambda: _called(api, "GET", f"{at}/history"), lambda: model.get_history(entity_id, limit=100)),
        "patch": (
            lambda: _called(api, "PATCH", at, {"score": 5}, merge),
            lambda: model.patch(entity_id, {"score": 5}),
        ),
        "delete": (lambda: _called(api, "DELETE", at), lambda: model.delete(entity_id)),
    }
    found: dict[str, dict[str, int]] = {}
    for name, (call, verb) in calls.items():
        with metered() as meter:
            verb()
        found[name] = {"http": call(), "sdk": meter.total}
    is_same = all(one["http"] == one["sdk"] for one in found.values())
    return {**found, "goals": {"as many requests as the SDK": is_same}}


def _in_memory(name: str) -> Worm:
    db = worm.connect(f"memory://bench-{name}", schema=customers.schema(), maintenance="inline", probe=False)
    db.push()
    return db


def _called(
    api: Api, method: str, path: str, body: object = None, kind: str = "application/json", query: str = ""
) -> int:
    answer = api.handle(
        {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {"content-type": kind} if body is not None else {},
            "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
            "body": None if body is None else json.dumps(body),
            "isBase64Encoded": False,
        }
    )
    if answer["statusCode"] >= 300:
        raise RuntimeError(f"{method} {path}: {answer}")
    return int(answer["headers"]["Worm-Requests"])


def charts(measured: Mapping[str, Any]) -> dict[str, str]:
    """Pictures of the results: the latency of a read, and reads per second."""
    kinds = {"one": "one document", "page": f"a page of {PAGE} rows"}
    figures = {
        f"{about}: {name}": value
        for kind, about in kinds.items()
        for name, value in measured[kind].items()
        if name != "ratio"
    }
    latency = {row: {"p50": one["p50_ms"], "p99": one["p99_ms"]} for row, one in figures.items()}
    rates = {row: {"reads per second": one["reads_per_second"]} for row, one in figures.items()}
    return {
        "http-latency": bars("Milliseconds of a read by HTTP, one connection", latency),
        "http-rates": bars(f"Reads per second by HTTP, {CONNECTIONS} connections", rates),
    }


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench http")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    parser.add_argument("--chart", type=Path, metavar="FOLDER", help="draw the figures into it (docs/img)")
    asked = parser.parse_args(arguments)
    rounds = 3 if asked.quick else 15
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch, contestants(Path(scratch)) as found:
        measured: dict[str, object] = {
            "one": loaded(found, "one", rounds, 200),
            "page": loaded(found, "page", rounds, 60),
        }
    measured["cold"] = cold_starts(5 if asked.quick else 15)
    measured["requests"] = requests_per_call()
    save_charts(asked.chart, charts(measured))
    return measured
