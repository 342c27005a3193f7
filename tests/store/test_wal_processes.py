"""The log of a directory under real processes and threads: kill -9 at every step, writers beside checkpoints, forks."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.forked import FORK, in_forked_child
from worm.errors import Invalid
from worm.store import file, tree, wal
from worm.store.base import IfAbsent, Lost, Object, Put, Won
from worm.store.file import CONTROL, FileStore, _Stripes

STEPS = [3, 9, 14, 21, 40, 60]
"""Of about a hundred; the slow test takes them all."""
CHANGING = ("open", "write", "pwrite", "rename", "unlink", "mkdir", "rmdir", "utime", "ftruncate", "fdatasync", "fsync")


def body(store: FileStore, key: str) -> bytes | None:
    found = store.get(key)
    return None if found is None else found.body


def after_a_power_cut(root: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    """The memory of the system is still there: what is looked for is a log that says something else."""
    with monkeypatch.context() as patch:
        patch.setattr(wal, "boot_id", lambda: "another boot")
        return FileStore(root)


class DyingOs:
    """`os`, which kills this process at the n-th call that changes something."""

    def __init__(self, step: int) -> None:
        self._left = step

    def __getattr__(self, name: str) -> object:
        found = getattr(os, name)
        return self._counted(found) if name in CHANGING else found

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*args: Any, **kwargs: Any) -> object:
            self._left -= 1
            if self._left == 0:
                if call in (os.pwrite, os.write):  # some of it
                    handle, data, *rest = args
                    call(handle, bytes(data)[: len(data) // 2], *rest)
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return counted


LIFE: list[tuple[str, Callable[[FileStore], object]]] = [
    ("create", lambda store: store.put_if_absent("f/new", b"1", metadata={"note": "1"})),
    ("replace", lambda store: store.put("f/doc", b"2" * 9000, metadata={"note": "2"})),
    ("many", lambda store: store.put_many([Put(f"g/{name}", name.encode() * 3000, IfAbsent()) for name in "abc"])),
    ("delete", lambda store: store.delete("f/gone")),
    ("close", lambda store: store.close()),
    ("again", lambda store: store.put("f/doc", b"3", metadata={"note": "3"})),
]


def _live(root: Path, step: int, done: str) -> None:
    for module in (file, tree, wal):
        module.os = DyingOs(step)  # type: ignore[attr-defined]  # the real one until here
    store = FileStore(root)
    for name, change in LIFE:
        change(store)
        with Path(done).open("a") as told:
            told.write(f"{name}\n")


def _killed(tmp_path: Path, step: int) -> tuple[FileStore, list[str], bool]:
    """A store whose process died at the step, what it had acknowledged, and whether it died at all."""
    root, done = tmp_path / f"data-{step}", tmp_path / f"done-{step}"
    store = FileStore(root)
    store.put("f/doc", b"1", metadata={"note": "1"})
    store.put("f/gone", b"1")
    done.touch()
    child = FORK.Process(target=_live, args=(root, step, str(done)))
    child.start()
    child.join(30)
    return store, done.read_text().split(), child.exitcode == -signal.SIGKILL


def _check(store: FileStore, acknowledged: list[str]) -> None:
    """What was acknowledged is there; everything else is as before or as it was to become."""
    notes = {key: found.metadata.get("note") for key in ("f/doc", "f/new") if (found := store.get(key)) is not None}
    docs = {"again": [(b"3", "3")], "replace": [(b"2" * 9000, "2"), (b"3", "3")]}
    allowed = next((docs[name] for name in reversed(acknowledged) if name in docs), [(b"1", "1"), (b"2" * 9000, "2")])
    assert (body(store, "f/doc"), notes.get("f/doc")) in allowed
    assert (body(store, "f/new"), notes.get("f/new")) in [
        (b"1", "1"),
        *([] if "create" in acknowledged else [(None, None)]),
    ]
    for name in "abc":
        assert body(store, f"g/{name}") in [name.encode() * 3000, *([] if "many" in acknowledged else [None])]
    assert body(store, "f/gone") in [None, *([] if "delete" in acknowledged else [b"1"])]


def _check_killed(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    store, acknowledged, is_dead = _killed(tmp_path, step)
    _check(store, acknowledged)
    _check(after_a_power_cut(store.root, monkeypatch), acknowledged)
    assert isinstance(store.put("f/doc", b"free", metadata={"note": "free"}), Won)
    assert body(after_a_power_cut(store.root, monkeypatch), "f/doc") == b"free"
    return is_dead


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_process_killed_at_a_write_step_leaves_whole_documents_and_a_log_that_goes_on(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _check_killed(tmp_path, step, monkeypatch)


@pytest.mark.slow
def test_a_process_killed_at_any_write_step_leaves_whole_documents_and_a_log_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 1
    while _check_killed(tmp_path, step, monkeypatch):
        step += 1
    assert step > 60


def _count(root: Path, rounds: int) -> None:
    store = FileStore(root)

    def add(key: str) -> None:
        for _ in range(rounds):
            while True:
                found = store.get(key)
                assert isinstance(found, Object)
                if isinstance(store.put_if_match(key, b"%d" % (int(found.body) + 1), found.etag), Won):
                    break

    threads = [threading.Thread(target=add, args=(f"f/{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()


@pytest.mark.slow
def test_processes_and_threads_lose_nothing_while_segments_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 3000)
    store = FileStore(tmp_path / "data")
    for number in range(2):
        store.put(f"f/{number}", b"0")
    children = [FORK.Process(target=_count, args=(store.root, 25)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert [body(store, f"f/{number}") for number in range(2)] == [b"75", b"75"]
    segments = sorted((store.root / CONTROL / "wal").glob("*.log"))
    assert int(segments[-1].stem) > 5
    again = after_a_power_cut(store.root, monkeypatch)
    assert [body(again, f"f/{number}") for number in range(2)] == [b"75", b"75"]


@pytest.mark.slow
def test_processes_that_are_killed_beside_others_leave_what_they_were_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 3000)
    root, chance = tmp_path / "data", Random(7)
    told = {name: tmp_path / name for name in ("a", "b")}

    def write(name: str) -> None:
        store = FileStore(root)
        with told[name].open("ab", buffering=0) as file:
            for number in count(1):
                store.put_many([Put(f"{name}/{part}", b"%d " % number * 300) for part in range(3)])
                file.write(b".")

    for _ in range(15):
        for name, path in told.items():
            path.write_bytes(b"")
            for part in range(3):
                FileStore(root).delete(f"{name}/{part}")
        children = [FORK.Process(target=write, args=(name,)) for name in told]
        for child in children:
            child.start()
        for child in children:
            time.sleep(chance.uniform(0.05, 0.2))
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join()
        for store in (FileStore(root), after_a_power_cut(root, monkeypatch)):
            for name in told:
                least = told[name].stat().st_size
                allowed = [b"%d " % number * 300 if number else None for number in (least, least + 1)]
                assert all(body(store, f"{name}/{part}") in allowed for part in range(3))


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """As another process holds it."""
    handle = os.open(path, os.O_RDWR)
    fcntl.flock(handle, how)
    try:
        yield
    finally:
        os.close(handle)


def waits(work: Callable[[], object], until: AbstractContextManager[None], seconds: float = 0.2) -> None:
    with until:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(seconds)
        assert thread.is_alive()
    thread.join(20)
    assert not thread.is_alive()


def test_of_two_processes_one_appends_after_the_other(tmp_path: Path) -> None:
    """Both would write to the same place."""
    store = FileStore(tmp_path / "data")
    store.put("a", b"1")
    waits(lambda: store.put("b", b"2"), held(store.root / CONTROL / "wal" / "state", fcntl.LOCK_EX))
    assert body(store, "b") == b"2"


def test_a_checkpoint_waits_until_changes_that_are_logged_are_made(tmp_path: Path) -> None:
    """It would sync the old document and forget the new one."""
    store = FileStore(tmp_path / "data")
    store.put("a", b"1")
    waits(store.close, held(store.root / CONTROL / "wal" / "lock", fcntl.LOCK_SH))
    with held(store.root / CONTROL / "wal" / "lock", fcntl.LOCK_SH):
        store.put("b", b"2")  # others may go on meanwhile


def test_a_write_holds_the_log_from_its_line_to_its_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = FileStore(tmp_path / "data"), list[str]()
    store.put("a", b"1")
    rename = os.rename

    def looking(source: str, target: str) -> None:
        with held(store.root / CONTROL / "wal" / "lock", fcntl.LOCK_SH | fcntl.LOCK_NB):
            seen.append("others may write")
        with pytest.raises(BlockingIOError), held(store.root / CONTROL / "wal" / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
            pytest.fail("a checkpoint could begin")
        rename(source, target)

    monkeypatch.setattr(os, "rename", looking)
    store.put("a", b"2")
    assert seen == ["others may write"]
    with held(store.root / CONTROL / "wal" / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB):
        pass


def test_only_one_process_makes_a_checkpoint_at_a_time(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data")
    store.put("a", b"1")
    (store.root / CONTROL / "wal" / "checkpoint").touch()
    [segment] = (store.root / CONTROL / "wal").glob("*.log")
    with held(store.root / CONTROL / "wal" / "checkpoint", fcntl.LOCK_EX):
        store.close()
    assert segment.exists()
    store.close()
    assert not segment.exists()


@pytest.mark.slow
def test_a_child_does_not_keep_what_a_checkpoint_of_its_parent_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the parent were killed, nobody could write until the child ends."""
    store, answers = FileStore(tmp_path / "data"), list[list[str]]()
    store.put("a", b"1")

    def opened() -> list[str]:
        found = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
        return [path for path in found if path.startswith(str(store.root))]

    monkeypatch.setattr(store._disk.wal, "_sync_segment", lambda number: answers.append(in_forked_child(opened)))
    store.close()
    assert answers == [[]]


