"""Settings that travel to executors, and the command line of the jobs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import worm
from tests.harness import CUSTOMER
from tests.spark.collection_room import Room, customer_id
from worm.collections.id_ranges import IdRange
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Denied, Invalid, NotFound
from worm.formats import load_schema
from worm.spark.cluster import failure_in, job_parser, job_spec, job_specs, parallelism, specs_of
from worm.spark.shares import planned_ranges
from worm.store.open import open_store


def test_a_spec_is_plain_and_opens_its_collection_once(file_url: str) -> None:
    room = Room(file_url)
    room.put([1])
    spec = pickle.loads(pickle.dumps(room.spec))
    assert spec == room.spec
    assert spec.collection() is spec.collection()
    assert list(spec.collection().current_ids()) == [customer_id(1)]


def test_models_are_those_named_or_all(file_url: str) -> None:
    Room(file_url)
    parser = job_parser("job", "A job.")
    assert [spec.model for spec in specs_of(parser.parse_args(["--url", file_url]))] == ["Customer"]
    assert job_specs(file_url, None, ["Customer"]) == [job_spec(file_url, "Customer")]
    with pytest.raises(NotFound, match="Nobody"):
        job_specs(file_url, None, ["Nobody"])
    with pytest.raises(Invalid, match="memory"):
        job_specs("memory://x")


@pytest.mark.usefixtures("small_portions")
def test_executors_open_the_same_collection(spark: SparkSession, file_url: str) -> None:
    room = Room(file_url)
    room.put(range(12))
    spec = room.spec

    def look(within: IdRange) -> tuple[str, list[str]]:
        return str(worm.__file__), list(spec.collection().current_ids(within))

    ranges = planned_ranges(spark, spec)
    assert 1 < len(ranges) <= parallelism(spark)
    seen = spark.sparkContext.parallelize(ranges, len(ranges)).map(look).collect()
    assert {Path(file) for file, _ in seen} == {Path(str(worm.__file__))}
    assert sorted(one for _, ids in seen for one in ids) == sorted(map(customer_id, range(12)))


def test_a_job_prints_its_plan_and_ends(file_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    room = Room(file_url)
    parser = job_parser("rebuild", "A job.")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--url", file_url, "--plan"])
    assert ended.value.code == Invalid.exit_code
    assert "Customer has no table" in capsys.readouterr().err
    room.fill(20)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--url", file_url, "--plan"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "| stage | 2 | 20, " in printed
    assert "Customer: incremental" in printed


def test_a_model_without_documents_does_not_keep_the_others_from_their_plans(
    file_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job works on all models by default, and some model is always empty."""
    store = open_store(file_url)
    models = {name: {**CUSTOMER, "path": f"#org/@{name.lower()}s/(id:string)"} for name in "AB"}
    schema = {"version": "1.0", "storage": {"layout": "root"}, "models": models}
    store.put(SCHEMA_KEY, load_schema(schema).to_json())
    model = worm.connect(file_url, maintenance="inline").model("B")
    model.save(model.create({"name": "x"}, id="b"))
    with pytest.raises(SystemExit) as ended:
        job_parser("verify", "A job.").parse_args(["--url", file_url, "--plan"])
    told = capsys.readouterr()
    assert ended.value.code == Invalid.exit_code
    assert "A has no table" in told.err
    assert "B: verify" in told.out
    with pytest.raises(SystemExit) as ended:
        job_parser("verify", "A job.").parse_args(["--url", file_url, "--model", "C", "--plan"])
    assert ended.value.code == NotFound.exit_code


def test_the_error_of_a_task_is_told_as_what_it_was() -> None:
    text = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted: PythonException: Traceback (most recent call last):
  File "worm/store/s3.py", line 1, in get
worm.errors.Denied: not allowed to list [.oplog/customers/] (give the role s3:ListBucketVersions)

\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""
    found = failure_in(text)
    assert isinstance(found, Denied)
    assert str(found) == "not allowed to list [.oplog/customers/] (give the role s3:ListBucketVersions)"
    assert failure_in("java.lang.OutOfMemoryError: worm.errors.nothing: x") is None
