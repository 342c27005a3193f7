"""The compact_pages job: the layers that a local compaction cut alike makes, and the same versions at every LSN."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs import compact_pages
from spark_jobs.compact_pages import LayerMaker, OnExecutors, Outcome, compact, main, step
from worm.clock import Ids, VirtualClock
from worm.errors import Corrupt, Fenced, Invalid
from worm.pages.branches import Branches
from worm.pages.cache import BlockCache
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor, Task, do_task, split
from worm.pages.db import PageDb, create_database
from worm.pages.layers import Candidate, LayerReader, PageRange
from worm.pages.manifest import MAIN, Layer, PageConfig, Pages
from worm.pages.reader import PageReader
from worm.spark.cluster import parallelism
from worm.store.file import FileStore

DB = "shop"
PARTS = 8
STEP = 17
"""LSNs between two states that are compared: some at commits, most inside of one."""
CONFIG = PageConfig(
    flush_interval_seconds=10_000,
    delta_layer_target_bytes=4096,
    image_layer_target_bytes=4096,
    block_bytes=512,
    compaction_cadence_layers=2,
    gc_min_age_seconds=30,
)
States = dict[int, dict[str, bytes | None]]
Contents = list[tuple[object, ...]]


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A page store with six flushed layers on main, and a branch with two more."""
    clock = VirtualClock()
    ids, rng = Ids.seeded(7, clock), random.Random(7)
    store = FileStore(tmp_path / "bucket", clock=clock, ids=ids, durability="process")
    create_database(store, DB, CONFIG, clock=clock, ids=ids)
    _write(PageDb.open(store, DB, clock=clock, ids=ids), rng, 6)
    Branches(store, DB, clock=clock, ids=ids).create("trial", parent="main", at=4)
    _write(PageDb.open(store, DB, branch="trial", clock=clock, ids=ids), rng, 2)
    return tmp_path / "bucket"


def claimed(now: Pages) -> Pages:
    """As the next compaction does."""
    main = now.branch(MAIN)
    return now.with_branch(MAIN, main.model_copy(update={"compaction": main.compaction + 1}))


def _write(db: PageDb, rng: random.Random, flushes: int) -> None:
    for _ in range(flushes):
        pages = rng.sample([f"page/{number:03d}" for number in range(120)], 40)
        db.write({page: None if rng.random() < 0.1 else rng.randbytes(60) for page in pages})
        db.flush()
    db.close()


def url_of(bucket: Path) -> str:
    return f"file://{bucket}"


def twin(bucket: Path, name: str) -> Path:
    return Path(shutil.copytree(bucket, bucket.parent / name))


def states(bucket: Path, branch: str) -> States:
    reader = PageReader.open(FileStore(bucket, durability="process"), DB, branch=branch)
    names = [f"page/{number:03d}" for number in range(120)]
    found: States = {lsn: dict(reader.get_pages(names, lsn)) for lsn in range(reader.head_lsn, -1, -STEP)}
    for lsn, pages in found.items():
        scanned = {version.page: version.data for version in reader.scan(at=lsn)}
        assert scanned == {page: data for page, data in pages.items() if data is not None}
    return found


def root(bucket: Path) -> Pages:
    return PageReader.open(FileStore(bucket, durability="process"), DB).pages


def contents(bucket: Path, branch: str) -> Contents:
    """All layers by what is in them; their names are of chance."""
    store, pages = FileStore(bucket, durability="process"), root(bucket)
    reader = LayerReader(store, PageReader.open(store, DB).keys, BlockCache(1 << 20))
    made = [layer for layer in pages.branch(branch).layers if layer.level]
    told = [
        (one.level, one.start, one.end, one.low_lsn, one.high_lsn, one.sha256, *reader.versions(one)) for one in made
    ]
    return sorted(told, key=repr)


def local(bucket: Path, branch: str, parts: int) -> None:
    Compactor(FileStore(bucket, durability="process"), DB, max_bytes=1 << 40, parts=parts).run(branch, force=True)


def test_executors_make_what_a_local_compaction_makes(spark: SparkSession, bucket: Path) -> None:
    before = {branch: states(bucket, branch) for branch in ("main", "trial")}
    alike, whole = twin(bucket, "alike"), twin(bucket, "whole")
    for branch in before:
        report = compact(spark, url_of(bucket), None, DB, branch, force=True)
        local(alike, branch, parallelism(spark))
        local(whole, branch, 1)
        assert report.is_done
        assert report.images >= (2 if branch == "main" else 1)
        assert contents(bucket, branch) == contents(alike, branch)
        assert states(bucket, branch) == before[branch] == states(whole, branch)
    merged = [layer for layer in root(bucket).branch("main").layers if layer.level == 1]
    assert len(merged) > 1
    again = compact(spark, url_of(bucket), None, DB, "main", force=True)
    assert (again.merged, again.bytes_written, again.is_done) == (0, 0, True)


