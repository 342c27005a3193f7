"""verify of one model: its table and history (`tables.verify`), and its Delta table."""

from __future__ import annotations

from worm.tables import Progress, VerifyReport, silent, verify_collection
from worm.upkeep.session import Session


def verify_model(session: Session, name: str, progress: Progress = silent) -> VerifyReport:
    """It only reads, unless another session left a save that is not folded."""
    session.folder.await_others(name)
    report = verify_collection(session.collection(name), progress)
    if session.schema.model(name).lake is not None:
        for found in session.lake(name).audit():
            report.differ(*found)
    return report
