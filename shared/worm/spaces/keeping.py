"""Upkeep outside of commits: snapshots where replay is long, and collecting what is not needed. Revisions stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from worm.spaces.backend import Backend
from worm.spaces.lineage import line_of
from worm.spaces.replay import Known, load
from worm.spaces.rows import ACTIVE, MAIN, SnapshotRow

_PAGE = 500


def snapshot(backend: Backend, branch: str, ids: Sequence[str], at: int, known: Known) -> int:
    """Snapshots of entities as of a commit, each at the seq of its own last revision on this branch. How many there
    are; none of one that is deleted, or that the branch did not write itself."""
    states = load(backend, line_of(backend, branch, at), dict.fromkeys(ids), known)
    rows = [
        SnapshotRow(branch, entity, state.pointer.seq, state.body.decode())
        for entity, state in states.items()
        if state.home == branch and state.body is not None
    ]
    if rows:
        backend.put_snapshots(rows)
    return len(rows)


def maintain(backend: Backend, at_least: int, known: Known) -> int:
    """Snapshots of every entity with so many revisions since its last one, on all branches that go on."""
    made, newest = 0, backend.newest().seq
    names = {MAIN, *(row.name for row in backend.branches() if row.status == ACTIVE)}
    for branch in sorted(names):
        for ids in _pages(sorted(backend.touched(branch, 0, newest))):
            depths = backend.depths(branch, ids)
            due = [entity for entity in ids if depths.get(entity, 0) >= at_least]
            made += snapshot(backend, branch, due, newest, known) if due else 0
    return made


def _pages(ids: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(ids)
    while page := list(islice(rest, _PAGE)):
        yield page
