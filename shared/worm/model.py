"""What programs touch: `connect()` opens a bucket, a prefix or a directory as a `Worm`; `Worm.model()` gives a `Model`.
The verbs are in `worm.sdk`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Self, TypeVar, Unpack, cast, overload

from pydantic import BaseModel

from worm.clock import Clock, Ids, SystemClock
from worm.codec.strict_json import JsonValue
from worm.collections.push import load_pushed_schema
from worm.errors import Invalid
from worm.maintenance.adopt import push
from worm.maintenance.materialize import Materialized, Materializer
from worm.maintenance.push_plan import warn_if_different
from worm.maintenance.sweep import SweepReport
from worm.schema import Schema, load_schema
from worm.sdk.access import Result
from worm.sdk.class_schema import schema_of
from worm.sdk.document import About, DocumentDict
from worm.sdk.migrating import Change, MigrationOptions, MigrationReport, migrate
from worm.sdk.migration_rules import Rule
from worm.sdk.model import Model
from worm.sdk.objects import Dicts, model_name
from worm.sdk.searching import HistoryEntry, HistoryRows, HistorySearch, search_history
from worm.sdk.transacting import DocumentTransaction
from worm.sdk.upkeep import Upkeep
from worm.session import Maintenance, Settings
from worm.spaces.opening import database_id
from worm.store.base import Store
from worm.store.open import open_store
from worm.store.parallel import in_parallel
from worm.tables.build import Progress, silent

__all__ = ["DocumentDict", "Maintenance", "Model", "Result", "Worm", "connect", "push"]

M = TypeVar("M", bound=BaseModel)


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
) -> Worm:
    """Open `s3://bucket[/prefix]`, a directory (`./data`, `file://…`) or `memory://name`.

    `schema` None reads the pushed one; with `models` the schema is what these classes say, and nothing else. One that
    is not the pushed one is a warning (`SchemaDiffers`). `maintenance="events"` leaves history and tables to the
    deployed workers, so a save is one request; `"inline"` (default; or `WORM_MAINTENANCE`) does it at once. Before the
    first write the store is probed: one that ignores write conditions is refused.
    """
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, ids=ids, clock=clock)
    definition = _definition(store, schema, models)
    for name, text in (("actor", actor), ("reason", reason)):
        if text is not None and not isinstance(text, str):
            raise Invalid(f"takes text, not {text!r}", path=name)
    mode = maintenance if maintenance is not None else os.environ.get("WORM_MAINTENANCE") or "inline"
    if mode not in ("inline", "events"):
        raise Invalid(f"maintenance must be 'inline' or 'events', not {mode!r}")
    return Worm(
        store,
        definition,
        actor=actor,
        reason=reason,
        maintenance=cast(Maintenance, mode),
        probe=probe,
        clock=clock,
        ids=ids,
    )


def _definition(
    store: Store,
    schema: Mapping[str, object] | str | Path | Schema | None,
    models: Sequence[type[BaseModel]] | None,
) -> Schema:
    if schema is None and models is None:
        return load_pushed_schema(store)
    if models is None:
        definition = schema if isinstance(schema, Schema) else load_schema(cast("Mapping[str, object]", schema))
    elif schema is not None:
        raise Invalid("schema= and models= both say the schema", hint="leave one out")
    elif isinstance(models, type) or not isinstance(models, Iterable):
        raise Invalid("models= takes a list of classes", hint="models=[Customer, Order]")
    else:
        definition = schema_of(list(models))
    warn_if_different(store, definition)
    return definition


class Worm(Upkeep):
    """One session on one bucket, prefix or directory."""

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
        settings = Settings(actor=actor, reason=reason, maintenance=maintenance)
        super().__init__(store, settings, schema=schema, probe=probe, clock=clock, ids=ids)
        self._models: dict[str, Model[DocumentDict]] = {}
        self._making = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @overload
    def model(self, name: str) -> Model[DocumentDict]: ...
    @overload
    def model(self, name: type[M]) -> Model[M]: ...
    def model(self, name: str | type[M]) -> Model[DocumentDict] | Model[M]:
        """The model of the schema with this name; its documents are dicts, or objects of a pydantic class."""
        if isinstance(name, type):
            return self.model(model_name(name)).typed(name)
        if not isinstance(name, str):
            raise Invalid(f"takes the name of a model or its class, not {name!r}", path="model")
        with self._making:
            if name not in self._models:
                self._models[name] = Model(self, name, Dicts(self.schema.model(name)))
            return self._models[name]

    def flush(self) -> list[SweepReport]:
        """Wait for nobody: what is stored of the models that this session used is in history and tables when this ends,
        also with `maintenance="events"`. The first failure is raised."""
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
        model: str | type[BaseModel] | None = None,
        actor: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        op: str | None = None,
        reason: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        limit: int | None = 100,
        cursor: str | None = None,
    ) -> HistoryRows[HistoryEntry]:
        """Entries of all documents of a model, or of all models with an oplog, newest first.

        `reason` is a part of the reason, in any case; `metadata` names values that an entry must have. Times as for
        `get_at`. `limit=None`: all. With `since`, only documents that changed since then are read (docs/history.md).
        """
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
        name = model if model is None or isinstance(model, str) else model_name(model)
        names = [one for one, known in self.schema.models.items() if known.oplog] if name is None else [name]
        return search_history(in_parallel(Model._recorded, [self.model(one) for one in names]), search)

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
        """Change the documents of a model, all or those that match, by rules (`worm.sdk.migration_rules`, or their
        JSON) or by a function, each by a save with history; as `worm migrate`. Run it again after an interruption."""
        options = MigrationOptions(filter, dry_run, restart, progress)
        return migrate(self.model(model), change, options, about)

    def materialize(self, space: str) -> Materialized:
        """Do what the apply worker does after a commit: the documents become what the log says."""
        return Materializer(self).run(database_id(space), lambda: math.inf)

    def transaction(self, *, actor: str | None = None) -> DocumentTransaction:
        """Several documents of models in one space, committed together at the end of the `with` block."""
        if actor is not None and not isinstance(actor, str):
            raise Invalid(f"takes text, not {actor!r}", path="actor")
        return DocumentTransaction(self, self.model, actor=actor)
