"""How fresh tables are, and what a change costs, at 10 to 10,000 changes a second: the real workers on virtual clocks.

`capture` and `tables` run as they are, in one process, on a store in memory with S3's latencies and limits
(`_virtual_s3.py`), fed by queues as template.yaml has them (`_virtual_path.py`). Nothing really waits: all times are
virtual, and one seed gives the same numbers on every machine. Every fifth change updates one of 10,000 existing
documents; the others are new documents.

- `freshness`: from the moment when S3 has a document until a manifest has its row.
- `holds`: nothing failed, and capture and tables process more changes per second than come in, or have at most a batch
  waiting when the load ends. If one cannot keep up, its queue grows as long as the load lasts, and the freshness of a
  short run says little.
- `usd per million`: list prices of us-east-1, as `worm cost` has them.

Runs are short (`virtual_seconds`): about 75,000 changes in all, a millisecond of processor time each. `tables alone`
gets change sets of 100 new documents, as capture would write them, for longer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.benchmarks._bars import bars, save_charts
from scripts.benchmarks._virtual_path import COLD_START_SECONDS, Function, Load, Tuning, VirtualPath, spent
from scripts.benchmarks._virtual_s3 import Limits
from worm.dev.template import read_template
from worm.query.planner import usd
from worm.upkeep.costs import SQS_REQUESTS_OF_A_MESSAGE, Prices

ROOT = Path(__file__).resolve().parent.parent.parent
FRESHNESS_MAX_SECONDS = 60.0
PRICES = Prices.read()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, how S3 has split the prefix by then, and the template parameters that differ from the defaults."""

    load: Load
    splits: int = 1
    parameters: tuple[tuple[str, str], ...] = ()


TUNED = (("Concurrency", "200,2,2"),)
MANY = (("Concurrency", "20,20,2"),)
SCENARIOS = {
    "10/s": Scenario(Load(10, 60)),
    "100/s": Scenario(Load(100, 30)),
    "1,000/s": Scenario(Load(1_000, 10)),
    "10,000/s, unsplit": Scenario(Load(10_000, 1), parameters=TUNED),
    "10,000/s": Scenario(Load(10_000, 1), splits=16),
    "10,000/s, tuned": Scenario(Load(10_000, 3), splits=16, parameters=TUNED),
    "10,000/s, tables alone": Scenario(Load(10_000, 20, set_size=100), splits=16),
    "1,000/s into 100": Scenario(Load(1_000, 5, collections=100)),
    "1,000/s into 100, tuned": Scenario(Load(1_000, 5, collections=100), parameters=MANY),
}


def simulated(scenario: Scenario, seed: int) -> dict[str, object]:
    template = read_template(ROOT / "template.yaml", parameters=dict(scenario.parameters))
    capture, tables = Tuning.of(template, "capture"), Tuning.of(template, "tables")
    path = VirtualPath(scenario.load, capture, tables, Limits(splits=scenario.splits), seed)
    path.run()
    rate = scenario.load.per_second
    ran = {"capture": (path.capture, path.backlog[0]), "tables": (path.tables, path.backlog[1])}
    workers = {name: _told(one, path.changes, waiting) for name, (one, waiting) in ran.items() if one.durations}
    p99 = _percentile(path.freshness.seconds, 0.99)
    return {
        "changes": path.changes,
        "virtual_seconds": scenario.load.seconds,
        "parameters": dict(scenario.parameters),
        "freshness_p50_s": _percentile(path.freshness.seconds, 0.5),
        "freshness_p99_s": p99,
        "not_visible": path.freshness.unseen,
        "holds": all(_holds(one, rate) for one in workers.values()),
        "fresh": path.freshness.unseen == 0 and p99 <= FRESHNESS_MAX_SECONDS,
        "requests_per_million": {kind: _million(count, path) for kind, count in sorted(spent(path.requests).items())},
        "usd_per_million": _costs(path),
        "refused": {"workers": path.bucket.refused - path.refused_clients, "clients": path.refused_clients},
        **workers,
    }


def _holds(worker: Mapping[str, float], rate: float) -> bool:
    is_quick = worker["changes_per_second_max"] >= rate or worker["waiting_at_the_end"] <= worker["batch_size"]
    return is_quick and not worker["failed_messages"]


def _told(function: Function, changes: int, waiting: int) -> dict[str, float]:
    """`changes_per_second_max`: the rate of all workers that the template allows, at the pace of this run."""
    busy = sum(function.durations) - function.cold_starts * COLD_START_SECONDS
    return {
        "batch_size": function.tuning.batch_size,
        "waiting_at_the_end": waiting,
        "concurrency": function.tuning.concurrency,
        "concurrency_peak": function.peak,
        "concurrency_mean": round(busy / max(function.timeline.now, 1.0), 1),
        "invocations": len(function.durations),
        "messages_per_invocation": round(function.messages / max(1, len(function.durations)), 1),
        "seconds_p50": _percentile(function.durations, 0.5),
        "seconds_p99": _percentile(function.durations, 0.99),
        "failed_messages": function.failed,
        "changes_per_second_max": round(changes * function.tuning.concurrency / busy),
    }


def _costs(path: VirtualPath) -> dict[str, float]:
    """US dollars for a million changes, without the client's own requests."""
    functions = (path.capture, path.tables)
    messages = sum(one.messages for one in functions)
    invocations = sum(len(one.durations) for one in functions)
    gb_seconds = sum(sum(one.durations) * one.tuning.memory_mb / 1024 for one in functions)
    found = {
        "s3": usd(spent(path.requests)),
        "events, queues": PRICES.events(path.objects) + PRICES.queue(messages * SQS_REQUESTS_OF_A_MESSAGE),
        "lambda": PRICES.functions(invocations, gb_seconds),
    }
    found["all"] = sum(found.values())
    return {name: round(dollars * 1e6 / path.changes, 2) for name, dollars in found.items()}


def _million(count: int, path: VirtualPath) -> int:
    return round(count * 1e6 / path.changes)


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else 0.0


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench simulate")
    parser.add_argument("--quick", action="store_true", help="a quarter of the time, without 10,000 a second")
    parser.add_argument("--only", choices=SCENARIOS, help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chart", type=Path, metavar="FOLDER", help="draw the figures into it (docs/img)")
    asked = parser.parse_args(arguments)
    found: dict[str, dict[str, object]] = {}
    for name, scenario in SCENARIOS.items():
        is_asked = name == asked.only if asked.only else not (asked.quick and scenario.load.per_second > 1_000)
        if is_asked:
            load = replace(scenario.load, seconds=scenario.load.seconds / (4 if asked.quick else 1))
            found[name] = simulated(replace(scenario, load=load), asked.seed)
            print(f"{name}: {found[name]}", file=sys.stderr)
    save_charts(asked.chart, charts(found))
    return {"seed": asked.seed, **found}


def charts(found: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """A picture for each table, from the results."""

    def row(one: Mapping[str, object], *names: str) -> dict[str, float]:
        return {name: float(str(one[name])) for name in names}

    fresh = {name: row(one, "freshness_p50_s", "freshness_p99_s") for name, one in found.items()}
    costs = {name: _dollars(one["usd_per_million"]) for name, one in found.items()}
    return {
        "simulate-freshness": bars("Seconds until a change is in the manifest", fresh, goal=FRESHNESS_MAX_SECONDS),
        "simulate-costs": bars("US dollars for a million changes", costs),
    }


def _dollars(costs: object) -> dict[str, float]:
    return {name: float(value) for name, value in costs.items() if name != "all"} if isinstance(costs, dict) else {}
