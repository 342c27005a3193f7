"""A directory store on a disk that forgets what was not synced: every acknowledged write survives, and no torn document
is ever served."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.store.simulated_disk import ROOT, PowerCut, SimulatedDisk, simulated
from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Corrupt, EditKept, Unavailable, WormError
from worm.store import tree, wal
from worm.store.base import IfAbsent, IfMatch, Object, Put, Won
from worm.store.file import FileStore

SEEDS = int(os.environ.get("WORM_SEEDS", "300"))
KEYS = ["a", "f/b", "f/c", "g/h/d"]
Known = tuple[bytes, str] | None
"""Body and note of a document; None: there is none."""


class Machine:
    """A disk, the stores that are opened on it one after the other, and what each key may hold."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.chance = Random(seed)
        self.disk = SimulatedDisk(self.chance)
        self.boots = 0
        self.bodies = 0
        self.clock = VirtualClock()
        self.possible: dict[str, set[Known]] = {key: {None} for key in KEYS}
        self.edited: set[str] = set()
        patch.setattr(wal, "boot_id", lambda: f"boot-{self.boots}")
        patch.setattr(wal, "SEGMENT_BYTES", 1 << 30)  # checkpoints are steps of the test
        patch.setattr(tree, "LARGE_BYTES", 3000)

    def open(self) -> FileStore:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            store = FileStore(ROOT, clock=self.clock, ids=Ids.seeded(self.bodies, self.clock))
        kept = [str(one.message) for one in caught if one.category is EditKept]
        assert not kept or self.edited, kept
        return store

    def body(self) -> bytes:
        self.bodies += 1
        size = self.chance.choice([0, 10, 600, 2000, 5000])
        return b"%d " % self.bodies + bytes(self.chance.choices(b"abc", k=size))

    def check(self, store: FileStore) -> None:
        for key, possible in self.possible.items():
            found = _known(store.get(key))
            assert found in possible, (key, found, possible)
            self.possible[key] = {found}

    def step(self, store: FileStore) -> None:
        kind = self.chance.choice(["put", "put", "match", "create", "delete", "many", "checkpoint", "edit"])
        key, note = self.chance.choice(KEYS), f"n{self.bodies}"
        self.clock.advance(0.001)
        if kind == "checkpoint":
            store.close()
        elif kind == "edit":
            self.edit(key)
        elif kind == "delete":
            with self.trying({key: None}):
                store.delete(key)
        elif kind == "many":
            new = {one: (self.body(), f"{note}{one[0]}") for one in self.chance.sample(KEYS, 3)}
            with self.trying(dict(new)):
                puts = [Put(one, body, None, {"note": text}) for one, (body, text) in new.items()]
                assert all(isinstance(one, Won) for one in store.put_many(puts))
        else:
            body, current = self.body(), store.get(key)
            condition = None if kind == "put" else IfAbsent() if current is None else IfMatch(current.etag)
            with self.trying({key: (body, note)}):
                [won] = store.put_many([Put(key, body, condition, {"note": note})])
                assert isinstance(won, Won)

    def edit(self, key: str) -> None:
        """Somebody saves a file in an editor, which syncs it."""
        if self.possible[key] != {None}:
            body = b"by hand " + self.body()
            self.disk.edit(f"{ROOT}/{key}", body, is_synced=True)
            self.possible[key], self.edited = {(body, "")}, self.edited | {key}

    @contextmanager
    def trying(self, new: dict[str, Known]) -> Iterator[None]:
        for key, one in new.items():
            self.possible[key] = self.possible[key] | {one}
        yield
        for key, one in new.items():
            self.possible[key] = {one}

    def live(self, steps: int) -> None:
        """Until the power goes off, in the middle of whatever is going on."""
        try:
            self.disk.cut_at = self.disk.calls + self.chance.randint(1, 25)
            store = self.open()
            self.check(store)
            self.disk.cut_at = self.disk.calls + self.chance.randint(1, 12 * steps)
            for _ in range(steps):
                self.step(store)
            self.check(store)
        except PowerCut:
            pass
        self.disk.power_cut()
        self.boots += 1
        if self.chance.random() < 0.3:
            self.edit_after_the_cut()

    def edit_after_the_cut(self) -> None:
        key = self.chance.choice(KEYS)
        try:
            self.disk.stat(f"{ROOT}/{key}")
        except (FileNotFoundError, NotADirectoryError):
            return
        self.possible[key] = {(b"nobody has this", "")}
        self.edit(key)


