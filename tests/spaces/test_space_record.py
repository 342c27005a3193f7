"""What a commit of a space takes in the log, and the pages that follow from its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.spaces.space_room import Room, change, drop, put
from worm.clock import Ids, VirtualClock
from worm.errors import Corrupt, Invalid
from worm.formats.strict_json import JsonObject, dumps, loads_own
from worm.log.segment import Entry, Segment
from worm.pages.db import PageDb
from worm.pages.records import versions_of
from worm.pages.space_record import COMMIT, RUN, SNAPPED, EntityHead, Item, ItemRun, space_pages, space_record
from worm.spaces.opening import open_backend, space_on
from worm.spaces.operations import patch_document, set_document
from worm.spaces.page_rows import Found, PageReads, Search, T, _commit_row, _commit_shape, back, snapshot_upto
from worm.spaces.results import nothing_resolved
from worm.spaces.rows import CommitRow, Pointer
from worm.spaces.space import Space
from worm.store.memory import MemoryStore

FORMATS = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
SIZES = [240, 100_000, *(pytest.param(size, marks=pytest.mark.slow) for size in (100, 1_000, 10_000))]


def document(size: int, mark: str = "") -> JsonObject:
    """One of so many bytes."""
    found: JsonObject = {"value": {"mark": mark, "text": ""}}
    return {"value": {"mark": mark, "text": "x" * (size - len(dumps(found)))}}


def bound(size: int) -> float:
    return 2.2 * size + 300


class Logged:
    """A space whose newest segment can be looked at."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.store = MemoryStore("logged", clock=clock, ids=Ids.seeded(1, clock))
        self.space = space_on(self.store, "main", create=True, clock=clock, ids=Ids.seeded(2, clock))

    def segment(self, *ops: JsonObject) -> bytes:
        self.space.transact(ops)
        newest = max(one.key for one in self.store.list("db/space-main/log/"))
        found = self.store.get(newest)
        assert found is not None
        return found.body


