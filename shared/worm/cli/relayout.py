"""`worm relayout`: moves the oplog, snapshots and trash of an existing bucket to another layout.

An object is *moved* if its directory is elsewhere in the new layout: an oplog entry or archive, a time mark, a
snapshot, a trash copy or a tombstone. Objects in those directories that do not have a name of this library are
*foreign*: they are counted, but never touched.

Order of writes: the marker; a copy of every object, put-if-absent, with the same bytes and metadata; the schema with
the new storage, by compare-and-swap; copies of objects that were written under the old layout in the meantime; the
marker again ("done"). Old objects are deleted last, only on request, and only after each copy was read and compared.

The *marker*, `.worm.relayout.json`, keeps the state of a relayout between two runs: a run after a crash knows where the
objects were, even if the schema already has the new layout. `since` is the store's own time of its creation. The first
pass has seen all older objects under the old layout; a younger one was written by a process that did not pause.

Invariants: at any moment, the layout in the schema holds everything that it held before; running again after a crash
gives the same result; an object is never overwritten. Two different objects for one key are a `Conflict` that names
both, and both stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, cast

from worm.clock import iso_seconds
from worm.collections import KeyInfo, KeyKind, StorageResolver, delete_unchanged, layout
from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.formats import JsonValue, ModelDef, Schema, StorageDef, dumps, load_pushed, loads_own
from worm.store import Gone, Listed, Lost, Object, ObjectInfo, Read, Store, Won, in_chunks
from worm.upkeep import load_pushed_schema, push_schema

Directory = Literal["oplog", "snapshots", "trash"]
DIRECTORIES: dict[Directory, str] = {
    "oplog": layout.OPLOG_DIR,
    "snapshots": layout.SNAPSHOTS_DIR,
    "trash": layout.TRASH_DIR,
}
_KINDS: dict[KeyKind, Directory] = {
    KeyKind.OPLOG: "oplog",
    KeyKind.TIME_MARK: "oplog",
    KeyKind.ARCHIVE: "oplog",
    KeyKind.SNAPSHOT: "snapshots",
    KeyKind.TRASH: "trash",
    KeyKind.TOMBSTONE: "trash",
}
MarkerState = Literal["copying", "done"]
CHUNK = 100
Step = Literal["copy", "second pass", "verify", "delete"]
Progress = Callable[[Step, int], None]
Check = Callable[[Schema], Sequence[str]]
"""Problems of the moved oplogs, as text. As long as there is one, nothing old is deleted."""


@dataclass
class RelayoutReport:
    """What a relayout found and did. `objects` counts the objects under the old layout by model and directory."""

    source: StorageDef
    target: StorageDef
    objects: Counter[tuple[str, str]] = field(default_factory=Counter)
    size: int = 0
    foreign: int = 0
    copied: int = 0
    present: int = 0
    late: int = 0
    withdrawn: int = 0
    verified: int = 0
    superseded: int = 0
    deleted: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_nothing(self) -> bool:
        """Whether everything is already in place."""
        return same_places(self.source, self.target)


class Relayout:
    """One relayout of one bucket. `threads` copies run at the same time."""

    def __init__(
        self,
        store: Store,
        target: StorageDef,
        *,
        check: Check = lambda schema: (),
        progress: Progress = lambda step, number: None,
        threads: int = 16,
    ) -> None:
        self._store = store
        self._target = target
        self._check = check
        self._progress = progress
        self._threads = threads

    def plan(self) -> RelayoutReport:
        """What there is to move. It only reads listings."""
        schema = load_pushed_schema(self._store)
        marker = read_marker(self._store)
        source = schema.storage
        if marker is not None and self._goes_on(marker, schema):
            source = marker.source
        elif marker is not None:
            self._refuse_leftovers(marker, schema)
        return self._counted(Moves(self._store, schema, source, self._target))

    def run(self, *, delete_old: bool = False) -> RelayoutReport:
        """Move everything; continue where an earlier run stopped."""
        schema = load_pushed_schema(self._store)
        marker = read_marker(self._store)
        if marker is None or not self._goes_on(marker, schema):
            if same_places(schema.storage, self._target):
                return RelayoutReport(schema.storage, self._target)
            marker = self._begin(schema, marker)
        moves = Moves(self._store, schema, marker.source, self._target)
        report = self._counted(moves)
        if not same_places(schema.storage, self._target):
            self._first_pass(moves, report)
            self._withdraw(moves, report)
        if marker.state == "copying":
            schema = self._switch(marker)
            moves = Moves(self._store, schema, marker.source, self._target)
        self._second_pass(moves, marker, report)
        self._verify(moves, marker, report)
        report.problems += self._check(schema)
        marker = finish_marker(self._store, marker)
        if delete_old and not report.problems:
            self._delete_old(moves, marker, report)
        return report

    # Beginning

    def _goes_on(self, marker: Marker, schema: Schema) -> bool:
        """Whether this run continues the marker's relayout. `Conflict` if another one is unfinished."""
        is_there = same_places(schema.storage, marker.target)
        if marker.state == "done":
            return is_there and same_places(marker.target, self._target)
        if not same_places(marker.target, self._target):
            other = told(marker.target)
            raise Conflict(
                f"a relayout to {other} is unfinished",
                key=layout.RELAYOUT_KEY,
                hint=f"finish it first: worm relayout --to {other}",
            )
        if not is_there and not same_places(schema.storage, marker.source):
            raise Conflict(
                f"the schema's storage is {told(schema.storage)}, neither what the unfinished relayout moves from "
                f"({told(marker.source)}) nor what it moves to",
                key=layout.SCHEMA_KEY,
                hint="push the schema with the old storage and --force, then run the relayout again",
            )
        return True

    def _begin(self, schema: Schema, replaced: Marker | None) -> Marker:
        if replaced is not None:
            self._refuse_leftovers(replaced, schema)
        moves = Moves(self._store, schema, schema.storage, self._target)
        for stray in moves.reversed().objects():
            if self._store.head(stray.target) is None:
                raise Conflict(
                    f"{stray.listed.key} is already in the new layout, but {stray.target} does not exist",
                    key=stray.listed.key,
                    hint="the new layout would make it a live object: move it elsewhere first",
                )
        return begin_marker(self._store, schema.storage, self._target, replaced)

    def _refuse_leftovers(self, marker: Marker, schema: Schema) -> None:
        """Old objects of the last relayout must be gone before the next one: later, nothing could distinguish them."""
        if not same_places(schema.storage, marker.target):
            return
        left = next(Moves(self._store, schema, marker.source, marker.target).objects(), None)
        if left is not None:
            raise Conflict(
                f"the old objects of the relayout to {told(marker.target)} are still there",
                key=left.listed.key,
                hint=f"delete them first: worm relayout --to {told(marker.target)} --delete-old --no-dry-run",
            )

    def _counted(self, moves: Moves) -> RelayoutReport:
        report = RelayoutReport(moves.source, moves.target)
        for moved in moves.objects():
            report.objects[moved.model, moved.directory] += 1
            report.size += moved.listed.size
        report.foreign = moves.foreign
        return report

    # Copying

    def _first_pass(self, moves: Moves, report: RelayoutReport) -> None:
        """Repeats if history disappeared in the meantime: it was packed into an archive, which an earlier listing
        lacks."""
        packed = True
        while packed:
            packed = False
            for outcome in self._copies("copy", moves.objects()):
                report.copied += outcome == "copied"
                report.present += outcome == "present"
                packed = packed or outcome == "packed"

    def _withdraw(self, moves: Moves, report: RelayoutReport) -> None:
        """Before the switch, only this command writes to the new layout. A snapshot or trash copy there must not come
        back to life if its original was pruned, restored or purged in the meantime."""
        for model, directory in moves.places():
            if directory == "oplog":
                continue
            originals = {moved.listed.key for moved in moves.at(model, directory)}
            for copy in moves.reversed().at(model, directory):
                if copy.target not in originals and self._store.head(copy.target) is None:
                    report.withdrawn += self._remove(self._store.head(copy.listed.key))

    def _switch(self, marker: Marker) -> Schema:
        """The pushed schema with only the storage changed."""
        current = self._store.get(layout.SCHEMA_KEY)
        if current is None:
            raise NotFound("the schema was removed during the relayout", key=layout.SCHEMA_KEY)
        schema = load_pushed(current.body, layout.SCHEMA_KEY)
        if not same_places(schema.storage, self._target):
            if not same_places(schema.storage, marker.source):
                raise pushed_meanwhile(None)
            schema = with_storage(schema, self._target)
            outcome = self._store.put_if_match(layout.SCHEMA_KEY, schema.to_json(), current.etag)
            if not isinstance(outcome, Won):
                raise pushed_meanwhile(current.etag)
        push_schema(self._store, schema, force=True)  # writes the sentinels; the schema is already the same
        return schema

    def _second_pass(self, moves: Moves, marker: Marker, report: RelayoutReport) -> None:
        """Copies what was written under the old layout after the first pass. After the switch, a snapshot or trash copy
        may be missing because a session deleted it: an original older than the relayout is not copied."""
        for model, directory in moves.places():
            there = {copy.listed.key for copy in moves.reversed().at(model, directory)}
            late = (
                moved
                for moved in moves.at(model, directory)
                if moved.target not in there and (moved.is_for_ever or _is_late(moved, marker))
            )
            for outcome in self._copies("second pass", late):
                report.late += outcome == "copied"

    def _copies(self, step: Step, moves: Iterable[Moved]) -> Iterator[str]:
        """Copy all of them. Conflicts are reported at the end, so that one does not hold up the others."""
        conflicts: list[str] = []
        done = 0
        with ThreadPoolExecutor(self._threads) as pool:
            for chunk in in_chunks(moves, CHUNK):
                results = pool.map(self._copy, chunk) if self._threads > 1 else map(self._copy, chunk)
                for moved, outcome in zip(chunk, results, strict=True):
                    if outcome == "different":
                        conflicts.append(both(moved))
                    yield outcome
                done += len(chunk)
                self._progress(step, done)
        if conflicts:
            raise conflict(conflicts)

    def _copy(self, moved: Moved) -> str:
        found = self._store.get(moved.listed.key)
        if found is None:
            return "packed" if moved.is_for_ever else "gone"
        outcome = self._store.put_if_absent(moved.target, found.body, metadata=found.own_metadata)
        if isinstance(outcome, Won):
            return "copied"
        return "present" if outcome.current.body == found.body else "different"

    # Verifying and deleting

    def _verify(self, moves: Moves, marker: Marker, report: RelayoutReport) -> None:
        conflicts: list[str] = []
        for chunk in in_chunks(moves.objects(), CHUNK):
            for moved, original, copy in self._pairs(chunk):
                verdict = _verdict(moved, original, copy, marker)
                if verdict == "different":
                    conflicts.append(both(moved))
                report.verified += verdict == "equal"
                report.superseded += verdict == "superseded"
            self._progress("verify", report.verified)
        if conflicts:
            raise conflict(conflicts)

    def _delete_old(self, moves: Moves, marker: Marker, report: RelayoutReport) -> None:
        """Compare again, then delete exactly what was compared. The marker is deleted when nothing is left."""
        for chunk in in_chunks(moves.objects(), CHUNK):
            for moved, original, copy in self._pairs(chunk):
                if original is None or _verdict(moved, original, copy, marker) == "different":
                    continue
                report.deleted += self._remove(original)
            self._progress("delete", report.deleted)
        if next(moves.objects(), None) is None:
            last = self._store.head(layout.RELAYOUT_KEY)
            self._remove(last if last is not None and last.etag == marker.etag else None)

    def _remove(self, found: ObjectInfo | None) -> bool:
        """Delete the object if it is still the one that was found."""
        return found is not None and isinstance(
            delete_unchanged(self._store, found.key, found.etag, found.version_id), Won
        )

    def _pairs(self, chunk: Sequence[Moved]) -> Iterator[tuple[Moved, Object | None, Object | None]]:
        reads = [Read(key) for moved in chunk for key in (moved.listed.key, moved.target)]
        found: list[Object | None] = []
        for item in self._store.get_many(reads):
            if isinstance(item, Exception):
                raise item
            found.append(item)
        yield from zip(chunk, found[::2], found[1::2], strict=True)


