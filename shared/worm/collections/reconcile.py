"""reconcile(entity): brings the oplog up to date with the bucket. Idempotent, independent of order, safe to run
concurrently.

It does not trust events. It reads the current object and, unless it can prove that exactly one version is new, lists
the key's versions; every version after the last recorded one becomes an entry, in order, by put-if-absent on the next
seq.

- *pending*: versions newer than the recorded head.
- *settling*: after the pending versions, the current object must be the one recorded last. If it is not (no versioning,
  or somebody removed single versions), one more entry records it.
- A version that is not a valid document gets no entry; the next entry's `metadata.skipped` names it. If it is the
  newest version, the outcome is `rejected`, with the reason, and the last valid state counts until a valid one arrives.
- A delete marker gets an entry only if it deletes what is recorded. If the document was recorded as deleted, came back
  and was deleted again before anybody looked, the marker changes nothing.
- A version from a commit older than the recorded delete landed late, after its sender gave up: no entry (`is_late`). A
  copy of such a version, or one that is current again, was put there by somebody: it gets an entry without a commit.
- Another writer's entry under our seq: if it records the same version, we are done. Otherwise the hint was stale, and
  we start again from the real tail.
- Entries that somebody deleted leave a gap, and a gap is never filled. A run without a hint checks the names around the
  end that it found before its first append; if that is not an end, it checks all names. The history continues after the
  newest entry; if nothing shows which one that is, it does not (`Corrupt`). A document with a single version that
  replaced nothing is taken for new without a check.

Time marks, snapshots and trash go with the oplog, as the model's definition requires. They follow their entries, and
are checked again whenever a version is seen again: that repairs what a crash after the entry left out.

Proof that exactly one version is new, without a listing: an SDK write carries the etag and version id that it read, and
its If-Match proves the etag. If that is the recorded head, nothing lies between them. Equal bytes may have come back
since then with the same etag, so events of other versions are a reason to list. A writer that reconciles its own write
(`written`) lists in any case, instead of reading what it already has. Another proof: a listing of the collection showed
a single version (`Survey`), and that is the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from worm.clock import Clock, iso_seconds
from worm.collections.difference import Diff
from worm.collections.documents import Documents
from worm.collections.entries import Document, Head, OplogEntry
from worm.collections.oplog import Oplog, Taken
from worm.collections.origins import (
    NO_PARENT,
    OP,
    OWN,
    PARENT,
    Origin,
    Origins,
    Standing,
    actor_of,
    entry_metadata,
    is_written_by_us,
    is_written_over,
)
from worm.collections.snapshots import Snapshots
from worm.collections.trash import Deletion, Trash, Trashed
from worm.errors import Invalid, Unavailable, WormError
from worm.formats import JsonObject, JsonValue
from worm.store import Object, Version, is_directory
from worm.values import dataclass

ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Sighting:
    """What an event knows: which version it is about, who made it, and the author's note. It only affects what that
    version's entry says about these."""

    version_id: str | None = None
    actor: str | None = None
    note: JsonObject | None = None
    is_removal: bool = False
    """The version was removed for good. A recorded version may be current again, so an old hint may look right."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a listing of the whole collection showed of an entity: its version, if it has only one, and whether it has
    no entry. Or all its versions, newest first, `listed` while the newest one was being written."""

    sole: Version | None = None
    is_unrecorded: bool = False
    listed: Sequence[Version] | None = None


UNLISTED = Survey()