def _known(found: Object | None) -> Known:
    return None if found is None else (found.body, found.metadata.get("note", ""))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_acknowledged_writes_survive_power_cuts_and_no_torn_document_is_served(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(part, SEEDS, 4):
        machine = Machine(seed, monkeypatch)
        with simulated(machine.disk):
            try:
                for _ in range(6):
                    machine.live(machine.chance.randint(1, 12))
                machine.check(machine.open())
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


@contextmanager
def machine(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> Iterator[Machine]:
    made = Machine(seed, monkeypatch)
    with simulated(made.disk):
        yield made


def _segments(machine: Machine) -> list[str]:
    folder = f"{ROOT}/.worm.store/wal"
    return [f"{folder}/{name}" for name in machine.disk.listdir(folder) if name.endswith(".log")]


def _break(machine: Machine, path: str, at: int, size: int = 1) -> None:
    inode = machine.disk._find(path)
    broken = bytes(byte ^ 1 for byte in inode.data[at : at + size])
    inode.data = inode.data[:at] + broken + inode.data[at + size :]
    inode.sync()


def _told(name: str, call: Callable[..., object], calls: list[str]) -> Callable[..., object]:
    def telling(*args: object) -> object:
        calls.append(name)
        return call(*args)

    return telling


def test_a_unit_is_one_fsync_and_it_comes_before_every_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document in its place before its record is on the disk could be torn for good."""
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("f/b", b"0", metadata={"note": "n"})
        calls: list[str] = []
        for name in ("fsync", "rename"):
            monkeypatch.setattr(one.disk, name, _told(name, getattr(one.disk, name), calls))
        store.put("f/b", b"1", metadata={"note": "n"})
        assert calls == ["fsync", "rename"]
        calls.clear()
        store.put_many([Put(f"f/{number}", b"1", IfAbsent()) for number in range(5)])
        assert calls == ["fsync"] + ["rename"] * 5
        calls.clear()
        store.delete("f/b")
        assert calls == ["fsync"]


def test_an_fsync_that_failed_is_not_repeated_as_if_it_could_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system forgets what it could not write, and says so once: the next fsync would acknowledge a hole."""
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"old", metadata={"note": "n"})
        [log] = [one.disk._find(path) for path in _segments(one)]
        one.disk.fail = lambda call, inode: inode is log
        with pytest.raises(CommitStateUnknown, match="power cut"):
            store.put_if_absent("f/b", b"1")
        one.disk.fail = lambda call, inode: False
        with pytest.raises(Unavailable, match="accepts no more writes"):
            store.put("f/c", b"1")
        with pytest.raises(Unavailable, match="accepts no more writes"):
            store.delete("a")
        assert _known(store.get("a")) == (b"old", "n")
        again = one.open()
        again.put("f/c", b"2")
        one.disk.power_cut()
        one.boots += 1
        last = one.open()
        assert (_known(last.get("a")), _known(last.get("f/c"))) == ((b"old", "n"), (b"2", ""))
        assert _known(last.get("f/b")) in (None, (b"1", ""))


def test_a_document_that_could_not_be_synced_is_written_again_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are in memory and marked as written. Only a new file brings them to the disk."""
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"precious", metadata={"note": "n"})
        lost = one.disk._find(f"{ROOT}/a")
        one.disk.fail = lambda call, inode: inode is lost
        with pytest.raises(WormError):
            store.close()
        one.disk.fail = lambda call, inode: False
        one.open().close()
        assert len(_segments(one)) == 1
        one.disk.power_cut()
        one.boots += 1
        assert _known(one.open().get("a")) == (b"precious", "n")


def test_a_full_disk_refuses_a_write_and_the_store_goes_on_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"1", metadata={"note": "n"})
        for room in range(0, 4000, 150):
            one.disk.room = room
            [answer] = store.put_many([Put("f/b", b"%04d" % room * 250, None, {"note": "n"})])
            if isinstance(answer, Won):
                break
            assert type(answer) is Unavailable
            assert (store.get("f/b"), _known(store.get("a"))) == (None, (b"1", "n"))
        assert room > 2000
        assert len(one.disk.listdir(f"{ROOT}/.worm.store/meta")) == 2
        one.disk.room = None
        one.disk.power_cut()
        one.boots += 1
        again = one.open()
        assert (_known(again.get("f/b")), _known(again.get("a"))) == ((b"%04d" % room * 250, "n"), (b"1", "n"))


def test_a_write_that_the_directory_refused_does_not_appear_after_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is in the log before the rename is tried."""
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("g/h/d", b"1")
        with pytest.raises(WormError):
            store.put("g/h", b"2")
        [refused, won] = store.put_many([Put("g", b"3"), Put("f/b", b"4")])
        assert isinstance(refused, WormError)
        assert isinstance(won, Won)
        store.delete("g/h/d")
        one.disk.power_cut()
        one.boots += 1
        again = one.open()
        assert [again.get(key) for key in ("g", "g/h", "g/h/d")] == [None] * 3
        assert _known(again.get("f/b")) == (b"4", "")


@pytest.mark.parametrize("line", [0, 1, 2])
def test_damage_to_what_was_on_the_disk_stops_the_store_and_says_what_to_do(
    line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped without a word, an acknowledged write would be gone."""
    with machine(monkeypatch) as one:
        store = one.open()
        for number in range(3):
            store.put("a", b"%d" % number)
        [path] = _segments(one)
        lines = one.disk._find(path).data.splitlines(keepends=True)
        _break(one, path, sum(map(len, lines[:line])) + 3)
        one.disk.power_cut()
        one.boots += 1
        with pytest.raises(Corrupt, match="damaged") as caught:
            one.open()
        assert caught.value.key == path
        assert "move it out of" in str(caught.value)
        one.disk.rename(path, f"{ROOT}/aside")
        assert isinstance(one.open().put("a", b"new"), Won)


def test_damage_in_an_older_segment_stops_the_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"1")
        [first] = _segments(one)
        monkeypatch.setattr(store._disk.wal, "_sync_segment", _stop)
        with pytest.raises(PowerCut):
            store.close()
        store.put("f/b", b"2")
        data = one.disk._find(first).data
        _break(one, first, len(data) - 30)
        one.disk.power_cut()
        one.boots += 1
        with pytest.raises(Corrupt, match="damaged"):
            one.open()


def _stop(given: object) -> None:
    raise PowerCut


def test_a_torn_end_is_normal_and_what_is_before_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"1")
        store.put("f/b", b"2")
        [path] = _segments(one)
        inode = one.disk._find(path)
        lines = inode.data.splitlines(keepends=True)
        inode.data = b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2]
        inode.sync()
        one.disk._find(ROOT).disk_names.pop("f", None)
        one.disk._find(ROOT).pending.clear()
        one.disk.power_cut()
        one.boots += 1
        again = one.open()
        assert (_known(again.get("a")), again.get("f/b")) == ((b"1", ""), None)
        assert "set-aside" not in one.disk.listdir(f"{ROOT}/.worm.store/wal")


def test_a_line_that_was_never_acknowledged_does_not_hide_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of lines that were not synced yet, the disk may have written the later ones only. What was found is set aside."""
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"1")
        won = store.put_many([Put("f/b", b"2"), Put("f/c", b"3")])
        assert all(isinstance(each, Won) for each in won)
        [path] = _segments(one)
        data = one.disk._find(path).data
        _break(one, path, data.index(b'"key":"f/b"'), 3)
        for name in ("b", "c"):
            one.disk._find(f"{ROOT}/f").name(name, None)
        one.disk.sync()
        one.boots += 1
        again = one.open()
        assert (again.get("f/b"), _known(again.get("f/c"))) == (None, (b"3", ""))
        assert one.disk.listdir(f"{ROOT}/.worm.store/wal/set-aside") == [path.rpartition("/")[2]]


@pytest.mark.parametrize("when", ["before the power cut", "after it"])
def test_an_edit_by_hand_stays_and_what_was_stored_is_set_aside(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"ours", metadata={"note": "n"})
        store.put("f/b", b"2")
        if when == "after it":
            one.disk.power_cut()
        one.disk.edit(f"{ROOT}/a", b"theirs", is_synced=True)
        if when != "after it":
            one.disk.power_cut()
        one.boots += 1
        with pytest.warns(EditKept, match="a; the stored versions are in"):
            again = FileStore(ROOT, clock=one.clock)
        assert (_known(again.get("a")), _known(again.get("f/b"))) == ((b"theirs", ""), (b"2", ""))
        [kept] = one.disk.listdir(f"{ROOT}/.worm.store/wal/set-aside")
        data = one.disk._find(f"{ROOT}/.worm.store/wal/set-aside/{kept}").data
        assert b'"key":"a"' in data
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            FileStore(ROOT, clock=one.clock)


def test_a_process_that_died_needs_no_recovery_and_leaves_no_bytes_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it wrote is in memory. Half a record of it would be damage in the middle once the next one is appended."""
    with machine(monkeypatch) as one:
        store = one.open()
        store.put("a", b"1")
        [path] = _segments(one)
        one.disk._find(path).data += b'{"key":"f/b","half a rec' + b"\n" * 2000
        monkeypatch.setattr(wal.Wal, "recover", lambda self: pytest.fail("no power cut"))
        again = one.open()
        again.put("f/c", b"2")
        monkeypatch.undo()
    patch = pytest.MonkeyPatch()
    patch.setattr(wal, "boot_id", lambda: "another")
    with simulated(one.disk), patch.context():
        one.disk.power_cut()
        assert _known(FileStore(ROOT).get("f/c")) == (b"2", "")
    patch.undo()


def test_without_a_boot_id_the_first_to_open_the_store_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as one:
        monkeypatch.setattr(wal, "boot_id", lambda: "")
        store = one.open()
        store.put("a", b"1", metadata={"note": "n"})
        one.disk.power_cut()
        assert _known(one.open().get("a")) == (b"1", "n")


def test_a_checkpoint_syncs_each_document_once_and_leaves_an_empty_log(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(monkeypatch) as one:
        store = one.open()
        for number in range(50):
            store.put("f/b", b"%d" % number)
        before = one.disk.calls
        store.close()
        assert one.disk.calls - before < 20
        [path] = _segments(one)
        assert one.disk._find(path).data.count(b"\n") == 1
        one.disk.power_cut()
        one.boots += 1
        assert _known(one.open().get("f/b")) == (b"49", "")


@pytest.mark.parametrize("seed", range(10))
def test_what_a_writer_that_died_did_not_sync_is_no_damage_once_another_segment_follows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is missing in an older segment would stop the store."""
    with machine(monkeypatch, seed) as one:
        dead = one.open()
        monkeypatch.setattr(dead._disk.wal, "_sync", _stop)
        with pytest.raises(PowerCut):  # here it is kill -9: the disk goes on
            dead.put("a", b"x" * 2000)
        store = one.open()
        monkeypatch.setattr(store._disk.wal, "_sync_segment", _stop)
        with pytest.raises(PowerCut):
            store.close()
        store.put("f/b", b"2")
        one.disk.power_cut()
        one.boots += 1
        again = one.open()
        assert _known(again.get("f/b")) == (b"2", "")
        assert _known(again.get("a")) in (None, (b"x" * 2000, ""))


def test_folders_that_a_process_made_and_did_not_sync_before_it_died_are_synced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log in a folder that a power cut takes away is no log."""
    for seed in range(10):
        with machine(monkeypatch, seed) as one:
            for folder in (ROOT, f"{ROOT}/.worm.store", f"{ROOT}/.worm.store/wal"):
                one.disk.mkdir(folder)
            one.open().put("a", b"1")
            one.disk.power_cut()
            one.boots += 1
            assert _known(one.open().get("a")) == (b"1", "")


def test_a_log_that_is_shorter_than_its_state_says_is_not_appended_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a copy of a directory that was in use: a hole in the log would be damage after the next power cut."""
    with machine(monkeypatch) as one:
        store = one.open()
        for number in range(3):
            store.put("a", b"%d" % number)
        [path] = _segments(one)
        one.disk._find(path).data = one.disk._find(path).data[:-200]
        again = one.open()
        again.put("f/b", b"1")
        again.put("f/b", b"2")
        one.disk.power_cut()
        one.boots += 1
        assert _known(one.open().get("f/b")) == (b"2", "")


def test_a_file_with_our_time_and_bytes_of_nobody_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems show what was in the blocks before. It is no edit by hand."""
    with machine(monkeypatch) as one:
        one.open().put("a", b"ours", metadata={"note": "n"})
        one.disk._find(f"{ROOT}/a").data = b"old bytes of another file"
        one.disk.sync()
        one.boots += 1
        assert _known(one.open().get("a")) == (b"ours", "n")


def test_a_large_document_that_is_in_its_place_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder could not be synced: nobody knows whether it survives. If it does, it is no edit by hand."""
    with machine(monkeypatch) as one:
        store, large = one.open(), b"x" * 5000
        store.put("a", b"small")
        root = one.disk._find(ROOT)
        one.disk.fail = lambda call, inode: inode is root
        with pytest.raises(CommitStateUnknown):
            store.put("a", large)
        one.disk.fail, root.is_failed = lambda call, inode: False, False
        one.disk.sync()
        one.boots += 1
        assert _known(one.open().get("a")) == (large, "")
