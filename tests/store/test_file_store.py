"""What is particular to files: processes that race and die, people who edit, paths that lead elsewhere."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.forked import FORK, in_forked_child
from worm.errors import Denied, Invalid, Unavailable, WormError
from worm.store.base import Lost, Object, Won, acceptable, content_etag
from worm.store.file import CONTROL, FileStore

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = [3, pytest.param(8, marks=pytest.mark.slow)]


@pytest.fixture(params=["power", "process"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> FileStore:
    return FileStore(tmp_path / "data", durability=request.param)


def start(work: str, store: FileStore, name: str, rounds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.file_worker", work, str(store.root), name, str(rounds)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def files(store: FileStore) -> list[str]:
    return sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*") if path.is_file())


def test_a_document_is_a_plain_file_at_its_key(store: FileStore) -> None:
    store.put("org/customers/1/profile.json", b'{"name":"Ada"}')
    assert (store.root / "org/customers/1/profile.json").read_bytes() == b'{"name":"Ada"}'
    assert store.url == store.root.as_uri()


def test_an_edit_by_hand_is_a_new_etag_without_our_metadata(store: FileStore) -> None:
    """The put id of the old content must not vouch for somebody else's bytes."""
    won = store.put_if_absent("doc", b"ours", metadata={"worm-actor": "ada"})
    (store.root / "doc").write_bytes(b"theirs")
    found = store.get("doc")
    assert isinstance(won, Won)
    assert found is not None
    assert (found.body, found.etag, found.metadata) == (b"theirs", content_etag(b"theirs"), {})
    assert store.put_if_match("doc", b"next", won.etag) == Lost(found)


@pytest.mark.parametrize("damage", [b"", b"\xff", b"{", b"[1]", b"null", b"[" * 100_000, None])
def test_a_document_whose_metadata_is_damaged_has_none(store: FileStore, damage: bytes | None) -> None:
    """A JSONDecodeError ended every read of the document; a FIFO in its place would have been waited for."""
    store.put("doc", b"ours", metadata={"worm-actor": "ada"})
    (path,) = (store.root / CONTROL / "meta").iterdir()
    path.unlink()
    if damage is None:
        os.mkfifo(path)
    else:
        path.write_bytes(damage)
    found = store.get("doc")
    assert found is not None
    assert (found.body, found.metadata) == (b"ours", {})
    assert [listed.key for listed in store.list("")] == ["doc"]


def test_what_is_in_the_place_of_a_document_is_named_with_what_to_do(store: FileStore) -> None:
    store.put("file", b"")
    os.mkfifo(store.root / "fifo")
    (store.root / "folder").mkdir()
    (store.root / "link").symlink_to("/etc/hostname")
    assert (store.in_the_way("file"), store.in_the_way("nothing")) == (None, None)
    assert store.in_the_way("fifo") == f"something that is not a file is in its place: remove {store.root}/fifo"
    assert store.in_the_way("folder") == f"a directory is in its place: remove {store.root}/folder"
    assert store.in_the_way("link") == f"remove the link: {store.root}/link"


def test_replaced_and_deleted_documents_leave_no_metadata_and_no_empty_folders(store: FileStore) -> None:
    store.put("a/b/doc", b"1", metadata={"x": "1"})
    store.put("a/b/doc", b"2", metadata={"x": "2"})
    store.put("a/b/doc", b"2")
    found = store.get("a/b/doc")
    assert found is not None
    assert found.metadata == {}
    store.put("a/b/doc", b"3", metadata={"x": "3"})
    store.delete("a/b/doc")
    assert [name for name in files(store) if f"{CONTROL}/meta" in name or CONTROL not in name] == []
    assert not (store.root / "a").exists()


