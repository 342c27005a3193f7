"""Publishing: the next version of a model's Delta table = what its root names now minus what the log names.

Every partition of the root has one file in the Delta table. Without deltas in its range, that is the partition's own
Parquet file. Otherwise it is a file of its own: the partition merged with the deltas, named by the hashes of both. So
the names follow from the root and its deltas alone. Names that the log has already cost nothing, however large the
table is, and the root does not change. A table in one file has one Parquet file, written when it is published.

Order: the log is read before the root, so the root is at least as new. Then missing Parquet files are written, then the
version, then the tip (`log`), then a checkpoint if one is due. A crash at any point leaves files that no version names;
the next publish continues from what is stored. Of two publishers, one adds the version, and the other starts again.

The revision of a version is the sum of all seqs, as in `manifest`: that of the root's base, plus the *gain* of every
file that was merged with deltas.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from worm.clock import attempts
from worm.errors import Corrupt, Invalid, Unavailable
from worm.formats import JsonObject, dumps
from worm.store import Listed, in_parallel
from worm.tables.lake.actions import APP, CONFIGURATION, PROTOCOL, Tip, schema_string
from worm.tables.lake.log import LOG_DIR, DeltaLog
from worm.tables.manifest import Manifest
from worm.tables.parquet import encode_parquet
from worm.tables.parquet_part import ParquetPart
from worm.tables.pieces import HASH_DIGITS, Pieces
from worm.tables.root import Piece, Root, cut
from worm.tables.table import Table
from worm.values import dataclass
from worm.version import VERSION

ROUNDS_MAX = 10
WRITERS_MAX = 8
MADE_BYTES = 32 << 20
"""About how many bytes of partitions are read at the same time. In memory, they may become several times larger."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The result of a publish: the newest version of the Delta table and the revision of the collection that it has.
    `added` and `removed` count files; both are 0 if nothing had changed.

    Examples:
        >>> customers.publish().version
        1
    """

    version: int
    revision: int
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file that the next version must name. `partition`: the name that a partition with this content would have, or
    stands for it. `make` returns the content, and by how much it raises the revision of the base."""

    file: str
    partition: str
    make: Callable[[], tuple[Manifest, int]]
    size: int
    """The bytes that must be read to add it."""
    piece: Piece | None = None
    """The partition, if the file is its own Parquet file."""

    def is_named(self, tip: Tip) -> bool:
        """Whether the log names exactly this file, and everything about it is known."""
        size = tip.files.get(self.file)
        if self.piece is None:
            return size is not None and self.file in tip.gains
        return size is not None and self.piece.parquet in (0, size)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored Parquet file."""

    file: str
    size: int
    stats: JsonObject
    gain: int | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The log and the table, compared. `todo`: the files that must be looked at or written. `missing`: files of the
    newest version that are gone or have another size."""

    tip: Tip
    root: Root[Manifest] | None
    """None: the table is missing, damaged or made for another schema."""
    wanted: Sequence[LakeFile]
    todo: Sequence[LakeFile]
    missing: frozenset[str]
    schema: str

    @property
    def is_published(self) -> bool:
        files = {one.file for one in self.wanted}
        return (
            self.root is not None
            and not self.todo
            and files == self.tip.files.keys()
            and self.schema == self.tip.schema
        )