@pytest.mark.slow
def test_writers_wait_for_a_checkpoint_that_does_not_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log, and with it the time after a power cut, would grow without end."""
    monkeypatch.setattr(wal, "SEGMENT_BYTES", 2000)
    store, is_over = FileStore(tmp_path / "data"), threading.Event()
    monkeypatch.setattr(store._disk.wal, "_sync_segment", lambda number: is_over.wait(20))

    @contextmanager
    def under_way() -> Iterator[None]:
        yield
        is_over.set()

    waits(lambda: [store.put("a", b"x" * 1000) for _ in range(30)], under_way(), 1.5)
    store.close()
    assert len(list((store.root / CONTROL / "wal").glob("*.log"))) == 1


def test_threads_share_an_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Stripes, "held", lambda self, keys: nullcontext())  # some keys would wait for each other
    store, syncs, appended = FileStore(tmp_path / "data"), list[int](), threading.Semaphore(0)
    store.put("first", b"")
    append = store._disk.wal._append

    def counted(lines: Sequence[bytes]) -> Any:
        try:
            return append(lines)
        finally:
            appended.release()

    def slow(handle: int) -> None:
        """The first one takes until all have appended."""
        syncs.append(handle)
        if len(syncs) == 1:
            assert all(appended.acquire(timeout=30) for _ in range(20))

    monkeypatch.setattr(store._disk.wal, "_append", counted)
    monkeypatch.setattr(os, "fdatasync", slow)
    threads = [threading.Thread(target=store.put, args=(f"f/{number}", b"x")) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.key for row in store.list("f/")] == sorted(f"f/{number}" for number in range(20))
    assert len(syncs) == 2


def test_a_process_that_only_wants_to_survive_itself_makes_no_log_and_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda handle: pytest.fail("waits for the disk"))
    store = FileStore(tmp_path / "data", durability="process")
    store.put("a/b", b"x" * (tree.LARGE_BYTES + 1), metadata={"note": "n"})
    store.delete("a/b")
    store.close()
    assert not (store.root / CONTROL / "wal").exists()


def test_a_durability_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="'power' or 'process'"):
        FileStore(tmp_path, durability="perhaps")  # type: ignore[arg-type]  # as a program without types does


def test_a_folder_that_becomes_a_link_is_noticed_although_it_was_known(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data")
    store.put("a/b/doc", b"1")
    assert body(store, "a/b/doc") == b"1"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "doc").write_bytes(b"secret")
    shutil.rmtree(store.root / "a" / "b")
    (store.root / "a" / "b").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="symbolic link"):
        store.get("a/b/doc")
    with pytest.raises(Invalid, match="symbolic link"):
        store.put("a/b/doc", b"2")
    assert (tmp_path / "elsewhere" / "doc").read_bytes() == b"secret"


def test_a_folder_that_was_known_and_is_removed_is_made_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "data")
    store.put("a/b/doc", b"1")
    assert body(store, "a/b/doc") == b"1"
    shutil.rmtree(store.root / "a")
    assert store.get("a/b/doc") is None
    store.put("a/b/doc", b"2")
    assert body(store, "a/b/doc") == b"2"


def test_a_store_whose_own_folder_is_removed_makes_another_and_so_do_its_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes would lock two files of one name, and write into logs that nobody finds."""
    store = FileStore(tmp_path / "data")
    store.put("doc", b"1")
    shutil.rmtree(store.root)
    other = FileStore(store.root)
    for number in range(3):
        assert isinstance((store if number % 2 else other).put_if_absent(f"n{number}", b"2"), Won)
    with other._disk.stripes.held(["doc"]):
        waiting = threading.Thread(target=store.put, args=("doc", b"3"))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
    waiting.join()
    for key in ("doc", "n0", "n1", "n2"):
        (store.root / key).unlink()
    again = after_a_power_cut(store.root, monkeypatch)
    assert [body(again, key) for key in ("doc", "n0", "n1", "n2")] == [b"3", b"2", b"2", b"2"]


