"""A disk in memory that forgets what was not synced: the few calls of `os` and `fcntl` that a directory store makes.

A power cut keeps what fsync promised and a random part of the rest: of a file any mixture of old, new and empty blocks,
of a directory any of the changes of each name up to some point, in whatever order they were made. So a rename may be
there without the bytes of its file, a later rename without an earlier one, a removal without an earlier one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from types import SimpleNamespace

import pytest

from worm.store import file, tree, wal

ROOT = "/simulated"
BLOCK = 512
_handles = count(1 << 20)
"""No handle of the real system, nor of an older simulated one: what is collected late closes its own."""


class PowerCut(BaseException):
    """The machine is off. Not an `Exception`: nothing may catch and carry on."""


@dataclass(eq=False)
class Inode:
    """A file or a folder, as it is in memory and as it is on the disk."""

    number: int
    is_folder: bool = False
    data: bytes = b""
    names: dict[str, Inode] = field(default_factory=dict)
    mode: int = 0o644
    time: int = 0
    disk_data: bytes = b""
    disk_names: dict[str, Inode] = field(default_factory=dict)
    disk_time: int = 0
    pending: dict[str, list[Inode | None]] = field(default_factory=dict)
    is_failed: bool = False
    """An fsync failed: the system takes what it has in memory for written, and it never reaches the disk."""

    def name(self, name: str, inode: Inode | None) -> None:
        self.pending.setdefault(name, []).append(inode)
        if inode is None:
            del self.names[name]
        else:
            self.names[name] = inode

    def sync(self) -> None:
        if self.is_failed:
            return
        self.disk_data, self.disk_names, self.disk_time = self.data, dict(self.names), self.time
        self.pending.clear()

    def lose(self, chance: Random) -> None:
        """What is on the disk after a power cut becomes all there is."""
        if self.is_failed:
            self.data, self.is_failed = self.disk_data, False
        if self.data != self.disk_data:
            self.data = _torn(self.disk_data, self.data, chance)
            self.time = chance.choice([self.time, self.disk_time])
        for name, changes in self.pending.items():
            kept = chance.randint(0, len(changes))
            if kept:
                inode = changes[kept - 1]
                if inode is None:
                    self.disk_names.pop(name, None)
                else:
                    self.disk_names[name] = inode
        self.names = dict(self.disk_names)
        self.sync()


def _torn(old: bytes, new: bytes, chance: Random) -> bytes:
    kind = chance.randrange(4)
    if kind == 0:
        return old
    if kind == 1:
        return new
    size = len(new) if len(new) < len(old) else chance.choice([len(new), chance.randint(len(old), len(new))])
    blocks = []
    for at in range(0, size, BLOCK):
        block = chance.choice([new[at : at + BLOCK], old[at : at + BLOCK]])  # zeros where there was none
        blocks.append(block.ljust(BLOCK, b"\0")[: min(BLOCK, size - at)])
    return b"".join(blocks)


@dataclass
class _OpenFile:
    inode: Inode
    offset: int = 0


class SimulatedDisk:
    """`os` of the modules of a directory store. What it does not have, the real `os` has; that touches no disk."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.top = Inode(0, is_folder=True)
        self.calls = 0
        self.cut_at: int | None = None
        self.is_off = False
        self.room: int | None = None
        self.fail: Callable[[str, Inode], bool] = lambda call, inode: False
        self._number = 0
        self._files: dict[int, _OpenFile] = {}
        self.now = 10**9

    def __getattr__(self, name: str) -> object:
        found = getattr(os, name)
        assert name.startswith("O_") or name in ("path", "strerror", "getpid", "fspath", "stat_result"), name
        return found

    def power_cut(self) -> None:
        for inode in self._all(self.top, set()):
            inode.lose(self.chance)
        self._files.clear()
        self.is_off, self.cut_at = False, None

    def _all(self, inode: Inode, seen: set[int]) -> Iterator[Inode]:
        if inode.number not in seen:
            seen.add(inode.number)
            yield inode
            changed = [one for changes in inode.pending.values() for one in changes if one is not None]
            for one in [*inode.names.values(), *inode.disk_names.values(), *changed]:
                yield from self._all(one, seen)

    def _step(self) -> None:
        self.calls += 1
        if self.is_off or (self.cut_at is not None and self.calls >= self.cut_at):
            self.is_off = True
            raise PowerCut

    def _new(self, *, is_folder: bool) -> Inode:
        self._number += 1
        self.now += 1
        return Inode(self._number, is_folder=is_folder, time=self.now)

    def _find(self, path: str) -> Inode:
        inode = self.top
        for name in path.strip("/").split("/") if path.strip("/") else []:
            if not inode.is_folder:
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            if name not in inode.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = inode.names[name]
        return inode

    def _parent(self, path: str) -> tuple[Inode, str]:
        folder, _, name = path.rstrip("/").rpartition("/")
        parent = self._find(folder) if folder else self.top
        if not parent.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return parent, name

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        parent, name = self._parent(path) if path != "/" else (Inode(-1, names={"": self.top}), "")
        inode = parent.names.get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self._step()
            inode = self._new(is_folder=False)
            parent.name(name, inode)
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            raise FileExistsError(errno.EEXIST, "exists", path)
        elif flags & os.O_TRUNC:
            self._step()
            inode.data = b""
        handle = next(_handles)
        self._files[handle] = _OpenFile(inode)
        return handle

    def close(self, handle: int) -> None:
        self._files.pop(handle, None)

    def _inode(self, handle: int) -> Inode:
        if self.is_off:
            raise PowerCut
        if handle not in self._files:
            raise OSError(errno.EBADF, "bad handle")
        return self._files[handle].inode

    def read(self, handle: int, size: int) -> bytes:
        inode, opened = self._inode(handle), self._files[handle]
        data = inode.data[opened.offset : opened.offset + size]
        opened.offset += len(data)
        return data

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return self._inode(handle).data[offset : offset + size]

    def write(self, handle: int, data: bytes) -> int:
        opened = self._files[handle] if handle in self._files else _OpenFile(self._inode(handle))
        done = self.pwrite(handle, data, opened.offset)
        opened.offset += done
        return done

    def pwrite(self, handle: int, data: bytes, offset: int) -> int:
        """Not all of it, where the power goes off or the disk is full meanwhile."""
        inode, taken = self._inode(handle), bytes(data)
        self.calls += 1
        is_last = self.is_off or (self.cut_at is not None and self.calls >= self.cut_at)
        if is_last:
            taken = taken[: self.chance.randint(0, len(taken))]
        grows = offset + len(taken) - len(inode.data)
        if self.room is not None and grows > self.room:
            taken = taken[: max(0, len(taken) - grows + self.room)]
            if not taken:
                raise OSError(errno.ENOSPC, "no space left")
            grows = self.room
        if self.room is not None:
            self.room -= max(0, grows)
        inode.data = inode.data[:offset].ljust(offset, b"\0") + taken + inode.data[offset + len(taken) :]
        self.now += 1
        inode.time = self.now
        if is_last:
            self.is_off = True
            raise PowerCut
        return len(taken)

    def ftruncate(self, handle: int, size: int) -> None:
        self._step()
        inode = self._inode(handle)
        inode.data = inode.data[:size].ljust(size, b"\0")

    def fsync(self, handle: int) -> None:
        self._step()
        inode = self._inode(handle)
        if self.fail("fsync", inode):
            inode.is_failed = True
            raise OSError(errno.EIO, "Input/output error")
        inode.sync()

    def fdatasync(self, handle: int) -> None:
        self.fsync(handle)

    def sync(self) -> None:
        for inode in self._all(self.top, set()):
            inode.sync()

    def _status(self, inode: Inode) -> os.stat_result:
        mode = inode.mode | (stat.S_IFDIR if inode.is_folder else stat.S_IFREG)
        times = (inode.time // 10**9,) * 3
        return _Status(mode, inode.number, len(inode.data), inode.time, times)  # type: ignore[return-value]  # as much of it as is asked for

    def fstat(self, handle: int) -> os.stat_result:
        return self._status(self._inode(handle))

    def stat(self, path: str) -> os.stat_result:
        return self._status(self._find(path))

    lstat = stat

    def rename(self, source: str, target: str) -> None:
        self._step()
        (old, old_name), (new, new_name) = self._parent(source), self._parent(target)
        if old_name not in old.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        if new_name in new.names and new.names[new_name].is_folder:
            raise IsADirectoryError(errno.EISDIR, "is a directory", target)
        inode = old.names[old_name]
        new.name(new_name, inode)
        old.name(old_name, None)

    def unlink(self, path: str) -> None:
        self._step()
        parent, name = self._parent(path)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        parent.name(name, None)

    def mkdir(self, path: str, mode: int = 0o777) -> None:
        self._step()
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "exists", path)
        parent.name(name, self._new(is_folder=True))

    def rmdir(self, path: str) -> None:
        self._step()
        parent, name = self._parent(path)
        if name not in parent.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        if parent.names[name].names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        parent.name(name, None)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._find(path).names)

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Top down; a caller may take folders out of the list."""
        path = path.rstrip("/")
        try:
            names = self._find(path).names
        except (FileNotFoundError, NotADirectoryError):
            return
        folders = sorted(name for name, inode in names.items() if inode.is_folder)
        yield path, folders, sorted(name for name, inode in names.items() if not inode.is_folder)
        for name in folders:
            yield from self.walk(f"{path}/{name}")

    def utime(self, handle: int, *, ns: tuple[int, int]) -> None:
        self._inode(handle).time = ns[1]

    def fchmod(self, handle: int, mode: int) -> None:
        self._inode(handle).mode = mode

    def chmod(self, path: str, mode: int) -> None:
        self._find(path).mode = mode

    def edit(self, path: str, data: bytes, *, is_synced: bool) -> None:
        """By hand, as an editor does it; synced with all its folders, so that nothing of it can be lost."""
        parent, name = self._parent(path)
        inode = self._new(is_folder=False)
        inode.data, inode.time = data, self.now
        parent.name(name, inode)
        if is_synced:
            inode.sync()
            while path:
                path = path.rpartition("/")[0]
                self._find(path).sync()


@dataclass(frozen=True)
class _Status:
    st_mode: int
    st_ino: int
    st_size: int
    st_mtime_ns: int
    times: tuple[int, int, int]
    st_dev: int = 1
    st_uid: int = 0
    st_gid: int = 0
    st_nlink: int = 1


@contextmanager
def simulated(disk: SimulatedDisk) -> Iterator[None]:
    """Directory stores are on the simulated disk inside the block. Locks are always free: there is one thread."""
    locks = SimpleNamespace(flock=lambda handle, how: None, LOCK_EX=2, LOCK_SH=1, LOCK_UN=8, LOCK_NB=4)
    with pytest.MonkeyPatch.context() as patch:
        for module in (file, tree, wal):
            patch.setattr(module, "os", disk)
            patch.setattr(module, "fcntl", locks)
        yield
