"""The oplog of a model's entities: append by put-if-absent, find the tail, replay, and find a moment.

Invariants: entries are numbered from 1 without gaps and never rewritten; one PutObject with `If-None-Match: *` decides
a seq. Finding the tail gallops from a hint (1, 2, 4 … ahead) and bisects, so it costs O(log distance) reads and no
LIST. *Checkpoints*: every `every`-th update entry also carries the whole document, so reading a state of any age takes
at most `every` reads, however long the history is.

*Time marks* are `<oplog of the entity>/.times/<name>`, one for every `every`-th entry, whatever its op. The name holds
the entry's time and seq (`layout.py`), so one LIST of one key finds the newest marked entry that is not after a time.
Marks are hints: a missing, foreign or false one costs requests, never correctness. They are written once, after their
entry, by any process that finds the entry in place. An archive has one mark, which replaces those of its entries.

*Archives*: if the schema has `archiveAfter`, old entries of an entity may be in one object instead of separate ones, as
framed lines (`formats/frames.py`) of their own bytes. An archive holds all entries from `first` to `last`; its name has
these numbers and the start of the SHA-256 of its content. It is written before any of the entries is deleted, and never
changes. So a missing entry is either in an archive that a later LIST shows, or never existed. Entry 1 and the newest
entries are never deleted. Before a missing entry counts as missing, it is looked up in the archives. Because its name
is free again, an append on an old head checks afterward that the seq is not archived. Nothing younger than `MIN_AGE` is
ever archived, so nobody looks for archives behind an entry that is younger than half of that. Here clocks matter: the
clock of a compaction must not be ahead of a reader's by more than half a day. S3 refuses requests from a clock that is
wrong by 15 minutes. An *archive view* is what one call sees: it lists only if an entry is missing, reads an archive
once, and then trusts that archive more than single entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timedelta
from itertools import chain, takewhile

from worm.clock import Clock, SystemClock, iso_seconds
from worm.collections.entries import SEQ_MAX, Document, Head, OplogEntry
from worm.collections.layout import ArchiveName, KeyInfo, KeyKind, StorageResolver, digest_of, mark_name, seconds_left
from worm.collections.trash import delete_unchanged
from worm.errors import Corrupt, Denied, Invalid
from worm.formats import dumps, frames
from worm.store import IfAbsent, Lost, Object, Put, Read, Store, Won
from worm.values import dataclass

MIN_AGE = timedelta(days=1)
MEND = (
    "restore an earlier version of the object, or set it aside with `worm repair --set-aside KEY`; `worm why KEY` "
    "says which one helps"
)
PUT_BACK = (
    "restore the missing entries from old versions of their objects or a backup; `worm why KEY` says what else helps"
)


@dataclass(frozen=True, slots=True)
class Archive:
    """The entries of an archive, and their own bytes."""

    name: ArchiveName
    key: str
    entries: Sequence[OplogEntry]
    bodies: Sequence[bytes]

    def entry(self, seq: int) -> OplogEntry:
        return self.entries[seq - self.name.first]

    @classmethod
    def from_bytes(cls, body: bytes, name: ArchiveName, key: str) -> Archive:
        """`Corrupt`, naming the archive, unless it holds exactly what its name says."""
        lines = frames.decode_whole(body, key=key)
        if digest_of(body) != name.digest:
            raise Corrupt("its content does not match its name", key=key, hint="run `worm verify`")
        entries = OplogEntry.from_shapes([line.value for line in lines], key)
        is_whole = len(entries) == name.last - name.first + 1
        if not is_whole or any(entry.seq != seq for seq, entry in enumerate(entries, start=name.first)):
            raise Corrupt(f"does not hold entries {name.first} to {name.last}", key=key)
        return cls(name, key, entries, [line.body for line in lines])


@dataclass(frozen=True, slots=True)
class Seqs:
    """The entries of one entity that a listing shows: single ones by their numbers, archives by their ranges. Its size
    depends on the listing, not on the numbers in the names."""

    single: set[int] = field(default_factory=set)
    archives: list[ArchiveName] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The highest number (0 if there is none)."""
        return max(max(self.single, default=0), max((name.last for name in self.archives), default=0))

    @property
    def missing(self) -> tuple[int, int] | None:
        """The first gap, as its first and last number. The newest entry is never archived, so if an archive ends the
        history, the entries after it are missing."""
        end = 0
        if not self.archives and len(self.single) == max(self.single, default=0):
            return None
        spans = [*((seq, seq) for seq in self.single), *((name.first, name.last) for name in self.archives)]
        for first, last in sorted(spans):
            if first > end + 1:
                return end + 1, first - 1
            end = max(end, last)
        return None if end in self.single or end == 0 else (end + 1, end + 1)

    def add(self, info: KeyInfo) -> None:
        """Add what the name of one oplog object says."""
        packed = info.archive
        if packed is not None:
            self.archives.append(packed)
        elif info.kind is KeyKind.OPLOG and info.seq is not None:
            self.single.add(info.seq)

    def __contains__(self, seq: int) -> bool:
        return seq in self.single or self.is_archived(seq)

    def is_archived(self, seq: int) -> bool:
        return any(seq in name for name in self.archives)

    def before(self, seq: int) -> int:
        """The highest number before this one (0 if there is none)."""
        single = max((one for one in self.single if one < seq), default=0)
        return max(single, max((min(name.last, seq - 1) for name in self.archives if name.first < seq), default=0))

    def __len__(self) -> int:
        """How many entries there are; an entry that is both single and archived counts once."""
        archived, end = 0, 0
        for name in sorted(self.archives, key=lambda name: name.first):
            archived += max(0, name.last - max(name.first, end + 1) + 1)
            end = max(end, name.last)
        return archived + sum(not self.is_archived(seq) for seq in self.single)