@pytest.mark.parametrize("size", SIZES)
def test_a_commit_of_one_document_takes_little_more_than_the_document(size: int) -> None:
    """The first commit, later ones, those that fill a run, and one that makes a snapshot."""
    log = Logged()
    for number in range(110 if size < 10_000 else 10):
        body = log.segment(set_document("account-1", document(size, f"<{number}>")))
        assert len(body) <= bound(size), number
        assert body.count(f"<{number}>".encode()) == 1, "the document is there once"
        log.segment(*(put(f"other-{one}", n=number) for one in range(3)))
    assert len(log.segment(set_document("account-2", document(size)))) <= bound(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_patch_takes_little_more_than_the_patch(size: int) -> None:
    log = Logged()
    log.segment(set_document("account-1", document(50_000)))
    for number in range(20):
        patches: list[JsonObject] = [{"op": "add", "path": "/value/mark", "value": "y" * size}]
        body = log.segment(patch_document("account-1", patches))
        assert len(body) <= bound(len(dumps(cast("JsonObject", {"": patches})))), number


def test_an_old_entity_in_a_busy_space_takes_no_more() -> None:
    """Everything has as many digits as it may come to, and the head as many items as it can have."""
    seq = 9_000_000
    head = EntityHead(99_999, 900_000, 99_950, seq - 4_000, [[seq - 90 * one, 0, 1] for one in range(RUN - 1, 0, -1)])
    commit: JsonObject = {"seq": seq, "at": 1794864248076, "session": "0" * 26, "local": 1_000_000}
    commit["ops"] = [set_document("account-1", document(100))]
    entry = Entry(9_900_000, "0" * 26, space_record(commit, {"account-1": head}, {}, None))
    segment = Segment(9_800_000, 900, "0" * 26, 9_899_999, 1794864248076, "data", [entry])
    assert len(segment.encode()) <= bound(100)


def test_a_transaction_of_many_documents_takes_no_more_for_each() -> None:
    log = Logged()
    ops = [set_document(f"account-{number}", document(300, f"<{number}>")) for number in range(100)]
    for _ in range(3):
        body = log.segment(*ops)
        assert len(body) <= 100 * (300 * 1.1 + 60) + 400
        assert all(body.count(f"<{number}>".encode()) == 1 for number in range(100))


def test_a_snapshot_of_what_was_just_set_is_no_second_copy() -> None:
    log = Logged()
    sizes = [len(log.segment(set_document("a", document(1_000, f"<{number}>")))) for number in range(100)]
    assert max(sizes) - min(sizes) < 60
    found = log.space._backend.snapshots("", ["a"], 100)
    assert found["a"].seq == 100
    assert found["a"].value == dumps(document(1_000, "<99>")).decode()


def test_the_pages_of_a_record() -> None:
    before = EntityHead(RUN - 1, 3, 0, 0, [[3, 0, 0], *([one, 0, 1] for one in range(4, 3 + RUN - 2)), [9, 2, 1]])
    commit: JsonObject = {"seq": 12, "at": 1767225600000, "session": "s", "local": 4, "branch": "dev"}
    commit["ops"] = [set_document("a", {"n": 1}), {"op": "delete", "id": "b"}, patch_document("a", [])]
    record = space_record(
        commit, {"a": before, "b": EntityHead()}, {"a": {"n": 2}}, {"created": 2, "parent": "", "fork": 1}
    )
    assert record["heads"] == [[7, 3, 7, 12, 8, 9, 9, 9, 9, 9, [25, 2]], []]
    place = "0" * 18 + "12"
    run = [[3, 0, 0], [4, 0, 1], [5, 0, 1], [6, 0, 1], [7, 0, 1], [8, 0, 1], [9, 2, 1], [12, 0, 0]]
    assert space_pages(record) == {
        "m": b'{"at":1767225600000,"seq":12}',
        f"c\t{place}": dumps(commit),
        "k\ts\t4": b'{"seq":12}',
        "b\tdev": b'{"at":1767225600000,"created":2,"fork":1,"parent":""}',
        "b\tdev\te": b'{"seq":12}',
        f"r\tdev\ta\t{place}\t0": b'{"n":1}',
        f"r\tdev\ta\t{place}\t2": b"[]",
        "i\tdev\ta\t000000000000": ItemRun(run, 0).encode(),
        f"s\tdev\ta\t{place}": b'{"n":2}',
        "h\tdev\ta": b'{"items":[[12,2,5]],"numbers":[9,3,9,12]}',
        "h\tdev\tb": b'{"items":[[12,1,2]],"numbers":[1,12,0,0]}',
    }


def test_the_example_in_the_docs_is_what_is_written() -> None:
    (example,) = [line for line in FORMATS.read_text().splitlines() if '"op":"space"' in line]
    record = loads_own(example.encode(), "docs")
    assert dumps(record).decode() == example
    head = EntityHead(2, 3, 0, 0, [[3, 0, 0], [8, 0, 1]])
    commit: JsonObject = {"seq": 9, "at": 1767225600000, "session": record["session"], "local": 4}
    commit["ops"] = [set_document("a", {"n": 1})]
    assert space_record(commit, {"a": head}, {}, None) == record
    members = FORMATS.read_text().split("## Space in a bucket")[1].split("\n## ")[0]
    assert [name for name in (*COMMIT, "heads", "snapshots", "row") if f"`{name}`" not in members] == []


@pytest.mark.parametrize("member", ["seq", "at", "session", "local", "heads"])
def test_a_record_that_lacks_something_is_refused(member: str) -> None:
    """Passed over, a commit would be missing in layers, where nobody looks at the log any more."""
    commit: JsonObject = {"seq": 1, "at": 0, "session": "s", "local": 1, "ops": [set_document("a", {})]}
    record = space_record(commit, {"a": EntityHead()}, {}, None)
    assert space_pages(record)
    record.pop(member)
    with pytest.raises(Invalid, match="malformed"):
        space_pages(record)
    with pytest.raises(Corrupt, match="lsn 2: the record of a space's commit is malformed"):
        list(versions_of(Segment(1, 1, "w", 1, 0, "data", [Entry(2, "t", record)]), 0, "key"))


@pytest.mark.parametrize("heads", ["a", "abc"])
def test_a_record_with_other_heads_than_its_entities_is_refused(heads: str) -> None:
    commit: JsonObject = {"seq": 1, "at": 0, "session": "s", "local": 1}
    commit["ops"] = [set_document("a", {}), set_document("b", {})]
    with pytest.raises(Invalid, match="malformed"):
        space_pages(space_record(commit, {one: EntityHead() for one in heads}, {}, None))


def test_a_record_that_cannot_be_read_is_not_committed() -> None:
    log = Logged()
    log.segment(put("a"))
    log.space.close()
    with PageDb.open(log.store, "space-main", kind="space") as db, pytest.raises(Invalid, match="malformed"):
        db.append_wal([{"op": "space", "seq": 2}])


def test_a_document_larger_than_a_page_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Logged()
    log.segment(put("a", n=1))
    lane = vars(log.space._backend)["_lane"]
    monkeypatch.setattr(lane.writer, "config", lane.writer.config.model_copy(update={"page_max_bytes": 1_000}))
    with pytest.raises(Invalid, match="the limit is 1000"):
        log.segment(put("a", text="x" * 1_000))
    assert log.space.seq == 1
    log.segment(put("a", n=2))
    assert log.space.seq == 2


def test_an_entity_with_several_operations_in_a_commit_reads_back(room: Room) -> None:
    space = room.open()
    for number in range(30):
        space.transact([put("a", n=number), change("a", m=number), *([drop("a")] if number % 3 == 0 else [])])
    again = Space(room.backend(), clock=room.clock)
    for number in range(30):
        expected = None if number % 3 == 0 else {"value": {"n": number, "m": number}}
        assert again.read("a", at=number + 1).value == expected


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


READS: list[JsonObject] = [
    {"confirmed": [], "pending": []},
    {"confirmed": [{"branch": "b", "id": "é", "seq": 3}], "pending": [{"id": "a", "localSeq": 1}]},
]
MORE: list[JsonObject] = [{}, {"about": {"by": "me", "Z": 1.0}}, {"merge": {"branch": "b", "policy": "ours"}}]
RESOLVED = [nothing_resolved(9), '{"resolvedPendingReads":[{"localSeq":1,"seq":4}],"seq":9}']


@given(
    st.dictionaries(st.text(max_size=5), values, max_size=4),
    st.sampled_from(READS),
    st.sampled_from(MORE),
    st.sampled_from(RESOLVED),
    st.sampled_from(["", "dev"]),
)
def test_a_commit_reads_back_to_the_byte(
    value: JsonObject, reads: JsonObject, more: JsonObject, resolution: str, branch: str
) -> None:
    """A repeated transaction is told by its record, and a replica is compared by it."""
    original = dumps({"localSeq": 5, "operations": [set_document("a", value)], "reads": reads, **more}).decode()
    row = CommitRow(9, branch, "s", 5, original, resolution, "2026-02-24 12:00:00.001")
    assert _commit_row(loads_own(dumps(_commit_shape(row)), "c")) == row


def test_a_commit_of_a_branch_reads_back_to_the_byte() -> None:
    original = dumps(
        {"cmd": "/memory/branch/create", "forkSeq": 1, "localSeq": 2, "name": "dev", "parent": ""}
    ).decode()
    row = CommitRow(2, "dev", "s", 2, original, nothing_resolved(2), "2026-02-24 12:00:00.000")
    assert _commit_row(_commit_shape(row)) == row


# Where a seq is found


def history(random: Random) -> list[Item]:
    """Evenly, in bursts, or with long pauses; several revisions of one commit, too."""
    seq, items = random.randrange(1, 1000), []
    pace = random.choice([1, 3, 100])
    for _ in range(random.randrange(1, 400)):
        snapped = SNAPPED if random.random() < 0.05 else 0
        items.append([seq, 0, random.choice([0, 1, 1, 1, 2]) | snapped])
        if random.random() < 0.1:
            items[-1][2] %= SNAPPED
            items.append([seq, 1, 1 | snapped])
        seq += 1 + random.randrange(pace) + (10_000 if random.random() < 0.02 else 0)
    return items


def grown(items: list[Item]) -> tuple[EntityHead, list[ItemRun]]:
    head = EntityHead()
    return head, [run for item in items if (run := head.add([*item])) is not None]


def answered(search: Search[T], runs: list[ItemRun]) -> tuple[T, list[int]]:
    """What it finds, and the numbers that it asked for."""
    asked: list[int] = []
    try:
        wanted = next(search)
        while True:
            asked += wanted
            wanted = search.send([runs[number] for number in wanted])
    except StopIteration as end:
        return end.value, asked


@pytest.mark.parametrize("seed", range(examples(30)))
def test_any_revision_is_found_in_any_history(seed: int) -> None:
    random = Random(seed)
    items = history(random)
    head, runs = grown(items)
    assert (head.count, head.runs, head.first) == (len(items), len(runs), items[0][0])
    assert EntityHead.of_short(head.short(items[-1][0] + 5), items[-1][0] + 5) == head
    for _ in range(60):
        upto = random.choice([random.choice(items)[0], random.randrange(items[-1][0] + 2)])
        known = [Found(number, *item) for number, item in enumerate(items) if item[0] <= upto]
        found, asked = answered(back(head, upto, upto), runs)
        assert found == known[-1:]
        assert len(asked) <= 2 * len(runs).bit_length() + 2
        enough = random.randrange(upto + 1)
        newer = [one for one in known if one.seq > enough]
        found, _ = answered(back(head, upto, enough), runs)
        assert found == (newer or known[-1:]) or found == known[-len(newer) - 1 :]
        stops = (0, SNAPPED)
        last = max((one.number for one in known if one.kind in stops), default=0)
        assert answered(back(head, upto, 0, stops), runs)[0] == known[last:]
        snapped = max((one.seq for one in known if one.kind & SNAPPED), default=0)
        assert answered(snapshot_upto(head, upto), runs)[0] == snapped


def test_of_an_even_history_the_first_guess_is_right() -> None:
    """A look at another run may be a look at another layer: a request."""
    head, runs = grown([[7 * number + 5, 0, 1] for number in range(10_003)])
    asked = [len(set(answered(back(head, upto, upto), runs)[1])) for upto in range(5, 7 * 10_000, 7 * 13)]
    assert max(asked) <= 2
    assert sum(asked) / len(asked) < 1.3


def test_a_snapshot_in_the_middle_is_known_to_all_later_runs(room: Room) -> None:
    space = room.open(snapshot_every=1_000, replay_depth_max=1_000)
    space.transact([put("a", n=0)])
    for number in range(1, 60):
        space.transact([change("a", n=number)])
    backend = open_backend(room.url, "main", clock=room.clock)

    def snapshots() -> dict[int, int]:
        backend.newest()  # a look at the log
        found = {seq: backend.snapshots("", ["a"], seq) for seq in range(1, 61)}
        return {seq: rows["a"].seq for seq, rows in found.items() if rows}

    def newest_of(*made: int) -> dict[int, int]:
        return {seq: max(one for one in made if one <= seq) for seq in range(min(made), 61)}

    for made in (30, 10, 60, 45):
        assert space.snapshot("a", at=made) == 1
    assert snapshots() == newest_of(10, 30, 45, 60)
    assert backend.depths("", ["a"]) == {"a": 0}
    assert space.gc(keep=2) == 2
    assert snapshots() == newest_of(45, 60)
    assert [space.read("a", at=seq).value for seq in (9, 29, 44, 59)] == [{"value": {"n": n}} for n in (8, 28, 43, 58)]
    assert backend.heads("", ["a"], 33) == {"a": Pointer(33, 0)}
    backend.close()


def test_rows_of_a_run_that_is_missing_are_damage() -> None:
    class Without:
        def get(self, pages: Sequence[str]) -> Mapping[str, bytes | None]:
            return {one: EntityHead(8, 1, 0, 0, []).encode() if one.startswith("h") else None for one in pages}

        def scan(self, start: str, end: str) -> Iterator[tuple[str, bytes]]:
            return iter(())

    with pytest.raises(Corrupt, match="a list of older revisions is missing"):
        PageReads(Without()).heads("", ["a"], 3)
