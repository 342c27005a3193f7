"""Rebuilds a lost or damaged root from the remaining objects.

The root is the only object of a database that cannot always be recomputed from the others, so two copies help:
- a bucket with versions has the lost root itself: its newest readable version;
- `manifest.backup.json` is the root as it was when the database was created, updated before each deletion of objects
  (`collect.py`). All layers that it names exist, and so does the log after them: only the collector deletes. Later
  commits are in the log, and are applied again.

Without either, the log must be complete from its first slot, and everything is applied from there. Otherwise nothing is
rebuilt: `Corrupt`. The report lists what cannot be restored (`lost`). Layers that the rebuilt root does not name are
garbage: their content is in the log.

A branch that was created after the copy is found by its pointer (`branches/<name>.json`) and has its complete log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Conflict, Corrupt, NotFound
from worm.formats import JsonObject, loads_own
from worm.log import DatabaseKind, DbKeys, LogFiles, LogRoot, Segment, hints
from worm.pages.apply import Applier
from worm.pages.branches import DELETING
from worm.pages.layer_name import LayerName
from worm.pages.manifest import MAIN, MEMBER, PageBranch, Pages, pages_of
from worm.pages.records import OP
from worm.pages.space_record import OP as SPACE_OP
from worm.store import Listed, Object, Store, Won

Source = Literal["version", "backup", "log"]


@dataclass(frozen=True, slots=True)
class RootRepair:
    """What a repair did; in a dry run, what it would do. `source` None: the root exists and can be read."""

    kind: DatabaseKind
    source: Source | None = None
    boundary: int = 0
    branches: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass
class _Found:
    """What the database's directory holds. `slots` and `epochs` by the id of the branch."""

    paths: set[str] = field(default_factory=set)
    slots: dict[str, list[int]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: DbKeys, listed: Iterator[Listed]) -> _Found:
        found = cls()
        for one in listed:
            path = one.key.removeprefix(keys.directory)
            branch, rest = keys.split(path)
            found.paths.add(path)
            slot, layer, pointer = (
                DbKeys(keys.db_id, branch).slot_of(one.key),
                LayerName.parse(rest),
                keys.pointed(path),
            )
            if slot is not None:
                found.slots.setdefault(branch, []).append(slot)
            elif layer is not None and layer.kind != "flushed":
                found.epochs[branch] = max(layer.epoch, found.epochs.get(branch, 0))
            elif pointer is not None:
                found.pointers[pointer] = one.key
        return found


def repair_root(
    store: Store, db_id: str, *, dry_run: bool = False, clock: Clock | None = None, ids: Ids | None = None
) -> RootRepair:
    """Rebuild the root of a database if it is gone or damaged, and those of its branches' logs. `NotFound` if nothing
    is left of such a database."""
    clock = clock or SystemClock()
    return _Repair(store, DbKeys(db_id), dry_run, clock, ids or Ids.system(clock)).run()