def test_repeated_and_lost_attempts_leave_nothing_that_counts(spark: SparkSession, bucket: Path) -> None:
    """Every task twice, as speculation does it; the answers of the first ones are not used."""
    before, maker = states(bucket, "main"), LayerMaker(url_of(bucket), None)
    alike = twin(bucket, "alike")

    def twice(tasks: Sequence[Task]) -> list[Sequence[Layer]]:
        assert len(tasks) > 1
        OnExecutors(spark, maker)([*tasks, *tasks])
        return OnExecutors(spark, maker)(tasks)

    Compactor(FileStore(bucket, durability="process"), DB, runner=twice, parts=PARTS).run(force=True)
    local(alike, "main", PARTS)
    assert contents(bucket, "main") == contents(alike, "main")
    assert states(bucket, "main") == before
    pages = root(bucket)
    named = {layer.path for branch in pages.branches.values() for layer in branch.layers}
    named |= {one.path for branch in pages.branches.values() for one in branch.dropped}
    assert len(_layer_files(bucket) - named) == 2 * (len(contents(bucket, "main")))
    later = VirtualClock(VirtualClock().now().replace(year=2200))
    store = FileStore(bucket, clock=later, ids=Ids.seeded(1, later), durability="process")
    Compactor(store, DB, clock=later).root.change(claimed)
    store.put("db/shop/touched", b"")
    PageCollector(store, DB, clock=later).run()
    live = {layer.path for branch in root(bucket).branches.values() for layer in branch.layers}
    assert live <= _layer_files(bucket)
    assert not _layer_files(bucket) - named


def _layer_files(bucket: Path) -> set[str]:
    found = [path for path in (bucket / "db" / DB).rglob("*") if path.suffix in (".delta", ".image")]
    return {path.relative_to(bucket / "db" / DB).as_posix() for path in found}


