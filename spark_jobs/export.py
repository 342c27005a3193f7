"""Export documents or history of a collection as files for other tools.

    spark-submit spark_jobs/export.py --url s3://bucket --model Customer --out s3://lake/customers

Parquet unless `--format` says otherwise; see docs/spark.md. It reads through the data source `worm`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worm.errors import WormError
from worm.spark import (
    BROKEN,
    DELTA,
    FORMATS,
    FROM,
    MODES,
    TABLES,
    ExportRequest,
    explain,
    job_parser,
    job_spec,
    require_package,
    say,
    sized_files,
    spark_session,
    write_frame,
)

if TYPE_CHECKING:
    from worm.spark import Exported

SETTINGS = {
    "spark__sql__session__timeZone": "UTC",
    "spark__sql__parquet__outputTimestampType": "TIMESTAMP_MICROS",  # Spark's own default has no zone
}


def export(request: ExportRequest) -> int:
    """Write the requested rows, in the session of this process or in a new one; returns the number of rows."""
    return exported(request).rows


def exported(request: ExportRequest) -> Exported:
    """The same, with everything there is to say about it."""
    from worm.spark import Exported, export_frame, export_table

    spark = spark_session("worm-export", DELTA if request.format == "delta" else None, **SETTINGS)
    try:
        with sized_files(spark, request):
            if request.format not in TABLES:
                return Exported(write_frame(export_frame(spark, request), request))
            require_package(spark, request.format)
            return export_table(spark, request)
    except WormError:
        raise
    except Exception as error:
        explain(error, request)
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        request = _request(parsed)
        done = exported(request)
    except WormError as error:
        say(f"export: {error}", sys.stderr)
        return error.exit_code
    removed = f", at most {done.removed:,} rows removed" if done.removed else ""
    note = f" ({done.note})" if done.note else ""
    say(f"{request.model}: {done.rows:,} rows to {request.out}{removed}{note}")
    return 0


def _request(parsed: argparse.Namespace) -> ExportRequest:
    spec = job_spec(parsed.url, _only(parsed.models), parsed.endpoint_url)
    return ExportRequest.of(
        spec,
        parsed.out,
        format=parsed.format,
        filters=parsed.filter,
        where=parsed.where,
        select=parsed.select,
        partition_by=parsed.partition_by,
        history=parsed.history,
        changes=parsed.changes,
        at=parsed.at,
        csv_raw=parsed.csv_raw,
        overwrite=parsed.overwrite,
        mode=parsed.mode,
        files=parsed.files,
        target_file_mb=parsed.target_file_mb,
        broken=parsed.broken,
        read_from=parsed.read_from,
        full=parsed.full,
    )


def _only(models: Sequence[str] | None) -> str:
    if models is None or len(models) != 1:
        raise SystemExit("export: name one --model")
    return models[0]


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("export", "Export documents or history of one model.")
    parser.add_argument("--out", required=True, help="directory: s3://… (EMR), s3a://…, file:///…; Iceberg: a table")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    parser.add_argument(
        "--filter", action="append", metavar="CONDITIONS", help="status=active,'amount>100'; repeatable"
    )
    parser.add_argument(
        "--where", metavar="JSON", help="a filter in the full filter language; combined with --filter by AND"
    )
    parser.add_argument(
        "--select", metavar="FIELDS", help="only these fields, separated by commas; the id is always included"
    )
    parser.add_argument(
        "--partition-by",
        metavar="FIELDS",
        help="a partition or directory per value of these fields, separated by commas",
    )
    parser.add_argument(
        "--history", action="store_true", help="one row per state: valid_from, valid_to, op, actor, seq"
    )
    parser.add_argument(
        "--changes", action="store_true", help="one row per change: seq, op, ts, actor, before and after"
    )
    parser.add_argument("--at", metavar="TIME", help="the state at this time")
    parser.add_argument("--csv-raw", action="store_true", help="write CSV without the apostrophe before formulas")
    parser.add_argument(
        "--mode",
        metavar="MODE",
        help=f"if --out exists: {', '.join(MODES)}; without this, it must not exist",
    )
    parser.add_argument("--overwrite", action="store_true", help="the same as --mode overwrite")
    parser.add_argument(
        "--full", action="store_true", help="merge and append: compare everything, not only what changed since"
    )
    parser.add_argument("--files", type=int, metavar="N", help="write at most N files (per partition)")
    parser.add_argument("--target-file-mb", type=int, metavar="N", help="write files of about N MB")
    parser.add_argument(
        "--broken", default=BROKEN[0], metavar="CHOICE", help=f"how to treat broken documents: {', '.join(BROKEN)}"
    )
    parser.add_argument(
        "--from", default=FROM[0], choices=FROM, dest="read_from", help="what to read: the table, documents, or either"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
