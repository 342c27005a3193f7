"""Run by test_export_packages.py in a process of its own: exports that need packages which Spark does not bring, and
the Delta table that the collection publishes.

    python -m tests.spark.packages_drive URL ENDPOINT OUT SCRATCH LAKE VERSION

OUT is a directory at s3a://, LAKE is where the Delta table is. Prints one line of JSON: per export, its exit code and
what Spark reads of it; what Spark reads of the Delta table, at the newest version and at the given one; and how many
rows of the documents, the Delta table and the table differ.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.export import main as export
from tests.spark.session import new_session
from worm.spark.source import register

SDK = "2.25.70"
DELTA, ICEBERG = "io.delta:delta-spark_2.13:4.0.0", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0"
CREDENTIALS_FROM = "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider"


def hadoop_version() -> str:
    """That of the Hadoop which this Spark brings."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    return jar.stem.rpartition("-")[2]


def packages() -> list[str]:
    """The packages of Delta and Iceberg are those for Spark 4.0. Of the SDK only what S3 needs: all of it is 700 MB."""
    tables = [DELTA, ICEBERG] if pyspark.__version__.startswith("4.0.") else []
    sdk = [f"software.amazon.awssdk:{name}:{SDK}" for name in ("s3", "s3-transfer-manager")]
    return [f"org.apache.hadoop:hadoop-aws:{hadoop_version()}", *sdk, *tables]


def new_spark(endpoint_url: str, scratch: str) -> SparkSession:
    iceberg = {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"file://{scratch}/lake",
    }
    delta = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    settings = {
        "spark.jars.packages": ",".join(packages()),
        "spark.jars.excludes": "software.amazon.awssdk:bundle",
        "spark.hadoop.fs.s3a.endpoint": endpoint_url,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.aws.credentials.provider": CREDENTIALS_FROM,
        **({**delta, **iceberg} if DELTA in packages() else {}),
    }
    return new_session("local[2]", **{name.replace(".", "__"): value for name, value in settings.items()})


def shown(frame: DataFrame) -> list[list[object]]:
    return sorted([row["id"], row["count"]] for row in frame.select("id", "count").collect())


def compared(spark: SparkSession, url: str, endpoint_url: str, lake: str, version: str) -> dict[str, object]:
    """With the columns that have the same type everywhere."""
    register(spark)
    options = {"url": url, "endpoint_url": endpoint_url, "model": "Thing"}
    reader = spark.read.format("worm").options(**options)
    documents = reader.option("from", "documents").load().drop("mixed")
    newest, first = (spark.read.format("delta").options(**one).load(lake) for one in ({}, {"versionAsOf": version}))
    others = {"delta": newest.select(documents.columns), "table": reader.option("from", "table").load().drop("mixed")}
    return {
        "published": [shown(newest), shown(first)],
        "differing": {
            name: [documents.exceptAll(other).count(), other.exceptAll(documents).count()]
            for name, other in others.items()
        },
    }


def main(url: str, endpoint_url: str, out: str, scratch: str, lake: str, version: str) -> None:
    spark = new_spark(endpoint_url, scratch)
    command = ["--url", url, "--endpoint-url", endpoint_url, "--model", "Thing", "--select", "count"]
    result: dict[str, object] = {"s3a": [export([*command, "--out", out]), shown(spark.read.parquet(out))]}
    if DELTA in packages():
        place = f"file://{scratch}/delta"
        code = export([*command, "--out", place, "--format", "delta", "--partition-by", "count"])
        result["delta"] = [code, shown(spark.read.format("delta").load(place))]
        code = export([*command, "--out", "lake.worm.things", "--format", "iceberg"])
        result["iceberg"] = [code, shown(spark.table("lake.worm.things"))]
        result |= compared(spark, url, endpoint_url, lake, version)
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
