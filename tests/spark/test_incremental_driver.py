"""The driver of an incremental rebuild, without Spark: its tasks are calls, one after the other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

import pytest

from tests.harness import DataPath, schema_of
from tests.spark.collection_room import spec_of
from tests.tables.test_incremental_rows import IDS, History, inventoried
from worm.collections.id_ranges import IdRange
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Unavailable
from worm.formats import load_schema
from worm.spark.cluster import JobSpec
from worm.spark.rebuild_job import _SparkEngine, stage
from worm.store.base import RequestCounter
from worm.tables.root import LEVEL_MAX
from worm.tables.tasks.incremental import ComparedRange, Comparing, RangeTasks, StagedRange, _StoredRange
from worm.tables.tasks.listings import Listing
from worm.tables.tasks.rebuild import RebuildReport, TableRebuild, _Round
from worm.tables.tasks.staging import Overtaken, Staging
from worm.tables.tree import DELTAS_MAX, HeadsTree, Tree

T = TypeVar("T")
R = TypeVar("R")
COUNT = 120
SEEDS, ACTS, RATE = 8, 4, 0.1
MANY_ACTS, OFTEN = 12, 0.5
ACCIDENTS = {"overwrite", "delete_entry", "add_entry", "forget_version"}
RANGES = [IdRange("", "c030"), IdRange("c030", "c060"), IdRange("c060", "c090"), IdRange("c090")]
STATUS = {"byStatus": {"field": "status"}}
OPLOG = pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])


@pytest.fixture(autouse=True)
def _tasks_are_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spark: object, work: Callable[[T], R], items: Sequence[T], about: str) -> list[R]:
        return [work(one) for one in items]

    monkeypatch.setattr("worm.spark.rebuild_tasks.run", run)
    monkeypatch.setattr("worm.spark.rebuild_job.run", run)
    for name in ("planned_ranges", "compared_ranges"):
        monkeypatch.setattr(f"worm.spark.rebuild_job.{name}", lambda spark, spec: RANGES)
    monkeypatch.setattr("worm.spark.rebuild_job.parallelism", lambda spark: 4)


def path_of(
    *, oplog: bool = True, threshold: int = 20, indexes: dict[str, Any] | None = None, **more: object
) -> DataPath:
    manifest = {"enabled": True, "partitionThreshold": threshold, **more}
    path = DataPath(schema_of(oplog=oplog, softDelete=False, indexes=indexes or {}, manifest=manifest))
    for number in range(COUNT):
        path.put(f"c{number:03d}", {"name": "Acme", "status": f"s{number % 3}"})
    path.sweep()
    return path


def rebuilt(path: DataPath) -> RebuildReport:
    return _round(path).run_incrementally()


def in_rounds(path: DataPath) -> RebuildReport:
    """As the job does it."""
    return TableRebuild(spec_of(path).collection(), _engine(path))._in_rounds(partial(rebuilt, path))


def _round(path: DataPath) -> _Round:
    return _Round(spec_of(path).collection(), _engine(path))


def _engine(path: DataPath) -> _SparkEngine:
    return _SparkEngine(cast(Any, None), spec_of(path))


def change(path: DataPath, *numbers: int) -> None:
    for number in numbers:
        path.put(f"c{number:03d}", {"name": "Bolt"})
    path.run_capture()


@OPLOG
def test_what_differs_may_be_too_much_for_one_delta(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB are 20,000 changes: 0.2 % of ten million documents."""
    monkeypatch.setattr("worm.tables.tasks.deltas.DELTA_BYTES", 1)
    path = path_of(oplog=oplog)
    change(path, 1, 31, 61, 91)
    assert rebuilt(path).changed == len(RANGES)
    root = path.table.manifest.root()
    assert root is not None
    assert len(root.deltas) == len(RANGES)
    assert path.verify().is_clean


