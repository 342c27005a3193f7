"""Reads of documents by id on S3, against raw obstore GETs of the same objects.

The embedded moto. `find_by_id` against one GET and `exists` against one HEAD, call by call in turns; `find_many` of 200
ids against obstore's GETs in as many threads. With the requests of each. Goal: `find_by_id` at most 1.15 times a GET.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from obstore.store import S3Store as RawStore

import worm
from scripts.benchmarks._turns import embedded_s3, medians, rounded, spent
from scripts.benchmarks.save import BUCKET, opened, thing
from worm.sdk.database import Worm

IDS = [str(thing(number)["id"]) for number in range(200)]
KEYS = {one: f"ours/things/{one}/data.json" for one in IDS}
THREADS = 16
FIND_MAX = 1.15


def in_turns(calls: Mapping[str, Callable[[str], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of one call, for calls of a millisecond: all read each id, in another order."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for one in IDS:
            for name in random.Random(f"{turn}{one}").sample(list(calls), len(calls)):
                start = time.perf_counter()
                calls[name](one)
                taken[name].append((time.perf_counter() - start) * 1000)
    return {name: statistics.median(values) for name, values in taken.items()}


def measured(db: Worm, raw: RawStore, rounds: int) -> dict[str, object]:
    things, requests = db.model("Thing"), db.store.requests

    def read(one: str) -> object:
        return json.loads(raw.get(KEYS[one]).bytes().to_bytes())

    def read_many() -> object:
        with ThreadPoolExecutor(THREADS) as pool:
            return len(list(pool.map(read, IDS)))

    single: dict[str, Callable[[str], object]] = {
        "find_by_id": things.find_by_id,
        "get": read,
        "exists": things.exists,
        "head": lambda one: raw.head(KEYS[one]),
    }
    taken = in_turns(single, rounds)
    many = medians({"find_many": lambda: things.find_many(IDS), "get in threads": read_many}, 5 * rounds)
    ratio = taken["find_by_id"] / taken["get"]
    return {
        "milliseconds": rounded(taken | many),
        "find_by_id / get": round(ratio, 2),
        "exists / head": round(taken["exists"] / taken["head"], 2),
        "find_many / get in threads": round(many["find_many"] / many["get in threads"], 2),
        "requests": {
            "find_by_id": spent(requests, lambda: things.find_by_id(IDS[0])),
            "exists": spent(requests, lambda: things.exists(IDS[0])),
            f"find_many of {len(IDS)}": spent(requests, lambda: things.find_many(IDS)),
        },
        "goals": {f"find_by_id: at most {FIND_MAX} x get": ratio <= FIND_MAX},
    }


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench reads")
    parser.add_argument("--quick", action="store_true", help="a fifth of the rounds")
    rounds = 2 if parser.parse_args(arguments).quick else 10
    with embedded_s3(BUCKET) as aws:
        raw = RawStore(BUCKET, endpoint=aws.endpoint_url, region=aws.region, client_options={"allow_http": True})
        with opened(f"s3://{BUCKET}/ours", aws.endpoint_url) as db:
            db.model("Thing").save_many([thing(number) for number in range(len(IDS))])
        with worm.connect(f"s3://{BUCKET}/ours", endpoint_url=aws.endpoint_url) as db:
            return measured(db, raw, rounds)
