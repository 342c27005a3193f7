"""Where a branch gets what it did not write itself: from its parent as of the fork, and so on upwards.

A *line* is the list of branches to look at, the branch itself first, each with the last seq that counts. Before its
making a branch is what it was forked from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from worm.errors import Corrupt, NotFound
from worm.spaces.backend import Reads
from worm.spaces.names import branch_title
from worm.spaces.rows import ACTIVE, MAIN, BranchRow, Pointer

_LEVELS_MAX = 10_000


class Level(NamedTuple):
    branch: str
    upto: int


Line = Sequence[Level]


def branch_row(reads: Reads, name: str) -> BranchRow:
    """`NotFound` for a name that never was. The main branch is there before its row is."""
    row = reads.branch(name)
    if row is not None:
        return row
    if name == MAIN:
        return BranchRow(MAIN, None, None, 0, 0, "", ACTIVE)
    raise NotFound(f"there is no {branch_title(name)}")


def active_branch(reads: Reads, name: str) -> BranchRow:
    """`NotFound` also for a deleted one: it can be read, and takes no more commits."""
    row = branch_row(reads, name)
    if row.status != ACTIVE:
        raise NotFound(f"{branch_title(name)} was deleted", hint="it can still be read; fork another one")
    return row


def line_of(reads: Reads, branch: str, upto: int) -> list[Level]:
    """The line of a branch as of a commit."""
    line = [Level(branch, upto)]
    while branch != MAIN:
        row = branch_row(reads, branch)
        if row.parent_branch is None or row.fork_seq is None or len(line) > _LEVELS_MAX:
            raise Corrupt(f"{branch_title(branch)} has no way to the main branch", key=f"branch {branch}")
        branch, upto = row.parent_branch, min(upto, row.fork_seq)
        line.append(Level(branch, upto))
    return line


def common_line(one: Line, other: Line) -> list[Level]:
    """The line of what two branches have in common: from the first branch that is on both, as of the earlier seq."""
    uptos = dict(other)
    for at, level in enumerate(one):
        if level.branch in uptos:
            return [Level(branch, min(upto, uptos[branch])) for branch, upto in one[at:]]
    raise Corrupt("two branches have nothing in common")


def visible_heads(reads: Reads, line: Line, ids: Sequence[str]) -> dict[str, Pointer]:
    """The newest revision of each that counts on this line."""
    found: dict[str, Pointer] = {}
    missing = ids
    for branch, upto in line:
        if not missing:
            break
        found |= reads.heads(branch, missing, upto)
        missing = [entity for entity in missing if entity not in found]
    return found
