"""The oplog of a model's entities: append by put-if-absent, find the tail, replay.

Invariants: entries are dense from 1 and never rewritten; a seq is decided by one PutObject with `If-None-Match: *`.
Finding the tail gallops from a hint (1, 2, 4 … ahead) and bisects, so it costs O(log distance) reads and no LIST.
*Checkpoints*: every `every`-th update entry also carries the whole document, so a state of any age is at most `every`
reads away, whatever the length of the history. *Time marks* (`time_marks.py`) tell where to look for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from worm.collections.entries import Document, OplogEntry
from worm.collections.layout import StorageResolver
from worm.collections.time_marks import TimeMarks
from worm.errors import Corrupt
from worm.store.base import Object, Read, Store, Won

PAGE = 100


@dataclass(frozen=True, slots=True)
class Appended:
    """Our entry holds the seq."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Another entry holds the seq."""

    entry: OplogEntry


class Oplog:
    """The oplogs of one model."""

    def __init__(self, store: Store, resolver: StorageResolver, model: str, *, every: int = 10) -> None:
        self.every = every
        self.marks = TimeMarks(store, resolver, model, every)
        self._store = store
        self._resolver = resolver
        self._model = model

    def key(self, entity_id: str, seq: int) -> str:
        return self._resolver.oplog_key(self._model, entity_id, seq)

    def read(self, entity_id: str, seq: int) -> OplogEntry | None:
        key = self.key(entity_id, seq)
        found = self._store.get(key)
        return None if found is None else self._parse(found, key, seq)

    def append(self, entity_id: str, entry: OplogEntry) -> Appended | Taken:
        """Put-if-absent of the entry under its seq; another's entry there comes back instead of an error."""
        key = self.key(entity_id, entry.seq)
        outcome = self._store.put_if_absent(key, entry.to_bytes())
        if isinstance(outcome, Won):
            return Appended()
        return Taken(self._parse(outcome.current, key, entry.seq))

    def tail(self, entity_id: str, *, at_least: int = 0) -> OplogEntry | None:
        """The newest entry. `at_least` is a seq known to exist (0: none known)."""
        low, newest = self._last(entity_id, at_least, lambda entry: True)
        if newest is None and low > 0:
            newest = self.read(entity_id, low)
            if newest is None:
                raise Corrupt("an oplog entry that was there is gone", key=self.key(entity_id, low))
        return newest

    def _last(self, entity_id: str, low: int, fits: Callable[[OplogEntry], bool]) -> tuple[int, OplogEntry | None]:
        """The last seq that fits, where `low` and all before it do (0: none known); with its entry if it was read."""
        newest: OplogEntry | None = None
        step = 1
        while (probe := self.read(entity_id, low + step)) is not None and fits(probe):
            newest, low, step = probe, low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            probe = self.read(entity_id, middle)
            if probe is None or not fits(probe):
                high = middle
            else:
                newest, low = probe, middle
        return low, newest

    def entries(self, entity_id: str, *, first: int = 1, last: int | None = None) -> Iterator[OplogEntry]:
        """Entries in order, read in concurrent pages, up to `last` or the end."""
        seq = first
        while last is None or seq <= last:
            upper = seq + PAGE - 1 if last is None else min(seq + PAGE - 1, last)
            wanted = range(seq, upper + 1)
            if last is None and seq == 1:
                wanted = range(1, 5)  # most histories are short: ask for a few before asking for a page
            found = self._store.get_many([Read(self.key(entity_id, number)) for number in wanted])
            for number, item in zip(wanted, found, strict=True):
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield self._parse(item, item.key, number)
            seq = wanted[-1] + 1

    def page(self, entity_id: str, before_seq: int, limit: int) -> list[OplogEntry]:
        """Up to `limit` entries before a seq, in order; those seqs must exist."""
        seqs = range(max(1, before_seq - limit), before_seq)
        found = self._store.get_many([Read(self.key(entity_id, seq)) for seq in seqs])
        return [self._required(item, entity_id, seq) for seq, item in zip(seqs, found, strict=True)]

    def newest_first(self, entity_id: str, tail: int) -> Iterator[OplogEntry]:
        """Entries from `tail` backwards, read in concurrent pages of a checkpoint's distance."""
        while tail > 0:
            page = self.page(entity_id, tail + 1, self.every)
            yield from reversed(page)
            tail = page[0].seq - 1

    def state_at(self, entity_id: str, seq: int, read: Sequence[OplogEntry] = ()) -> Document | None:
        """The document as of an entry (None: deleted then): back to the newest that tells it whole, then forward.
        `read`: entries up to that one which need not be read again."""
        forward: list[OplogEntry] = []
        older = self.newest_first(entity_id, read[0].seq - 1 if read else seq)
        for entry in chain(reversed(read), older):
            forward.append(entry)
            if entry.is_base:
                break
        document: Document | None = None
        for entry in reversed(forward):
            document = entry.applied_to(document, self.key(entity_id, entry.seq))
        return document

    def at_time(self, entity_id: str, ts: str) -> tuple[int, Document | None]:
        """The newest seq whose time is not after `ts` (0: none), and the document as of it (None: deleted then).

        Times never fall within an entity. The entries from the newest mark of that time to the next one contain both
        the answer and a whole document: 2 + `every` requests. They also prove the answer, because the first is not
        after `ts` and the last is, or is not there. Where they do not (a mark is missing), the search goes on there.
        """
        marked = self.marks.newest(entity_id, ts)
        first, last = max(marked, 1), marked + self.every
        page = [entry for entry in self.entries(entity_id, first=first, last=last) if entry.ts <= ts]
        if marked and not page:
            seq = self.seq_at_time(entity_id, ts, at_least=0)  # the mark is false
        elif len(page) > last - first:
            seq, page = self.seq_at_time(entity_id, ts, at_least=last), []
        else:
            seq = page[-1].seq if page else 0
        return seq, self.state_at(entity_id, seq, page)

    def seq_at_time(self, entity_id: str, ts: str, *, at_least: int) -> int:
        """The newest seq whose time is not after `ts`; that of `at_least` is known not to be (0: none known)."""
        return self._last(entity_id, at_least, lambda entry: entry.ts <= ts)[0]

    def _required(self, found: Object | Exception | None, entity_id: str, seq: int) -> OplogEntry:
        key = self.key(entity_id, seq)
        if isinstance(found, Exception):
            raise found
        if found is None:
            raise Corrupt("a gap in the oplog", key=key, hint="run `worm verify`")
        return self._parse(found, key, seq)

    def _parse(self, found: Object, key: str, seq: int) -> OplogEntry:
        entry = OplogEntry.from_bytes(found.body, key)
        if entry.seq != seq:
            raise Corrupt(f"holds seq {entry.seq}, its name says {seq}", key=key)
        return entry