def test_other_metadata_for_the_same_content_is_there_as_a_whole(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader has no lock: written in its place, it would be empty for a moment."""
    store.put("doc", b"1", metadata={"x": "1"})
    seen, write = list[object](), os.write

    def looking(handle: int, data: bytes) -> int:
        found = store.get("doc")
        seen.append(found and found.metadata)
        return write(handle, data)

    monkeypatch.setattr(os, "write", looking)
    store.put("doc", b"1", metadata={"x": "2"})
    assert seen == [{"x": "1"}] * 2
    found = store.get("doc")
    assert found is not None
    assert found.metadata == {"x": "2"}


@pytest.mark.parametrize("lost", ["tmp", "locks", "meta", "."])
def test_a_store_whose_own_folders_are_gone_makes_them_again(store: FileStore, lost: str) -> None:
    """Tools that copy a directory may leave out empty folders."""
    store.put("doc", b"one", metadata={"worm-actor": "ada"})
    shutil.rmtree(store.root / CONTROL / lost)
    store.put("doc", b"two", metadata={"worm-actor": "bob"})
    found = store.get("doc")
    assert found is not None
    assert (found.body, found.metadata) == (b"two", {"worm-actor": "bob"})


def test_a_key_cannot_be_a_document_and_a_folder_at_once(store: FileStore) -> None:
    store.put("a", b"")
    with pytest.raises(Invalid, match="both a document and the folder"):
        store.put("a/b", b"")
    store.put("x/y", b"")
    with pytest.raises(Invalid, match="both a document and the folder"):
        store.put_if_absent("x", b"")
    assert (store.get("a/b"), store.get("x"), store.head("x")) == (None, None, None)
    store.delete("x/y")
    assert isinstance(store.put_if_absent("x", b""), Won)


@pytest.mark.parametrize("key", [f"{CONTROL}/tmp/x", CONTROL, "a/" + "x" * 256])
def test_the_stores_own_folder_and_names_too_long_for_a_file_are_refused(store: FileStore, key: str) -> None:
    with pytest.raises(Invalid):
        store.put(key, b"")
    with pytest.raises(Invalid):
        store.get(key)
    assert [row.key for row in store.list("")] == []


def test_a_symbolic_link_does_not_lead_out_of_the_store(store: FileStore, tmp_path: Path) -> None:
    store.delete("nothing")  # the first write makes the folders
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(b"secret")
    (store.root / "link").symlink_to(tmp_path / "secret")
    (store.root / "direct").symlink_to(tmp_path / "secret" / "file")
    for key in ("link/file", "direct"):
        with pytest.raises(Invalid, match="symbolic link"):
            store.get(key)
        with pytest.raises(Invalid, match="symbolic link"):
            store.put(key, b"x")
    store.put("good", b"")
    assert [row.key for row in store.list("")] == ["good"]
    assert (tmp_path / "secret" / "file").read_bytes() == b"secret"


def test_a_file_of_a_stranger_with_a_name_that_is_no_key_is_not_a_document(store: FileStore) -> None:
    store.delete("nothing")  # the first write makes the folders
    (store.root / "new\nline").write_bytes(b"x")
    store.put("good", b"")
    assert [row.key for row in store.list("")] == ["good"]


def test_leftovers_are_removed_unless_a_writer_holds_them_whatever_the_clocks_say(store: FileStore) -> None:
    """Of two machines with clocks hours apart one would remove the files that the other is writing."""
    store.put("doc", b"1")  # the first write makes the folders
    [own] = (store.root / CONTROL / "tmp").iterdir()
    left, older, held = own.parent / "left" / "0", own.parent / "older", own / "7"
    left.parent.mkdir()
    for path in (left, older, held):
        path.write_bytes(b"half")
        os.utime(path, (1, 1))
    FileStore(store.root)
    assert (left.parent.exists(), older.exists(), held.exists()) == (False, False, True)
    store._disk.tree._scratch._begin_again()  # the process ends
    FileStore(store.root)
    assert not own.exists()


def test_a_writer_whose_new_folder_was_taken_for_a_leftover_makes_another(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making and locking it, it looks like one."""
    store.delete("nothing")
    lock, taken = fcntl.flock, list[str]()

    def late(handle: int, how: int) -> None:
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
        if "/tmp/" in name.removeprefix(str(store.root)) and not taken:
            taken.append(name)
            shutil.rmtree(Path(name).parent)
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    store.put("a", b"1")
    found = store.get("a")
    assert (found is not None and found.body, len(taken)) == (b"1", 1)


@pytest.mark.slow
def test_a_process_that_opens_the_directory_does_not_disturb_a_running_writer(store: FileStore) -> None:
    worker = start("create", store, "writer", 200)
    while worker.poll() is None:
        FileStore(store.root)
    assert worker.returncode == 0


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_new_files_follow_the_umask(store: FileStore, umask: int, expected: int) -> None:
    before = os.umask(umask)
    try:
        store.put("a/doc", b"1", metadata={"x": "1"})
    finally:
        os.umask(before)
    meta = next((store.root / CONTROL / "meta").iterdir())
    assert [(path.stat().st_mode & 0o777) for path in (store.root / "a/doc", meta)] == [expected, expected]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_a_replaced_file_keeps_its_mode(store: FileStore, mode: int) -> None:
    """A save would show a private document to everybody."""
    store.put("doc", b"1")
    (store.root / "doc").chmod(mode)
    store.put("doc", b"2", metadata={"x": "1"})
    meta = next((store.root / CONTROL / "meta").iterdir())
    assert [(path.stat().st_mode & 0o777) for path in (store.root / "doc", meta)] == [mode, mode]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_replaced_file_keeps_its_owner_where_that_is_allowed(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("doc", b"1")
    os.chown(store.root / "doc", 1234, 2345)
    (store.root / "doc").chmod(0o640)
    store.put("doc", b"2")
    kept = (store.root / "doc").stat()
    assert (kept.st_uid, kept.st_gid, kept.st_mode & 0o777) == (1234, 2345, 0o640)

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not allowed")

    monkeypatch.setattr(os, "fchown", refused)
    store.put("doc", b"3")
    lost = (store.root / "doc").stat()
    assert (lost.st_uid, lost.st_mode & 0o777) == (0, 0o600)  # the group is another: it gets what others had


def _make_irregular(root: Path) -> list[str]:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "socket"))
    (root / "itself").symlink_to("itself")
    (root / "nowhere").symlink_to("gone")
    return ["fifo", "itself", "nowhere", "socket"]


