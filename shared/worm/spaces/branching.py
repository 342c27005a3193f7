"""Making and ending branches. Both are commits, so they have their place in the order of the space."""

from __future__ import annotations

from worm.codec.strict_json import JsonObject
from worm.errors import Conflict, Invalid
from worm.spaces.backend import Backend
from worm.spaces.config import SpaceConfig
from worm.spaces.lineage import active_branch, line_of
from worm.spaces.names import branch_title, check_branch
from worm.spaces.reading import seq_of
from worm.spaces.results import Committed
from worm.spaces.rows import ACTIVE, DELETED, MAIN, BranchRow
from worm.spaces.transacting import Author, Committer, repeated, same_record, used_twice

CREATE = "/memory/branch/create"
END = "/memory/branch/delete"


def create_branch(
    backend: Backend, committer: Committer, config: SpaceConfig, author: Author, name: str, parent: str, at: int | None
) -> Committed:
    """A branch that begins as `parent` was at commit `at`, or is now. A name is used once, also after its end."""
    if check_branch(name) == MAIN:
        raise Conflict("the main branch is always there")
    wanted: JsonObject = {"cmd": CREATE, "name": name, "parent": check_branch(parent)}
    with backend.turn() as turn:
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
        if len(line_of(turn, parent, fork_seq)) > config.branch_depth_max:
            raise Invalid(
                f"{branch_title(name)} would be more than {config.branch_depth_max} forks away from the main branch",
                hint="fork from a branch nearer to it, or raise `branch_depth_max`",
            )
        seq = newest.seq + 1
        row = BranchRow(name, parent, fork_seq, seq, seq, "", ACTIVE)
        record: JsonObject = {**wanted, "forkSeq": fork_seq, "localSeq": author.local_seq}
        commit = committer.write_branch(turn, author, row, record)
    return Committed.of(commit)


def delete_branch(backend: Backend, committer: Committer, author: Author, name: str) -> Committed:
    """It takes no more commits. Its history stays: it can be read, and so can branches that were forked from it."""
    if check_branch(name) == MAIN:
        raise Invalid("the main branch cannot be deleted")
    wanted: JsonObject = {"cmd": END, "name": name}
    with backend.turn() as turn:
        earlier = repeated(turn, author, name)
        if earlier is not None:
            if not same_record(earlier, wanted):
                raise used_twice(author)
            return Committed.of(earlier, is_repeat=True)
        row = active_branch(turn, name)._replace(status=DELETED)
        commit = committer.write_branch(turn, author, row, {**wanted, "localSeq": author.local_seq})
    return Committed.of(commit)
