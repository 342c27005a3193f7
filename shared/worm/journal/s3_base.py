"""Compacting a commit log of documents: its state up to a slot as one object, the *base*, and then the slots may go.

The base holds the minimal form of the state (`state.minimal`), framed, numbered from 0; its name carries the slot up to
which it counts and the hash of its bytes. It is written, read back and compared; then the root names it, by
compare-and-swap; only then slots up to it may be collected, when they are old enough. A crash at any step leaves the
old base or none named, and an object that nobody names.

Reading state: the base that the root names, then the segments after its slot. A transaction whose id was there before
is left out: its caller did not know, and committed it again. The base keeps the ids of the newest. A log whose records
are no documents (the pages of a page store) has no such form and is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from worm.clock import Clock, Ids, SystemClock
from worm.codec.frames import Frame, decode_whole, encode
from worm.codec.strict_json import JsonObject
from worm.errors import Conflict, Corrupt, Expired, Invalid, NotFound
from worm.journal.records import Abort, Begin, Change, Commit, Record, record_of
from worm.journal.state import Draft, Fold, State, minimal
from worm.journal.tools import CompactReport
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.log.root import BY_HAND, Root, root_file
from worm.log.segment import VERIFY, Segment, Transaction
from worm.store.base import Store

MEMBER = "base"
RECENT_MAX = 1000
"""Ids of transactions that a base keeps."""


@dataclass(frozen=True, slots=True)
class Base:
    """What the root says of it: the last slot and LSN that it covers, records and bytes, what they hash to, and the ids
    of the newest transactions in it."""

    slot: int
    lsn: int
    records: int
    size: int
    digest: str
    recent: tuple[str, ...] = ()

    def shape(self) -> JsonObject:
        return {
            "slot": self.slot,
            "lsn": self.lsn,
            "records": self.records,
            "size": self.size,
            "sha256": self.digest,
            "recent": list(self.recent),
        }

    @classmethod
    def of(cls, root: Root | None, key: str) -> Base | None:
        shape = None if root is None else root.members.get(MEMBER)
        if shape is None:
            return None
        names = ("slot", "lsn", "records", "size")
        numbers = [shape.get(name) if isinstance(shape, dict) else None for name in names]
        digest = shape.get("sha256") if isinstance(shape, dict) else None
        recent = shape.get("recent") if isinstance(shape, dict) else None
        is_whole = all(type(number) is int for number in numbers) and isinstance(recent, list)
        if not is_whole or not isinstance(digest, str):
            raise Corrupt("its base is not one", key=key, hint=BY_HAND)
        slot, lsn, records, size = (number for number in numbers if type(number) is int)
        return cls(slot, lsn, records, size, digest, tuple(map(str, recent if isinstance(recent, list) else ())))


@dataclass
class Loaded:
    """The state of a log, the last segment that is in it, and the ids of its transactions. `repeated` counts those that
    were left out."""

    base: Base | None
    fold: Fold
    last: Segment | None = None
    seen: dict[str, None] = field(default_factory=dict)
    repeated: int = 0

    def add(self, segment: Segment, key: str) -> None:
        if self.last is None and self.base is not None and segment.lsn <= self.base.lsn:
            what = f"begins with lsn {segment.lsn}, and its base ends with {self.base.lsn}"
            raise Corrupt(what, key=key, hint=VERIFY)
        for transaction in segment.transactions():
            if transaction.id in self.seen:
                self.repeated += 1
            else:
                add_transaction(self.fold, transaction, segment.lsn, key)
                self.seen[transaction.id] = None
        self.last = segment


class DocumentLog:
    """The state of a commit log of documents, and its compaction."""

    def __init__(
        self,
        store: Store,
        db_id: str,
        *,
        config: LogConfig | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.keys = DbKeys(db_id)
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self._root = root_file(store, self.keys, clock=self._clock, ids=self._ids)
        self._reader = LogReader(store, db_id, clock=self._clock, ids=self._ids)
        self._collector = LogCollector(store, db_id, config=config, clock=self._clock, ids=self._ids)

    def base(self) -> Base | None:
        return Base.of(self._root.read(), self.keys.root)

    def base_frames(self, base: Base) -> list[Frame]:
        """`Corrupt` unless the object is what the root says."""
        key = self.keys.base(base.slot, base.digest[:16])
        found = self._store.get(key)
        if found is None:
            raise Corrupt("the base of the log is gone", key=key, hint=BY_HAND)
        if hashlib.sha256(found.body).hexdigest() != base.digest:
            raise Corrupt("the base of the log is damaged", key=key, hint=BY_HAND)
        return decode_whole(found.body, key=key, first_lsn=0)

    def load(self) -> Loaded:
        """The state now."""
        while True:
            base = self.base()
            try:
                return self._loaded(base)
            except (Expired, Corrupt):
                if self.base() == base:
                    raise
                # it was compacted while we read

    def _loaded(self, base: Base | None) -> Loaded:
        loaded = Loaded(base, Fold(), seen=dict.fromkeys(() if base is None else base.recent))
        if base is not None:
            for frame in self.base_frames(base):
                loaded.fold.add(record_of(frame, self.keys.base(base.slot, base.digest[:16])))
        for segment in self._reader.segments(0 if base is None else base.slot):
            loaded.add(segment, self.keys.slot(segment.slot))
        return loaded

    def compact(self) -> CompactReport:
        """Make a base of all that is in the log, and collect what is old. Beside a writer at work."""
        loaded = self.load()
        size_before = self._log_size() + (0 if loaded.base is None else loaded.base.size)
        if loaded.last is not None:
            recent = tuple(loaded.seen)[-RECENT_MAX:]
            self._flip(self._written(loaded.fold.state, loaded.last, recent))
        now = self.base()
        if now is not None:
            self._collector.run(now.slot)
            self._sweep(now)
        after = (0, 0) if now is None else (now.records, now.size)
        return CompactReport(self._store.url, loaded.fold.records, size_before, after[0], after[1] + self._log_size())

    def _sweep(self, named: Base) -> None:
        """Delete bases that no root has named for long enough."""
        keep = self.keys.base(named.slot, named.digest[:16])
        for listed in self._collector.old_objects(self.keys.bases):
            if listed.key != keep:
                self._store.delete(listed.key)

    def _written(self, state: State, last: Segment, recent: tuple[str, ...]) -> Base:
        """The base of this state, stored and read back."""
        lines = [encode(Record(lsn, 0, change).to_json()) for lsn, change in enumerate(minimal(state))]
        body = b"".join(lines)
        base = Base(last.slot, last.end_lsn, len(lines), len(body), hashlib.sha256(body).hexdigest(), recent)
        self._store.put_if_absent(self.keys.base(base.slot, base.digest[:16]), body)
        fold = Fold()
        for frame in self.base_frames(base):
            fold.add(record_of(frame, self.keys.base(base.slot, base.digest[:16])))
        differences = state.differences(fold.state)
        if differences:
            raise Corrupt(f"a base replays to another state: {differences[0]}", key=self.keys.root, hint=VERIFY)
        return base

    def _flip(self, base: Base) -> None:
        def flipped(root: Root | None) -> Root | None:
            if root is None:
                raise Corrupt("the root is gone", key=self.keys.root, hint=BY_HAND)
            known = Base.of(root, self.keys.root)
            if known is not None and known.slot >= base.slot:
                return None
            return replace(root, members={**root.members, MEMBER: base.shape()})

        self._root.update(flipped)

    def _log_size(self) -> int:
        return sum(listed.size for listed in self._store.list(self.keys.log))


def add_transaction(fold: Fold, transaction: Transaction, lsn: int, key: str) -> None:
    """A transaction into a state, as a whole."""
    changes = [change_of(record, lsn, key) for record in transaction.records]
    draft = Draft(fold.state)
    try:
        for change in changes:
            draft.add(change)
    except (Conflict, NotFound, Invalid) as error:
        what = f"transaction {transaction.id} does not fit: {error.message}"
        raise Corrupt(what, key=key, hint="the log was written by somebody who did not check") from error
    for change in changes:
        fold.state.apply(change)
    fold.records += len(changes)
    fold.committed += 1


def change_of(record: JsonObject, lsn: int, key: str) -> Change:
    """A record of a commit log as a change of documents; `Invalid` if it is none."""
    try:
        op = Record.from_json({"lsn": lsn, "ts": 0, **record}).op
    except Invalid as error:
        raise Invalid(
            f"a record after LSN {lsn} is no change of documents: {error.message}",
            key=key,
            hint="a log of other records has no state of documents, and cannot be compacted so",
        ) from error
    if isinstance(op, Begin | Commit | Abort):
        raise Invalid("a commit log has no begin, commit or abort: each transaction is whole", key=key)
    return op


def base_lines(log: DocumentLog, base: Base | None) -> Iterator[tuple[str, Frame]]:
    """The records of a base, if there is one, with its key."""
    if base is not None:
        for frame in log.base_frames(base):
            yield log.keys.base(base.slot, base.digest[:16]), frame
