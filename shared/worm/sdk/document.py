"""Documents as reads return them: they know their version.

A save is conditional on the version of its document, not on what the session last read. So a document carries its
*provenance*: model, id, version, and its stored bytes. It survives `copy`, `doc | {...}` and `pickle`. An object of a
pydantic class carries the same, separate from its fields.

*version* is opaque text for callers. It identifies the stored object by etag, by the commit of the model's space, or
(for a row of a table) by the seq of its oplog entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self, TypedDict
from urllib.parse import quote
from uuid import UUID

from worm.collections import Document, DocumentVersion, origins
from worm.errors import Invalid, show
from worm.formats import SYSTEM_FIELDS, JsonObject, JsonValue, check_json, dumps, dumps_document, loads_document
from worm.sdk.html import document_html

ATTRIBUTE = "__worm__"
"""A pydantic object has its provenance in its `__dict__` under this name. It is not a field: it is neither dumped nor
compared, but copied and pickled."""


class About(TypedDict, total=False):
    """Arguments of every writing verb: who writes, why, and any further context. All of it goes into the history."""

    actor: str | None
    reason: str | None
    metadata: Mapping[str, JsonValue] | None


@dataclass(slots=True)
class Provenance:
    """Where a document came from. `body` is the stored bytes (None: unknown), `read_at` when it was read or written.
    `partial` says why it cannot be saved: it is not the whole document. `as_of`: it is from a moment in the past, so it
    cannot be saved either. `carried`: fields that an object's class does not declare."""

    model: str
    id: str
    at: DocumentVersion
    read_at: datetime | None = None
    body: bytes | None = None
    partial: str = ""
    as_of: str = ""
    carried: Document = field(default_factory=dict)

    @property
    def version(self) -> str | None:
        return self.at.encode()

    @property
    def seq(self) -> int | None:
        return self.at.seq

    def document(self) -> Document | None:
        """The stored bytes, if known."""
        return None if self.body is None else loads_document(self.body, max_bytes=len(self.body))

    def fresh_version_id(self, now: datetime) -> str | None:
        """The same bytes may have been stored again since. So the version id counts only for a short time, and not
        after the clock was set back."""
        is_fresh = self.read_at is not None and timedelta(0) <= now - self.read_at <= origins.TRUST
        return self.at.version_id if is_fresh else None


class DocumentDict(dict[str, JsonValue]):
    """A document: a dict that also has `.version`, `.seq` and `.model`. They are None if it was never stored; `seq` is
    also None while the history does not have the version yet.

    Examples:
        >>> acme = db.model("Customer").get("acme")
        >>> acme["name"], acme.model, acme.version is not None
        ('Acme', 'Customer', True)
    """

    __slots__ = ("_provenance",)

    _provenance: Provenance | Callable[[], Provenance] | None

    def __init__(self, fields: Mapping[str, JsonValue] | Iterable[tuple[str, JsonValue]] = (), /) -> None:
        super().__init__(fields)
        self._provenance = None

    @classmethod
    def of(cls, fields: Mapping[str, JsonValue], provenance: Provenance | Callable[[], Provenance] | None) -> Self:
        """A function is called when the provenance is needed: for most rows it never is."""
        made = cls(fields)
        made._provenance = provenance
        return made

    @property
    def provenance(self) -> Provenance | None:
        if callable(self._provenance):
            self._provenance = self._provenance()
        return self._provenance

    @provenance.setter
    def provenance(self, provenance: Provenance | None) -> None:
        self._provenance = provenance

    @property
    def version(self) -> str | None:
        return None if self.provenance is None else self.provenance.version

    @property
    def seq(self) -> int | None:
        return None if self.provenance is None else self.provenance.seq

    @property
    def model(self) -> str | None:
        return None if self.provenance is None else self.provenance.model

    def _repr_html_(self) -> str:
        return document_html(self, model=self.model, version=self.version, seq=self.seq)

    def copy(self) -> Self:
        return self.of(self, self.provenance)

    def __or__(self, other: Mapping[str, JsonValue]) -> Self:  # type: ignore[override]  # dict's is for dicts only
        return self.of({**self, **other}, self.provenance)

    def __ror__(self, other: Mapping[str, JsonValue]) -> Self:  # type: ignore[override]  # as above
        return self.of({**other, **self}, self.provenance)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), dict(self), self.provenance)


