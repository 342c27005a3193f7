"""Asking a table directly, without a session."""

from __future__ import annotations

from worm.collections.entries import Row
from worm.query.execute import Reader
from worm.query.needs import Request
from worm.query.query import Query
from worm.tables.table import Table


def query_table(table: Table, query: Query) -> list[Row]:
    """The rows of a query, for a reader that wrote nothing."""
    return Reader(table).run(Request(query)).page.rows
