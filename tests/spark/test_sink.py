"""Tasks of a streaming write, run in this process: a batch that is written again changes nothing, and does not undo
what others did in the meantime."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from tests.spark.source_room import SourceRoom, memory_url
from worm.errors import Conflict, Fenced, Invalid
from worm.formats.strict_json import JsonObject
from worm.sdk.database import Worm
from worm.sdk.jobs import JobModel
from worm.spark.source import writer
from worm.spark.source.options import SinkOptions
from worm.spark.source.saving import Saver
from worm.spark.source.sink import Batch, StreamSink, begun, write_batch
from worm.spark.source.writer import Writing, Written
from worm.store.base import metered
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.tables.verify import verify_collection

Row = Mapping[str, object]
Documents = Sequence[tuple[str, JsonObject | None]]
QUERY = "8a6f0b6e-0000-4000-8000-000000000001"


class SinkRoom(SourceRoom):
    """`run` is the process of the query: another one after each restart."""

    def put(self, number: int, rows: Iterator[Row] | list[Row], run: str = "one", bulk: int = 500) -> Mapping[str, int]:
        done = write_batch(self.sinking(bulk=bulk), Batch(QUERY, number, run), iter(rows))
        assert isinstance(done, Written)
        assert done.refused == {}
        return done.counts

    def sinking(self, *, overwrite: bool = True, bulk: int = 500) -> Writing:
        return replace(self.writing(overwrite=overwrite, batch=str(bulk)), deletes=True)

    def names(self) -> dict[str, object]:
        return {str(one["id"]): one.get("name") for one in self.things.find_all()}


@pytest.fixture
def room() -> SinkRoom:
    return SinkRoom(memory_url())


def rows(*names: str, **more: object) -> list[Row]:
    """`a1` is the document `a` with the name `a1`."""
    return [{"id": one[0], "name": one, "_deleted": False, **more} for one in names]


def deletion(one: str) -> Row:
    return {"id": one, "name": None, "_deleted": True}


def test_rows_become_documents_and_existing_ones_are_changed(room: SinkRoom) -> None:
    assert room.put(0, rows("a1", "b1")) == {"created": 2}
    assert room.put(1, [*rows("a2"), deletion("b"), deletion("nobody")]) == {"updated": 1, "deleted": 1, "unchanged": 1}
    assert room.names() == {"a": "a2"}
    assert room.histories() == {"a": ["create", "update"], "b": ["create", "delete"]}
    history = [*room.things.get_history("a"), *room.things.get_history("b")]
    assert [(entry.metadata["stream"], entry.metadata["batch"]) for entry in history] == [
        (QUERY, 0),
        (QUERY, 1),
        (QUERY, 0),
        (QUERY, 1),
    ]
    assert verify_collection(room.spec.collection()).is_clean


def test_a_batch_that_is_written_again_changes_nothing(room: SinkRoom) -> None:
    room.put(0, rows("a1", "b1", "c1"))
    batch = [*rows("a2", "d1", "a3"), deletion("b"), *rows("c2")]
    room.put(1, batch)
    before, names = room.histories(), room.names()
    for run in ("two", "three"):
        assert set(room.put(1, batch, run=run)) == {"unchanged"}
    assert (room.histories(), room.names()) == (before, names)


def test_a_later_attempt_leaves_alone_what_others_did_in_the_meantime(room: SinkRoom) -> None:
    room.put(0, rows("a1", "b1", "c1"))
    batch = [*rows("a2", "d1"), deletion("b"), deletion("c")]
    room.put(1, batch)
    room.things.patch("a", {"name": "by others"})
    room.things.delete("d")
    room.things.save({"id": "b", "name": "by others"})
    assert room.put(1, batch, run="two") == {"unchanged": 4}
    assert room.names() == {"a": "by others", "b": "by others"}
    assert room.put(2, rows("a5"), run="two") == {"updated": 1}


def test_an_attempt_of_the_next_day_recognizes_the_first_one(room: SinkRoom) -> None:
    """The driver was down for a day. The history is searched from the start of the first attempt."""
    room.put(0, rows("a1"))
    room.put(1, rows("a2"))
    room.things.patch("a", {"name": "by others"})
    next_day = replace(room.sinking(), start=datetime.now(UTC) + timedelta(days=1))
    done = write_batch(next_day, Batch(QUERY, 1, "two"), iter(rows("a2")))
    assert isinstance(done, Written)
    assert (done.counts, room.names()) == ({"unchanged": 1}, {"a": "by others"})


def test_times_of_the_frame_do_not_hide_an_earlier_attempt(room: SinkRoom) -> None:
    given = rows("a1", updatedAt="2020-01-01T00:00:00.000Z", createdAt="2020-01-01T00:00:00.000Z")
    room.put(0, given)
    room.things.delete("a")
    assert room.put(0, given, run="two") == {"unchanged": 1}
    assert room.names() == {}


@pytest.mark.parametrize("seed", range(40))
def test_attempts_that_die_anywhere_end_with_the_last_row_of_each_document(seed: int) -> None:
    """Also with several rows for a document that go back and forth."""
    room, rng = SinkRoom(memory_url()), random.Random(seed)
    expected: dict[str, object] = {}
    for number in range(4):
        batch: list[Row] = []
        for _ in range(rng.randrange(1, 12)):
            one = rng.choice("abcd")
            is_deleted = rng.random() < 0.3
            batch += [deletion(one)] if is_deleted else rows(f"{one}{rng.randrange(3)}")
            expected[one] = None if is_deleted else batch[-1]["name"]
        for attempt in range(rng.randrange(4)):
            with pytest.raises(ConnectionResetError):
                room.put(number, _dying(batch, rng.randrange(len(batch))), run=f"{number}.{attempt}", bulk=2)
        room.put(number, batch, run=f"{number}.last", bulk=2)
        before = room.histories()
        assert room.names() == {one: name for one, name in expected.items() if name is not None}
        assert set(room.put(number, batch, run=f"{number}.again")) == {"unchanged"}
        assert room.histories() == before
    assert verify_collection(room.spec.collection()).is_clean


def _dying(batch: list[Row], after: int) -> Iterator[Row]:
    yield from batch[:after]
    raise ConnectionResetError("the executor was killed")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("soft_delete", [True, False], ids=["soft", "hard"])
def test_a_batch_whose_attempts_die_at_any_write_is_recorded_in_the_end(
    soft_delete: bool, when: Literal["before", "after"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that dies after a deletion and before its history leaves a row in the table for a document that is
    gone, and the next attempt finds nothing to delete."""
    for number in range(1, 25):
        room = SinkRoom(memory_url(), softDelete=soft_delete)
        room.put(0, rows("a1", "b1", "c1"))
        faulty = FaultyStore(room.session.store)
        session = Worm(faulty, room.spec.schema(), probe=False)
        monkeypatch.setattr(writer, "_session", lambda spec, options, session=session: session)
        faulty.crash_at_write(number, when)
        batch = [*rows("a2", "d1"), deletion("b"), deletion("c")]
        try:
            room.put(1, batch)
        except SimulatedCrash:
            faulty.revive()
        else:
            break
        monkeypatch.undo()
        room.put(1, batch, run="two")
        assert room.names() == {"a": "a2", "d": "d1"}
        assert room.histories() == {
            "a": ["create", "update"],
            "b": ["create", "delete"],
            "c": ["create", "delete"],
            "d": ["create"],
        }
        assert verify_collection(room.spec.collection()).is_clean
    assert number > 10


