"""The past of a document: its entries, earlier states, full copies, and going back.

History contains what is recorded. With `maintenance="inline"` every write of this session is recorded at once; with
`"events"` the workers record it after the event, usually seconds later. Nothing here waits for them or does their work.

Snapshots are full copies of a document, taken on demand. The periodic copies of the schema (`snapshots.every`) are
taken when entries are recorded, inline or by the workers.
"""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from worm.clock import iso_seconds
from worm.collections import Diff, Document, DocumentVersion, FieldDiff, Head, Heads, OplogEntry
from worm.errors import Hint, Invalid, NotFound, Unavailable, show
from worm.formats import SINGLETON_ID, JsonObject, moment_in_utc
from worm.sdk.access import D, Touched
from worm.sdk.document import About, DocumentDict, Provenance
from worm.sdk.searching import HistoryRows, HistorySource
from worm.sdk.writing import Writing
from worm.store import ObjectInfo, Version


class History(Writing[D]):
    """`get_history`, `get_at`, `diff`, `diff_between`, `rollback`, `snapshot`, `list_snapshots`, `restore_snapshot`."""

    def get_history(
        self, id: object = SINGLETON_ID, *, limit: int | None = None, before_seq: int | None = None
    ) -> HistoryRows[OplogEntry]:
        """Entries of a document's oplog, oldest first. With `limit`, you get the newest ones before `before_seq`. It
        takes one request per entry, however long the history is. `Corrupt` if entries are missing.

        Examples:
            >>> [(entry.seq, entry.op, entry.actor) for entry in customers.get_history("acme")]
            [(1, 'create', 'user:ann')]
        """
        entity_id = self._require_oplog(id)
        asked: dict[str, object] = {"limit": limit, "before_seq": before_seq}
        for name, number in asked.items():
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise Invalid(f"limit and before_seq must be at least 1, not {show(number)}", path=name)
        if limit is None and before_seq is None:
            entries = HistoryRows(self._collection.oplog.entries(entity_id))
            self._check_end(entity_id, len(entries))
            if not entries:
                raise self._no_history(entity_id)
            return entries
        end = self._tail(entity_id).seq + 1
        if before_seq is not None:
            end = min(end, before_seq)
        return HistoryRows(self._collection.oplog.page(entity_id, end, limit or end))

    def get_at(
        self, id: object = SINGLETON_ID, *, seq: int | None = None, time: datetime | str | None = None
    ) -> D | None:
        """The document after entry `seq`, or as of a time; None if it was deleted then. Its `seq` says which entry that
        is (pass it to `rollback`). You can save it only if it is still the current version.

        Times have whole seconds, as in S3: all entries of that second count. Text without a zone is UTC. `NotFound` if
        there is no such entry, or none up to that time.

        By seq it takes at most 1 + `snapshots.every` requests, by time one more, however long the history is. If a time
        mark is missing there (docs/decisions/0008), it takes twice that plus the logarithm of the distance to the next
        one.

        Examples:
            >>> _ = customers.patch("acme", {"name": "Acme Corp"})
            >>> customers.get_at("acme", seq=1).name
            'Acme'
        """
        entity_id = self._require_oplog(id)
        if (seq is None) == (time is None):
            raise Invalid("get_at needs either a seq or a time")
        if seq is None:
            assert time is not None
            moment = iso_seconds(moment_in_utc(time))
            found, state = self._collection.oplog.at_time(entity_id, moment)
            if found == 0 and self._collection.oplog.read(entity_id, 1) is None:
                raise self._no_history(entity_id)
            if found == 0:
                raise NotFound(
                    f"{self.name} '{entity_id}' has no entry at {moment} or before", key=self._document_key(entity_id)
                )
        else:
            found, state = seq, self._state_at(entity_id, seq)
        if state is None:
            return None
        origin = Provenance(self.name, entity_id, DocumentVersion(seq=found))
        return self._shape.load(DocumentDict.of({"id": entity_id, **state}, origin))

    def diff(self, id: object, seq_a: int, seq_b: int) -> FieldDiff:
        """The fields that differ between two entries, as in an oplog entry: `{"name": ["Acme", "Acme Inc"]}`. A missing
        field is None, like null; `diff_between` distinguishes the two.

        Examples:
            >>> _ = customers.patch("acme", {"name": "Acme Corp"})
            >>> customers.diff("acme", 1, 2)["name"]
            ['Acme', 'Acme Corp']
        """
        return self.diff_between(id, seq_a, seq_b).diff

    def diff_between(self, id: object, seq_a: int, seq_b: int) -> Diff:
        """`diff`, with `absent`: which of its Nones mean "no such field". A deleted document has no fields.

        Examples:
            >>> _ = customers.patch("acme", {"email": None})
            >>> customers.diff_between("acme", 1, 2).absent
            {'before': [], 'after': ['email']}
        """
        entity_id = self._require_oplog(id)
        before, after = self._state_at(entity_id, seq_a), self._state_at(entity_id, seq_b)
        return Diff.between(before, after or {})

    def rollback(
        self, id: object = SINGLETON_ID, *, to_seq: int, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Save the document of an earlier entry again, with the current time as `updatedAt`. This also restores a
        deleted document. It appends an entry; history is never rewritten. `Conflict` if the document changes in the
        meantime, or is not at `if_version`.

        Examples:
            >>> _ = customers.patch("acme", {"name": "oops"})
            >>> customers.rollback("acme", to_seq=1, reason="typo").name
            'Acme'
        """
        self._begin_write()
        entity_id = self._require_oplog(id)
        state = self._state_at(entity_id, to_seq)
        if state is None:
            raise Invalid(
                f"{self.name} '{entity_id}' was deleted at seq {to_seq}, so there is nothing to roll back to",
                key=self._document_key(entity_id),
                hint=Hint(
                    "choose another entry of get_history()",
                    "choose another entry of `worm history`",
                    "choose another entry of GET …/{id}/history",
                ),
            )
        return self._bring_back(entity_id, state, about, {"rollback": to_seq}, if_version)

    # Snapshots

    def snapshot(self, id: object = SINGLETON_ID) -> JsonObject:
        """Keep a full copy of the document as it is now. Returns `{"ts", "size", "seq"}`; `ts` is its name. Taking the
        same state again changes nothing. `Unavailable` until the workers have recorded the newest version. Without an
        oplog, the stored version is copied and `seq` is None.

        Examples:
            >>> customers.snapshot("acme")["seq"]
            1
        """
        self._begin_write(creates=True)
        entity_id = self._checked(id)
        if not self._collection.definition.oplog:
            current = self._current(entity_id)
            if current is None:
                raise self._missing(entity_id)
            copied = self._collection.snapshots.take_version(entity_id, *current)
            return {**copied.to_json(), "seq": None}
        tail = self._newest(entity_id)
        document = self._state_at(entity_id, tail.seq)
        if document is None:
            raise NotFound(
                f"{self.name} '{entity_id}' is deleted", key=self._document_key(entity_id), hint="restore it first"
            )
        taken = self._collection.snapshots.take(entity_id, tail.seq, tail.ts, document)
        return {**taken.to_json(), "seq": taken.seq}

    def list_snapshots(self, id: object = SINGLETON_ID) -> list[JsonObject]:
        """The snapshots of a document, oldest first: `[{"ts": "2026-02-24T12:00:00Z", "size": 1234}, …]`.

        Examples:
            >>> taken = customers.snapshot("acme")
            >>> [one["ts"] == taken["ts"] for one in customers.list_snapshots("acme")]
            [True]
        """
        entity_id = self._checked(id)
        found = self._collection.snapshots.list(entity_id)
        if not found and self._collection.definition.oplog:
            self._tail(entity_id)  # `NotFound` for a document that never existed
        elif not found and self._session.store.head(self._document_key(entity_id)) is None:
            raise self._missing(entity_id)
        return [info.to_json() for info in found]

    def restore_snapshot(self, id: object, ts: str, *, if_version: str | None = None, **about: Unpack[About]) -> D:
        """Save the document of a snapshot again, like `rollback` with an entry.

        Examples:
            >>> taken = customers.snapshot("acme")
            >>> _ = customers.patch("acme", {"name": "oops"})
            >>> customers.restore_snapshot("acme", taken["ts"]).name
            'Acme'
        """
        self._begin_write()
        entity_id = self._checked(id)
        found = self._collection.snapshots.read(entity_id, ts)
        if found is None:
            raise NotFound(
                f"{self.name} '{entity_id}' has no snapshot {ts}",
                hint=Hint("list_snapshots() names them", "`worm snapshot list` names them"),
            )
        return self._bring_back(entity_id, found.document, about, {"snapshot": ts}, if_version)

    def _newest(self, entity_id: str) -> OplogEntry:
        """The entry of the document as it is stored now. With inline maintenance, a missing entry is recorded first."""
        current = self._session.store.head(self._document_key(entity_id))
        try:
            tail = self._tail(entity_id)
        except NotFound:
            if current is None:
                raise
        else:
            if _is_of(tail, current):
                return tail
        self._current(entity_id)  # `Invalid` for a broken document, which is never recorded
        if self._session.settings.maintenance == "inline":
            self._maintain([Touched(entity_id)])
            tail = self._tail(entity_id)
            if _is_of(tail, self._session.store.head(self._document_key(entity_id))):
                return tail
        raise Unavailable(
            f"{self.name} '{entity_id}': the newest version is not recorded yet",
            key=self._document_key(entity_id),
            hint="try again in a few seconds; if that does not help, the workers are not running: run `worm repair`",
        )

    # Shared

    def _bring_back(self, entity_id: str, state: Document, about: About, note: JsonObject, if_version: str | None) -> D:
        """Save an earlier state over the current document, valid or not, or where none is stored."""
        is_logged = self.logged is not None
        found = self._stored_now(entity_id) if is_logged else self._session.store.head(self._document_key(entity_id))
        parent = None if found is None else self._seen(entity_id, found, None)
        if parent is None and if_version is not None:
            raise self._conflict(entity_id, if_version, None)
        if parent is not None:
            self._check_version(entity_id, parent, if_version)
        document = self._stamped(state, is_new=False)
        touched = self._put(entity_id, document, parent, about, op="restore" if parent is None else None, note=note)
        return self._finish(None, (document, touched))

    def _tail(self, entity_id: str) -> OplogEntry:
        """The newest entry: one or two steps from the head hint."""
        with self._tables:
            head = (self.table.heads.among([entity_id]) or Heads(self.name)).get(entity_id)
        tail = self._collection.oplog.tail(entity_id, at_least=0 if head is None else head.seq)
        if head is None:
            self._check_end(entity_id, 0 if tail is None else tail.seq)
        if tail is None:
            raise self._no_history(entity_id)
        return tail

    def _check_end(self, entity_id: str, last: int) -> None:
        """`Corrupt` if there are entries after the last one that was found: those in between are missing."""
        oplog = self._collection.oplog
        if not oplog.is_end(entity_id, last):
            seqs = oplog.seqs(entity_id)
            missing = seqs.missing
            if missing is not None and seqs.last > last:
                damage = oplog.gap(entity_id, *missing)
                damage.hint = Hint(
                    f"get_history(before_seq={missing[0]}) has the entries before it; {damage.hint}",
                    f"`worm history --before {missing[0]}` shows the entries before it; {damage.hint}",
                    f"GET …/{{id}}/history?before={missing[0]} has the entries before it; {damage.hint}",
                )
                raise damage

    def _state_at(self, entity_id: str, seq: int) -> Document | None:
        if isinstance(seq, bool) or not isinstance(seq, int):
            raise Invalid(f"seq must be a whole number, not {show(seq)}", path="seq")
        found = self._collection.oplog.at_seq(entity_id, seq) if seq >= 1 else None
        if found is None:
            raise NotFound(
                f"{self.name} '{entity_id}' has no entry {show(seq)}",
                key=self._document_key(entity_id),
                hint=Hint(
                    "get_history() lists the entries",
                    "`worm history` lists the entries",
                    "GET …/{id}/history lists the entries",
                ),
            )
        return found.document

    def _recorded(self) -> HistorySource:
        """The starting point of a search over all histories (`Worm.history`)."""
        self._check_oplog()
        with self._tables:
            return HistorySource(self._collection, self.table.heads.read())

    def _recorded_news(self, etag: str | None) -> tuple[HistorySource, str | None] | None:
        """The same with the etag of the heads, for `Worm.changes`; None: the etag is unchanged."""
        self._check_oplog()
        with self._tables:
            heads = self.table.heads
            if etag is not None:
                heads.file.refresh()
                if heads.file.etag == etag:
                    return None
            found = heads.read()
            return HistorySource(self._collection, found), heads.file.etag

    def _require_oplog(self, given: object) -> str:
        """The checked id."""
        entity_id = self._checked(given)
        self._check_oplog()
        return entity_id

    def _check_oplog(self) -> None:
        if not self._collection.definition.oplog:
            raise Invalid(f"{self.name} keeps no oplog", hint='set "oplog": true in the schema and push it')

    def _no_history(self, entity_id: str) -> NotFound:
        return NotFound(f"{self.name} '{entity_id}' has no history", key=self._document_key(entity_id))

    def _document_key(self, entity_id: str) -> str:
        return self._collection.documents.key(entity_id)


def _is_of(tail: OplogEntry, current: ObjectInfo | None) -> bool:
    if current is None:
        return tail.op == "delete"
    version = Version(current.key, current.version_id, current.etag, current.size, current.last_modified, True)
    return tail.op != "delete" and Head.of(tail).names(version)
