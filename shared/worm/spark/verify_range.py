"""verify, for one range of ids: the share of one of many processes. Together they check everything that `verify.py`
checks.

The rows of a range are compared with the files that hold it. Checks of the table as a whole (its time, its indexes,
claims) are left to the caller, which sees all ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

from worm.codec.strict_json import JsonValue, dumps
from worm.collections.collection import Collection
from worm.collections.entries import Heads, Row
from worm.collections.id_ranges import IdRange
from worm.errors import Corrupt
from worm.spark.staging import overlapping
from worm.tables.build import read_rows
from worm.tables.layout import T
from worm.tables.manifest import Manifest
from worm.tables.table import Table
from worm.tables.tree import Tree
from worm.tables.verify import DETAILS_MAX, VerifyReport, audit_append, differing, verify_entities, wrong_heads

V = TypeVar("V")


@dataclass
class RangeReport:
    """The result of verifying a range. `rows` come from the source, `revision` is the sum of their seqs."""

    report: VerifyReport
    rows: dict[str, Row] = field(default_factory=dict)
    last_updated: str = ""
    revision: int = 0
    damaged: frozenset[str] = frozenset()


def verify_range(collection: Collection, within: IdRange) -> RangeReport:
    """Verify one range. It only reads."""
    found = RangeReport(VerifyReport(collection.name))
    table = Table(collection)
    expected = _recorded(collection, within, found) if collection.definition.oplog else _read(collection, within, found)
    found.rows = expected.manifest.entities
    if table.is_kept:
        _verify_rows(table, within, expected.manifest, found.report)
    if collection.definition.oplog:
        _verify_heads(table, within, expected.heads, found.report)
    if collection.definition.soft_delete:
        for kind, key, detail in _trash_findings(collection, within):
            found.report.differ(kind, key, detail)
    found.report.differences += audit_append(collection, within)
    return found


@dataclass(frozen=True, slots=True)
class _Expected:
    manifest: Manifest
    heads: Heads


def _recorded(collection: Collection, within: IdRange, found: RangeReport) -> _Expected:
    changes = verify_entities(collection, found.report, within)
    manifest = Manifest(collection.name).folded(changes) or Manifest(collection.name)
    found.last_updated, found.revision = manifest.last_updated, manifest.revision
    heads = Heads(collection.name).folded(changes) or Heads(collection.name)
    found.damaged = heads.damaged
    return _Expected(manifest, heads)


def _read(collection: Collection, within: IdRange, found: RangeReport) -> _Expected:
    judge = partial(found.report.judged, collection)
    read = read_rows(collection, collection.current_ids(within), judge=judge)
    manifest = Manifest(collection.name).with_documents(read) or Manifest(collection.name)
    found.last_updated = manifest.last_updated
    found.report.documents = len(manifest.etags)
    return _Expected(manifest, Heads(collection.name))


def _verify_rows(table: Table, within: IdRange, expected: Manifest, report: VerifyReport) -> None:
    try:
        stored = stored_within(table.manifest, within)
    except Corrupt as damage:
        report.differ("manifest-damaged", damage.key or table.manifest.key, damage.message)
        return
    if stored is None:
        return  # reported once, by the caller that sees all ranges
    wrong = [
        *_unlike(stored.entities, expected.entities),
        *_unlike(stored.etags, expected.etags),
        *(_unlike(stored.seqs, expected.seqs) if table.collection.definition.oplog else ()),
    ]
    if wrong:
        report.differ("manifest-differs", table.manifest.key, _shown("row", wrong))


def _verify_heads(table: Table, within: IdRange, expected: Heads, report: VerifyReport) -> None:
    try:
        stored = stored_within(table.heads, within) or Heads(table.collection.name)
    except Corrupt:
        stored = Heads(table.collection.name)  # only hints: all of them differ then
    wrong = wrong_heads(stored, expected)
    if wrong:
        report.differ("heads-differ", table.heads.key, _shown("head", wrong))


def stored_within(tree: Tree[T], within: IdRange) -> T | None:
    """The table's content in a range; None if there is no table. Reads the files that overlap it."""
    root = tree.root()
    if root is None:
        return None
    if root.whole is not None:
        whole = root.whole
    else:
        files = [piece.file for piece in overlapping(tree.partitions(root), within)]
        whole = tree.layout.joined(tree.pieces.get(files)).merged(
            tree.pieces.get([delta.file for delta in root.deltas])
        )
    return whole.part([one for one in whole.ids() if one in within])


def _unlike(stored: Mapping[str, V], expected: Mapping[str, V]) -> Iterator[str]:
    for one in {*stored, *expected}:
        if one not in stored or one not in expected or _bytes(stored[one]) != _bytes(expected[one]):
            yield one


def _bytes(value: object) -> bytes:
    return dumps(cast(JsonValue, value))  # 1 is not true here


def _shown(what: str, wrong: Iterable[str]) -> str:
    ids = sorted(set(wrong))
    return f"{differing(len(ids), what)}: {', '.join(ids[:DETAILS_MAX])}"


def _trash_findings(collection: Collection, within: IdRange) -> Iterator[tuple[str, str, str]]:
    """Tombstones that cannot be read, and those whose document is gone with nothing left to restore. A tombstone of an
    existing document belongs to a deletion or a restore in progress, and so does one that changes while we look."""
    for entity_id in collection.trashed_ids(within):
        try:
            if _is_lost(collection, entity_id):
                yield "trash-copy-missing", collection.trash.copy_key(entity_id), "neither a copy nor a version is left"
        except Corrupt as damage:
            yield "trash-damaged", collection.trash.tombstone_key(entity_id), damage.message


def _is_lost(collection: Collection, entity_id: str) -> bool:
    tombstone = collection.trash.tombstone(entity_id)
    if tombstone is None or tombstone.state is not None:
        return False
    if collection.store.head(collection.documents.key(entity_id)) is not None:
        return False
    if _is_restorable(collection, entity_id, tombstone.version_id):
        return False
    return collection.trash.tombstone(entity_id) == tombstone  # a restore or a purge changes it before the copy goes


def _is_restorable(collection: Collection, entity_id: str, version_id: str | None) -> bool:
    store = collection.store
    if store.head(collection.trash.copy_key(entity_id)) is not None:
        return True
    key = collection.documents.key(entity_id)
    return version_id is not None and store.head(key, version_id=version_id) is not None
