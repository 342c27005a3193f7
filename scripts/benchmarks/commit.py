"""What a durable commit costs, alone and many at once, against raw conditional PUTs and SlateDB.

Parts `single` and `group` run against one embedded moto; contestants take turns in another order each round (the floors
and our writer commit by commit, the others some commits at a time). The server counts requests, so background requests
of a contestant are included; our store counts ours as well, and both must agree.

`single`: milliseconds of one commit after the other. `group`: transactions per second with this many at once, each of
which waits for its own commit before the next. SlateDB runs with its default of a flush every 100 ms, and with one
every millisecond; with `put` and with `begin` … `commit`. The goal refers to the fastest of them.

`closed`: 1 to 256 committers that wait for their ack and commit again, in threads and as tasks, on a store in memory
whose PUTs take 40 ms. The best they can do is to share every PUT: then each has the latency of one committer alone.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.benchmarks._bars import bars, save_charts
from scripts.benchmarks._commits import (
    BUCKET,
    Closed,
    Contestant,
    Ours,
    OursSubmitting,
    Quiet,
    RawBoto3,
    RawObstore,
    SlateDb,
    Times,
    milliseconds,
    segment_bytes,
)
from scripts.benchmarks._turns import embedded_s3
from worm.dev.aws import Aws
from worm.log.config import LogConfig

FLOOR_MAX = 1.25
AHEAD_MIN = {"ours": 2.0, "ours_submit": 3.0}
PUT_SECONDS = 0.04
CLOSED = (2, 4, 8, 32)
CLOSED_LATENCY_MAX, CLOSED_RATE_MIN, CLOSED_PUTS_MAX = 1.15, 0.9, 1.1
CONCURRENCIES = (1, 16, 256)
SLOW = ("slatedb_default",)
"""A commit of these takes 100 ms on any machine: a tenth of the turns' transactions is enough."""


@dataclass
class Tally:
    """The results of one contestant in all its turns."""

    times: Times = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    requests: int = 0

    def add(self, times: Times, seconds: float, requests: int) -> None:
        self.times += times
        self.seconds.append(seconds)
        self.per_second.append(len(times) / seconds)
        self.requests += requests

    def percentile(self, share: float) -> float:
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def told(self) -> dict[str, float]:
        return {
            "p50_ms": round(self.percentile(0.5), 2),
            "p99_ms": round(self.percentile(0.99), 2),
            "p999_ms": round(self.percentile(0.999), 2),
            "transactions_per_second": round(statistics.median(self.per_second), 1),
            "requests_per_transaction": round(self.requests / len(self.times), 4),
            "transactions": len(self.times),
        }


def contestants(aws: Aws) -> dict[str, Contestant]:
    return {
        "floor_obstore": RawObstore(aws),
        "floor_boto3": RawBoto3(aws),
        "ours": Ours(aws),
        "ours_submit": OursSubmitting(aws),
        "ours_classic": Ours(aws, LogConfig.classic()),
        "slatedb_1ms": SlateDb(aws, "1ms"),
        "slatedb_1ms_begin": SlateDb(aws, "1ms", is_transaction=True),
        "slatedb_default": SlateDb(aws),
    }


def served(aws: Aws) -> int:
    """Requests that the server has answered so far."""
    return sum(sum(kinds.values()) for kinds in aws.requests_by_role().values())


def turn(aws: Aws, name: str, contestant: Contestant, concurrency: int, each: int, tally: Tally) -> None:
    """One turn: opening and closing are not timed or counted."""
    contestant.open()
    try:
        before, own = served(aws), _counted(contestant)
        gc.collect()
        gc.freeze()
        start = time.perf_counter()
        times = contestant.singles(each) if concurrency == 1 else contestant.many(concurrency, each)
        seconds = time.perf_counter() - start
        gc.unfreeze()
        requests = served(aws) - before
        if isinstance(contestant, Ours) and _counted(contestant) - own != requests:
            raise RuntimeError(f"{name}: the server saw {requests} requests, but we counted a different number")
        tally.add(times, seconds, requests)
    finally:
        contestant.close()


