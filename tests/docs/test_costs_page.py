"""docs/costs.md and `worm cost`: every figure is computed again, and the prices are those of one file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.docs.markdown import ROOT, blocks
from tests.docs.running import run_page
from worm.cli.cost import ChangeKind, dollars
from worm.cli.program import app
from worm.dev.cfn import load
from worm.query.planner import USD_PER_1000
from worm.upkeep.costs import (
    ALARM_METRICS,
    CHANGES,
    METRICS,
    PASSES_A_MONTH,
    PRICE_NAMES,
    RUNS_A_MONTH,
    Prices,
    Usage,
    bill,
    idle,
    per_call,
    per_change,
    rebuild,
    sweep_pass,
)

PAGE = ROOT / "docs" / "costs.md"
OBSERVABILITY = ROOT / "functions" / "observability.yaml"
PRICES = Prices.read()
MILLION = 1_000_000


def rows(first: str) -> list[list[str]]:
    """The rows of the page's table whose first cell fits."""
    found = re.findall(rf"^\| ({first}) \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    return [[name, *rest.split(" | ")] for name, rest in found]


def test_the_screen_is_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(PAGE, tmp_path, monkeypatch)


def test_the_idle_cost_is_computed() -> None:
    total = sum(one.usd for one in idle(Usage(), PRICES))
    assert f"about {dollars(total)} a month" in PAGE.read_text()


def test_the_cost_of_changes_is_computed() -> None:
    expected = []
    for change in CHANGES:
        full = {what: MILLION * usd for what, usd in per_change(Usage(change=change), PRICES).items()}
        parts = [full["S3 requests"], full["events"] + full["messages"], full["functions"]]
        whole = [MILLION * sum(per_change(Usage(change=change, batch=size), PRICES).values()) for size in (100, 10, 1)]
        expected.append([f"`{change}`", *map(dollars, [*parts, *whole])])
    assert rows(r"`[a-z-]+`") == expected
    assert [one.value for one in ChangeKind] == list(CHANGES)


def test_the_cost_of_queries_sweeps_and_rebuilds_is_computed() -> None:
    assert f"{dollars(MILLION * PRICES.s3({'GET': 1}))} for queries" in PAGE.read_text()
    expected = []
    for documents in (10_000, 100_000, 1_000_000, 10_000_000):
        sweep = sweep_pass(documents, PRICES)
        costs = [PASSES_A_MONTH * sweep, RUNS_A_MONTH["sweep"] * sweep, rebuild(documents, PRICES)]
        expected.append([f"{documents:,}", *map(dollars, costs)])
    assert rows(r"[\d,]+") == expected


def test_the_cost_of_calls_is_computed() -> None:
    expected = []
    for by_http_api in (False, True):
        parts = {what: MILLION * usd for what, usd in per_call(Usage(by_http_api=by_http_api), PRICES).items()}
        costs = [parts["functions"], parts["S3 requests"], parts["HTTP API"], sum(parts.values())]
        expected.append([dollars(one) for one in costs])
    assert [cells for _, *cells in rows(r"(?:Function URL|HTTP API) \(.*?\)")] == expected
    assert f"five metrics cost up to {dollars(METRICS['api'] * PRICES.usd['metricMonth'])}" in PAGE.read_text()


def test_calls_of_the_api_are_part_of_the_bill() -> None:
    found = cost("--calls", "2e6", "--requests-per-call", "3", "--address", "http-api")
    lines = {one["what"]: one["usd"] for one in found["lines"] if one["group"] == "calls"}
    assert lines.keys() == {"functions", "S3 requests", "HTTP API", "metrics of api"}
    assert (lines["S3 requests"], lines["HTTP API"]) == (pytest.approx(6e6 * 0.0004 / 1000), pytest.approx(2))
    assert "calls" not in {one["group"] for one in cost()["lines"]}


def test_the_prices_of_the_page_are_those_of_the_file() -> None:
    shown = next(one.text for one in blocks(PAGE) if one.language == "json")
    assert json.loads(shown) == json.loads((ROOT / "shared/worm/upkeep/prices.json").read_text())
    assert set(PRICES.usd) == set(PRICE_NAMES)


def test_explained_queries_have_the_same_prices() -> None:
    for kind, usd in USD_PER_1000.items():
        assert usd == PRICES.s3({kind: 1000}), kind


def alarm_metrics(value: Any) -> Iterator[str]:
    """Metrics inside an alarm, whether it has one or looks at several; not those of the HTTP API, which is off unless
    somebody asks for it."""
    if isinstance(value, Mapping):
        if "HasApi" in value.get("Fn::If", ()):
            return
        yield from (str(one) for name, one in value.items() if name == "MetricName")
        for one in value.values():
            yield from alarm_metrics(one)
    elif isinstance(value, list):
        for one in value:
            yield from alarm_metrics(one)


@pytest.mark.skipif(not OBSERVABILITY.exists(), reason="alarms are in template.yaml")
def test_as_many_metrics_are_paid_for_as_the_alarms_look_at() -> None:
    resources = load(OBSERVABILITY.read_text())["Resources"].values()
    alarms = [one["Properties"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
    assert sum(len(list(alarm_metrics(one))) for one in alarms) == ALARM_METRICS


def cost(*arguments: str) -> dict[str, Any]:
    ended = CliRunner().invoke(app, ["cost", *arguments, "--format", "json"], catch_exceptions=False)
    assert ended.exit_code == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_each_option_moves_its_part_of_the_bill() -> None:
    arguments = ["--changes", "2e6", "--change", "update", "--batch", "10", "--queries", "3e6"]
    arguments += ["--requests-per-query", "2", "--documents", "1e6", "--document-bytes", "2000", "--models", "3"]
    found = cost(*arguments, "--sweeps", "30", "--rebuilds", "4", "--events", "sqs")
    usage = Usage(2e6, "update", 10, 3e6, 2, 1e6, 2000, 3, 30, 4, by_eventbridge=False)
    assert found["lines"] == [one.shape() for one in bill(usage, PRICES)]
    assert found["usdPerMonth"] == pytest.approx(sum(one.usd for one in bill(usage, PRICES)), abs=1e-5)
    by_what = {(one["group"], one["what"]): one["usd"] for one in found["lines"]}
    assert by_what["changes", "events"] == 0
    assert by_what["storage", "documents, newest entries and rows"] == pytest.approx(6 * 0.023)
    assert by_what["queries", "S3 requests"] == pytest.approx(6e6 * 0.0004 / 1000)


def test_other_prices_take_the_place_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    double = {name: 2 * usd for name, usd in PRICES.usd.items()}
    file.write_text(json.dumps({"region": "eu-north-1", "date": "today", "source": "a contract", "usd": double}))
    usage = ["--changes", "1e6", "--queries", "1e6", "--documents", "1e6", "--rebuilds", "1"]
    mine = cost(*usage, "--prices", str(file))
    assert mine["usdPerMonth"] == pytest.approx(2 * cost(*usage)["usdPerMonth"])
    assert mine["region"] == "eu-north-1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "has no prices"),
        ('{"usd": {}}', "has missing or unknown prices"),
        (json.dumps({"usd": {**PRICES.usd, "other": 1}}), "unknown prices: other"),
        (json.dumps({"usd": {**PRICES.usd, "metricMonth": "free"}}), "metricMonth must be a number of at least 0"),
        (json.dumps({"usd": {**PRICES.usd, "metricMonth": -1}}), "metricMonth must be a number of at least 0"),
        ("{", ""),
    ],
)
def test_wrong_prices_are_refused(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "prices.json"
    file.write_text(text)
    ended = CliRunner().invoke(app, ["cost", "--prices", str(file)], catch_exceptions=False)
    assert (ended.exit_code, told in ended.stderr, ended.stderr.count("\n")) == (2, True, 1), ended.stderr


@pytest.mark.parametrize(
    "arguments", [("--changes", "nan"), ("--queries", "-1"), ("--batch", "0"), ("--batch", "101"), ("--sweeps", "inf")]
)
def test_numbers_that_are_none_are_refused(arguments: tuple[str, str]) -> None:
    ended = CliRunner().invoke(app, ["cost", *arguments], catch_exceptions=False)
    assert (ended.exit_code, arguments[0] in ended.stderr) == (2, True)
