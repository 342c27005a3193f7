"""System keys: what an internal object is, what it belongs to, whether it is healthy, and what to do about it.

Reads the object itself and what it depends on: for an entry, one listing of its document's oplog; for a table file, the
root that names it; for a claim, the document that holds it. Nothing else is listed, and nothing is written.

*What stops a history*: the object because of which the newest entry of a document is unknown or unreadable. Any other
missing or damaged object in an oplog does not stop the history.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import cast

from worm.clock import iso_seconds
from worm.collections import (
    Archive,
    Change,
    ChangeSet,
    KeyInfo,
    KeyKind,
    OplogEntry,
    Seqs,
    Snapshot,
    Trashed,
    UniqueValue,
    layout,
)
from worm.errors import Corrupt, Invalid
from worm.log import DbKeys, Segment
from worm.spaces import OpenSpaces
from worm.store import PROBE_PREFIX, Object, ObjectInfo, acceptable
from worm.tables import REPLACED, Manifest, Table
from worm.upkeep.repair import ASIDE
from worm.upkeep.session import Session
from worm.upkeep.verdicts import NOTHING, ObjectFacts, Verdict, Why, asked
from worm.upkeep.verify_record import VERIFY_KEY

Said = tuple[Verdict, str, str]
"""Verdict, explanation, next step."""
RESTORED = "from an old version of the object or a backup"
KEYS_SHOWN_MAX = 5


def explain_system(session: Session, key: str, info: KeyInfo) -> Why:
    """`info` is the resolver's result for the key, which is not a document key."""
    return _SystemKey(session, key, info).explain()


