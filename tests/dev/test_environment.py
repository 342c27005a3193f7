"""The embedded AWS as a whole: from a put to the function, failures to the dead-letter queue, and back."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from worm.dev.environment import Environment, Progress, Settings
from worm.dev.faults import FaultPolicy
from worm.dev.worker import OutcomeKind
from worm.errors import Invalid, NotFound, Unavailable

SMALL = Path(__file__).parent / "template_small.yaml"


def put(env: Environment, *keys: str) -> None:
    s3 = env.aws.s3()
    for key in keys:
        s3.put_object(Bucket=env.bucket, Key=key, Body=b"{}")


def handled(env: Environment) -> Counter[str]:
    """How often the function was given each key, from its log, which its first start makes."""
    log = env.log_path("echo")
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(json.loads(line)["key"] for line in lines if line.startswith('{"key"'))


@pytest.mark.slow
def test_every_document_reaches_the_function_once_and_no_system_key_does(env: Environment) -> None:
    documents = [f"once/{n}" for n in range(25)]
    before = env.counts.functions["echo"]
    put(env, *documents, "once/.oplog/1", ".worm.changes/x", "db/1")
    seen: list[Progress] = []
    env.wait_quiet(60, seen.append)
    got = {key: count for key, count in handled(env).items() if "once/" in key}
    assert got == dict.fromkeys(documents, 1)
    after = env.counts.functions["echo"]
    assert (after.records_ok - before.records_ok, after.records_failed - before.records_failed) == (25, 0)
    assert seen[-1] == Progress(waiting=0, in_flight=0, events_pending=0, running=0)


@pytest.mark.slow
def test_only_the_poison_message_comes_again_and_ends_in_the_dead_letter_queue(env: Environment) -> None:
    put(env, "good/1", "poison/1", "good/2")
    env.wait_quiet(60)
    seen = handled(env)
    assert {key: seen[key] for key in ("good/1", "good/2", "poison/1")} == {"good/1": 1, "good/2": 1, "poison/1": 2}
    for _ in range(2):  # looking does not take away
        (message,) = env.dlq_messages("echo")
        assert json.loads(message["Body"])["detail"]["object"]["key"] == "poison/1"
    assert env.redrive("echo") == 1
    env.wait_quiet(60)
    assert handled(env)["poison/1"] == 4
    (message,) = env.dlq_messages("echo")
    s3_key = json.loads(message["Body"])["detail"]["object"]["key"]
    assert s3_key == "poison/1"


@pytest.mark.slow
def test_killing_a_worker_only_causes_a_redelivery(env: Environment) -> None:
    """kill -9 in the middle of a batch: every message of it must come again, and none may be lost."""
    put(env, "slow/1")
    deadline = time.monotonic() + 60
    while not handled(env)["slow/1"] and time.monotonic() < deadline:
        time.sleep(0.02)
    pid = env.kill_worker("echo")
    assert pid is not None
    assert pid not in env.pids("echo")
    env.wait_quiet(60)
    assert handled(env)["slow/1"] == 2
    assert env.counts.functions["echo"].deaths == 1


@pytest.mark.slow
def test_faults_repeat_and_drop_events_and_quiet_waits_for_the_late_ones(env: Environment) -> None:
    keys = [f"chaos/{n}" for n in range(40)]
    dropped_before = env.counts.events["dropped"]
    env.set_faults(FaultPolicy(copies=3, drop=0.1, delay_seconds=0.5, seed=11))
    put(env, *keys)
    env.wait_quiet(60)
    env.set_faults(FaultPolicy())
    dropped = env.counts.events["dropped"] - dropped_before
    counts = Counter(handled(env)[key] for key in keys)
    assert counts == {3: 40 - dropped, 0: dropped}
    assert dropped > 0


@pytest.mark.slow
def test_a_schedule_fires_its_function_with_its_input(env: Environment) -> None:
    outcome = env.fire("FunctionNightly")
    assert outcome.kind is OutcomeKind.OK
    assert env.fire("echo").kind is OutcomeKind.OK
    with pytest.raises(NotFound, match="no schedule hourly"):
        env.fire("hourly")


@pytest.mark.slow
def test_requests_of_others_are_counted_apart(env: Environment) -> None:
    before = env.counts.requests["other"]["PUT"]
    put(env, "counted/1")
    assert env.counts.requests["other"]["PUT"] == before + 1
    env.wait_quiet(60)


@pytest.mark.slow
def test_waiting_for_quiet_ends_with_what_is_left(env: Environment) -> None:
    env.set_faults(FaultPolicy(delay_seconds=1.5, seed=2))
    put(env, *(f"later/{n}" for n in range(5)))
    env.set_faults(FaultPolicy())
    with pytest.raises(Unavailable, match=r"not empty after 0\.2 s: Progress"):
        env.wait_quiet(0.2)
    env.wait_quiet(60)


@pytest.mark.slow
def test_the_environment_of_a_client_names_endpoint_bucket_and_credentials(env: Environment) -> None:
    assert env.environment == {
        "AWS_ENDPOINT_URL": env.endpoint_url,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "WORM_BUCKET": "worm-dev-bucket",
    }


@pytest.mark.slow
def test_the_bucket_is_as_the_template_says(env: Environment) -> None:
    s3 = env.aws.s3()
    assert s3.get_bucket_versioning(Bucket=env.bucket)["Status"] == "Enabled"
    (rule,) = s3.get_bucket_lifecycle_configuration(Bucket=env.bucket)["Rules"]
    assert (rule["ID"], rule["Filter"], rule["Expiration"]) == (
        "ExpireChangeSets",
        {"Prefix": ".worm.changes/"},
        {"Days": 7},
    )
    block = s3.get_public_access_block(Bucket=env.bucket)["PublicAccessBlockConfiguration"]
    assert block["BlockPublicAcls"] is True


@pytest.mark.slow
def test_stopping_leaves_no_process_thread_or_file() -> None:
    threads = set(threading.enumerate())
    environment = Environment(SMALL, Settings(window_seconds=0.0))
    with environment:
        put(environment, "a")
        environment.wait_quiet(60)
        assert environment.aws.process is not None
        pids = [*environment.pids("echo"), environment.aws.process.pid]
        work_dir = environment.work_dir
    environment.stop()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not work_dir.exists()
    deadline = time.monotonic() + 30
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(threading.enumerate()) - threads == set()


@pytest.mark.slow
def test_an_existing_endpoint_can_be_used(env: Environment) -> None:
    settings = Settings(endpoint_url=env.endpoint_url, parameters={"BucketName": "second"}, window_seconds=0.0)
    with Environment(SMALL, settings) as second:
        assert (second.bucket, second.endpoint_url) == ("second", env.endpoint_url)
        assert second.aws.process is None
    assert env.aws.s3().get_bucket_versioning(Bucket="second")["Status"] == "Enabled"


def test_the_bucket_of_the_environment_is_that_of_its_functions_also_if_it_exists_already() -> None:
    template = SMALL.parents[2] / "template.yaml"
    found = {name: Environment(template, Settings(parameters={"ExistingBucketName": name})) for name in ("", "mine")}
    assert {name: env.bucket for name, env in found.items()} == {"": "worm-dev-documentbucket", "mine": "mine"}
    assert [len(env.template.buckets) for env in found.values()] == [1, 0]


def test_an_unknown_aws_is_refused() -> None:
    with pytest.raises(Invalid, match="unknown AWS emulator: azure"):
        Environment(SMALL, Settings(aws="azure"))  # type: ignore[arg-type]


def test_localstack_without_its_venv_says_what_to_do(tmp_path: Path) -> None:
    settings = Settings(aws="localstack", localstack_venv=tmp_path / "nothing")
    with pytest.raises(Unavailable, match="run scripts/localstack-setup"):
        Environment(SMALL, settings).start()
