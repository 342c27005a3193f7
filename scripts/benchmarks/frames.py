"""How fast framed records are read and written, against orjson and zlib's CRC alone on the same bytes.

The floor of reading splits the lines, computes each CRC-32 and parses each body; it compares nothing and makes nothing.
The floor of writing dumps with sorted keys and computes the CRC. All work on the same records, in another order each
round; processor time is measured, so that a busy machine does not matter. Goals: at most 2 times the floor, and at
least 100 MB/s if the floor allows it.
"""

from __future__ import annotations

import argparse
import io
import random
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial

import orjson

from worm.formats.frames import decode, encode, encode_parsed
from worm.formats.strict_json import JsonObject
from worm.log.journal.records import Insert, Record

SIZES = {"250_bytes": 250, "1_kB": 1_000, "10_kB": 10_000}
CHUNK = 1024 * 1024
SUFFIX = 10
RATIO_MAX = 2.0


def records(size: int, total: int) -> list[JsonObject]:
    """Inserts of documents with a few fields and lines of about this size, together about `total` bytes."""
    found: list[JsonObject] = []
    for number in range(max(1, total // size)):
        name = f"c-{number:08d}"
        doc: JsonObject = {"_id": name, "name": f"Acme {number}", "score": number / 7, "tags": ["a", "b"]}
        doc["text"] = "The quick brown fox. " * ((size - 200) // 21)
        found.append(Record(number, 1_767_225_600_000 + number, Insert("customers", name, doc)).to_json())
    return found


def read_floor(body: bytes) -> int:
    crc32, loads, count = zlib.crc32, orjson.loads, 0
    for line in io.BytesIO(body):
        content = line[:-SUFFIX]
        crc32(content)
        loads(content)
        count += 1
    return count


def read_whole(body: bytes) -> int:
    count = 0
    for _ in decode(body, key="bench", first_lsn=0):
        count += 1
    return count


def read_stream(body: bytes) -> int:
    def chunks() -> Iterator[bytes]:
        for at in range(0, len(body), CHUNK):
            yield body[at : at + CHUNK]

    count = 0
    for _ in decode(chunks(), key="bench", first_lsn=0):
        count += 1
    return count


def write_floor(values: list[JsonObject]) -> int:
    crc32, dumps, size = zlib.crc32, orjson.dumps, 0
    for value in values:
        content = dumps(value, option=orjson.OPT_SORT_KEYS)
        crc32(content)
        size += len(content) + SUFFIX
    return size


def write(values: list[JsonObject]) -> int:
    return sum(len(encode(value)) for value in values)


def write_parsed(values: list[JsonObject]) -> int:
    return sum(len(encode_parsed(value)) for value in values)


def seconds(contestants: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Median processor seconds of each."""
    if len({call() for call in contestants.values()}) != 1:
        raise RuntimeError("contestants do not agree")
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name in random.Random(turn).sample(list(contestants), len(contestants)):
            start = time.process_time()
            contestants[name]()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def _told(size: int, times: dict[str, float]) -> dict[str, object]:
    floor = times["floor"]
    told: dict[str, object] = {f"{name}_mb_per_s": round(size / 1e6 / taken, 1) for name, taken in times.items()}
    ratios = {name: round(taken / floor, 2) for name, taken in times.items() if name != "floor"}
    return told | {"times_the_floor": ratios, "within_goal": {name: one <= RATIO_MAX for name, one in ratios.items()}}


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench frames")
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args(arguments)
    results: dict[str, object] = {}
    for name, size in SIZES.items():
        values = records(size, chosen.megabytes * 1_000_000)
        body = b"".join(map(encode, values))
        reading: dict[str, Callable[[], int]] = {
            "floor": partial(read_floor, body),
            "memory": partial(read_whole, body),
            "stream": partial(read_stream, body),
        }
        writing: dict[str, Callable[[], int]] = {
            "floor": partial(write_floor, values),
            "encode": partial(write, values),
            "encode_parsed": partial(write_parsed, values),
        }
        results[name] = {
            "line_bytes": round(len(body) / len(values)),
            "decode": _told(len(body), seconds(reading, chosen.rounds)),
            "encode": _told(len(body), seconds(writing, chosen.rounds)),
        }
    return results
