"""Functions run as Lambda runs them: environment, errors, time-outs, death, memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from worm.dev.aws import existing_endpoint
from worm.dev.poller import failed_ids
from worm.dev.runtime import FunctionCounts, FunctionPool, function_environment
from worm.dev.specs import FunctionSpec
from worm.dev.template import read_template
from worm.dev.worker import Outcome, OutcomeKind

SPEC = read_template(Path(__file__).parent / "template_small.yaml").function("echo")
AWS = existing_endpoint("http://127.0.0.1:9", "eu-west-1")


@contextmanager
def pool_of(spec: FunctionSpec, folder: Path, concurrency_max: int = 1) -> Iterator[FunctionPool]:
    made = FunctionPool(spec, function_environment(spec, AWS, folder), folder / "echo.log", concurrency_max)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FunctionPool]:
    with pool_of(SPEC, tmp_path, concurrency_max=2) as made:
        yield made


def test_a_function_sees_lambda_and_the_template_and_nothing_of_this_machine(
    pool: FunctionPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THIS_MACHINE", "1")
    outcome = pool.invoke({"do": "environment"})
    assert outcome.kind is OutcomeKind.OK
    seen = cast("dict[str, Any]", outcome.value)
    assert (seen["layer"], seen["memory"], seen["function"]) == ("from the layer", "256", "worm-dev-echo")
    assert seen["arn"] == "arn:aws:lambda:us-east-1:000000000000:function:worm-dev-echo"
    assert 0 < seen["remaining_ms"] <= 1000 * SPEC.timeout_seconds
    variables = seen["environment"]
    expected = {
        "WORM_BUCKET": "worm-dev-bucket",
        "WORM_ROLE": "echo",
        "POWERTOOLS_LOG_LEVEL": "INFO",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_REGION": "eu-west-1",
        "AWS_LAMBDA_FUNCTION_NAME": "worm-dev-echo",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "256",
        "AWS_LAMBDA_LOG_GROUP_NAME": "/aws/lambda/worm-dev-echo",
    }
    assert {name: variables.get(name) for name in expected} == expected
    assert "SECRET_OF_THIS_MACHINE" not in variables


def test_a_process_is_reused_while_it_is_warm(pool: FunctionPool) -> None:
    pids = {cast("dict[str, Any]", pool.invoke({"do": "environment"}).value)["pid"] for _ in range(3)}
    assert pids == set(pool.pids())
    assert pool.counts() == FunctionCounts(invocations=3, starts=1)


def test_an_exception_is_an_error_and_the_process_lives_on(pool: FunctionPool) -> None:
    outcome = pool.invoke({"do": "raise"})
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.error.startswith("ValueError: asked to")
    assert pool.invoke({"do": "environment"}).kind is OutcomeKind.OK
    assert pool.counts() == FunctionCounts(invocations=2, errors=1, starts=1)


@pytest.mark.slow
def test_a_timeout_kills_the_process(tmp_path: Path) -> None:
    """A function that hangs must not hold its batch, and its process must be gone when the batch comes again."""
    with pool_of(replace(SPEC, timeout_seconds=2), tmp_path) as pool:
        outcome = pool.invoke({"do": "sleep"})
        assert (outcome.kind, outcome.error) == (OutcomeKind.TIMEOUT, "timed out after 2 s")
        assert pool.pids() == []
        assert pool.invoke({"do": "environment"}).kind is OutcomeKind.OK
        assert pool.counts() == FunctionCounts(invocations=2, errors=1, timeouts=1, starts=2)


def test_a_killed_process_ends_its_invocation(pool: FunctionPool, tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(pool.invoke({"do": "sleep"})))
    thread.start()
    log, deadline = tmp_path / "echo.log", time.monotonic() + 60
    while not (log.exists() and "asleep" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = pool.kill_worker()
    thread.join(60)
    assert pid is not None
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.DIED]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_exits_by_itself_is_an_error(pool: FunctionPool) -> None:
    outcome = pool.invoke({"do": "exit"})
    assert outcome.kind is OutcomeKind.DIED
    assert "ended with 3" in outcome.error


def test_memory_far_beyond_the_limit_is_refused(pool: FunctionPool) -> None:
    outcome = pool.invoke({"do": "allocate"})
    assert outcome.kind is OutcomeKind.ERROR
    assert outcome.error.startswith("MemoryError")


@pytest.mark.parametrize("watch_seconds", [0.02, 60.0])
def test_a_moment_above_the_memory_of_the_function_ends_the_process(
    tmp_path: Path, watch_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that fits here and not into Lambda is delivered there until it ends in the dead-letter queue; also where
    nobody looked at that moment."""
    monkeypatch.setattr("worm.dev.worker.WATCH_SECONDS", watch_seconds)
    with pool_of(replace(SPEC, memory_mb=80), tmp_path) as pool:
        outcome = pool.invoke({"do": "grow"})
        assert outcome.kind is OutcomeKind.DIED
        assert "signal: killed: out of memory" in outcome.error
        assert "of 80 MB" in outcome.error
        assert pool.pids() == []
        assert pool.counts().peak_mb > 80
        assert pool.invoke({"do": "environment"}).kind is OutcomeKind.OK


def test_each_process_has_a_bounded_directory_for_temporary_files(pool: FunctionPool, tmp_path: Path) -> None:
    outcome = pool.invoke({"do": "spill"})
    assert outcome.kind is OutcomeKind.DIED
    assert "no space left on device: 513 MB of 512 MB in /tmp" in outcome.error
    assert not list(tmp_path.glob("echo-tmp-*")), "what a process leaves is deleted with it"


def test_a_handler_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("import no_such_module\n")
    with pool_of(replace(SPEC, code_dir=tmp_path), tmp_path) as pool:
        outcome = pool.invoke({})
    assert outcome.kind is OutcomeKind.INIT
    assert "No module named 'no_such_module'" in outcome.error


@pytest.mark.parametrize(
    ("outcome", "partial", "failed"),
    [
        (Outcome(OutcomeKind.OK, None), True, ""),
        (Outcome(OutcomeKind.OK, {}), True, ""),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": []}), True, ""),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": None}), True, ""),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": [{"itemIdentifier": "b"}]}), True, "b"),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": [{"itemIdentifier": "b"}]}), False, ""),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": [{"itemIdentifier": ""}]}), True, "abc"),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": [{"itemIdentifier": None}]}), True, "abc"),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": [{"wrong": "b"}]}), True, "abc"),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": [{"itemIdentifier": "zz"}]}), True, "abc"),
        (Outcome(OutcomeKind.OK, {"batchItemFailures": "b"}), True, "abc"),
        (Outcome(OutcomeKind.OK, "fine"), True, "abc"),
        (Outcome(OutcomeKind.ERROR, error="boom"), True, "abc"),
        (Outcome(OutcomeKind.DIED, error="-9"), False, "abc"),
    ],
)
def test_partial_batch_answers_are_read_as_lambda_reads_them(outcome: Outcome, partial: bool, failed: str) -> None:
    assert failed_ids(outcome, ["a", "b", "c"], partial=partial) == frozenset(failed)
