"""Maintenance of derived data without events, used by the SDK, workers and `worm repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.upkeep import costs, dead_letters
    from worm.upkeep.adopt import push, push_session
    from worm.upkeep.deployment.aws import Aws
    from worm.upkeep.deployment.checkup import Checkup, Health, table_freshness
    from worm.upkeep.deployment.stack import Stack
    from worm.upkeep.folding import Abandoned
    from worm.upkeep.materialize import Materializer
    from worm.upkeep.purge import Purge, PurgeReport
    from worm.upkeep.push_plan import ModelPlan, ModelProgress, PushPlan, plan_push, warn_if_different
    from worm.upkeep.pushed_schema import Adopted, PushReport, load_pushed_schema, push_schema
    from worm.upkeep.repair import RepairReport, put_aside, repair_model
    from worm.upkeep.session import Maintenance, Session, Settings
    from worm.upkeep.sweep import Sweep, scheduled
    from worm.upkeep.sweep_cursor import SweepCursor
    from worm.upkeep.sweep_listing import RangeListing, Seen
    from worm.upkeep.sweep_pass import EVERYTHING, DocumentPass, HistoryPass, How, SweepReport
    from worm.upkeep.verdicts import Verdict, Why
    from worm.upkeep.verify_record import record_verify
    from worm.upkeep.verifying import verify_model
    from worm.upkeep.why import Unseen, explain_key, unseen_uploads
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
        deployment.stack: Stack
        folding: Abandoned
        materialize: Materializer
        purge: Purge PurgeReport
        push_plan: ModelPlan ModelProgress PushPlan plan_push warn_if_different
        pushed_schema: Adopted PushReport load_pushed_schema push_schema
        repair: RepairReport put_aside repair_model
        session: Maintenance Session Settings
        sweep: Sweep scheduled
        sweep_cursor: SweepCursor
        sweep_listing: RangeListing Seen
        sweep_pass: DocumentPass EVERYTHING HistoryPass How SweepReport
        verdicts: Verdict Why
        verify_record: record_verify
        verifying: verify_model
        why: Unseen explain_key unseen_uploads
        workers.apply: Apply
        workers.capture: Capture
        workers.compact: Compact
        workers.lambdas: Function NO_SCHEMA PartialBatchAnswer Reporting ScheduleAnswer seconds_left
        workers.tables: Fold
        """,
    )