def _verdict(moved: Moved, original: Object | None, copy: Object | None, marker: Marker) -> str:
    """`equal`; `gone` (nothing left to move); `superseded` (snapshot or trash, changed under the new layout since
    then); `different`. A copy that must exist but does not is `Corrupt`."""
    if original is None:
        return "gone"
    if copy is not None and copy.body == original.body:
        return "equal"
    if not moved.is_for_ever and not _is_late(moved, marker):
        return "superseded"
    if copy is None:
        raise Corrupt(f"the copy of {moved.listed.key} is missing at {moved.target}", hint="run the relayout again")
    return "different"


def _is_late(moved: Moved, marker: Marker) -> bool:
    """Written after the relayout began, by the store's own times (whole seconds, so the same second counts as late)."""
    return iso_seconds(moved.listed.last_modified) >= marker.since


@dataclass(frozen=True, slots=True)
class Moved:
    """One object and its key in the other layout."""

    listed: Listed
    model: str
    directory: Directory
    target: str

    @property
    def is_for_ever(self) -> bool:
        """History never changes; an archive contains what was packed into it. Snapshots are pruned, and trash is
        restored and purged."""
        return self.directory == "oplog"


class Moves:
    """The objects of a bucket whose keys differ between `source` and `target`."""

    def __init__(self, store: Store, schema: Schema, source: StorageDef, target: StorageDef) -> None:
        self.source, self.target = source, target
        self.foreign = 0
        self._store = store
        self._schema = schema
        self._from = StorageResolver(with_storage(schema, source))
        self._to = StorageResolver(with_storage(schema, target))
        was, becomes = layouts(source), layouts(target)
        self.directories: list[Directory] = [one for one in DIRECTORIES if was[one] != becomes[one]]

    def reversed(self) -> Moves:
        return Moves(self._store, self._schema, self.target, self.source)

    def places(self) -> list[tuple[str, Directory]]:
        """Every model and directory that moves."""
        return [(model, directory) for model in self._schema.models for directory in self.directories]

    def objects(self) -> Iterator[Moved]:
        """All of them, from listings."""
        self.foreign = 0
        for model, directory in self.places():
            yield from self.at(model, directory)

    def at(self, model: str, directory: Directory) -> Iterator[Moved]:
        """The objects of one model and directory."""
        definition = self._schema.model(model)
        for listed in self._store.list(self._prefix(definition, directory)):
            info = self._from.parse(listed.key)
            if info.model == model and _KINDS.get(info.kind) == directory and info.id is not None:
                yield Moved(listed, model, directory, self._target(info, model, info.id))
            elif self._is_foreign(listed.key, definition, directory):
                self.foreign += 1

    def _prefix(self, model: ModelDef, directory: Directory) -> str:
        place = layouts(self.source)[directory]
        if place == "root":
            return f"{DIRECTORIES[directory]}/{model.collection}/"
        path = self._from.collection_path(model.name)
        if place == "collection" or model.is_singleton:
            return f"{path}{DIRECTORIES[directory]}/"
        return path

    def _target(self, info: KeyInfo, model: str, id: str) -> str:
        if info.kind is KeyKind.OPLOG and info.seq is not None:
            return self._to.oplog_key(model, id, info.seq)
        if info.kind is KeyKind.TIME_MARK and info.name is not None:
            return self._to.time_mark_key(model, id, info.name)
        if info.kind is KeyKind.ARCHIVE and info.name is not None:
            return self._to.archive_path(model, id) + info.name
        if info.kind is KeyKind.SNAPSHOT and info.name is not None:
            return self._to.snapshot_key(model, id, info.name)
        if info.kind is KeyKind.TRASH:
            return self._to.trash_key(model, id)
        if info.kind is KeyKind.TOMBSTONE:
            return self._to.tombstone_key(model, id)
        raise Invalid(f"a key of kind {info.kind.value} does not belong to a layout")

    def _is_foreign(self, key: str, model: ModelDef, directory: Directory) -> bool:
        """Whether the key is in one of our directories, but in neither layout: a file that somebody put there."""
        inside = f"/{DIRECTORIES[directory]}/" in f"/{key}"
        known = any(resolver.parse(key).kind is not KeyKind.UNKNOWN for resolver in (self._from, self._to))
        return inside and not known


