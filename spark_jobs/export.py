"""Export documents or history of a collection as files for other tools.

    spark-submit spark_jobs/export.py --url s3://bucket --model Customer --out s3://lake/customers

Parquet unless `--format` says otherwise; see docs/spark.md. It reads through the data source `worm`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from worm.errors import WormError
from worm.spark.cluster import job_parser, job_spec, say, spark_session
from worm.spark.export_request import FORMATS, FROM, ExportRequest
from worm.spark.export_writing import write_frame

SETTINGS = {
    "spark__sql__session__timeZone": "UTC",
    "spark__sql__parquet__outputTimestampType": "TIMESTAMP_MICROS",  # Spark's own default has no zone
}


def export(request: ExportRequest) -> int:
    """Write the requested rows, in the session of this process or in a new one; returns the number of rows."""
    from worm.spark.export_frames import export_frame

    spark = spark_session("worm-export", **SETTINGS)
    return write_frame(spark, export_frame(spark, request), request)


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        request = _request(parsed)
        rows = export(request)
    except WormError as error:
        say(f"export: {error}", sys.stderr)
        return error.exit_code
    say(f"{request.model}: {rows:,} rows to {request.out}")
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
        at=parsed.at,
        csv_raw=parsed.csv_raw,
        overwrite=parsed.overwrite,
        files=parsed.files,
        mode=parsed.mode,
        read_from=parsed.read_from,
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
        "--partition-by", metavar="FIELDS", help="one directory per value of these fields, separated by commas"
    )
    parser.add_argument(
        "--history", action="store_true", help="one row per state: valid_from, valid_to, op, actor, seq"
    )
    parser.add_argument("--at", metavar="TIME", help="the state at this time")
    parser.add_argument("--csv-raw", action="store_true", help="write CSV without the apostrophe before formulas")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the files at --out; without this, --out must not exist"
    )
    parser.add_argument("--files", type=int, metavar="N", help="write at most N files (per partition)")
    parser.add_argument(
        "--mode", default="PERMISSIVE", help="how to treat broken documents: PERMISSIVE, DROPMALFORMED, FAILFAST"
    )
    parser.add_argument(
        "--from", default=FROM[0], choices=FROM, dest="read_from", help="what to read: the table, documents, or either"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
