"""What pushing a schema would do, before anything happens: models and fields that are added or removed, indexes to
build, and documents that would not fit.

A document *would not fit* if it fits the pushed schema and breaks the new one. If it breaks both, it does not count,
because this push does not make it worse. Only changed rules are checked, on the rows of the table if it has the fields,
else on the documents, all of them or a sample.

For a dry run, documents of new models are checked as well: those that break the schema are left as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from worm.collections import Collection, UniqueValue, layout
from worm.errors import Hint, Invalid, SchemaDiffers, show
from worm.formats import (
    SYSTEM_FIELDS,
    FieldDef,
    FieldsDef,
    JsonObject,
    JsonValue,
    ModelDef,
    Problem,
    Schema,
    dumps,
)
from worm.store import Object, Read, Store, in_chunks
from worm.upkeep.pushed_schema import STRANDED_HINT, predecessors, pushed_before, stranding, successor
from worm.upkeep.session import Session

CHUNK = 500
EXAMPLES_MAX = 5
_MEANWHILE = "in the meantime they stay readable, and a change that makes them fit is accepted"
MISFIT_HINT = Hint(
    f"push with force=True, then change them with migrate(): {_MEANWHILE}",
    f"push with --force, then change them with `worm migrate`: {_MEANWHILE}",
)
Kind = Literal["added", "changed", "renamed", "removed", "same"]
ModelProgress = Callable[[str, int, int | None], None]
"""Called with the model, the number of documents done, and the total if known."""
Row = Mapping[str, JsonValue]


def unwatched(model: str, done: int, total: int | None) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class UnfitDocument:
    """A document that breaks the new schema, and how."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of checking documents. `source` says where: rows of the table, documents, or nothing, because no rule
    changes. `documents` is their number, `checked` how many were checked, `misfits` how many would not fit, with the
    first ones as `examples`; `conflicts` are values of new unique indexes that several documents have."""

    source: Literal["table", "documents", "nothing"] = "nothing"
    documents: int = 0
    checked: int = 0
    misfits: int = 0
    examples: tuple[UnfitDocument, ...] = ()
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """What a push does to one model. `was` is its name in the pushed schema, if different; `settings` lists changed
    settings as text."""

    model: str
    change: Kind
    was: str | None = None
    path: str = ""
    fields_added: tuple[str, ...] = ()
    fields_removed: tuple[str, ...] = ()
    fields_changed: tuple[str, ...] = ()
    indexes_built: tuple[str, ...] = ()
    indexes_dropped: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    examined: Examined = Examined()

    @property
    def leaves_misfits(self) -> bool:
        """Would documents that are valid now break the schema?"""
        return self.change != "added" and self.examined.misfits > 0

    def told_misfits(self) -> str:
        found = self.examined
        first = ", ".join(f"'{one.id}' ({one.reason})" for one in found.examples)
        more = ", …" if found.misfits > len(found.examples) else ""
        of = f"{found.misfits:,} of {found.checked:,} documents"
        looked = " that were checked" if found.checked < found.documents else ""
        return f"{self.model}: {of}{looked} would not fit the new schema: {first}{more}"

    def to_json(self) -> JsonObject:
        found = self.examined
        return {
            "model": self.model,
            "change": self.change,
            "was": self.was,
            "path": self.path,
            "fieldsAdded": list(self.fields_added),
            "fieldsRemoved": list(self.fields_removed),
            "fieldsChanged": list(self.fields_changed),
            "indexesBuilt": list(self.indexes_built),
            "indexesDropped": list(self.indexes_dropped),
            "settings": list(self.settings),
            "source": found.source,
            "documents": found.documents,
            "checked": found.checked,
            "misfits": found.misfits,
            "examples": [{"id": one.id, "reason": one.reason} for one in found.examples],
            "conflicts": list(found.conflicts),
        }


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What a push does. `stranded` says which documents or archives it would leave behind."""

    is_first: bool
    models: tuple[ModelPlan, ...] = ()
    stranded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        store: Store,
        schema: Schema,
        *,
        sample: int | None = None,
        check_new: bool = True,
        progress: ModelProgress = unwatched,
    ) -> PushPlan:
        """What pushing the schema would do. Reads only. `sample`: check at most this many documents of each model (0:
        none). `check_new` False: documents of new models are not checked."""
        if sample is not None and (type(sample) is not int or sample < 0):
            raise Invalid(f"must be a whole number of at least 0, not {show(sample)}", path="sample")
        scope = ScanScope(sample, check_new, progress)
        return plan_over(store, store.get(layout.SCHEMA_KEY), schema, scope)

    @property
    def is_nothing(self) -> bool:
        return not self.is_first and all(one.change == "same" for one in self.models)

    @property
    def misfits(self) -> int:
        """How many documents that are valid now would not fit."""
        return sum(one.examined.misfits for one in self.models if one.leaves_misfits)

    def refusal(self) -> Invalid | None:
        """Why the push needs `force`; None if it does not."""
        told = [one.told_misfits() for one in self.models if one.leaves_misfits]
        if self.stranded:
            return Invalid("; ".join(self.stranded), key=layout.SCHEMA_KEY, hint=STRANDED_HINT)
        return Invalid("; ".join(told), key=layout.SCHEMA_KEY, hint=MISFIT_HINT) if told else None

    def to_json(self) -> JsonObject:
        return {
            "first": self.is_first,
            "misfits": self.misfits,
            "stranded": list(self.stranded),
            "models": [one.to_json() for one in self.models],
        }