def with_storage(schema: Schema, storage: StorageDef) -> Schema:
    """The same schema with another storage."""
    return schema.changed(storage=storage)


@dataclass(frozen=True, slots=True)
class Marker:
    """The relayout that was started last. `done`: everything is copied; only old objects may be left."""

    source: StorageDef
    target: StorageDef
    state: MarkerState
    since: str
    etag: str


def read_marker(store: Store) -> Marker | None:
    found = store.get(layout.RELAYOUT_KEY)
    return None if found is None else _decode(found)


def begin_marker(store: Store, source: StorageDef, target: StorageDef, replaced: Marker | None) -> Marker:
    """Write it, replacing a finished one. `Conflict` if another run starts at the same time."""
    body = _encode(source, target, "copying")
    if replaced is None:
        outcome: Won | Lost | Gone = store.put_if_absent(layout.RELAYOUT_KEY, body)
    else:
        outcome = store.put_if_match(layout.RELAYOUT_KEY, body, replaced.etag)
    if not isinstance(outcome, Won):
        raise Conflict(
            "another relayout started at the same time", key=layout.RELAYOUT_KEY, hint="run it again to continue"
        )
    written = read_marker(store)
    if written is None or written.etag != outcome.etag:
        raise Conflict("another relayout took over", key=layout.RELAYOUT_KEY, hint="run it again to continue")
    return written


