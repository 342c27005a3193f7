"""The EMR schedule on the embedded AWS: a local spark-submit, fired only when asked for, whose failure is heard of.

What is submitted here is a stand-in that needs no Java; the jobs themselves are run in tests/spark and by the demo.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from worm.dev.environment import Environment, Settings
from worm.dev.queues import peek
from worm.dev.schedule import ScheduleRunner
from worm.dev.spark import LocalSpark
from worm.dev.specs import SparkJobSpec
from worm.dev.template import read_template
from worm.dev.worker import OutcomeKind
from worm.errors import NotFound

ROOT = Path(__file__).resolve().parents[2]
SUBMIT = """#!{python}
import json, os, sys, time
job = sys.argv[sys.argv.index({entry!r}) + 1]
print(json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}))
if job == "slow":
    time.sleep(600)
if job == "wrong":
    print("ValueError: no such table")
sys.exit(3 if job == "wrong" else 0)
"""


@pytest.fixture(scope="module")
def submit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a spark-submit that only tells what it was given."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "spark-submit"
    script.write_text(SUBMIT.format(python=sys.executable, entry=str(ROOT / "spark_jobs" / "launch.py")))
    script.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def env() -> Iterator[Environment]:
    settings = Settings(parameters={"SparkArtifactsBucket": "artifacts"}, run_schedules=False)
    with Environment(ROOT / "template.yaml", settings) as environment:
        yield environment


@pytest.fixture
def spark(env: Environment, submit: Path, monkeypatch: pytest.MonkeyPatch) -> LocalSpark:
    monkeypatch.setattr("worm.dev.spark.sys.executable", str(submit / "python"))
    return env.spark


def _job(name: str, seconds: float = 60.0) -> SparkJobSpec:
    return SparkJobSpec("worm-dev-SparkStack-SparkApplication", name, (), seconds)


def _reported(env: Environment) -> list[dict[str, object]]:
    """The failures in the dead-letter queue of Spark."""
    (arn,) = [queue.arn for queue in env.template.queues if queue.logical_id == "SparkDeadLetterQueue"]
    url = env.aws.sqs().get_queue_url(QueueName=arn.rsplit(":", 1)[1])["QueueUrl"]
    return [json.loads(message["Body"])["detail"] for message in peek(env.aws.sqs(), url)]


@pytest.mark.slow
def test_the_schedule_submits_the_entry_point_with_the_templates_arguments(env: Environment, spark: LocalSpark) -> None:
    outcome = env.fire("rebuild")
    assert outcome.kind is OutcomeKind.OK, outcome.error
    told = json.loads(str(outcome.value))
    at = told["arguments"].index(str(ROOT / "spark_jobs" / "launch.py"))
    arguments = ["rebuild", "--url", f"s3://{env.bucket}/", "--endpoint-url", env.endpoint_url]
    assert told["arguments"][at + 1 :] == arguments
    assert told["arguments"][:2] == ["--master", "local[2]"]


@pytest.mark.slow
def test_a_job_sees_the_embedded_aws_and_the_code_of_the_checkout(
    env: Environment, spark: LocalSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("SPARK_HOME", "/opt/another-spark")
    seen = json.loads(str(spark.run(_job("rebuild")).value))["environment"]
    assert {name: seen[name] for name in ("AWS_ENDPOINT_URL", "SPARK_LOCAL_IP", "WORM_ROLE")} == {
        "AWS_ENDPOINT_URL": env.endpoint_url,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "WORM_ROLE": "spark",
    }
    assert seen["PYTHONPATH"].split(":") == [str(ROOT / "shared"), str(ROOT)]
    assert {"AWS_PROFILE", "SPARK_HOME"} & set(seen) == set()


@pytest.mark.slow
def test_a_job_that_fails_or_takes_too_long_reaches_the_dead_letter_queue(env: Environment, spark: LocalSpark) -> None:
    wrong, slow = spark.run(_job("wrong")), spark.run(_job("slow", 1.0))
    assert (wrong.kind, wrong.error.splitlines()[0]) == (OutcomeKind.ERROR, "exit code 3")
    assert wrong.error.endswith("ValueError: no such table")
    assert (slow.kind, slow.error) == (OutcomeKind.TIMEOUT, "killed after 1 s")
    reported = {(one["jobRunName"], one["applicationId"], one["state"]) for one in _reported(env)}
    application = "worm-dev-SparkStack-SparkApplication"
    assert reported == {("wrong", application, "FAILED"), ("slow", application, "CANCELLED")}


def test_the_spark_schedule_is_known_by_its_own_name_too() -> None:
    template = read_template(ROOT / "template.yaml", parameters={"SparkArtifactsBucket": "artifacts"})
    spec = template.schedule("worm-dev-rebuild")
    assert template.schedule("rebuild") is spec
    assert (spec.function, spec.enabled) == (None, True)


@pytest.mark.slow
def test_only_functions_are_fired_by_time(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark job takes the whole machine for a while: here it runs when somebody asks for it."""
    fired_by_time: list[str] = []

    class Runner(ScheduleRunner):
        def start(self) -> None:
            fired_by_time.extend(self.next_times())

    monkeypatch.setattr("worm.dev.environment.ScheduleRunner", Runner)
    with ExitStack() as stack:
        env._start_schedules(stack)
    assert sorted(fired_by_time) == ["CompactFunctionSchedule", "PurgeFunctionSchedule", "SweepFunctionSchedule"]


@pytest.mark.slow
def test_without_pyspark_the_message_says_what_to_install(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worm.dev.spark.sys.executable", str(tmp_path / "python"))
    with pytest.raises(NotFound, match="spark-submit") as missing:
        env.fire("rebuild")
    assert missing.value.hint == "pip install 's3worm[spark]'"
