"""The entry point for programs: `connect()` opens a bucket, a prefix or a directory as a `Worm`; `Worm.model()` gives a
`Model`. The verbs are in `worm.sdk`.

Modules that only some programs need (pushing, migrating, transactions, history searches) are imported by the method
that uses them: a command that reads a table starts in half the time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast, get_args, overload

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.errors import Conflict, Denied, Hint, Invalid, NotFound, WormError, show
from worm.formats import JsonValue, Position, Schema, load_schema, position_of
from worm.sdk.access import Result
from worm.sdk.document import About, DocumentDict
from worm.sdk.model import Model
from worm.sdk.past import CHANGED_MAX
from worm.sdk.shapes import Dicts, model_name
from worm.sdk.upkeep import Names, Upkeep
from worm.store import Durability, Store, check_store, in_parallel, is_directory, open_store
from worm.tables import Progress, silent
from worm.upkeep import ForeignNote, Maintenance, OtherSessions, Session, Settings, load_pushed_schema

if TYPE_CHECKING:
    from pydantic import BaseModel

    from worm.sdk.feed import ChangeFeed, ChangeRows
    from worm.sdk.merging import BranchChange, Merge, MergeResult
    from worm.sdk.migrating import MigrationReport
    from worm.sdk.migration_rules import Change, Rule
    from worm.sdk.restoring import RestoreReport
    from worm.sdk.searching import HistoryEntry, HistoryRows, HistorySource
    from worm.sdk.sql import Params, SqlRows
    from worm.sdk.transacting import DocumentTransaction
    from worm.spaces import Branch, Materialized, OpenSpaces, Policy
    from worm.upkeep import PushPlan, PushReport, SweepReport, Why, push

__all__ = ["DocumentDict", "Maintenance", "Model", "Result", "Worm", "connect", "push"]

M = TypeVar("M", bound="BaseModel")


def __getattr__(name: str) -> object:
    if name != "push":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from worm.upkeep import push

    return push


def connect(
    url: str,
    *,
    schema: Mapping[str, object] | str | Path | Schema | None = None,
    models: Sequence[type[BaseModel]] | None = None,
    endpoint_url: str | None = None,
    actor: str | None = None,
    reason: str | None = None,
    maintenance: Maintenance | None = None,
    probe: bool = True,
    clock: Clock | None = None,
    ids: Ids | None = None,
    durability: Durability | None = None,
) -> Worm:
    """Open `s3://bucket[/prefix]`, a directory (`./data`, `file://…`) or `memory://name`.

    Without `schema`, the pushed schema is used. With `models`, these classes define the schema. If it differs from the
    pushed schema, you get a warning (`SchemaDiffers`). A save writes the document and its history. Its table follows
    moments later in the background (`maintenance="background"`, the default unless `WORM_MAINTENANCE` is set), or
    before the save returns (`"inline"`); with `"events"` the deployed workers write history and table. The first write
    probes the store: one that ignores write conditions is refused. `durability` is for a directory: a write survives a
    power cut (`"power"`, the default) or only the end of its process (`"process"`). Its default comes from
    `WORM_DURABILITY`.

    Examples:
        >>> with worm.connect("memory://shop", models=[Customer], actor="user:ann") as shop:
        ...     shop.model(Customer).insert(Customer(id="acme", name="Acme")).version is not None
        True
    """
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, ids=ids, clock=clock, durability=durability)
    definition = _definition(store, schema, models)
    for name, text in (("actor", actor), ("reason", reason)):
        if text is not None and not isinstance(text, str):
            raise Invalid(f"must be text, not {show(text)}", path=name)
    mode = maintenance if maintenance is not None else os.environ.get("WORM_MAINTENANCE") or "background"
    if mode not in get_args(Maintenance):
        raise Invalid(f"maintenance must be 'background', 'inline' or 'events', not {show(mode)}")
    session = Worm(
        store,
        definition,
        actor=actor,
        reason=reason,
        maintenance=cast(Maintenance, mode),
        probe=probe,
        clock=clock,
        ids=ids,
    )
    if is_directory(store):
        session.look_for_abandoned()
    return session


def _definition(
    store: Store,
    schema: Mapping[str, object] | str | Path | Schema | None,
    models: Sequence[type[BaseModel]] | None,
) -> Schema:
    if schema is None and models is None:
        return load_pushed_schema(store)
    from worm.sdk.class_schema import schema_of
    from worm.upkeep import warn_if_different

    if models is None:
        definition = schema if isinstance(schema, Schema) else load_schema(cast("Mapping[str, object]", schema))
    elif schema is not None:
        raise Invalid("schema= and models= both define the schema", hint="pass only one of them")
    elif isinstance(models, type) or not isinstance(models, Iterable):
        raise Invalid("models= must be a list of classes", hint="models=[Customer, Order]")
    else:
        definition = schema_of(list(models))
    warn_if_different(store, definition)
    return definition


class Worm(Upkeep):
    """One session on one bucket, prefix or directory.

    Examples:
        >>> with worm.connect("./data", models=[Customer, Note]) as session:
        ...     session.model(Customer).count()
        2
    """

    def __init__(
        self,
        store: Store,
        schema: Schema,
        *,
        actor: str | None = None,
        reason: str | None = None,
        maintenance: Maintenance = "inline",
        probe: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        check_store(store)
        Schema.require(schema)
        settings = Settings(actor=actor, reason=reason, maintenance=maintenance)
        super().__init__(store, settings, schema=schema, probe=probe, clock=clock, ids=ids)
        self._models: dict[str, Model[DocumentDict]] = {}
        self._making = forks.new_lock()
        self._abandoned = self.folder.new_backlog(self._take_over)
        if self.folder.pending.is_needed:
            self.folder.others = OtherSessions(self.folder.pending, self._abandoned, self.clock)
        self._has_looked = maintenance == "events" or (maintenance == "inline" and not is_directory(store))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ensure_safe_store(self) -> None:
        super().ensure_safe_store()
        self.look_for_abandoned()

    def look_for_abandoned(self) -> None:
        """Once per session: fold what a killed session left behind. With `inline`, this finishes before it returns."""
        if self._has_looked:
            return
        self._has_looked = True
        found = ForeignNote.abandoned(self.store, self.clock)
        if found and self.settings.maintenance == "inline":
            try:
                self._take_over(list(found.values()))
                return
            except WormError:  # it is tried again, and raised when the session is closed
                pass
        if found:
            self.folder.add(self._abandoned, found)

    def _take_over(self, notes: Sequence[ForeignNote]) -> None:
        """Uses its own tables, because those of the session may be in use. A session that may only read leaves this to
        others."""
        from worm.upkeep import Sweep

        other = Session(self.store, self.settings, schema=self.schema, probe=False, clock=self.clock, ids=self.ids)
        models = sorted({name for note in notes for name in note.models} & set(self.schema.models))
        for report in Sweep(other).run(lambda: math.inf, models, resume=False) if models else ():
            failure = report.error or report.failure
            if isinstance(failure, Denied):
                return
            if failure is not None:
                raise failure
        with suppress(Denied):
            for note in notes:
                note.swept(self.store, models)

    @overload
    def model(self, name: str) -> Model[DocumentDict]: ...
    @overload
    def model(self, name: type[M]) -> Model[M]: ...
    def model(self, name: str | type[M]) -> Model[DocumentDict] | Model[M]:
        """The model with this name. Its documents are dicts, or objects if you pass a pydantic class.

        Examples:
            >>> db.model(Customer).name, db.model("Customer").name
            ('Customer', 'Customer')
        """
        if isinstance(name, type):
            return self.model(model_name(name)).typed(name)
        if not isinstance(name, str):
            raise Invalid(f"must be the name of a model or its class, not {show(name)}", path="model")
        with self._making:
            if name not in self._models:
                self._models[name] = self._make_model(name)
            return self._models[name]

    def _make_model(self, name: str) -> Model[DocumentDict]:
        return Model(self, name, Dicts(self.schema.model(name)))

    def flush(self) -> list[SweepReport]:
        """Bring history and tables up to date with everything that this session has saved. With `maintenance="events"`,
        this sweeps the models that the session used and returns the reports. The first failure is raised.

        Examples:
            >>> _ = customers.patch("acme", {"visits": 1})
            >>> db.flush()
            []
        """
        self.folder.flush()
        if self.settings.maintenance != "events":
            return []
        with self._making:
            names = sorted(self._models)
        reports = self.sweep(names)
        for report in reports:
            failure = report.error or report.failure
            if failure is not None:
                raise failure
        return reports

    def history(
        self,
        *,
        model: str | type[BaseModel] | Sequence[str] | None = None,
        actor: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        op: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        limit: int | None = 100,
        cursor: str | None = None,
    ) -> HistoryRows[HistoryEntry]:
        """Entries of all documents of one model, of several, or of all models with an oplog, newest first.

        `reason` matches part of the reason, ignoring case. `metadata` names values that an entry must have. Times are
        as for `get_at`. `limit=None` returns all. With `since`, only documents that changed since then are read
        (docs/history.md).

        Examples:
            >>> _ = customers.patch("acme", {"visits": 1}, actor="user:bob", reason="came by")
            >>> [(entry.id, entry.op, entry.reason) for entry in db.history(actor="user:bob")]
            [('acme', 'update', 'came by')]
        """
        from worm.sdk.searching import HistorySearch, search_history

        search = HistorySearch.of(
            actor=actor,
            since=since,
            until=until,
            op=op,
            reason=reason,
            metadata=metadata,
            limit=limit,
            cursor=cursor,
        )
        self.folder.flush()
        names = self._fed(model)
        self.folder.await_others(*names)
        return search_history(in_parallel(lambda one: self.model(one)._recorded(), names), search)

    def changes(
        self,
        after: str | None = None,
        *,
        model: str | type[BaseModel] | Sequence[str] | None = None,
        limit: int = 100,
        wait: float = 0,
    ) -> ChangeRows:
        """New entries of all documents of one model, of several, or of all models with an oplog, since the answer whose
        `cursor` you pass as `after`. Without `after`, you get the current cursor and no entries.

        Every entry is reported once it is in the tables, however late that is. Entries of one document come in order.
        `wait` is the number of seconds to wait for new entries. An unchanged model costs one conditional GET
        (docs/history.md).

        Examples:
            >>> cursor = db.changes().cursor
            >>> _ = customers.patch("acme", {"visits": 1})
            >>> [(entry.id, entry.op) for entry in db.changes(cursor)]
            [('acme', 'update')]
        """
        from worm.sdk.feed import check_limits

        check_limits(limit, wait)
        names = self._fed(model)
        asked = None if model is None else names
        if after is None:
            self.folder.flush()
            return self._feed.start(names, asked)
        return self._feed.wait(names, asked, after, limit, wait)

    def sql(
        self,
        statement: str,
        params: Params | None = None,
        *,
        at: Position | None = None,
        max_changed: int | None = CHANGED_MAX,
        memory_limit: str = "1GB",
        timeout: float | None = 30,
        max_rows: int | None = 1_000_000,
    ) -> SqlRows:
        """The rows of a SELECT over models, by DuckDB. A model is a table with a column for each field; writes of this
        session are in it. `params` has the values of `?` and `$1` (a list) or of `$name` (an object).

        A statement only reads, and only models: it changes nothing, and reaches neither files nor the network. With
        `at`, the models are as they were then. The statement may run for `timeout` seconds with `memory_limit` of
        memory; reading the models counts for neither. `pip install 's3worm[sql]'` (docs/how-to/sql.md).

        Examples:
            >>> list(db.sql("select status, count(*) as n from Customer group by 1 order by 1"))
            [{'status': 'active', 'n': 1}, {'status': 'lead', 'n': 1}]
            >>> [row["name"] for row in db.sql("select name from Customer where visits < ? order by 1", [10])]
            ['Acme', 'Globex']
        """
        from worm.sdk.sql import SqlLimits, run_sql

        limits = SqlLimits.of(memory_limit, timeout, max_rows)

        def read(name: str, fields: list[str] | None) -> object:
            return self.model(name)._all_rows(fields, at, max_changed)

        return run_sql(statement, params, self.schema.models, read, limits)

    def _fed(self, model: str | type[BaseModel] | Sequence[str] | None) -> list[str]:
        """The names without duplicates; None means all models that keep an oplog. `Invalid` if a named model keeps
        none."""
        if model is None:
            return [one for one, known in self.schema.models.items() if known.oplog]
        several = [model] if isinstance(model, str | type) else model
        if not isinstance(several, list | tuple) or not several:
            raise Invalid(f"must be the name of a model, its class or a list of names, not {show(model)}", path="model")
        names = [self.model(one).name for one in several]
        for name in names:
            self.model(name)._check_oplog()
        return sorted({*names})

    @cached_property
    def _feed(self) -> ChangeFeed:
        from worm.sdk.feed import ChangeFeed

        return ChangeFeed(self._read_news, self.clock)

    def _read_news(self, name: str, etag: str | None) -> tuple[HistorySource, str | None] | None:
        self.folder.flush()
        return self.model(name)._recorded_news(etag)

    def __repr__(self) -> str:
        return f"<Worm {self.store.url} ({', '.join(self.schema.models)})>"

    def migrate(
        self,
        model: str,
        change: Change | Sequence[Rule] | Sequence[Mapping[str, JsonValue]],
        *,
        filter: Mapping[str, object] | None = None,
        dry_run: bool = False,
        restart: bool = False,
        progress: Progress = silent,
        **about: Unpack[About],
    ) -> MigrationReport:
        """Change the documents of a model, all or only those that match, by rules (`worm.sdk.migration_rules`, or their
        JSON) or by a function. Each change is a save with history, as `worm migrate` does. Run it again after an
        interruption.

        Examples:
            >>> db.migrate("Customer", [{"remove": "email"}]).changed
            1
        """
        from worm.sdk.migrating import MigrationOptions, migrate

        options = MigrationOptions(filter, dry_run, restart, progress)
        return migrate(self.model(model), change, options, about)

    def restore(
        self,
        *,
        at: Position,
        models: str | Sequence[str] | None = None,
        dry_run: bool = False,
        max_changed: int | None = CHANGED_MAX,
        progress: Progress = silent,
        **about: Unpack[About],
    ) -> RestoreReport:
        """Restore whole models (None: all) to a moment: a time, or a commit of their space. Each document that differs
        is saved as it was, with history; documents that did not exist then are deleted. `dry_run` lists the changes. An
        error of one document does not stop the others; the report has it. Run it again after an interruption.

        Examples:
            >>> [change.what for change in db.restore(at="2020-01-01", models="Customer", dry_run=True).changes]
            ['deleted', 'deleted']
        """
        from worm.sdk.restoring import RestoreOptions, restore

        names = self._restored(models)
        self.flush()
        self.folder.await_others(*names)
        return restore([self.model(one) for one in names], at, RestoreOptions(dry_run, max_changed, progress), about)

    def _restored(self, models: str | Sequence[str] | None) -> list[str]:
        """The names. `Invalid` if all models are meant and one of them keeps no past."""
        names = Upkeep._named(
            self, models
        )  # a branch overrides this and refuses, because most upkeep is not for branches
        past = [one for one in names if self.schema.model(one).oplog or self.schema.model(one).space is not None]
        if models is None and past != names:
            without = ", ".join(one for one in names if one not in past)
            hint = Hint(
                f"name the models that keep one: models={past}",
                f"name the models: `worm restore {' '.join(past)} --at …`",
            )
            raise Invalid(f"{without} keeps no past, so not every model can be restored", path="models", hint=hint)
        return names

    def materialize(self, space: str) -> Materialized:
        """Do what the apply worker does after a commit: update the documents to match the log.

        Examples:
            >>> db.materialize("main").is_done
            True
        """
        from worm.upkeep import Materializer

        return Materializer(self).run_space(space)

    # Branches

    def create_branch(
        self, name: str, *, at: Position | None = None, parent: str = "main", space: str | None = None
    ) -> None:
        """Create a branch that begins as its parent is now, or as it was at a commit or a time. It is created in the
        space of the models, in all of their spaces, or in `space`. `Conflict` if the name is used.

        Examples:
            >>> db.create_branch("draft")
            >>> [branch.name for branch in db.branches()]
            ['main', 'draft']
        """
        from worm.sdk.merging import checked_name

        position = None if at is None else position_of(at)
        spaces = self._branched_spaces(space)
        if isinstance(position, int) and len(spaces) > 1:
            hint = f"name one of the spaces: space={spaces[0]!r}; or pass a time"
            raise Invalid("a commit number belongs to one space, and the models are in several", path="at", hint=hint)
        self.ensure_safe_store()
        self.folder.flush()
        for one in spaces if len(spaces) > 1 else ():  # in all of them, or in none
            if any(known.name == name for known in self.space(one).branches()):
                raise Conflict(f"the space {one!r} has or had a branch {show(name)}", hint="choose another name")
        for one in spaces:
            self.space(one).create_branch(checked_name(name), parent=checked_name(parent), at=position)

    def branches(self, *, space: str | None = None) -> list[Branch]:
        """All branches, the main one first, including deleted ones; of the space of the models, or of `space`.

        Examples:
            >>> [branch.name for branch in db.branches()]
            ['main']
        """
        found: dict[str, Branch] = {}
        for one in self._branched_spaces(space):
            opened = self.spaces.get(one)
            for branch in [] if opened is None else opened.branches():
                found.setdefault(branch.name, branch)
        return list(found.values())

    def branch(self, name: str) -> Worm:
        """A session on a branch: the same verbs, for models in a space. It ends with this session.

        Examples:
            >>> db.create_branch("draft")
            >>> _ = db.branch("draft").model("Note").patch("n1", {"text": "visit Acme"})
            >>> db.model("Note").get("n1")["text"]
            'call Acme'
        """
        from worm.sdk.merging import checked_name

        if checked_name(name) == "main":
            return self
        self.folder.flush()
        for one in self._branched_spaces(None):
            opened = self.spaces.get(one)
            if opened is not None and any(row.name == name for row in opened.branches()):
                return BranchSession(self, name)
        http = "create it with POST /v1/branches, or list the existing ones with GET /v1/branches"
        hint = Hint(f"create it: db.create_branch({name!r})", f"create it: `worm branch create {name}`", http)
        raise NotFound(f"there is no branch {show(name)}", hint=hint)

    def delete_branch(self, name: str, *, space: str | None = None) -> None:
        """Delete a branch: it takes no more commits, and can still be read. `Conflict` while other branches depend on
        it.

        Examples:
            >>> db.create_branch("draft")
            >>> db.delete_branch("draft")
        """
        for one in self._spaces_with(name, space):
            self.space(one).delete_branch(name)

    def undelete_branch(self, name: str, *, space: str | None = None) -> None:
        """Restore a deleted branch: it takes commits again.

        Examples:
            >>> db.create_branch("draft")
            >>> db.delete_branch("draft")
            >>> db.undelete_branch("draft")
        """
        for one in self._spaces_with(name, space):
            self.space(one).undelete_branch(name)

    def diff(self, branch: str, *, into: str = "main") -> list[BranchChange]:
        """Show what merging the branch would change, by model, document and field. Conflicts are marked.

        Examples:
            >>> db.create_branch("draft")
            >>> _ = db.branch("draft").model("Note").patch("n1", {"text": "visit Acme"})
            >>> [(change.id, change.fields["text"]) for change in db.diff("draft")]
            [('n1', ['call Acme', 'visit Acme'])]
        """
        return [change for one in self._merges(branch, into) for change in one.diff()]

    def merge(
        self,
        branch: str,
        *,
        into: str = "main",
        policy: Policy = "fail",
        dry_run: bool = False,
        check_references: bool = True,
        **about: Unpack[About],
    ) -> list[MergeResult]:
        """Merge the changes of a branch into another one. You get a result for each space that has the branch.

        The result is checked before anything is committed: schema, unique values, references. A change on both sides is
        a `MergeConflict`, unless a policy decides: `ours` (the state of `into`), `theirs`, `fields` (changes to
        different fields are combined), `fields-ours`, `fields-theirs`, or a function of base, ours and theirs. A large
        merge makes several commits; if it is interrupted, call it again. `dry_run` changes nothing.

        Examples:
            >>> db.create_branch("draft")
            >>> _ = db.branch("draft").model("Note").patch("n1", {"text": "visit Acme"})
            >>> _ = db.merge("draft", reason="reviewed")
            >>> db.model("Note").get("n1")["text"]
            'visit Acme'
        """
        self.ensure_safe_store()
        self.folder.flush()
        merges = self._merges(branch, into)
        for one in merges if len(merges) > 1 and not dry_run else ():  # all are checked before the first is committed
            one.run(policy, about, dry_run=True, check_references=check_references)
        return [one.run(policy, about, dry_run=dry_run, check_references=check_references) for one in merges]

    def _model_on(self, name: str, branch: str) -> Model[DocumentDict]:
        """A model on a branch; the main branch for a model outside a space."""
        if branch in ("", "main") or self.schema.model(name).space is None:
            return self.model(name)
        return self.branch(branch).model(name)

    def _merges(self, branch: str, into: str) -> list[Merge]:
        from worm.sdk.merging import Merge, checked_name

        spaces = self._spaces_with(branch, None)
        return [Merge(self, self._model_on, one, branch, checked_name(into)) for one in spaces]

    def _spaces_with(self, branch: str, space: str | None) -> list[str]:
        """The spaces that have the branch, or had it; `NotFound` if none does."""
        from worm.sdk.merging import checked_name

        checked_name(branch)
        spaces = self._branched_spaces(space)
        found = [one for one in spaces if any(row.name == branch for row in self.space(one).branches())]
        if not found:
            hint = Hint(
                "db.branches() lists the branches",
                "`worm branch list` shows the branches",
                "GET /v1/branches lists the branches",
            )
            raise NotFound(f"there is no branch {show(branch)}", hint=hint)
        return found

    def _branched_spaces(self, space: str | None) -> list[str]:
        """The spaces of the models, or the given one."""
        named = sorted({known.space for known in self.schema.models.values() if known.space is not None})
        if space is not None and space not in named:
            raise NotFound(f"no model is in the space {show(space)}", hint=f"spaces: {', '.join(named) or 'none'}")
        if not named:
            raise Invalid(
                "branches need a space, and no model is in one", hint='add "space": "main" to a model in the schema'
            )
        return named if space is None else [space]

    def transaction(self, *, actor: str | None = None) -> DocumentTransaction:
        """Change several documents of models in one space, committed together at the end of the `with` block.

        Examples:
            >>> with db.transaction() as transaction:
            ...     _ = transaction.save(Note, Note(id="n2", text="both"))
            ...     _ = transaction.save(Note, Note(id="n3", text="or none"))
            >>> db.model("Note").count()
            3
        """
        if actor is not None and not isinstance(actor, str):
            raise Invalid(f"must be text, not {show(actor)}", path="actor")
        from worm.sdk.transacting import DocumentTransaction

        return DocumentTransaction(self, self.model, actor=actor)


class BranchSession(Worm):
    """A session on a branch, for models in a space. It shares store and spaces with its parent session; closing it
    closes nothing else."""

    def __init__(self, main: Worm, name: str) -> None:
        settings = main.settings
        super().__init__(
            main.store,
            main.schema,
            actor=settings.actor,
            reason=settings.reason,
            maintenance="events",
            clock=main.clock,
            ids=main.ids,
        )
        self.name = name
        self._main = main
        self.folder.others = main.folder.others  # the parent's saves are not those of another session

    def __repr__(self) -> str:
        return f"<Worm {self.store.url} on branch {self.name!r} ({', '.join(self.schema.models)})>"

    @property
    def spaces(self) -> OpenSpaces:
        return self._main.spaces

    def ensure_safe_store(self) -> None:
        self._main.ensure_safe_store()

    def _make_model(self, name: str) -> Model[DocumentDict]:
        from worm.sdk.branched import BranchedModel

        return BranchedModel(self, name, Dicts(self.schema.model(name)), self.name)

    def branch(self, name: str) -> Worm:
        return self if name == self.name else self._main.branch(name)

    def create_branch(
        self, name: str, *, at: Position | None = None, parent: str | None = None, space: str | None = None
    ) -> None:
        """Create a branch of this one, unless `parent` names another."""
        self._main.create_branch(name, at=at, parent=self.name if parent is None else parent, space=space)

    def _restored(self, models: str | Sequence[str] | None) -> list[str]:
        """Everything that the branch has."""
        branched = [one for one, known in self.schema.models.items() if known.space is not None]
        return super()._restored(branched if models is None else models)

    def flush(self) -> list[SweepReport]:
        """Does nothing: a branch has only commits."""
        return []

    def close(self) -> None:
        """Does nothing: the parent session closes what is open."""

    def _named(self, models: Names) -> list[str]:
        raise self._not_here()

    def push(self, **options: object) -> PushReport:
        raise self._not_here()

    def plan_push(self, **options: object) -> PushPlan:
        raise self._not_here()

    def migrate(self, *args: object, **options: object) -> MigrationReport:
        raise self._not_here()

    def materialize(self, space: str) -> Materialized:
        raise self._not_here()

    def why(self, key: str) -> Why:
        raise self._not_here()

    def changes(self, *args: object, **options: object) -> ChangeRows:
        raise self._not_here()

    def _not_here(self) -> Invalid:
        hint = "use the session on the main branch"
        return Invalid(f"branch {show(self.name)} has only commits, so this is not possible on it", hint=hint)
