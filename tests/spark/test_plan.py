"""The plan of a billion documents, on paper: the numbers of the real jobs, and what the driver does with them."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators import ROOT
from tests.examples import examples
from tests.harness import DataPath, schema_of
from tests.spark.collection_room import spec_of
from worm.clock import Ids
from worm.collections.claim_slices import DIGITS, slice_of, slices_for
from worm.collections.claims import Digests
from worm.collections.division import IDS_OF_A_TASK_MAX, grouped, tasks_for
from worm.collections.id_ranges import IdRange
from worm.errors import Invalid
from worm.formats import load_schema
from worm.spark.frames import slots
from worm.spark.plan_text import SIZES, billion, plan, stages, usd
from worm.spark.rebuild_job import stage as stage_rows
from worm.spark.rebuild_tasks import far_apart
from worm.spark.shares import planned_ranges, planned_shares
from worm.spark.verify_tasks import LEFT_MAX, Mended, _checked
from worm.tables.index import parts_wanted
from worm.tables.layout import HEADS_PARTS_MAX
from worm.tables.root import Piece, cuts, encode_directory
from worm.tables.tasks import paper as planning
from worm.tables.tasks.deltas import FOLDED_BYTES_MAX
from worm.tables.tasks.incremental import RangeTasks
from worm.tables.tasks.paper import (
    BYTES_OF_A_TASK_MAX,
    JOBS,
    JobPlan,
    Paper,
    _example_definition,
)
from worm.tables.tasks.staging import (
    Measurement,
    PartPlan,
    Question,
    StagedFile,
    Staging,
    Wish,
    overlapping,
    part_plans,
    questions,
    starts_of,
)
from worm.upkeep.costs import Prices

BILLION = 1_000_000_000


@pytest.mark.parametrize("documents", [1, 5_000, 123_456, 1_000_000, *SIZES, 3_000_000_000])
@pytest.mark.parametrize("job", JOBS)
def test_no_task_grows_with_the_collection(job: str, documents: int) -> None:
    for stage in plan(job, Paper.example(documents)).stages:
        assert stage.ids <= IDS_OF_A_TASK_MAX, stage
        assert stage.bytes <= BYTES_OF_A_TASK_MAX, stage
        assert stage.held <= BYTES_OF_A_TASK_MAX, stage
        assert stage.tasks >= 1, stage


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("kept", [{"oplog": False}, {"indexes": {}, "manifest": {"enabled": False}}], ids=str)
def test_what_a_model_does_not_keep_is_not_in_its_plan(job: str, kept: dict[str, Any]) -> None:
    definition = load_schema(schema_of(**kept)).model("Customer")
    of_all, less = (plan(job, Paper(100_000_000, one)) for one in (_example_definition(), definition))
    assert less.largest <= of_all.largest
    assert sum(less.requests.values()) < sum(of_all.requests.values()) or job == "export"


@pytest.mark.parametrize("row_bytes", [120, 350, 2_000])
def test_no_task_grows_with_small_or_large_rows(row_bytes: int) -> None:
    definition = _example_definition()
    for job in JOBS:
        ids, _, held = plan(job, Paper(100_000_000, definition, row_bytes=row_bytes)).largest
        assert ids <= IDS_OF_A_TASK_MAX
        assert held <= BYTES_OF_A_TASK_MAX


def test_ten_times_the_documents_are_ten_times_the_tasks_and_the_requests() -> None:
    for job in JOBS:
        smaller, larger = (plan(job, Paper.example(size)) for size in SIZES[1:])
        assert 9 < larger.tasks / smaller.tasks < 11
        assert 8.8 < sum(larger.requests.values()) / sum(smaller.requests.values()) < 11  # heads have 100,000 parts
        # Only the directories of the table grow: 3 MB in memory for 10 million documents.
        assert larger.largest == pytest.approx(smaller.largest, rel=0.25)


def test_an_incremental_rebuild_of_one_percent_takes_a_tenth_of_the_requests() -> None:
    for size in SIZES:
        full, some = (sum(plan(job, Paper.example(size)).requests.values()) for job in JOBS if "re" in job)
        assert some < 0.1 * full


def test_changes_are_folded_until_they_are_too_many_for_deltas() -> None:
    plans = [plan("incremental", Paper.example(size)) for size in SIZES]
    folds = [any(stage.name == "fold" for stage in one.stages) for one in plans]
    assert folds == [one.documents * 3.5 <= FOLDED_BYTES_MAX for one in plans]  # 1 % of rows of 350 bytes
    assert folds == [True, False, False]


def test_every_task_can_hold_the_directories_of_a_billion() -> None:
    """Each task that reads the table reads them."""
    paper = Paper.example(3 * BILLION)
    assert paper.heads == HEADS_PARTS_MAX
    assert max(paper.directories) * planning.PIECE_BYTES < BYTES_OF_A_TASK_MAX // 10
    pieces = [
        Piece(f"heads-{at}-{at:016x}.json", 10_000, 1_450_000, f"{at:08x}-0000-4000-8000-{at:012x}")
        for at in range(1000)
    ]
    body = encode_directory("Customer", [replace(pieces[0], start=""), *pieces[1:]])
    assert len(body) / len(pieces) == pytest.approx(planning.PIECE_BYTES, rel=0.1)


COUNT, MOST = 1_200, 4


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_the_requests_of_a_plan_are_those_that_tasks_make(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.tables.layout.HEADS_PER_PART", 100)
    monkeypatch.setattr("worm.spark.shares.parallelism", lambda spark: MOST)
    monkeypatch.setattr("worm.collections.division.STEP", 50)
    monkeypatch.setattr("worm.collections.division.PORTION_IDS", 250)
    monkeypatch.setattr("worm.collections.walks.IdWalk.PART_IDS", 100)
    manifest = {"enabled": True, "partitionThreshold": 200}
    path = DataPath(schema_of(oplog=oplog, softDelete=False, indexes={}, manifest=manifest))
    chance = Ids.seeded(1)
    ids = [chance.uuid() for _ in range(COUNT)]
    for score in (0, 1):  # 1.5 entries for each document
        for entity_id in ids[:: score + 1]:
            path.put(entity_id, {"name": "Acme", "score": score})
        path.sweep()
    path.table.rebuild()
    for entity_id in ids[::100]:
        path.put(entity_id, {"name": "Acme", "score": 2})
    path.run_capture()
    spec, collection = spec_of(path), path.collection
    paper, spent = Paper(COUNT, collection.definition), path.store.requests.measure
    ranges, shares = planned_ranges(cast(Any, None), spec), planned_shares(cast(Any, None), spec)
    assert len(ranges) == len(shares) == tasks_for(COUNT, MOST)
    with spent() as staged:
        files = [file for within in ranges for file in stage_rows(spec, within).files]
    with spent() as compared:
        found = [RangeTasks(collection).compare(within, (), is_listed=False, is_sliced=False) for within in ranges]
    with spent() as checked:
        rows = [row for share in shares for row in _checked(spec, share)]
    assert (sum(file.count for file in files), sum(one.read for one in found)) == (COUNT, COUNT // 100)
    assert rows
    for job, name, counted in (
        ("rebuild", "stage", staged),
        ("incremental", "compare", compared),
        ("verify", "check", checked),
    ):
        (expected,) = (one.requests for one in JobPlan.of(job, paper, MOST).stages if one.name == name)
        assert counted["GET"] == pytest.approx(expected["GET"], rel=0.02, abs=10), name
        lists = [one.get("LIST", 0) + one.get("VERSIONS", 0) for one in (counted, expected)]
        assert lists[0] == pytest.approx(lists[1], rel=0.2), name
        assert bool(counted.get("VERSIONS")) is bool(oplog and job != "rebuild")
        assert counted.get("PUT", 0) <= max(expected.get("PUT", 0), len(ranges))


def test_the_documentation_shows_the_plan_that_the_functions_give() -> None:
    shown = Path(ROOT, "docs", "emr.md").read_text()
    assert "\n".join(billion()) in shown, "\n".join(billion())


@pytest.mark.parametrize("job", JOBS)
def test_no_task_of_a_small_collection_has_more_than_its_documents(job: str) -> None:
    paper = Paper.example(30)
    assert all(stage.ids <= 30 * paper.indexes for stage in plan(job, paper).stages)


def test_the_plan_has_prices_and_says_what_it_knows() -> None:
    one = plan("rebuild", Paper.example(BILLION))
    s3, compute = usd(one, Prices.read())
    assert s3 > compute > 0
    assert len(stages(one)) == 2 + len(one.stages)
    with pytest.raises(Invalid, match="no plan of 'purge'"):
        plan("purge", Paper.example(1))


def test_tasks_follow_the_rows_and_not_only_the_processors() -> None:
    assert [tasks_for(rows, 8) for rows in (0, 10_000, 100_000, 10_000_000)] == [2, 2, 8, 100]


@pytest.mark.parametrize("slices", [2, 3, 16, 17, 1_000, 20_000])
def test_slices_cover_every_name_of_a_claim_once(slices: int) -> None:
    ranges = [slice_of(number, slices) for number in range(slices)]
    assert (ranges[0].start, ranges[-1].end) == ("", None)
    assert all(one.end == other.start for one, other in itertools.pairwise(ranges))
    for name in range(0, 16**DIGITS, 65_521):
        number = name * slices >> 4 * DIGITS  # as Spark computes it
        assert _holds(ranges[number], f"{name:0{DIGITS}x}{'0' * 58}")


def _holds(names: Digests, name: str) -> bool:
    return name > names.start and (names.end is None or name < names.end)


def test_many_claims_have_many_slices() -> None:
    assert [slices_for(values) for values in (10, 50_000, 1_000_000, BILLION)] == [2, 10, 20, 20_000]


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 3_000))
def test_every_task_has_a_slot(tasks: int) -> None:
    found = slots(tasks)
    assert len(set(found)) == tasks


# The driver


def _files(count: int) -> list[StagedFile]:
    """Staged files of 20,000 ids each."""
    starts = range(0, count, 20_000)
    return [
        StagedFile(f"stage-{at:016x}.json", f"{at:032d}", f"{at + 19_999:032d}", 20_000, 20_000, 1) for at in starts
    ]


@pytest.mark.slow
def test_the_driver_plans_a_billion_documents_in_bounded_space() -> None:
    """It takes some seconds. If a step looked at every file for every part, it would take hours."""
    files = _files(BILLION)
    parts = Paper.example(BILLION).heads
    carried = ("", *(f"{at * BILLION // parts:032d}" for at in range(1, parts)))
    wishes = [Wish("heads", tuple(cuts(BILLION, parts)), carried, may_carry=True, is_heavy=False)]
    asked = grouped(questions(files, wishes), tasks_for(BILLION, 240))
    sent = [len(pickle.dumps(group)) for group in asked]
    answers = [_answer(question) for group in asked for question in group]
    plans = part_plans("heads", starts_of(wishes, answers)["heads"], files, lambda within: None)
    work = grouped(plans, tasks_for(BILLION, 240))
    assert len(plans) == parts
    assert max(sent) < 20_000, "a task gets only what concerns its files"
    assert max(len(one.files) for one in plans) <= 2
    assert max(map(_rows, work)) <= IDS_OF_A_TASK_MAX


def _answer(question: Question) -> Measurement:
    """Of a file in which the ids are spread evenly."""
    ids = tuple(tuple(f"{at:032d}" for at in several) for several in question.positions)
    weights = tuple((0,) * (len(several) + 1) for several in question.positions)
    counts = tuple((20_000 // max(1, len(several)),) * len(several) for several in question.carried)
    return Measurement(ids, weights, counts, counts, (), question.first)


def _rows(group: list[PartPlan]) -> int:
    return sum(int(one.within.end) - int(one.within.start or 0) for one in group if one.within.end is not None)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sets(st.text("abc", min_size=1, max_size=3), min_size=2, max_size=30), st.text("abc", max_size=3), st.text("abc")
)
def test_files_and_pieces_of_a_range_are_found_without_looking_at_all(ids: set[str], start: str, end: str) -> None:
    within, ordered = IdRange(start, end if end > start else None), sorted(ids)
    pairs = [ordered[at : at + 2] for at in range(0, len(ordered), 2)]
    files = [StagedFile(one[0], one[0], one[-1], len(one), 0) for one in pairs]
    wanted = [one.file for one in files if one.last >= start and (within.end is None or one.first < within.end)]
    assert list(Staging.within(files, within)) == wanted
    pieces = [Piece(one, 1, 1, one) for one in ["", *ordered]]
    assert overlapping(pieces, within) == [
        piece
        for piece, stop in zip(pieces, [*ordered, None], strict=True)
        if (stop is None or stop > start) and (within.end is None or piece.start < within.end)
    ]


def test_small_work_is_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.collections.division.ROWS_PER_TASK", 10)
    assert tasks_for(25, 8) == 3
    assert grouped([1, 2, 3], 2) == [[1, 2], [3]]


def test_the_driver_keeps_only_the_first_of_many_problems() -> None:
    total, one = Mended(), Mended()
    for number in range(LEFT_MAX + 5):
        one.leave(f"k{number}", "gone")
    assert (len(one.left), one.left_count) == (LEFT_MAX, LEFT_MAX + 5)
    total.add(one, 3)
    total.add(Mended(2, {"k0": "again"}, 1), 3)
    assert (total.appended, len(total.left), total.left_count) == (2, 3, LEFT_MAX + 5)


def test_parts_of_an_index_are_as_many_as_the_setting_says_until_they_would_be_too_large() -> None:
    assert [parts_wanted(pairs, 16) for pairs in (1, 100_000, 3_200_000, 100_000_000)] == [1, 5, 16, 500]


def test_tasks_that_run_together_are_far_apart_in_the_keys() -> None:
    assert far_apart(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    for count in (0, 1, 2, 3, 48, 1000):
        order = far_apart(count)
        assert sorted(order) == list(range(count))
    order = far_apart(1000)
    for together in (10, 50, 100):
        first = sorted(order[:together])
        gaps = [after - before for before, after in pairwise(first)]
        assert min(gaps) >= 1000 // together // 2
