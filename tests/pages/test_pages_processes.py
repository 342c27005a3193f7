"""Page stores worked on by real processes that are killed: rows of RELIABILITY.md §4, ring K, in a directory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.emulators import ROOT
from tests.pages.page_process import PAGES, environment, page
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageConfig
from worm.pages.reader import PageReader
from worm.store.file import FileStore

pytestmark = pytest.mark.slow

MIN_AGE = 0.2
OLD = MIN_AGE + 2.1  # ages are of whole seconds, and a second more


class Database:
    """A page store in a directory, the processes that work on it, and what they acknowledged."""

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self.store = FileStore(path)
        create_database(
            self.store,
            "d",
            PageConfig(
                gc_min_age_seconds=MIN_AGE,
                pitr_window_seconds=0,
                delta_layer_target_bytes=1024,
                image_layer_target_bytes=1024,
                block_bytes=512,
                flush_interval_seconds=80_000,
            ),
        )
        self.acked: dict[str, bytes | None] = {}
        self._unknown: dict[str, bytes | None] | None = None

    def start(self, *arguments: str, crash_at: str | None = None) -> subprocess.Popen[str]:
        settings = {} if crash_at is None else {"WORM_CRASH_AT": crash_at}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.pages.page_process", arguments[0], self.url, "d", *arguments[1:]],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(ROOT, **settings),
        )

    def write(self, name: str, count: int, *, crash_at: str | None = None) -> int:
        """The number of commits that were acknowledged."""
        process = self.start("write", name, str(count), crash_at=crash_at)
        lines = self.end(process, is_killed=crash_at is not None)
        numbers = [int(line.split()[1]) for line in lines if line.startswith("ack ")]
        for number in numbers:
            self.acked |= page(name, number)
        if crash_at is not None:
            self._unknown = page(name, len(numbers) + 1)
        return len(numbers)

    def end(self, process: subprocess.Popen[str], *, is_killed: bool) -> list[str]:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if is_killed else 0), out
        if not is_killed:
            assert out.endswith("done\n"), out
        return out.splitlines()

    def run(self, work: str, *, crash_at: str | None = None) -> None:
        self.end(self.start(work, crash_at=crash_at), is_killed=crash_at is not None)

    def reader(self) -> PageReader:
        return PageReader.open(self.store, "d")

    def check(self) -> None:
        """All that was acknowledged is there; what was on its way is there whole or not at all."""
        reader = self.reader()
        unknown = self._unknown or {}
        landed = any(reader.get_page(name) is not None for name in unknown if not name.startswith("shared/"))
        want = {**self.acked, **(unknown if landed else {})}
        assert reader.get_pages(want) == want
        assert {one.page: one.data for one in reader.scan()} == want
        if landed:
            self.acked, self._unknown = want, None

    def objects(self) -> set[str]:
        return {one.key for part in ("delta/", "image/") for one in self.store.list(f"db/d/{part}")}

    def named(self) -> set[str]:
        branch = self.reader().pages.branch("main")
        paths = {layer.path for layer in branch.layers} | {one.path for one in branch.dropped}
        return {f"db/d/{path}" for path in paths}

    def sweep(self) -> None:
        """Whatever nobody names goes, once it is old."""
        Compactor(self.store, "d").run(force=True)
        PageDb.open(self.store, "d").flush()
        time.sleep(OLD)
        PageCollector(self.store, "d").run()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


@pytest.mark.parametrize("point", ["before-delta:1", "after-delta:1", "after-delta:2", "before-root:1", "after-root:1"])
def test_f18_kill_9_while_a_flush_uploads_or_publishes(database: Database, point: str) -> None:
    assert database.write("first", 7, crash_at=point) == 3
    orphans = database.objects() - database.named()
    assert bool(orphans) is (point in ("after-delta:1", "after-delta:2", "before-root:1"))
    database.check()
    database.write("second", 4)
    database.check()
    database.sweep()
    assert not orphans & database.objects()
    assert database.objects() == database.named()
    database.check()


@pytest.mark.parametrize(
    "point", ["before-delta:1", "after-delta:1", "before-root:2", "after-root:2", "after-image:1", "before-root:3"]
)
def test_f18_kill_9_while_a_compaction_uploads_or_publishes(database: Database, point: str) -> None:
    database.write("first", 9)
    database.run("compact", crash_at=point)
    database.check()
    database.run("compact")
    database.check()
    database.sweep()
    assert database.objects() == database.named()
    database.check()


@pytest.mark.parametrize("point", ["before-delta:1", "after-delta:2", "before-root:1", "after-root:1"])
def test_f18_kill_9_while_the_worker_applies(database: Database, point: str) -> None:
    database.write("first", 2)
    database.run("apply", crash_at=point)
    database.check()
    database.run("apply")
    database.check()
    assert database.reader().pages.branch("main").lsn == database.reader().head_lsn


@pytest.mark.parametrize("point", ["before-delete:1", "after-delete:1", "after-delete:4", "before-root:1"])
def test_f23_kill_9_of_a_collection_halfway_and_two_at_once(database: Database, point: str) -> None:
    for name in ("first", "second"):
        database.write(name, 9)
        database.run("compact")
    database.run("collect")  # what is not needed any more leaves the root
    time.sleep(OLD)
    database.run("collect", crash_at=point)
    database.check()
    both = [database.start("collect"), database.start("collect")]
    for process in both:
        database.end(process, is_killed=False)
    database.check()
    database.sweep()
    assert database.objects() == database.named()
    database.check()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", ["after-log", "after-ack"])
def test_experiment_4_kill_9_before_the_ack_and_before_anything_is_in_a_layer(database: Database, point: str) -> None:
    """(a) after the compare-and-swap, before the ack: there, and whole; (b) after the ack: there."""
    for loop in range(8):
        number = 1 + loop % 4
        crash_at = f"after-log:{number + 1}" if point == "after-log" else f"after-ack:{number}"
        acked = database.write(f"w{loop}", 9, crash_at=crash_at)
        assert acked == (number - 1 if point == "after-log" else number)
        database.check()
    assert len([name for name in database.acked if "shared" not in name]) == 8 * (1 + 2 + 3 + 4) // 4
    assert sum(name.startswith("shared") for name in database.acked) <= PAGES