def _gap(first: int, last: int, key: str) -> Corrupt:
    what = f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
    return Corrupt(f"a gap in the oplog: {what}", key=key, hint=PUT_BACK)


def in_the_way(refused: Invalid, key: str) -> Corrupt:
    """The error for an entry's key that the store refuses to read or write: in a directory, the path may not be a
    regular file. It damages this history, but no other document."""
    return Corrupt(refused.message, key=key, hint=refused.hint or MEND)


class Archives:
    """The archives of one model's entities."""

    def __init__(self, store: Store, resolver: StorageResolver, model: str) -> None:
        self._store = store
        self._resolver = resolver
        self._model = model

    def key(self, entity_id: str, name: ArchiveName) -> str:
        return self._resolver.archive_path(self._model, entity_id) + name.file

    def names(self, entity_id: str) -> list[ArchiveName]:
        """All archives of an entity: one LIST."""
        infos = (self._resolver.parse(one.key) for one in self._store.list(self._path(entity_id)))
        found = (ArchiveName.parse(info.name or "") for info in infos if info.kind is KeyKind.ARCHIVE)
        return sorted((name for name in found if name is not None), key=lambda name: (name.first, name.last))

    def last(self, entity_id: str) -> int:
        """The newest archived seq (0 if there is none)."""
        return max((name.last for name in self.names(entity_id)), default=0)

    def load(self, entity_id: str, name: ArchiveName) -> Archive | None:
        key = self.key(entity_id, name)
        found = self._store.get(key)
        return None if found is None else Archive.from_bytes(found.body, name, key)

    def view(self, entity_id: str) -> ArchiveView:
        return ArchiveView(self, entity_id)

    def differences(self, entity_id: str) -> Iterator[Corrupt]:
        """The problems with an entity's archives: damage, and entries that still exist beside them and differ."""
        single: dict[int, str] = {}
        names: list[ArchiveName] = []
        for listed in self._store.list(self._resolver.oplog_path(self._model, entity_id)):
            info = self._resolver.parse(listed.key)
            name = ArchiveName.parse(info.name or "")
            if info.kind is KeyKind.OPLOG and info.seq is not None:
                single[info.seq] = listed.key
            elif info.kind is KeyKind.ARCHIVE and name is not None:
                names.append(name)
        for name in names:
            yield from self._differences(entity_id, name, single)

    def _differences(self, entity_id: str, name: ArchiveName, single: Mapping[int, str]) -> Iterator[Corrupt]:
        try:
            archive = self.load(entity_id, name)
        except Corrupt as damage:
            yield damage
            return
        if archive is None:
            return  # deleted by hand after the listing: the entries that it held are missing now
        seqs = sorted(seq for seq in single if seq in name)
        found = self._store.get_many([Read(single[seq]) for seq in seqs])
        for seq, item in zip(seqs, found, strict=True):
            if isinstance(item, Exception):
                raise item
            if item is not None and item.body != archive.bodies[seq - name.first]:
                yield Corrupt("differs from the archived entry", key=item.key, hint="the archive takes precedence")

    def _path(self, entity_id: str) -> str:
        return self._resolver.archive_path(self._model, entity_id)


