"""Comparing two branches, and bringing the changes of one into another.

What a branch changed is counted from the last merge in this direction, or else from what the two have in common by
their forks. It is no conflict if the other one has not changed the entity since, or if the branch has seen that change
by a merge in the other direction. Merges by way of a third branch are not known here, and can end in a conflict more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from worm.codec.diff import same
from worm.codec.strict_json import JsonObject, JsonValue, loads_own
from worm.errors import Invalid
from worm.spaces.backend import Backend, Reads
from worm.spaces.config import SpaceConfig
from worm.spaces.lineage import Line, active_branch, branch_row, common_line, line_of
from worm.spaces.names import check_branch
from worm.spaces.operations import delete_document, set_document
from worm.spaces.reading import entities, entity_of
from worm.spaces.replay import State, load
from worm.spaces.results import BothChanged, Committed, Entity, MergeConflict
from worm.spaces.rows import CommitRow
from worm.spaces.transacting import Author, Committer, Request, repeated, same_record, used_twice

Decide: TypeAlias = Callable[[BothChanged], JsonObject | None]
"""The document to keep; None deletes it. Called while nobody else can write, and must not write to the space itself."""

Policy: TypeAlias = Literal["fail", "ours", "theirs"] | Decide

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Difference:
    """An entity that two branches do not have in the same state."""

    id: str
    left: Entity
    right: Entity


@dataclass(frozen=True, slots=True)
class Merged:
    """`committed` is None where there was nothing to do. `conflicts`: what the policy decided; unknown of a repeat."""

    committed: Committed | None
    changed: tuple[str, ...]
    conflicts: tuple[BothChanged, ...]


def diff(reads: Reads, left: str, right: str, at: int, newest: int) -> list[Difference]:
    """By id. A deleted entity and one that was never there are the same."""
    ids = sorted(changed_between(reads, line_of(reads, left, at), line_of(reads, right, at)))
    ones, others = (entities(reads, branch, ids, at, newest) for branch in (left, right))
    return [
        Difference(entity, ones[entity], others[entity])
        for entity in ids
        if not _same_entity(ones[entity], others[entity])
    ]


def changed_between(reads: Reads, one: Line, other: Line) -> set[str]:
    """Every entity with a revision that counts on one of the lines only."""
    here, there = dict(one), dict(other)
    changed: set[str] = set()
    for branch in {**here, **there}:
        low, high = sorted((here.get(branch, 0), there.get(branch, 0)))
        if low < high:
            changed |= reads.touched(branch, low, high)
    return changed


def merge(
    backend: Backend, committer: Committer, config: SpaceConfig, author: Author, branch: str, into: str, policy: Policy
) -> Merged:
    """One commit on `into` with everything that `branch` changed since the two were last the same."""
    if check_branch(branch) == check_branch(into):
        raise Invalid("a branch cannot be merged into itself")
    if policy not in ("fail", "ours", "theirs") and not callable(policy):
        raise Invalid(f"{policy!r} is no policy", hint="fail, ours, theirs, or a function")
    record: JsonObject = {"branch": branch, "policy": "function" if callable(policy) else policy}
    with backend.turn() as turn:
        earlier = repeated(turn, author, into)
        if earlier is not None:
            if not same_record(earlier, {"merge": record}):
                raise used_twice(author)
            return _again(earlier)
        active_branch(turn, into)
        active_branch(turn, branch)
        changes, conflicts = _changes(turn, branch, into)
        if conflicts and policy == "fail":
            raise MergeConflict(conflicts)
        decided = {one.id: _decided(one, policy) for one in conflicts}
        ops = [_operation(entity, value) for entity, value in sorted((changes | decided).items())]
        if not ops:
            return Merged(None, (), ())
        request = Request.checked(author, into, ops, [], config, {"merge": record})
        row, states = committer.write(turn, request)
    committer.remember(states)
    return Merged(Committed.of(row), tuple(sorted(changes)), tuple(conflicts))


def _changes(reads: Reads, branch: str, into: str) -> tuple[dict[str, JsonObject | None], list[BothChanged]]:
    """What `branch` alone changed, and what both did."""
    newest = reads.newest().seq
    theirs_line, ours_line = line_of(reads, branch, newest), line_of(reads, into, newest)
    theirs_base_line, ours_base_lines = _bases(reads, theirs_line, ours_line)
    ids = sorted(changed_between(reads, theirs_line, theirs_base_line))
    theirs, theirs_base, ours = (load(reads, line, ids) for line in (theirs_line, theirs_base_line, ours_line))
    ours_bases = [load(reads, line, ids) for line in ours_base_lines]
    changes: dict[str, JsonObject | None] = {}
    conflicts = []
    for entity in ids:
        known = [_body(states.get(entity)) for states in ours_bases]
        wanted, there = _body(theirs.get(entity)), _body(ours.get(entity))
        if wanted in (_body(theirs_base.get(entity)), there, *known[1:]):  # nothing that `into` has not had
            continue
        other = entity_of(entity, branch, newest, theirs.get(entity))
        if there in known:
            changes[entity] = other.value
        else:
            base = entity_of(entity, *theirs_base_line[0], theirs_base.get(entity))
            conflicts.append(BothChanged(entity, base, entity_of(entity, into, newest, ours.get(entity)), other))
    return changes, conflicts


def _bases(reads: Reads, theirs: Line, ours: Line) -> tuple[Line, list[Line]]:
    """What was brought over before of theirs, and the states of ours that they have seen: when that was, and when ours
    was last brought to them."""
    (branch, newest), (into, _) = theirs[0], ours[0]
    floor = max(branch_row(reads, branch).created_seq, branch_row(reads, into).created_seq)
    brought = _last_merge(reads, branch, into, floor, newest)
    seen = _last_merge(reads, into, branch, brought or floor, newest)
    if brought is None:
        common = common_line(ours, theirs)
        bases: tuple[Line, Line] = (common, common)
    else:
        bases = line_of(reads, branch, brought), line_of(reads, into, brought)
    return bases[0], [bases[1]] if seen is None else [bases[1], line_of(reads, into, seen)]


def _last_merge(reads: Reads, source: str, target: str, after: int, upto: int) -> int | None:
    """The newest commit that merged `source` into `target`."""
    while rows := reads.commits(after, upto, _PAGE, branch=target, backwards=True):
        merged = next((row.seq for row in rows if _merged_branch(row) == source), None)
        if merged is not None:
            return merged
        upto = rows[-1].seq - 1
    return None


def _merged_branch(row: CommitRow) -> JsonValue:
    if '"merge":' not in row.original:
        return None
    record = loads_own(row.original.encode(), f"commit {row.seq}").get("merge")
    return record.get("branch") if isinstance(record, dict) else None


def _decided(conflict: BothChanged, policy: Policy) -> JsonObject | None:
    """What is kept of `ours` is written again: the history of the branch tells that it was decided."""
    if policy == "theirs":
        return conflict.theirs.value
    if callable(policy):
        return policy(conflict)
    return conflict.ours.value


def _operation(id: str, value: JsonObject | None) -> JsonObject:
    return delete_document(id) if value is None else set_document(id, value)


def _again(row: CommitRow) -> Merged:
    """The first result of a repeated merge, from its record."""
    operations = loads_own(row.original.encode(), f"commit {row.seq}").get("operations")
    found = operations if isinstance(operations, list) else []
    ids = tuple(str(one["id"]) for one in found if isinstance(one, dict))
    return Merged(Committed.of(row, is_repeat=True), ids, ())


def _body(state: State | None) -> bytes | None:
    return None if state is None else state.body


def _same_entity(one: Entity, other: Entity) -> bool:
    return one.exists == other.exists and same(one.value, other.value)
