"""verify of one model: its table and history (`tables.verify`), and its Delta table."""

from __future__ import annotations

from worm.lake.audit import audit
from worm.session import Session
from worm.tables.build import Progress, silent
from worm.tables.verify import VerifyReport, verify_collection


def verify_model(session: Session, name: str, progress: Progress = silent) -> VerifyReport:
    """It only reads, unless another session left a save that is not folded."""
    session.folder.await_others(name)
    report = verify_collection(session.collection(name), progress)
    if session.schema.model(name).lake is not None:
        for found in audit(session.lake(name)):
            report.differ(*found)
    return report
