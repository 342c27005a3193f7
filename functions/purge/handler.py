"""purge: on a schedule, removes expired trash and snapshots."""

from __future__ import annotations

from typing import Any

from worm.upkeep import NO_SCHEMA, Function, Purge, ScheduleAnswer, seconds_left

function = Function(Purge)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> ScheduleAnswer:
    left, is_dry = seconds_left(context), event.get("dryRun") is True
    reports = function.run_scheduled(lambda: function.worker.run(left, event.get("models"), dry_run=is_dry))
    if reports is None:
        return {"skipped": NO_SCHEMA}
    for report in reports:
        function.logger.info("purged", report=report.summary())
        function.log_problems("not purged", report.model, report.problems)
        function.count("Purged", len(report.purged))
        function.count("Pruned", len(report.pruned))
        function.count("PurgeProblems", len(report.problems))
    return [report.summary() for report in reports]
