"""Maintenance as methods of a session. They do the same as the commands of these names, with the same results.

Every method works on the session itself and needs no model. Each method imports what it
needs, because most programs call none of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from worm.errors import Invalid, show
from worm.sdk.values import check_function
from worm.upkeep import Session

if TYPE_CHECKING:
    from worm.tables import VerifyReport
    from worm.upkeep import ModelProgress, PurgeReport, PushPlan, PushReport, RepairReport, SweepReport, Why

Names = str | Sequence[str] | None
"""One model, several, or (None) all."""


class Upkeep(Session):
    """`push`, `plan_push`, `verify`, `repair`, `sweep`, `prune`, `why`."""

    def push(
        self,
        *,
        force: bool = False,
        adopt: bool = True,
        sample: int | None = None,
        planned: Callable[[PushPlan], None] = lambda plan: None,
        progress: ModelProgress = lambda model, done, total: None,
    ) -> PushReport:
        """Make the schema of this session the schema of the location, and adopt existing documents, as `worm push`
        does. `Invalid` if documents would be left behind or would no longer fit, unless you pass `force`.

        Examples:
            >>> db.push().schema_changed  # it was pushed before
            False
        """
        from worm.upkeep import push_session

        check_function(planned, "planned")
        check_function(progress, "progress")
        self.folder.flush()  # rows are checked instead of documents
        return push_session(self, force=force, adopt=adopt, sample=sample, planned=planned, progress=progress)

    def plan_push(
        self, *, sample: int | None = None, progress: ModelProgress = lambda model, done, total: None
    ) -> PushPlan:
        """What `push` would do, as `worm push --dry-run` shows it. Reads only.

        Examples:
            >>> [(model.model, model.change) for model in db.plan_push().models]
            [('Customer', 'same'), ('Note', 'same')]
        """
        from worm.upkeep import PushPlan

        check_function(progress, "progress")
        self.folder.flush()
        return PushPlan.of(self.store, self.schema, sample=sample, progress=progress)

    def verify(self, models: Names = None) -> list[VerifyReport]:
        """Compare all derived data with the documents, as `worm verify` does. Reads only.

        Examples:
            >>> [report.differences for report in db.verify("Customer")]
            [[]]
        """
        from worm.upkeep import verify_model

        return [verify_model(self, name) for name in self._named(models)]

    def repair(self, models: Names = None) -> list[RepairReport]:
        """Repair all derived data from the documents, as `worm repair` does.

        Examples:
            >>> [(report.listed, report.recorded) for report in db.repair("Customer")]
            [(2, 0)]
        """
        from worm.upkeep import repair_model

        names = self._named(models)
        self.ensure_safe_store()
        return [repair_model(self, name) for name in names]

    def why(self, key: str) -> Why:
        """What happened to an upload under this key, and what to do about it, as `worm why` shows it. Reads only.

        Examples:
            >>> db.why("customers/acme/data.json").verdict.value
            'recorded'
        """
        if not isinstance(key, str):
            raise Invalid(f"must be the key of an object, not {show(key)}", path="key")
        from worm.upkeep import explain_key

        return explain_key(self, key)

    def sweep(self, models: Names = None) -> list[SweepReport]:
        """Record and fold changes that no event reported, as the function `sweep` does on a schedule, without its time
        limit.

        Examples:
            >>> [(report.listed, report.recorded) for report in db.sweep("Customer")]
            [(2, 0)]
        """
        names = self._named(models)
        self.ensure_safe_store()
        from worm.upkeep import Sweep

        return Sweep(self).run(lambda: math.inf, names, resume=False)

    def prune(self, models: Names = None, *, dry_run: bool = False) -> list[PurgeReport]:
        """Remove expired trash, snapshots beyond `maxAge` and `maxCount`, and replaced table files, as `worm prune` and
        the function `purge` do. For all models, this also removes answers that the HTTP API kept for more than a day;
        if there are some, the last report (of `.worm.api`) names them.

        Examples:
            >>> [report.purged for report in db.prune("Customer")]
            [[]]
        """
        names = self._named(models)
        if not dry_run:
            self.ensure_safe_store()
        from worm.upkeep import Purge

        purge = Purge(self)
        reports = purge.run(lambda: math.inf, names, dry_run=dry_run)
        answers = purge.purge_answers(dry_run=dry_run) if models is None else None
        return [*reports, answers] if answers is not None and (answers.purged or answers.problems) else reports

    def _named(self, models: Names) -> list[str]:
        """The models, each checked. Everything that this session saved is in their tables now."""
        given: object = models
        if given is not None and not isinstance(given, str | Sequence):
            raise Invalid(f"must be the name of a model or a list of names, not {show(given)}", path="models")
        names = list(self.schema.models) if models is None else [models] if isinstance(models, str) else list(models)
        for name in names:
            if not isinstance(name, str):
                raise Invalid(f"the name of a model must be text, not {show(name)}", path="models")
            self.schema.model(name)
        self.folder.flush()
        return names
