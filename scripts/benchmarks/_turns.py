"""Measuring side by side: contestants take turns, so that a busy machine slows all of them equally."""

from __future__ import annotations

import gc
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from worm.dev.aws import Aws, start_moto
from worm.store.base import RequestCounter

Call = Callable[[], object]
MAXIMUM_SECONDS = 20.0


def milliseconds(call: Call) -> float:
    """Memory held by others is not this one's cost: the garbage collector skips it."""
    gc.collect()
    gc.freeze()
    start = time.perf_counter()
    call()
    taken = (time.perf_counter() - start) * 1000
    gc.unfreeze()
    return taken


def medians(
    contestants: Mapping[str, Call], repeats: int, seconds_max: float = MAXIMUM_SECONDS, *, is_warm: bool = False
) -> dict[str, float]:
    """Median milliseconds of each. No new round starts after `seconds_max`, except for the third.

    Every round has another order, because a contestant that always came after a busy one would pay for it. Before the
    first round, everybody has a turn to open connections and do late imports, unless `is_warm`.
    """
    names = list(contestants)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for call in contestants.values() if not is_warm else ():
        call()
    start = time.perf_counter()
    for turn in range(repeats):
        if turn >= 3 and time.perf_counter() - start > seconds_max:
            break
        for name in random.Random(turn).sample(names, len(names)):
            taken[name].append(milliseconds(contestants[name]))
    return {name: statistics.median(values) for name, values in taken.items()}


def check_answers(references: Mapping[str, str], contestants: Mapping[str, Call]) -> None:
    """Contestants with the same question must answer like the reference, which is found by a part of its name."""
    answers = {name: call() for name, call in contestants.items()}
    for name, answer in answers.items():
        reference = next(other for part, other in references.items() if part in name)
        if answer != answers[reference]:
            raise RuntimeError(f"{name} gives a different answer than {reference}")


def spent(counter: RequestCounter, call: Call) -> dict[str, int]:
    """Requests by kind, and `total`."""
    with counter.measure() as requests:
        call()
    return requests


@contextmanager
def embedded_s3(*buckets: str) -> Iterator[Aws]:
    """moto in its own process, with versioned buckets; this process uses its credentials in the meantime."""
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch:
        aws = start_moto(Path(scratch), "us-east-1")
        try:
            os.environ.update({**aws.credentials, "AWS_REGION": aws.region})
            for bucket in buckets:
                aws.s3().create_bucket(Bucket=bucket)
                aws.s3().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
            yield aws
        finally:
            aws.stop()


def rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}