class _Repair:
    def __init__(self, store: Store, keys: DbKeys, dry_run: bool, clock: Clock, ids: Ids) -> None:
        self._store, self._keys, self._dry_run = store, keys, dry_run
        self._clock, self._ids = clock, ids
        self._applier = Applier(store, keys.db_id, clock=clock, ids=ids)

    def run(self) -> RootRepair:
        stored = self._store.get(self._keys.root)
        root = None if stored is None else self._decoded(stored)
        if root is not None:
            done = RootRepair(root.kind, boundary=root.boundary)
            return replace(done, logs=tuple(self._repair_logs(root)))
        found = _Found.of(self._keys, self._store.list(self._keys.directory))
        if not found.paths:
            raise NotFound(f"nothing is left of database {self._keys.db_id!r}", key=self._keys.directory)
        source, root = self._source(found)
        root, lost = self._rebuilt(root, source, found)
        added = {} if source == "version" else dict(self._new_branches(root, found, lost))
        if not self._dry_run:
            self._write(root, stored)
            self._add_branches(added)
            if root.kind != "documents":  # readers that are open have seen all of it in layers
                for name in sorted(self._applier.root.read().branches):
                    self._applier.run(name)
        logs = tuple(self._repair_logs(root))
        return RootRepair(root.kind, source, root.boundary, tuple(sorted(added)), logs, tuple(lost))

    def _decoded(self, stored: Object) -> LogRoot | None:
        """None: it is damaged."""
        try:
            root = LogRoot.decode(stored.body, stored.key)
            pages_of(root, stored.key)
        except Corrupt:
            return None
        return root

    # Where the root comes from

    def _source(self, found: _Found) -> tuple[Source, LogRoot]:
        for version in self._store.versions(self._keys.root):
            stored = None if version.is_delete_marker else self._store.get(version.key, version_id=version.version_id)
            root = None if stored is None else self._decoded(stored)
            if root is not None:
                return "version", root
        stored = self._store.get(self._keys.backup)
        root = None if stored is None else self._decoded(stored)
        if root is not None:
            return "backup", root
        kind = self._kind(found)
        members: JsonObject = {} if kind == "documents" else {MEMBER: Pages(branches={MAIN: PageBranch()}).encode()}
        return "log", LogRoot(kind=kind, members=members)

    def _kind(self, found: _Found) -> DatabaseKind:
        """The kind, according to the records or the layers."""
        for slot in sorted(found.slots.get("", ())):
            stored = self._store.get(self._keys.slot(slot))
            segment = None if stored is None else Segment.decode(stored.body, slot, stored.key)
            for entry in () if segment is None else segment.entries:
                if entry.record.get("op") == SPACE_OP:
                    return "space"
                if entry.record.get("op") == OP:
                    return "pages"
        return "pages" if any(path.startswith(("delta/", "image/")) for path in found.paths) else "documents"

    def _rebuilt(self, root: LogRoot, source: Source, found: _Found) -> tuple[LogRoot, list[str]]:
        lost: list[str] = []
        pages = pages_of(root, self._keys.root)
        main = PageBranch() if pages is None else pages.branch(MAIN)
        limit = None if pages is None else main.slot
        root = replace(root, boundary=self._boundary(self._keys, root.boundary, found.slots.get("", []), limit))
        if pages is None:
            return root, lost
        if source == "backup":
            lost.append("pins and settings that changed since the copy of the root")
            pages = self._without_deleted(pages, found)
        elif source == "log":
            lost.append("pins and settings: the settings are back to their defaults")
        branches = {
            name: branch.model_copy(update={"compaction": max(branch.compaction, found.epochs.get(branch.id, 0)) + 1})
            for name, branch in pages.branches.items()
        }
        pages = pages.model_copy(update={"branches": branches})
        for branch in pages.branches.values():
            missing = [layer.path for layer in branch.layers if layer.path not in found.paths]
            if missing:
                what = f"{len(missing)} layers that the copy of the root names are gone"
                raise Corrupt(what, key=self._keys.directory + missing[0], hint=hints.BY_HAND)
        return replace(root, members={**root.members, MEMBER: pages.encode()}), lost

    def _boundary(self, keys: DbKeys, known: int, slots: list[int], applied: int | None) -> int:
        """The slot up to which the log is collected. `applied`: what layers have; None: there are no layers, it is a
        bare log. Later gaps stay gaps, for `worm log repair`."""
        first = min((slot for slot in slots if slot > known), default=known + 1)
        if applied is not None and first - 1 > max(known, applied):
            what = f"slots {max(known, applied) + 1} to {first - 1} are gone, and no known layer holds them"
            raise Corrupt(what, key=keys.slot(first), hint=hints.BY_HAND)
        return first - 1

    # Branches

    def _without_deleted(self, pages: Pages, found: _Found) -> Pages:
        """Remove branches that were deleted after the copy was made."""
        kept = {
            name: branch
            for name, branch in pages.branches.items()
            if name == MAIN or name in found.pointers or not self._is_deleted(branch.id)
        }
        return pages.model_copy(update={"branches": kept})

    def _is_deleted(self, branch_id: str) -> bool:
        keys = DbKeys(self._keys.db_id, branch_id)
        held = LogFiles(self._store, keys, clock=self._clock, ids=self._ids).lease.read()
        return held is not None and held.writer == DELETING

    def _new_branches(self, root: LogRoot, found: _Found, lost: list[str]) -> Iterator[tuple[str, PageBranch]]:
        """The branches that the copy does not know. Their logs are complete: nothing was collected since then."""
        pages = pages_of(root, self._keys.root)
        if pages is None:
            return
        known = {branch.id for branch in pages.branches.values()}
        named = set(known)
        for name, key in found.pointers.items():
            branch = self._pointed(key)
            if branch is None:
                lost.append(f"branch {name}: {key} cannot be read")
                continue
            named.add(branch.id)
            if branch.id not in known and not self._is_deleted(branch.id):
                slots = found.slots.get(branch.id, [])
                self._boundary(DbKeys(self._keys.db_id, branch.id), 0, slots, 0)
                yield name, branch
        for branch_id in sorted(found.slots.keys() - named - {""}):
            if not self._is_deleted(branch_id):
                what = f"branch {branch_id} has commits, but nothing says which branch it is"
                raise Corrupt(what, key=DbKeys(self._keys.db_id, branch_id).log, hint=hints.BY_HAND)

    def _pointed(self, key: str) -> PageBranch | None:
        stored = self._store.get(key)
        try:
            shape: JsonObject = {} if stored is None else loads_own(stored.body, key=key)
        except Corrupt:
            return None
        branch_id, parent, base = shape.get("id"), shape.get("parent"), shape.get("base_lsn")
        if not isinstance(branch_id, str) or not isinstance(parent, str) or type(base) is not int:
            return None
        created = str(shape.get("created", ""))
        return PageBranch(id=branch_id, parent=parent, base=base, lsn=base, horizon=base, created=created)

    def _add_branches(self, added: dict[str, PageBranch]) -> None:
        """Parents first; what a branch shares is applied before it is named."""
        waiting = dict(added)
        while waiting:
            ready = {name: one for name, one in waiting.items() if one.parent not in waiting}
            if not ready:
                raise Corrupt(
                    f"branches {', '.join(sorted(waiting))} have no trunk", key=self._keys.root, hint=hints.BY_HAND
                )
            for name, branch in ready.items():
                del waiting[name]
                self._add_branch(name, branch)

    def _add_branch(self, name: str, branch: PageBranch) -> None:
        self._applier.run(branch.parent or MAIN, upto=branch.base)

        def with_it(pages: Pages) -> Pages | None:
            return None if name in pages.branches else pages.with_branch(name, branch)

        self._applier.root.change(with_it)

    # Writing

    def _write(self, root: LogRoot, damaged: Object | None) -> None:
        body = replace(root, version=root.version + 1, put_id=self._ids.ulid()).encode()
        if damaged is None:
            outcome: object = self._store.put_if_absent(self._keys.root, body)
        else:
            self._store.put_if_absent(self._keys.damaged(0, damaged.etag), damaged.body)
            outcome = self._store.put_if_match(self._keys.root, body, damaged.etag)
        if not isinstance(outcome, Won):
            raise Conflict(
                "another process wrote a root in the meantime",
                key=self._keys.root,
                hint="check it, then run the command again if needed",
            )

    def _repair_logs(self, root: LogRoot) -> Iterator[str]:
        """The logs of branches whose own root is gone."""
        pages = pages_of(root, self._keys.root)
        for name, branch in {} if pages is None else sorted(pages.branches.items()):
            keys = DbKeys(self._keys.db_id, branch.id)
            if branch.id and self._store.get(keys.root) is None:
                slots = [slot for one in self._store.list(keys.log) if (slot := keys.slot_of(one.key)) is not None]
                boundary = self._boundary(keys, 0, slots, branch.slot)
                if not self._dry_run:
                    first = LogRoot(1, self._ids.ulid(), boundary, kind=root.kind)
                    self._store.put_if_absent(keys.root, first.encode())
                yield name
