"""The changes of a branch, by model, document and field; and merging them into another branch.

The space plans a merge (`spaces/merging.py`), document by document. Before anything is committed, the result is checked
like a save: schema, access mode, unique values, references. A document that only one side changed is taken as it is,
`updatedAt` included; the policy decides about documents that both changed. Different `updatedAt` values are not a
conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from worm.collections import Diff, Document, FieldDiff, layout
from worm.errors import Conflict, Invalid, WormError, show
from worm.formats import JsonObject, ModelDef, Schema, dumps, load_pushed
from worm.sdk.access import Touched
from worm.sdk.bulk import groups_of
from worm.sdk.document import About
from worm.sdk.model import Model
from worm.sdk.reading import references_in, referred_model
from worm.spaces import DocumentMerge, KnownDocument, MergePlan, Policy, Space, SpaceModel, Write
from worm.store import in_chunks, in_parallel
from worm.upkeep import Session

NOTE_BYTES = 512
"""An upper limit for what the record of a merge says about a document besides the document itself, with usual names."""
PROBLEMS_MAX = 3
ASKED_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class BranchChange:
    """A document that a merge changes. `before` and `after` are None if there is no document; `fields`: the
    differences, as in an oplog entry; `is_conflict`: the other branch has changed it too.

    Examples:
        >>> db.create_branch("draft")
        >>> _ = db.branch("draft").model("Note").delete("n1")
        >>> [(change.id, change.change, change.is_conflict) for change in db.diff("draft")]
        [('n1', 'deleted', False)]
    """

    model: str
    id: str
    before: Document | None
    after: Document | None
    fields: FieldDiff
    is_conflict: bool = False

    @property
    def change(self) -> str:
        """`created`, `deleted` or `updated`."""
        return "created" if self.before is None else "deleted" if self.after is None else "updated"

    def __repr__(self) -> str:
        both = ", a conflict" if self.is_conflict else ""
        return f"<BranchChange {self.change} {self.model} {self.id!r}{both}: {', '.join(self.fields)}>"


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge. `seqs`: its commits, none if there was nothing to do. `merge_id` is in the history of each
    document.

    Examples:
        >>> db.create_branch("draft")
        >>> _ = db.branch("draft").model("Note").delete("n1")
        >>> [len(result.seqs) for result in db.merge("draft")]
        [1]
    """

    branch: str
    into: str
    merge_id: str | None
    seqs: tuple[int, ...]
    changes: tuple[BranchChange, ...]


Target = Callable[[str, str], Model]
"""A model on a branch, by their names."""


@dataclass(frozen=True)
class _Write:
    """A document of the plan, on the target branch."""

    model: Model
    logged: SpaceModel
    id: str
    known: KnownDocument
    after: Document | None

    @property
    def entity(self) -> str:
        return self.logged.entity(self.id)

    def to_write(self, at: int, note: JsonObject) -> Write:
        """The same for a commit, of a plan as of commit `at`."""
        return Write(self.logged, self.id, self.known.document, self.after, at, note=note)


