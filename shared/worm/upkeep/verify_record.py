"""The record of the last verify: when everything was compared, and what differed.

`worm verify --record` writes it, for `worm doctor`. Nothing else reads it, and `worm verify` alone writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import cast

from worm.clock import iso_seconds, moment_of
from worm.formats import JsonValue, dumps, loads_own, shapes
from worm.store import Store
from worm.tables import VerifyReport
from worm.upkeep.session import Session
from worm.values import dataclass

VERIFY_KEY = ".worm.verify.json"
RECORD = shapes.record(
    "the record of a verify",
    {"at": shapes.TIME, "clean": shapes.FLAG, "documents": shapes.WHOLE, "differences": shapes.WHOLE},
)


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of the last recorded verification, for all models."""

    at: datetime
    is_clean: bool
    documents: int
    differences: int


def record_verify(session: Session, reports: Sequence[VerifyReport]) -> None:
    """For all models; replaces the previous record."""
    shape: dict[str, JsonValue] = {
        "version": 1,
        "at": iso_seconds(session.clock.now()),
        "clean": all(one.is_clean for one in reports),
        "documents": sum(one.documents for one in reports),
        "differences": sum(len(one.differences) for one in reports),
    }
    session.store.put(VERIFY_KEY, dumps(shape))


def last_verify(store: Store) -> Verified | None:
    """None: nothing is recorded. `Corrupt` if the record is not valid."""
    found = store.get(VERIFY_KEY)
    if found is None:
        return None
    shape = loads_own(found.body, key=VERIFY_KEY)
    shapes.check(shape, RECORD, VERIFY_KEY, hint="`worm verify --record` writes it again")
    at = cast(datetime, moment_of(cast(str, shape["at"])))
    clean, documents, differences = (shape[name] for name in ("clean", "documents", "differences"))
    return Verified(at, cast(bool, clean), cast(int, documents), cast(int, differences))
