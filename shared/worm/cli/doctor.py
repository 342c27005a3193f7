"""`worm doctor`: shows on one screen whether everything works, and what to do if not."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.options import DEFAULT_URL, Target
from worm.cli.output import Report, ReportFormat, count, echo, echo_json, printable
from worm.clock import SystemClock, iso_seconds
from worm.upkeep import Aws, Checkup, Health

EXIT_TROUBLE = 1
EXIT_UNKNOWN = 14


def doctor(
    target: Target,
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="STACK", envvar="WORM_STACK", help="The stack to check.")
    ] = None,
    format: Report = ReportFormat.table,
) -> None:
    """Check on one screen whether everything works: stack, bucket, queues, dead letters, freshness, sweep, costs.

    Reads only. Without --stack it checks only the store; with it, --url defaults to the stack's bucket. Exit code 0 if
    all is well, 1 if something is wrong, 14 if something important cannot be read.
    """
    url = target.url if target.url != DEFAULT_URL or not stack else None
    checkup = Checkup(
        Aws(target.endpoint_url),
        SystemClock(),
        lambda place: target.overridden(url=place).connect(),
        url=url,
        stack=stack or None,
    )
    health = checkup.run()
    if format is ReportFormat.json:
        echo_json(health.shape())
    else:
        for line in lines(health):
            echo(line)
    code = {"healthy": 0, "trouble": EXIT_TROUBLE, "unknown": EXIT_UNKNOWN}[health.verdict]
    if code:
        raise typer.Exit(code)


def lines(health: Health) -> list[str]:
    """The report for people."""
    about = f"stack {health.stack}" if health.stack else str(health.url)
    shown = [f"{about}, {iso_seconds(health.at)}", ""]
    width = max(len(one.area) for one in health.findings) + 2
    for one in health.findings:
        following = f"  →  {one.next}" if one.next else ""
        shown.append(f"{one.state.value:9}{one.area:{width}}{printable(one.text + following)}")
    return [*shown, "", _verdict(health)]


def _verdict(health: Health) -> str:
    if health.verdict == "healthy":
        return "healthy"
    if health.verdict == "trouble":
        return count(health.problems, "problem")
    return f"unknown: {', '.join(sorted(health.unread))} cannot be read"
