"""From rows to documents: finds an entity's revisions, the nearest snapshot, and the revisions after it.

A *line* is the list of branches to read, the branch itself first, each with the last seq that counts: what a branch did
not write itself comes from its parent as of the fork, and so on upward. Before its creation, a branch equals its
parent.

- `set`: the whole document; `delete`: no document; `patch`: applied to the document, or to `{}` (Empty) if there is
  none.
- Revisions before the last `set` or `delete` are not parsed.
- Snapshots are made here outside of commits, if replay is long. They only save work; revisions stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from worm.errors import Corrupt, NotFound, show
from worm.formats import JsonObject, dumps
from worm.spaces.backend import Backend, Moment, Reads
from worm.spaces.json_patch import Misfit, apply_patches
from worm.spaces.results import parsed_document
from worm.spaces.rows import (
    ACTIVE,
    DELETE,
    MAIN,
    PATCH,
    SET,
    BranchRow,
    Pointer,
    RevisionRow,
    SnapshotRow,
    branch_title,
)
from worm.store import in_chunks

_LEVELS_MAX = 10_000


class Level(NamedTuple):
    branch: str
    upto: int


Line = Sequence[Level]


def branch_row(reads: Reads, name: str) -> BranchRow:
    """`NotFound` for a name that never existed. The main branch exists even before its row does."""
    row = reads.branch(name)
    if row is not None:
        return row
    if name == MAIN:
        return BranchRow(MAIN, None, None, 0, 0, "", ACTIVE)
    raise NotFound(f"there is no {branch_title(name)}")


def active_branch(reads: Reads, name: str) -> BranchRow:
    """`NotFound` also for a deleted one: it can be read, but accepts no more commits."""
    row = branch_row(reads, name)
    if row.status != ACTIVE:
        raise NotFound(
            f"{branch_title(name)} was deleted", hint="you can still read it; to write, undelete it or fork another one"
        )
    return row


def line_of(reads: Reads, branch: str, upto: int) -> list[Level]:
    """The line of a branch as of a commit."""
    line = [Level(branch, upto)]
    while branch != MAIN:
        row = branch_row(reads, branch)
        if row.parent_branch is None or row.fork_seq is None or len(line) > _LEVELS_MAX:
            raise Corrupt(f"{branch_title(branch)} does not descend from branch 'main'", key=f"branch {branch}")
        branch, upto = row.parent_branch, min(upto, row.fork_seq)
        line.append(Level(branch, upto))
    return line


def common_line(one: Line, other: Line) -> list[Level]:
    """The line that two branches have in common: it starts with the first branch on both, as of the earlier seq."""
    uptos = dict(other)
    for at, level in enumerate(one):
        if level.branch in uptos:
            return [Level(branch, min(upto, uptos[branch])) for branch, upto in one[at:]]
    raise Corrupt("two branches have no common ancestor")


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


UNKNOWN = -1


class EntityState(NamedTuple):
    """An entity as of a revision. `home` is the branch that has the revision; `body` is None for a deleted one.

    `patches`: how many are replayed on top of a full document. `depth`: revisions since the last snapshot, or
    `UNKNOWN`.
    """

    home: str
    pointer: Pointer
    body: bytes | None
    patches: int = 0
    depth: int = UNKNOWN


Known = Callable[[str, str, Pointer], EntityState | None]
"""A known state, by branch, id and revision."""


def nothing_known(branch: str, id: str, pointer: Pointer) -> EntityState | None:
    return None


@dataclass(slots=True)
class _Replay:
    """What has been found so far for one entity, going back in time. `base` counts once `is_based`."""

    home: str
    pointer: Pointer
    rows: list[RevisionRow] = field(default_factory=list)
    base: bytes | None = None
    patches: int = 0
    is_based: bool = False

    def add(self, branch: str, id: str, snapshot: SnapshotRow | None, rows: list[RevisionRow], head: Pointer) -> None:
        """The rows of one branch."""
        rows, is_whole = _needed(branch, id, snapshot, rows, head)
        self.rows[:0] = rows
        if is_whole:
            self.is_based = True
        elif snapshot is not None:
            self.is_based, self.base = True, snapshot.value.encode()

    def finish(self, id: str) -> EntityState:
        body, patches = fold(self.base, self.rows, f"{id!r} on {self.home!r}")
        return EntityState(self.home, self.pointer, body, self.patches + patches)


def load(reads: Reads, line: Line, ids: Iterable[str], known: Known = nothing_known) -> dict[str, EntityState]:
    """The state of each entity at the end of the line; those without a revision are left out."""
    replays: dict[str, _Replay] = {}
    missing = list(ids)
    for level in line:
        if not missing:
            break
        heads = reads.heads(level.branch, missing, level.upto)
        wanted = []
        for entity, head in heads.items():
            replay = replays.setdefault(entity, _Replay(level.branch, head))
            state = known(level.branch, entity, head)
            if state is None:
                wanted.append(entity)
            else:
                replay.is_based, replay.base, replay.patches = True, state.body, state.patches
        if wanted:
            _collect(reads, level, wanted, heads, replays)
        missing = [entity for entity in missing if entity not in replays or not replays[entity].is_based]
    return {entity: replay.finish(entity) for entity, replay in replays.items()}


class Content(NamedTuple):
    """A document as text, or parsed if patches were applied to it; neither for a deleted one."""

    body: bytes | str | None
    document: JsonObject | None = None
    patches: int = 0


def content(reads: Moment, branch: str, id: str, head: Pointer, upto: int, key: str) -> Content:
    """One entity whose head at `upto` is known, on a branch that inherits nothing."""
    snapshot = reads.snapshot(branch, id, upto)
    rows = reads.revisions_of(branch, id, 0 if snapshot is None else snapshot.seq, upto)
    rows, is_whole = _needed(branch, id, snapshot, rows, head)
    base = None if is_whole or snapshot is None else snapshot.value
    return _folded(base, rows, key)


def _collect(
    reads: Reads, level: Level, wanted: Sequence[str], heads: dict[str, Pointer], replays: dict[str, _Replay]
) -> None:
    snapshots = reads.snapshots(level.branch, wanted, level.upto)
    after = {entity: snapshots[entity].seq if entity in snapshots else 0 for entity in wanted}
    rows = reads.revisions(level.branch, after, level.upto)
    for entity in wanted:
        replays[entity].add(level.branch, entity, snapshots.get(entity), rows.get(entity, []), heads[entity])


def _needed(
    branch: str, id: str, snapshot: SnapshotRow | None, rows: list[RevisionRow], head: Pointer
) -> tuple[list[RevisionRow], bool]:
    """The revisions from the last `set` or `delete` on, if there is one. All that `head` names must exist, otherwise
    `Corrupt`."""
    end = rows[-1][1:3] if rows else None
    if end != head and (end is not None or snapshot is None or snapshot.seq < head.seq):
        key = f"revision {branch!r} {id!r} {head.seq} {head.op_index}"
        raise Corrupt("revisions that the head points to are missing", key=key)
    for at in range(len(rows) - 1, -1, -1):
        if rows[at].op != PATCH:
            return rows[at:], True
    return rows, False


def fold(base: bytes | None, rows: Sequence[RevisionRow], key: str) -> tuple[bytes | None, int]:
    """The document after the rows, and how many patches there were since a full one."""
    if not rows:
        return base, 0
    body, document, patches = _folded(base, rows, key)
    if document is not None:
        return dumps(document), patches
    return (body.encode() if isinstance(body, str) else body), patches


def _folded(base: bytes | str | None, rows: Sequence[RevisionRow], key: str) -> Content:
    body: bytes | str | None = base
    document: JsonObject | None = None
    patches = 0
    for row in rows:
        op, data = row.op, row.data
        if op == PATCH:
            if document is None:
                document = {} if body is None else parsed_document(body, key)
            try:
                document = apply_patches(document, orjson.loads(data or ""))
            except (Misfit, orjson.JSONDecodeError) as error:
                raise Corrupt(f"a patch cannot be replayed: {error}", key=f"{key}, commit {row.seq}") from error
            patches += 1
        elif op == SET and data is not None:
            body, document, patches = data, None, 0
        elif op == DELETE:
            body, document, patches = None, None, 0
        else:
            raise Corrupt(f"{show(op)} is not an operation", key=f"{key}, commit {row.seq}")
    return Content(None if document is not None else body, document, patches)


IDS_AT_ONCE = 500


def make_snapshots(backend: Backend, branch: str, ids: Sequence[str], at: int, known: Known) -> int:
    """Make snapshots of entities as of a commit, each at the seq of its own last revision on this branch. Returns the
    number; there is none for an entity that is deleted, or that the branch did not write itself."""
    states = load(backend, line_of(backend, branch, at), dict.fromkeys(ids), known)
    rows = [
        SnapshotRow(branch, entity, state.pointer.seq, state.body.decode())
        for entity, state in states.items()
        if state.home == branch and state.body is not None
    ]
    if rows:
        backend.put_snapshots(rows)
    return len(rows)


def maintain_snapshots(backend: Backend, at_least: int, known: Known) -> int:
    """Make snapshots of every entity with this many revisions since its last one, on all active branches."""
    made, newest = 0, backend.newest().seq
    names = {MAIN, *(row.name for row in backend.branches() if row.status == ACTIVE)}
    for branch in sorted(names):
        for ids in in_chunks(sorted(backend.touched(branch, 0, newest)), IDS_AT_ONCE):
            depths = backend.depths(branch, ids)
            due = [entity for entity in ids if depths.get(entity, 0) >= at_least]
            made += make_snapshots(backend, branch, due, newest, known) if due else 0
    return made
