"""Branches: cheap pointers into the history of another branch, with their own history after that.

A branch is an entry in the root: its parent and the LSN where it was forked. Its writes go into its own log and layers
(`branches/<id>/…`); it shares everything else. Creating and deleting a branch is one compare-and-swap of the root,
which also tells the collector what to keep. `branches/<name>.json` is for people; nothing depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from worm.clock import Clock, Ids, SystemClock, iso_millis
from worm.errors import Conflict, Invalid, NotFound
from worm.formats import Position, dumps, path_name_problem, position_of
from worm.log import DbKeys, LogFiles, LogWriter
from worm.pages.apply import Applier
from worm.pages.manifest import MAIN, PageBranch, Pages, branch_name
from worm.pages.reader import lsn_at
from worm.pages.root import PagesRoot
from worm.store import Store

DELETING = "deleting"
"""The name of the writer that fences a branch for good: if it holds the lease, the branch was deleted."""


@dataclass(frozen=True, slots=True)
class BranchInfo:
    """A branch, for people."""

    name: str
    parent: str | None
    base: int
    lsn: int
    layers: int
    bytes: int
    created: str


@dataclass(frozen=True, slots=True)
class _Fork:
    """A branch to create, and the exact parent that was meant: its name may be given to another branch in the
    meantime."""

    branch: PageBranch
    parent: str
    parent_id: str


class Branches:
    """The branches of a database."""

    def __init__(self, store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self.root = PagesRoot(store, db_id, clock=self._clock, ids=self._ids)
        self._applier = Applier(store, db_id, clock=self._clock, ids=self._ids, root=self.root)

    def list(self) -> list[BranchInfo]:
        return [_info(name, branch) for name, branch in sorted(self.root.read().branches.items())]

    def create(self, name: str, *, parent: str = MAIN, at: Position | None = None) -> BranchInfo:
        """Fork a branch at a position (default: the newest commit)."""
        _check_name(name)
        fork = self._forked(parent, at)

        def added(pages: Pages) -> Pages | None:
            found = pages.branches.get(name)
            if found is not None and found.id == fork.branch.id:
                return None  # it was already stored, and the answer was lost
            if found is not None:
                raise Conflict(f"branch {name!r} already exists", key=self.root.keys.root)
            return pages.with_branch(name, _placed(pages, fork))

        return self._point(name, self.root.change(added))

    def delete(self, name: str) -> None:
        """Delete a branch and everything that only it has. Its writer is fenced first. `Conflict` while others need
        it."""
        name = branch_name(name)
        branch = self._closed(name)

        def removed(pages: Pages) -> Pages | None:
            found = pages.branches.get(name)
            if found is None or found.id != branch.id:
                return None
            self._replaceable(pages, name)
            rest = {one: kept for one, kept in pages.branches.items() if one != name}
            return pages.model_copy(update={"branches": rest})

        self.root.change(removed)
        self._store.delete(self.root.keys.pointer(name))

    def undelete(self, name: str) -> None:
        """Always refused: a deleted branch takes along what only it had, and its log was ended for good."""
        if branch_name(name) in self.root.read().branches:
            raise Conflict(f"branch {name!r} exists", key=self.root.keys.root, hint="there is nothing to undelete")
        raise NotFound(
            f"branch {name!r} is gone: a page store does not keep deleted branches",
            key=self.root.keys.root,
            hint="the pages that it shared are in its parent: fork the parent again at the same LSN",
        )

    def reset(self, name: str, *, at: Position | None = None) -> BranchInfo:
        """Discard what was written on a branch, and fork it from its parent again."""
        name = branch_name(name)
        parent = self._replaceable(self.root.read(), name).parent or MAIN
        fork = self._forked(parent, at)
        _placed(self.root.read(), fork)  # otherwise the branch would be closed for nothing
        before = self._closed(name)

        def replaced(pages: Pages) -> Pages | None:
            found = pages.branch(name)
            if found.id == fork.branch.id:
                return None
            if found.id != before.id:
                raise Conflict(f"branch {name!r} was replaced in the meantime", key=self.root.keys.root)
            self._replaceable(pages, name)
            return pages.with_branch(name, _placed(pages, fork))

        return self._point(name, self.root.change(replaced))

    def _forked(self, parent: str, at: Position | None) -> _Fork:
        """Create a branch; what it shares is applied first."""
        parent = branch_name(parent)
        parent_id = self.root.read().branch(parent).id
        lsn = None if at is None else position_of(at)
        if isinstance(lsn, datetime):
            lsn = lsn_at(self._store, self.root, parent, lsn, clock=self._clock, ids=self._ids)
        applied = self._applier.run(parent, upto=lsn)
        base = applied.lsn if lsn is None else lsn
        branch = PageBranch(
            id=self._ids.ulid(),
            parent=parent,
            base=base,
            lsn=base,
            horizon=base,
            created=iso_millis(self._clock.now()),
        )
        return _Fork(branch, parent, parent_id)

    def _replaceable(self, pages: Pages, name: str) -> PageBranch:
        if name == MAIN:
            raise Invalid("branch main cannot be deleted", hint="use `worm db restore` to go back to an older state")
        branch = pages.branch(name)
        users = [f"branch {child!r}" for child in pages.children(name)]
        users += [f"pin {pin_id!r}" for pin_id, pin in pages.pins.items() if pin.branch == name]
        if users:
            raise Conflict(f"branch {name!r} is needed by {', '.join(users)}", hint="delete those first")
        return branch

    def _closed(self, name: str) -> PageBranch:
        """From here on, no commit to the branch is acknowledged. First the root says so, then its writer is fenced: a
        process that opens the branch in between checks the root again, and gives up."""

        def marked(pages: Pages) -> Pages | None:
            found = self._replaceable(pages, name)
            return None if found.closing else pages.with_branch(name, found.model_copy(update={"closing": True}))

        pages = self.root.change(marked)
        branch = pages.branch(name)
        keys = DbKeys(self.root.keys.db_id, branch.id)
        config, clock, ids = pages.config.log, self._clock, self._ids
        with self.root.while_there(name, branch.id):
            kind = self.root.kind
            LogWriter.open(self._store, keys, config=config, name=DELETING, kind=kind, clock=clock, ids=ids).close()
        return branch

    def _point(self, name: str, pages: Pages) -> BranchInfo:
        """Write the root of its log (so that nobody has to search for it), and the pointer for people."""
        branch = pages.branch(name)
        keys = DbKeys(self.root.keys.db_id, branch.id)
        LogFiles(self._store, keys, clock=self._clock, ids=self._ids).begin(self.root.kind)
        shape = {"id": branch.id, "parent": branch.parent, "base_lsn": branch.base, "created": branch.created}
        self._store.put(self.root.keys.pointer(name), dumps({**shape}))
        return _info(name, branch)


def _placed(pages: Pages, fork: _Fork) -> PageBranch:
    """The branch below the ancestor whose history contains its fork, which must be readable."""
    owner, wanted = fork.parent, fork.branch
    if pages.branch(owner).id != fork.parent_id:
        raise Conflict(
            f"branch {owner!r} was reset in the meantime: its LSNs belong to another history", hint="fork it again"
        )
    while (above := pages.branch(owner).parent) is not None and wanted.base <= pages.branch(owner).base:
        owner = above
    if pages.branch(owner).closing:
        raise NotFound(f"branch {owner!r} is being deleted")
    if wanted.base > pages.branch(owner).lsn:
        raise NotFound.past_the_end("LSN", wanted.base, pages.branch(owner).lsn)
    pages.check_readable(owner, wanted.base)
    return wanted.model_copy(update={"parent": owner})


def _check_name(name: str) -> None:
    problem = path_name_problem(name)
    if problem:
        raise Invalid(f"a branch's name {problem}: {name!r}")


def _info(name: str, branch: PageBranch) -> BranchInfo:
    size = sum(layer.size for layer in branch.layers)
    return BranchInfo(name, branch.parent, branch.base, branch.lsn, len(branch.layers), size, branch.created)
