"""Queries over tables: filters, sorting, the planner, execution, aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.query import request_text
    from worm.query.aggregate import Aggregate, Distinct, Percentiles
    from worm.query.budget import TooExpensive, at_most
    from worm.query.execute import Answer, Reader, current_states, read_documents
    from worm.query.filters import LIST_MAX, Filter
    from worm.query.needs import Request, is_covered
    from worm.query.own_writes import DocumentState, IndexedValues, OtherStates, OwnWrite, OwnWrites
    from worm.query.planner import REBUILD, Cost, Plan
    from worm.query.query import Sort
    from worm.query.request_text import filter_fields
    from worm.query.stream import Stream
else:
    __getattr__ = door(
        __name__,
        """
        aggregate: Aggregate Distinct Percentiles
        budget: TooExpensive at_most
        execute: Answer Reader current_states read_documents
        filters: Filter LIST_MAX
        needs: Request is_covered
        own_writes: DocumentState IndexedValues OtherStates OwnWrite OwnWrites
        planner: Cost Plan REBUILD
        query: Sort
        request_text:
        request_text: filter_fields
        stream: Stream
        """,
    )
