"""Settings that travel to executors, and the command line of the jobs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import worm
from tests.spark.collection_room import Room, customer_id
from worm.collections.id_ranges import IdRange
from worm.errors import Invalid, NotFound
from worm.spark.cluster import job_parser, job_spec, job_specs, parallelism, planned_ranges, specs_of


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
