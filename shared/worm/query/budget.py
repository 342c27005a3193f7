"""The maximum number of requests of a query: a limit for services that run queries of others.

`at_most` applies to the queries of its block, in this thread. A query that would take more is refused with its plan,
before documents or table files are read. Requests that were needed to decide (roots, indexes, a listing of ids) have
been made by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from worm.errors import Invalid
from worm.query.planner import Plan

ALLOWED: ContextVar[int | None] = ContextVar("allowed", default=None)
"""The limit for queries of this thread; None: no limit."""


class TooExpensive(Invalid):
    """The query would take more requests than allowed. `plan` shows how it would be answered."""

    def __init__(self, plan: Plan, needed: int, most: int) -> None:
        super().__init__(
            f"the query would take about {needed:,} requests, and the limit is {most:,}: {plan.reason}",
            hint="filter by an indexed field, ask for less, or raise the limit",
        )
        self.plan = plan


@contextmanager
def at_most(requests: int | None) -> Iterator[None]:
    """None: no limit."""
    token = ALLOWED.set(requests)
    try:
        yield
    finally:
        ALLOWED.reset(token)