def round_of(aws: Aws, tallies: Mapping[str, Tally], number: int, concurrency: int, each: int) -> None:
    """One turn of every contestant that has a tally."""
    known = contestants(aws)
    for name in random.Random(number).sample(list(tallies), len(tallies)):
        is_slow = name.startswith("floor") if concurrency > 1 else name in SLOW
        turn(aws, name, known[name], concurrency, max(1, each // 10) if is_slow else each, tallies[name])


def _best(tallies: Mapping[str, Tally], part: str) -> float:
    return max(statistics.median(tally.per_second) for name, tally in tallies.items() if part in name)


def side_by_side(aws: Aws, tallies: Mapping[str, Tally], transactions: int) -> None:
    """Commits of contestants without background work, in turns of one: a slowdown hits all of them equally."""
    known = contestants(aws)
    asked = {name: one for name in tallies if isinstance(one := known[name], Quiet)}
    for one in asked.values():
        one.open()
    before, own = served(aws), {name: _counted(one) for name, one in asked.items()}
    times: dict[str, Times] = {name: [] for name in asked}
    for number in range(transactions):
        for name in random.Random(number).sample(list(asked), len(asked)):
            times[name].append(milliseconds(asked[name].one))
    requests = {name: _counted(one) - own[name] or transactions for name, one in asked.items()}
    if served(aws) - before != sum(requests.values()):
        raise RuntimeError(f"the server saw {served(aws) - before} requests, but we counted {requests}")
    for name, one in asked.items():
        tallies[name].add(times[name], sum(times[name]) / 1000, requests[name])
        one.close()


def _counted(contestant: Contestant) -> int:
    """The requests that it counts itself; 0 if it does not count. (A floor is one request by definition.)"""
    return contestant.store.requests.total if isinstance(contestant, Ours) else 0


def single(aws: Aws, rounds: int, each: int) -> tuple[dict[str, object], dict[str, bool]]:
    quiet = {name: Tally() for name in ("floor_obstore", "floor_boto3", "ours")}
    slatedb = {name: Tally() for name in ("slatedb_1ms", "slatedb_1ms_begin", "slatedb_default")}
    for number in range(rounds):
        side_by_side(aws, quiet, each)
        round_of(aws, slatedb, number, 1, each)
    tallies = {**quiet, **slatedb}
    ours = tallies["ours"]
    floor = min(tallies["floor_obstore"].percentile(0.5), tallies["floor_boto3"].percentile(0.5))
    ratio = {
        f"ours / {name}": round(ours.percentile(0.5) / tally.percentile(0.5), 2)
        for name, tally in tallies.items()
        if name != "ours"
    }
    goals = {
        "a single commit is one request, and 1 in 32 looks at the lease": ours.requests <= len(ours.times) * 33 / 32,
        f"a single commit takes at most {FLOOR_MAX} x the quicker floor": ours.percentile(0.5) <= FLOOR_MAX * floor,
    }
    return {**{name: tally.told() for name, tally in tallies.items()}, "ratio": ratio}, goals


def group(aws: Aws, concurrency: int, rounds: int, each: int) -> tuple[dict[str, object], dict[str, bool]]:
    names = [name for name in contestants(aws) if name != "floor_boto3" or concurrency <= 16]
    tallies = {name: Tally() for name in names}
    for number in range(rounds):
        round_of(aws, tallies, number, concurrency, each)
    slatedb = _best(tallies, "slatedb")
    ratio = {
        f"{name} / quickest slatedb": round(statistics.median(tally.per_second) / slatedb, 2)
        for name, tally in tallies.items()
        if not name.startswith("slatedb")
    }
    goals: dict[str, bool] = {}
    if concurrency == CONCURRENCIES[-1]:
        peer = max(
            (tally for name, tally in tallies.items() if "slatedb" in name),
            key=lambda tally: statistics.median(tally.per_second),
        )
        for name, least in AHEAD_MIN.items():
            goals[f"{concurrency} at once: {name} at least {least:.0f} x SlateDB's transactions per second"] = (
                ratio[f"{name} / quickest slatedb"] >= least
            )
            goals[f"{concurrency} at once: {name} with fewer requests per transaction than SlateDB"] = tallies[
                name
            ].requests / len(tallies[name].times) < peer.requests / len(peer.times)
    return {**{name: tally.told() for name, tally in tallies.items()}, "ratio": ratio}, goals


def closed(turns: int, each: int) -> tuple[dict[str, object], dict[str, bool]]:
    """Every turn has a single committer, and the others of the turn are compared with it; the numbers are medians of
    turns."""
    names = [f"{kind} {count}" for kind in ("threads", "submit", "classic") for count in (*CLOSED, CONCURRENCIES[-1])]
    ratios: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    alone: list[float] = []
    for number in range(turns):
        seconds, times, _ = _closed_turn("threads", 1, each)
        latency, rate = statistics.median(times), len(times) / seconds
        alone.append(latency / (PUT_SECONDS * 1000))
        for name in random.Random(number).sample(names, len(names)):
            kind, count = name.split()[0], int(name.split()[1])
            seconds, times, puts = _closed_turn(kind, count, each)
            found = statistics.median(times) / latency, len(times) / seconds / (count * rate), puts / each
            ratios[name].append(found)
    medians = {
        name: [statistics.median(values) for values in zip(*found, strict=True)] for name, found in ratios.items()
    }
    goals = {
        f"{name} in a closed loop: latency, commits per second and PUTs of one group": medians[name][0]
        <= CLOSED_LATENCY_MAX
        and medians[name][1] >= CLOSED_RATE_MIN
        and medians[name][2] <= CLOSED_PUTS_MAX
        for name in (f"threads {count}" for count in CLOSED)
    }
    keys = ("p50 / alone", "commits per second / (n x alone)", "puts / round")
    told = {name: dict(zip(keys, (round(one, 2) for one in found), strict=True)) for name, found in medians.items()}
    return {"alone / raw PUT": round(statistics.median(alone), 2), **told}, goals


def _closed_turn(kind: str, count: int, each: int) -> tuple[float, Times, int]:
    config = LogConfig.classic() if kind == "classic" else None
    committers = Closed(PUT_SECONDS, config, is_submitted=kind == "submit")
    start = time.perf_counter()
    times = committers.many(count, each)
    return time.perf_counter() - start, times, committers.store.puts


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench commit")
    parser.add_argument("--quick", action="store_true", help="fewer turns; p999 is then the slowest of a few")
    parser.add_argument("--part", choices=("single", "group", "closed"), help="only this part")
    parser.add_argument("--chart", type=Path, metavar="FOLDER", help="draw the figures into it (docs/img)")
    asked = parser.parse_args(arguments)
    quick, parts = asked.quick, (asked.part,) if asked.part else ("single", "group", "closed")
    measured: dict[str, object] = {"bytes_of_a_commit": len(segment_bytes())}
    goals: dict[str, bool] = {}
    if "closed" in parts:
        measured["closed loop"], met = closed(3 if quick else 5, 20 if quick else 40)
        goals |= met
    if set(parts) != {"closed"}:
        goals |= on_moto(measured, parts, quick=quick)
    save_charts(asked.chart, charts(measured))
    return _with_goals(measured, goals)


def on_moto(measured: dict[str, object], parts: Sequence[str], *, quick: bool) -> dict[str, bool]:
    """Run the parts `single` and `group`, add their results to `measured`, and return their goals."""
    goals: dict[str, bool] = {}
    with embedded_s3() as aws:
        aws.s3().create_bucket(Bucket=BUCKET)
        if "single" in parts:
            measured["single"], met = single(aws, 3 if quick else 15, 30 if quick else 100)
            goals |= met
        for concurrency in CONCURRENCIES[1:] if "group" in parts else ():
            each = 10 if quick else 20
            measured[f"group of {concurrency}"], met = group(aws, concurrency, 2 if quick else 5, each)
            goals |= met
    return goals


def charts(measured: Mapping[str, object]) -> dict[str, str]:
    """A picture for each table, from the results."""
    made: dict[str, str] = {}
    single = measured.get("single")
    if isinstance(single, dict):
        floor = float(single["floor_obstore"]["p50_ms"])
        times = {name: one["p50_ms"] / floor for name, one in single.items() if "p50_ms" in one}
        rows = {name: {"p50 / floor_obstore": round(value, 2)} for name, value in times.items()}
        made["commit-single"] = bars("One commit at a time: times a raw conditional PUT", rows, goal=FLOOR_MAX)
    groups = {
        name: one["ratio"] for name, one in measured.items() if name.startswith("group") and isinstance(one, dict)
    }
    if groups:
        names = list(dict.fromkeys(name for ratios in groups.values() for name in ratios))
        rows = {
            name.partition(" / ")[0]: {part: ratios[name] for part, ratios in groups.items() if name in ratios}
            for name in names
        }
        made["commit-group"] = bars("Transactions per second: times the quickest SlateDB", rows)
    loop = measured.get("closed loop")
    if isinstance(loop, dict):
        rows = {name: one for name, one in loop.items() if isinstance(one, dict)}
        made["commit-closed"] = bars("Committers in a closed loop, to one alone", rows)
    return made


def _with_goals(measured: dict[str, object], goals: dict[str, bool]) -> dict[str, object]:
    missed = [goal for goal, is_met in goals.items() if not is_met]
    print(f"missed: {', '.join(missed) or 'nothing'}", file=sys.stderr)
    return {**measured, "goals": goals}
