"""repair: everything derived of one model is made good from its source, beside running workers.

In this order: documents that are behind the log of their space; entries that no event reported; time marks; manifest,
indexes, heads and claims. Existing oplog entries are never changed, and documents only where their model is in a space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from worm.bridge.origins import outdated
from worm.collections.claims import restore_claims
from worm.collections.collection import Collection
from worm.collections.reconcile import failure_of
from worm.errors import WormError
from worm.maintenance.materialize import Materializer
from worm.maintenance.sweep import Sweep
from worm.session import Session


@dataclass
class RepairReport:
    """What repairing one model came to. `rows` are those of its manifest (None: it keeps none), `problems` are reasons
    by key of what was left as it is."""

    model: str
    listed: int = 0
    recorded: int = 0
    rows: int | None = None
    problems: dict[str, str] = field(default_factory=dict)


def repair_model(session: Session, name: str) -> RepairReport:
    report, collection = RepairReport(name), session.collection(name)
    _mend(session, report)
    swept = Sweep(session).run(lambda: math.inf, [name], resume=False)[0]
    if swept.error is not None:
        report.problems[swept.error.key or name] = swept.error.message
    _mark(session, collection, report)
    manifest = session.table(name).rebuild()
    if manifest is not None:
        report.rows = manifest.count
        claimed = restore_claims(collection.claims, manifest.entities)
        report.problems.update({found.key: found.detail for found in claimed.conflicts})
    report.listed, report.recorded = swept.listed, swept.recorded
    report.problems.update({collection.documents.key(one): reason for one, reason in swept.problems.items()})
    return report


def _mend(session: Session, report: RepairReport) -> None:
    """Documents that are of an older commit than the log of their space has; the reason where that cannot be told."""
    materializer = Materializer(session)
    try:
        for entity_id, _, _ in outdated(session.collection(report.model)):
            materializer.mend(report.model, entity_id)
    except WormError as error:
        report.problems[error.key or report.model] = error.message


def _mark(session: Session, collection: Collection, report: RepairReport) -> None:
    """Write the time marks that are missing."""

    def one(unmarked: tuple[str, int]) -> WormError | None:
        return failure_of(lambda: collection.mark(*unmarked))

    missing = collection.unmarked() if collection.definition.oplog else []
    for unmarked, error in zip(missing, session.in_parallel(one, missing), strict=True):
        if error is not None:
            report.problems[collection.oplog.key(*unmarked)] = f"no time mark: {error}"