@pytest.mark.slow
def test_parent_and_child_write_the_same_log_after_a_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "data")
    store.put("a", b"1")
    assert in_forked_child(lambda: store.put("b", b"2").etag)
    store.put("c", b"3")
    store.close()
    assert in_forked_child(lambda: store.put("d", b"4").etag)
    store.put("e", b"5")
    for key in "de":
        (store.root / key).unlink()
    again = after_a_power_cut(store.root, monkeypatch)
    assert [body(again, key) for key in "abcde"] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_directory_without_a_log_just_opens(tmp_path: Path) -> None:
    (tmp_path / "data" / "f").mkdir(parents=True)
    (tmp_path / "data" / "f" / "doc").write_bytes(b"1")
    store = FileStore(tmp_path / "data")
    assert body(store, "f/doc") == b"1"
    assert not (store.root / CONTROL).exists()
    assert isinstance(store.put_if_absent("f/doc", b"2"), Lost)
    store.put("f/doc", b"2")
    store.close()
    assert body(FileStore(store.root), "f/doc") == b"2"


def test_a_private_document_is_private_again_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "data")
    before = os.umask(0o077)
    try:
        store.put("doc", b"1", metadata={"x": "1"})
    finally:
        os.umask(before)
    (store.root / "doc").unlink()
    for one in (store.root / CONTROL / "meta").iterdir():
        one.unlink()
    again = after_a_power_cut(store.root, monkeypatch)
    paths = [again.root / "doc", *(again.root / CONTROL / "meta").iterdir()]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600]


def test_a_handle_is_closed_in_silence_when_the_interpreter_is_taken_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that did not close its session printed tracebacks at its end."""
    handle = wal.Handle(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    fd, told = handle.fd, list[object]()
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    for name in ("os", "contextlib"):
        monkeypatch.setattr(wal, name, None)
    del handle
    assert told == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
