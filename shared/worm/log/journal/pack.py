"""A store as one file, to move or archive it: `worm pack`, `worm unpack`.

    OMGDB-PACK v1
    FILE <path> <length>
    <so many bytes>
    FILE …

An archive holds `oplog.ndjson` and the files of `changes/` and `pending/`, sorted by path; no LOCK, and no scratch
files (names that start with a dot or end with `.tmp`). The same store gives the same bytes.

A path must name the same file on every system, and only inside the store. One rule holds for packing and unpacking, so
what is packed here can be unpacked anywhere.

An archive may come from anywhere, so unpacking trusts nothing. Paths are checked, and lengths are compared with the
rest of the archive before anything is read. Everything is written into a new directory beside the target; the log is
checked record by record, everything is synced, and at the end the directory is renamed. If anything goes wrong, the
target does not exist or is unchanged.
"""

from __future__ import annotations

import os
import stat
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.log.journal.file import CHUNK, OPLOG, FileLog, JournalDisk, replay, translated

MAGIC = b"OMGDB-PACK v1\n"
SIDECARS = ("changes", "pending")
PATH_BYTES_MAX = 1024
_HEADER_MAX = len("FILE  \n") + PATH_BYTES_MAX + 20
_NAME_BYTES_MAX = 255
_FORBIDDEN = frozenset('\\:*?"<>|')  # separators, drive letters and characters that other systems do not allow
_DEVICES = frozenset(
    ("con", "prn", "aux", "nul", *(f"{name}{number}" for name in ("com", "lpt") for number in range(1, 10)))
)


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits of an archive."""

    entries: int = 100_000
    size: int = 1 << 40


@dataclass(frozen=True, slots=True)
class PackReport:
    """The number of files and their bytes; the number of records and documents in the log."""

    path: str
    files: int
    size: int
    records: int
    documents: int


def pack(directory: Path, target: Path, *, disk: JournalDisk | None = None) -> PackReport:
    """Write the archive of a store, which must not be open. `Corrupt` if its log is damaged."""
    disk = disk or JournalDisk()
    if os.path.lexists(target):
        raise Conflict(f"{target} already exists", key=str(target))
    log = FileLog(directory, create=False, disk=disk)
    try:
        with translated(target):
            files, size = _write_archive(directory, target, disk)
    finally:
        log.close()
    return PackReport(str(target), files, size, log.next_lsn, log.fold.state.documents)


@contextmanager
def _scratch(target: Path, what: str, disk: JournalDisk) -> Iterator[Path]:
    """A new directory beside the target, so that the rename is one step. It is left behind only if the process is
    killed."""
    if not target.parent.is_dir():
        raise NotFound(f"{target.parent} is not a directory", key=str(target))
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.{what}-"))
    try:
        yield folder
    finally:
        disk.remove_tree(folder)


def _write_archive(directory: Path, target: Path, disk: JournalDisk) -> tuple[int, int]:
    names, total = PathSet(), 0
    with _scratch(target, "packing", disk) as folder:
        handle = disk.open(folder / "archive", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            disk.write(handle, MAGIC)
            for name in sorted((OPLOG, *_sidecars(directory)), key=str.encode):
                names.add(name)
                total += _write_entry(directory / name, name, handle, disk)
            disk.sync(handle)
        finally:
            disk.close(handle)
        disk.rename(folder / "archive", target)
        disk.sync_directory(target.parent)
    return len(names), total


def _write_entry(path: Path, name: str, handle: int, disk: JournalDisk) -> int:
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(source, "rb") as file:
        size = os.fstat(source).st_size
        disk.write(handle, b"FILE %b %d\n" % (name.encode(), size))
        left = size
        while left:
            piece = file.read(min(left, CHUNK))
            if not piece:
                raise Conflict(f"{name} became shorter while it was packed", key=name)
            disk.write(handle, piece)
            left -= len(piece)
        disk.write(handle, b"\n")
    return size


def _sidecars(directory: Path) -> Iterator[str]:
    for top in SIDECARS:
        yield from _files(directory / top, top)


def _files(folder: Path, name: str) -> Iterator[str]:
    if folder.is_symlink():
        raise Invalid(f"{name!r} is a symbolic link", key=name)
    if not folder.is_dir():
        return
    for child in sorted(folder.iterdir()):
        path = f"{name}/{child.name}"
        if child.name.startswith(".") or child.name.endswith(".tmp"):
            continue
        mode = child.lstat().st_mode
        if stat.S_ISDIR(mode):
            yield from _files(child, path)
        elif stat.S_ISREG(mode):
            yield check_path(path)
        else:
            raise Invalid(f"{path!r} is neither a file nor a directory", key=path)


def unpack(archive: Path, target: Path, *, caps: Caps | None = None, disk: JournalDisk | None = None) -> PackReport:
    """Create a store from an archive, in a directory that does not exist or is empty. All or nothing."""
    disk, caps = disk or JournalDisk(), caps or Caps()
    _require_free(target)
    with translated(archive), archive.open("rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Invalid(f"{archive} is not a regular file", key=str(archive))
        with translated(target), _scratch(target, "unpacking", disk) as folder:
            return _unpack(_Entries(file, archive, caps), archive, folder / "store", target, disk)


def _require_free(target: Path) -> None:
    if target.is_symlink():
        raise Invalid(f"{target} is a symbolic link", key=str(target))
    if os.path.lexists(target / OPLOG):
        raise Conflict(f"{target} already holds a store", key=str(target))
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"{target} is not an empty directory", key=str(target))


def _unpack(entries: _Entries, archive: Path, store: Path, target: Path, disk: JournalDisk) -> PackReport:
    disk.make_directory(store)
    folders = {store: None}
    for name, size in entries:
        path = store / name
        for folder in reversed(path.relative_to(store).parents):
            if store / folder not in folders:
                disk.make_directory(store / folder)
                folders[store / folder] = None
        _write_file(path, entries.content(size), disk)
    if not (store / OPLOG).is_file():
        raise Corrupt(f"does not contain {OPLOG}", key=str(archive))
    found = replay(store / OPLOG)
    if found.damage is not None:
        raise Corrupt(f"{OPLOG}: {found.damage.message}", key=str(archive)) from found.damage
    for folder in reversed(folders):
        disk.sync_directory(folder)
    _require_free(target)
    disk.rename(store, target)
    disk.sync_directory(target.parent)
    return PackReport(str(target), len(entries.names), entries.total, found.end.lines, found.fold.state.documents)


def _write_file(path: Path, pieces: Iterator[bytes], disk: JournalDisk) -> None:
    handle = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        for piece in pieces:
            disk.write(handle, piece)
        disk.sync(handle)
    finally:
        disk.close(handle)


class _Entries:
    """The entries of an archive in order; the content of each must be read before the next."""

    def __init__(self, file: BinaryIO, archive: Path, caps: Caps) -> None:
        self._file, self._key, self._caps = file, str(archive), caps
        self._left = os.fstat(file.fileno()).st_size
        self.names, self.total = PathSet(), 0

    def __iter__(self) -> Iterator[tuple[str, int]]:
        if self._take(len(MAGIC)) != MAGIC:
            raise Corrupt(f"does not begin with {MAGIC.decode().strip()!r}", key=self._key)
        while self._left:
            name, size = self._header()
            self.names.add(name)
            self.total += size
            if len(self.names) > self._caps.entries or self.total > self._caps.size:
                raise Invalid(f"holds more than {self._caps.entries} files or {self._caps.size} bytes", key=self._key)
            if size + 1 > self._left:
                raise Corrupt(f"{name!r} should have {size} bytes, but only {self._left} are left", key=self._key)
            yield name, size

    def content(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._take(min(size, CHUNK))
            size -= len(piece)
            yield piece
        if self._take(1) != b"\n":
            raise Corrupt(f"the line break after a file is missing at byte {self._file.tell() - 1}", key=self._key)

    def _header(self) -> tuple[str, int]:
        place = self._file.tell()
        line = self._file.readline(_HEADER_MAX)
        self._left -= len(line)
        word, _, rest = line.removesuffix(b"\n").partition(b" ")
        name, _, digits = rest.rpartition(b" ")
        right = digits.isdigit() and len(digits) <= 20 and (digits == b"0" or not digits.startswith(b"0"))
        if word != b"FILE" or not line.endswith(b"\n") or not name or not right:
            raise Corrupt(f"there is no valid entry at byte {place}", key=self._key)
        try:
            return name.decode(), int(digits)
        except UnicodeDecodeError as error:
            raise Corrupt(f"the name at byte {place} is not UTF-8", key=self._key) from error

    def _take(self, size: int) -> bytes:
        piece = self._file.read(min(size, self._left))
        if len(piece) != size:
            raise Corrupt(f"ends at byte {self._file.tell()}, in the middle of an entry", key=self._key)
        self._left -= size
        return piece


def check_path(path: str) -> str:
    """The path itself, or `Invalid` with the reason if it is not safe."""
    reason = _reason_against(path)
    if reason is not None:
        raise Invalid(f"{path!r} cannot be in an archive: {reason}")
    return path


def _reason_against(path: str) -> str | None:
    if len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX:
        return f"it has more than {PATH_BYTES_MAX} bytes"
    if path.startswith("/"):
        return "it is an absolute path"
    if path == OPLOG:
        return None
    first, *rest = path.split("/")
    reason = next((found for name in (first, *rest) if (found := _name_reason(name)) is not None), None)
    if reason is not None:
        return reason
    if first not in SIDECARS or not rest:
        return f"a store has only {OPLOG} and files in {' and '.join(SIDECARS)}"
    return None


def _name_reason(name: str) -> str | None:
    if name in ("", ".", ".."):
        return f"it has a part {name!r}"
    if not name.isprintable():
        return "it contains an unprintable character"
    if _FORBIDDEN.intersection(name):
        return f"it contains one of {' '.join(sorted(_FORBIDDEN))}"
    if name[-1] in ". " or name.partition(".")[0].lower() in _DEVICES:
        return f"{name!r} is not a valid name on every system"
    if len(name.encode()) > _NAME_BYTES_MAX:
        return f"a part has more than {_NAME_BYTES_MAX} bytes"
    return None


class PathSet:
    """The paths of one archive: none appears twice, none is both file and folder, and no two can be the same file on
    any file system."""

    def __init__(self) -> None:
        self._spelled: dict[str, str] = {}
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, path: str) -> None:
        parents = _parents(check_path(path))
        for one in (*parents, path):
            spelled = self._spelled.setdefault(_alike(one), one)
            if spelled != one:
                raise Invalid(f"{path!r} and {spelled!r} differ only in case or normalization")
        if path in self._files:
            raise Invalid(f"{path!r} appears twice")
        if path in self._folders or not self._files.isdisjoint(parents):
            raise Invalid(f"{path!r} is both a file and a directory")
        self._files.add(path)
        self._folders.update(parents)

    def __len__(self) -> int:
        return len(self._files)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _alike(path: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
