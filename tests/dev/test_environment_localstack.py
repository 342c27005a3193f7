"""The same wiring on LocalStack, whose events, queues and redrive are its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from worm.dev.environment import Environment, Settings

SMALL = Path(__file__).parent / "template_small.yaml"
VENV = Path(__file__).parent.parent.parent / ".venv-localstack"


@pytest.mark.localstack
@pytest.mark.timeout(180)
def test_documents_reach_the_function_and_poison_reaches_the_dead_letter_queue() -> None:
    settings = Settings(aws="localstack", localstack_venv=VENV, window_seconds=0.2, run_schedules=False)
    with Environment(SMALL, settings) as env:
        s3 = env.aws.s3()
        for key in ("a", "b", ".oplog/a/0001.json", "poison"):
            s3.put_object(Bucket=env.bucket, Key=key, Body=b"{}")
        s3.delete_object(Bucket=env.bucket, Key="a")
        env.wait_quiet(60)
        lines = env.log_path("echo").read_text().splitlines()
        seen = Counter(json.loads(line)["key"] for line in lines if line.startswith('{"key"'))
        assert seen == {"a": 2, "b": 1, "poison": 2}
        (message,) = env.dlq_messages("echo")
        assert json.loads(message["Body"])["detail"]["object"]["key"] == "poison"
