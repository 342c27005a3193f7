"""The acceptance list of the object-storage backend, item by item.

Its first two items are also shown with processes that are killed and stopped (`test_pages_processes.py`,
`tests/log/test_log_processes.py`), the last one with seeds (`test_pages_simulation.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.emulators import CREDENTIALS, new_bucket
from tests.log.witness import Witness
from tests.pages.page_room import DB, MIN_AGE, Oracle, Room, config
from tests.pages.page_witness import PageWitness
from tests.pages.test_pages_simulation import simulate
from worm.dev.aws import Aws, start_moto
from worm.errors import Fenced, SnapshotExpired
from worm.log.reader import LogReader
from worm.pages.apply import Applier
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.reader import PageReader
from worm.store.base import Store
from worm.store.faulty_store import SimulatedCrash
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store

PAGES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("is_acked", [False, True])
def test_1_experiment_4_no_acknowledged_commit_is_lost_and_none_is_torn(is_acked: bool) -> None:
    """The process dies (a) after the compare-and-swap, before the ack; (b) after the ack, before any layer."""
    room = Room()
    for number in range(20):
        db = room.db()
        pages: dict[str, bytes | None] = dict.fromkeys(PAGES, b"%d" % number)
        if is_acked:
            db.write(pages, txn=f"t{number}")
        else:
            room.store.crash_at_write(room.store.writes + 1, "after")
            with pytest.raises(SimulatedCrash):
                db.write(pages, txn=f"t{number}")
            room.store.revive()
        assert room.reader().get_pages(PAGES) == pages, "it is in the log, and so it is there, whole"
        head = room.reader().head_lsn
        assert room.db().write(pages, txn=f"t{number}") == head, "asked for again, it is not written again"
        if number % 5 == 4:
            room.apply()
    PageWitness(room.memory, DB).check()


def test_2_of_two_writers_one_survives_and_the_other_is_fenced() -> None:
    room = Room()
    witness = Witness()
    writers = [room.db(), room.db()]
    for number in range(6):
        for db in writers:
            try:
                db.write({"a": b"%d" % number}, txn=f"t{number}-{writers.index(db)}")
            except Fenced:
                witness.refused.add(f"t{number}-{writers.index(db)}")
    assert witness.refused == {f"t{number}-0" for number in range(6)}
    txns = [entry.txn for segment in LogReader(room.memory, DB).segments() for entry in segment.entries]
    assert txns == [f"t{number}-1" for number in range(6)]
    with pytest.raises(Fenced):
        writers[0].write({"a": b"x"})
    writers[0].flush()  # its own, which anybody may
    assert writers[1].flush() == writers[1].head_lsn
    assert room.reader().get_page("a") == b"5"
    PageWitness(room.memory, DB).check()


def test_3_a_read_gives_the_version_at_or_before_its_lsn_across_memory_deltas_and_images() -> None:
    room = Room(delta_layer_target_bytes=1024, image_layer_target_bytes=1024, compaction_cadence_layers=2)
    oracle, chance, db = Oracle.empty(), Random(2), room.db()
    for number in range(40):
        pages = {page: chance.choice([None, chance.randbytes(200)]) for page in chance.sample(PAGES, 2)}
        oracle.write("main", db.write(pages), pages)
        if number % 4 == 3 and number < 36:
            db.flush()
        if number in (15, 27):
            room.compact(force=True)
    assert {layer.level for layer in room.layers()} == {0, 1, 2}
    assert db.head_lsn > room.branch().lsn, "and some is in memory only"
    reader = room.reader()
    for lsn in range(db.head_lsn + 1):
        assert reader.get_pages(PAGES, lsn) == oracle.state("main", lsn, PAGES)
        assert db.get_pages(PAGES, lsn) == oracle.state("main", lsn, PAGES)


@pytest.mark.slow
def test_4_flush_compaction_and_collection_bring_the_number_of_layers_down_and_keep_the_window_and_branches() -> None:
    room = Room(pitr_window_seconds=60, compaction_cadence_layers=4, delta_layer_target_bytes=1 << 16)
    oracle, db = Oracle.empty(), room.db()
    counts, kept = [], None
    for number in range(40):
        for lsn, pages in room.grow(db, PAGES, 1, seed=number).items():
            oracle.write("main", lsn, pages)
        room.clock.advance(10)
        if number == 5:
            kept = room.branches.create("old").base
        counts.append(len(room.layers()))
        if number % 8 == 7:
            room.compact(force=True)
            room.collect()
            counts.append(len(room.layers()))
            horizon = room.branch().horizon
            for lsn in range(horizon, db.head_lsn + 1):
                assert room.reader().get_pages(PAGES, lsn) == oracle.state("main", lsn, PAGES)
            assert kept is not None
            assert room.reader("old").get_pages(PAGES) == oracle.state("main", kept, PAGES)
    assert room.branch().horizon > (kept or 0)
    room.clock.advance(100)
    for _ in range(2):
        room.compact(force=True)
        room.collect()
        room.clock.advance(2 * MIN_AGE)
    counts.append(len(room.layers()))
    assert max(counts) >= 8
    assert counts[-1] < max(counts) / 2
    with pytest.raises(SnapshotExpired):
        room.reader().get_page("a", room.branch().horizon - 1)
    room.branches.delete("old")
    room.collect()
    assert len(room.layers()) == 1, "one image is left when nobody needs the past"
    PageWitness(room.memory, DB).check()


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    aws = start_moto(tmp_path_factory.mktemp("moto"), "us-east-1")
    yield aws
    aws.stop()


@pytest.fixture(params=["memory", "files", pytest.param("s3", marks=pytest.mark.slow)])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "files":
        return FileStore(tmp_path)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    url = request.getfixturevalue("moto").endpoint_url
    return S3Store(new_bucket(url), endpoint_url=url)


def test_6_the_same_code_runs_on_every_store(any_store: Store) -> None:
    """Configuration chooses the store; MinIO and R2 speak S3 (`tests/log/test_log_matrix.py` has their answers)."""
    create_database(any_store, DB, config(compaction_cadence_layers=2, pitr_window_seconds=0))
    with PageDb.open(any_store, DB) as db:
        for number in range(6):
            db.write(dict.fromkeys(PAGES, b"%d" % number))
            db.flush()
    Applier(any_store, DB).run()
    Compactor(any_store, DB).run(force=True)
    PageCollector(any_store, DB).run()
    reader = PageReader.open(any_store, DB)
    assert reader.get_pages(PAGES) == dict.fromkeys(PAGES, b"5")
    assert [version.page for version in reader.scan("b", "d")] == ["b", "c"]


def test_7_the_append_and_apply_loop_under_injected_faults() -> None:
    simulation = simulate(1)
    assert simulation.record.done["commit"] > 0
