"""Merging: brings the changes of one branch into another. A merge is planned first, without writing, then committed.

A document is compared with its *base*: its state where the two branches were last equal, by their forks and by all
merges in either direction, also through other branches. If only the branch has changed it since then, it is a change;
if both have, it is a conflict, for the policy. A decision of a policy counts as a change of `into`: it is not in the
branch.

A merge that is too large for one commit has several, its *chunks*, under one merge id. Each chunk is atomic, and only
the last one says that everything is merged up to commit `at`. If the last one never comes, the next merge continues
where the chunks end: their records say how far the branch was read for each document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from worm.errors import Invalid, show
from worm.formats import JsonObject, JsonValue, dumps, loads_own, same
from worm.spaces.backend import Backend, Reads, Turn
from worm.spaces.branches import changed_between
from worm.spaces.operations import (
    SpaceConfig,
    check_object,
    check_operations,
    client_commit,
    delete_document,
    set_document,
)
from worm.spaces.reading import entity_of
from worm.spaces.replay import (
    IDS_AT_ONCE,
    EntityState,
    Level,
    Line,
    active_branch,
    branch_row,
    common_line,
    line_of,
    load,
    visible_heads,
)
from worm.spaces.results import BothChanged, BranchMoved, Committed, MergeConflict, ReadConflict, StaleRead
from worm.spaces.rows import CommitRow, branch_name, check_branch, check_ids
from worm.spaces.transacting import (
    Author,
    Committer,
    TransactionRequest,
    check_bytes,
    check_still,
    repeated,
    same_record,
    used_twice,
)
from worm.store import in_chunks

Decide: TypeAlias = Callable[[BothChanged], JsonObject | None]
"""Returns the document to keep; None deletes it. If others change the same document in the meantime, it is called
again."""

PolicyName: TypeAlias = Literal["fail", "ours", "theirs", "fields", "fields-ours", "fields-theirs"]
Policy: TypeAlias = PolicyName | Decide
POLICIES: tuple[str, ...] = get_args(PolicyName)
FUNCTION = "function"

Values: TypeAlias = dict[str, JsonObject | None]
"""Documents by id; None for one that is deleted."""

_PAGE_FIRST, _PAGE_MAX, _PAGE_BYTES = 16, 500, 8 * 1024 * 1024
_OPERATION_BYTES = 64
"""The maximum bytes of an operation in a record, without its id and its document."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """What a merge would do, as of commit `at`.

    `changes`: what only `branch` changed. `conflicts`: what both changed. `decided`: what the policy decided for those.
    You can decide the rest in a copy (`dataclasses.replace`). `is_needed` is False if the branch has not changed since
    it was last merged. `merge_id`: an unfinished merge that this one continues.
    """

    branch: str
    into: str
    policy: str
    at: int
    changes: Values
    conflicts: tuple[BothChanged, ...]
    decided: Values
    is_needed: bool = True
    merge_id: str | None = None
    chunk_seq: int | None = None
    knows: Mapping[str, int] = field(default_factory=dict)

    @property
    def undecided(self) -> tuple[BothChanged, ...]:
        return tuple(one for one in self.conflicts if one.id not in self.decided)

    @property
    def values(self) -> Values:
        """Everything to write."""
        return self.changes | self.decided

    def chunks(self, config: SpaceConfig) -> list[tuple[str, ...]]:
        """The ids for each commit, so that it stays within the limits; at least one, perhaps empty."""
        done: list[tuple[str, ...]] = []
        some: list[str] = []
        room = config.commit_bytes_max - 4096
        left = room
        for entity, value in sorted(self.values.items()):
            size = 2 * len(dumps(entity)) + _OPERATION_BYTES + (0 if value is None else len(dumps(value)))
            if some and (size > left or len(some) == config.merge_operations_max):
                done.append(tuple(some))
                some, left = [], room
            some.append(entity)
            left -= size
        return [*done, tuple(some)]


@dataclass(frozen=True, slots=True)
class Merged:
    """`committed` is the last commit of the merge, None if there was nothing to do. `changed`: everything that only the
    branch had changed. `conflicts`: what the policy decided in this call; unknown for a repetition."""

    committed: Committed | None
    changed: tuple[str, ...]
    conflicts: tuple[BothChanged, ...]


class MergeRecord(NamedTuple):
    """What the record of a commit says about its merge."""

    branch: str
    id: str
    at: int
    is_last: bool
    previous: int | None
    decided: frozenset[str]
    ids: tuple[str, ...]
    knows: Mapping[str, int] = {}


class _Past(NamedTuple):
    """An unfinished merge in one direction. `chunked`: how far its chunks have read some entities."""

    open_id: str | None
    open_seq: int | None
    chunked: dict[str, int]


def policy_name(policy: object) -> str:
    if isinstance(policy, str) and policy in POLICIES:
        return policy
    if not callable(policy):
        raise Invalid(f"{show(policy)} is not a merge policy", hint=f"use {', '.join(POLICIES)}, or a function")
    return FUNCTION


def plan_merge(backend: Backend, branch: str, into: str, policy: Policy) -> MergePlan:
    """It only reads. With the policy `fail`, nothing is decided."""
    branch, into, name = check_branch(branch), check_branch(into), policy_name(policy)
    if branch == into:
        raise Invalid("a branch cannot be merged into itself")
    changes: Values = {}
    decided: Values = {}
    conflicts: list[BothChanged] = []
    with backend.as_of_now() as reads:
        newest = reads.newest().seq
        active_branch(reads, into)
        active_branch(reads, branch)
        comparison = _Comparison(reads, branch, into, newest)
        ids = sorted(changed_between(reads, comparison.theirs, comparison.base))
        for some in in_chunks(ids, IDS_AT_ONCE):
            comparison.look(some, changes, conflicts)
    for at, conflict in enumerate(conflicts):
        conflicts[at] = _decide(conflict, policy, decided)
    brought = comparison.brought
    return MergePlan(
        *(branch_name(branch), branch_name(into), name, newest, changes, tuple(conflicts), decided),
        is_needed=bool(ids),
        merge_id=brought.open_id,
        chunk_seq=brought.open_seq,
        knows=comparison.knows,
    )


class _Comparison:
    """Two branches as of one commit, and what they have seen of each other."""

    def __init__(self, reads: Reads, branch: str, into: str, newest: int) -> None:
        self._reads = reads
        self._branch, self._into, self._newest = branch, into, newest
        self.theirs, self._ours = line_of(reads, branch, newest), line_of(reads, into, newest)
        ancestry = _Ancestry(reads, self.theirs, self._ours)
        self.knows, place = ancestry.knows, ancestry.place
        self.base: Line = line_of(reads, *place)
        self.brought = _past(reads, branch, into, place.upto, newest)
        back = _past(reads, into, branch, place.upto, newest)
        self._chunked = {one: Level(into, at) for one, at in back.chunked.items() if at > place.upto}
        for one, at in self.brought.chunked.items():
            if at > max(place.upto, self._chunked[one].upto if one in self._chunked else 0):
                self._chunked[one] = Level(branch, at)

    def look(self, ids: Sequence[str], changes: Values, conflicts: list[BothChanged]) -> None:
        """Add what only `branch` changed of these, and what both changed."""
        theirs, ours, base = (load(self._reads, line, ids) for line in (self.theirs, self._ours, self.base))
        later = {one: self._chunked[one] for one in ids if one in self._chunked}
        base = {one: state for one, state in base.items() if one not in later} | self._at(later)
        for entity in ids:
            wanted, there, known = (_body(states, entity) for states in (theirs, ours, base))
            if wanted in (there, known):
                continue  # `into` has already had all of it
            other = entity_of(entity, self._branch, self._newest, theirs.get(entity))
            if there == known:
                changes[entity] = other.value
            else:
                mine = entity_of(entity, self._into, self._newest, ours.get(entity))
                before = entity_of(entity, *self.base[0], base.get(entity))
                conflicts.append(BothChanged(entity, before, mine, other))

    def _at(self, when: Mapping[str, Level]) -> dict[str, EntityState]:
        """Entities, each at its own place."""
        found: dict[str, EntityState] = {}
        for place in set(when.values()):
            ids = [entity for entity, level in when.items() if level == place]
            found |= load(self._reads, line_of(self._reads, *place), ids)
        return found


class _Ancestry:
    """Where two branches were last equal, by their forks and by all merges, also through other branches.

    A branch *knows* each other branch up to some commit: by its forks, and by every merge into it, whose record has
    everything that the two sides knew then. What both know is common; the place that knows most of it is the base."""

    def __init__(self, reads: Reads, theirs: Line, ours: Line) -> None:
        self._reads = reads
        self._shared = dict(common_line(ours, theirs))
        (branch, newest), (into, _) = theirs[0], ours[0]
        one, other = self._known(branch, newest, into), self._known(into, newest, branch)
        self.knows = {name: max(one.get(name, 0), other.get(name, 0)) for name in (*one, *other)}
        places = [Level(name, min(one[name], other[name])) for name in one if name in other]
        self.place = max(places, key=lambda place: (self._covers(place, places), place.upto))

    def _known(self, branch: str, upto: int, other: str) -> dict[str, int]:
        """Up to which commit of each branch its changes are in this one. Merges from before the two diverged are in
        both, and what was known at a merge of `other` is in its record."""
        known: dict[str, int] = {}
        while True:
            known[branch] = max(upto, known.get(branch, 0))
            row = branch_row(self._reads, branch)
            after = self._shared.get(branch, row.created_seq)
            for _, record in _merges(self._reads, branch, after, upto) if upto > after else ():
                if record.is_last:
                    known |= {name: max(seq, known.get(name, 0)) for name, seq in record.knows.items()}
                    if record.branch == other:
                        return known
            if branch in self._shared or row.parent_branch is None or row.fork_seq is None:
                return known
            branch, upto = row.parent_branch, min(upto, row.fork_seq)

    def _covers(self, place: Level, places: Sequence[Level]) -> int:
        """How many of the places this one contains."""
        known = self._known(*place, "")
        return sum(max(known.get(name, 0), self._shared.get(name, 0)) >= upto for name, upto in places)


def _past(reads: Reads, source: str, target: str, after: int, upto: int) -> _Past:
    past = _Past(None, None, {})
    for row, record in _merges(reads, target, after, upto):
        if record.branch != source:
            continue
        if record.is_last:
            return past
        if past.open_id is None:
            past = past._replace(open_id=record.id, open_seq=row.seq)
        for one in record.ids:
            past.chunked.setdefault(one, record.at)
    return past


def _merges(reads: Reads, target: str, after: int, upto: int) -> Iterator[tuple[CommitRow, MergeRecord]]:
    """The merges into a branch, newest first. Records may be large, so they are read some megabytes at a time."""
    limit = _PAGE_FIRST
    while rows := reads.commits(after, upto, limit, branch=target, backwards=True):
        for row in rows:
            record = merge_record(row)
            if record is not None:
                yield row, record
        upto = rows[-1].seq - 1
        size = sum(len(row.original) for row in rows)
        limit = max(1, min(_PAGE_MAX, _PAGE_BYTES * len(rows) // max(1, size)))


def merge_record(row: CommitRow) -> MergeRecord | None:
    """None for a commit that is not a merge."""
    if '"merge":' not in row.original:
        return None
    original = loads_own(row.original.encode(), f"commit {row.seq}")
    shape, operations = original.get("merge"), original.get("operations")
    if not isinstance(shape, dict) or not isinstance(operations, list):
        return None
    previous, decided, knows = shape.get("previous"), shape.get("decided"), shape.get("knows")
    return MergeRecord(
        str(shape.get("branch")),
        str(shape.get("id")),
        cast(int, shape.get("at")),
        shape.get("last") is True,
        previous if isinstance(previous, int) else None,
        frozenset(map(str, decided)) if isinstance(decided, list) else frozenset(),
        tuple(str(one["id"]) for one in operations if isinstance(one, dict)),
        {name: seq for name, seq in knows.items() if isinstance(seq, int)} if isinstance(knows, dict) else {},
    )


def commit_merge(
    committer: Committer,
    author: Author,
    plan: MergePlan,
    merge_id: str,
    *,
    about: JsonObject | None = None,
    only: Collection[str] | None = None,
    is_last: bool = True,
    unchanged: int | None = None,
) -> Committed | None:
    """One commit with all of the plan, or with a chunk of it. None if the plan is not needed. `BranchMoved` if `into`
    has a commit after `unchanged`, or if something was merged into `branch` since the plan was made."""
    if plan.undecided:
        raise MergeConflict(plan.undecided)
    if not plan.is_needed:
        return None
    plan = replace(plan, branch=check_branch(plan.branch), into=check_branch(plan.into))
    ids = _chosen(plan, only)
    values = plan.values
    shapes = [set_document(one, value) if (value := values[one]) is not None else delete_document(one) for one in ids]
    config = committer.config
    operations = check_operations(shapes, config, count_max=config.merge_operations_max) if shapes else []
    decided: list[JsonValue] = [one for one in ids if one in plan.decided]
    said: JsonObject = {} if about is None else {"about": about}
    with committer.backend.turn() as turn:
        earlier = earlier_merge(turn, author, plan.branch, plan.into, plan.policy, about)
        if earlier is not None:
            return Committed.of(earlier, is_repeat=True)
        active_branch(turn, plan.branch)
        _check_unchanged(turn, plan, ids)
        check_still(turn, plan.into, unchanged)
        _check_not_crossed(turn, plan)
        merge: JsonObject = {"branch": plan.branch, "policy": plan.policy, "id": merge_id, "at": plan.at}
        merge |= {"last": is_last, "previous": _previous(turn, plan, merge_id)}
        merge |= {"decided": decided} if decided else {}
        merge |= {"knows": dict(plan.knows)} if is_last else {}
        original = client_commit(operations, [], author.local_seq, {"merge": merge, **said})
        check_bytes(original, config)
        row, states = committer.write(turn, TransactionRequest(author, plan.into, operations, [], original))
    committer.remember(row.seq, states)
    return Committed.of(row)


def _chosen(plan: MergePlan, only: Collection[str] | None) -> list[str]:
    values = plan.values
    ids = sorted(values if only is None else set(check_ids(only, "only")))
    unknown = [one for one in ids if one not in values]
    if unknown:
        raise Invalid(f"{show(unknown[0])} is not part of the merge")
    return ids


def _check_unchanged(turn: Turn, plan: MergePlan, ids: Sequence[str]) -> None:
    """Raise `ReadConflict` if the plan was based on another state than the current one."""
    newest = turn.newest().seq
    if newest == plan.at:
        return
    stale = []
    for branch in (plan.into, plan.branch):
        heads = visible_heads(turn, line_of(turn, branch, newest), ids)
        stale += [
            StaleRead(one, branch_name(branch), plan.at, head.seq) for one, head in heads.items() if head.seq > plan.at
        ]
    if stale:
        raise ReadConflict(stale)


def _check_not_crossed(turn: Turn, plan: MergePlan) -> None:
    """Raise `BranchMoved` if something was merged into the branch since then. If two merges cross, neither side knows
    what the other one took, so no later merge could find where both were last equal."""
    newest = turn.newest().seq
    crossed = next(_merges(turn, plan.branch, plan.at, newest), None) if newest > plan.at else None
    if crossed is not None:
        raise BranchMoved(plan.branch, plan.at, crossed[0].seq)


def _previous(turn: Turn, plan: MergePlan, merge_id: str) -> int | None:
    """The chunk before this one."""
    merges = _merges(turn, plan.into, plan.at, turn.newest().seq)
    newer = next((row.seq for row, record in merges if record.id == merge_id), None)
    return newer if newer is not None else plan.chunk_seq if merge_id == plan.merge_id else None


def earlier_merge(
    reads: Reads, author: Author, branch: str, into: str, policy: str, about: JsonObject | None
) -> CommitRow | None:
    """The commit that already has this author's number, if it belongs to the same merge."""
    row = repeated(reads, author, into)
    if row is None:
        return None
    record = loads_own(row.original.encode(), f"commit {row.seq}").get("merge")
    is_same = isinstance(record, dict) and (record.get("branch"), record.get("policy")) == (branch, policy)
    if not is_same or not same_record(row, {"about": about}):
        raise used_twice(author)
    return row


