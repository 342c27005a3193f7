"""Time marks: `<oplog of the entity>/.times/<name>`, one for every `every`-th oplog entry, whatever its op.

A mark's name carries the entry's time and seq (`mark_names.py`), so one LIST of one key finds the newest marked entry
that is not after a time. Marks are hints: a missing, foreign or false one costs requests, never correctness. They are
written once, after their entry, by whoever finds the entry in its place. An archive (`archives.py`) has one mark, in
place of those of its entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from worm.codec.strict_json import dumps
from worm.collections.archive_names import ArchiveName
from worm.collections.entries import OplogEntry
from worm.collections.layout import StorageResolver
from worm.collections.mark_names import mark_name, seconds_left
from worm.store.base import Store


class TimeMarks:
    """The time marks of one model."""

    def __init__(self, store: Store, resolver: StorageResolver, model: str, every: int) -> None:
        self._store = store
        self._resolver = resolver
        self._model = model
        self._every = every

    def put(self, entity_id: str, entry: OplogEntry) -> None:
        """Mark the entry if its seq is due one. Again for the same entry: nothing happens."""
        name = mark_name(entry.ts, entry.seq) if entry.seq % self._every == 0 else None
        if name is not None:
            key = self._resolver.time_mark_key(self._model, entity_id, name)
            self._store.put_if_absent(key, dumps({"seq": entry.seq, "ts": entry.ts}))

    def newest(self, entity_id: str, ts: str) -> int:
        """The seq of the newest mark that is not after a time (0: none). One request."""
        return self.find(entity_id, ts)[0]

    def find(self, entity_id: str, ts: str) -> tuple[int, ArchiveName | None]:
        """`newest`, and the archive that begins with that entry if the mark is one of an archive."""
        path = self._resolver.time_mark_path(self._model, entity_id)
        first = next(self._store.list(path, start_after=f"{path}{seconds_left(ts)}", limit=1), None)
        info = None if first is None else self._resolver.parse(first.key)
        if info is None or info.seq is None or info.name is None:
            return 0, None
        return info.seq, ArchiveName.of_mark(info.name)

    def put_archive(self, entity_id: str, archive: ArchiveName, ts: str) -> None:
        """Mark an archive; `ts` is the time of its first entry."""
        name = archive.mark(ts)
        if name is not None:
            key = self._resolver.time_mark_key(self._model, entity_id, name)
            self._store.put_if_absent(key, dumps({"archive": archive.file, "ts": ts}))

    def missing(self, recorded: Mapping[str, Set[int]], marked: Mapping[str, Set[int]]) -> list[tuple[str, int]]:
        """Id and seq of the recorded entries that are due a mark and have none."""
        return [
            (entity_id, seq)
            for entity_id, seqs in sorted(recorded.items())
            for seq in sorted(seqs - marked.get(entity_id, frozenset()))
            if seq % self._every == 0
        ]
