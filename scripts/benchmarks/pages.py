"""What reading and keeping pages costs: point reads and scans, cold and warm, against SlateDB and one ranged GET.

Everything runs against one embedded moto. `points` and `scans`: by the number of pages, with everything in an image
(for SlateDB: in one file). `layers`: 10,000 pages with more and more flushed layers above the image, which no
compaction touches. Cold: only the root (for SlateDB: the manifest) is known. The server counts SlateDB's requests, and
a proxy its bytes; our store counts ours.

`amplification`: bytes PUT per byte of pages while pages are flushed and compacted, from the sizes of all object
versions in the bucket. `lifecycle`: hours in simulated time (`_lifecycle.py`), drawn with `--chart FILE`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import obstore
from obstore.store import S3Store as RawBucket

from scripts.benchmarks._amplification import amplification
from scripts.benchmarks._chart import steps_chart
from scripts.benchmarks._lifecycle import Lifecycle, lifecycle
from scripts.benchmarks._pages import (
    BUCKET,
    PAGE_BYTES,
    Keeper,
    OurPages,
    SlatePages,
    Wire,
    page_name,
    some_pages,
)
from scripts.benchmarks._turns import embedded_s3, rounded
from worm.dev.aws import Aws
from worm.log.keys import DbKeys
from worm.pages.cache import BlockCache
from worm.pages.layers import LayerReader

COUNTS = (1_000, 10_000, 100_000)
LAYERS = (1, 4, 16, 64)
LAYER_PAGES = 100
SAMPLES_OF_LAYERS = 15
PARTS = ("reads", "layers", "amplification", "lifecycle")
COLD_REQUESTS_MAX = 2.0
WARM_READS = 500
WITHOUT_COMPACTOR = {"compactor_options": "null", "l0_max_ssts": "1000", "l0_max_ssts_per_key": "1000"}
Figures = dict[str, object]
Goals = dict[str, bool]


def served(aws: Aws) -> int:
    """Requests that the server has answered so far."""
    return sum(sum(kinds.values()) for kinds in aws.requests_by_role().values())


class Floor:
    """One ranged GET of the block in which our page is, by obstore alone."""

    def __init__(self, aws: Aws, ours: OurPages) -> None:
        self._bucket = RawBucket(
            BUCKET,
            endpoint=aws.endpoint_url,
            region=aws.region,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        self._reader = LayerReader(ours.store, DbKeys(ours.db_id), BlockCache(1 << 26))
        self._images = [layer for layer in ours.reader.pages.branch("main").layers if layer.is_image]
        self._directory = DbKeys(ours.db_id).directory
        self.bytes = 0

    def get(self, page: str) -> Callable[[], object]:
        image = next(layer for layer in self._images if layer.spans(page))
        ref = self._reader.index(image).block_for(page, image.high_lsn)
        assert ref is not None
        self.bytes = ref.length
        key = self._directory + image.path
        return lambda: obstore.get_range(self._bucket, key, start=ref.offset, length=ref.length)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def cold_points(aws: Aws, ours: OurPages, slate: SlatePages, pages: Sequence[str]) -> Figures:
    """Each contestant reads each page once, in another order each time; then again, counted."""
    floor = Floor(aws, ours)
    times: dict[str, list[float]] = {"floor": [], "ours": [], "slatedb": []}
    ours.open(aws.endpoint_url)
    for number, page in enumerate(pages):
        slate.open(aws.endpoint_url)
        ours.forget()
        calls: dict[str, Callable[[], object]] = {"floor": floor.get(page)}
        calls |= {"ours": partial(ours.get, page), "slatedb": partial(slate.get, page)}
        for name in random.Random(number).sample(list(calls), len(calls)):
            times[name].append(timed(calls[name]))
    told: Figures = {name: {"p50_ms": round(statistics.median(taken), 2)} for name, taken in times.items()}
    told["floor"] = {**_figures(told, "floor"), "requests": 1, "bytes": floor.bytes}
    told["ours"] = {**_figures(told, "ours"), **counted_ours(ours, pages)}
    told["slatedb"] = {**_figures(told, "slatedb"), **counted_slate(aws, slate, pages[: max(5, len(pages) // 5)])}
    told["ratio"] = ratios({name: statistics.median(taken) for name, taken in times.items()})
    return told


def _figures(told: Figures, name: str) -> Figures:
    found = told[name]
    assert isinstance(found, dict)
    return found


def counted_ours(ours: OurPages, pages: Sequence[str]) -> Figures:
    requests: list[int] = []
    before = ours.store.requests.bytes_read
    for page in pages:
        ours.forget()
        with ours.store.requests.measure() as spent:
            ours.get(page)
        requests.append(spent["total"])
    taken = ours.store.requests.bytes_read - before
    return {**_counts(requests), "bytes": round(taken / len(pages))}


def counted_slate(aws: Aws, slate: SlatePages, pages: Sequence[str]) -> Figures:
    requests: list[int] = []
    taken = 0
    with Wire(aws.endpoint_url) as wire:
        for page in pages:
            slate.open(wire.endpoint_url)
            before, asked = wire.received, served(aws)
            slate.get(page)
            requests.append(served(aws) - asked)
            taken += wire.received - before
    return {**_counts(requests), "bytes": round(taken / len(pages))}


def _counts(requests: Sequence[int]) -> Figures:
    return {
        "requests": round(statistics.fmean(requests), 2),
        "requests_p50": statistics.median(requests),
        "requests_max": max(requests),
    }


def ratios(values: Mapping[str, float]) -> dict[str, float]:
    pairs = [("ours", "floor"), ("slatedb", "floor"), ("ours", "slatedb")]
    return {f"{one} / {other}": round(values[one] / values[other], 2) for one, other in pairs if other in values}


def warm_points(aws: Aws, ours: OurPages, slate: SlatePages, pages: Sequence[str]) -> Figures:
    """Microseconds of a repeated read: the best of five rounds, in turns."""
    ours.open(aws.endpoint_url)
    slate.open(aws.endpoint_url)
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: [ours.get(page) for page in pages],
        "slatedb": lambda: slate.get_many(pages),
    }
    for call in calls.values():
        call()
    with ours.store.requests.measure() as spent:
        best = {name: float("inf") for name in calls}
        for number in range(5):
            for name in random.Random(number).sample(list(calls), len(calls)):
                best[name] = min(best[name], timed(calls[name]) / len(pages) * 1000)
    told: Figures = {"ours_us": round(best["ours"], 1), "slatedb_us": round(best["slatedb"], 1)}
    return {**told, "ours_requests": spent["total"], "ratio": ratios(best)}


def scans(aws: Aws, ours: OurPages, slate: SlatePages, count: int) -> Figures:
    """All pages, the first time and again."""
    told: Figures = {}
    for state in ("cold", "warm"):
        keepers: dict[str, Keeper] = {"ours": ours, "slatedb": slate}
        times: dict[str, list[float]] = {name: [] for name in keepers}
        for _ in range(3):
            for name, keeper in keepers.items():
                if state == "cold":
                    keeper.open(aws.endpoint_url)
                times[name].append(timed(keeper.scan))
        with ours.store.requests.measure() as spent:
            if state == "cold":
                ours.forget()
            before = ours.store.requests.bytes_read
            found = ours.scan()
            taken = ours.store.requests.bytes_read - before
        if not count == found == slate.scan():
            raise RuntimeError(f"{found} of {count} pages were scanned")
        medians = {name: statistics.median(values) for name, values in times.items()}
        told[state] = {
            "ms": rounded(medians),
            "ours_us_per_page": round(medians["ours"] * 1000 / count, 2),
            "ours_requests": spent["total"],
            "ours_bytes": taken,
            "ratio": ratios(medians),
        }
    told["slatedb_cold"] = scanned_slate(aws, slate)
    return told


def scanned_slate(aws: Aws, slate: SlatePages) -> Figures:
    with Wire(aws.endpoint_url) as wire:
        slate.open(wire.endpoint_url)
        before, asked = wire.received, served(aws)
        slate.scan()
        return {"requests": served(aws) - asked, "bytes": wire.received - before}


def keepers_of(aws: Aws, name: str, count: int, rng: random.Random) -> tuple[OurPages, SlatePages]:
    pages = some_pages(rng, range(count))
    ours, slate = OurPages(aws.endpoint_url, name), SlatePages(aws.endpoint_url, name, WITHOUT_COMPACTOR)
    ours.write(pages)
    ours.compact(force=True)
    slate.write(pages)
    ours.open(aws.endpoint_url)
    slate.open(aws.endpoint_url)
    wanted = [page_name(rng.randrange(count)) for _ in range(5)]
    if not all(ours.get(page) == slate.get(page) == pages[page] for page in wanted):
        raise RuntimeError("the two do not give the same pages")
    return ours, slate


def by_size(aws: Aws, count: int, samples: int, goals: Goals) -> Figures:
    rng = random.Random(count)
    ours, slate = keepers_of(aws, f"of-{count}", count, rng)
    cold = cold_points(aws, ours, slate, [page_name(rng.randrange(count)) for _ in range(samples)])
    warm = warm_points(aws, ours, slate, [page_name(rng.randrange(count)) for _ in range(WARM_READS)])
    told: Figures = {"cold": cold, "warm": warm, "scan": scans(aws, ours, slate, count)}
    ours.close()
    slate.close()
    ours_cold = _figures(cold, "ours")
    goals[f"{count} pages: a cold read takes at most 2 requests"] = (
        float(str(ours_cold["requests_max"])) <= COLD_REQUESTS_MAX
    )
    goals[f"{count} pages: a warm read takes none"] = warm["ours_requests"] == 0
    return told


def by_layers(aws: Aws, samples: int, goals: Goals) -> Figures:
    rng = random.Random(7)
    count, told = 10_000, Figures()
    ours, slate = keepers_of(aws, "layered", count, rng)
    made = 0
    for layers in LAYERS:
        while made < layers:
            pages = some_pages(rng, rng.sample(range(count), LAYER_PAGES))
            ours.write(pages)
            slate.write(pages)
            made += 1
        ours.open(aws.endpoint_url)
        wanted = [page_name(rng.randrange(count)) for _ in range(samples)]
        told[str(layers)] = {
            "cold": cold_points(aws, ours, slate, wanted),
            "warm": warm_points(aws, ours, slate, [page_name(rng.randrange(count)) for _ in range(WARM_READS)]),
        }
        median = _figures(_figures(_figures(told, str(layers)), "cold"), "ours")["requests_p50"]
        goals[f"{layers} layers: half of all cold reads take at most 2 requests"] = (
            float(str(median)) <= COLD_REQUESTS_MAX
        )
    ours.close()
    slate.close()
    return told


def chart(found: Lifecycle) -> bytes:
    lines = {"objects in the bucket": found.objects, "live layers": found.live, "asked by a read": found.asked}
    return steps_chart("layers, one flush a minute, compaction every 10 minutes", "hours", found.hours, lines)


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench pages")
    parser.add_argument("--quick", action="store_true", help="fewer samples, and not 100,000 pages")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; repeatable")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw layers over time as PNG")
    options = parser.parse_args(arguments)
    parts, samples = options.part or PARTS, 15 if options.quick else 25
    goals: Goals = {}
    measured: Figures = {"bytes_of_a_page": PAGE_BYTES}
    with embedded_s3(BUCKET) as aws:
        for count in COUNTS[: 2 if options.quick else 3] if "reads" in parts else ():
            measured[f"{count} pages"] = by_size(aws, count, samples, goals)
        if "layers" in parts:
            measured["layers"] = by_layers(aws, SAMPLES_OF_LAYERS, goals)
        if "amplification" in parts:
            measured["amplification"] = amplification(aws, 16 if options.quick else 40)
    if "lifecycle" in parts:
        found = lifecycle(180 if options.quick else 360)
        measured["lifecycle"] = found.told()
        if options.chart is not None:
            options.chart.parent.mkdir(parents=True, exist_ok=True)
            options.chart.write_bytes(chart(found))
    measured["goals"] = goals
    missed = [goal for goal, is_met in goals.items() if not is_met]
    print(f"missed: {', '.join(missed) or 'nothing'}", file=sys.stderr)
    return measured