def chunks_before(reads: Reads, seq: int | None) -> Iterator[MergeRecord]:
    """A chunk of a merge and all before it, the newest first."""
    while seq is not None and (row := reads.commit_at(seq)) is not None and (record := merge_record(row)) is not None:
        yield record
        seq = record.previous


def merged_again(reads: Reads, row: CommitRow) -> Merged:
    """The result of a merge whose last commit exists."""
    changed = {one for record in chunks_before(reads, row.seq) for one in record.ids if one not in record.decided}
    return Merged(Committed.of(row, is_repeat=True), tuple(sorted(changed)), ())


# How a policy decides a conflict


def _decide(conflict: BothChanged, policy: Policy, decided: Values) -> BothChanged:
    """If `ours` is kept, it is written again, so that the history of the branch shows the decision. Returns the
    conflict with the fields that could not be combined."""
    ours, theirs = conflict.ours.value, conflict.theirs.value
    if callable(policy):
        value = policy(conflict)
        decided[conflict.id] = None if value is None else check_object(value, "policy")
    elif policy in ("ours", "theirs"):
        decided[conflict.id] = ours if policy == "ours" else theirs
    elif policy != "fail":
        side = policy.removeprefix("fields").removeprefix("-")
        if ours is None or theirs is None:  # deleted here, changed there
            if side:
                decided[conflict.id] = ours if side == "ours" else theirs
            return conflict
        document, paths = combined(conflict.base.value or {}, ours, theirs, takes_theirs=side == "theirs")
        if side or not paths:
            decided[conflict.id] = document
        return BothChanged(conflict.id, conflict.base, conflict.ours, conflict.theirs, tuple(paths))
    return conflict


