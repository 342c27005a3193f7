"""Rows of plain values in and out of Arrow batches, for functions that Spark runs on partitions of a frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from worm.store.parallel import chunked

BATCH_ROWS = 10_000
Values = tuple[Any, ...]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Values]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batches_of(rows: Iterable[Values], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for chunk in chunked(rows, BATCH_ROWS):
        columns = [pa.array(values, field.type) for values, field in zip(zip(*chunk, strict=True), schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