@pytest.mark.timeout(20)
def test_what_is_not_a_regular_file_is_no_document_and_costs_only_itself(store: FileStore) -> None:
    """A FIFO was waited for without end, and a link to itself ended every listing."""
    store.put("doc", b"1")
    names = _make_irregular(store.root)
    assert [row.key for row in store.list("")] == ["doc"]
    assert [row.key for row in store.list_versions("")] == ["doc"]
    for name in names:
        assert (store.get(name), store.head(name), store.get_range(name, 0, 1)) == (None, None, None)
        store.delete(name)
    assert store.irregular() == names


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["fifo", "itself", "socket"])
def test_what_is_not_a_regular_file_is_not_replaced(store: FileStore, name: str) -> None:
    store.put("doc", b"1")
    names = _make_irregular(store.root)
    with pytest.raises(Invalid, match="not a file"):
        store.put(name, b"1")
    with pytest.raises(Invalid, match="not a file"):
        store.put_if_absent(name, b"1")
    assert store.irregular() == names


def test_a_lock_is_given_back_also_where_a_copy_of_its_handle_is_open(store: FileStore) -> None:
    """A child that was just forked has not closed its copy yet."""
    with store._disk.stripes.held(["doc"]):
        copy = os.dup(next(iter(store._disk.stripes.handles.values())).fd)
    again = os.open(next((store.root / CONTROL / "locks").iterdir()), os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    os.close(copy)


@pytest.mark.slow
def test_a_lock_is_free_again_although_a_forked_child_has_a_copy_of_it(store: FileStore) -> None:
    """The parent, and everybody else, would wait until the child ends."""
    store.put("doc", b"1")
    go_on = FORK.Event()
    with store._disk.stripes.held(["doc"]):
        child = FORK.Process(target=go_on.wait, args=(30,))
        child.start()
    try:
        assert in_forked_child(lambda: store.put("doc", b"2").etag) == content_etag(b"2")
    finally:
        go_on.set()
        child.join()


@pytest.mark.parametrize("processes", PROCESSES)
def test_of_processes_racing_for_slots_each_slot_has_one_winner_whose_bytes_it_holds(
    store: FileStore, processes: int
) -> None:
    workers = [start("create", store, f"p{number}", 20) for number in range(processes)]
    won = {f"p{number}": json.loads(worker.communicate(timeout=60)[0]) for number, worker in enumerate(workers)}
    claimed = {slot: name for name, slots in won.items() for slot in slots}
    assert sum(len(slots) for slots in won.values()) == 20
    found = {slot: store.get(f"slots/{slot}") for slot in range(20)}
    assert {slot: item.body for slot, item in found.items() if item is not None} == {
        slot: f"{name}-{slot}".encode() for slot, name in claimed.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("processes", PROCESSES)
def test_processes_incrementing_one_counter_lose_nothing(store: FileStore, processes: int) -> None:
    store.put("counter", b"0")
    workers = [start("count", store, f"p{number}", 15) for number in range(processes)]
    assert [json.loads(worker.communicate(timeout=100)[0]) for worker in workers] == [15] * processes
    found = store.get("counter")
    assert found is not None
    assert found.body == str(15 * processes).encode()


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_document_with_its_own_metadata_and_no_held_lock(store: FileStore) -> None:
    """kill -9 in the middle of replacing: the old or the new document, never a torn one."""
    size = 200_000
    for turn in range(12):
        worker = start("rewrite", store, "x", size)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        time.sleep(0.01 + 0.007 * turn)
        worker.kill()
        worker.wait(timeout=10)
        worker.stdout.close()
        found = store.get("folder/doc")
        if found is not None:
            letter = found.body[:1]
            assert found.body == letter * size
            assert found.metadata == {"letter": letter.decode()}
    assert isinstance(store.put("folder/doc", b"free"), Won)
    assert [row.key for row in store.list("")] == ["folder/doc"]


def test_a_reader_beside_a_writer_always_sees_content_with_its_own_metadata(store: FileStore) -> None:
    worker = start("rewrite", store, "x", 50)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "started\n"
        enough, deadline = time.monotonic() + 0.3, time.monotonic() + 30
        seen: set[tuple[str, str]] = set()
        while time.monotonic() < (enough if len(seen) > 1 else deadline):
            found = store.get("folder/doc")
            if found is not None:
                seen.add((found.body[:1].decode(), found.metadata.get("letter", "none")))
    finally:
        worker.kill()
        worker.communicate(timeout=10)
    assert len(seen) > 1
    assert [pair for pair in seen if pair[0] != pair[1]] == []


SEGMENT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=20)
KEYS = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join).filter(lambda key: acceptable(key) and key[0] != ".")


