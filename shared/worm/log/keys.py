"""All keys of databases, `db/<id>/…`: the one place that formats and parses them.

    db/<id>/manifest.json                        the root          db/<id>/lease.json      the lease
    db/<id>/manifest.backup.json                 the root as it was before objects were last deleted
    db/<id>/log/<slot>                           a segment         db/<id>/damaged/…       what a repair put aside
    db/<id>/gc/clock                             written to learn the store's time
    db/<id>/delta/…, db/<id>/image/…             layers of pages
    db/<id>/branches/<branch>/…                  the same of a branch: it has a log and layers of its own
    db/<id>/branches/<name>.json                 a branch by its name, for people
    db/<id>/documents.json, db/<id>/blobs/…      of a space: how far documents follow it, and its blobs
    db/<id>/requests/<id>.json                   of a space: transactions that a process asks the writer to commit
    db/<id>/answers.json                         of a space: what the writer says to them

Slots and LSNs have 20 digits, so the order of names is the order of commits. `pages/layer_name.py` has the names of
layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from worm.errors import Invalid, show
from worm.formats import path_name_problem
from worm.store import Store

DATABASES, AFTER = "db/", "0"
"""`db/<id>0` is after every key of a database, and before those of the next one."""
_DIGITS = 20
_BRANCHES = "branches/"
_SLOT = re.compile(rf"db/([^/]+)/(?:branches/([^/]+)/)?log/([0-9]{{{_DIGITS}}})")


@dataclass(frozen=True, slots=True)
class DbKeys:
    """The keys of the objects of one database, or of one of its branches."""

    ROOT_NAME: ClassVar[str] = "manifest.json"
    db_id: str
    branch: str = ""

    def __post_init__(self) -> None:
        problem = path_name_problem(self.db_id)
        if problem:
            raise Invalid(f"database id {show(self.db_id)} {problem}")

    @classmethod
    def of(cls, db: str | DbKeys) -> DbKeys:
        return db if isinstance(db, DbKeys) else cls(db)

    @classmethod
    def of_segment(cls, key: str) -> tuple[DbKeys, int] | None:
        """The log and slot of a segment's key; None for any other key."""
        match = _SLOT.fullmatch(key)
        if match is None or path_name_problem(match[1]):
            return None
        return cls(match[1], match[2] or ""), int(match[3])

    @staticmethod
    def database_of(key: str) -> str | None:
        """The database that a key belongs to; None for an object outside all databases."""
        name, slash, _ = key.removeprefix(DATABASES).partition("/")
        return name if slash and key.startswith(DATABASES) else None

    @property
    def directory(self) -> str:
        own = f"{DATABASES}{self.db_id}/"
        return f"{own}{_BRANCHES}{self.branch}/" if self.branch else own

    @property
    def root(self) -> str:
        return f"{self.directory}{self.ROOT_NAME}"

    @property
    def backup(self) -> str:
        """The copy that a lost root is rebuilt from."""
        return f"{self.directory}manifest.backup.json"

    @property
    def lease(self) -> str:
        return f"{self.directory}lease.json"

    @property
    def log(self) -> str:
        return f"{self.directory}log/"

    @property
    def clock(self) -> str:
        """Written only to learn the store's time."""
        return f"{self.directory}gc/clock"

    @property
    def documents(self) -> str:
        """How far the documents of a space follow its log."""
        return f"{self.directory}documents.json"

    @property
    def requests(self) -> str:
        """The prefix of transactions that processes ask the writer of a space to commit."""
        return f"{self.directory}requests/"

    def request(self, box: str) -> str:
        """The request of one process."""
        return f"{self.requests}{box}.json"

    def box_of(self, key: str) -> str:
        """The process that this request object belongs to."""
        return key.removeprefix(self.requests).removesuffix(".json")

    @property
    def answers(self) -> str:
        """The answers of a space's writer to requests."""
        return f"{self.directory}answers.json"

    @property
    def swept(self) -> tuple[str, str, str]:
        """Prefixes whose objects are garbage if no root names them or ever can."""
        return f"{self.directory}delta/", f"{self.directory}image/", f"{self.directory}{_BRANCHES}"

    def slot(self, slot: int) -> str:
        return f"{self.log}{slot:0{_DIGITS}d}"

    def slot_of(self, key: str) -> int | None:
        """The slot of a key of this log; None for any other key."""
        found = self.of_segment(key)
        return found[1] if found is not None and found[0] == self else None

    def damaged(self, slot: int, etag: str) -> str:
        return f"{self.directory}damaged/{slot:0{_DIGITS}d}-{re.sub('[^A-Za-z0-9]', '', etag)}"

    def pointer(self, name: str) -> str:
        """Tells people which branch has this name."""
        return f"{self.directory}{_BRANCHES}{name}.json"

    @staticmethod
    def pointed(path: str) -> str | None:
        """The branch that a pointer object below a database's directory describes for people; None for any other
        path."""
        name = path.removeprefix(_BRANCHES)
        return name.removesuffix(".json") if name != path and "/" not in name and name.endswith(".json") else None

    @staticmethod
    def split(path: str) -> tuple[str, str]:
        """A path below a database's directory: the branch whose directory it is in (empty for main), and its path
        there."""
        branch, slash, rest = path.removeprefix(_BRANCHES).partition("/")
        return (branch, rest) if path.startswith(_BRANCHES) and slash else ("", path)

    @property
    def all_blobs(self) -> str:
        return f"{self.directory}blobs/"

    def blobs(self, place: str) -> str:
        return f"{self.directory}blobs/{place}/"

    def blob(self, place: str, number: int) -> str:
        """One part of a blob."""
        return f"{self.blobs(place)}{number:06d}"


def databases(store: Store) -> Iterator[str]:
    """The databases of a bucket or prefix: one LIST of one key for each."""
    after: str | None = None
    while True:
        found = next(iter(store.list(DATABASES, start_after=after, limit=1)), None)
        if found is None:
            return
        name = DbKeys.database_of(found.key)
        if name is not None:
            yield name
        after = found.key if name is None else f"{DATABASES}{name}{AFTER}"