def test_a_task_of_an_old_batch_is_refused(room: SinkRoom) -> None:
    room.put(4, rows("a1"))
    with pytest.raises(Fenced, match="batch 3 of the stream is over"):
        room.put(3, rows("a0"), run="zombie")
    assert room.names() == {"a": "a1"}


@pytest.mark.parametrize("is_checked", [True, False], ids=["between", "while it saves"])
def test_a_late_attempt_leaves_later_batches_alone(
    room: SinkRoom, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python process of a killed executor may still have rows of its task, while others finish the batch and begin
    the next one. It notices that before it saves more; if it is saving just then, the history shows it."""
    room.put(0, rows("a1", "b1"))
    batch = [*rows("a2", "d1"), deletion("b")]

    def late() -> Iterator[Row]:
        yield from batch
        room.put(1, batch, run="two")
        room.put(2, [*rows("a3", "b3"), deletion("d")], run="two")
        if not is_checked:
            monkeypatch.setattr(Saver, "save", unchecked)

    def unchecked(saver: Saver, documents: Documents, save: Callable[[Saver, Documents], None] = Saver.save) -> None:
        save(replace(saver, check=lambda: None), documents)

    message = "batch 1 of the stream is over" if is_checked else "another attempt or task of this batch has changed"
    with pytest.raises(Fenced, match=message):
        room.put(1, late())
    assert room.names() == {"a": "a3", "b": "b3"}
    assert room.histories() == {
        "a": ["create", "update", "update"],
        "b": ["create", "delete", "create"],
        "d": ["create", "delete"],
    }


@pytest.mark.parametrize("step", ["find_many", "save_over"])
def test_a_late_attempt_that_stalls_does_not_undo_what_a_later_batch_did(
    room: SinkRoom, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still before it reads or writes documents, while others finish its batch and the next one. The
    history says nothing of its batch: the document was as it should be."""
    room.put(0, rows("a1", "b1"))
    plain = getattr(JobModel, step)

    def stalled(model: JobModel, *given: object) -> object:
        monkeypatch.setattr(JobModel, step, plain)
        room.put(1, rows("a1", "b2"), run="two")
        room.put(2, [*rows("a2"), deletion("b")], run="two")
        return plain(model, *given)

    monkeypatch.setattr(JobModel, step, stalled)
    with pytest.raises(Fenced, match="batch 1 of the stream is over"):
        room.put(1, rows("a1", "b2"))
    assert room.names() == {"a": "a2"}
    assert room.histories() == {"a": ["create", "update"], "b": ["create", "update", "delete"]}


def test_a_late_attempt_with_many_rows_of_a_document_stops(room: SinkRoom) -> None:
    """It would save all of them again, and the last one would stay."""

    def late() -> Iterator[Row]:
        yield from rows("a1")
        room.put(1, rows("a1", "a2"), run="two")
        room.put(2, rows("a3"), run="two")
        yield from rows("a2")

    with pytest.raises(Fenced, match="batch 1 of the stream is over"):
        room.put(1, late())
    assert room.names() == {"a": "a3"}


@dataclass
class Stalls:
    """Attempts that stand still at any step while others write their batch again and go on to the end. `steps` are the
    calls of the saver where that may happen; a row is always one."""

    room: SinkRoom
    rng: random.Random
    batches: Sequence[list[Row]]
    steps: Sequence[str]
    stalled: int = 0

    def run(self, number: int, *, again: bool = False) -> None:
        """Write this batch and all after it. `again`: an attempt of this batch stands still."""
        if number == len(self.batches):
            return
        step = "" if again else self.rng.choice(["", "row", *self.steps])
        left, goes_on = self.rng.randrange(len(self.batches[number])), True

        def stall(here: str) -> None:
            nonlocal left, goes_on
            left -= here == step
            if here == step and left < 0 and goes_on:
                goes_on = False
                self.stalled += 1
                self.run(number, again=True)

        def rows_until() -> Iterator[Row]:
            for row in self.batches[number]:
                stall("row")
                yield row

        with pytest.MonkeyPatch.context() as patched:
            for name in self.steps:
                patched.setattr(JobModel, name, _after(stall, name))
            try:
                run = f"{number}-{again}-{self.rng.random()}"
                self.room.put(number, rows_until(), run=run, bulk=self.rng.randrange(1, 4))
            except Fenced:
                assert not goes_on
        if goes_on:
            self.run(number + 1)


def _after(stall: Callable[[str], None], name: str) -> Callable[..., object]:
    plain = getattr(JobModel, name)

    def stalled(model: JobModel, *given: object) -> object:
        stall(name)
        return plain(model, *given)

    return stalled


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("steps", [["find_many"], ["find_many", "save_over"]], ids=["reads", "reads and writes"])
def test_attempts_that_stand_still_anywhere_undo_nothing(seed: int, steps: list[str]) -> None:
    """No deletions if writes may stand still: see the exceptions in docs/spark.md."""
    room, rng = SinkRoom(memory_url()), random.Random(seed)
    batches: list[list[Row]] = []
    expected: dict[str, object] = {}
    for number in range(3):
        batches.append([])
        for at in range(rng.randrange(1, 8)):
            one, is_deleted = rng.choice("abcd"), len(steps) == 1 and rng.random() < 0.25
            batches[-1] += [deletion(one)] if is_deleted else rows(f"{one}{number}{at}")
            expected[one] = batches[-1][-1]["name"]
    life = Stalls(room, rng, batches, steps)
    life.run(0)
    assert room.names() == {one: name for one, name in expected.items() if name is not None}
    assert verify_collection(room.spec.collection()).is_clean


def test_a_late_attempt_does_not_leave_an_older_row_behind(room: SinkRoom) -> None:
    """It saves the rows of a document one after the other, and may be killed before the last one."""

    def late() -> Iterator[Row]:
        yield from rows("b1", "a1")
        assert room.put(1, rows("b1", "a1", "a2"), run="two") == {"created": 2}
        yield from rows("a2")

    with pytest.raises(Fenced, match="another attempt or task of this batch has changed Thing a"):
        room.put(1, late())
    assert room.names() == {"a": "a2", "b": "b1"}
    assert room.histories() == {"a": ["create"], "b": ["create"]}


def test_a_unique_value_can_move_on_within_a_batch() -> None:
    """A source where it moved on is valid, and its batches must not stop the query."""
    room = SinkRoom(memory_url(), indexes={"byName": {"field": "name", "unique": True}})

    def named(one: str, name: str) -> Row:
        return {"id": one, "name": name, "_deleted": False}

    room.put(0, [named("a", "x"), named("b", "y"), named("c", "z")])
    room.put(1, [named("d", "x"), named("a", "y"), named("b", "w"), named("e", "z"), deletion("c")])
    assert room.names() == {"a": "y", "b": "w", "d": "x", "e": "z"}
    done = write_batch(
        room.sinking(), Batch(QUERY, 2, "one"), iter([named("a", "w"), named("b", "y"), named("f", "q")])
    )
    assert isinstance(done, Written)
    assert (done.counts, set(done.refused)) == ({"created": 1, "refused": 2}, {"a", "b"})
    assert verify_collection(room.spec.collection()).is_clean


def test_all_attempts_of_a_batch_have_one_start(room: SinkRoom) -> None:
    first = begun(room.session, "Thing", Batch(QUERY, 1, "one"))
    with metered() as meter:
        assert begun(room.session, "Thing", Batch(QUERY, 1, "two")) == first
    assert (first.run, meter.total) == ("one", 1)
    assert begun(room.session, "Thing", Batch(QUERY, 2, "two")).run == "two"


def test_a_damaged_note_is_replaced(room: SinkRoom) -> None:
    room.session.store.put(f".worm.streams/{QUERY}.json", b'{"version":1}')
    assert room.put(0, rows("a1")) == {"created": 1}
    assert begun(room.session, "Thing", Batch(QUERY, 0, "two")).run == "one"


def test_existing_documents_are_refused_if_you_say_so(room: SinkRoom) -> None:
    given = {"url": "file:///x", "model": "Thing"}
    assert SinkOptions.of(given).overwrite
    assert not SinkOptions.of({**given, "existing": "refuse", "checkpointLocation": "x"}).overwrite
    with pytest.raises(Invalid, match="existing: must be one of update, refuse"):
        SinkOptions.of({**given, "existing": "keep"})
    room.put(0, rows("a1"))
    done = write_batch(room.sinking(overwrite=False), Batch(QUERY, 1, "one"), iter(rows("a2", "b1")))
    assert isinstance(done, Written)
    assert done.counts == {"created": 1, "refused": 1}
    sink = StreamSink(room.sinking(), StructType([StructField("id", StringType())]))
    with pytest.raises(Conflict, match=r"a: already exists with different content .*start the query again"):
        sink.commit([done, None], 1)


def test_a_stream_into_an_append_only_model_says_which_option_it_needs() -> None:
    """Otherwise only the default of an option that nobody gave would be wrong."""
    room, columns = SinkRoom(memory_url(), mode="append"), StructType([StructField("id", StringType())])
    with pytest.raises(Invalid, match=r'Thing is append-only .*existing with "refuse"'):
        StreamSink(room.writing(overwrite=True), columns)
    StreamSink(room.writing(overwrite=False), columns)


def test_a_repeated_batch_does_not_refuse_what_it_created_itself(room: SinkRoom) -> None:
    """Somebody changed the document since then. The query would stop each time that it is started again."""
    writing = room.sinking(overwrite=False)
    write_batch(writing, Batch(QUERY, 1, "one"), iter(rows("a1", "b1")))
    room.things.patch("a", {"name": "by others"})
    done = write_batch(writing, Batch(QUERY, 1, "two"), iter(rows("a1", "b1")))
    assert isinstance(done, Written)
    assert done.counts == {"unchanged": 2}
    assert room.names() == {"a": "by others", "b": "b1"}
    other = write_batch(writing, Batch(QUERY, 2, "two"), iter(rows("a1")))
    assert isinstance(other, Written)
    assert set(other.refused) == {"a"}


def test_the_column_for_deletions_is_boolean(room: SinkRoom) -> None:
    columns = [StructField("id", StringType()), StructField("_deleted", BooleanType())]
    assert StreamSink(room.writing(overwrite=True), StructType(columns)).writing.deletes
    assert not StreamSink(room.writing(overwrite=True), StructType(columns[:1])).writing.deletes
    with pytest.raises(Invalid, match="_deleted: must be a boolean column"):
        StreamSink(room.writing(overwrite=True), StructType([columns[0], StructField("_deleted", StringType())]))
    with pytest.raises(Invalid, match="no column id"):
        StreamSink(room.writing(overwrite=True), StructType(columns[1:]))


def test_a_task_outside_of_a_query_is_refused(room: SinkRoom) -> None:
    sink = StreamSink(room.writing(overwrite=True), StructType([StructField("id", StringType())]))
    with pytest.raises(Invalid, match="which batch of which query"):
        sink.write(iter(()))
