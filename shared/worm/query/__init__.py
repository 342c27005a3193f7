"""Answers queries from tables and documents: filters, order and pages, totals, plans with their cost.

A `Request` is a checked query; a `Reader` runs it, or explains it with a `Plan`; a `Stream` gives batches. `OwnWrites`
are what a session wrote and the table may lack; `OtherStates` are a collection on a branch or at a moment. An answer
never depends on how it was found: a missing or damaged table costs requests, not rows.

`request_text` reads what people write into a filter, sort or selection. `budget` limits the requests of a block.
Nothing here writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.query import budget, request_text
    from worm.query.aggregate import Aggregate, Distinct, Percentiles
    from worm.query.execute import Answer, Reader, current_states, read_documents
    from worm.query.filters import Filter
    from worm.query.needs import Request, is_covered
    from worm.query.own_writes import DocumentState, IndexedValues, OtherStates, OwnWrite, OwnWrites
    from worm.query.planner import Cost, Plan, add_actual
    from worm.query.query import Sort
    from worm.query.stream import Stream
else:
    __getattr__ = door(
        __name__,
        """
        aggregate: Aggregate Distinct Percentiles
        budget:
        execute: Answer Reader current_states read_documents
        filters: Filter
        needs: Request is_covered
        own_writes: DocumentState IndexedValues OtherStates OwnWrite OwnWrites
        planner: Cost Plan add_actual
        query: Sort
        request_text:
        stream: Stream
        """,
    )
