"""Models of a session on a branch: the same verbs, on documents, history and unique values of the branch.

A branch has no objects of its own: no tables, snapshots or trash. The verbs for these raise an error that says so. A
deleted document is restored from the log.

Only a session on a branch needs it; `Model` does not know of branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Unpack, cast

from worm.collections import Collection, Document, Head, Heads, UniqueValue
from worm.errors import Conflict, Hint, Invalid, NotFound, WormError, show
from worm.formats import SINGLETON_ID, JsonObject, JsonValue
from worm.query import DocumentState, OwnWrites
from worm.sdk.access import D, Result
from worm.sdk.document import About, id_shown
from worm.sdk.model import Model
from worm.sdk.past import PastMoment
from worm.sdk.searching import HistorySource
from worm.sdk.shapes import Shape
from worm.spaces import BranchModel
from worm.store import Object
from worm.tables import IndexStatus, Lake, LakeStatus, ManifestStatus, Progress, Publication, silent
from worm.upkeep import Session

if TYPE_CHECKING:
    from worm.spaces import SpaceModel


class BranchedModel(Model[D]):
    """A model on a branch. `logged` is the branch's."""

    def __init__(self, session: Session, name: str, shape: Shape[D], branch: str) -> None:
        self._branch = branch
        if session.schema.model(name).space is None:
            raise Invalid(
                f"{name} is not in a space, and only models in a space have branches",
                hint='set "space": "main" for it in the schema, and push the schema',
            )
        super().__init__(session, name, shape)

    def __repr__(self) -> str:
        return f"<Model {self.name} on branch {self._branch!r} at {self._session.store.url}>"

    def _checked(self, entity_id: object) -> str:
        """Also rejects ids that a log cannot have, before they look like damage of stored data."""
        checked = super()._checked(entity_id)
        BranchModel.check_id(self.name, checked)
        return checked

    def _seen_collection(self, collection: Collection) -> Collection:
        """With the history of the branch."""
        seen = copy(collection)
        space = partial(self._session.space, cast(str, collection.definition.space))
        seen.oplog = BranchModel.history(collection, self._branch, space)
        return seen

    def _open_log(self, space: str) -> SpaceModel:
        opened = partial(self._session.space, space)
        return BranchModel(self._collection, self._claiming, opened, branch=self._branch, holders=self._with_value)

    @property
    def _log(self) -> BranchModel:
        assert isinstance(self.logged, BranchModel)
        return self.logged

    def _with_value(self, value: UniqueValue) -> list[tuple[str, Document]]:
        wanted = {value.field: {"$eq": value.value}}
        asked = self._request({"filter": wanted, "sort": None, "limit": None, "offset": 0, "cursor": None}, None)
        return [(str(row["id"]), row) for row in self._answered(asked).page.rows]

    # Reading

    def _beside_the_table(self) -> OwnWrites:
        return self._log.now()

    def _stored_now(self, entity_id: str) -> Object | None:
        return self._log.latest(entity_id, None)

    def _current_object(self, entity_id: str) -> Object | None:
        return self._log.latest(entity_id, None)

    def _before(self, entity_id: str, parent: object) -> None:
        """Does nothing: a branch has no claims."""

    def exists(self, id: object = SINGLETON_ID) -> bool:
        return self._log.exists(self._checked(id), None)

    def _find_chunk(self, ids: Sequence[object]) -> list[Result[D]]:
        results: list[Result[D]] = []
        for given in ids:
            try:
                found = self.find_by_id(given)
                results.append(Result(self._checked(given), found))
            except WormError as error:
                results.append(Result(id_shown(given), error=error))
        return results

    def _targets(self, model: str, ids: Sequence[str]) -> dict[str, Document]:
        if self._session.schema.model(model).space is None:
            return super()._targets(model, ids)
        target = self._sibling(model)
        found = {one: target._current(one) for one in ids}
        return {one: {"id": one, **read[1]} for one, read in found.items() if read is not None}

    def _sibling(self, model: str) -> BranchedModel[D]:
        return BranchedModel(self._session, model, self._shape, self._branch)

    def _changed_since(self, moment: PastMoment, max_changed: int | None) -> Mapping[str, DocumentState | WormError]:
        """Includes documents that the branch has and the table lacks: the table belongs to the main branch."""
        then = super()._changed_since(moment, max_changed)
        return {**self._then([one for one in self._log.now().instead if one not in then], moment), **then}

    @property
    def _cursor_name(self) -> str:
        return f"{self.name} on {self._branch}"

    def _recorded(self) -> HistorySource:
        source = super()._recorded()
        if source.heads is None or source.heads.partial:
            self._refuse("a history search until the heads of the main branch are built")
        heads, states = dict(source.heads.heads), self._log.now().instead
        for entity_id in states:
            tail = self._collection.oplog.tail(entity_id)
            if tail is None:
                heads.pop(entity_id, None)
            else:
                heads[entity_id] = Head.of(tail)
        return HistorySource(self._collection, Heads(self.name, heads))

    # Trash

    def list_trashed(self) -> list[JsonObject]:
        """The documents that the branch deleted."""
        self._require_trash()
        listed: list[JsonObject] = []
        for entity_id, state in sorted(self._log.now().instead.items()):
            tail = self._collection.oplog.tail(entity_id) if state.document is None else None
            if tail is not None and tail.op == "delete" and tail.metadata.get("branch") == self._branch:
                by: dict[str, JsonValue] = {} if tail.actor is None else {"deletedBy": tail.actor}
                path = self._collection.documents.key(entity_id)
                listed.append({"id": entity_id, "deletedAt": tail.ts, **by, "restorePath": path, "ttl": None})
        return listed

    def restore(self, id: object = SINGLETON_ID, *, if_version: str | None = None, **about: Unpack[About]) -> D:
        """Restore a deleted document to its last state on the branch. `NotFound` if the branch never had it, `Conflict`
        if it exists."""
        self._require_trash()
        self._begin_write(creates=True)
        entity_id, space = self._checked(id), self._log.space
        entity = self._log.entity(entity_id)
        state = space.read(entity, branch=self._branch)
        if self._log.exists(entity_id, None):
            hint = Hint(
                "rollback() goes back to an earlier entry",
                "`worm rollback` goes back to an earlier entry",
                "POST …/{id}/rollback goes back to an earlier entry",
            )
            raise Conflict(f"{self.name} '{entity_id}' exists", hint=hint)
        before = space.read(entity, branch=self._branch, at=state.seq - 1) if state.seq else state
        if before.value is None:
            hint = Hint(
                "get_history() shows its past", "`worm history` shows its past", "GET …/{id}/history shows its past"
            )
            raise NotFound(f"{self._title} never had {self.name} '{entity_id}'", hint=hint)
        if if_version is not None:
            hint = Hint(
                "rollback() goes to an exact entry",
                "`worm rollback` goes to an exact entry",
                "POST …/{id}/rollback goes to an exact entry",
            )
            raise Invalid("must not be given on a branch", path="if_version", hint=hint)
        document = before.value
        return self._finish(
            None, (document, self._put(entity_id, document, None, about, op="restore", accepted=document))
        )

    # What a branch does not have

    @property
    def _title(self) -> str:
        return f"branch {show(self._branch)}"

    def _refuse(self, what: str) -> NoReturn:
        raise Invalid(f"{self._title} has no {what}", hint="merge the branch, or use the session on the main branch")

    def purge(self, id: object = SINGLETON_ID) -> bool:
        self._refuse("trash to purge: its commits stay")

    def purge_expired(self) -> list[str]:
        self._refuse("trash to purge: its commits stay")

    def snapshot(self, id: object = SINGLETON_ID) -> JsonObject:
        self._refuse("snapshots of its own: any state of it can be read without them")

    def get_manifest_status(self) -> ManifestStatus:
        self._refuse("tables of its own")

    def get_index_status(self) -> list[IndexStatus]:
        self._refuse("tables of its own")

    def build_manifest(self, *, progress: Progress = silent) -> ManifestStatus:
        self._refuse("tables of its own")

    def invalidate_manifest(self) -> None:
        self._refuse("tables of its own")

    def build_indexes(self) -> list[IndexStatus]:
        self._refuse("tables of its own")

    def build_index(self, name: str) -> IndexStatus:
        self._refuse("tables of its own")

    def publish(self) -> Publication:
        self._refuse("tables of its own")

    def get_lake_status(self) -> LakeStatus:
        self._refuse("tables of its own")

    def vacuum(self, *, retention_days: int = Lake.RETENTION_DAYS, dry_run: bool = False) -> list[str]:
        self._refuse("tables of its own")
