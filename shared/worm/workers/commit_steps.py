"""What a commit of a space makes of single documents."""

from __future__ import annotations

from dataclasses import dataclass

from worm.codec.strict_json import JsonObject, JsonValue
from worm.collections.entries import Document
from worm.collections.space_log import about_of, actor_of_commit
from worm.spaces.results import LogEntry
from worm.spaces.rows import DELETE, MAIN, SET
from worm.spaces.space import Space


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit makes of one document; `document` None: it deletes it."""

    seq: int
    document: Document | None
    actor: str | None
    op: str | None = None
    note: JsonObject | None = None


def steps_of(entry: LogEntry, space: Space) -> dict[str, Step]:
    """By entity. Branches have no documents."""
    operations = entry.original.get("operations")
    if entry.branch != MAIN or not isinstance(operations, list):
        return {}
    notes, actor, steps = about_of(entry).get("documents"), actor_of_commit(entry), dict[str, Step]()
    for operation in operations:
        if isinstance(operation, dict):
            entity, value = str(operation.get("id")), operation.get("value")
            if operation.get("op") not in (SET, DELETE):
                value = space.read(entity, at=entry.seq).value
            op, note = _said(notes, entity)
            steps[entity] = Step(entry.seq, value if isinstance(value, dict) else None, actor, op, note)
    return steps


def operations_of(entry: LogEntry) -> int:
    """How much a commit writes, at the most."""
    operations = entry.original.get("operations")
    return len(operations) if isinstance(operations, list) else 0


def _said(notes: JsonValue, entity: str) -> tuple[str | None, JsonObject | None]:
    """What belongs into the metadata of a document."""
    given = notes.get(entity) if isinstance(notes, dict) else None
    said = given if isinstance(given, dict) else {}
    op, note = said.get("op"), said.get("note")
    return op if isinstance(op, str) else None, note if isinstance(note, dict) else None
