"""Maintenance of derived data without events, used by the SDK, workers and `worm repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.upkeep.adopt import push, push_session
    from worm.upkeep.attachment import Additions, Attachment, DetachStep, StepOutcome
    from worm.upkeep.bucket_findings import BucketFinding, FindingState, kms_key
    from worm.upkeep.bucket_parts import AttachedPlace, Events, check_queue
    from worm.upkeep.deployment.aws import Aws
    from worm.upkeep.deployment.checkup import Checkup, Health, HealthFinding, State
    from worm.upkeep.deployment.costs import (
        BATCH_MAX,
        CHANGES,
        PASSES_A_MONTH,
        BillLine,
        Prices,
        SparkCluster,
        Usage,
        bill,
        bill_shape,
        units,
    )
    from worm.upkeep.deployment.dead_letters import DeadLetterQueue, Letter, LetterChoice, about, queues_of
    from worm.upkeep.deployment.stack import Stack
    from worm.upkeep.folding import Abandoned, abandoned
    from worm.upkeep.materialize import Materialized, Materializer
    from worm.upkeep.purge import Purge, PurgeReport
    from worm.upkeep.push_plan import ModelPlan, ModelProgress, PushPlan, plan_push, warn_if_different
    from worm.upkeep.repair import RepairReport, put_aside, repair_model
    from worm.upkeep.session import Maintenance, Session, Settings
    from worm.upkeep.sweep import Sweep, scheduled
    from worm.upkeep.sweep_pass import EVERYTHING, SweepReport
    from worm.upkeep.sweep_tasks import SweptRange, TaskSweep, sweep_range
    from worm.upkeep.verdicts import DeadLetterFacts, Verdict, Why
    from worm.upkeep.verify_record import record_verify
    from worm.upkeep.verifying import verify_model
    from worm.upkeep.why import LookUp, Unseen, explain_key, unseen_uploads
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
        attachment: Additions Attachment DetachStep StepOutcome
        bucket_findings: BucketFinding FindingState kms_key
        bucket_parts: AttachedPlace Events check_queue
        deployment.aws: Aws
        deployment.checkup: Checkup Health HealthFinding State
        deployment.costs: BATCH_MAX BillLine CHANGES PASSES_A_MONTH Prices SparkCluster Usage bill bill_shape units
        deployment.dead_letters: DeadLetterQueue Letter LetterChoice about queues_of
        deployment.stack: Stack
        folding: Abandoned abandoned
        materialize: Materialized Materializer
        purge: Purge PurgeReport
        push_plan: ModelPlan ModelProgress PushPlan plan_push warn_if_different
        repair: RepairReport put_aside repair_model
        session: Maintenance Session Settings
        sweep: Sweep scheduled
        sweep_pass: EVERYTHING SweepReport
        sweep_tasks: SweptRange TaskSweep sweep_range
        verdicts: DeadLetterFacts Verdict Why
        verify_record: record_verify
        verifying: verify_model
        why: LookUp Unseen explain_key unseen_uploads
        workers.apply: Apply
        workers.capture: Capture
        workers.compact: Compact
        workers.lambdas: Function NO_SCHEMA PartialBatchAnswer Reporting ScheduleAnswer seconds_left
        workers.tables: Fold
        """,
    )
