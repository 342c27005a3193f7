"""compact: on a schedule, applies and compacts page stores, and deletes what no read needs."""

from __future__ import annotations

from typing import Any

from worm.upkeep import Compact, Function, ScheduleAnswer, seconds_left

function = Function(Compact)


@function.handler
def lambda_handler(event: dict[str, Any], context: Any) -> ScheduleAnswer:
    reports = function.worker.run(seconds_left(context), event.get("databases"))
    function.count("Databases", len(reports))
    for report in reports:
        function.logger.info("compacted", report=report.summary())
        function.count("FoundUnapplied", report.applied)
        function.count("Merged", report.merged)
        function.count("Images", report.images)
        function.count("Collected", report.deleted + report.slots)
        function.count("Overtaken", report.overtaken)
        function.count("CompactFailures", report.error is not None)
    failures = [(report.database, report.error) for report in reports if report.error is not None]
    for database, failure in failures:
        function.log_failure("not compacted", failure, {"database": database}, trace=True)
    if failures:
        raise failures[0][1]  # the others are done; this one fails the invocation
    return [report.summary() for report in reports]
