"""Time marks: where to look for a moment in a history. Whatever marks there are, the answer is the right one."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import DataPath, schema_of
from worm.clock import VirtualClock, iso_seconds
from worm.collections.collection import Collection
from worm.collections.entries import Document, OplogEntry
from worm.collections.layout import KeyKind, StorageResolver, mark_name, marked_seq, seconds_left
from worm.collections.oplog import Oplog
from worm.collections.reconcile import failure_of
from worm.errors import Denied, Invalid
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.store.base import Lost, Won
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore

START = datetime(2026, 1, 1, tzinfo=UTC)
LENGTHS = (10, 1_000, pytest.param(10_000, marks=pytest.mark.slow))
RESOLVER = StorageResolver(load_schema(schema_of()))
TIMES = ".oplog/customers/a/.times/"
SECONDS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)).map(  # noqa: DTZ001 - the zone is added
    lambda moment: iso_seconds(moment.replace(tzinfo=UTC))
)


def at(second: int) -> str:
    return iso_seconds(START + timedelta(seconds=second))


def oplog_of(store: MemoryStore, every: int = 10) -> Oplog:
    return Oplog(store, RESOLVER, "Customer", every=every, clock=VirtualClock(START))


def recorded(seconds: list[int], *, every: int = 10, checkpoints: bool = True) -> tuple[MemoryStore, Oplog]:
    """A history with an entry at each of the seconds: a create, then updates, and all its marks."""
    store = MemoryStore()
    oplog = oplog_of(store, every)
    for seq, second in enumerate(seconds, start=1):
        whole: Document | None = {"n": seq} if seq == 1 or (checkpoints and seq % every == 0) else None
        change: dict[str, list[JsonValue]] | None = None if seq == 1 else {"n": [seq - 1, seq]}
        entry = OplogEntry(seq, "create" if seq == 1 else "update", at(second), snapshot=whole, diff=change)
        oplog.append("a", entry)
        oplog.marks.put("a", entry)
    return store, oplog


def naive(seconds: list[int], ts: str) -> tuple[int, object]:
    seq = sum(at(second) <= ts for second in seconds)
    return seq, {"n": seq} if seq else None


def marks_of(store: MemoryStore, prefix: str = TIMES) -> list[int | None]:
    return [RESOLVER.parse(listed.key).seq for listed in store.list(prefix)]


# Names


@given(SECONDS, st.integers(1, 10**19 - 1), SECONDS, st.integers(1, 10**19 - 1))
def test_names_sort_by_time_and_then_by_seq_newest_first(ts: str, seq: int, other: str, other_seq: int) -> None:
    name, other_name = mark_name(ts, seq), mark_name(other, other_seq)
    assert name is not None
    assert other_name is not None
    assert marked_seq(name) == seq
    assert ((ts, seq) > (other, other_seq)) == (name < other_name)
    assert (other <= ts) == (other_name > str(seconds_left(ts)))


@pytest.mark.parametrize("ts", ["", "yesterday", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00.5Z"])
def test_a_time_of_another_shape_has_no_mark(ts: str) -> None:
    store = MemoryStore()
    oplog_of(store, 1).marks.put("a", OplogEntry(1, "create", ts, snapshot={}))
    assert marks_of(store) == []


@pytest.mark.parametrize(
    "name", ["", "1-1", "251593300800-0000000000000000000", "251593300800-9999999999999999990.json"]
)
def test_another_name_is_no_mark(name: str) -> None:
    assert RESOLVER.parse(TIMES + name).kind is KeyKind.UNKNOWN
    with pytest.raises(Invalid):
        RESOLVER.time_mark_key("Customer", "a", name)


@pytest.mark.parametrize(
    "path", [".oplog/customers/.a/.times", ".oplog/customers/a/b", ".snapshots/customers/a/.times"]
)
def test_a_mark_lies_in_the_oplog_of_a_possible_id(path: str) -> None:
    assert RESOLVER.parse(f"{path}/251593300800-9999999999999999990").kind is KeyKind.UNKNOWN


def test_an_early_year_has_four_digits_so_that_times_compare_as_text() -> None:
    assert iso_seconds(datetime(500, 1, 1, tzinfo=UTC)) == "0500-01-01T00:00:00Z"


# Reading


@pytest.mark.parametrize("every", [1, 2, 10])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_moment_costs_at_most_2_and_every_requests_at_any_length(length: int, every: int) -> None:
    """Entries of the middle share a second, and more of them than lie between two marks."""
    middle = length // 2
    crowd = min(35, middle)
    seconds = [*range(1, middle + 1), *[middle + 1] * crowd, *range(middle + 2, length - crowd + 2)][:length]
    store, oplog = recorded(seconds, every=every)
    wanted = {0, 1, 2, every, middle - 1, middle, middle + 1, middle + 2, seconds[-1] - 1, seconds[-1], 10**6}
    for second in wanted:
        with store.requests.measure() as spent:
            assert oplog.at_time("a", at(second)) == naive(seconds, at(second))
        assert spent["total"] <= 2 + every
        assert spent["LIST"] == 1


@given(st.data())
def test_any_history_with_any_marks_and_checkpoints_tells_what_a_plain_look_tells(data: st.DataObject) -> None:
    """Marks lost in crashes, of another `every`, and false ones: they may cost, but never mislead."""
    steps = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 5]), max_size=70))
    seconds = [sum(steps[: number + 1]) for number in range(len(steps))]
    store, _ = recorded(seconds, every=data.draw(st.integers(1, 12)), checkpoints=data.draw(st.booleans()))
    names = [listed.key for listed in store.list(TIMES)]
    for key in data.draw(st.sets(st.sampled_from(names)) if names else st.just(set[str]())):
        store.delete(key)
    for second, seq in data.draw(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), max_size=3)):
        store.put(f"{TIMES}{mark_name(at(second), seq)}", b"")
    oplog = oplog_of(store, data.draw(st.integers(1, 12)))
    ts = at(data.draw(st.integers(-1, max(seconds, default=0) + 1)))
    assert oplog.at_time("a", ts) == naive(seconds, ts)


def test_where_marks_are_missing_the_search_goes_on_from_the_last_one() -> None:
    """A crash costs a few requests more, a history without any mark the logarithm of its length."""
    seconds = list(range(1, 1_001))
    store, oplog = recorded(seconds)
    for listed in list(store.list(TIMES)):
        if RESOLVER.parse(listed.key).seq == 500:
            store.delete(listed.key)
    with store.requests.measure() as one_missing:
        assert oplog.at_time("a", at(505)) == (505, {"n": 505})
    assert one_missing["total"] <= 2 + 10 + 8 + 10
    for listed in list(store.list(TIMES)):
        store.delete(listed.key)
    with store.requests.measure() as all_missing:
        assert oplog.at_time("a", at(999)) == (999, {"n": 999})
    assert all_missing["total"] <= 2 + 10 + 2 * 10 + 10


def test_a_file_that_somebody_put_among_the_marks_misleads_nobody() -> None:
    store, oplog = recorded(list(range(1, 31)))
    store.put(f"{TIMES}{seconds_left(at(25))}.note", b"")
    assert oplog.at_time("a", at(25)) == (25, {"n": 25})


# Writing


@pytest.mark.parametrize("layout", ["root", "collection", "inline"])
def test_every_so_many_entries_have_a_mark_beside_them_deletes_included(layout: str) -> None:
    """One late event for all of them: a delete that is followed by a create is marked like any other entry."""
    path = DataPath(schema_of(storage={"layout": layout}, snapshots={"every": 2}, softDelete=True))
    for _ in range(3):
        path.put("a", {"name": "x"})
        path.remove("a")
    path.events = path.events[-1:]
    path.settle()
    keys = path.collection.resolver
    entries = path.history("a")
    names = [str(mark_name(entries[seq - 1].ts, seq)) for seq in (6, 4, 2)]
    expected = [keys.time_mark_key("Customer", "a", name) for name in names]
    assert [listed.key for listed in path.store.list(keys.time_mark_path("Customer", "a"))] == expected
    assert path.collection.recorded_seqs()["a"].single == set(range(1, 7))
    assert path.collection.unmarked() == []
    found = path.store.get(expected[0])
    assert found is not None
    assert found.body == b'{"seq":6,"ts":"%s"}' % entries[5].ts.encode()
    path.assert_true()


def test_a_model_without_oplog_has_no_marks() -> None:
    path = DataPath(schema_of(oplog=False, snapshots={"every": 1}))
    path.put("a", {"name": "x"})
    path.settle()
    assert [listed.key for listed in path.store.list("") if ".times" in listed.key] == []


def grown(length: int, every: int = 5) -> DataPath:
    path = DataPath(schema_of(snapshots={"every": every}))
    for number in range(length):
        path.put("a", {"score": number})
        path.settle()
    return path


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_between_an_entry_and_its_mark_is_made_good_when_the_event_comes_again(when: str) -> None:
    path = grown(4)
    path.put("a", {"score": 4})
    event = path.events.pop()
    faulty = FaultyStore(path.store, clock=path.clock)
    path.new_workers(faulty)
    faulty.crash_at_write(2 if when == "before" else 1, "before" if when == "before" else "after")
    with pytest.raises(SimulatedCrash):
        path.run_capture([event])
    assert (len(path.history("a")), marks_of(path.store)) == (5, [])
    path.new_workers(path.store)
    path.run_capture([event], deliveries=2)
    assert marks_of(path.store) == [5]


def test_the_mark_of_a_crashed_worker_is_made_good_though_others_have_gone_on() -> None:
    """Its event comes again while the heads still say what they said; the entries after it are another's."""
    path = grown(4)
    for score in (4, 5, 6):
        path.put("a", {"score": score})
    events, path.events = path.events, []
    path.run_capture([events[-1]])
    for listed in list(path.store.list(TIMES)):
        path.store.delete(listed.key)
    path.new_workers(path.store)
    path.run_capture([events[0]], deliveries=2)
    assert marks_of(path.store) == [5]