class ArchiveView:
    """The archives of one entity that one call has seen. Not thread-safe."""

    def __init__(self, archives: Archives, entity_id: str) -> None:
        self._archives = archives
        self._id = entity_id
        self._names: list[ArchiveName] = []
        self._read: Archive | None = None

    def at_hand(self, seq: int) -> Archive | None:
        """The archive that was read last, if it holds the entry. No request."""
        return self._read if self._read is not None and seq in self._read.name else None

    def known(self, seq: int) -> Archive | None:
        """The archive with this entry, if it is already known. Then there is no need to request its single object."""
        return self.holding(seq) if any(seq in name for name in self._names) else self.at_hand(seq)

    def open(self, name: ArchiveName) -> Archive | None:
        """Read this archive, if it exists. One request."""
        self._read = self._archives.load(self._id, name) or self._read
        return self.at_hand(name.first)

    def holding(self, seq: int) -> Archive | None:
        """The archive with this entry, or None if no archive has it. Call it after the entry was found missing."""
        archive = self.at_hand(seq)
        if archive is None and not any(seq in name for name in self._names):
            self._names = self._archives.names(self._id)
        if archive is None:
            longest = max((name for name in self._names if seq in name), key=lambda name: name.last, default=None)
            archive = None if longest is None else self.open(longest)
            if longest is not None and archive is None:
                raise Corrupt("an archive was listed, but is gone", key=self._archives.key(self._id, longest))
        return archive

    def entry(self, seq: int) -> OplogEntry | None:
        archive = self.holding(seq)
        return None if archive is None else archive.entry(seq)


def may_be_archived(ts: str, now: datetime) -> bool:
    """Whether an entry after one of this time can be archived. The age of a time in the future is unknown."""
    return not iso_seconds(now - MIN_AGE / 2) < ts <= iso_seconds(now + MIN_AGE / 2)


PAGE = 100


@dataclass(frozen=True, slots=True)
class Appended:
    """Our entry holds the seq."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Another entry holds the seq."""

    entry: OplogEntry


@dataclass(frozen=True, slots=True)
class StateAt:
    """The document after an entry (None if it was deleted then)."""

    document: Document | None


