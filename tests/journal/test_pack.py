"""The archive: deterministic, complete, and F45: whatever a crafted one says, nothing lands outside or half."""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path

import pytest

from tests.journal.log_room import QuickDisk, every_death, log_bytes, state_of, store_at
from worm.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from worm.log.journal.file import COMPACTING, LOCK, OPLOG, Locked
from worm.log.journal.pack import MAGIC, Caps, check_path, pack, unpack


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with sidecars and scratch files."""
    path = tmp_path / "app.omgdb"
    with store_at(path) as opened:
        opened.create_index("c", "v")
        for number in range(4):
            opened.insert("c", {"_id": number, "v": "ü"})
    (path / "pending").mkdir()
    (path / "pending" / "b.json").write_bytes(b"{}\nFILE x 3\n")
    (path / "pending" / ".half").write_bytes(b"scratch")
    (path / "pending" / "x.tmp").write_bytes(b"scratch")
    (path / "changes" / "2026").mkdir(parents=True)
    (path / "changes" / "2026" / "empty").write_bytes(b"")
    (path / "notes.txt").write_bytes(b"not of the store")
    (path / f"{OPLOG}.damaged-1").write_bytes(b"aside")
    return path


def entry(name: str | bytes, body: bytes, size: object = None) -> bytes:
    raw = name if isinstance(name, bytes) else name.encode()
    length = len(body) if size is None else size
    return b"FILE " + raw + f" {length}\n".encode() + body + b"\n"


def tree(path: Path) -> dict[str, bytes]:
    files = (one for one in path.rglob("*") if one.is_file())
    return {one.relative_to(path).as_posix(): one.read_bytes() for one in files}


def test_the_archive_is_as_documented_and_deterministic(store: Path, tmp_path: Path) -> None:
    report = pack(store, tmp_path / "a.pack")
    log = log_bytes(store)
    body = (tmp_path / "a.pack").read_bytes()
    sidecars = entry("changes/2026/empty", b""), entry("pending/b.json", b"{}\nFILE x 3\n")
    assert body == b"OMGDB-PACK v1\n" + sidecars[0] + entry(OPLOG, log) + sidecars[1]
    assert (report.files, report.size, report.records, report.documents) == (3, len(log) + 12, 5, 4)
    pack(store, tmp_path / "b.pack")
    assert (tmp_path / "b.pack").read_bytes() == body
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.pack", "app.omgdb", "b.pack"]


def test_an_unpacked_store_replays_to_exactly_the_packed_one(store: Path, tmp_path: Path) -> None:
    pack(store, tmp_path / "a.pack")
    report = unpack(tmp_path / "a.pack", tmp_path / "back")
    assert (report.files, report.records, report.documents) == (3, 5, 4)
    assert sorted(tree(tmp_path / "back")) == ["changes/2026/empty", OPLOG, "pending/b.json"]
    assert state_of(store).differences(state_of(tmp_path / "back")) == []
    pack(tmp_path / "back", tmp_path / "b.pack")
    assert (tmp_path / "b.pack").read_bytes() == (tmp_path / "a.pack").read_bytes()


def test_lock_compaction_and_torn_tail_are_not_packed(store: Path, tmp_path: Path) -> None:
    log = log_bytes(store)
    (store / OPLOG).write_bytes(log + b"torn")
    (store / COMPACTING).write_bytes(b"half")
    pack(store, tmp_path / "a.pack")
    body = (tmp_path / "a.pack").read_bytes()
    assert entry(OPLOG, log) in body
    assert LOCK.encode() not in body
    assert b"compacting" not in body


def test_packing_refuses_an_open_store_a_damaged_one_and_an_existing_file(store: Path, tmp_path: Path) -> None:
    with store_at(store), pytest.raises(Locked):
        pack(store, tmp_path / "a.pack")
    with pytest.raises(NotFound):
        pack(tmp_path / "nowhere", tmp_path / "a.pack")
    with pytest.raises(NotFound, match="is not a directory"):
        pack(store, tmp_path / "nowhere" / "a.pack")
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(Conflict, match="already exists"):
        pack(store, tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b"mine"
    (store / OPLOG).write_bytes(log_bytes(store).replace(b"insert", b"inserT", 1))
    with pytest.raises(Corrupt):
        pack(store, tmp_path / "a.pack")
    assert not (tmp_path / "a.pack").exists()


def test_packing_follows_no_symbolic_link_and_takes_no_odd_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    link = store / "pending" / "link"
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(Invalid, match="neither a file nor a directory"):
        pack(store, tmp_path / "a.pack")
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(Invalid, match="neither a file nor a directory"):
        pack(store, tmp_path / "a.pack")
    link.unlink()
    (store / "pending" / "bad\nname").write_bytes(b"")
    with pytest.raises(Invalid, match="unprintable"):
        pack(store, tmp_path / "a.pack")
    (store / "pending" / "bad\nname").unlink()
    Path(os.fsdecode(os.fsencode(store / "pending") + b"/\xff")).write_bytes(b"")
    with pytest.raises(Invalid, match="unprintable"):
        pack(store, tmp_path / "a.pack")
    (store / "changes").rename(tmp_path / "elsewhere")
    (store / "changes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="symbolic link"):
        pack(store, tmp_path / "a.pack")
    assert not [one for one in tmp_path.iterdir() if "pack" in one.name]


def test_unpacking_never_clobbers(store: Path, tmp_path: Path) -> None:
    archive = tmp_path / "a.pack"
    pack(store, archive)
    before = tree(store)
    with pytest.raises(Conflict, match="already holds a store"):
        unpack(archive, store)
    assert tree(store) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"mine")
    with pytest.raises(Conflict, match="not an empty directory"):
        unpack(archive, tmp_path / "full")
    with pytest.raises(Conflict, match="not an empty directory"):
        unpack(archive, archive)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    with pytest.raises(Invalid, match="symbolic link"):
        unpack(archive, tmp_path / "link")
    with pytest.raises(NotFound):
        unpack(archive, tmp_path / "nowhere" / "deep")
    with pytest.raises(NotFound):
        unpack(tmp_path / "nothing.pack", tmp_path / "new")
    with pytest.raises(Invalid):
        unpack(tmp_path / "empty", tmp_path / "new")
    unpack(archive, tmp_path / "empty")
    assert (tmp_path / "empty" / OPLOG).is_file()
    assert not list(tmp_path.glob(".*"))


EVIL = [
    "../x", "pending/../../x", "/etc/x", "pending//x", "pending/./x", "pending/", "", "pending", "C:/x", "C:x",
    "pending/C:x", "pending\\..\\x", "\\\\server\\x", "pending/a\x00b", "pending/a\tb", "pending/x.", "pending/x ",
    "pending/NUL", "pending/com1.txt", "LOCK", COMPACTING, f"{OPLOG}/x", "elsewhere/x", "Pending/x",
    "pending/" + "x" * 256, "pending/" + "x/" * 600 + "y", "pending/\u202ecod.exe", "~/x", "OPLOG.ndjson",
]  # fmt: skip


@pytest.mark.parametrize("name", EVIL)
def test_f45_unsafe_paths_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    refuse(tmp_path, entry(OPLOG, b"") + entry(name, b"evil"), (Invalid, Corrupt))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/x", "it is an absolute path"),
        ("pending/../x", r"it has a part '\.\.'"),
        ("pending/./x", r"it has a part '\.'"),
        ("pending//x", "it has a part ''"),
        ("pending/" + "x" * 256, "a part has more than 255 bytes"),
        ("pending/" + "x/" * 600 + "y", "it has more than 1024 bytes"),
        ("pending/a\\b", "it contains one of"),
        ("pending/\ud800", "unprintable"),
        ("x/y", "a store has only"),
    ],
)
def test_the_reason_against_a_path_is_told(path: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        check_path(path)


def refuse(
    tmp_path: Path, content: bytes, kind: type[Exception] | tuple[type[Exception], ...], said: str = "."
) -> None:
    """Neither the target nor anything else is there afterwards."""
    room = tmp_path / "room"
    room.mkdir(exist_ok=True)
    archive = tmp_path / "evil.pack"
    archive.write_bytes(MAGIC + content)
    with pytest.raises(kind, match=said):
        unpack(archive, room / "new", caps=Caps(entries=4, size=1000))
    assert list(room.iterdir()) == []
    assert sorted(one.name for one in tmp_path.iterdir()) == ["evil.pack", "room"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["pending/x", "pending/x"], "twice"),
        ([OPLOG], "twice"),
        (["pending/x", "pending/X"], "only in case"),
        (["pending/a/1", "pending/A/2"], "only in case"),
        (["pending/straße", "pending/STRASSE"], "only in case"),
        ([f"pending/{unicodedata.normalize(form, 'é')}" for form in ("NFC", "NFD")], "normalization"),
        (["pending/x", "pending/x/y"], "both a file and a directory"),
        (["pending/x/y", "pending/x"], "both a file and a directory"),
    ],
)
def test_f45_duplicates_and_twins_are_refused(tmp_path: Path, names: list[str], said: str) -> None:
    refuse(tmp_path, entry(OPLOG, b"") + b"".join(entry(name, b"") for name in names), Invalid, said)


@pytest.mark.parametrize("size", [2**63, 2**64, 10**19, 5, 4, 3])
def test_f45_lying_lengths_are_refused_before_anything_is_allocated(tmp_path: Path, size: int) -> None:
    said = "left" if size <= 1000 else "holds more than"
    refuse(tmp_path, entry(OPLOG, b"") + entry("pending/x", b"abc", size)[: -1 if size == 3 else None],
           (Corrupt, Invalid), said if size > 3 else "left")  # fmt: skip


@pytest.mark.parametrize("size", ["-1", "+1", "01", "1_0", "0x1", "1e3", " 1", "\u0661", "", "9" * 21])
def test_f45_lengths_are_plain_digits(tmp_path: Path, size: str) -> None:
    refuse(tmp_path, entry(OPLOG, b"") + entry("pending/x", b"a", size), (Corrupt, Invalid))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"does not contain oplog\.ndjson"),
        (entry("pending/x", b""), r"does not contain oplog\.ndjson"),
        (entry(OPLOG, b"") + b"garbage", "no valid entry at byte"),
        (entry(OPLOG, b"") + b"\n", "no valid entry at byte"),
        (entry(OPLOG, b"")[:-1] + b"x", "the line break after a file is missing"),
        (entry(OPLOG, b"abc\n"), r"oplog\.ndjson: line 1 \(byte 0\)"),
        (entry(OPLOG, b"") + b"LINK pending/x 0\n\n", "no valid entry at byte"),
        (entry(OPLOG, b"") + entry(b"pending/\xff", b""), "not UTF-8"),
        (entry(OPLOG, b"") + b"FILE " + b"x" * 5000, "no valid entry at byte"),
    ],
)
def test_f45_what_is_no_archive_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    refuse(tmp_path, content, Corrupt, said)


def test_f45_another_magic_is_refused(tmp_path: Path) -> None:
    for body in (b"", b"OMGDB-PACK v2\n", b"PK\x03\x04", MAGIC[:-1]):
        (tmp_path / "x").write_bytes(body)
        with pytest.raises(Corrupt, match=r"OMGDB-PACK v1|in the middle of an entry"):
            unpack(tmp_path / "x", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_f45_too_many_files_and_too_many_bytes_are_refused(tmp_path: Path) -> None:
    many = b"".join(entry(f"pending/{number}", b"") for number in range(4))
    refuse(tmp_path, entry(OPLOG, b"") + many, Invalid, "holds more than 4 files")
    refuse(tmp_path, entry("pending/x", b"x" * 1001), Invalid, "or 1000 bytes")


def test_f45_a_truncated_archive_is_refused(store: Path, tmp_path: Path) -> None:
    pack(store, tmp_path / "a.pack")
    whole = (tmp_path / "a.pack").read_bytes()
    ends = {len(whole), whole.index(b"FILE pending/")}  # there a shorter archive is a whole one
    headers = [at for at in range(len(whole)) if whole.startswith(b"FILE", at)]
    near = {at + delta for at in headers for delta in range(-2, 25)}
    for cut in range(len(whole)):
        if cut not in ends and (cut % 13 == 0 or cut in near):
            (tmp_path / "cut").write_bytes(whole[:cut])
            with pytest.raises(Corrupt):
                unpack(tmp_path / "cut", tmp_path / "new", disk=QuickDisk())
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*"))


def test_f45_a_flipped_byte_of_the_log_is_refused(store: Path, tmp_path: Path) -> None:
    pack(store, tmp_path / "a.pack")
    whole = (tmp_path / "a.pack").read_bytes()
    start = whole.index(log_bytes(store))
    for at in range(start, start + len(log_bytes(store)) - 1, 11):
        (tmp_path / "bad").write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(Corrupt):
            unpack(tmp_path / "bad", tmp_path / "new", disk=QuickDisk())


def test_a_death_at_any_step_of_packing_leaves_no_half_archive(store: Path, tmp_path: Path) -> None:
    pack(store, tmp_path / "good")
    good, before = (tmp_path / "good").read_bytes(), tree(store)
    target = tmp_path / "a.pack"
    for _ in every_death(lambda disk: pack(store, target, disk=disk)):
        assert not target.exists() or target.read_bytes() == good
        assert tree(store) == before
        target.unlink(missing_ok=True)
    assert target.read_bytes() == good


def test_a_death_at_any_step_of_unpacking_leaves_no_half_store(store: Path, tmp_path: Path) -> None:
    pack(store, tmp_path / "a.pack")
    unpack(tmp_path / "a.pack", tmp_path / "good")
    good, target, deaths = tree(tmp_path / "good"), tmp_path / "new", 0
    for _ in every_death(lambda disk: unpack(tmp_path / "a.pack", target, disk=disk)):
        deaths += 1
        assert not target.exists() or tree(target) == good
        if target.exists():
            target.rename(tmp_path / f"done-{deaths}")
    assert deaths > 20
    assert tree(target) == good


class Full(QuickDisk):
    def write(self, handle: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_nothing(store: Path, tmp_path: Path) -> None:
    pack(store, tmp_path / "a.pack")
    with pytest.raises(Unavailable, match="No space left"):
        unpack(tmp_path / "a.pack", tmp_path / "new", disk=Full())
    with pytest.raises(Unavailable, match="No space left"):
        pack(store, tmp_path / "b.pack", disk=Full())
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.pack", "app.omgdb"]