def test_the_command_takes_all_or_what_is_named_and_tells_problems(
    spark: SparkSession, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {branch: states(bucket, branch) for branch in ("main", "trial")}
    store = FileStore(bucket, durability="process")
    store.put("db/broken/manifest.json", b"{}")
    assert main(["--url", url_of(bucket), "--db", DB, "--branch", "trial"]) == 0
    (told,) = _told(capsys)
    assert (told["db"], told["branch"], told["merged"]) == (DB, "trial", 2)
    assert main(["--url", url_of(bucket)]) == 1
    broken, first, second = _told(capsys)
    assert broken["db"] == "broken"
    assert "problem" in broken
    assert (first["branch"], first["merged"], second["branch"], second["merged"]) == ("main", 6, "trial", 0)
    assert {branch: states(bucket, branch) for branch in before} == before
    assert main(["--url", url_of(bucket), "--db", "none", "--db", DB, "--branch", "x"]) == 1
    assert [("problem" in one, one["db"]) for one in _told(capsys)] == [(True, "none"), (True, DB)]
    assert main(["--url", "memory://here"]) == Invalid.exit_code
    with pytest.raises(SystemExit):
        main(["--url", url_of(bucket), "--branch", "main"])


def _told(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_damaged_input_is_told_by_the_executor_and_nothing_changes(spark: SparkSession, bucket: Path) -> None:
    before = root(bucket).branch("main")
    path = bucket / "db" / DB / before.layers[2].path
    body = bytearray(path.read_bytes())
    body[40] ^= 1
    path.write_bytes(body)
    with pytest.raises(Corrupt, match="damaged"):
        compact(spark, url_of(bucket), None, DB, "main", force=True)
    path.unlink()
    with pytest.raises(Corrupt, match="a layer that the root names is gone"):
        compact(spark, url_of(bucket), None, DB, "main", force=True)
    after = root(bucket).branch("main")
    assert after.model_copy(update={"compaction": before.compaction}) == before, "only the claims of the two runs"


def test_an_executor_tells_what_no_second_attempt_can_mend(bucket: Path) -> None:
    layer = root(bucket).branch("main").layers[0]
    task = Task(DB, "", 1, 1, 1, False, [PageRange("", None, [Candidate(layer, 1)])], CONFIG)
    maker = LayerMaker(url_of(bucket), None)
    (bucket / "db" / DB / layer.path).unlink()
    (outcome,) = maker([task])
    assert outcome.gone == (layer, f"db/{DB}/{layer.path}")
    assert Outcome([layer]).checked() == [layer]


def _overtaking(bucket: Path, act: Callable[[], object]) -> Callable[[Sequence[Task]], list[list[Layer]]]:
    """A runner beside which something happens before the first task."""
    store = FileStore(bucket, durability="process")

    def run(tasks: Sequence[Task]) -> list[list[Layer]]:
        act()
        return [do_task(store, task, Ids.system()) for task in tasks]

    return run


def test_a_compaction_whose_inputs_were_merged_and_collected_meanwhile_is_overtaken(bucket: Path) -> None:
    before = states(bucket, "main")

    def act() -> None:
        local(bucket, "main", 1)
        for one in root(bucket).branch("main").dropped:
            (bucket / "db" / DB / one.path).unlink()

    with pytest.raises(Fenced, match="another compaction was faster"):
        Compactor(FileStore(bucket, durability="process"), DB, runner=_overtaking(bucket, act), parts=1).run(force=True)
    assert states(bucket, "main") == before


@pytest.mark.parametrize("times", [2, 3])
def test_a_job_that_is_overtaken_tries_again_and_then_gives_up(bucket: Path, times: int) -> None:
    before, left = states(bucket, "main"), [None] * times

    def act() -> None:
        if left:
            left.pop()
            other = Compactor(FileStore(bucket, durability="process"), DB)
            other.root.change(claimed)

    compactor = Compactor(FileStore(bucket, durability="process"), DB, runner=_overtaking(bucket, act))
    if times == 3:
        with pytest.raises(Fenced):
            step(compactor, "main", True)
    else:
        assert step(compactor, "main", True).merged == 6
    assert states(bucket, "main") == before


def test_a_long_job_is_published_step_by_step(
    spark: SparkSession, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, epoch = states(bucket, "main"), root(bucket).branch(MAIN).compaction
    monkeypatch.setattr(compact_pages, "STEP_BYTES", 12_000)
    report = compact(spark, url_of(bucket), None, DB, "main", force=True)
    assert (report.merged >= 6, report.is_done) == (True, True)
    assert root(bucket).branch(MAIN).compaction > epoch + 1
    assert states(bucket, "main") == before


def test_a_run_that_was_cut_short_is_gone_on_with_though_nothing_is_flushed(bucket: Path) -> None:
    before = states(bucket, "main")
    Compactor(FileStore(bucket, durability="process"), DB).run(left=lambda: 0.0)
    assert not any(layer.is_image for layer in root(bucket).branch("main").layers)
    report = Compactor(FileStore(bucket, durability="process"), DB).run()
    assert (report.merged, report.is_done) == (0, True)
    assert report.images > 0
    epoch = root(bucket).branch(MAIN).compaction
    Compactor(FileStore(bucket, durability="process"), DB).run()
    assert root(bucket).branch(MAIN).compaction == epoch
    assert states(bucket, "main") == before


@pytest.mark.parametrize("parts", [1, 2, 3, 50])
def test_parts_have_every_page_once_and_none_is_empty(bucket: Path, parts: int) -> None:
    store, pages = FileStore(bucket, durability="process"), root(bucket)
    reader = LayerReader(store, PageReader.open(store, DB).keys, BlockCache(1 << 20))
    layers = pages.branch("main").layers
    candidates = [Candidate(layer, layer.high_lsn) for layer in layers]
    written = {version.page for layer in layers for version in reader.versions(layer)}
    whole = [PageRange("", "page/050", candidates), PageRange("page/050", None, candidates)]
    for pieces in (whole, whole[1:]):
        found = split(reader, pieces, parts, 256)
        assert len(found) == parts or parts == 50 > len(found) > 10
        ranges = [(piece.start, piece.end) for part in found for piece in part]
        assert (ranges[0][0], ranges[-1][1]) == (pieces[0].start, None)
        assert all(one[1] == other[0] for one, other in pairwise(ranges))
        for part in found:
            start, end = part[0].start, part[-1].end
            assert any(start <= page and (end is None or page < end) for page in written)
    assert split(reader, whole, parts, 1 << 30) == [whole]
    narrow = [PageRange("page/050", "page/060", candidates)]
    assert split(reader, narrow, parts, sum(layer.size for layer in layers) // 2) == [narrow]
