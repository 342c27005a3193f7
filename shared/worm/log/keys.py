"""Keys of a database: `db/<id>/…`. Slots have 20 digits, so the order of names is the order of commits.

Names of layers. A name tells what must be known to delete the object safely when no root names it:

    delta/L<low>-L<high>-e<epoch>-<id>.delta     flushed from the log; the epoch of its last segment
    delta/L<low>-L<high>-c<epoch>-<id>.delta     merged by the compaction of that epoch
    image/img-L<lsn>-c<epoch>-<id>.image         made by the compaction of that epoch

A flushed layer can only ever be published while the log is applied up to the LSN before `low`; a merged one or an image
only while its compaction is the newest. Both turn from yes to no once and for ever (`collect.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from worm.errors import Invalid
from worm.schema.fields import segment_problem

SLOT_DIGITS = 20
_SLOT = re.compile(rf"[0-9]{{{SLOT_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class DbKeys:
    """Where the objects of one database are, or those of one branch of it: a branch has a log of its own."""

    db_id: str
    branch: str = ""

    def __post_init__(self) -> None:
        problem = segment_problem(self.db_id)
        if problem:
            raise Invalid(f"database id {self.db_id!r} {problem}")

    @classmethod
    def of(cls, db: str | DbKeys) -> DbKeys:
        return db if isinstance(db, DbKeys) else cls(db)

    @property
    def directory(self) -> str:
        return f"db/{self.db_id}/branches/{self.branch}/" if self.branch else f"db/{self.db_id}/"

    @property
    def root(self) -> str:
        return f"{self.directory}manifest.json"

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

    def slot(self, slot: int) -> str:
        return f"{self.log}{slot:0{SLOT_DIGITS}d}"

    def slot_of(self, key: str) -> int | None:
        """The slot of a key; None for any other key."""
        name = key.removeprefix(self.log)
        return int(name) if key.startswith(self.log) and _SLOT.fullmatch(name) else None

    @property
    def bases(self) -> str:
        return f"{self.directory}base/"

    def base(self, slot: int, digest: str) -> str:
        return f"{self.bases}{slot:0{SLOT_DIGITS}d}-{digest}.ndjson"

    def damaged(self, slot: int, etag: str) -> str:
        return f"{self.directory}damaged/{slot:0{SLOT_DIGITS}d}-{re.sub('[^A-Za-z0-9]', '', etag)}"


DIGITS = 20
_FLUSHED = re.compile(r"delta/L([0-9]{20})-L[0-9]{20}-e[0-9]+-[0-9A-Z]{26}\.delta")
_COMPACTED = re.compile(r"(?:delta/L[0-9]{20}-L[0-9]{20}|image/img-L[0-9]{20})-c([0-9]+)-[0-9A-Z]{26}\.(?:delta|image)")


@dataclass(frozen=True, slots=True)
class LayerName:
    """What the name of a layer says: exactly one of the two is known."""

    flushed_from: int | None = None
    compaction: int | None = None


def flushed_name(low: int, high: int, epoch: int, id: str) -> str:
    return f"delta/L{low:0{DIGITS}d}-L{high:0{DIGITS}d}-e{epoch}-{id}.delta"


def merged_name(low: int, high: int, epoch: int, id: str) -> str:
    return f"delta/L{low:0{DIGITS}d}-L{high:0{DIGITS}d}-c{epoch}-{id}.delta"


def image_name(lsn: int, epoch: int, id: str) -> str:
    return f"image/img-L{lsn:0{DIGITS}d}-c{epoch}-{id}.image"


def parse_name(name: str) -> LayerName | None:
    """None: no name of ours, and nothing that we would delete."""
    if flushed := _FLUSHED.fullmatch(name):
        return LayerName(flushed_from=int(flushed[1]))
    if compacted := _COMPACTED.fullmatch(name):
        return LayerName(compaction=int(compacted[1]))
    return None
