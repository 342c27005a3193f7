"""kill -9 while a process appends: what it was told is there, and of what it was not told, all or nothing (F16)."""

from __future__ import annotations

import os
import posix
import signal
import sys
from pathlib import Path

import pytest

from tests.forked import FORK
from tests.journal.log_worker import append
from worm.log.journal.store import LogStore, verify

LOOPS = 50


def _append_into(pipe: int, path: Path, start: int) -> None:
    """In a fork, which starts in milliseconds: with the real fsync, which takes most of its time, as in real life."""
    os.fsync, os.fdatasync = posix.fsync, posix.fdatasync
    with os.fdopen(pipe, "w") as sys.stdout:
        append(path, start)


def _append_until_killed(path: Path, start: int, after: int) -> list[int]:
    """The numbers that were acknowledged before the kill."""
    here, there = os.pipe()
    worker = FORK.Process(target=_append_into, args=(there, path, start))
    worker.start()
    os.close(there)
    with os.fdopen(here) as output:
        told = [int(output.readline()) for _ in range(after)]
        worker.kill()
        told += [int(line) for line in output if line.endswith("\n")]
    worker.join()
    assert worker.exitcode == -signal.SIGKILL
    return told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_f16_every_acknowledged_write_survives_kill_9_and_nothing_is_torn(tmp_path: Path) -> None:
    path, acked, start, unknown = tmp_path / "s", set[int](), 0, set[int]()
    for loop in range(LOOPS):
        told = _append_until_killed(path, start, 1 + loop % 7)
        assert told == list(range(start, start + len(told)))
        acked.update(told)
        unknown.add(start + len(told))
        start += len(told) + 1
        report = verify(path)
        assert report.is_clean
        with LogStore.open(path) as store:
            singles = {one["_id"] for one in store.scan("c")}
            parts = [str(one["_id"]).split("-") for one in store.scan("t")]
        groups = {int(number): sum(other == number for other, _ in parts) for number, _ in parts}
        assert set(groups.values()) <= {3}
        there = {*singles, *groups}
        assert acked <= there
        assert there <= acked | unknown
    assert len(acked) >= LOOPS