@OPLOG
def test_a_range_with_too_many_new_entities_is_rebuilt_in_full(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an import between two ids that the table knows, one task would hold all names of it."""
    path = path_of(oplog=oplog)
    monkeypatch.setattr("worm.collections.division.IDS_OF_A_TASK_MAX", COUNT // len(RANGES))
    assert rebuilt(path).taken == COUNT
    for number in range(20):
        path.put(f"c010-{number}", {"name": "Acme"})
    path.run_capture()
    assert rebuilt(path).taken is None
    assert path.verify().is_clean


@OPLOG
@pytest.mark.parametrize("threshold", [20, 1000], ids=["spread", "whole"])
def test_what_a_task_leaves_of_its_range_is_staged_in_the_next_round(
    oplog: bool, threshold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows how ids are distributed before they are listed."""
    path, tasks = path_of(oplog=oplog, threshold=threshold), list[IdRange]()

    def noted(spec: JobSpec, within: IdRange) -> StagedRange:
        tasks.append(within)
        return stage(spec, within)

    monkeypatch.setattr("worm.spark.rebuild_job.stage", noted)
    monkeypatch.setattr("worm.collections.walks.IdWalk.PART_IDS", 4)
    monkeypatch.setattr("worm.collections.walks.IdWalk.TASK_IDS_MAX", 10)
    monkeypatch.setattr("worm.collections.walks.SPLIT", 3)
    path.table.rebuild()
    before = _bases(path)
    report = _round(path).run()
    assert (report.entities, report.live, report.taken) == (COUNT, COUNT, None)
    assert len(tasks) >= COUNT // 10
    assert _bases(path) == before, "a rebuild of what is right writes the same files"
    assert path.verify().is_clean


def _bases(path: DataPath) -> list[object]:
    roots = [path.table.manifest.root(), path.table.heads.root()]
    return [None if root is None else root.base for root in roots]


def test_large_deltas_do_not_keep_small_ones_from_being_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reader reads every delta: with each fold, there would be one more until the next rebuild."""
    monkeypatch.setattr("worm.tables.tasks.deltas.DELTA_BYTES", 1)
    monkeypatch.setattr("worm.tables.tasks.deltas.PARTITION_BYTES", 1)
    path = path_of()
    change(path, 1, 31, 61, 91)
    rebuilt(path)
    root = path.table.manifest.root()
    assert root is not None
    assert {one.level for one in root.deltas} == {LEVEL_MAX}
    monkeypatch.setattr("worm.tables.tree.PARTITION_BYTES", 2 * DELTAS_MAX * max(one.size for one in root.deltas))
    monkeypatch.setattr("worm.tables.tree.BASE_SHARE", 0)
    for number in range(2 * DELTAS_MAX):
        path.put(f"c{number:03d}", {"name": "Cord"})
        path.settle()
    root = path.table.manifest.root()
    assert root is not None
    assert [one.level for one in root.deltas if one.level < LEVEL_MAX] == [1, 1]
    assert path.verify().is_clean


@OPLOG
def test_deltas_are_merged_also_if_only_builds_write_the_manifest(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker merges them: there would be one more with each run of the job."""
    monkeypatch.setattr("worm.tables.tasks.deltas.BASE_SHARE", 0)
    monkeypatch.setattr("worm.tables.tree.BASE_SHARE", 0)
    path = path_of(oplog=oplog, autoUpdate=False)
    path.table.rebuild()
    for number in range(DELTAS_MAX):
        change(path, number)
        assert rebuilt(path).changed == 1
    root = path.table.manifest.root()
    assert root is not None
    assert [one.level for one in root.deltas] == [1]
    assert path.verify().is_clean


def test_a_damaged_delta_makes_the_table_unsound_also_if_deltas_are_divided() -> None:
    """The job would fail each time, and the sweep leaves a damaged table of that size to the job."""
    path = path_of()
    change(path, 1)
    rebuilt(path)
    root = path.table.manifest.root()
    assert root is not None
    (delta,) = root.deltas
    path.store.put(path.table.manifest.pieces.key(delta.file), b"{}")
    (found,) = RangeTasks(path.collection).delta_hints(("manifest", delta.file), [one.start for one in RANGES])
    compared = RangeTasks(path.collection).compare(RANGES[found[0]], [found[1]], is_listed=False, is_sliced=True)
    assert compared.is_unsound


@OPLOG
def test_index_and_sentinel_of_a_table_in_one_file_are_restored(oplog: bool) -> None:
    path = path_of(oplog=oplog, threshold=10_000, indexes=STATUS)
    names = path.collection.resolver
    lost = [names.index_key("Customer", "status"), names.collection_sentinel_key("Customer")]
    before = {key: path.store.get(key) for key in lost}
    for key in lost:
        path.store.delete(key)
    assert rebuilt(path).changed == 0
    for key, was in before.items():
        found = path.store.get(key)
        assert was is not None
        assert found is not None
        assert found.body == was.body
    more = STATUS | {"byName": {"field": "name"}}
    path.store.put(SCHEMA_KEY, load_schema({**path.schema, "models": _with(path, indexes=more)}).to_json())
    rebuilt(path)
    assert path.verify().is_clean


def _with(path: DataPath, **more: object) -> dict[str, object]:
    models = cast("dict[str, dict[str, object]]", path.schema["models"])
    return {"Customer": models["Customer"] | more}


# Beside others


def after(step: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once, when the tasks of this step are done. After `fold`, the deltas are written, but not in the table."""
    left = [act]

    def run(spark: object, work: Callable[[T], R], items: Sequence[T], about: str) -> list[R]:
        done = [work(one) for one in items]
        while about.endswith(f": {step}") and left:
            left.pop()()
        return done

    monkeypatch.setattr("worm.spark.rebuild_job.run", run)


def settle(path: DataPath, entity_id: str, name: str) -> None:
    path.put(entity_id, {"name": name})
    path.run_capture()
    path.run_fold(path.change_sets())


def names_of(path: DataPath, *ids: str) -> list[object]:
    manifest = path.table.manifest.read()
    assert manifest is not None
    return [manifest.entities[one]["name"] for one in ids]


@OPLOG
def test_one_fold_of_others_does_not_pass_for_the_fold_of_the_job(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an oplog, both have the same number, and the job once reported changes that it had not stored."""
    path = path_of(oplog=oplog)
    path.put("c001", {"name": "Bolt"})
    path.run_capture()
    path.change_sets()
    after("fold", monkeypatch, lambda: settle(path, "c050", "Cord"))
    assert rebuilt(path).changed == 1
    assert names_of(path, "c001", "c050") == ["Bolt", "Cord"]


def test_what_others_have_folded_since_the_job_began_is_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an oplog, nothing else shows which of two rows is newer; and the revision of a table never goes back."""
    path, revisions = path_of(oplog=False), list[int]()
    path.put("c001", {"name": "Bolt"})
    path.run_capture()
    path.change_sets()

    def act() -> None:
        settle(path, "c050", "Cord")
        settle(path, "c001", "Cord")
        revisions.append(revision_of(path))

    after("fold", monkeypatch, act)
    rebuilt(path)
    assert names_of(path, "c001", "c050") == ["Cord", "Cord"]
    assert revision_of(path) > revisions[0]


def revision_of(path: DataPath) -> int:
    root = path.table.manifest.root()
    assert root is not None
    return root.revision


@OPLOG
def test_rows_of_an_old_schema_are_not_put_into_a_new_table(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(oplog=oplog)
    change(path, 1)

    def act() -> None:
        fields = {"name": {"type": "string"}, "city": {"type": "string"}}
        path.store.put(SCHEMA_KEY, load_schema({**path.schema, "models": _with(path, fields=fields)}).to_json())
        path.table.rebuild()

    after("fold", monkeypatch, act)
    with pytest.raises(Overtaken):
        rebuilt(path)
    assert path.verify().is_clean


@pytest.mark.parametrize("step", ["compare", "fold"])
def test_rows_are_not_put_over_newer_ones_in_a_new_base(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job begins again. With an inventory, it would take the older row of its own fold for the newest one."""
    path = path_of(oplog=False)
    path.put("c001", {"name": "Bolt"})
    path.run_capture()
    path.change_sets()

    def act() -> None:
        settle(path, "c001", "Cord")
        path.table.tidy(force=True)

    after(step, monkeypatch, act)
    with pytest.raises(Overtaken):
        rebuilt(path)
    assert names_of(path, "c001") == ["Cord"]


def test_folds_between_the_reads_of_manifest_and_heads_do_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where somebody folds every second, each round found such an entity, and the third one failed. Somebody who adds
    an index to such a collection needs the base to be written again."""
    monkeypatch.setattr("worm.tables.tasks.deltas.FOLDED_BYTES_MAX", 0)
    path, folds = path_of(), count()
    change(path, 1)
    read = _StoredRange.__init__

    def between(stored: _StoredRange[Any], tree: Tree[Any], *rest: Any) -> None:
        if isinstance(tree, HeadsTree):
            settle(path, f"c{10 * next(folds) % COUNT:03d}", "Cord")
        read(stored, tree, *rest)

    monkeypatch.setattr(_StoredRange, "__init__", between)
    report = in_rounds(path)
    assert report.taken is not None
    assert next(folds) == 2 * len(RANGES), "in one round"
    assert names_of(path, "c001", "c000", "c070") == ["Bolt", "Cord", "Cord"]
    assert path.verify().is_clean


class _Between(RequestCounter):
    """Does something between two requests, now and then."""

    def __init__(self, chance: random.Random, acts: Sequence[Callable[[], object]], rate: float = RATE) -> None:
        super().__init__()
        self._chance = chance
        self._acts = acts
        self._rate = rate
        self._busy = threading.Lock()
        self.left = 0

    def add(self, kind: str, *, read: int = 0, written: int = 0) -> None:
        super().add(kind, read=read, written=written)
        if self.left and self._busy.acquire(blocking=False):
            try:
                if self._chance.random() < self._rate:
                    self.left -= 1
                    self._chance.choice(self._acts)()
            finally:
                self._busy.release()


@pytest.mark.slow
@pytest.mark.parametrize("writes", ["deltas", "base"])
@pytest.mark.parametrize("threshold", [2, 10_000], ids=["spread", "whole"])
@OPLOG
def test_uploads_folds_and_merges_between_any_two_requests_lose_nothing(
    oplog: bool, threshold: int, writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worm.tables.tasks.deltas.BASE_SHARE", 0 if writes == "deltas" else 4)
    monkeypatch.setattr("worm.tables.tasks.deltas.FOLDED_BYTES_MAX", 1 << 28 if writes == "deltas" else 0)
    changed = 0
    for seed in range(SEEDS):
        history = History(seed, oplog=oplog, threshold=threshold, indexes={})
        history.acts = [one for one in history.acts if one.__name__ not in ACCIDENTS]
        path, chance = history.path, history.chance
        history.run(30)
        starts = sorted(chance.sample(IDS, 2))
        ranges = [IdRange("", starts[0]), IdRange(starts[0], starts[1]), IdRange(starts[1])]
        monkeypatch.setattr("worm.spark.rebuild_job.compared_ranges", lambda spark, spec, found=ranges: found)
        for _ in range(6):
            history.upload()
        if oplog:
            path.run_capture()
        history.lose()  # the tables never hear of it
        meanwhile: list[Callable[[], object]] = [history.remove, partial(_settled, history)]
        meanwhile += [partial(_settled, history), partial(_merged, path)]
        path.store.requests = between = _Between(chance, meanwhile)
        between.left = ACTS
        with suppress(Unavailable):  # others folded all the time
            changed += in_rounds(path).changed
        between.left = 0
        path.run_capture()
        history.fold_all()
        found, full = _content(path), path.fork()
        full.table.rebuild()
        assert found == _content(full), seed
    assert changed, "otherwise nothing is tested"


@pytest.mark.slow
@pytest.mark.parametrize("writes", ["deltas", "base"])
@OPLOG
def test_an_old_inventory_makes_no_row_older_than_what_is_folded_meanwhile(
    oplog: bool, writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If everything is folded in the end, the table is that of a full rebuild, whatever the inventory shows."""
    monkeypatch.setattr("worm.tables.tasks.deltas.BASE_SHARE", 0 if writes == "deltas" else 4)
    monkeypatch.setattr("worm.tables.tasks.deltas.FOLDED_BYTES_MAX", 1 << 28 if writes == "deltas" else 0)
    read = 0
    for seed in range(2 * SEEDS):
        history = History(seed, oplog=oplog, threshold=2, indexes={})
        history.acts = [one for one in history.acts if one.__name__ not in ACCIDENTS | {"lose"}]
        path, chance = history.path, history.chance
        history.run(30)
        listing = inventoried(path)
        history.run(chance.choice([0, 5, 20]))
        starts = sorted(chance.sample(IDS, 2))
        ranges = [IdRange("", starts[0]), IdRange(starts[0], starts[1]), IdRange(starts[1])]
        monkeypatch.setattr("worm.spark.rebuild_job.compared_ranges", lambda spark, spec, found=ranges: found)
        monkeypatch.setattr(_SparkEngine, "compare", partial(_compared, path, ranges, listing))
        monkeypatch.setattr(_SparkEngine, "_ranges", ranges, raising=False)
        meanwhile: list[Callable[[], object]] = [history.remove, partial(_settled, history), partial(_merged, path)]
        path.store.requests = between = _Between(chance, meanwhile, OFTEN)
        between.left = MANY_ACTS
        with suppress(Unavailable):
            report = in_rounds(path)
            read += report.entities - (report.taken or 0)
        between.left = 0
        path.run_capture()
        history.fold_all()
        found, full = _content(path), path.fork()
        full.table.rebuild()
        assert found == _content(full), seed
    assert read, "otherwise no inventory was old"


def _compared(path: DataPath, ranges: Sequence[IdRange], listing: Listing, deltas: object) -> list[ComparedRange]:
    return [Comparing(path.table, one, listing).run(Staging(path.collection)) for one in ranges]


def _settled(history: History) -> None:
    for _ in range(3):
        history.upload()
    history.path.run_capture()
    history.fold_all()


def _merged(path: DataPath) -> None:
    path.table.tidy(force=True)
    path.table.heads.tidy(force=True)


def _content(path: DataPath) -> tuple[object, ...]:
    manifest, heads = path.table.manifest.read(), path.table.heads.read()
    assert manifest is not None
    return manifest.entities, manifest.seqs, manifest.etags, heads and heads.heads
