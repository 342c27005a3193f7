"""Names of oplog archives, and of the time marks that point to them.

An archive is `<oplog of the entity>/.archive/<first>-<last>-<16 hex>.ndjson`: the seqs as in the names of entries, and
the beginning of the SHA-256 of its bytes. Its time mark is the mark of its first entry with all that added, so the one
LIST that finds a moment names the archive that holds it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from worm.collections.mark_names import mark_name, marked_seq

_SEQ = r"([0-9]{4}|[1-9][0-9]{4,18})"
_FILE = re.compile(rf"{_SEQ}-{_SEQ}-([0-9a-f]{{16}})\.ndjson")
_MARK = re.compile(r"([0-9]{12}-[0-9]{19})-([0-9]{19})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """What the name of an archive tells: the seqs of its first and last entry, and what its bytes hash to."""

    first: int
    last: int
    digest: str

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last

    @property
    def file(self) -> str:
        return f"{self.first:04d}-{self.last:04d}-{self.digest}.ndjson"

    def mark(self, ts: str) -> str | None:
        """The name of its time mark; `ts` is the time of its first entry. None where that is no usual time."""
        name = mark_name(ts, self.first)
        return None if name is None else f"{name}-{self.last:019d}-{self.digest}"

    @classmethod
    def parse(cls, file: str) -> ArchiveName | None:
        match = _FILE.fullmatch(file)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            return None
        return cls(int(match[1]), int(match[2]), match[3])

    @classmethod
    def of_mark(cls, name: str) -> ArchiveName | None:
        """The archive that a time mark points to; None for the mark of an entry, and for any other name."""
        match = _MARK.fullmatch(name)
        first = marked_seq(match[1]) if match else None
        if match is None or first is None or first > int(match[2]):
            return None
        return cls(first, int(match[2]), match[3])


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]
