"""Which paths an archive may have: those that name the same file on every system, inside the store and nothing else.

One rule for packing and unpacking, so that what is packed here can be unpacked anywhere.
"""

from __future__ import annotations

import unicodedata

from worm.errors import Invalid
from worm.journal.file_log import OPLOG

SIDECARS = ("changes", "pending")
PATH_BYTES_MAX = 1024
_NAME_BYTES_MAX = 255
_FORBIDDEN = frozenset('\\:*?"<>|')  # separators, drive letters and what other systems do not take
_DEVICES = frozenset(
    ("con", "prn", "aux", "nul", *(f"{name}{number}" for name in ("com", "lpt") for number in range(1, 10)))
)


def check_path(path: str) -> str:
    """The path itself, or `Invalid` with the reason why it is not safe."""
    reason = _reason_against(path)
    if reason is not None:
        raise Invalid(f"{path!r} cannot stand in an archive: {reason}")
    return path


def _reason_against(path: str) -> str | None:
    if len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX:
        return f"it has more than {PATH_BYTES_MAX} bytes"
    if path.startswith("/"):
        return "it is absolute"
    if path == OPLOG:
        return None
    first, *rest = path.split("/")
    reason = next((found for name in (first, *rest) if (found := _name_reason(name)) is not None), None)
    if reason is not None:
        return reason
    if first not in SIDECARS or not rest:
        return f"a store has {OPLOG} and files in {' and '.join(SIDECARS)}, nothing else"
    return None


def _name_reason(name: str) -> str | None:
    if name in ("", ".", ".."):
        return f"it has a part {name!r}"
    if not name.isprintable():
        return "it has a character that is not printable"
    if _FORBIDDEN.intersection(name):
        return f"it has one of {' '.join(sorted(_FORBIDDEN))}"
    if name[-1] in ". " or name.partition(".")[0].lower() in _DEVICES:
        return f"{name!r} is no name on every system"
    if len(name.encode()) > _NAME_BYTES_MAX:
        return f"a part has more than {_NAME_BYTES_MAX} bytes"
    return None


class PathSet:
    """The paths of one archive: none twice, none both file and folder, no two that a file system may take for one."""

    def __init__(self) -> None:
        self._spelled: dict[str, str] = {}
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, path: str) -> None:
        parents = _parents(check_path(path))
        for one in (*parents, path):
            spelled = self._spelled.setdefault(_alike(one), one)
            if spelled != one:
                raise Invalid(f"{path!r} and {spelled!r} differ only by case or normalisation")
        if path in self._files:
            raise Invalid(f"{path!r} is there twice")
        if path in self._folders or not self._files.isdisjoint(parents):
            raise Invalid(f"{path!r} makes a file of a directory, or a directory of a file")
        self._files.add(path)
        self._folders.update(parents)

    def __len__(self) -> int:
        return len(self._files)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _alike(path: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