class Publisher:
    """The Delta table of one model. Not thread-safe, like its table."""

    def __init__(self, table: Table) -> None:
        collection = table.collection
        if collection.definition.lake is None:
            hint = 'set "lake": {"format": "delta"} for it in schema.json, and push the schema'
            raise Invalid(f"{collection.name} has no Delta table", hint=hint)
        self.table = table
        self.every_seconds = collection.definition.lake.every_seconds
        self.store, self.clock = collection.store, collection.clock
        self.directory = collection.resolver.lake_dir(collection.name)
        self.log = DeltaLog(self.store, self.directory)
        self.files = table.manifest.parquet
        self.columns = self.files.columns
        self._ids = collection.ids
        self._tip: Tip | None = None

    @property
    def location(self) -> str:
        return f"{self.store.url.rstrip('/')}/{self.directory.rstrip('/')}"

    def publish(self, *, check_files: bool = True, bytes_max: int | None = None) -> Publication:
        """Add a version if the table has changed. `check_files`: list the files, to find and replace deleted ones.
        `bytes_max`: if more must be read, leave it to a process with more time."""
        for _ in attempts(ROUNDS_MAX, self.clock, self._ids):
            try:
                seen = self.compare(check_files=check_files)
                if bytes_max is not None and sum(one.size for one in seen.todo) > bytes_max:
                    return Publication(seen.tip.version, seen.tip.revision, 0, 0)
                published = self._publish(seen)
            except Corrupt as damage:
                self._mend(damage)
                continue
            if published is not None:
                return published
        raise Unavailable(
            f"other writers added a version during each of {ROUNDS_MAX} attempts",
            key=self.directory + LOG_DIR,
            hint="try again; only this program should write to this Delta table",
        )

    def publish_due(self, *, bytes_max: int, ahead_seconds: float = 0) -> None:
        """Publish if the newest version will be older than the schema allows in `ahead_seconds`. What this process
        remembers may answer without a request."""
        if self._is_due(self._tip, ahead_seconds):
            self._tip = self.log.tip()
            if self._is_due(self._tip, ahead_seconds):
                self.publish(check_files=ahead_seconds > 0, bytes_max=bytes_max)

    def _is_due(self, tip: Tip | None, ahead_seconds: float) -> bool:
        if tip is None:
            return True
        age = self.clock.now().timestamp() - tip.published / 1000
        return age + ahead_seconds >= self.every_seconds or age < 0  # a clock was wrong: publish, which sets it right

    def forget(self) -> None:
        """Forget what we read: it may be replaced or deleted by now."""
        self._tip = None

    # What there is

    def compare(self, *, check_files: bool) -> Comparison:
        """Compare the log with the table. Reads no partition."""
        tip, listed = self._newest(check_files)
        missing = frozenset[str]()
        if listed is not None:
            missing = frozenset(file for file, size in tip.files.items() if listed.get(file) != size)
        root = self._root()
        wanted = [] if root is None else list(self._wanted(root))
        schema = schema_string(self.columns)
        todo = [one for one in wanted if one.file in missing or not one.is_named(tip)]
        return Comparison(tip, root, wanted, todo, missing, schema)

    def _newest(self, check_files: bool) -> tuple[Tip, dict[str, int] | None]:
        """The newest version and, with `check_files`, the sizes of all Parquet files."""
        tip = self._tip or self.log.tip() or Tip()
        after = self.log.after(tip)
        listed = list(self.store.list(self.directory if check_files else self.log.key(""), start_after=after))
        if not self.log.is_newest(tip, listed):
            entries = self.log.entries(listed if after is None else None)
            state, etag = self.log.read(entries), entries.etags.get(entries.newest, "")
            tip = Tip.of_state(state, max(entries.checkpoints, default=-1), etag)
        self._tip = tip
        return tip, self._sizes(listed) if check_files else None

    def _sizes(self, listed: Sequence[Listed]) -> dict[str, int]:
        return {one.key.removeprefix(self.directory): one.size for one in listed}

    def _root(self) -> Root[Manifest] | None:
        root = self.table.manifest.root()
        return None if root is None or self.table.manifest.is_stale(root) else root

    def _wanted(self, root: Root[Manifest]) -> Iterator[LakeFile]:
        if root.whole is not None:
            whole = root.whole.part(root.whole.ids())
            name = f"partition-0-{_hash(whole.encode())}.json"
            yield LakeFile(self.files.file(name), name, lambda: (whole, 0), size=0)
            return
        tree = self.table.manifest
        partitions, delta = tree.partitions(root), tree.delta(root)
        slices = cut(delta.ids(), [piece.start for piece in partitions])
        for piece, ids in zip(partitions, slices, strict=True):
            yield self._own(piece) if not ids else self._merged(root, piece, delta.part(ids))

    def _own(self, piece: Piece) -> LakeFile:
        file, size = self.files.file(piece.file), piece.parquet or piece.size
        return LakeFile(file, piece.file, lambda: (self._partition(piece), 0), size, piece)

    def _merged(self, root: Root[Manifest], piece: Piece, news: Manifest) -> LakeFile:
        stem, _, of = piece.file.removesuffix(".json").rpartition("-")
        name = f"{stem}-{_hash(of.encode() + news.encode())}.json"

        def make() -> tuple[Manifest, int]:
            layout, base = self.table.manifest.layout, self._partition(piece)
            merged = layout.finished(base.merged([news]), root)
            return merged, sum(merged.seqs.values()) - sum(base.seqs.values()) if layout.keeps_seqs else 0

        return LakeFile(self.files.file(name), name, make, size=piece.size)

    def _partition(self, piece: Piece) -> Manifest:
        """Not kept in memory, unless the table has it there anyway."""
        known = self.table.manifest.pieces
        if known.missing([piece.file]):
            known = Pieces(self.store, known.directory, Manifest.decode)
        return known.get([piece.file])[0]

    # What is published

    def _publish(self, seen: Comparison) -> Publication | None:
        """None: another writer was faster, or the table had to be rebuilt."""
        if seen.is_published:
            return Publication(seen.tip.version, seen.tip.revision, 0, 0)
        if seen.root is None:
            self.table.rebuild()
            return None
        stored = in_parallel(self._ensured, seen.todo, _writers(seen.root))
        tip = seen.tip
        gains = {one.file: tip.gains[one.file] for one in seen.wanted if one.file in tip.gains}
        gains |= {one.file: one.gain for one in stored if one.gain is not None}
        added = [one for one in stored if tip.files.get(one.file) != one.size]
        removed = sorted(tip.files.keys() - {one.file for one in seen.wanted})
        if not added and not removed and seen.schema == tip.schema:
            self._remember(replace(tip, gains=gains))  # deleted files are stored again, as they were
            return Publication(tip.version, tip.revision, 0, 0)
        now = self.clock.now()
        files = {one.file: tip.files[one.file] for one in seen.wanted if one.file in tip.files}
        newer = Tip(
            version=tip.version + 1,
            files=files | {one.file: one.size for one in added},
            gains=gains,
            schema=seen.schema,
            id=tip.id or self._ids.uuid(),
            created=tip.created or _millis(now),
            revision=seen.root.revision + sum(gains.values()),
            last_updated=seen.root.last_updated,
            published=_millis(now),
            checkpoint=tip.checkpoint,
        )
        etag = self.log.commit(newer.version, self._actions(tip, newer, added, removed))
        if etag is None:
            return None
        newer = replace(newer, etag=etag)
        if self.log.is_checkpoint_due(newer):
            newer = replace(newer, checkpoint=self.log.checkpoint(_millis(now)))
        self._remember(newer)
        return Publication(newer.version, newer.revision, len(added), len(removed))

    def _remember(self, tip: Tip) -> None:
        self._tip = None  # if the next request fails, it is unknown what is stored
        self.log.remember(tip)
        self._tip = tip

    def _actions(self, tip: Tip, newer: Tip, added: Sequence[_Stored], removed: Sequence[str]) -> Iterator[JsonObject]:
        at = newer.published
        is_new = tip.schema != newer.schema
        yield {"commitInfo": self._info(tip, newer, len(added), len(removed))}
        if tip.version < 0:
            yield {"protocol": PROTOCOL}
        if is_new:
            yield {"metaData": self._metadata(newer)}
        yield {"txn": {"appId": APP, "version": newer.revision, "lastUpdated": at}}
        for file in removed:
            size = tip.files[file]
            gone: JsonObject = {"path": file, "deletionTimestamp": at, "dataChange": True}
            yield {"remove": {**gone, "extendedFileMetadata": True, "partitionValues": {}, "size": size}}
        for one in added:
            add: JsonObject = {"path": one.file, "partitionValues": {}, "size": one.size, "modificationTime": at}
            yield {"add": {**add, "dataChange": True, "stats": dumps(one.stats).decode()}}

    def _info(self, tip: Tip, newer: Tip, added: int, removed: int) -> JsonObject:
        return {
            "timestamp": newer.published,
            "operation": "WRITE" if tip.version >= 0 else "CREATE TABLE",
            "operationParameters": {"mode": "Overwrite"},
            "operationMetrics": {"numFiles": str(added), "numRemovedFiles": str(removed)},
            "engineInfo": f"worm/{VERSION}",
            "model": self.table.collection.name,
            "revision": newer.revision,
            "lastUpdated": newer.last_updated,
        }

    def _metadata(self, tip: Tip) -> JsonObject:
        return {
            "id": tip.id,
            "name": self.table.collection.name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": tip.schema,
            "partitionColumns": [],
            "configuration": CONFIGURATION,
            "createdTime": tip.created,
        }

    def _ensured(self, wanted: LakeFile) -> _Stored:
        """The file, written unless it is there already."""
        key = self.directory + wanted.file
        if wanted.piece is not None and wanted.piece.parquet:
            found = self.store.get(key)
            part = None if found is None else self._intact(found.body, wanted)
            if found is not None and part is not None:
                return _Stored(wanted.file, len(found.body), part.stats, None)
        content, gain = wanted.make()
        body = encode_parquet(content, self.columns, _of(wanted.partition))
        self.store.put(key, body)
        stats = ParquetPart(body, key, _of(wanted.partition), self.columns).stats
        return _Stored(wanted.file, len(body), stats, None if wanted.piece is not None else gain)

    def _intact(self, body: bytes, wanted: LakeFile) -> ParquetPart | None:
        try:
            return ParquetPart(body, self.directory + wanted.file, _of(wanted.partition), self.columns)
        except Corrupt:  # written again, from the partition
            return None

    def _mend(self, damage: Corrupt) -> None:
        """A file of the table is gone or damaged: its root was replaced in the meantime, or it must be rebuilt."""
        tree = self.table.manifest
        if damage.key is None or not damage.key.startswith((tree.key, tree.pieces.directory)):
            raise damage
        etag = tree.file.etag
        tree.forget()
        tree.root()
        if tree.file.etag == etag:
            self.table.rebuild()


def _writers(root: Root[Manifest]) -> int:
    """How many files may be made at the same time."""
    mean = root.base_size // max(1, root.partition_count)
    return max(1, min(WRITERS_MAX, MADE_BYTES // max(1, 2 * mean)))


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:HASH_DIGITS]


def _of(partition: str) -> str:
    return partition.removesuffix(".json").rpartition("-")[2]


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
