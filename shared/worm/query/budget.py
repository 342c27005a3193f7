"""How many requests a query may take: a limit for services that run queries of others.

`at_most` holds for the queries of its block, in this thread. One that would take more is refused with its plan, before
documents or files of the table are read. What the query itself found out to decide (roots, indexes, a listing of ids)
has been asked by then.

A module of its own because callers set the limit and readers keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from worm.errors import Invalid
from worm.query.planner import Plan

ALLOWED: ContextVar[int | None] = ContextVar("allowed", default=None)
"""How many requests the queries of this thread may take; None: any number."""


class TooExpensive(Invalid):
    """The query would take more requests than it may. `plan` tells how it would be answered."""

    def __init__(self, plan: Plan, needed: int, most: int) -> None:
        super().__init__(
            f"the query takes about {needed:,} requests, and {most:,} are allowed: {plan.reason}",
            hint="filter by an indexed field, ask for less, or allow it",
        )
        self.plan = plan


@contextmanager
def at_most(requests: int | None) -> Iterator[None]:
    """None: any number."""
    token = ALLOWED.set(requests)
    try:
        yield
    finally:
        ALLOWED.reset(token)
