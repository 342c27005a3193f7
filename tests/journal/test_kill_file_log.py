"""kill -9 while a process appends: what it was told is there, and of what it was not told, all or nothing (F16)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from worm.log.journal.store import LogStore, verify

ROOT = Path(__file__).resolve().parents[2]
LOOPS = 50


def _append_until_killed(path: Path, start: int, after: int) -> list[int]:
    """The numbers that were acknowledged before the kill."""
    command = [sys.executable, "-m", "tests.journal.log_worker", "append", str(path), str(start)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"}
    worker = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    told = [int(worker.stdout.readline()) for _ in range(after)]
    worker.send_signal(signal.SIGKILL)
    rest = worker.communicate()[0]
    return told + [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]


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
