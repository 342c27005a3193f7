"""The handlers as Lambda calls them, in this process: their answers, and the lines that they print."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worm.upkeep.session import Session
from worm.upkeep.workers.lambdas import Function

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("capture", "tables", "apply", "sweep", "purge", "compact")


def context(request_id: str = "invocation-1", seconds: float = 500.0) -> SimpleNamespace:
    return SimpleNamespace(
        function_name="f",
        memory_limit_in_mb=1,
        invoked_function_arn="arn",
        aws_request_id=request_id,
        get_remaining_time_in_millis=lambda: seconds * 1000,
    )


@dataclass
class Deployed:
    """One function of the stack `shop`. `printed` are its lines since the last look."""

    name: str
    module: Any
    capsys: pytest.CaptureFixture[str]

    @property
    def function(self) -> Function[Any]:
        found: Function[Any] = self.module.function
        return found

    def call(self, event: Mapping[str, object], seconds: float = 500.0) -> Any:
        return self.module.lambda_handler(dict(event), context(seconds=seconds))

    def batch(self, bodies: Sequence[str], *, seconds: float = 500.0) -> list[str]:
        """The messages (m0, m1, …) that the answer names as failed."""
        records = [{"messageId": f"m{number}", "body": body} for number, body in enumerate(bodies)]
        answer = self.call({"Records": records}, seconds)
        return [one["itemIdentifier"] for one in answer["batchItemFailures"]]

    def lines(self) -> Lines:
        text = self.capsys.readouterr().out
        return Lines([json.loads(line) for line in text.splitlines() if line.startswith("{")])


@dataclass
class Lines:
    """What an invocation printed: metrics and log lines."""

    printed: list[dict[str, Any]]

    def metric(self, name: str) -> list[float]:
        found = [line[name] for line in self.printed if "_aws" in line and name in line]
        return [float(value) for listed in found for value in listed]

    @property
    def dimensions(self) -> list[tuple[list[str], str, str]]:
        """Of each set of metrics: the names of its dimensions, the stack and the service."""
        sets = [line for line in self.printed if "_aws" in line]
        return [
            (sorted(one), line["stack"], line["service"])
            for line in sets
            for directive in line["_aws"]["CloudWatchMetrics"]
            for one in directive["Dimensions"]
        ]

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.printed if line.get("message") == message]


@dataclass
class Functions:
    """Makes functions as fresh processes have them."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __post_init__(self) -> None:
        worm = logging.getLogger("worm")  # a function changes how the library logs, for all that follows in a process
        for name in ("handlers", "propagate", "level"):
            self.monkeypatch.setattr(worm, name, getattr(worm, name))
        self.monkeypatch.setattr("aws_lambda_powertools.metrics.metrics.Metrics._default_dimensions", {})
        self.monkeypatch.setattr("aws_lambda_powertools.metrics.metrics.Metrics._dimensions", {})
        self.monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "S3Worm")
        self.monkeypatch.setenv("WORM_STACK", "shop")
        self.monkeypatch.delenv("WORM_DLQ_URL", raising=False)

    def load(self, name: str, session: Session | None = None) -> Deployed:
        """`session` None: of the environment."""
        self.monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", name)
        logging.Logger.manager.loggerDict.pop(name, None)  # made once in a process, it keeps stream and level
        spec = importlib.util.spec_from_file_location(f"{name}_handler", ROOT / "functions" / name / "handler.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = Deployed(name, module, self.capsys)
        if session is not None:
            made.function.session = session
        return made