@pytest.mark.slow
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=KEYS, body=st.binary(max_size=50), note=st.text("abc%20 ", min_size=1).filter(lambda text: text == text.strip())
)
def test_any_key_and_body_come_back_as_they_were(store: FileStore, key: str, body: bytes, note: str) -> None:
    won = store.put(key, body, metadata={"note": note})
    found = store.get(key)
    assert found is not None
    assert found == Object(key, won.etag, len(body), found.last_modified, None, {"note": note}, body)
    assert [row.key for row in store.list("")] == [key]
    store.delete(key)
    assert list(store.list("")) == []


def test_looking_at_a_missing_directory_leaves_nothing_there(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "nowhere")
    assert store.get("a") is None
    assert list(store.list("")) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_who_may_only_read_closes_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A program that only read a directory that it may not write to ended with `Denied`."""
    writer = FileStore(tmp_path)
    writer.put("a.json", b"{}")
    reader = FileStore(tmp_path)
    assert reader.get("a.json") is not None

    def refuse(*_: object) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr("worm.store.wal.Handle.__init__", refuse)
    reader.close()
    with pytest.raises(WormError):
        writer.close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_lock_that_may_not_be_made_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A raw `PermissionError` reached the caller of every write into a directory that may only be read. A file system
    that is mounted read-only was `Unavailable`: try again later, which never helps."""
    store = FileStore(tmp_path / "data")

    def refuse(self: object, stripe: int) -> None:
        raise OSError(number, "no writing")

    monkeypatch.setattr("worm.store.file._Stripes._lock", refuse)
    for write in (lambda: store.put("a", b"1"), lambda: store.put_if_absent("a", b"1"), lambda: store.delete("a")):
        with pytest.raises(Denied, match="no writing"):
            write()


def test_the_deepest_key_gets_all_its_folders(tmp_path: Path) -> None:
    store, key = FileStore(tmp_path), "/".join("a" * 512)
    store.put(key, b"1")
    assert [one.key for one in store.list("")] == [key]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_directory_that_cannot_be_made_is_an_error_that_says_so() -> None:
    """It went on trying until Python had no stack left."""
    with pytest.raises(Unavailable, match="No such file or directory"):
        FileStore(Path("/proc/no-such-store")).put("a", b"1")