def _restored(cls: type[DocumentDict], fields: Document, provenance: Provenance | None) -> DocumentDict:
    return cls.of(fields, provenance)


def provenance_of(item: object) -> Provenance | None:
    """The provenance of a document or an object; None if it was never stored."""
    if isinstance(item, DocumentDict):
        return item.provenance
    found = getattr(item, "__dict__", {}).get(ATTRIBUTE)
    return found if isinstance(found, Provenance) else None


def is_same(one: Mapping[str, JsonValue], other: Mapping[str, JsonValue]) -> bool:
    """Are they equal to the byte, except for `updatedAt`? 1 and 1.0 differ."""
    return _contents(one) == _contents(other)


def _contents(document: Mapping[str, JsonValue]) -> bytes:
    return dumps({name: value for name, value in document.items() if name not in ("id", "updatedAt")})


# Actor, reason and metadata of a write

OWN_NOTES = frozenset({"rollback", "snapshot", "restoredFrom"})
NOTE_BYTES_MAX, ACTOR_BYTES_MAX = 1200, 300
"""All metadata of an S3 object may have 2 kB in total, percent-encoded. So these limits count percent-encoded bytes
too."""


def note_of_write(about: About) -> JsonObject | None:
    """The `metadata` of the history entry; `Invalid` if it cannot be stored."""
    unknown = set(about) - About.__annotations__.keys()
    if unknown:
        raise Invalid(f"unknown argument {show(min(unknown))}", hint="a write takes actor, reason and metadata")
    given: object = about.get("metadata")
    if given is not None and not isinstance(given, Mapping):
        raise Invalid(f"must be an object, not {show(given)}", path="metadata")
    note: JsonObject = dict(about.get("metadata") or {})
    if "reason" in note and about.get("reason") is not None:
        raise Invalid("metadata and reason= both contain a reason", path="reason", hint="pass only one of them")
    taken = sorted(note.keys() & (origins.RESERVED | OWN_NOTES))
    if taken:
        raise Invalid(
            f"{show(taken[0])} is a name that the history reserves", path="metadata", hint="choose another name"
        )
    if about.get("reason") is not None:
        note["reason"] = about["reason"]
    _check_texts(about)
    hint = "S3 keeps 2 kB of metadata with an object; put more into the document"
    if len(quote(dumps_document(note), safe="")) > NOTE_BYTES_MAX:
        what = f"metadata and reason take more than {NOTE_BYTES_MAX} bytes when percent-encoded"
        raise Invalid(what, path="metadata", hint=hint)
    if len(quote(about.get("actor") or "", safe="")) > ACTOR_BYTES_MAX:
        raise Invalid(f"takes more than {ACTOR_BYTES_MAX} bytes when percent-encoded", path="actor", hint=hint)
    return note or None


def _check_texts(about: About) -> None:
    for name in ("actor", "reason"):
        given: object = about.get(name)
        if given is None:
            continue
        if not isinstance(given, str):
            raise Invalid(f"must be text, not {show(given)}", path=name)
        check_json(given)  # half a surrogate pair cannot be encoded


def bring_dict(item: object, document: DocumentDict) -> None:
    """Fields that the caller changed in the meantime stay."""
    if isinstance(item, DocumentDict):
        for name, value in document.items():
            if name in SYSTEM_FIELDS or name not in item:
                item[name] = deepcopy(value)
        item.provenance = document.provenance


def id_shown(given: object) -> str:
    """What the caller passed as an id, for results, valid or not."""
    return str(given) if isinstance(given, str | UUID) else show(given)
