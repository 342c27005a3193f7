"""Verify whole collections: every entity's history, its row, index entries, claims and trash. It only reads.

    spark-submit spark_jobs/verify.py --url s3://bucket --out s3://reports/2026-02-24

Prints counts by kind; exit code 1 if something differs. `--out` gets `report.json` and the differences as Parquet.
`--fix` repairs the differences (it records changes that no event reported, and rebuilds tables and claims) and verifies
again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from worm.errors import WormError
from worm.formats import JsonValue, dumps_document
from worm.spark import (
    JobReport,
    check_shared,
    failures_of_tasks,
    fix,
    job_parser,
    refuse_overlap,
    say,
    spark_session,
    specs_of,
    store_at,
    verify,
)

EXIT_DIFFERENCES = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("verify", "Compare all derived files with the documents.")
    parser.add_argument("--out", help="where to write the reports: s3://bucket/prefix or file:///path")
    parser.add_argument("--fix", action="store_true", help="repair the differences, then verify again")
    parsed = parser.parse_args(arguments)
    try:
        with failures_of_tasks():
            reports = _run(parsed)
    except WormError as error:
        say(f"verify: {error}", sys.stderr)
        return error.exit_code
    return 0 if all(report.is_clean for report in reports) else EXIT_DIFFERENCES


def _run(parsed: argparse.Namespace) -> list[JobReport]:
    specs = specs_of(parsed)
    if parsed.out:  # it is needed after hours
        check_shared(parsed.out)
        refuse_overlap(parsed.url, parsed.out)
        store_at(parsed.out, parsed.endpoint_url)
    spark = spark_session("worm-verify")
    reports: list[JobReport] = []
    for spec in specs:
        report = verify(spark, spec, None if parsed.fix else parsed.out)
        say(report.summary())
        if parsed.fix:
            if not report.is_clean:
                mended = fix(spark, spec)
                say(f"{spec.model}: {mended.appended} oplog entries written")
                for key, reason in sorted(mended.left.items()):
                    say(f"left as it is  {key}: {reason}")
                if mended.left_count > len(mended.left):
                    say(f"left as it is  {mended.left_count - len(mended.left)} more")
            report = verify(spark, spec, parsed.out)
            say(report.summary())
        reports.append(report)
    if parsed.out:
        models: list[JsonValue] = [one.shape() for one in reports]
        shape: dict[str, JsonValue] = {"clean": all(one.is_clean for one in reports), "models": models}
        store_at(parsed.out, parsed.endpoint_url).put("report.json", dumps_document(shape))
    return reports


if __name__ == "__main__":
    sys.exit(main())