def test_an_event_that_comes_again_after_the_fold_marks_the_newest_entry() -> None:
    path = grown(4)
    path.put("a", {"score": 4})
    event = path.events[0]
    path.settle()
    for listed in list(path.store.list(TIMES)):
        path.store.delete(listed.key)
    path.run_capture([event], deliveries=2)
    assert marks_of(path.store) == [5]


class MarksDenied(MemoryStore):
    """A role that may not write marks."""

    is_denied = True

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        if self.is_denied and "/.times/" in key:
            raise Denied("no", key=key)
        return super().put_if_absent(key, body, metadata=metadata)


def test_a_mark_that_cannot_be_written_stops_neither_history_nor_snapshots_and_comes_again() -> None:
    path = DataPath(schema_of(snapshots={"enabled": True, "every": 2}))
    denied = MarksDenied(versioned=True, clock=path.clock, ids=path.ids)
    denied._history = path.store._history
    path.new_workers(denied)
    for score in range(3):
        path.put("a", {"score": score})
        path.put("b", {"score": score})
    path.remove("b")
    events = list(path.events)
    assert set(map(type, path.run_capture().failed.values())) == {Denied}
    path.run_fold()
    assert (len(path.history("a")), len(path.history("b")), len(list(path.store.list(".snapshots/")))) == (3, 4, 2)
    outcome = path.run_capture(events, deliveries=2)
    assert set(map(type, outcome.failed.values())) == {Denied}, "the newest entry of b still lacks its mark"
    denied.is_denied = False
    assert path.run_capture(events, deliveries=3).failed == {}
    assert marks_of(path.store, ".oplog/customers/b/.times/") == [4]
    path.assert_true()