class _SystemKey:
    """One key of the library."""

    def __init__(self, session: Session, key: str, info: KeyInfo) -> None:
        self._session = session
        self._key = key
        self._info = info
        self._model, self._id = info.model or "", info.id or ""
        self._whose = f"{self._model} '{self._id}'" if self._id else self._model
        self._named = f"{self._model} {shlex.quote(self._id)}"

    def explain(self) -> Why:
        kinds: dict[KeyKind, Callable[[Object | None], Said]] = {
            KeyKind.OPLOG: self._of_entry,
            KeyKind.TIME_MARK: self._of_time_mark,
            KeyKind.ARCHIVE: self._of_archive,
            KeyKind.SNAPSHOT: self._of_snapshot,
            KeyKind.TRASH: self._of_trash,
            KeyKind.TOMBSTONE: self._of_trash,
            KeyKind.MANIFEST: self._of_manifest,
            KeyKind.LAKE: self._of_lake,
            KeyKind.INDEX: self._of_index,
            KeyKind.HEADS: self._of_heads,
            KeyKind.CHANGE_SET: self._of_change_set,
            KeyKind.CLAIM: self._of_claim,
            KeyKind.SENTINEL: self._of_sentinel,
            KeyKind.SCHEMA: self._of_schema,
        }
        if self._info.kind in kinds:
            found = self._session.store.get(self._key)
            said = kinds[self._info.kind](found)
            return self._why(found, said)
        head = self._head()
        return self._why(head, self._of_log(head) if self._info.kind is KeyKind.LOG else self._of_other(head))

    def _why(self, found: ObjectInfo | None, said: Said) -> Why:
        return Why(self._key, *said, model=self._info.model, id=self._info.id, object=ObjectFacts.of(found))

    def _head(self) -> ObjectInfo | None:
        try:
            return self._session.store.head(self._key) if acceptable(self._key) else None
        except Invalid:  # what belongs to the store itself
            return None

    # The history of a document

    def _of_entry(self, found: Object | None) -> Said:
        oplog, seq = self._session.collection(self._model).oplog, cast(int, self._info.seq)
        seqs = oplog.seqs(self._id)
        stop = self._stop(seqs)
        if found is None:
            return self._of_missing_entry(seq, seqs, stop)
        try:
            entry = OplogEntry.from_bytes(found.body, self._key)
            if entry.seq != seq:
                raise Corrupt(f"it contains seq {entry.seq}, but its name says {seq}", key=self._key)
        except Corrupt as damage:
            what = f"it is in the history of {self._whose} but is not an entry: {damage.message}"
            return self._of_damage(seq, seqs, stop, what)
        by = f" by {entry.actor}" if entry.actor else ""
        what = f"entry {seq} of {self._whose}: {entry.op} at {entry.ts}{by}"
        if stop is not None and stop.key == self._key:
            told = f"{what}. Nothing proves that it is the next one, so the history is stopped: {stop.message}"
            return Verdict.DAMAGED, told, self._way_out(seqs, seq, "put the missing entries back")
        if stop is not None:
            told = f"{what}. It is intact, but the history is stopped: {stop.message} [{stop.key}]"
            return Verdict.DAMAGED, told, f"{asked(stop.key)} says what to do"
        if seqs.missing is not None:
            told = f"{what}. It is intact; others before or after it are missing, but the history can continue"
            return Verdict.SYSTEM, told, f"{asked(oplog.key(self._id, seqs.missing[0]))} explains the first one"
        newest = ", the newest one" if seq == seqs.last else f"; the newest is entry {seqs.last}"
        return Verdict.SYSTEM, f"{what}{newest}", NOTHING

    def _stop(self, seqs: Seqs) -> Corrupt | None:
        """What stops the history."""
        oplog = self._session.collection(self._model).oplog
        try:
            if seqs.last:
                newest = oplog.newest_seq(self._id, seqs)
                oplog.newest_of(self._id, seqs, newest, self._session.store.get(oplog.key(self._id, newest)))
                if self._is_served():
                    oplog.state_at(self._id, newest)
        except Corrupt as damage:
            return damage
        return None

    def _is_served(self) -> bool:
        """Does the table show the stored document because its history is damaged?"""
        try:
            rows = self._table.manifest.among([self._id])
        except Corrupt:
            return False
        return rows is not None and self._id in rows.etags

    def _of_missing_entry(self, seq: int, seqs: Seqs, stop: Corrupt | None) -> Said:
        if seqs.is_archived(seq):
            name = next(one for one in seqs.archives if seq in one)
            return Verdict.SYSTEM, f"entry {seq} of {self._whose} is in the archive {name.file}", NOTHING
        if seq > seqs.last:
            ends = f"it ends with entry {seqs.last}" if seqs.last else "it has no entries"
            return Verdict.ABSENT, f"the history of {self._whose} has no entry {seq}: {ends}", NOTHING
        what = f"entry {seq} of {self._whose} is missing: there are newer ones, so somebody deleted it"
        return self._of_damage(seq, seqs, stop, what)

    def _of_damage(self, seq: int, seqs: Seqs, stop: Corrupt | None, what: str) -> Said:
        """An entry that is missing, or overwritten."""
        if stop is None:
            told = f"{what}. The history continues after entry {seqs.last}; only requests that need this entry fail"
            lost = "If it is lost permanently, leave it: `worm verify` keeps reporting it"
            return Verdict.DAMAGED, told, f"put it back, {RESTORED}. {lost}"
        if stop.key == self._key:
            return Verdict.DAMAGED, f"{what}. The history is stopped", self._way_out(seqs, seq, "put it back")
        told = f"{what}. The history is stopped: {stop.message} [{stop.key}]"
        lost = f"If it is lost permanently, {asked(stop.key)} says what to do"
        return Verdict.DAMAGED, told, f"put it back, {RESTORED}, and run `worm repair {self._model}`. {lost}"

    def _way_out(self, seqs: Seqs, seq: int, put_back: str) -> str:
        """If this entry, or one before it, stops the history."""
        oplog = self._session.collection(self._model).oplog
        keys = [shlex.quote(oplog.key(self._id, one)) for one in sorted(seqs.single) if one >= seq]
        listed = " ".join(f"--set-aside {key}" for key in keys)
        aside = f"`worm repair {self._model} {listed}`"
        if len(keys) > KEYS_SHOWN_MAX:
            aside = f"`worm repair {self._model} --set-aside KEY …` with the keys of entry {seq} and all newer ones"
        after = f"after entry {seqs.before(seq)}" if seqs.before(seq) else "from entry 1"
        again = f"a copy is kept, and the stored document is recorded again {after}"
        return (
            f"{put_back}, {RESTORED}, and run `worm repair {self._model}`. If "
            f"they are lost permanently, run {aside}: {again}"
        )

    def _of_time_mark(self, found: Object | None) -> Said:
        what = f"a time mark: it leads to entry {self._info.seq} of {self._whose} when a time is looked up"
        if found is None:
            return (
                Verdict.ABSENT,
                f"{what}. It does not exist",
                f"`worm repair {self._model}` writes the missing ones",
            )
        return Verdict.SYSTEM, f"{what}. It is only a hint: a wrong one costs requests", NOTHING

    def _of_archive(self, found: Object | None) -> Said:
        name = self._info.archive
        assert name is not None
        what = f"an archive: entries {name.first} to {name.last} of {self._whose} in one object"
        seqs = self._session.collection(self._model).oplog.seqs(self._id)
        are_single = all(seq in seqs.single for seq in range(name.first, name.last + 1)) if found else False
        if found is None:
            told = f"{what}. It does not exist; `worm why` on one of its entries says whether that is missing"
            return Verdict.ABSENT, told, NOTHING
        try:
            Archive.from_bytes(found.body, name, self._key)
        except Corrupt as damage:
            lost = "its entries also exist as single objects" if are_single else "its entries cannot be read"
            way = f"put it back, {RESTORED}"
            if are_single:
                way = f"`worm repair {self._model} --set-aside {shlex.quote(self._key)}`"
            return Verdict.DAMAGED, f"{what}. It {damage.message}; {lost}", way
        if self._session.collection(self._model).definition.archive_after is None:
            told = f"{what}. The schema has no archiveAfter for {self._model}, so it is not used"
            return Verdict.BEHIND, told, 'push the schema with "archiveAfter": "never"'
        return Verdict.SYSTEM, f"{what}. It is intact", NOTHING

    # Copies of documents

    def _of_snapshot(self, found: Object | None) -> Said:
        what, name = f"a snapshot of {self._whose}", cast(str, self._info.name)
        if found is None:
            return (
                Verdict.ABSENT,
                f"{what}: it does not exist",
                f"`worm snapshot list {self._named}` lists all",
            )
        try:
            snapshot = Snapshot.from_bytes(found.body, self._key)
            if snapshot.id != self._id:
                raise Corrupt(f"it belongs to '{snapshot.id}'", key=self._key)
        except Corrupt as damage:
            told = f"{what} that is damaged: {damage.message}. It is only needed to restore it"
            return Verdict.DAMAGED, told, f"restore it {RESTORED}, or delete it"
        of = f"as of entry {snapshot.seq}" if snapshot.seq else f"as it was stored at {snapshot.ts}"
        return Verdict.SYSTEM, f"{what}, {of}", f"`worm snapshot restore {self._named} {name}` restores that state"

    def _of_trash(self, found: Object | None) -> Said:
        """The copy, or the tombstone beside it."""
        collection, store = self._session.collection(self._model), self._session.store
        is_copy, trash = self._info.kind is KeyKind.TRASH, collection.trash
        other = trash.tombstone_key(self._id) if is_copy else trash.copy_key(self._id)
        beside = store.get(other)
        copy, stone = (found, beside) if is_copy else (beside, found)
        if stone is None:
            told = f"{self._whose} is not in trash: there is no tombstone"
            if copy is None:
                return Verdict.ABSENT, told, NOTHING
            return Verdict.SYSTEM, f"{told}. The copy is left from a deletion that did not happen", NOTHING
        try:
            trashed = Trashed.of(self._id, stone)
        except Corrupt as damage:
            told = f"the tombstone of {self._whose} is damaged: {damage.message}. It can be neither restored nor purged"
            by_hand = f"delete {trash.tombstone_key(self._id)} and {trash.copy_key(self._id)} yourself"
            return Verdict.DAMAGED, told, f"check both, then {by_hand}"
        by = f" by {trashed.tombstone.deleted_by}" if trashed.tombstone.deleted_by else ""
        what = f"{self._whose} was deleted at {trashed.tombstone.deleted_at}{by}"
        if store.head(collection.documents.key(self._id)) is not None:
            return Verdict.SYSTEM, f"{what}, and exists again: it is not in trash", NOTHING
        if copy is None and trashed.tombstone.version_id is None:
            told = f"{what}, but its copy {trash.copy_key(self._id)} is missing"
            way = f"`worm history {self._named}` shows the entry before the delete, `worm rollback` restores it"
            return Verdict.DAMAGED, told, way
        if trashed.is_expired(self._session.clock.now()):
            return Verdict.SYSTEM, f"{what}, and has expired: the next purge will remove it", NOTHING
        expires = trashed.tombstone.expires_after(trashed.since)
        until = "for good" if expires is None else f"until {iso_seconds(expires)}"
        return Verdict.SYSTEM, f"{what}. It is kept {until}", f"`worm trash restore {self._named}` restores it"

    # Files of a table

    @property
    def _table(self) -> Table:
        return self._session.table(self._model)

    @property
    def _rebuild(self) -> str:
        return f"`worm repair {self._model}` rebuilds it"

    def _of_manifest(self, found: Object | None) -> Said:
        what = f"the manifest of {self._model}: the rows for queries"
        if not self._table.collection.definition.keeps_manifest:
            return Verdict.SYSTEM, f"the schema keeps no manifest of {self._model}: this object is not used", NOTHING
        tree = self._table.manifest
        if self._info.name is not None:
            return self._of_piece(found, tree.named(), what)
        root = tree.root()
        said = self._of_root(found, tree.damage, what, "queries read the documents instead")
        if said is None and root is not None and tree.is_stale(root):
            told = f"{what}. It was made for another schema; the next fold or sweep rebuilds it"
            return Verdict.BEHIND, told, f"`worm table rebuild {self._model}` rebuilds it now"
        spread = "" if root is None or not root.is_spread else f", in {root.partition_count + len(root.deltas)} files"
        count = 0 if root is None else root.count
        told = f"{what}. It is readable and has {count:,} rows{spread}"
        return said or (Verdict.SYSTEM, told, "`worm table list` says whether it is up to date")

    def _of_lake(self, found: Object | None) -> Said:
        if not self._table.collection.definition.keeps_manifest:
            return Verdict.SYSTEM, f"the schema keeps no manifest of {self._model}: this object is not used", NOTHING
        what, name = f"the lake table of {self._model}", self._info.name or ""
        if self._table.collection.definition.lake is None:
            return self._of_piece(found, self._table.manifest.named_parquet(), what)
        if name.startswith("_"):
            there = Verdict.ABSENT if found is None else Verdict.SYSTEM
            return there, f"a file of the Delta log of {self._model}", f"`worm lake status {self._model}`"
        return self._of_piece(found, self._session.lake(self._model).needed_files(), what)

    def _of_index(self, found: Object | None) -> Said:
        field, table = cast(str, self._info.field), self._table
        what = f"the index of {self._model} on {field}"
        files = next((one for one in table.indexes if one.definition.field == field), None)
        if files is None:
            return (
                Verdict.SYSTEM,
                f"the schema has no index of {self._model} on {field}: this object is not used",
                NOTHING,
            )
        if self._info.name is not None:
            return self._of_piece(found, table.manifest.named_parts(field), what)
        files.file.read()
        said = self._of_root(found, files.file.held.damage, what, "queries work without it")
        return said or (Verdict.SYSTEM, f"{what}. It is readable", "`worm table list` says whether it is up to date")

    def _of_heads(self, found: Object | None) -> Said:
        what = f"the heads of {self._model}: the newest entry of every document, which saves requests"
        tree = self._table.heads
        if self._key.endswith(REPLACED):
            there = Verdict.ABSENT if found is None else Verdict.SYSTEM
            return there, f"a note of purge: which files of the heads of {self._model} were replaced, and when", NOTHING
        if self._info.name is not None:
            return self._of_piece(found, tree.named(), what)
        heads = tree.read()
        said = self._of_root(found, tree.damage, what, "histories are listed instead")
        if said is not None or heads is None:
            return said or (Verdict.ABSENT, what, NOTHING)
        if heads.damaged:
            one = min(heads.damaged)
            told = f"{what}. It lists {len(heads.damaged):,} with a damaged history, first '{one}'"
            return Verdict.DAMAGED, told, f"{asked(self._table.collection.documents.key(one))} says what to do"
        if heads.partial:
            told = f"{what}. It was lost, and is not complete yet"
            return Verdict.BEHIND, told, f"the next full sweep completes it; `worm repair {self._model}` does so now"
        return Verdict.SYSTEM, f"{what}. It is readable", NOTHING

    def _of_root(self, found: Object | None, damage: Corrupt | None, what: str, meanwhile: str) -> Said | None:
        """The one mutable file of a table, if it is missing or unreadable."""
        if found is None:
            told = f"{what}. It does not exist: {meanwhile}. The first change writes it"
            return Verdict.ABSENT, told, self._rebuild
        if damage is None:
            return None
        where = f" [{damage.key}]" if damage.key not in (None, self._key) else ""
        return Verdict.DAMAGED, f"{what}. It cannot be read: {damage.message}{where}; {meanwhile}", self._rebuild

    def _of_piece(self, found: Object | None, named: set[str] | None, what: str) -> Said:
        """An immutable file that a root names."""
        file = self._key.rsplit("/", 1)[-1]
        is_named, piece = named is not None and file in named, f"a file of {what}"
        if not is_named:
            there = Verdict.ABSENT if found is None else Verdict.SYSTEM
            return there, f"{piece}. The table no longer uses it: it was replaced, and purge removes it", NOTHING
        if found is None:
            return Verdict.DAMAGED, f"{piece}. The table needs it, but it is missing", self._rebuild
        is_hashed = file.endswith(".json") and file != "_meta.json"
        if is_hashed and not file.endswith(f"-{layout.digest_of(found.body)}.json"):
            return Verdict.DAMAGED, f"{piece}. Its content does not match its name", self._rebuild
        return Verdict.SYSTEM, f"{piece}. The table uses it", NOTHING

    def _of_change_set(self, found: Object | None) -> Said:
        what = f"a change set of {self._model}: a message from capture to the tables worker"
        if found is None:
            return Verdict.ABSENT, f"{what}. It does not exist: change sets expire after 7 days", NOTHING
        try:
            changes = ChangeSet.decode(found.body, self._key).changes
        except Corrupt as damage:
            return Verdict.DAMAGED, f"{what}. It cannot be read: {damage.message}", self._fold
        rows = self._table.manifest.among([one.id for one in changes]) or Manifest(self._model)
        behind = [one.id for one in changes if not _is_folded(one, rows)]
        documents = f"{len(changes):,} document{'' if len(changes) == 1 else 's'}"
        if behind:
            told = f"{what}. Of its {documents}, the table lacks {len(behind):,} so far, first '{behind[0]}'"
            return Verdict.BEHIND, told, self._fold
        return Verdict.SYSTEM, f"{what}. The table has all its changes, of {documents}", NOTHING

    @property
    def _fold(self) -> str:
        return f"wait for the tables worker, or check its dead letters; `worm repair {self._model}` does it now"

    def _of_claim(self, found: Object | None) -> Said:
        field, claims = cast(str, self._info.field), self._session.collection(self._model).claims
        what = f"a claim: it reserves a unique value of {field} for one {self._model}"
        if found is None:
            return Verdict.ABSENT, f"{what}. It does not exist: the value is free", NOTHING
        claim, finding = claims.judge(field, found)
        if isinstance(claim, Corrupt):
            return (
                Verdict.DAMAGED,
                f"{what}. It is damaged: {claim.message}",
                f"`worm repair {self._model}` corrects it",
            )
        what = f"a claim: it reserves {field}={UniqueValue(field, claim.value).text} for {self._model} '{claim.id}'"
        if finding is not None:
            told = f"{what}, which lacks the value. A save that needs the value can take it"
            return Verdict.BEHIND, told, f"`worm repair {self._model}` removes it now"
        return Verdict.SYSTEM, what, NOTHING

    # The location itself

    def _of_sentinel(self, found: Object | None) -> Said:
        of = f"the collection of {self._model}" if self._model else "this location"
        what = f"a sentinel: a note about {of} for other tools. Nothing depends on it"
        return (
            (Verdict.ABSENT, f"{what}. It does not exist", "`worm push` writes it")
            if found is None
            else (Verdict.SYSTEM, what, NOTHING)
        )

    def _of_schema(self, found: Object | None) -> Said:
        models = ", ".join(self._session.schema.models) or "none"
        if found is None:
            return Verdict.ABSENT, "the pushed schema: there is none", "push one: `worm push schema.json`"
        return Verdict.SYSTEM, f"the pushed schema. Its models: {models}", NOTHING

    def _of_log(self, found: ObjectInfo | None) -> Said:
        database = DbKeys.database_of(self._key)
        if database is None:
            return Verdict.UNMATCHED, "it is next to the databases under db/ and belongs to none", NOTHING
        space = OpenSpaces.name_of(database)
        what = f"of the database '{database}'" if space is None else f"of the space '{space}'"
        check = f"`worm log verify {shlex.quote(database)} --url {shlex.quote(self._session.store.url)}` checks the log"
        if found is None:
            return Verdict.ABSENT, f"an object {what}. It does not exist", check
        place = DbKeys.of_segment(self._key)
        if place is None:
            return Verdict.SYSTEM, f"an object {what}. Its content was not checked", check
        body = self._session.store.get(self._key)
        try:
            segment = None if body is None else Segment.decode(body.body, place[1], self._key)
        except Corrupt as damage:
            return Verdict.DAMAGED, f"segment {place[1]} of the log {what} is damaged: {damage.message}", check
        lsns = "" if segment is None else f", LSN {segment.lsn:,} to {segment.end_lsn:,}"
        return Verdict.SYSTEM, f"segment {place[1]} of the log {what}{lsns}. It is intact", NOTHING

    def _of_other(self, found: ObjectInfo | None) -> Said:
        """Keys that belong to no model: the first segment says what they are."""
        first, _, rest = self._key.partition("/")
        if first == ASIDE and rest:
            return self._of_aside(found, rest)
        notes = {
            ".worm.sweep": ("a note of the sweep: where it continues", NOTHING),
            ".worm.streams": ("a note of a Spark stream that writes here: its newest batch", NOTHING),
            ".worm.migrate": (
                "a note of an interrupted migration: where it continues",
                "run the same `worm migrate` again; with --restart it starts from the beginning",
            ),
            PROBE_PREFIX.rstrip("/"): (
                "a note of the probe, which checked that the store honors write conditions",
                NOTHING,
            ),
            layout.RELAYOUT_KEY: ("the state of `worm relayout`", "run the same `worm relayout` again to complete it"),
            layout.ATTACHED_KEY: (
                "what `worm attach` added to the settings of the bucket",
                "`worm detach` removes it again",
            ),
            ".worm.api": (
                "a record of the HTTP API: the answer to a call with an Idempotency-Key, or a token",
                NOTHING,
            ),
            VERIFY_KEY: ("a note of the last `worm verify --record`, for `worm doctor`", NOTHING),
            ".worm.store": ("belongs to the directory store itself: locks, metadata and unfinished writes", NOTHING),
        }
        what, step = notes.get(first, (None, ""))
        if what is None:
            reason = self._info.reason or "it is not a key of this library"
            told = f"a path segment starts with a dot, so it is never a document; {reason}. It is not used"
            return Verdict.SYSTEM, told, "leave it alone, or delete it if you put it there"
        if found is None and first != ".worm.store":
            return Verdict.ABSENT, f"{what}. It does not exist", NOTHING
        return Verdict.SYSTEM, what, step

    def _of_aside(self, found: ObjectInfo | None, rest: str) -> Said:
        origin, _, digest = rest.rpartition("-")
        what = f"an object that `worm repair --set-aside` moved out of an oplog, from {origin}"
        if found is None:
            return Verdict.ABSENT, f"{what}. It does not exist", NOTHING
        body = self._session.store.get(self._key)
        if body is not None and layout.digest_of(body.body) != digest:
            return Verdict.DAMAGED, f"{what}. It has changed since", "check it; it is not used"
        told = f"{what}. It is unchanged, and not used"
        return Verdict.SYSTEM, told, "keep it as evidence, or delete it"


def _is_folded(change: Change, rows: Manifest) -> bool:
    """Does the table have this change, or a newer one? For a model without oplog, and for a damaged entity, any state
    counts."""
    if change.head is None:
        return change.id in rows.etags or change.id in rows.seqs
    return rows.seqs.get(change.id, 0) >= change.head.seq
