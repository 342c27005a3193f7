"""The plans of jobs (`tables/tasks/paper.py`) as text, with how long they take and what they cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from worm.collections import Collection
from worm.tables import JobPlan, Paper
from worm.upkeep import costs

A_SECOND: Mapping[str, float] = {
    "GET": costs.SparkCluster.documents_a_second,
    "HEAD": costs.SparkCluster.documents_a_second,
    "LIST": 20,
    "VERSIONS": 20,
    "PUT": 50,
}
"""Requests that a processor makes in a second, with what it does about the answers."""
ROWS_A_SECOND = 20_000
CLUSTER = costs.SparkCluster(15)
"""The default limit of spark_jobs/template.yaml."""
SIZES = (10_000_000, 100_000_000, 1_000_000_000)
PLANNED = {"rebuild": ("rebuild", "incremental"), "verify": ("verify",), "export": ("export",)}
"""The jobs that have `--plan`, and the plans that it prints."""


def plan(job: str, paper: Paper) -> JobPlan:
    """The steps of a job for a collection."""
    return JobPlan.of(job, paper, CLUSTER.processors * 4)


def hours(one: JobPlan, cluster: costs.SparkCluster = CLUSTER) -> float:
    waiting = sum(number / A_SECOND[kind] for kind, number in one.requests.items())
    computing = sum(stage.rows for stage in one.stages) / ROWS_A_SECOND
    return cluster.start_minutes / 60 + (waiting + computing) / cluster.processors / 3600


def usd(one: JobPlan, prices: costs.Prices, cluster: costs.SparkCluster = CLUSTER) -> tuple[float, float]:
    """For S3 requests, and for processors and memory."""
    return prices.s3(one.requests), cluster.usd(hours(one, cluster), prices)


def summary(plans: Sequence[JobPlan], prices: costs.Prices) -> list[str]:
    """A table in Markdown."""
    lines = [
        "| Job | Documents | Tasks | Largest task: ids, read, held | LIST, GET, PUT | S3, compute | Hours |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in plans:
        ids, data, held = one.largest
        spent = one.requests
        listed = spent.get("LIST", 0) + spent.get("VERSIONS", 0)
        s3, compute = usd(one, prices)
        lines.append(
            f"| {one.job} | {one.documents:,} | {one.tasks:,} | {ids:,}, {_megabytes(data)}, {_megabytes(held)} "
            f"| {_short(listed)}, {_short(spent.get('GET', 0))}, {_short(spent.get('PUT', 0))} "
            f"| ${s3:,.2f}, ${compute:,.2f} | {hours(one):.1f} |"
        )
    return lines


def billion(prices: costs.Prices | None = None) -> list[str]:
    """The plans of all jobs at all sizes, as docs/emr.md shows them."""
    jobs = [job for several in PLANNED.values() for job in several]
    plans = [plan(job, Paper.example(size)) for job in jobs for size in SIZES]
    return summary(plans, prices or costs.Prices.read())


def stages(one: JobPlan) -> list[str]:
    """The steps of one job, as `--plan` prints them."""
    lines = ["| Step | Tasks | Largest task: ids, read, held | Requests |", "|---|---|---|---|"]
    for stage in one.stages:
        requests = ", ".join(f"{_short(number)} {kind}" for kind, number in stage.requests.items() if number)
        largest = f"{stage.ids:,}, {_megabytes(stage.bytes)}, {_megabytes(stage.held)}"
        lines.append(f"| {stage.name} | {stage.tasks:,} | {largest} | {requests or 'none'} |")
    return lines


def described(job: str, collection: Collection) -> list[str]:
    """What `--plan` prints."""
    paper, prices = Paper.of(collection), costs.Prices.read()
    lines = list[str]()
    for one in (plan(name, paper) for name in PLANNED[job]):
        lines += [f"{collection.name}: {one.job}", "", *stages(one), "", *summary([one], prices), ""]
    return lines


def _megabytes(number: float) -> str:
    return f"{math.ceil(number / 1e6)} MB"


def _short(number: float) -> str:
    for limit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {name}"
    return f"{math.ceil(number)}"
