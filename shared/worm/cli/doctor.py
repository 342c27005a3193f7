"""`worm doctor`: whether everything works, in one screen, and what to do where it does not."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.options import DEFAULT_URL, Target
from worm.cli.output import Report, ReportFormat, count, echo, echo_json, printable
from worm.clock import SystemClock, iso_seconds
from worm.deployment.aws import Aws
from worm.deployment.checkup import Checkup, Health, State

EXIT_TROUBLE = 1
EXIT_UNKNOWN = 14


def doctor(
    target: Target,
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="STACK", envvar="WORM_STACK", help="The stack to look at.")
    ] = None,
    format: Report = ReportFormat.table,
) -> None:
    """Say in one screen whether everything works: stack, bucket, queues, dead letters, freshness, sweep, costs.

    Reads only. Without --stack it looks at the store alone; with it, --url is the stack's bucket unless given. Exit
    code 0 when all is well, 1 when something is wrong, 14 when what matters cannot be read.
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
    """What is shown to people."""
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
        return count(sum(one.state is State.trouble for one in health.findings), "problem")
    unread = sorted({one.area for one in health.findings if one.state is State.unknown})
    return f"cannot tell: {', '.join(unread)} cannot be read"
