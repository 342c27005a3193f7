"""Creating and ending branches, and comparing two. Creating and ending are commits, so they have their place in the
order of the space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from worm.errors import Conflict, Invalid
from worm.formats import JsonObject, same
from worm.spaces.backend import Reads, Turn
from worm.spaces.reading import entities, seq_of
from worm.spaces.replay import Line, active_branch, branch_row, line_of
from worm.spaces.results import Committed, Entity
from worm.spaces.rows import ACTIVE, DELETED, MAIN, BranchRow, branch_title, check_branch
from worm.spaces.transacting import Author, Committer, repeated, same_record, used_twice

CREATE = "/memory/branch/create"
END = "/memory/branch/delete"
BACK = "/memory/branch/undelete"


def create_branch(committer: Committer, author: Author, name: str, parent: str, at: int | None) -> Committed:
    """Create a branch that begins as `parent` was at commit `at`, or is now. A name can be used only once, even after
    the branch was deleted."""
    parent = check_branch(parent)
    if check_branch(name) == MAIN:
        raise Conflict("branch 'main' always exists")
    wanted: JsonObject = {"cmd": CREATE, "name": name, "parent": parent}
    with committer.backend.turn() as turn:
        earlier = repeated(turn, author, name)
        if earlier is not None:
            if not same_record(earlier, {**wanted, "forkSeq": earlier.seq - 1 if at is None else at}):
                raise used_twice(author)
            return Committed.of(earlier, is_repeat=True)
        newest = turn.newest()
        if turn.branch(name) is not None:
            raise Conflict(f"{branch_title(name)} exists or was deleted", hint="choose another name, or undelete it")
        active_branch(turn, parent)
        fork_seq = seq_of(turn, at, newest.seq)
        depth_max = committer.config.branch_depth_max
        if len(line_of(turn, parent, fork_seq)) > depth_max:
            raise Invalid(
                f"{branch_title(name)} would be more than {depth_max} forks away from 'main'",
                hint="fork from a branch closer to 'main', or raise `branch_depth_max`",
            )
        seq = newest.seq + 1
        row = BranchRow(name, parent, fork_seq, seq, seq, "", ACTIVE)
        record: JsonObject = {**wanted, "forkSeq": fork_seq, "localSeq": author.local_seq}
        commit = committer.write_branch(turn, author, row, record)
    return Committed.of(commit)


def delete_branch(committer: Committer, author: Author, name: str) -> Committed:
    """The branch accepts no more commits, but can still be read. `Conflict` while it has active branches."""
    if check_branch(name) == MAIN:
        raise Invalid("branch 'main' cannot be deleted")

    def ended(turn: Turn) -> BranchRow:
        row = active_branch(turn, name)
        children = [one.name for one in turn.branches() if one.parent_branch == name and one.status == ACTIVE]
        if children:
            users = ", ".join(map(branch_title, children))
            raise Conflict(f"{branch_title(name)} is needed by {users}", hint="delete those first")
        return row._replace(status=DELETED)

    return _commanded(committer, author, name, END, ended)


def undelete_branch(committer: Committer, author: Author, name: str) -> Committed:
    """The branch accepts commits again."""
    if check_branch(name) == MAIN:
        raise Conflict("branch 'main' always exists")

    def back(turn: Turn) -> BranchRow:
        row = branch_row(turn, name)
        if row.status == ACTIVE:
            raise Conflict(f"{branch_title(name)} is not deleted")
        parent = branch_row(turn, row.parent_branch or MAIN)
        if parent.status != ACTIVE:
            what = f"{branch_title(name)} was forked from {branch_title(parent.name)}, which was deleted"
            raise Conflict(what, hint="undelete that first")
        return row._replace(status=ACTIVE)

    return _commanded(committer, author, name, BACK, back)


def _commanded(
    committer: Committer, author: Author, name: str, command: str, decide: Callable[[Turn], BranchRow]
) -> Committed:
    """A commit that changes a branch's row and no entity."""
    wanted: JsonObject = {"cmd": command, "name": name}
    with committer.backend.turn() as turn:
        earlier = repeated(turn, author, name)
        if earlier is not None:
            if not same_record(earlier, wanted):
                raise used_twice(author)
            return Committed.of(earlier, is_repeat=True)
        commit = committer.write_branch(turn, author, decide(turn), {**wanted, "localSeq": author.local_seq})
    return Committed.of(commit)


@dataclass(frozen=True, slots=True)
class BranchDifference:
    """An entity whose state differs between two branches."""

    id: str
    left: Entity
    right: Entity

    def shape(self) -> JsonObject:
        """The difference as JSON."""
        return {"id": self.id, "left": self.left.shape(), "right": self.right.shape()}


def diff(reads: Reads, left: str, right: str, at: int, newest: int) -> list[BranchDifference]:
    """The differences by id. A deleted entity and one that never existed are equal."""
    ids = sorted(changed_between(reads, line_of(reads, left, at), line_of(reads, right, at)))
    ones, others = (entities(reads, branch, ids, at, newest) for branch in (left, right))
    return [
        BranchDifference(entity, ones[entity], others[entity])
        for entity in ids
        if not _same_entity(ones[entity], others[entity])
    ]


def changed_between(reads: Reads, one: Line, other: Line) -> set[str]:
    """Every entity with a revision that counts on only one of the lines."""
    here, there = dict(one), dict(other)
    changed: set[str] = set()
    for branch in {**here, **there}:
        low, high = sorted((here.get(branch, 0), there.get(branch, 0)))
        if low < high:
            changed |= reads.touched(branch, low, high)
    return changed


def _same_entity(one: Entity, other: Entity) -> bool:
    return one.exists == other.exists and same(one.value, other.value)