class Merge:
    """Merges one branch into another, in one space."""

    def __init__(self, session: Session, target: Target, space: str, branch: str, into: str) -> None:
        self._session = session
        self._target = target
        self._space_name = space
        self._documents = DocumentMerge(partial(session.space, space), branch, into, self._uploaded)

    @property
    def _schema(self) -> Schema:
        return self._session.schema

    def diff(self) -> list[BranchChange]:
        """What a merge would change, in the order of models and ids. Documents that both sides changed are shown as on
        the branch."""
        return self._described(self._documents.compare())

    def run(self, policy: Policy, about: About, *, dry_run: bool, check_references: bool) -> MergeResult:
        """Checked, then committed. Planned again if another writer changes any of it in the meantime."""
        return self._documents.until_decided(
            lambda: self._attempt(policy, about, dry_run=dry_run, check_references=check_references)
        )

    def _attempt(self, policy: Policy, about: About, *, dry_run: bool, check_references: bool) -> MergeResult:
        plan = self._documents.plan(policy)
        self._check_models(plan)
        changes = self._described(plan)
        writes = self._writes(plan)
        if check_references:
            self._check_references(writes)
        self._check_unique(writes)
        if dry_run or not plan.is_needed:
            return MergeResult(*self._documents.names, plan.merge_id, (), tuple(changes))
        merge_id = plan.merge_id or self._session.ids.ulid()
        seqs = self._commit(plan, writes, merge_id, about)
        return MergeResult(*self._documents.names, merge_id, seqs, tuple(changes))

    # The writes

    def _place(self, entity: str) -> tuple[str, str] | None:
        """Model and id; None for an entity that is not a document of this session's models."""
        model, slash, entity_id = entity.partition("/")
        known = self._schema.models.get(model) if slash else None
        return (model, entity_id) if known is not None and known.space == self._space_name else None

    def _uploaded(self, entity: str, at: int) -> JsonObject | None:
        place = self._place(entity)
        logged = None if place is None else self._on_target(place[0]).logged
        return None if logged is None or place is None else logged.known(place[1], at).document

    def _on_target(self, model: str) -> Model:
        return self._target(model, self._documents.into)

    def _described(self, plan: MergePlan) -> list[BranchChange]:
        changes: list[BranchChange] = []
        for entity, old, new, is_conflict in self._documents.changes(plan):
            place = self._place(entity)
            if place is None:
                continue
            fields = dict(Diff.between(old, new or {}).diff)
            fields.pop("updatedAt", None)
            changes.append(BranchChange(*place, old, new, fields, is_conflict))
        return changes

    def _writes(self, plan: MergePlan) -> list[_Write]:
        """Each is checked like a save; all mistakes are reported at once."""
        asked = [(entity, place) for entity in sorted(plan.values) if (place := self._place(entity)) is not None]
        drafts = in_parallel(lambda one: self._draft(plan, *one), asked)
        mistakes = [one for one in drafts if isinstance(one, WormError)]
        if mistakes:
            raise _refusal(mistakes)
        return [one for one in drafts if isinstance(one, _Write)]

    def _draft(self, plan: MergePlan, entity: str, place: tuple[str, str]) -> _Write | WormError:
        model, after = self._on_target(place[0]), plan.values[entity]
        logged = model.logged
        assert logged is not None
        try:
            known = logged.known(place[1], plan.at)
            model._begin_write(creates=known.version is None and after is not None)
            if known.is_stored and not self._documents.is_known_upload(entity, known):
                raise Conflict(
                    "it was uploaded or edited outside of the SDK on the branch that it would go to",
                    hint="save it there with the SDK or `worm put`, so that the log has it; then merge again",
                )
            if after is not None:
                model._encoded(place[1], after, known.document)
        except (Invalid, Conflict) as mistake:
            mistake.message = f"{model.name} '{place[1]}': {mistake.message}"
            return mistake
        return _Write(model, logged, place[1], known, after)

    # Checks of the result

    def _check_models(self, plan: MergePlan) -> None:
        """Documents of a pushed model that this session does not know could be neither checked nor written. One
        request, if the branch changed entities that are not documents for this session."""
        others = {one.partition("/")[0] for one in plan.values if self._place(one) is None}
        found = self._session.store.get(layout.SCHEMA_KEY) if others else None
        pushed = {} if found is None else load_pushed(found.body, layout.SCHEMA_KEY).models
        unknown = sorted(one for one in others if one in pushed and pushed[one].space == self._space_name)
        if unknown:
            names = ", ".join(unknown)
            raise Invalid(
                f"nothing was merged: the branch changes documents of {names}, which this session does not know",
                hint="connect with all models of the space, or without `models` and `schema`",
            )

    def _check_unique(self, writes: Sequence[_Write]) -> None:
        """No document outside of the merge has a value that one inside gets."""
        after = {write.entity: write.after for write in writes}
        for write in writes:
            claims = write.model._collection.claims
            for value in claims.values(write.after):
                if value.is_in(write.known.document):
                    continue
                for holder in write.model.find_all({value.field: {"$eq": value.value}}, select=[value.field]):
                    name = write.logged.entity(str(holder["id"]))
                    if name != write.entity and value.is_in(after.get(name, dict(holder))):
                        hint = (
                            f"nothing was merged: {write.model.name} '{write.id}' would "
                            "get the same value; change one of the two"
                        )
                        raise value.taken_by(str(holder["id"]), hint=hint)

    def _check_references(self, writes: Sequence[_Write]) -> None:
        """Documents that the merge writes must refer to existing documents, and nothing may refer to documents that it
        deletes."""
        after = {write.entity: write.after for write in writes}
        problems = [*self._dangling(writes, after), *self._orphaned(writes, after)]
        if problems:
            raise _refusal([Invalid(one) for one in problems])

    def _dangling(self, writes: Sequence[_Write], after: Mapping[str, Document | None]) -> list[str]:
        wanted: dict[tuple[str, str], str] = {}
        for write in writes:
            for field, target in _references(write.model._collection.definition).items():
                known = set(references_in((write.known.document or {}).get(field)))
                for one in references_in((write.after or {}).get(field)):
                    if one not in known:
                        wanted.setdefault((target, one), f"{write.model.name} '{write.id}' refers in {field} to")
        asked = list(wanted)
        there = in_parallel(lambda one: self._is_there(*one, after), asked)
        return [
            f"{wanted[one]} {one[0]} '{one[1]}', which does not exist"
            for one, is_there in zip(asked, there, strict=True)
            if not is_there
        ]

    def _is_there(self, model: str, entity_id: str, after: Mapping[str, Document | None]) -> bool:
        name = self._documents.entity(model, entity_id)
        if name in after:
            return after[name] is not None
        if model not in self._schema.models:
            return True  # it cannot be known
        return self._on_target(model).exists(entity_id)

    def _orphaned(self, writes: Sequence[_Write], after: Mapping[str, Document | None]) -> list[str]:
        problems: list[str] = []
        for name in sorted({write.model.name for write in writes}):
            gone = [one.id for one in writes if one.model.name == name and one.after is None and one.known.document]
            for model, definition in self._schema.models.items():
                for field, target in _references(definition).items():
                    if target == name and gone:
                        problems += self._still_referring(model, field, name, gone, after)
        return problems

    def _still_referring(
        self, model: str, field: str, target: str, gone: Sequence[str], after: Mapping[str, Document | None]
    ) -> list[str]:
        found: list[str] = []
        for some in in_chunks(gone, ASKED_AT_ONCE):
            rows = self._on_target(model).find_all({field: {"$in": list(some)}}, select=[field])
            for row in rows:
                name = self._documents.entity(model, str(row["id"]))
                now = after[name] if name in after else dict(row)
                still = set(references_in((now or {}).get(field))) & set(some)
                by = f"would be deleted, but {model} '{row['id']}' refers to it in {field}"
                found += [f"{target} '{one}' {by}" for one in sorted(still)]
        return found

    # Committing

    def _commit(self, plan: MergePlan, writes: Sequence[_Write], merge_id: str, about: About) -> tuple[int, ...]:
        by_entity = {write.entity: write for write in writes}
        chunks = _chunks(plan, by_entity, self._documents.space)
        actor = about.get("actor") or self._session.settings.actor
        seqs: list[int] = []
        for number, entities in enumerate(chunks, 1):
            chosen = [by_entity[one] for one in entities if one in by_entity]
            done = self._documents.commit(
                plan,
                [one.to_write(plan.at, self._note(one, about, merge_id)) for one in chosen],
                only=entities,
                before=seqs,
                is_last=number == len(chunks),
                merge_id=merge_id,
                actor=actor,
            )
            seqs.append(done.commit.seq)
            models = {one.model.name: one.model for one in chosen}
            for name, model in models.items():
                own = [one for one in chosen if one.model.name == name]
                model._maintain([Touched(one.id, unfreed=done.unfreed.get(one.entity)) for one in own])
        return tuple(seqs)

    def _note(self, write: _Write, about: About, merge_id: str) -> JsonObject:
        return self._documents.note(write.entity, write.model._note(about), merge_id)


