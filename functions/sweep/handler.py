"""sweep: on a schedule, changes that no event reported → documents of models in spaces, oplog entries and tables.

The schedule comes every 15 minutes, to continue what is unfinished; a pass over a model begins every `SweepEvery`
hours. Invoked without the schedule's event, it begins one at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worm.upkeep import EVERYTHING, NO_SCHEMA, Function, ScheduleAnswer, Sweep, scheduled, seconds_left

function = Function(Sweep)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> ScheduleAnswer:
    left, leaves = seconds_left(context), scheduled()
    if event.get("detail-type") != "Scheduled Event":
        leaves = replace(leaves, every_seconds=EVERYTHING.every_seconds)
    reports = function.run_scheduled(lambda: function.worker.run(left, event.get("models"), scheduled=leaves))
    if reports is None:
        return {"skipped": NO_SCHEMA}
    function.count("SweepUnfinished", any(not report.finished and report.error is None for report in reports))
    for report in reports:
        function.logger.info("swept", report=report.summary())
        function.log_problems("not recorded", report.model, report.problems)
        function.count("Swept", report.reconciled)
        function.count("FoundUnreported", report.recorded)
        function.count("Materialized", report.materialized)
        function.count("Damaged", len(report.damaged))
        if report.left:
            function.count("LeftToSpark", 1)
            function.logger.error("left to Spark", extra={"model": report.model, "reason": report.left})
    failures = [(one.model, error) for one in reports for error in (one.error, *one.damaged.values()) if error]
    for model, failure in failures:
        function.log_failure("not swept", failure, {"model": model}, trace=True)
    if failures:
        raise failures[0][1]  # everything else is swept; this one fails the invocation
    return [report.summary() for report in reports]