class Oplog:
    """The oplogs of one model."""

    def __init__(
        self,
        store: Store,
        resolver: StorageResolver,
        model: str,
        *,
        every: int = 10,
        has_archives: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.every = every
        self._has_archives = has_archives
        self.marks = TimeMarks(store, resolver, model, every)
        self.archives = Archives(store, resolver, model)
        self._store = store
        self._resolver = resolver
        self._model = model
        self._clock = clock or SystemClock()

    def key(self, entity_id: str, seq: int) -> str:
        return self._resolver.oplog_key(self._model, entity_id, seq)

    def read(self, entity_id: str, seq: int) -> OplogEntry | None:
        return self._seek(entity_id, seq, self.archives.view(entity_id))

    def successor(self, entity_id: str, seq: int, ts: str, view: ArchiveView | None = None) -> OplogEntry | None:
        """The entry after entry `seq`, which was made at `ts`."""
        found = self._stored(entity_id, seq + 1)
        if found is None and self._may_be_archived(ts):
            return (view or self.archives.view(entity_id)).entry(seq + 1)
        return found

    def append(self, entity_id: str, entry: OplogEntry, head: Head | None = None) -> Appended | Taken:
        """Put-if-absent of the entry under its seq; if another entry is there, it is returned instead of an error.
        `head` is the entry that it follows: an old head may be long outdated, and the seq may be free because its entry
        is in an archive."""
        key = self.key(entity_id, entry.seq)
        try:
            outcome = self._store.put_if_absent(key, entry.to_bytes())
        except Invalid as refused:
            raise in_the_way(refused, key) from refused
        if head is not None and self._may_be_archived(head.ts):
            archived = self.archives.view(entity_id).entry(entry.seq)
            if archived is not None:
                self._withdraw(key, outcome, archived)
                return Taken(archived)
        if isinstance(outcome, Won):
            return Appended()
        return Taken(self._parse(outcome.current, key, entry.seq))

    def append_many(self, entries: Sequence[tuple[str, OplogEntry, Head | None]]) -> list[str]:
        """`append` for entries of different entities together: id, entry, and the entry that it follows. Returns the
        ids whose entry now holds its seq. Entries that may be behind an archive are not tried."""
        fit = [
            (entity_id, Put(self.key(entity_id, entry.seq), entry.to_bytes(), IfAbsent()))
            for entity_id, entry, head in entries
            if head is None or not self._may_be_archived(head.ts)
        ]
        outcomes = self._store.put_many([put for _, put in fit])
        return [entity_id for (entity_id, _), outcome in zip(fit, outcomes, strict=True) if isinstance(outcome, Won)]

    def _withdraw(self, key: str, outcome: Won | Lost, archived: OplogEntry) -> None:
        """Remove our entry, or one from another writer that was just as late and died here, but not an entry that is
        about to be deleted anyway. A role without delete permission leaves it: the archive counts, and `worm verify`
        reports it."""
        found = outcome if isinstance(outcome, Won) else outcome.current
        if isinstance(outcome, Lost) and outcome.current.body == archived.to_bytes():
            return
        with suppress(Denied):
            delete_unchanged(self._store, key, found.etag, found.version_id)

    def tail(self, entity_id: str, *, at_least: int = 0) -> OplogEntry | None:
        """The newest entry, which is never archived. `at_least` is a seq that is known to exist (0 if none is
        known)."""
        low, newest = self._last(at_least, lambda seq, before: self._stored(entity_id, seq), lambda entry: True)
        if newest is None and low > 0:
            newest = self._stored(entity_id, low)
        if low > 0 and self._has_archives and (newest is None or self._may_be_archived(newest.ts)):
            archived = self.archives.last(entity_id)
            if archived > low:
                return self.tail(entity_id, at_least=archived)
            if newest is None and archived == low:
                newest = self._stored(entity_id, low + 1)
        if newest is None and low > 0:
            raise Corrupt("an oplog entry that existed before is gone", key=self.key(entity_id, low))
        return newest

    def is_end(self, entity_id: str, last: int) -> bool:
        """Whether entry `last` (0: none) is the newest one, or the next one follows it, as far as the names around it
        show. If not, the next number is free because entries were deleted. One LIST of three keys. Names sort as text,
        so deletions around entry 10,000 may go unnoticed."""
        path, start = self._resolver.oplog_path(self._model, entity_id), max(last - 2, 0)
        infos = (
            self._resolver.parse(listed.key)
            for listed in self._store.list(path, start_after=f"{path}{start:04d}.json", limit=3)
        )
        found = {info.seq for info in infos if info.kind is KeyKind.OPLOG and info.seq is not None}
        has_previous = last <= 1 or last - 1 in found or len(f"{last - 1:04d}") < len(f"{last:04d}")
        return has_previous and min((seq for seq in found if seq > last), default=last + 1) == last + 1

    def newest(self, entity_id: str) -> OplogEntry | None:
        """The newest entry, from a listing of all. `Corrupt` if nothing proves that it is the newest."""
        seqs = self.seqs(entity_id)
        if not seqs.last:
            return None
        seq = self.newest_seq(entity_id, seqs)
        return self.newest_of(entity_id, seqs, seq, self._get(self.key(entity_id, seq)))

    def newest_seq(self, entity_id: str, seqs: Seqs) -> int:
        """The seq of the newest entry. Older entries may be missing. The entry right before it must exist: that proves
        that it continues a history and is not an object with an arbitrary number as its name. Otherwise `Corrupt`."""
        newest = max(seqs.single, default=0)
        if newest == 0:
            raise Corrupt("there are archives, but no single entries", key=self.key(entity_id, 1), hint=PUT_BACK)
        if newest > 1 and newest - 1 not in seqs:
            raise _gap(seqs.before(newest) + 1, newest - 1, self.key(entity_id, newest))
        return newest

    def newest_of(self, entity_id: str, seqs: Seqs, seq: int, found: Object | None) -> OplogEntry:
        """The newest entry, as read. `Corrupt` if it is not an entry, or if archives hold newer ones: the newest entry
        is never archived."""
        key = self.key(entity_id, seq)
        if found is None:
            raise Corrupt("an oplog entry was listed, but is gone or too large", key=key, hint=MEND)
        entry = self._parse(found, key, seq)
        archived = max((name for name in seqs.archives), key=lambda name: name.last, default=None)
        if archived is not None and archived.last >= seq and self._may_be_archived(entry.ts):
            what = f"no entry follows the newest archive, {archived.file}"
            raise Corrupt(what, key=self.archives.key(entity_id, archived), hint=PUT_BACK)
        return entry

    def seqs(self, entity_id: str) -> Seqs:
        """What a listing shows of one entity."""
        seqs = Seqs()
        for listed in self._store.list(self._resolver.oplog_path(self._model, entity_id)):
            seqs.add(self._resolver.parse(listed.key))
        return seqs

    def _last(
        self, low: int, read: Callable[[int, OplogEntry | None], OplogEntry | None], fits: Callable[[OplogEntry], bool]
    ) -> tuple[int, OplogEntry | None]:
        """The last seq that fits, given that `low` and all before it fit (0: none known), with its entry if it was
        read. `read` gets the newest entry that was read before the one to read, if there is one."""
        newest: OplogEntry | None = None
        step = 1
        while (probe := read(low + step, newest)) is not None and fits(probe):
            newest, low, step = probe, low + step, step * 2
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            probe = read(middle, newest)
            if probe is None or not fits(probe):
                high = middle
            else:
                newest, low = probe, middle
        return low, newest

    def entries(
        self, entity_id: str, *, first: int = 1, last: int | None = None, view: ArchiveView | None = None
    ) -> Iterator[OplogEntry]:
        """Entries in order, read in concurrent pages, up to `last` or the end."""
        view = view or self.archives.view(entity_id)
        seq, ts, is_end = first, "", False
        while not is_end and (last is None or seq <= last):
            run, is_end = self._run(entity_id, seq, last, ts, view)
            yield from run
            if run:
                seq, ts = run[-1].seq + 1, run[-1].ts

    def page(self, entity_id: str, before_seq: int, limit: int) -> list[OplogEntry]:
        """Up to `limit` entries before a seq, in order; those seqs must exist."""
        first = max(1, before_seq - limit)
        page = list(self.entries(entity_id, first=first, last=before_seq - 1))
        if len(page) < before_seq - first:
            raise self.gap(entity_id, first + len(page))
        return page

    def newest_first(self, entity_id: str, tail: int, view: ArchiveView | None = None) -> Iterator[OplogEntry]:
        """Entries from `tail` backward, read in concurrent pages of one checkpoint distance. Whether a missing one is
        archived is only checked when its turn comes."""
        view = view or self.archives.view(entity_id)
        page: dict[int, Object | None] = {}
        for seq in range(tail, 0, -1):
            archive = view.known(seq)
            if archive is None and seq not in page:
                page = self._objects(entity_id, range(max(1, seq - self.every + 1), seq + 1))
            found = None if archive is not None else page[seq]
            if found is not None:
                yield self._parse(found, found.key, seq)
                continue
            archive = archive or view.holding(seq)
            if archive is None:
                raise self.gap(entity_id, seq)
            yield archive.entry(seq)

    def at_seq(self, entity_id: str, seq: int) -> StateAt | None:
        """The document as of an entry; None if there is no such entry. At most 1 + `every` requests, or, for an
        archived entry, 3 plus one for each earlier archive that has to be read."""
        view = self.archives.view(entity_id)
        entry = self._seek(entity_id, seq, view)
        return None if entry is None else StateAt(self.state_at(entity_id, seq, [entry], view))

    def state_at(
        self, entity_id: str, seq: int, read: Sequence[OplogEntry] = (), view: ArchiveView | None = None
    ) -> Document | None:
        """The document as of an entry (None if it was deleted then): goes back to the newest whole document, then
        forward. `read`: entries up to that one that need not be read again."""
        forward: list[OplogEntry] = []
        older = self.newest_first(entity_id, read[0].seq - 1 if read else seq, view)
        for entry in chain(reversed(read), older):
            forward.append(entry)
            if entry.is_base:
                break
        document: Document | None = None
        for entry in reversed(forward):
            document = entry.applied_to(document, self.key(entity_id, entry.seq))
        return document

    def at_time(self, entity_id: str, ts: str, *, before: int | None = None) -> tuple[int, Document | None]:
        """The newest seq whose time is not after `ts` (0: none), and the document as of it (None: deleted then).
        `before`: a seq whose entry is known to be later. It saves requests: for a short history, the LIST.

        Times never decrease within an entity. The entries from the newest mark of that time to the next one, or the
        archive that the mark names, contain both the answer and a whole document: 2 + `every` requests. They also prove
        the answer: the first one is not after `ts`, and the next one is later or does not exist. If they do not (a mark
        is missing), the search continues there.
        """
        view, end = self.archives.view(entity_id), SEQ_MAX if before is None else before - 1
        marked, name = (0, None) if end <= self.every else self.marks.find(entity_id, ts)
        first = max(marked, 1)
        archive = None if name is None else view.open(name)
        last = min(first + self.every - 1 if archive is None else archive.name.last, end)
        entries = self.entries(entity_id, first=first, last=last, view=view)
        page = list(takewhile(lambda entry: entry.ts <= ts, entries))
        seq = page[-1].seq if page else 0
        if marked and not page:
            seq = self.seq_at_time(entity_id, ts, at_least=0)  # the mark is false
        elif seq == last and last < end:
            after = self.successor(entity_id, last, page[-1].ts, view)
            if after is not None and after.ts <= ts:
                seq, page = self.seq_at_time(entity_id, ts, at_least=after.seq), []
        return seq, self.state_at(entity_id, seq, page, view)

    def seq_at_time(self, entity_id: str, ts: str, *, at_least: int) -> int:
        """The newest seq whose time is not after `ts`; the time of `at_least` is known not to be (0: none known)."""
        view = self.archives.view(entity_id)
        return self._last(
            at_least, lambda seq, before: self._seek(entity_id, seq, view, before), lambda entry: entry.ts <= ts
        )[0]

    def seq_before(self, entity_id: str, ts: str, *, before: int) -> int:
        """The same among the entries before a seq. For a recent time, one or two requests."""
        newest = self.read(entity_id, before - 1) if before > 1 else None
        if before < 2 or (newest is not None and newest.ts <= ts):
            return max(0, before - 1)
        marked = min(self.marks.newest(entity_id, ts), before - 1)
        return min(self.seq_at_time(entity_id, ts, at_least=marked), before - 1)

    # Single entries and archives

    def _stored(self, entity_id: str, seq: int) -> OplogEntry | None:
        """The entry, if it has its own object."""
        if seq > SEQ_MAX:
            return None
        key = self.key(entity_id, seq)
        found = self._get(key)
        return None if found is None else self._parse(found, key, seq)

    def _get(self, key: str) -> Object | None:
        try:
            return self._store.get(key)
        except Invalid as refused:
            raise in_the_way(refused, key) from refused

    def _seek(self, entity_id: str, seq: int, view: ArchiveView, before: OplogEntry | None = None) -> OplogEntry | None:
        """The entry, wherever it is. `before`: an earlier entry, whose age may save the search for archives."""
        archive = view.known(seq)
        if archive is not None:
            return archive.entry(seq)
        found = self._stored(entity_id, seq)
        if found is not None or seq == 1 or not self._may_be_archived("" if before is None else before.ts):
            return found
        return view.entry(seq)

    def _may_be_archived(self, ts: str) -> bool:
        """Whether an entry after one of this time ("": any time) can be in an archive."""
        return self._has_archives and may_be_archived(ts, self._clock.now())

    def _run(
        self, entity_id: str, first: int, last: int | None, ts: str, view: ArchiveView
    ) -> tuple[list[OplogEntry], bool]:
        """Some entries starting at `first`, and whether the history ends there. `ts` is the time of the entry
        before."""
        run: list[OplogEntry] = []
        archive = view.known(first)
        if archive is None:
            run, missing = self._page(entity_id, first, last)
            ts = run[-1].ts if run else ts
            if missing is None:
                return run, False
            if missing > 1 and self._may_be_archived(ts):
                archive = view.holding(missing)
            if archive is None:
                return run, True
        start, upper = first + len(run), archive.name.last if last is None else min(last, archive.name.last)
        run = [archive.entry(entry.seq) if entry.seq in archive.name else entry for entry in run]
        return [*run, *(archive.entry(seq) for seq in range(start, upper + 1))], False

    def _page(self, entity_id: str, first: int, last: int | None) -> tuple[list[OplogEntry], int | None]:
        """Entries starting at `first` that have objects, and the seq of the first that has none (None: the whole page
        has)."""
        upper = first + PAGE - 1 if last is None else min(first + PAGE - 1, last)
        if last is None:  # most histories are short: never request many more than were found so far
            upper = min(upper, first + max(3, 2 * (first - 1) - 1) - 1)
        run: list[OplogEntry] = []
        for seq, item in self._objects(entity_id, range(first, upper + 1)).items():
            if item is None:
                return run, seq
            run.append(self._parse(item, item.key, seq))
        return run, None

    def _objects(self, entity_id: str, seqs: range) -> dict[int, Object | None]:
        objects: dict[int, Object | None] = {}
        for seq, item in zip(seqs, self._store.get_many([Read(self.key(entity_id, seq)) for seq in seqs]), strict=True):
            if isinstance(item, Exception):
                raise in_the_way(item, self.key(entity_id, seq)) if isinstance(item, Invalid) else item
            objects[seq] = item
        return objects

    def gap(self, entity_id: str, first: int, last: int | None = None) -> Corrupt:
        """The error for entries that are missing between others; without `last`, for a single one."""
        return _gap(first, first if last is None else last, self.key(entity_id, first))

    def _parse(self, found: Object, key: str, seq: int) -> OplogEntry:
        """`Corrupt`, with a hint for a fix, if it is not the entry that its name says."""
        try:
            entry = OplogEntry.from_bytes(found.body, key)
            if entry.seq != seq:
                raise Corrupt(f"holds seq {entry.seq}, but its name says {seq}", key=key)
        except Corrupt as damage:
            damage.hint = MEND
            raise
        return entry


class TimeMarks:
    """The time marks of one model."""

    def __init__(self, store: Store, resolver: StorageResolver, model: str, every: int) -> None:
        self._store = store
        self._resolver = resolver
        self._model = model
        self._every = every

    def put(self, entity_id: str, entry: OplogEntry) -> None:
        """Mark the entry if its seq needs a mark. Repeating it for the same entry does nothing."""
        name = mark_name(entry.ts, entry.seq) if entry.seq % self._every == 0 else None
        if name is not None:
            key = self._resolver.time_mark_key(self._model, entity_id, name)
            self._store.put_if_absent(key, dumps({"seq": entry.seq, "ts": entry.ts}))

    def newest(self, entity_id: str, ts: str) -> int:
        """The seq of the newest mark that is not after a time (0 if there is none). One request."""
        return self.find(entity_id, ts)[0]

    def find(self, entity_id: str, ts: str) -> tuple[int, ArchiveName | None]:
        """`newest`, and the archive that begins with that entry if the mark belongs to an archive."""
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

    def missing(self, recorded: Mapping[str, Seqs], marked: Mapping[str, Set[int]]) -> list[tuple[str, int]]:
        """The id and seq of recorded entries that need a mark but have none. Archived entries need none."""
        return [
            (entity_id, seq)
            for entity_id, seqs in sorted(recorded.items())
            for seq in sorted(seqs.single - marked.get(entity_id, frozenset()))
            if seq % self._every == 0 and not seqs.is_archived(seq)
        ]
