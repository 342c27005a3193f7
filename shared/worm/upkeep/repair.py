"""repair: rebuilds all derived data of one model from its source, while workers run.

`put_aside` moves an object that is not an entry out of an oplog, so that the history can continue. A copy of it is
kept.

In this order: outdated documents of a space; entries that no event reported; time marks; manifest, indexes, heads; the
Delta table; claims. Existing oplog entries are never changed, and documents only where their model is in a space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

from worm.collections import Archive, Collection, KeyInfo, KeyKind, OplogEntry, delete_unchanged, failure_of, layout
from worm.errors import Conflict, Corrupt, Invalid, NotFound, WormError
from worm.spaces import outdated
from worm.store import Lost, Object
from worm.tables import Progress, silent
from worm.upkeep.materialize import Materializer
from worm.upkeep.session import Session
from worm.upkeep.sweep import Sweep

ASIDE = ".worm.aside"
BELONGS = "only an object that is not an entry, or that follows a gap, can be set aside"


@dataclass
class RepairReport:
    """The result of repairing one model. `rows` is the number of rows in its manifest (None: it keeps none), `problems`
    has reasons by key for what was left as it is. `damaged`: by id, why a history is damaged; its document is still
    served.
    """

    model: str
    listed: int = 0
    recorded: int = 0
    rows: int | None = None
    problems: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, Corrupt] = field(default_factory=dict)


def repair_model(session: Session, name: str, progress: Progress = silent) -> RepairReport:
    """Repair one model. `progress` is called with the number of checked documents, then with the number that the tables
    have read."""
    report, collection = RepairReport(name), session.collection(name)
    _mend(session, report)
    swept = Sweep(session).run(
        lambda: math.inf, [name], resume=False, folds=False, progress=lambda done: progress(done, None)
    )[0]
    if swept.error is not None:
        report.problems[swept.error.key or name] = swept.error.message
    _mark(session, collection, report)
    table = session.table(name)
    manifest = table.rebuild(progress)
    if session.schema.model(name).lake is not None:
        session.lake(name).restore()
    report.damaged = {**swept.damaged, **table.damaged}
    report.problems.update({damage.key or one: str(damage) for one, damage in report.damaged.items()})
    if manifest is not None:
        report.rows = manifest.count
        claimed = collection.claims.restore(manifest.entities)
        report.problems.update({found.key: found.detail for found in claimed.conflicts})
    report.listed, report.recorded = swept.listed, swept.recorded
    left = {one: reason for one, reason in swept.problems.items() if one not in report.damaged}
    report.problems.update({collection.documents.key(one): reason for one, reason in left.items()})
    return report


def put_aside(session: Session, key: str) -> str:
    """Move an object of an oplog that is not an entry, or that follows a gap, to `.worm.aside/`. Returns its new key.
    `Invalid` for an entry that belongs to its history, and for other keys; `NotFound` if there is no object."""
    info = session.resolver.parse(key)
    if info.kind not in (KeyKind.OPLOG, KeyKind.ARCHIVE) or info.model is None or info.id is None or info.seq is None:
        raise Invalid("only objects of an oplog can be set aside", key=key, hint="`worm verify` names their keys")
    found = session.store.get(key)
    if found is None:
        raise NotFound("the object does not exist", key=key)
    if _belongs(session.collection(info.model), info, key, found):
        raise Invalid("this entry belongs to its history", key=key, hint=BELONGS)
    copy = f"{ASIDE}/{key}-{layout.digest_of(found.body)}"
    session.store.put_if_absent(copy, found.body)
    kept = session.store.get(copy)
    if kept is None or kept.body != found.body:
        raise Conflict("another object has the name of the copy", key=copy, hint="nothing was changed")
    if isinstance(delete_unchanged(session.store, key, found.etag, found.version_id), Lost):
        raise Conflict("it changed in the meantime", key=key, hint="check it again; its copy is kept")
    return copy


def _belongs(collection: Collection, info: KeyInfo, key: str, found: Object) -> bool:
    """Does it match its name, with nothing missing before it?"""
    seq, seqs = cast(int, info.seq), collection.oplog.seqs(cast(str, info.id))
    try:
        if info.archive is not None:
            Archive.from_bytes(found.body, info.archive, key)
        elif OplogEntry.from_bytes(found.body, key).seq != seq:
            return False
    except Corrupt:
        return False
    return seqs.missing is None or seq < seqs.missing[0]


def _mend(session: Session, report: RepairReport) -> None:
    """Documents with an older commit than the log of their space; the reason if that is unknown."""
    materializer = Materializer(session)
    try:
        for entity_id, _, _ in outdated(session.collection(report.model)):
            materializer.mend(report.model, entity_id)
    except WormError as error:
        report.problems[error.key or report.model] = error.message


def _mark(session: Session, collection: Collection, report: RepairReport) -> None:
    """Write missing time marks."""

    def one(unmarked: tuple[str, int]) -> WormError | None:
        return failure_of(lambda: collection.mark(*unmarked))

    missing = collection.unmarked() if collection.definition.oplog else []
    for unmarked, error in zip(missing, session.in_parallel(one, missing), strict=True):
        if error is not None:
            report.problems[collection.oplog.key(*unmarked)] = f"no time mark: {error}"
