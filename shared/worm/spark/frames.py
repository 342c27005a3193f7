"""Rows of plain values in and out of Arrow batches, for functions that Spark runs on partitions of a frame.

Spark divides a frame by the hash of a column, so two groups of rows may end in one task while another task has none. A
*slot* is a number whose hash leads to one known task, and every task has one of its own: with slots, the plan decides
which groups share a task, and none gets more than planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from worm.store import in_chunks

BATCH_ROWS = 10_000
SEED = 42
Values = tuple[Any, ...]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Values]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def batches_of(rows: Iterable[Values], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for chunk in in_chunks(rows, BATCH_ROWS):
        columns = [pa.array(values, field.type) for values, field in zip(zip(*chunk, strict=True), schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def slots(tasks: int) -> list[int]:
    """For each task of `repartition(tasks, column)`, the smallest number in the (integer) column that leads to it."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(spark_hash(number) % tasks, number)
        number += 1
    return [found[task] for task in range(tasks)]


def spark_hash(number: int) -> int:
    """Spark's `hash` of an integer: 32 bits of Murmur3, with a sign."""
    mixed = _rotated(number * 0xCC9E2D51, 15) * 0x1B873593
    mixed = _rotated(SEED ^ (mixed & _BITS), 13) * 5 + 0xE6546B64
    mixed = (mixed & _BITS) ^ 4  # the number of bytes
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _BITS
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _BITS
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


_BITS = 0xFFFFFFFF


def _rotated(number: int, by: int) -> int:
    number &= _BITS
    return (number << by | number >> 32 - by) & _BITS
