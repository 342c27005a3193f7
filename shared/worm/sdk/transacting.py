"""Transactions over documents of several models of one space.

    with db.transaction() as tx:
        account = tx.get("Account", "a")
        tx.save("Account", {**account, "balance": account["balance"] - 10})
        tx.save("Transfer", {"from": "a", "amount": 10})

All reads are from one commit, plus the transaction's own writes. At the end of the block all writes become one commit,
or none does: `Conflict` if anything that was read or written has changed since. An error inside the block writes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, cast, overload

from pydantic import BaseModel

from worm.collections import AGAIN, Document, DocumentVersion
from worm.errors import Conflict, Hint, Invalid, show
from worm.formats import SINGLETON_ID
from worm.sdk.access import D, Touched
from worm.sdk.document import DocumentDict, Provenance
from worm.sdk.model import Model
from worm.sdk.shapes import model_name
from worm.spaces import KnownDocument, SpaceModel, Write
from worm.upkeep import Session

ModelName = str | type[BaseModel] | Model[Any]
M = TypeVar("M", bound=BaseModel)
"""A model by its name, by its class, or itself."""


@dataclass(frozen=True)
class _Entry:
    """A document during a transaction; `after` is its new state, if it is written."""

    model: Model
    logged: SpaceModel
    id: str
    known: KnownDocument
    after: Document | None = None
    is_written: bool = False

    @property
    def now(self) -> Document | None:
        return self.after if self.is_written else self.known.document

    @property
    def exists(self) -> bool:
        """Does the document exist now, valid or not?"""
        return self.after is not None if self.is_written else self.known.version is not None


class DocumentTransaction:
    """A transaction, for one thread and one block. `seq` is its commit, once there is one."""

    def __init__(self, session: Session, model: Callable[[str], Model], *, actor: str | None = None) -> None:
        self._session = session
        self._model = model
        self._actor = actor
        self._entries: dict[str, _Entry] = {}
        self._space: str | None = None
        self._at: int | None = None
        self._is_over = False
        self.seq: int | None = None

    def __repr__(self) -> str:
        state = f"commit {self.seq}" if self.seq is not None else "over" if self._is_over else "open"
        where = "" if self._space is None else f" in the space {self._space!r}"
        return f"<DocumentTransaction{where}, {state}: {', '.join(self._entries) or 'nothing read or written'}>"

    @overload
    def get(self, model: type[M], id: object = SINGLETON_ID) -> M | None: ...
    @overload
    def get(self, model: Model[D], id: object = SINGLETON_ID) -> D | None: ...
    @overload
    def get(self, model: str, id: object = SINGLETON_ID) -> DocumentDict | None: ...
    def get(self, model: ModelName, id: object = SINGLETON_ID) -> object | None:
        """The document, with what this transaction did to it; None if it does not exist."""
        chosen = self._model_of(model)
        entry = self._entry(chosen, id)
        known = entry.known
        if known.mistake is not None and not entry.is_written:
            raise entry.model._broken(entry.id, known.mistake)
        if entry.now is None:
            return None
        provenance = (
            None if entry.is_written or known.version is None else Provenance(entry.model.name, entry.id, known.version)
        )
        return chosen._shape.load(DocumentDict.of({"id": entry.id, **deepcopy(entry.now)}, provenance))

    def save(self, model: ModelName, document: Mapping[str, object] | BaseModel, *, id: object = None) -> Document:
        """Create the document, or replace the existing one. Without an id it gets one. You get the document as it will
        be stored; `Invalid` if the schema or the access mode refuses it."""
        chosen = self._model_of(model)
        given = chosen._shape.dump(document)
        entry = self._entry(chosen, chosen._new_id(given, id))
        self._check_version(entry, given)
        drafted = chosen._draft(deepcopy(given), entry.id, entry.known.document)
        self._write(entry, drafted)
        return deepcopy(drafted)

    def _check_version(self, entry: _Entry, given: DocumentDict) -> None:
        """A document that was read outside of the transaction must still be the one that the transaction sees."""
        origin, known = given.provenance, entry.known
        if origin is None or (origin.model, origin.id) != (entry.model.name, entry.id) or entry.is_written:
            return
        entry.model._check_whole(given, entry.id)
        try:
            entry.logged.match(entry.id, known, entry.model._version_seen(entry.id, origin.at))
        except Conflict as conflict:
            conflict.hint = Hint("read it inside the transaction: tx.get(…)", http=AGAIN.http)
            raise

    def require(
        self, model: ModelName, id: object = SINGLETON_ID, *, if_version: str | None = None, exists: bool = True
    ) -> None:
        """Require that the document exists, with version `if_version` if given, when the transaction is committed; or,
        with `exists=False`, that it does not. `Conflict` otherwise. Nothing is written."""
        if not exists and if_version is not None:
            raise Invalid(
                "a document that must not exist has no version",
                path="if_version",
                hint="pass only one of if_version= and exists=False",
            )
        chosen = self._model_of(model)
        entry = self._entry(chosen, id)
        if exists != entry.exists:
            raise Conflict(f"{chosen.name} '{entry.id}' {'does not exist' if exists else 'exists already'}")
        if if_version is not None and entry.is_written:
            raise Invalid(
                f"{chosen.name} '{entry.id}' was already written in this transaction",
                hint="require it before you write it",
            )
        if if_version is not None:
            entry.logged.match(
                entry.id, entry.known, chosen._version_seen(entry.id, DocumentVersion.decode(if_version))
            )

    def delete(self, model: ModelName, id: object = SINGLETON_ID) -> bool:
        """Delete the document; False if it does not exist."""
        chosen = self._model_of(model)
        chosen.check_removing()
        entry = self._entry(chosen, id)
        if not entry.exists:
            return False
        self._write(entry, None)
        return True

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._check_open()
        self._is_over = True
        if kind is None:
            self._commit()

    def _commit(self) -> None:
        written = [entry for entry in self._entries.values() if _is_change(entry)]
        if not written:
            return
        writes = [
            Write(one.logged, one.id, one.known.document, one.after, one.known.at, over=one.known.upload)
            for one in written
        ]
        seen = {entity: entry.known.at for entity, entry in self._entries.items()}
        for entry in self._entries.values():
            entry.logged.confirm(entry.id, entry.known)
        done = written[0].logged.commit(writes, seen, self._actor or self._session.settings.actor)
        self.seq = done.commit.seq
        models = {one.model.name: one.model for one in written}
        for name, model in models.items():
            own = [write for write in writes if write.model.collection.name == name]
            model._maintain([Touched(write.id, unfreed=done.unfreed.get(write.entity)) for write in own])

    def _write(self, entry: _Entry, after: Document | None) -> None:
        entity = entry.logged.entity(entry.id)
        self._entries[entity] = _Entry(entry.model, entry.logged, entry.id, entry.known, after, is_written=True)

    def _entry(self, model: Model, id: object) -> _Entry:
        """The document as of the transaction's first read."""
        self._check_open()
        logged = model.logged
        if logged is None:
            hint = 'set "space": "main" for it in the schema and push it, or save it outside of the transaction'
            raise Invalid(f"{model.name} is not in a space", hint=hint)
        name = self._session.schema.model(model.name).space
        if self._space not in (None, name):
            raise Invalid(f"{model.name} is in the space '{name}', but this transaction is in '{self._space}'")
        self._space = name
        entity_id = model._checked(id)
        entity = logged.entity(entity_id)
        if entity not in self._entries:
            known = logged.known(entity_id, self._at)
            self._at = known.at
            self._entries[entity] = _Entry(model, logged, entity_id, known)
        return self._entries[entity]

    def _model_of(self, model: ModelName) -> Model:
        if isinstance(model, Model):
            return model
        if isinstance(model, str):
            return self._model(model)
        if not isinstance(model, type):
            raise Invalid(f"must be a model, its name or its class, not {show(model)}", path="model")
        return cast("Model", self._model(model_name(model)).typed(model))

    def _check_open(self) -> None:
        if self._is_over:
            raise Invalid("the transaction has ended", hint="start a new one: db.transaction()")


def _is_change(entry: _Entry) -> bool:
    """False for one that was created and deleted in this transaction."""
    return entry.is_written and not (entry.after is None and entry.known.version is None)