def combined(
    base: JsonObject, ours: JsonObject, theirs: JsonObject, *, takes_theirs: bool = False, path: str = ""
) -> tuple[JsonObject, list[str]]:
    """The field changes of both sides in one object, and the paths of the fields that both changed differently, which
    have one side's value. Objects are combined field by field; anything else is one value."""
    result: JsonObject = {}
    paths: list[str] = []
    for name in dict.fromkeys([*ours, *theirs]):
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        if _is_same_field(name, base, theirs) or _is_same_field(name, ours, theirs):
            taken = ours
        elif _is_same_field(name, base, ours):
            taken = theirs
        else:
            mine, other, before = ours.get(name), theirs.get(name), base.get(name)
            if isinstance(mine, dict) and isinstance(other, dict):
                before = before if isinstance(before, dict) else {}
                result[name], more = combined(before, mine, other, takes_theirs=takes_theirs, path=place)
                paths += more
                continue
            paths.append(place)
            taken = theirs if takes_theirs else ours
        if name in taken:
            result[name] = taken[name]
    return result, paths


def _is_same_field(name: str, one: JsonObject, other: JsonObject) -> bool:
    return (name in one) == (name in other) and same(one.get(name), other.get(name))


def _body(states: Mapping[str, EntityState], entity: str) -> bytes | None:
    state = states.get(entity)
    return None if state is None else state.body