@dataclass(frozen=True, slots=True)
class ScanScope:
    """How many documents are checked."""

    sample: int | None = None
    check_new: bool = True
    progress: ModelProgress = unwatched

    def chosen(self, ids: Sequence[str]) -> Sequence[str]:
        """All of them, or a sample that is spread evenly."""
        if self.sample is None or len(ids) <= self.sample:
            return ids
        return [ids[at * len(ids) // self.sample] for at in range(self.sample)]


def plan_over(store: Store, current: Object | None, schema: Schema, scope: ScanScope) -> PushPlan:
    """The same for a schema that was already read."""
    old = pushed_before(current)
    before = predecessors(old, schema)
    if current is not None and current.body == schema.to_json():
        scope = ScanScope(0, False)
    new_session = Session(store, schema=schema, probe=False)
    old_session = new_session if old is None else Session(store, schema=old, probe=False)
    models = []
    for name, model in schema.models.items():
        known = before.get(name) or (old.models.get(name) if old is not None else None)
        if known is None:
            examined = _examine_new(new_session.collection(name), scope)
            models.append(ModelPlan(name, "added", path=model.path, examined=examined))
        else:
            models.append(_altered(old_session, known, model, scope))
    if old is not None:
        gone = (one for one in old.models.values() if one.name not in schema.models and successor(one, schema) is None)
        models += [ModelPlan(one.name, "removed", path=one.path) for one in gone]
    return PushPlan(old is None, tuple(models), tuple(stranding(store, old, schema)) if old is not None else ())


# Differences between two definitions


def schema_differences(old: Schema, new: Schema) -> list[str]:
    """One line for each model that differs between the old and the new schema."""
    lines = [f"{name} is added" for name in new.models if name not in old.models]
    lines += [f"{name} is missing" for name in old.models if name not in new.models]
    for name, model in new.models.items():
        if name in old.models and old.models[name] != model:
            lines.append(f"{name}: {told_changes(model_changes(old.models[name], model))}")
    if old.storage != new.storage:
        lines.append("the layout of oplog, snapshots and trash")
    return lines


def warn_if_different(store: Store, schema: Schema) -> None:
    """Warn if the pushed schema is not the one that the session uses. One request; a damaged pushed schema does not
    matter to a session with its own."""
    current = store.get(layout.SCHEMA_KEY)
    pushed = None if current is None or current.body == schema.to_json() else pushed_before(current, force=True)
    lines = [] if pushed is None else schema_differences(pushed, schema)
    if lines:
        what = f"the schema passed to connect() differs from the one pushed to {store.url}: {'; '.join(lines)}"
        hint = "leave out schema= to use the pushed one, or push yours with db.push()"
        warnings.warn(f"{what} ({hint})", SchemaDiffers, stacklevel=4)


def told_changes(plan: ModelPlan) -> str:
    """The differences, in one line."""
    parts = [
        ("fields added", plan.fields_added),
        ("fields removed", plan.fields_removed),
        ("fields changed", plan.fields_changed),
        ("indexes to build", plan.indexes_built),
        ("indexes dropped", plan.indexes_dropped),
    ]
    told = [f"{label} {', '.join(names)}" for label, names in parts if names]
    return "; ".join([*told, *plan.settings]) or "names of indexes"


def model_changes(before: ModelDef, after: ModelDef) -> ModelPlan:
    """The differences between two definitions of one model, without checking documents."""
    changed = [name for name, one in after.fields.items() if name in before.fields and before.fields[name] != one]
    built = {one.field: one for one in after.indexes.values()}
    had = {one.field: one for one in before.indexes.values()}
    is_same = before == after and before.name == after.name
    return ModelPlan(
        after.name,
        "renamed" if before.name != after.name else "same" if is_same else "changed",
        was=before.name if before.name != after.name else None,
        path=after.path,
        fields_added=tuple(name for name in after.fields if name not in before.fields),
        fields_removed=tuple(name for name in before.fields if name not in after.fields),
        fields_changed=tuple(changed),
        indexes_built=tuple(name for name, one in built.items() if had.get(name) != one),
        indexes_dropped=tuple(name for name in had if name not in built),
        settings=tuple(_settings(before, after)),
    )


def _settings(before: ModelDef, after: ModelDef) -> Iterator[str]:
    was, becomes = (one.shape(is_complete=True, leave_out=("fields", "indexes")) for one in (before, after))
    for name, value in becomes.items():
        old = was[name]
        if isinstance(old, dict) and isinstance(value, dict):
            for inner, new in value.items():
                if old[inner] != new:
                    yield f"{name}.{inner} {_shown(old[inner])} to {_shown(new)}"
        elif old != value:
            yield f"{name} {_shown(old)} to {_shown(value)}"


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


# Documents

_Check = Callable[[JsonValue], list[Problem]]


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules that a push changes for one model. `needs` are the fields that decide whether a document breaks them;
    None: the whole document is needed."""

    before: _Check
    after: _Check
    needs: frozenset[str] | None
    unique: tuple[str, ...] = ()

    @classmethod
    def of(cls, before: ModelDef, after: ModelDef) -> _Rules | None:
        """None: no document can break any of them."""
        names = [name for name, one in after.fields.items() if _rule(before.fields.get(name)) != _rule(one)]
        dropped = [name for name in before.fields if name not in after.fields] if after.strict else []
        unique = tuple(one.field for one in after.unique_indexes if one not in before.unique_indexes)
        if after.strict and not before.strict:
            return cls(before.validate_document, after.validate_document, None, unique)
        if not (names or dropped or unique):
            return None
        old = {name: before.fields[name] for name in names if name in before.fields}
        new = {name: after.fields[name] for name in names}
        needs = frozenset((*names, *dropped, *unique))
        check = _forbidding(FieldsDef(fields=new).check(), dropped)
        return cls(FieldsDef(fields=old).check(), check, needs, unique)


def _rule(one: FieldDef | None) -> JsonValue:
    """A definition without rules that no document can break."""
    return None if one is None else one.shape(is_complete=True, leave_out=("default", "description"))


def _forbidding(check: _Check, names: Sequence[str]) -> _Check:
    def checked(value: JsonValue) -> list[Problem]:
        there = value if isinstance(value, dict) else {}
        forbidden = [name for name in names if name in there and name not in SYSTEM_FIELDS]
        return [*check(value), *(Problem(name, "unknown field") for name in forbidden)]

    return checked


@dataclass
class _Tally:
    """Collects findings, document by document."""

    rules: _Rules
    checked: int = 0
    misfits: int = 0
    examples: list[UnfitDocument] = field(default_factory=list)
    holders: dict[tuple[str, bytes], list[str]] = field(default_factory=dict)

    def see(self, entity_id: str, row: Row) -> None:
        self.checked += 1
        earlier, problems = self.rules.before(dict(row)), self.rules.after(dict(row))
        if problems and not earlier:
            self.misfits += 1
            if len(self.examples) < EXAMPLES_MAX:
                self.examples.append(UnfitDocument(entity_id, "; ".join(map(str, problems))))
        for name in self.rules.unique:
            value = UniqueValue.of(name, row)
            if value is not None:
                self.holders.setdefault((f"{name}={value.text}", value.canonical), []).append(entity_id)

    def conflicts(self) -> tuple[str, ...]:
        return tuple(
            f"{told} is on {len(ids):,} documents: {', '.join(ids[:EXAMPLES_MAX])}"
            for (told, _), ids in sorted(self.holders.items())
            if len(ids) > 1
        )


def _altered(session: Session, before: ModelDef, after: ModelDef, scope: ScanScope) -> ModelPlan:
    plan = model_changes(before, after)
    rules = _Rules.of(before, after)
    if rules is None or scope.sample == 0:
        return plan
    examined = _examine(session, before, rules, scope)
    return replace(plan, examined=examined)


def _examine(session: Session, before: ModelDef, rules: _Rules, scope: ScanScope) -> Examined:
    view = session.table(before.name).view()
    if view is not None and rules.needs is not None and rules.needs <= set(view.fields) and not view.columns.cut:
        rows = view.rows
        ids: Sequence[str] = sorted(rows)
        found: Iterable[tuple[str, Row]] = ((one, rows[one]) for one in scope.chosen(ids))
        source: Literal["table", "documents"] = "table"
    else:
        collection = session.collection(before.name)
        ids = sorted(collection.current_ids())
        found, source = _documents(collection, scope.chosen(ids), scope), "documents"
    tally = _Tally(rules)
    for entity_id, row in found:
        tally.see(entity_id, row)
    return Examined(source, len(ids), tally.checked, tally.misfits, tuple(tally.examples), tally.conflicts())


def _examine_new(collection: Collection, scope: ScanScope) -> Examined:
    """Documents of a new model: those that break the schema would be left as they are."""
    if not scope.check_new or scope.sample == 0:
        return Examined()
    ids = sorted(collection.current_ids())
    misfits = list[UnfitDocument]()

    def reject(entity_id: str, mistake: Invalid) -> None:
        misfits.append(UnfitDocument(entity_id, mistake.message))

    chosen = scope.chosen(ids)
    for _ in _documents(collection, chosen, scope, reject):
        pass
    return Examined("documents", len(ids), len(chosen), len(misfits), tuple(misfits[:EXAMPLES_MAX]))


def _documents(
    collection: Collection,
    ids: Sequence[str],
    scope: ScanScope,
    reject: Callable[[str, Invalid], None] = lambda entity_id, mistake: None,
) -> Iterator[tuple[str, Row]]:
    """The valid documents of these ids."""
    for number, chunk in enumerate(in_chunks(ids, CHUNK)):
        scope.progress(collection.name, number * CHUNK, len(ids))
        reads = [Read(collection.documents.key(one)) for one in chunk]
        for entity_id, item in zip(
            chunk, collection.store.get_many(reads, max_bytes=collection.max_bytes), strict=True
        ):
            try:
                if isinstance(item, Exception):
                    raise item
                if item is not None:
                    yield entity_id, collection.documents.parse(entity_id, item)
            except Invalid as mistake:
                reject(entity_id, mistake)
