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

Slots and LSNs have 20 digits, so the order of names is the order of commits. The name of a layer has what you must know
to delete the object safely if no root names it:

    delta/L<low>-L<high>-e<epoch>-<id>.delta     flushed from the log; the epoch of its last segment
    delta/L<low>-L<high>-c<epoch>-<id>.delta     merged by the compaction of that epoch
    image/img-L<lsn>-c<epoch>-<id>.image         made by the compaction of that epoch

A flushed layer can only ever be published while the log is applied up to the LSN before `low`; a merged one or an image
only while its compaction is the newest. Both conditions change from true to false once, and forever
(`pages/collect.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from worm.errors import Invalid, shown
from worm.formats import segment_problem

Kind = Literal["flushed", "merged", "image"]
DATABASES = "db/"
ROOT_NAME = "manifest.json"
_DIGITS = 20
_BRANCHES = "branches/"
_SLOT = re.compile(rf"db/([^/]+)/(?:branches/([^/]+)/)?log/([0-9]{{{_DIGITS}}})")
_LSN = rf"L([0-9]{{{_DIGITS}}})"
_MADE = r"([ec])(0|[1-9][0-9]*)-([0-9A-Z]{26})"
_DELTA = re.compile(rf"delta/{_LSN}-{_LSN}-{_MADE}\.delta")
_IMAGE = re.compile(rf"image/img-{_LSN}-{_MADE}\.image")


@dataclass(frozen=True, slots=True)
class DbKeys:
    """The keys of the objects of one database, or of one of its branches."""

    db_id: str
    branch: str = ""

    def __post_init__(self) -> None:
        problem = segment_problem(self.db_id)
        if problem:
            raise Invalid(f"database id {shown(self.db_id)} {problem}")

    @classmethod
    def of(cls, db: str | DbKeys) -> DbKeys:
        return db if isinstance(db, DbKeys) else cls(db)

    @property
    def directory(self) -> str:
        own = f"{DATABASES}{self.db_id}/"
        return f"{own}{_BRANCHES}{self.branch}/" if self.branch else own

    @property
    def root(self) -> str:
        return f"{self.directory}{ROOT_NAME}"

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
        found = segment_of(key)
        return found[1] if found is not None and found[0] == self else None

    def damaged(self, slot: int, etag: str) -> str:
        return f"{self.directory}damaged/{slot:0{_DIGITS}d}-{re.sub('[^A-Za-z0-9]', '', etag)}"

    def pointer(self, name: str) -> str:
        """Tells people which branch has this name."""
        return f"{self.directory}{_BRANCHES}{name}.json"

    @property
    def all_blobs(self) -> str:
        return f"{self.directory}blobs/"

    def blobs(self, place: str) -> str:
        return f"{self.directory}blobs/{place}/"

    def blob(self, place: str, number: int) -> str:
        """One part of a blob."""
        return f"{self.blobs(place)}{number:06d}"


def segment_of(key: str) -> tuple[DbKeys, int] | None:
    """The log and slot of a segment's key; None for any other key."""
    match = _SLOT.fullmatch(key)
    if match is None or segment_problem(match[1]):
        return None
    return DbKeys(match[1], match[2] or ""), int(match[3])


def database_of(key: str) -> str | None:
    """The database that a key belongs to; None for an object outside all databases."""
    name, slash, _ = key.removeprefix(DATABASES).partition("/")
    return name if slash and key.startswith(DATABASES) else None


def after_database(name: str) -> str:
    """A key after every key of this database, and before those of the next one."""
    return f"{DATABASES}{name}0"  # "0" comes right after "/"


def pointer_of(path: str) -> str | None:
    """The branch that a pointer object below a database's directory describes for people; None for any other path."""
    name = path.removeprefix(_BRANCHES)
    return name.removesuffix(".json") if name != path and "/" not in name and name.endswith(".json") else None


def split_branch(path: str) -> tuple[str, str]:
    """A path below a database's directory: the branch whose directory it is in (empty for main), and its path there."""
    branch, slash, rest = path.removeprefix(_BRANCHES).partition("/")
    return (branch, rest) if path.startswith(_BRANCHES) and slash else ("", path)


@dataclass(frozen=True, slots=True)
class LayerName:
    """The name of a layer below the directory of its branch. An image has one LSN, `high` and `low` at once."""

    kind: Kind
    low: int
    high: int
    epoch: int
    id: str

    def __str__(self) -> str:
        low, high = f"L{self.low:0{_DIGITS}d}", f"L{self.high:0{_DIGITS}d}"
        if self.kind == "image":
            return f"image/img-{high}-c{self.epoch}-{self.id}.image"
        return f"delta/{low}-{high}-{'e' if self.kind == 'flushed' else 'c'}{self.epoch}-{self.id}.delta"

    @classmethod
    def parse(cls, name: str) -> LayerName | None:
        """None: not one of our names, so we would never delete it."""
        if delta := _DELTA.fullmatch(name):
            kind: Kind = "flushed" if delta[3] == "e" else "merged"
            return cls(kind, int(delta[1]), int(delta[2]), int(delta[4]), delta[5])
        image = _IMAGE.fullmatch(name)
        if image is None or image[2] != "c":
            return None
        return cls("image", int(image[1]), int(image[1]), int(image[3]), image[4])
