"""Keeps derived data up to date, and looks after a bucket: what the SDK, the workers and commands share.

A `Session` is one store with its schema and everything open on it. *Push* makes a schema the truth and adopts existing
documents; *sweep* records and folds what no event reported; *repair* rebuilds everything of a model from its source;
*verify* only compares; *purge* removes what expired; *why* explains one key. `workers` turn messages into these calls.
`dead_letters` reads what the workers refused, and `costs` says what a deployment costs.

All of it may run at any time, twice, or beside itself. It never changes recorded history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.upkeep import costs, dead_letters
    from worm.upkeep.adopt import push, push_session
    from worm.upkeep.deployment.aws import Aws
    from worm.upkeep.deployment.checkup import Checkup, Health, table_freshness
    from worm.upkeep.folding import ForeignNote, OtherSessions
    from worm.upkeep.materialize import Materializer
    from worm.upkeep.purge import Purge, PurgeReport
    from worm.upkeep.push_plan import ModelPlan, ModelProgress, PushPlan, warn_if_different
    from worm.upkeep.pushed_schema import PushReport, load_pushed_schema, push_schema
    from worm.upkeep.repair import RepairReport, put_aside, repair_model
    from worm.upkeep.session import Maintenance, Session, Settings
    from worm.upkeep.sweep import Sweep, scheduled
    from worm.upkeep.sweep_pass import EVERYTHING, SweepReport
    from worm.upkeep.sweep_tasks import SweptRange, TaskSweep
    from worm.upkeep.verdicts import Verdict, Why
    from worm.upkeep.verify_record import record_verify
    from worm.upkeep.verifying import verify_model
    from worm.upkeep.why import Unseen, explain_key
    from worm.upkeep.workers.apply import Apply
    from worm.upkeep.workers.capture import Capture
    from worm.upkeep.workers.compact import Compact
    from worm.upkeep.workers.lambdas import (
        NO_SCHEMA,
        Function,
        PartialBatchAnswer,
        Reporting,
        ScheduleAnswer,
        seconds_left,
    )
    from worm.upkeep.workers.tables import Fold
else:
    __getattr__ = door(
        __name__,
        """
        adopt: push push_session
        costs:
        dead_letters:
        deployment.aws: Aws
        deployment.checkup: Checkup Health table_freshness
        folding: ForeignNote OtherSessions
        materialize: Materializer
        purge: Purge PurgeReport
        push_plan: ModelPlan ModelProgress PushPlan warn_if_different
        pushed_schema: PushReport load_pushed_schema push_schema
        repair: RepairReport put_aside repair_model
        session: Maintenance Session Settings
        sweep: Sweep scheduled
        sweep_pass: EVERYTHING SweepReport
        sweep_tasks: SweptRange TaskSweep
        verdicts: Verdict Why
        verify_record: record_verify
        verifying: verify_model
        why: Unseen explain_key
        workers.apply: Apply
        workers.capture: Capture
        workers.compact: Compact
        workers.lambdas: Function NO_SCHEMA PartialBatchAnswer Reporting ScheduleAnswer seconds_left
        workers.tables: Fold
        """,
    )
