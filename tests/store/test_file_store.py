"""What is particular to files: processes that race and die, people who edit, paths that lead elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from worm.errors import CommitStateUnknown, Invalid
from worm.store.base import Lost, Object, Won, acceptable, content_etag
from worm.store.file import CONTROL, FileStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "data", fsync=False)


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


def test_replaced_and_deleted_documents_leave_no_metadata_and_no_empty_folders(store: FileStore) -> None:
    store.put("a/b/doc", b"1", metadata={"x": "1"})
    store.put("a/b/doc", b"2", metadata={"x": "2"})
    store.put("a/b/doc", b"2")
    found = store.get("a/b/doc")
    assert found is not None
    assert found.metadata == {}
    store.put("a/b/doc", b"3", metadata={"x": "3"})
    store.delete("a/b/doc")
    assert [name for name in files(store) if "/locks/" not in name] == []
    assert not (store.root / "a").exists()


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


def test_leftovers_of_a_crash_are_removed_when_old_and_left_when_fresh(store: FileStore) -> None:
    store.delete("nothing")  # the first write makes the folders
    old, fresh = (store.root / CONTROL / "tmp" / name for name in ("old", "fresh"))
    for path in (old, fresh):
        path.write_bytes(b"half")
    long_ago = time.time() - 7200
    os.utime(old, (long_ago, long_ago))
    FileStore(store.root)
    assert (old.exists(), fresh.exists()) == (False, True)


def test_of_processes_racing_for_slots_each_slot_has_one_winner_whose_bytes_it_holds(store: FileStore) -> None:
    workers = [start("create", store, f"p{number}", 20) for number in range(8)]
    won = {f"p{number}": json.loads(worker.communicate(timeout=60)[0]) for number, worker in enumerate(workers)}
    claimed = {slot: name for name, slots in won.items() for slot in slots}
    assert sum(len(slots) for slots in won.values()) == 20
    found = {slot: store.get(f"slots/{slot}") for slot in range(20)}
    assert {slot: item.body for slot, item in found.items() if item is not None} == {
        slot: f"{name}-{slot}".encode() for slot, name in claimed.items()
    }


def test_processes_incrementing_one_counter_lose_nothing(store: FileStore) -> None:
    store.put("counter", b"0")
    workers = [start("count", store, f"p{number}", 15) for number in range(8)]
    assert [json.loads(worker.communicate(timeout=100)[0]) for worker in workers] == [15] * 8
    found = store.get("counter")
    assert found is not None
    assert found.body == b"120"


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
        deadline = time.monotonic() + 1.0
        seen: set[tuple[str, str]] = set()
        while time.monotonic() < deadline:
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_a_durable_write_reaches_the_disk_file_first_then_every_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that is on the disk before its bytes leaves an empty document after a power cut."""
    store = FileStore(tmp_path / "data")
    synced: list[str] = []
    really = os.fsync

    def recording(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink().relative_to(store.root).as_posix()
        synced.append("file" if name.startswith(f"{CONTROL}/tmp/") else name)
        really(handle)

    monkeypatch.setattr(os, "fsync", recording)
    assert isinstance(store.put_if_absent("a/b/doc", b"x"), Won)
    assert synced == ["file", f"{CONTROL}/meta", "file", ".", "a", "a/b"]


def test_a_rename_that_may_not_survive_a_power_cut_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path / "data")
    store.put("a/other", b"")

    def failing(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name == "a":
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(CommitStateUnknown, match="power cut"):
        store.put_if_absent("a/doc", b"x")


def test_looking_at_a_missing_directory_leaves_nothing_there(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "nowhere")
    assert store.get("a") is None
    assert list(store.list("")) == []
    assert list(tmp_path.iterdir()) == []