@dataclass(slots=True)
class Reconciled:
    """What is now recorded about the entity. `state()` is the document of `head` (None: deleted or never recorded)."""

    id: str
    head: Head | None
    state: Callable[[], Document | None]
    appended: int = 0
    rejected: Invalid | None = None
    unkept: WormError | None = None
    """Why a time mark, a snapshot or the trash could not be written. The history continues; the message is delivered
    again."""
    is_late: bool = False  # the object is from a commit that a later one deleted


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry that is now in the oplog (ours, or another one for the same version), and the documents before and after
    it."""

    id: str
    entry: OplogEntry
    previous: Head | None
    before: Document | None
    after: Document | None


class _StartAgain(Exception):
    """The hint was stale, or a version disappeared while we looked."""

    def __init__(self, taken: OplogEntry | None) -> None:
        super().__init__()
        self.taken = taken


@dataclass
class Reconciler:
    """Reconciles entities of one model with an oplog. `known`: documents by etag that need not be read again."""

    documents: Documents
    oplog: Oplog
    snapshots: Snapshots
    trash: Trash
    origins: Origins
    clock: Clock
    known: Mapping[str, Document]

    def reconcile(
        self,
        entity_id: str,
        hint: Head | None,
        sightings: Sequence[Sighting] = (),
        *,
        recheck: bool = False,
        written: Object | None = None,
        survey: Survey = UNLISTED,
    ) -> Reconciled:
        """Record what is new about the entity. `hint` may be stale or missing. `recheck`: also check whether the newest
        entry has its snapshot or its place in the trash. `written`: the version that the caller has just stored.
        `survey`: what a listing showed; one of this entity alone counts for the first round."""
        found, is_sure = None, hint is not None or survey.is_unrecorded
        for _ in range(ROUNDS_MAX):
            try:
                result = _Round(self, entity_id, hint, sightings, survey, is_sure).run(written)
            except _StartAgain as again:
                survey = replace(survey, listed=None)
                if again.taken is not None:
                    found = self.oplog.tail(entity_id, at_least=again.taken.seq) or again.taken
                    hint, is_sure = Head.of(found), False
            else:
                if recheck and found is None and result.appended == 0 and result.head is not None:
                    found = self.oplog.read(entity_id, result.head.seq)
                self._follow_found(result, found)
                return result
        raise Unavailable(
            f"reconciling lost to another writer in each of {ROUNDS_MAX} rounds",
            key=self.documents.key(entity_id),
            hint="the queue delivers the message again",
        )

    def _follow_found(self, result: Reconciled, found: OplogEntry | None) -> None:
        """The newest entry was recorded earlier or by another process, which may have died before it wrote what belongs
        with it."""
        if found is None or result.head is None or result.head.seq != found.seq:
            return
        before = self.oplog.read(result.id, found.seq - 1) if found.op == "delete" else None
        previous = None if before is None else Head.of(before)
        after = None if found.op == "delete" else result.state()
        recorded = Recorded(result.id, found, previous, found.snapshot, after)
        failure = failure_of(partial(self.oplog.marks.put, result.id, found), partial(self.follow, recorded))
        result.unkept = result.unkept or failure

    def entry_after(
        self, entity_id: str, head: Head | None, written: Object, before: Document | None, after: Document
    ) -> OplogEntry | None:
        """The entry for the only version after `head`. None if it landed late and gets no entry."""
        this = _Round(self, entity_id, head, (), UNLISTED, is_sure=True)
        return this.entry_of(written, before, after)

    # What goes with the oplog

    def follow(self, recorded: Recorded) -> None:
        """Take the snapshot that is due after a write, or move a deleted document to the trash."""
        entry = recorded.entry
        if recorded.after is not None:
            if self.snapshots.is_due(entry.seq):
                self.snapshots.take(recorded.id, entry.seq, entry.ts, recorded.after)
        elif self.documents.definition.soft_delete and recorded.before is not None:
            self._put_into_trash(recorded, recorded.before)

    def _put_into_trash(self, recorded: Recorded, document: Document) -> None:
        """What the key held when it was deleted: the recorded document, or an invalid one that replaced it."""
        entry, previous = recorded.entry, recorded.previous
        etag, version_id = (None, None) if previous is None else (previous.etag, previous.version_id)
        body: bytes | None = None
        skipped = entry.metadata.get("skipped")
        newest = skipped[-1] if isinstance(skipped, list) and skipped else None
        if isinstance(newest, dict) and isinstance(newest.get("versionId"), str):
            key = self.documents.key(recorded.id)
            found = self.documents.store.get(key, version_id=str(newest["versionId"]))
            if found is not None:
                body, etag, version_id = found.body, found.etag, found.version_id
        self.trash.rescue(
            recorded.id,
            document,
            Deletion(etag or "", version_id, entry.actor, entry.ts),
            body=body,
            is_recorded=lambda other: self._is_recorded(recorded, other),
        )

    def _is_recorded(self, recorded: Recorded, there: Trashed) -> bool:
        """Whether the tombstone is older than the entry before this one, or one of the last entries names its etag."""
        if recorded.previous is not None and iso_seconds(there.since) < recorded.previous.ts:
            return True
        last = self.oplog.page(recorded.id, recorded.entry.seq, self.oplog.every)
        return any(entry.etag == there.tombstone.etag for entry in last)


class _Round:
    """One round of reconciling one entity: the head and its state move forward with each recorded version."""

    def __init__(
        self,
        owner: Reconciler,
        entity_id: str,
        hint: Head | None,
        sightings: Sequence[Sighting],
        survey: Survey,
        is_sure: bool,
    ) -> None:
        self._owner = owner
        self._documents = owner.documents
        self._is_sure = is_sure  # whether nothing is recorded after the head
        self._id = entity_id
        self._key = owner.documents.key(entity_id)
        self._sightings = sightings
        self._seen = survey
        self._head = hint
        self._state: Callable[[], Document | None] = self._recorded_state
        self._current: Object | None = None
        self._skipped: list[JsonValue] = []
        self._rejected: Invalid | None = None
        self._deleted: Recorded | None = None
        self._unkept: WormError | None = None
        self._appended, self._is_late, self._is_taken = 0, False, False

    def run(self, written: Object | None) -> Reconciled:
        is_ours = written is not None and written.version_id is not None
        self._current = written if is_ours else self._read()
        self._doubt_hint_without_versions()
        if self._current is not None and self._is_recorded(self._current):
            self._state = self._current_state
        elif self._current is not None and not is_ours and self._is_sole_successor(self._current):
            self._record(as_version(self._current))
        else:
            pending, latest = self._survey()
            if is_ours and written is not None and not any(is_same(one, as_version(written)) for one in pending):
                self._make_sure_it_is_current(latest)
            for position, version in enumerate(pending, start=1):
                self._record(version, is_last=position == len(pending))
            self._settle(latest)
            self._look_for_a_forgotten_oplog()
        self._doubt_head()
        if self._head is not None:
            self._make_sure(self._head.seq)
        if self._deleted is not None:
            self._keep(partial(self._owner.follow, self._deleted))
        last = (self._rejected, self._unkept, self._is_late)
        return Reconciled(self._id, self._head, self._state, self._appended, *last)

    # Without a listing

    def _read(self) -> Object | None:
        try:
            return self._documents.current(self._id)
        except Invalid:
            return None  # too large to read: the listing gives its version, and loading that gives the reason

    def _is_recorded(self, current: Object) -> bool:
        return self._head is not None and self._head.live and self._head.names(as_version(current))

    def _is_sole_successor(self, current: Object) -> bool:
        head = self._head
        if head is None or not head.live or current.version_id is None:
            return False
        expected = (None, head.version_id, current.version_id)
        is_alone = all(one.version_id in expected for one in self._sightings)
        return is_alone and is_written_over(current, head.etag, head.version_id)

    def _doubt_hint_without_versions(self) -> None:
        """Without a version id, only the etag distinguishes states, and content may return to an earlier state. A stale
        hint could then look current, so one read checks that nothing was recorded after it."""
        head = self._head
        if head is None or head.version_id is not None:
            return
        self._look_for_a_newer_entry(head)

    def _doubt_head(self) -> None:
        """If a version was removed, or somebody else recorded the current one, other versions may have been recorded
        since then and be gone: the current one may have been recorded long ago."""
        is_old = self._is_taken or any(one.is_removal for one in self._sightings)
        if self._head is not None and not self._appended and is_old:
            self._look_for_a_newer_entry(self._head)

    def _look_for_a_newer_entry(self, head: Head) -> None:
        newer = self._owner.oplog.successor(self._id, head.seq, head.ts)
        if newer is not None:
            raise _StartAgain(newer)

    def _current_state(self) -> Document | None:
        document = None if self._current is None else self._documents.recorded(self._current)
        return self._recorded_state() if document is None else document

    def _recorded_state(self) -> Document | None:
        """The head's document: already known, or read from the version that it names, or (if that is gone) replayed."""
        head = self._head
        if head is None or not head.live:
            return None
        if head.etag is not None and head.etag in self._owner.known:
            return dict(self._owner.known[head.etag])
        document: Document | None = None
        if head.version_id is not None:
            document = self._documents.recorded_version(self._id, head.version_id)
        return document if document is not None else self._owner.oplog.state_at(self._id, head.seq)

    # With a listing

    def _survey(self) -> tuple[list[Version], Version | None]:
        """The versions after the recorded head, oldest first, and the latest one (None if there is none)."""
        newer: list[Version] = []
        for version in self._versions():
            if not newer and version.version_id is None:
                return [], version  # no versioning: only the current object is known
            if self._head is not None and self._head.names(version):
                return newer[::-1], newer[0] if newer else version
            newer.append(version)
        if newer and self._head is not None:
            return self._unrecorded(newer)[::-1], newer[0]
        if len(newer) == 1 and self._current is not None and self._current.metadata.get(PARENT) in (None, NO_PARENT):
            self._is_sure = True  # one version, over nothing: a new document
        return newer[::-1], newer[0] if newer else None

    def _versions(self) -> Iterable[Version]:
        """Newest first. If the only version in an earlier listing is still the current one, it is still the only
        one."""
        current = None if self._current is None else as_version(self._current)
        if current is not None and self._seen.sole is not None and is_same(current, self._seen.sole):
            return [current]
        if current is not None and is_directory(self._documents.store):
            return [current]
        if current is not None and self._seen.listed is not None:
            return [current, *(one for one in self._seen.listed if not is_same(one, current))]
        return self._documents.store.versions(self._key)

    def _unrecorded(self, listed: list[Version]) -> list[Version]:
        """The head's version is gone (expired, or removed by hand): go back to an entry whose version still exists."""
        position = {version.exact_name: index for index, version in enumerate(listed)}
        assert self._head is not None
        for entry in self._owner.oplog.newest_first(self._id, self._head.seq):
            at = position.get(entry.exact_name)
            if at is not None and (entry.version_id is not None or entry.op != "delete"):
                return listed[:at]
        return listed

    def _settle(self, latest: Version | None) -> None:
        """If the latest version is still not the recorded one, record it."""
        head = self._head
        if self._rejected is not None or self._is_late:
            return
        if latest is None:
            if head is not None and head.live:
                self._make_sure_it_is_current(latest)
                self._record(Version(self._key, None, "", 0, self._owner.clock.now(), True, is_delete_marker=True))
        elif head is None or not head.names(latest):
            was_recorded_before = head is not None and latest.version_id is not None
            if not latest.is_delete_marker or (head is not None and head.live):
                if was_recorded_before:
                    self._make_sure_it_is_current(latest)
                self._record(latest, reverted=was_recorded_before)

    def _make_sure_it_is_current(self, latest: Version | None) -> None:
        """In a listing that is older than the entries, what they recorded last looks removed. Reading the key itself
        decides."""
        found = self._documents.store.head(self._key)
        if latest is None or latest.is_delete_marker:
            is_current = found is None
        else:
            is_current = found is not None and found.is_version(latest.version_id)
        if not is_current:
            raise _StartAgain(None)

    def _look_for_a_forgotten_oplog(self) -> None:
        """There is no valid document and there was no hint: only the oplog knows what was recorded earlier."""
        if self._head is None:
            newest = self._owner.oplog.newest(self._id)
            if newest is not None:
                raise _StartAgain(newest)

    # Recording

    def _record(self, version: Version, *, reverted: bool = False, is_last: bool = True) -> None:
        try:
            after, source = self._load(version)
        except Invalid as mistake:
            self._rejected = mistake
            self._skipped.append({"versionId": version.version_id, "etag": version.etag, "reason": mistake.message})
            return
        standing = self._standing(source, reverted)
        if standing.is_late:
            self._is_late = True
            return
        before = self._state()
        if before is not None or after is not None:
            entry = self._entry(version, source, before, after, reverted, standing)
            self._make_sure(entry.seq - 1)
            outcome = self._owner.oplog.append(self._id, entry, self._head)
            self._keep(
                partial(self._owner.oplog.marks.put, self._id, outcome.entry if isinstance(outcome, Taken) else entry)
            )
            if isinstance(outcome, Taken):
                # Another writer's entry for this very version is as good as ours. If more versions follow, find the
                # tail.
                is_this = version.version_id is not None and Head.of(outcome.entry).names(version)
                if not is_this or not is_last:
                    raise _StartAgain(outcome.entry)
                entry, self._is_taken, self._is_sure = outcome.entry, True, False
            else:
                self._appended += 1
            self._follow(Recorded(self._id, entry, self._head, before, after))
            self._head = Head.of(entry)
        self._state = lambda: after
        self._skipped, self._rejected, self._is_late = [], None, False

    def _standing(self, source: Object | None, reverted: bool) -> Standing:
        if reverted:
            return OWN
        return Standing() if source is None else self._owner.origins.standing(self._id, source, self._head)

    def _make_sure(self, last: int) -> None:
        """Check that `last` is the newest entry: the next seq is free because nothing was recorded there."""
        oplog = self._owner.oplog
        if not self._is_sure and not oplog.is_end(self._id, last):
            raise _StartAgain(oplog.newest(self._id))
        self._is_sure = True

    def _follow(self, recorded: Recorded) -> None:
        """Snapshots follow their entry at once. A delete goes to the trash only if it is still in effect at the end."""
        self._deleted = recorded if recorded.after is None else None
        if recorded.after is not None:
            self._keep(partial(self._owner.follow, recorded))

    def _keep(self, keep: Callable[[], None]) -> None:
        failure = failure_of(keep)
        self._unkept = self._unkept or failure

    def _load(self, version: Version) -> tuple[Document | None, Object | None]:
        if version.is_delete_marker:
            return None, None
        current = self._current
        if current is not None and (current.version_id, current.etag) == (version.version_id, version.etag):
            return self._checked(current), current
        found = self._documents.version(version)
        if found is None or found.etag != version.etag:
            raise _StartAgain(None)
        return self._checked(found), found

    def _checked(self, found: Object) -> Document:
        """A write of our SDK may keep the errors of the document recorded before it; a raw upload may not."""
        before = partial(self._known_before, found) if is_written_by_us(found) else None
        return self._documents.parse(self._id, found, before)

    def _known_before(self, found: Object) -> Document | None:
        """The document recorded before this one; for a restored document, the one that was deleted."""
        state, head = self._state(), self._head
        if state is not None or head is None or head.live or found.metadata.get(OP) != "restore":
            return state
        deleted = self._owner.oplog.read(self._id, head.seq)
        return None if deleted is None else deleted.snapshot

    def _entry(
        self,
        version: Version,
        source: Object | None,
        before: Document | None,
        after: Document | None,
        reverted: bool,
        standing: Standing,
    ) -> OplogEntry:
        head = self._head
        seq = 1 if head is None else head.seq + 1
        # No object says when a newer version was removed. S3 has whole seconds and clocks may differ; within one
        # entity, time must not go backward.
        moment = self._owner.clock.now() if reverted else version.last_modified
        ts = max(iso_seconds(moment), "" if head is None else head.ts)
        origin = self._removal() if reverted else self._origin(version, source, standing)
        said = None if standing.is_own else source  # the author's note was about another write
        actor, metadata = origin.actor, entry_metadata(version, said, reverted, self._skipped) | origin.note()
        if after is None:
            return OplogEntry(seq, "delete", ts, actor, snapshot=before, metadata=metadata)
        if before is None:
            restored = reverted or (source is not None and source.metadata.get(OP) == "restore")
            return OplogEntry(seq, "restore" if restored else "create", ts, actor, after, metadata=metadata)
        change = Diff.between(before, after)
        whole = after if seq % self._owner.oplog.every == 0 else None
        return OplogEntry(seq, "update", ts, actor, whole, change.diff, change.needed_absent(), metadata)

    def entry_of(self, written: Object, before: Document | None, after: Document) -> OplogEntry | None:
        standing = self._standing(written, reverted=False)
        return None if standing.is_late else self._entry(as_version(written), written, before, after, False, standing)

    def _origin(self, version: Version, source: Object | None, standing: Standing) -> Origin:
        if standing.is_own:
            named = Origin()
        elif source is not None:
            named = Origin(actor_of(source), standing.commit, put_id=source.attempt)
        elif self._head is not None:
            named = self._owner.origins.deletion(self._id, self._head, version.last_modified)
        else:
            named = Origin()
        if version.is_delete_marker and version.version_id is None:
            named = replace(named, actor=named.actor or self._removal().actor)
        of_it = [one for one in self._sightings if one.version_id == version.version_id and not one.is_removal]
        seen = next((one.actor for one in of_it if one.actor is not None), None)
        said = next((one.note for one in of_it if one.note is not None), None)
        return replace(named, actor=named.actor if named.actor is not None else seen, said=named.said or said)

    def _removal(self) -> Origin:
        """Who removed the version recorded last, according to the events. No object says so."""
        removals = [one for one in self._sightings if one.is_removal]
        of_head = [one for one in removals if self._head is not None and one.version_id == self._head.version_id]
        return Origin(next((one.actor for one in of_head or removals), None))


def as_version(found: Object) -> Version:
    return Version(found.key, found.version_id, found.etag, found.size, found.last_modified, True)


def is_same(one: Version, other: Version) -> bool:
    return (one.version_id, one.etag) == (other.version_id, other.etag)


def failure_of(*keeps: Callable[[], None]) -> WormError | None:
    """Run all of them, even if some fail. Returns the first failure."""
    failures: list[WormError] = []
    for keep in keeps:
        try:
            keep()
        except WormError as error:
            failures.append(error)
    return failures[0] if failures else None
