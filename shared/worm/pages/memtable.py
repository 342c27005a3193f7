"""Pages that are in the log and in no layer yet. Not durable by itself: the log is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from threading import RLock

from worm.log.segment import Segment
from worm.pages.layer_file import Version
from worm.pages.records import versions_of

OVERHEAD = 120
"""Bytes of a version beside its page and data."""


class Memtable:
    """Versions by page. `lsn` and `slot`: what was taken in last; `after`: nothing up to this LSN is in it."""

    def __init__(self, slot: int, lsn: int, base: int) -> None:
        self.slot, self.lsn, self.after, self.base = slot, lsn, lsn, base
        self.bytes = 0
        self.epoch = 0
        self._versions: dict[str, list[Version]] = {}
        self._lock = RLock()

    def add(self, segment: Segment, key: str) -> None:
        """The next segment of the log; one that was applied before its writer was told is passed over."""
        with self._lock:
            if segment.slot <= self.slot:
                return
            for version in versions_of(segment, self.base, key):
                self._versions.setdefault(version.page, []).append(version)
                self.bytes += _size(version)
            self.slot, self.lsn, self.epoch = segment.slot, self.base + segment.last_lsn, segment.epoch

    def find(self, page: str, lsn: int) -> Version | None:
        """The newest version up to this LSN."""
        with self._lock:
            versions = self._versions.get(page)
            if not versions:
                return None
            at = bisect_right(versions, lsn, key=_lsn)
            return versions[at - 1] if at else None

    def between(self, start: str, end: str | None) -> list[Version]:
        """All versions of these pages, in the order of layers."""
        with self._lock:
            pages = sorted(page for page in self._versions if start <= page and (end is None or page < end))
            return [version for page in pages for version in self._versions[page]]

    def trim(self, lsn: int) -> None:
        """Forget versions up to this LSN: layers have them."""
        with self._lock:
            if lsn <= self.after:
                return
            for page in list(self._versions):
                versions = self._versions[page]
                at = bisect_right(versions, lsn, key=_lsn)
                self.bytes -= sum(map(_size, versions[:at]))
                if at == len(versions):
                    del self._versions[page]
                else:
                    self._versions[page] = versions[at:]
            self.after = lsn

    def frozen(self) -> tuple[int, int, int, list[Version]]:
        """Slot, LSN and epoch that it reaches, and all of its versions."""
        with self._lock:
            return self.slot, self.lsn, self.epoch, self.between("", None)

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(sorted(self._versions))


def _lsn(version: Version) -> int:
    return version.lsn


def _size(version: Version) -> int:
    return OVERHEAD + len(version.page) + len(version.data or b"")
