"""A merge of documents: the plan of the space (`spaces/merging.py`), with what only documents have.

Different `updatedAt` values are not a conflict. A field that was changed and changed back is not a change. The policies
by fields combine documents. A document that the branch deleted may be an upload, which the log of the other branch
never had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from worm.formats import JsonObject, same
from worm.spaces.bridge.commits import CommitOutcome, KnownDocument, Write, commit
from worm.spaces.bridge.origins import actor_of_commit, entity_name, written_over
from worm.spaces.merging import MergePlan, Policy, combined, policy_name
from worm.spaces.results import BothChanged, BranchMoved, Committed, MergeConflict, ReadConflict
from worm.spaces.rows import DELETE, MAIN, branch_name, check_branch
from worm.spaces.space import Space
from worm.store import in_chunks

ATTEMPTS = 10
ASKED_AT_ONCE = 200
R = TypeVar("R")


class DocumentMerge:
    """Merges the documents of one branch into another, in one space. `uploaded` reads a document as of a commit that
    the log of `into` never had."""

    def __init__(
        self,
        space: Callable[[], Space],
        branch: str,
        into: str,
        uploaded: Callable[[str, int], JsonObject | None],
    ) -> None:
        self._open = space
        self._branch, self.into = check_branch(branch), check_branch(into)
        self._uploaded = uploaded
        self._changes: dict[str, tuple[bool, list[str]]] | None = None

    @property
    def space(self) -> Space:
        return self._open()

    @property
    def names(self) -> tuple[str, str]:
        """The two branches, as callers see them."""
        return branch_name(self._branch), branch_name(self.into)

    entity = staticmethod(entity_name)

    def until_decided(self, work: Callable[[], R]) -> R:
        """Plan, check and commit; again if another writer changes any of it in the meantime."""
        for attempt in range(ATTEMPTS):
            try:
                return work()
            except (ReadConflict, BranchMoved):
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    # The plan

    def compare(self) -> MergePlan:
        """The plan for people: documents that both sides changed are as on the branch."""
        plan = self.space.plan_merge(self._branch, self.into, "fail")
        theirs = {one.id: one.theirs.value for one in _real(plan.conflicts)}
        decided = {**_settled(plan.conflicts), **theirs}
        return replace(plan, changes={**plan.changes, **self._uploads_deleted(plan)}, decided=decided)

    def plan(self, policy: Policy) -> MergePlan:
        """The plan with a decision for each conflict; `MergeConflict` lists all that the policy leaves open."""
        name = policy_name(policy)
        by_fields = name.startswith("fields")
        plan = self.space.plan_merge(self._branch, self.into, "fail" if by_fields else policy)
        decided = _settled(plan.conflicts)
        undecided: list[BothChanged] = []
        for conflict in plan.conflicts if by_fields else ():
            if conflict.id not in decided:
                value, paths = _combined(conflict, name)
                if paths is None:
                    decided[conflict.id] = value
                else:
                    undecided.append(replace(conflict, fields=paths))
        if undecided:
            raise MergeConflict(undecided)
        plan = replace(plan, decided={**plan.decided, **decided}, policy=name)
        if plan.undecided:
            raise MergeConflict(plan.undecided)
        return replace(plan, changes={**plan.changes, **self._uploads_deleted(plan)})

    def changes(self, plan: MergePlan) -> Iterator[tuple[str, JsonObject | None, JsonObject | None, bool]]:
        """The documents that the plan changes, by entity: before and after in `into`, and whether both sides have
        changed it."""
        before, conflicts = self._before(plan), {one.id for one in _real(plan.conflicts)}
        values = plan.values
        for entity in sorted(values):
            old, new = before[entity], values[entity]
            if not (old is None and new is None) and not _says_the_same(old, new):
                yield entity, old, new, entity in conflicts

    def _before(self, plan: MergePlan) -> dict[str, JsonObject | None]:
        """The current state in `into` of all documents of the plan. Those that its log never had may be uploads."""
        found: dict[str, JsonObject | None] = {}
        for some in in_chunks(sorted(plan.values), ASKED_AT_ONCE):
            for entity, state in self.space.read_many(some, branch=self.into, at=plan.at).items():
                found[entity] = state.value if state.seq > 0 else self._uploaded(entity, plan.at)
        return found

    def _uploads_deleted(self, plan: MergePlan) -> dict[str, JsonObject | None]:
        """Documents that the branch deleted and that were never in the log of the other branch: uploads. The plan of
        the log cannot know them."""
        changes = self._own_changes()
        asked = [one for one, (is_deletion, _) in changes.items() if is_deletion and one not in plan.values]
        gone: dict[str, JsonObject | None] = {}
        for some in in_chunks(sorted(asked), ASKED_AT_ONCE):
            for entity, state in self.space.read_many(some, branch=self.into, at=plan.at).items():
                if state.seq == 0 and self._uploaded(entity, plan.at) is not None:
                    gone[entity] = None
        return gone

    def _own_changes(self) -> dict[str, tuple[bool, list[str]]]:
        """For each entity that commits on the branch wrote: whether the last commit deleted it, and who wrote it."""
        if self._branch == MAIN:
            return {}
        if self._changes is None:
            found: dict[str, tuple[bool, list[str]]] = {}
            for entry in self.space.log(after=self.space.branch(self._branch).created_seq):
                operations = entry.original.get("operations")
                if check_branch(entry.branch) != self._branch or not isinstance(operations, list):
                    continue
                actor = actor_of_commit(entry)
                for one in operations:
                    if isinstance(one, dict):
                        entity = str(one.get("id"))
                        authors = found.get(entity, (False, []))[1]
                        more = [] if actor is None or actor in authors else [actor]
                        found[entity] = (one.get("op") == DELETE, [*authors, *more])
            self._changes = found
        return self._changes

    def is_known_upload(self, entity: str, known: KnownDocument) -> bool:
        """Is the stored document, which the log never had, the one that the branch started from? Or is there none?"""
        if known.seq > 0:
            return False
        if known.version is None:
            return True
        space, state = self.space, self.space.read(entity, branch=self._branch)
        first = state
        while state.seq > 0:
            first, state = state, space.read(entity, branch=self._branch, at=state.seq - 1)
        entry = next(space.log(after=first.seq - 1, limit=1))
        return written_over(entry, entity) == known.version.etag

    # Committing

    def note(self, entity: str, about: JsonObject | None, merge_id: str) -> JsonObject:
        """What the history of a document says about the merge."""
        note: JsonObject = {**(about or {}), "branch": self.names[0], "merge": merge_id}
        authors = self._own_changes().get(entity, (False, []))[1]
        return {**note, "authors": list(authors)} if authors else note

    def commit(
        self,
        plan: MergePlan,
        writes: Sequence[Write],
        *,
        only: Sequence[str],
        before: Sequence[int],
        is_last: bool,
        merge_id: str,
        actor: str | None,
    ) -> CommitOutcome:
        """Commit a chunk of the plan, after the commits `before` of this merge. A branch has no claims: a lookup on it
        holds only until the next commit."""
        is_main = self.into == MAIN
        unchanged = None if is_main else before[-1] if before else plan.at

        def send(said: JsonObject) -> Committed:
            done = self.space.commit_merge(
                plan, about=said, merge_id=merge_id, only=only, is_last=is_last, unchanged=unchanged
            )
            assert done is not None  # an empty plan does not get here
            return done

        if not writes:
            return CommitOutcome(send({} if actor is None else {"actor": actor}))
        return commit(writes, [], actor=actor, send=send, claims=is_main)


def _real(conflicts: Iterable[BothChanged]) -> list[BothChanged]:
    """Those in which more than `updatedAt` has changed on both sides, and not in the same way."""
    listed = list(conflicts)
    settled = _settled(listed)
    return [one for one in listed if one.id not in settled]


def _settled(conflicts: Iterable[BothChanged]) -> dict[str, JsonObject | None]:
    """The other changes that count: a field that was changed and changed back is not a change."""
    found: dict[str, JsonObject | None] = {}
    for one in conflicts:
        base, ours, theirs = one.base.value, one.ours.value, one.theirs.value
        if _says_the_same(ours, theirs) or _says_the_same(theirs, base):
            found[one.id] = ours
        elif _says_the_same(ours, base):
            found[one.id] = theirs
    return found


def _says_the_same(one: JsonObject | None, other: JsonObject | None) -> bool:
    if one is None or other is None:
        return one is other
    return same(_without_time(one), _without_time(other))


def _without_time(document: JsonObject) -> JsonObject:
    return {name: value for name, value in document.items() if name != "updatedAt"}


def _combined(conflict: BothChanged, policy: str) -> tuple[JsonObject | None, tuple[str, ...] | None]:
    """The result of a policy by fields for a conflict, or the fields that it leaves open. That both sides have changed
    `updatedAt` is not a conflict."""
    base, ours, theirs = conflict.base.value, conflict.ours.value, conflict.theirs.value
    takes_theirs = policy == "fields-theirs"
    if ours is None or theirs is None:  # one side deleted it
        return (None, ()) if policy == "fields" else (theirs if takes_theirs else ours, None)
    plain = _without_time(ours), _without_time(theirs)
    result, paths = combined(_without_time(base or {}), *plain, takes_theirs=takes_theirs)
    if paths and policy == "fields":
        return None, tuple(paths)
    times = [one["updatedAt"] for one in (ours, theirs) if isinstance(one.get("updatedAt"), str)]
    return ({**result, "updatedAt": max(map(str, times))} if times else result), None
