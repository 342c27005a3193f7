"""Saving one document after the other: in a directory against SQLite, on S3 against two raw PUTs.

- `directory`: a save with oplog, manifest and one index, in a loop; the peer is SQLite (WAL, synchronous=FULL) with the
  same document, a log row and an index row in one transaction each. Blocks of saves take turns. Everything is folded
  within the time. `last / first` compares the last tenth of the loop with its first.
- `peers`: TinyDB and sqlite-utils if they are installed; each saves the same number of documents into an empty
  directory.
- `growth`: a longer loop in a directory, its last saves against as many of its first.
- `s3`: the same on the embedded moto, against obstore's PUT of a document and a PUT of an entry; with the requests per
  save, folds included. `deltalake` is an append of one row.
- `threads`: 16 threads that save, against 16 threads with these two PUTs.
- `bulk`: `insert_many` of new documents. In a directory against SQLite with the same rows in one transaction; on moto
  against obstore's PUTs of both objects from as many threads as the store has. Everything is folded within the time.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from obstore.store import S3Store as RawStore

import worm
from scripts.benchmarks._bars import bars, save_charts
from scripts.benchmarks._save_peers import Put, deltalake_put, sqlite_utils_put, tinydb_put
from scripts.benchmarks._turns import embedded_s3
from worm.dev.aws import Aws
from worm.sdk.database import Worm
from worm.store.parallel import in_parallel

BUCKET = "saving"
SCHEMA = {
    "version": "1.0",
    "models": {
        "Thing": {
            "path": "@things/(id:string)",
            "oplog": True,
            "fields": {"name": {"type": "string"}, "count": {"type": "number"}},
            "manifest": {"enabled": True},
            "indexes": {"byName": {"field": "name"}},
        }
    },
}
THREADS = 16
Save = Callable[[int], object]


def thing(number: int) -> dict[str, object]:
    return {"id": f"t{number:06d}", "name": f"name {number % 50}", "count": number, "about": "x" * 100}


def seconds(save: Save, first: int, count: int) -> float:
    start = time.perf_counter()
    for number in range(first, first + count):
        save(number)
    return time.perf_counter() - start


def sqlite_saver(path: Path) -> Save:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    connection.execute("create table documents (id text primary key, body text)")
    connection.execute("create table log (id text, seq integer, body text, primary key (id, seq))")
    connection.execute("create table names (name text, id text, primary key (name, id))")

    def save(number: int) -> None:
        document = thing(number)
        body = json.dumps(document)
        connection.execute("begin immediate")
        connection.execute("insert into documents values (?, ?)", (document["id"], body))
        connection.execute("insert into log values (?, 1, ?)", (document["id"], body))
        connection.execute("insert into names values (?, ?)", (document["name"], document["id"]))
        connection.execute("commit")

    return save


def opened(url: str, endpoint_url: str | None = None) -> Worm:
    db = worm.connect(url, schema=SCHEMA, endpoint_url=endpoint_url)
    db.push()
    db.model("Thing").insert(thing(999_999))
    db.flush()
    return db


def directory(count: int) -> dict[str, object]:
    """Ten blocks each, taking turns."""
    block = count // 10
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch, opened(f"{scratch}/data") as db:
        things, peer = db.model("Thing"), sqlite_saver(Path(scratch, "peer.db"))
        ours: list[float] = []
        theirs: list[float] = []
        for at in range(10):
            theirs.append(seconds(peer, at * block, block))
            start = time.perf_counter()
            seconds(lambda number: things.insert(thing(number)), at * block, block)
            db.flush()
            ours.append(time.perf_counter() - start)
    return {
        "saves": count,
        "save_ms": round(1000 * sum(ours) / count, 3),
        "sqlite_ms": round(1000 * sum(theirs) / count, 3),
        "save / sqlite": round(statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True)), 2),
        "last / first": round(ours[-1] / ours[0], 2),
    }


def saver(put: Put) -> Save:
    return lambda number: put(thing(number))


def peers(count: int) -> dict[str, object]:
    """Blocks that take turns, ours among them; milliseconds of a save, and ours as a multiple of each."""
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch, opened(f"{scratch}/data") as db:
        things = db.model("Thing")
        found = {"tinydb": tinydb_put(Path(scratch)), "sqlite_utils": sqlite_utils_put(Path(scratch))}
        savers: dict[str, Save] = {"ours": lambda number: things.insert(thing(number))}
        savers |= {name: saver(put) for name, put in found.items() if put is not None}
        block = count // 5
        taken: dict[str, list[float]] = {name: [] for name in savers}
        for at in range(5):
            for name, save in savers.items():
                start = time.perf_counter()
                seconds(save, at * block, block)
                if name == "ours":
                    db.flush()
                taken[name].append((time.perf_counter() - start) * 1000 / block)
    mean = {name: round(statistics.mean(values), 3) for name, values in taken.items()}
    ratios = {f"save / {name}": round(mean["ours"] / mean[name], 2) for name in mean if name != "ours"}
    return {"saves": count, **{f"{name}_ms": value for name, value in mean.items()}, **ratios}


def growth(count: int) -> dict[str, object]:
    """The last saves of a loop compared with as many of its first, including their folds."""
    block = count // 20
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch, opened(f"{scratch}/data") as db:
        things = db.model("Thing")
        taken: list[float] = []
        for at in range(20):
            start = time.perf_counter()
            seconds(lambda number: things.insert(thing(number)), at * block, block)
            db.flush()
            taken.append(1000 * (time.perf_counter() - start) / block)
    told = [round(one, 3) for one in taken]
    return {"saves": count, "block": block, "last / first": round(taken[-1] / taken[0], 2), "block_ms": told}


def floor_of(aws: Aws, prefix: str) -> Save:
    """Two raw PUTs: a document and an entry."""
    raw = RawStore(BUCKET, endpoint=aws.endpoint_url, region=aws.region, client_options={"allow_http": True})

    def floor(number: int) -> None:
        body = json.dumps(thing(number)).encode()
        raw.put(f"{prefix}/things/{number}/data.json", body, mode="create")
        raw.put(f"{prefix}/.oplog/things/{number}/0001.json", body, mode="create")

    return floor


def s3(aws: Aws, count: int) -> dict[str, object]:
    floor = floor_of(aws, "floor")
    with opened(f"s3://{BUCKET}/ours", aws.endpoint_url) as db:
        things, block = db.model("Thing"), count // 5
        ratios: list[float] = []
        with db.store.requests.measure() as spent:
            for at in range(5):
                below = seconds(floor, at * block, block)
                ratios.append(seconds(lambda number: things.insert(thing(number)), at * block, block) / below)
            db.flush()
    append, some = deltalake_put(f"s3://{BUCKET}/delta", aws.endpoint_url), max(10, count // 20)
    append(thing(999_999))
    theirs, below = seconds(lambda number: append(thing(number)), 0, some), seconds(floor, count, some)
    return {
        "saves": count,
        "save / two raw PUTs": round(statistics.median(ratios), 2),
        "deltalake append / two raw PUTs": round(theirs / below, 2),
        "requests_per_save": {name: round(number / count, 2) for name, number in spent.items()},
    }


def sqlite_bulk(path: Path, count: int) -> float:
    sqlite_saver(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma synchronous=full")
    start = time.perf_counter()
    rows = [(one["id"], json.dumps(one), one["name"]) for one in map(thing, range(count))]
    connection.execute("begin immediate")
    connection.executemany("insert into documents values (?, ?)", [row[:2] for row in rows])
    connection.executemany("insert into log values (?, 1, ?)", [row[:2] for row in rows])
    connection.executemany("insert into names values (?, ?)", [(row[2], row[0]) for row in rows])
    connection.execute("commit")
    return time.perf_counter() - start


def seconds_of_bulk(db: Worm, count: int) -> float:
    documents = [thing(number) for number in range(count)]
    start = time.perf_counter()
    results = db.model("Thing").insert_many(documents)
    db.flush()
    taken = time.perf_counter() - start
    assert all(result.ok for result in results)
    return taken


def bulk(count: int, count_s3: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch, opened(f"{scratch}/data") as db:
        sqlite, ours = sqlite_bulk(Path(scratch, "peer.db"), count), seconds_of_bulk(db, count)
    with embedded_s3(BUCKET) as aws:
        raw = RawStore(BUCKET, endpoint=aws.endpoint_url, region=aws.region, client_options={"allow_http": True})
        bodies = [json.dumps(thing(number)).encode() for number in range(count_s3)]
        puts = [(f"floor/things/{number}/data.json", body) for number, body in enumerate(bodies)]
        puts += [(f"floor/.oplog/things/{number}/0001.json", body) for number, body in enumerate(bodies)]
        start = time.perf_counter()
        in_parallel(lambda put: raw.put(*put, mode="create"), puts)
        floor = time.perf_counter() - start
        with opened(f"s3://{BUCKET}/ours", aws.endpoint_url) as db, db.store.requests.measure() as spent:
            far = seconds_of_bulk(db, count_s3)
    return {
        "documents": {"directory": count, "s3": count_s3},
        "directory_ms_each": round(1000 * ours / count, 3),
        "directory / sqlite bulk": round(ours / sqlite, 1),
        "s3_ms_each": round(1000 * far / count_s3, 3),
        "s3 / concurrent raw PUTs": round(far / floor, 2),
        "requests_each": {name: round(number / count_s3, 3) for name, number in spent.items()},
    }


def threads(aws: Aws, count: int) -> dict[str, object]:
    """Rounds that take turns; each ends with a flush, which is part of the measured time."""
    floor, block = floor_of(aws, "floor-of-threads"), count // 5
    ratios: list[float] = []
    with opened(f"s3://{BUCKET}/threads", aws.endpoint_url) as db, ThreadPoolExecutor(THREADS) as pool:
        things = db.model("Thing")

        def together(save: Save, numbers: range) -> float:
            start = time.perf_counter()
            list(pool.map(save, numbers))
            return time.perf_counter() - start

        for at in range(5):
            numbers = range(at * block, (at + 1) * block)
            below, start = together(floor, numbers), time.perf_counter()
            together(lambda number: things.insert(thing(number)), numbers)
            db.flush()
            ratios.append((time.perf_counter() - start) / below)
    return {"threads": THREADS, "saves": count, "save / two raw PUTs": round(statistics.median(ratios), 2)}


def charts(found: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Pictures of the results: ratios to others, and how a save changes with the number of earlier saves."""
    ratios = {
        f"{part}: {name}": {"times": float(str(value))}
        for part, figures in found.items()
        for name, value in figures.items()
        if " / " in name
    }
    blocks = found["growth"]["block_ms"]
    assert isinstance(blocks, list)
    block = int(str(found["growth"]["block"]))
    grown = {f"{at * block:,} to {(at + 1) * block:,}": {"ms": float(value)} for at, value in enumerate(blocks)}
    return {
        "save-ratios": bars("Saving one document after the other: times the other", ratios),
        "save-growth": bars("Milliseconds of a save in a directory, by the number of those before", grown),
    }


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench save")
    parser.add_argument("--quick", action="store_true", help="a tenth of the saves")
    parser.add_argument("--chart", type=Path, metavar="FOLDER", help="draw the figures into it (docs/img)")
    asked = parser.parse_args(arguments)
    share = 10 if asked.quick else 1
    found: dict[str, dict[str, object]] = {
        "directory": directory(10_000 // share),
        "peers": peers(1_000 // share),
        "growth": growth(20_000 // share),
    }
    with embedded_s3(BUCKET) as aws:
        found["s3"] = s3(aws, 250 if asked.quick else 1_000)
        found["threads"] = threads(aws, 320 if asked.quick else 1_600)
    found["bulk"] = bulk(1_000, 500) if asked.quick else bulk(10_000, 10_000)
    save_charts(asked.chart, charts(found))
    return {**found}