def finish_marker(store: Store, marker: Marker) -> Marker:
    """Record that everything is copied and verified; another run may have done so first."""
    if marker.state == "done":
        return marker
    body = _encode(marker.source, marker.target, "done", marker.since)
    outcome = store.put_if_match(layout.RELAYOUT_KEY, body, marker.etag)
    current = read_marker(store)
    if current is None or (not isinstance(outcome, Won) and current.state != "done"):
        raise Conflict("another relayout took over", key=layout.RELAYOUT_KEY, hint="run it again to continue")
    return current


def _encode(source: StorageDef, target: StorageDef, state: MarkerState, since: str | None = None) -> bytes:
    shape: dict[str, JsonValue] = {
        "version": 1,
        "from": cast(JsonValue, layouts(source)),
        "to": cast(JsonValue, layouts(target)),
        "state": state,
    }
    if since is not None:
        shape["since"] = since
    return dumps(shape)


def _decode(found: Object) -> Marker:
    shape = loads_own(found.body, key=layout.RELAYOUT_KEY)
    state = shape.get("state")
    if shape.get("version") != 1 or state not in ("copying", "done"):
        raise Corrupt("not a relayout marker that this version of worm can read", key=layout.RELAYOUT_KEY)
    try:
        source, target = (StorageDef.of(shape.get(name)) for name in ("from", "to"))
    except Invalid as error:
        raise Corrupt("the relayout marker does not name its layouts", key=layout.RELAYOUT_KEY) from error
    since = str(shape.get("since") or iso_seconds(found.last_modified))
    return Marker(source, target, cast(MarkerState, state), since, found.etag)


