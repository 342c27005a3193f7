"""What programs touch: `connect()` opens a bucket, a prefix or a directory as a `Worm`; `Worm.model()` gives a `Model`.
The verbs are in `worm.sdk`."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast, overload

from pydantic import BaseModel

from worm.clock import Clock, Ids, SystemClock
from worm.collections.push import PushReport, load_pushed_schema, push_schema
from worm.errors import Invalid
from worm.maintenance.materialize import Materialized, Materializer
from worm.maintenance.sweep import Sweep
from worm.schema import Schema, load_schema
from worm.sdk.access import Result
from worm.sdk.document import DocumentDict
from worm.sdk.model import Model
from worm.sdk.objects import Dicts, model_name
from worm.sdk.transacting import DocumentTransaction
from worm.session import Maintenance, Session, Settings
from worm.spaces.opening import database_id
from worm.store.base import Store
from worm.store.open import open_store
from worm.store.probe import ensure_safe

__all__ = ["DocumentDict", "Maintenance", "Model", "Result", "Worm", "connect", "push"]

M = TypeVar("M", bound=BaseModel)


def connect(
    url: str,
    *,
    schema: Mapping[str, object] | str | Path | Schema | None = None,
    endpoint_url: str | None = None,
    actor: str | None = None,
    maintenance: Maintenance | None = None,
    probe: bool = True,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Worm:
    """Open `s3://bucket[/prefix]`, a directory (`./data`, `file://…`) or `memory://name`.

    `schema` None reads the pushed one. `maintenance="events"` leaves history and tables to the deployed workers, so a
    save is one request; `"inline"` (default; or `WORM_MAINTENANCE`) does it at once. Before the first write the store
    is probed: one that ignores write conditions is refused.
    """
    clock = clock or SystemClock()
    ids = ids or Ids.system(clock)
    store = open_store(url, endpoint_url=endpoint_url, ids=ids, clock=clock)
    if schema is None:
        definition = load_pushed_schema(store)
    else:
        definition = schema if isinstance(schema, Schema) else load_schema(schema)
    mode = maintenance or os.environ.get("WORM_MAINTENANCE") or "inline"
    if mode not in ("inline", "events"):
        raise Invalid(f"maintenance must be 'inline' or 'events', not {mode!r}")
    return Worm(store, definition, actor=actor, maintenance=cast(Maintenance, mode), probe=probe, clock=clock, ids=ids)


def push(store: Store, schema: Schema, *, force: bool = False) -> PushReport:
    """Upload the schema and its sentinels, and start the tables of collections that have none. Documents of a model
    that keeps an oplog from now on get their first entries: its table is made of what is recorded."""
    ensure_safe(store)
    report = push_schema(store, schema, force=force)
    session = Worm(store, schema)
    recording = [name for name in schema.models if name in report.recording or _is_unrecorded(session.model(name))]
    if recording:
        for swept in Sweep(session).run(lambda: math.inf, recording, resume=False):
            if swept.error is not None:
                raise swept.error
    for name in schema.models:
        session.model(name).table.complete()
    return report


def _is_unrecorded(model: Model[DocumentDict]) -> bool:
    """Has it an oplog now, while its table was made without one? A push that turned it on may have died half way."""
    table = model.table
    root = table.manifest.root() if table.collection.definition.oplog and table.is_kept else None
    return root is not None and not root.oplog


class Worm(Session):
    """One session on one bucket, prefix or directory."""

    def __init__(
        self,
        store: Store,
        schema: Schema,
        *,
        actor: str | None = None,
        maintenance: Maintenance = "inline",
        probe: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        settings = Settings(actor=actor, maintenance=maintenance)
        super().__init__(store, settings, schema=schema, probe=probe, clock=clock, ids=ids)
        self._models: dict[str, Model[DocumentDict]] = {}
        self._making = threading.Lock()

    @overload
    def model(self, name: str) -> Model[DocumentDict]: ...
    @overload
    def model(self, name: type[M]) -> Model[M]: ...
    def model(self, name: str | type[M]) -> Model[DocumentDict] | Model[M]:
        """The model of the schema with this name; its documents are dicts, or objects of a pydantic class."""
        if not isinstance(name, str):
            return self.model(model_name(name)).typed(name)
        with self._making:
            if name not in self._models:
                self._models[name] = Model(self, name, Dicts())
            return self._models[name]

    def materialize(self, space: str) -> Materialized:
        """Do what the apply worker does after a commit: the documents become what the log says."""
        return Materializer(self).run(database_id(space), lambda: math.inf)

    def transaction(self, *, actor: str | None = None) -> DocumentTransaction:
        """Several documents of models in one space, committed together at the end of the `with` block."""
        return DocumentTransaction(self, self.model, actor=actor)