def test_what_cannot_be_kept_does_not_keep_the_rest_from_it() -> None:
    done: list[str] = []

    def denied(key: str) -> None:
        raise Denied("no", key=key)

    failure = failure_of(partial(denied, "1"), partial(done.append, "2"), partial(denied, "3"))
    assert (failure.key if failure else None, done) == ("1", ["2"])
    assert failure_of() is None


def test_two_writers_of_one_entry_make_one_mark() -> None:
    path = grown(4)
    path.put("a", {"score": 4})

    def capture(collection: Collection) -> None:
        collection.reconciler().reconcile("a", None)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(capture, [path.collection, path.collection]))
    assert (len(path.history("a")), marks_of(path.store)) == (5, [5])


def test_marks_cost_one_request_per_so_many_changes() -> None:
    path = grown(1)
    totals = []
    for score in range(1, 10):
        path.put("a", {"score": score})
        with path.store.requests.measure() as spent:
            path.run_capture()
        path.run_fold()
        totals.append(spent["total"])
    assert [total - totals[0] for total in totals] == [0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_what_is_unmarked_is_found_by_one_listing_and_marked() -> None:
    path = grown(12)
    collection = path.collection
    for listed in list(path.store.list(TIMES)):
        path.store.delete(listed.key)
    with path.store.requests.measure() as spent:
        assert collection.unmarked() == [("a", 5), ("a", 10)]
    assert spent == {"LIST": 1, "total": 1}
    for unmarked in [*collection.unmarked(), ("a", 4), ("nobody", 5)]:
        collection.mark(*unmarked)
    assert [key.key for key in path.store.list("") if ".times" in key.key] == [
        key.key for key in path.store.list(TIMES)
    ]
    assert marks_of(path.store) == [10, 5]
    assert collection.unmarked() == []
