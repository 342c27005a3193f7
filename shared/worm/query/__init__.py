"""Queries over tables: filters, sorting, the planner, execution, aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.query import request_text
    from worm.query.aggregate import Aggregate, Distinct, Percentiles
    from worm.query.budget import TooExpensive, at_most
    from worm.query.execute import CHUNK, Answer, Reader, as_row, counted, current_states, read_documents
    from worm.query.filters import LIST_MAX, Filter, identity
    from worm.query.needs import Request, is_covered
    from worm.query.own_writes import AsStored, DocumentState, IndexedValues, NoWrites, OtherStates, OwnWrite, OwnWrites
    from worm.query.planner import REBUILD, Actual, Cost, Plan
    from worm.query.query import Query, Sort
    from worm.query.request_text import filter_fields
    from worm.query.stream import Stream
else:
    __getattr__ = door(
        __name__,
        """
        aggregate: Aggregate Distinct Percentiles
        budget: TooExpensive at_most
        execute: Answer CHUNK Reader as_row counted current_states read_documents
        filters: Filter LIST_MAX identity
        needs: Request is_covered
        own_writes: AsStored DocumentState IndexedValues NoWrites OtherStates OwnWrite OwnWrites
        planner: Actual Cost Plan REBUILD
        query: Query Sort
        request_text:
        request_text: filter_fields
        stream: Stream
        """,
    )
