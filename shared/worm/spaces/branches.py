"""Making and ending branches, comparing two, and bringing the changes of one into another.

All of these but comparing are commits, so they have their place in the order of the space. What a branch changed is
counted from the last merge in this direction, or else from what the two have in common by their forks. It is no
conflict if the other one has not changed the entity since, or if the branch has seen that change by a merge in the
other direction. Merges by way of a third branch are not known here; they may report extra conflicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from worm.codec.diff import same
from worm.codec.strict_json import JsonObject, JsonValue, loads_own
from worm.errors import Conflict, Invalid
from worm.spaces.backend import Reads
from worm.spaces.operations import delete_document, set_document
from worm.spaces.reading import entities, entity_of, seq_of
from worm.spaces.replay import EntityState, Line, active_branch, branch_row, common_line, line_of, load
from worm.spaces.results import BothChanged, Committed, Entity, MergeConflict
from worm.spaces.rows import ACTIVE, DELETED, MAIN, BranchRow, CommitRow, branch_title, check_branch
from worm.spaces.transacting import Author, Committer, TransactionRequest, repeated, same_record, used_twice

CREATE = "/memory/branch/create"
END = "/memory/branch/delete"


def create_branch(committer: Committer, author: Author, name: str, parent: str, at: int | None) -> Committed:
    """A branch that begins as `parent` was at commit `at`, or is now. A name is used once, also after its end."""
    if check_branch(name) == MAIN:
        raise Conflict("the main branch is always there")
    wanted: JsonObject = {"cmd": CREATE, "name": name, "parent": check_branch(parent)}
    with committer.backend.turn() as turn:
        earlier = repeated(turn, author, name)
        if earlier is not None:
            if not same_record(earlier, wanted if at is None else {**wanted, "forkSeq": at}):
                raise used_twice(author)
            return Committed.of(earlier, is_repeat=True)
        newest = turn.newest()
        if turn.branch(name) is not None:
            raise Conflict(f"{branch_title(name)} is there, or was", hint="choose another name")
        active_branch(turn, parent)
        fork_seq = seq_of(turn, at, newest.seq)
        depth_max = committer.config.branch_depth_max
        if len(line_of(turn, parent, fork_seq)) > depth_max:
            raise Invalid(
                f"{branch_title(name)} would be more than {depth_max} forks away from the main branch",
                hint="fork from a branch nearer to it, or raise `branch_depth_max`",
            )
        seq = newest.seq + 1
        row = BranchRow(name, parent, fork_seq, seq, seq, "", ACTIVE)
        record: JsonObject = {**wanted, "forkSeq": fork_seq, "localSeq": author.local_seq}
        commit = committer.write_branch(turn, author, row, record)
    return Committed.of(commit)


def delete_branch(committer: Committer, author: Author, name: str) -> Committed:
    """It takes no more commits. Its history stays: it can be read, and so can branches that were forked from it."""
    if check_branch(name) == MAIN:
        raise Invalid("the main branch cannot be deleted")
    wanted: JsonObject = {"cmd": END, "name": name}
    with committer.backend.turn() as turn:
        earlier = repeated(turn, author, name)
        if earlier is not None:
            if not same_record(earlier, wanted):
                raise used_twice(author)
            return Committed.of(earlier, is_repeat=True)
        row = active_branch(turn, name)._replace(status=DELETED)
        commit = committer.write_branch(turn, author, row, {**wanted, "localSeq": author.local_seq})
    return Committed.of(commit)


Decide: TypeAlias = Callable[[BothChanged], JsonObject | None]
"""The document to keep; None deletes it. Called while nobody else can write, and must not write to the space itself."""

Policy: TypeAlias = Literal["fail", "ours", "theirs"] | Decide

_PAGE = 500


@dataclass(frozen=True, slots=True)
class BranchDifference:
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


def diff(reads: Reads, left: str, right: str, at: int, newest: int) -> list[BranchDifference]:
    """By id. A deleted entity and one that was never there are the same."""
    ids = sorted(changed_between(reads, line_of(reads, left, at), line_of(reads, right, at)))
    ones, others = (entities(reads, branch, ids, at, newest) for branch in (left, right))
    return [
        BranchDifference(entity, ones[entity], others[entity])
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


def merge(committer: Committer, author: Author, branch: str, into: str, policy: Policy) -> Merged:
    """One commit on `into` with everything that `branch` changed since the two were last the same."""
    if check_branch(branch) == check_branch(into):
        raise Invalid("a branch cannot be merged into itself")
    if policy not in ("fail", "ours", "theirs") and not callable(policy):
        raise Invalid(f"{policy!r} is no policy", hint="fail, ours, theirs, or a function")
    record: JsonObject = {"branch": branch, "policy": "function" if callable(policy) else policy}
    with committer.backend.turn() as turn:
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
        request = TransactionRequest.checked(author, into, ops, [], committer.config, {"merge": record})
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


def _body(state: EntityState | None) -> bytes | None:
    return None if state is None else state.body


def _same_entity(one: Entity, other: Entity) -> bool:
    return one.exists == other.exists and same(one.value, other.value)