def _chunks(plan: MergePlan, writes: Mapping[str, _Write], space: Space) -> list[list[str]]:
    """The entities of each commit. Documents that pass a unique value to each other are in the same commit."""
    entities = sorted(plan.values)
    shared = [_unique_names(writes.get(one)) for one in entities]
    config = space.config
    room, left = config.commit_bytes_max - 4096, 0
    chunks: list[list[str]] = [[]]
    for group in groups_of(shared):
        names = [entities[at] for at in group]
        size = sum(NOTE_BYTES + 2 * len(dumps(one)) + len(dumps(plan.values[one])) for one in names)
        if chunks[-1] and (size > left or len(chunks[-1]) + len(names) > config.merge_operations_max):
            chunks.append([])
        if not chunks[-1]:
            left = room
        chunks[-1] += names
        left -= size
    return chunks


def _unique_names(write: _Write | None) -> set[tuple[str, str, bytes]]:
    if write is None:
        return set()
    claims, model = write.model._collection.claims, write.model.name
    values = [*claims.values(write.known.document), *claims.values(write.after)]
    return {(model, value.field, value.canonical) for value in values}


def _references(definition: ModelDef) -> dict[str, str]:
    """The fields that refer to other models, and to which."""
    found = {name: referred_model(field) for name, field in definition.fields.items()}
    return {name: target for name, target in found.items() if target}


def _refusal(mistakes: Sequence[WormError]) -> WormError:
    """One error for all: the first one, which lists the others."""
    told = "; ".join(one.message for one in mistakes[:PROBLEMS_MAX])
    more = f"; and {len(mistakes) - PROBLEMS_MAX} more" if len(mistakes) > PROBLEMS_MAX else ""
    kind = Conflict if all(isinstance(one, Conflict) for one in mistakes) else Invalid
    return kind(
        f"nothing was merged: {told}{more}", hint=mistakes[0].hint or "change it on the branch; then merge again"
    )


def checked_name(name: object) -> str:
    """A branch name that programs may use."""
    if not isinstance(name, str) or not name:
        raise Invalid(f"must be the name of a branch, not {show(name)}", path="branch")
    return name
