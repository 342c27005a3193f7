"""Keys of a database: `db/<id>/…`. Slots have 20 digits, so the order of names is the order of commits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worm.errors import Invalid
from worm.schema.idtypes import segment_problem

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