def same_places(one: StorageDef, other: StorageDef) -> bool:
    """Whether two definitions put every directory into the same place."""
    return layouts(one) == layouts(other)


def layouts(storage: StorageDef) -> dict[str, str]:
    """`{"oplog": "root", "snapshots": "root", "trash": "root"}`."""
    return {
        "oplog": storage.oplog_layout,
        "snapshots": storage.snapshots_layout,
        "trash": storage.trash_layout,
    }


def told(storage: StorageDef) -> str:
    """`collection`, or `collection --trash root`: as the command accepts it."""
    places = layouts(storage)
    usual = storage.layout if storage.layout in places.values() else places["oplog"]
    others = [f"--{name} {place}" for name, place in places.items() if place != usual]
    return " ".join([usual, *others])


def conflict(pairs: Sequence[str]) -> Conflict:
    more = f" (and {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
    return Conflict(
        f"two different objects for one key: {pairs[0]}{more}",
        hint="something wrote during the relayout; keep the right one of each pair, move the other away, run it again",
    )


def pushed_meanwhile(expected: str | None) -> Conflict:
    return Conflict(
        "another schema was pushed during the relayout",
        key=layout.SCHEMA_KEY,
        expected=expected,
        hint="run it again to continue",
    )


def both(moved: Moved) -> str:
    return f"{moved.listed.key} and {moved.target}"
