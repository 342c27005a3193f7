"""Why: what happened to an uploaded object, and what to do about it.

Follows the path of an upload to the point where it stops: the key (does a model match?), the object (does it exist, is
it valid?), the oplog entry of this version, the row of the table. A *verdict* names that point. `system_keys.py`
explains internal objects.

*Unseen uploads* are objects in a model's directory that are neither documents nor system keys, so nothing ever reads
them. A listing finds them, for `worm verify`.

Reads only. The number of requests does not depend on the size of the collection, and only logarithmically on the length
of the history: only one page of the versions of this key is listed and, if the newest entry does not record the object,
the names around that entry. Only a damaged history is listed completely. The caller passes a function that looks up
dead letters; this module does not know the queue.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from worm.clock import iso_seconds
from worm.collections import Collection, Head, IdRange, KeyInfo, KeyKind, OplogEntry, StorageResolver
from worm.errors import Corrupt, Hint, Invalid, show
from worm.formats import ModelDef, unescape_id
from worm.store import Object, ObjectInfo, Store, acceptable
from worm.tables import Manifest
from worm.upkeep.session import Session
from worm.upkeep.system_keys import explain_system
from worm.upkeep.verdicts import NOTHING, EntryFacts, LookUp, ObjectFacts, RowFacts, Verdict, Why, asked

LIKENESS_MIN = 0.6
S3 = "s3://"
ELSEWHERE = Hint("connect() to its location", "name its location with --url")


def explain_key(session: Session, key: str, *, dead_letters: LookUp | None = None) -> Why:
    """What happened to the object under this key. `key` may also be the object's full URL, its key with the prefix of
    the store, or in a directory its path."""
    session.refresh()
    key = key_of(session.store, key)
    info = session.resolver.parse(key)
    below = urlsplit(session.store.url).path.strip("/") + "/" if session.store.url.startswith(S3) else "/"
    if info.kind is KeyKind.UNKNOWN and key.startswith(below) and session.store.head(key) is None:
        key = key.removeprefix(below)  # the key in the bucket, as dead letters name it
        info = session.resolver.parse(key)
    if info.kind is KeyKind.DOCUMENT:
        why = _Upload(session, key, info).explain()
    elif info.kind is KeyKind.UNKNOWN and not _is_hidden(key):
        why = _unmatched(session, key, info)
    else:
        why = explain_system(session, key, info)
    return why if dead_letters is None else replace(why, dead_letters=tuple(dead_letters(key)))


def key_of(store: Store, text: str) -> str:
    """The key that a text names: a key, the url of an object of this store, or the path of a file in its directory."""
    if not text:
        raise Invalid("the key is empty", hint="name the key of an object, such as org/customers/acme/profile.json")
    url = store.url
    if "://" in text and text.startswith((S3, "file://", "memory://")):
        if not text.startswith(f"{url}/"):
            raise Invalid(f"{show(text)} is not in {url}", hint=ELSEWHERE)
        return text[len(url) + 1 :]
    return _key_of_path(Path(unquote(urlsplit(url).path)), text) if url.startswith("file://") else text


def _key_of_path(root: Path, text: str) -> str:
    path = Path(text)
    try:
        resolved = path.resolve()
        inside = path.is_absolute() or resolved.is_relative_to(root)
        if not inside or (not path.is_absolute() and (root / text).exists()):
            return text
    except (OSError, ValueError):  # a key can be longer than a path, or have a null character
        return text
    if not resolved.is_relative_to(root):
        raise Invalid(f"{show(text)} is not in {root}", hint=ELSEWHERE)
    return resolved.relative_to(root).as_posix()


def _is_hidden(key: str) -> bool:
    return any(segment.startswith(".") and segment not in (".", "..") for segment in key.split("/"))


def pattern_of(definition: ModelDef) -> str:
    """`org/customers/<id>/profile.json`."""
    middle = "" if definition.is_singleton else "/<id>"
    return f"{definition.location.directory}{middle}/{definition.file}"


# A document's key


class _Upload:
    """The path of one upload."""

    def __init__(self, session: Session, key: str, info: KeyInfo) -> None:
        self._session = session
        self._collection: Collection = session.collection(cast(str, info.model))
        self._definition = self._collection.definition
        self._id = cast(str, info.id)
        self._is_watched = session.store.url.startswith(S3)
        self._row_etag: str | None = None
        self._stop: Corrupt | None = None
        self._why = Why(
            key,
            Verdict.RECORDED,
            "",
            "",
            model=self._collection.name,
            id=self._id,
            rule=pattern_of(self._definition),
        )

    def explain(self) -> Why:
        found, rejection = self._stored()
        row, damage = self._row()
        entry = self._entry(found, 0 if row is None else row.seq or 0)
        if row is not None and entry is not None:
            row = replace(row, behind=max(0, entry.seq - (row.seq or 0)))
        self._why = replace(self._why, object=ObjectFacts.of(found), entry=entry, row=row, rejection=rejection)
        if self._stop is not None:
            return self._damaged(self._stop)
        if found is None:
            return self._gone(entry)
        if rejection is not None and not self._was_valid(found, entry):
            return self._rejected(rejection)
        if isinstance(found, Object) and self._is_late(found, entry):
            return self._late()
        return self._there(found, damage)

    # Facts

    def _stored(self) -> tuple[ObjectInfo | None, str | None]:
        """The object, and why it is not a document."""
        documents = self._collection.documents
        try:
            found = documents.current(self._id)
        except Invalid as too_large:
            return self._session.store.head(self._why.key), too_large.message
        if found is None:
            return None, None
        try:
            documents.parse(self._id, found)
        except Invalid as mistake:
            return found, mistake.message
        return found, None

    def _row(self) -> tuple[RowFacts | None, Corrupt | None]:
        if not self._definition.keeps_manifest:
            return None, None
        tree = self._session.table(self._collection.name).manifest
        rows = tree.among([self._id])
        if tree.damage is not None:
            return None, tree.damage
        rows = rows or Manifest(self._collection.name)
        self._row_etag = rows.etags.get(self._id)
        return RowFacts(self._id in rows.entities, rows.seqs.get(self._id) if self._definition.oplog else None, 0), None

    def _entry(self, found: ObjectInfo | None, at_least: int) -> EntryFacts | None:
        if not self._definition.oplog:
            return None
        try:
            entry = self._served() if self._row_etag is not None else self._tail(found, at_least)
        except Corrupt as damage:
            self._stop = damage
            return None
        return None if entry is None else _entry_facts(entry, found)

    def _served(self) -> OplogEntry | None:
        """If the table serves the document: `Corrupt` unless its history is intact again."""
        entry = self._collection.oplog.newest(self._id)
        if entry is not None:
            self._collection.oplog.state_at(self._id, entry.seq)
        return entry

    def _tail(self, found: ObjectInfo | None, at_least: int) -> OplogEntry | None:
        """The newest entry. If it does not record the stored object, there may be others after a gap."""
        oplog = self._collection.oplog
        entry = oplog.tail(self._id, at_least=at_least)
        if entry is not None:
            is_recorded = entry.op == "delete" if found is None else _entry_facts(entry, found).is_of_object
            if is_recorded:
                return entry
        return entry if oplog.is_end(self._id, 0 if entry is None else entry.seq) else oplog.newest(self._id)

    def _is_late(self, found: Object, entry: EntryFacts | None) -> bool:
        if self._definition.space is None or entry is None:
            return False
        tail = self._collection.oplog.read(self._id, entry.seq)
        return self._collection.origins.standing(self._id, found, None if tail is None else Head.of(tail)).is_late

    def _was_valid(self, found: ObjectInfo, entry: EntryFacts | None) -> bool:
        """Did it fit the schema when it was written?"""
        if self._definition.oplog:
            return entry is not None and entry.is_of_object
        return isinstance(found, Object) and self._collection.was_accepted(self._id, found)

    # Verdicts

    def _said(self, verdict: Verdict, explanation: str, next_step: str) -> Why:
        if self._why.rejection is not None and verdict is not Verdict.REJECTED:
            explanation += (
                f". It was valid when it was written, but does not fit the current schema: {self._why.rejection}"
            )
            next_step = "patch the document so that it fits" if next_step == NOTHING else next_step
        return replace(self._why, verdict=verdict, explanation=explanation, next_step=next_step)

    def _rejected(self, reason: str) -> Why:
        counts = "history and table do not have it"
        if self._why.entry is not None:
            counts = f"the document of entry {self._why.entry.seq} is still the valid one"
        return self._said(
            Verdict.REJECTED,
            f"the object is not a valid {self._collection.name}: {reason}; {counts}",
            "correct the document and upload it again. If the schema was wrong, push the right one and run "
            f"`worm repair {self._collection.name}`",
        )

    def _damaged(self, stop: Corrupt) -> Why:
        stored = (
            "the object does not exist" if self._why.object is None else "the object is stored, and queries show it"
        )
        return self._said(
            Verdict.DAMAGED,
            f"{stored}, but its history is damaged: {stop.message} [{stop.key}]",
            f"{asked(stop.key)} says what to do",
        )

    def _late(self) -> Why:
        return self._said(
            Verdict.LATE,
            f"the object was written for a commit of the space '{self._definition.space}' that a later one has undone",
            "nothing: the sweep removes it",
        )

    def _there(self, found: ObjectInfo, damage: Corrupt | None) -> Why:
        name, entry, row = self._collection.name, self._why.entry, self._why.row
        if self._definition.oplog and (entry is None or not entry.is_of_object):
            known = "no entry records it yet" if entry is None else f"entry {entry.seq} records an earlier version"
            return self._said(Verdict.WAITING, f"the object is a valid {name}, but {known}", self._record())
        if damage is not None:
            return self._said(
                Verdict.BEHIND, f"the table cannot be read: {damage.message}", f"run `worm repair {name}`"
            )
        recorded = "" if entry is None else f"entry {entry.seq} records this version"
        if row is None:
            kept = recorded or f"{name} keeps neither history nor a table; reading by id finds the document"
            return self._said(Verdict.RECORDED, kept, NOTHING)
        if row.behind or not row.is_there or not self._is_row_of(found):
            lacking = (
                f"is {row.behind} {'entry' if row.behind == 1 else 'entries'} behind" if row.behind else "lacks it"
            )
            missing = f"the table {lacking} so far"
            told = ", but ".join(filter(None, [recorded, missing]))
            return self._said(Verdict.BEHIND, told, self._fold())
        told = " and ".join(filter(None, [recorded, "the table has its row"]))
        return self._said(Verdict.RECORDED, told, NOTHING)

    def _is_row_of(self, found: ObjectInfo) -> bool:
        """Without an oplog, the table remembers the etag that it has read."""
        return self._definition.oplog or self._row_etag == found.etag

    def _gone(self, entry: EntryFacts | None) -> Why:
        name = self._collection.name
        if entry is not None and entry.op != "delete":
            told = f"the object is gone, but the last recorded entry is {entry.seq} ({entry.op})"
            return self._said(Verdict.WAITING, told, self._record())
        if entry is not None:
            by = f" by {entry.actor}" if entry.actor else ""
            return self._said(Verdict.DELETED, f"deleted{by}: entry {entry.seq} of {entry.ts}", self._restore())
        marker = next(islice(self._session.store.versions(self._why.key), 1), None)
        if marker is not None:
            return self._said(Verdict.DELETED, f"deleted at {iso_seconds(marker.last_modified)}", self._restore())
        return self._said(
            Verdict.ABSENT,
            f"there is no object under this key, and no history; it would be {name} '{self._id}'",
            "check whether the upload succeeded, and whether it went to this bucket",
        )

    def _record(self) -> str:
        now = f"`worm repair {self._collection.name}` records it now"
        if not self._is_watched:
            return f"no workers watch this location: {now}"
        return f"wait a minute: its event may be on the way. Later, check dead letters and alarms; {now}"

    def _fold(self) -> str:
        now = f"`worm table rebuild {self._collection.name}` does it now"
        return f"wait a minute: a worker folds it. {now}" if self._is_watched else now

    def _restore(self) -> str:
        named = f"{self._collection.name} {shlex.quote(self._id)}"
        if self._definition.soft_delete and self._collection.trash.tombstone(self._id) is not None:
            return f"`worm trash restore {named}` restores it"
        if self._why.entry is not None and self._why.entry.seq > 1:
            return f"`worm rollback {named} --to {self._why.entry.seq - 1}` restores it"
        return "upload it again if you need it"


def _entry_facts(entry: OplogEntry, found: ObjectInfo | None) -> EntryFacts:
    is_same = found is not None and entry.op != "delete" and entry.etag == found.etag
    is_of_object = is_same and found is not None and found.is_version(entry.version_id)
    return EntryFacts(entry.seq, entry.op, entry.ts, entry.actor, is_of_object)


# A key that is not a document key


@dataclass(frozen=True, slots=True)
class Miss:
    """The closest model for a key, why the key is not one of its documents, and the right key."""

    model: ModelDef | None
    reason: str
    right_key: str | None = None


def nearest_miss(resolver: StorageResolver, models: Sequence[ModelDef], key: str) -> Miss:
    """Why a key is not a document key."""
    info = resolver.parse(key)
    segments = key.split("/")
    found = resolver.place(segments)
    return _outside(models, segments) if found is None else _inside(resolver, *found, info)


def _inside(resolver: StorageResolver, model: ModelDef, rest: list[str], info: KeyInfo) -> Miss:
    """Below the directory of a model."""
    wanted = f"documents of {model.name} are {pattern_of(model)}"
    if model.is_singleton:
        key = f"{model.location.directory}/{model.file}"
        return Miss(model, f"{model.name} has a single document, whose key is {key}", key)
    if info.model is not None:
        meant = unescape_id(rest[0]) if len(rest) == 2 else None
        return Miss(model, info.reason or "it is not the key of an id", _key(resolver, model, meant))
    if len(rest) == 1:
        name = rest[0].removesuffix(".json")
        is_named = rest[0] != model.file and name != rest[0]
        return Miss(
            model, f"{wanted}: a folder for the id is missing", _key(resolver, model, name if is_named else None)
        )
    if len(rest) == 2:
        return Miss(
            model, f"{wanted}: the file is named {rest[1]!r} instead of {model.file!r}", _key(resolver, model, rest[0])
        )
    depth = len(rest) - 2
    return Miss(model, f"{wanted}: it is {depth} folder{'s' if depth > 1 else ''} too deep")


def _key(resolver: StorageResolver, model: ModelDef, id: str | None) -> str | None:
    """The key of the id, if it can be one."""
    if id is None or model.id_problem(id):
        return None
    return resolver.document_key(model.name, id)


def _outside(models: Sequence[ModelDef], segments: list[str]) -> Miss:
    """Outside of all directories of models: the closest one has the most similar keys."""

    def likeness(model: ModelDef) -> float:
        folders = "/".join(segments[:-1] if model.is_singleton else segments[:-2])
        file = 0.25 if segments[-1] == model.file else 0.0
        return SequenceMatcher(None, folders.casefold(), model.location.directory.casefold()).ratio() + file

    nearest = max(models, key=likeness, default=None)
    if nearest is None or likeness(nearest) < LIKENESS_MIN:
        known = ", ".join(f"{pattern_of(model)} ({model.name})" for model in models) or "the schema has no models"
        return Miss(None, f"it is not in the directory of a model; documents are {known}")
    directory = nearest.location.directory
    reason = (
        "it is not in the directory of a model; the closest is "
        f"{nearest.name}, whose documents are {pattern_of(nearest)}"
    )
    depth = 1 if nearest.is_singleton else 2
    named = segments[-depth:] if len(segments) >= depth and segments[-1] == nearest.file else None
    return Miss(nearest, reason, None if named is None else "/".join([directory, *named]))


def _unmatched(session: Session, key: str, info: KeyInfo) -> Why:
    miss = nearest_miss(session.resolver, list(session.schema.models.values()), key)
    found = session.store.head(key) if acceptable(key) else None
    moved = f"upload it as {miss.right_key}" if miss.right_key else "upload it under the key of a document"
    there = "" if found is not None or not acceptable(key) else "; the object does not exist either"
    return Why(
        key,
        Verdict.UNMATCHED,
        f"no model has documents under this key, so it is not recorded: {miss.reason}{there}",
        f"{moved}, or push a schema whose path fits",
        model=None if miss.model is None else miss.model.name,
        rule=None if miss.model is None else pattern_of(miss.model),
        object=ObjectFacts.of(found),
        rejection=info.reason if info.model is not None else None,
    )


UNSEEN_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Unseen:
    """Uploads in a model's directory that are not documents: their number, and the first ones with the reasons."""

    model: str
    count: int
    first: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, session: Session, name: str) -> Unseen:
        """Lists the collection without its system keys."""
        collection, models = session.collection(name), list(session.schema.models.values())
        count, first = 0, list[tuple[str, str]]()
        for scan in IdRange().scans(collection.path, beside_system_keys=True):
            for listed in session.store.list(scan.prefix, start_after=scan.after):
                if scan.is_over(listed.key):
                    break
                if _is_hidden(listed.key) or session.resolver.parse(listed.key).kind is not KeyKind.UNKNOWN:
                    continue
                miss = nearest_miss(session.resolver, models, listed.key)
                if miss.model is not None and miss.model.name == name:
                    count += 1
                    first += [(listed.key, miss.reason)] if count <= UNSEEN_SHOWN_MAX else []
        return cls(name, count, tuple(first))
