"""`worm table query --sql`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.company import Command
from tests.docs.markdown import ROOT
from worm.sdk.database import Worm

TOTALS = "select status, count(*) as n, sum(score) as score from Customer group by 1 order by 1"
ENDLESS = "select count(*) from range(99999999) a, range(99999999) b where a.range * b.range = 7"


def test_a_statement_is_answered_as_a_table(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "query", "--sql", TOTALS, "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "status    n  score\n--------  -  -----\nactive    1  null\nchurned   1  10.5\ninactive  1  2.0\n"
    )


def test_a_statement_is_answered_in_every_format(worm: Command, url: str, session: Worm) -> None:
    asked = ("table", "query", "--url", url, "--sql", "select id, tags, createdAt, 1.50 as d from Customer order by 1")
    rows = json.loads(worm(*asked, "--format", "json").stdout)
    assert rows[0] == {"id": "acme", "tags": ["a", "b"], "createdAt": "2026-01-01T00:00:00Z", "d": 1.5}
    assert [json.loads(line) for line in worm(*asked, "--format", "ndjson").stdout.splitlines()] == rows
    lines = worm(*asked, "--format", "csv").stdout.splitlines()
    assert lines[:2] == ["id,tags,createdAt,d", 'acme,"[""a"",""b""]",2026-01-01T00:00:00Z,1.5']
    formula = ("table", "query", "--url", url, "--format", "csv", "--sql", "select '=1' as f")
    assert worm(*formula).stdout == "f\n'=1\n"
    assert worm(*formula, "--csv-raw").stdout == "f\n=1\n"


@pytest.mark.parametrize("format", ["table", "json", "ndjson", "csv"])
def test_an_integer_of_any_size_is_shown(worm: Command, url: str, session: Worm, format: str) -> None:
    largest = str(10**38 - 1)
    ended = worm("table", "query", "--url", url, "--format", format, "--sql", f"select {largest}::hugeint as n")
    assert largest in ended.stdout


def test_a_statement_without_rows_has_its_columns(worm: Command, url: str, session: Worm) -> None:
    asked = ("table", "query", "--url", url, "--sql", "select id, seats from Customer where false")
    assert worm(*asked).stdout == "id  seats\n--  -----\n"
    assert worm(*asked, "--format", "json").stdout == "[]\n"


def test_a_statement_reads_the_past(worm: Command, url: str, session: Worm) -> None:
    asked = ("table", "query", "--url", url, "--format", "ndjson", "--sql", "select status from Customer order by id")
    assert worm(*asked, "--at", "2026-01-01T00:00:01Z").stdout == '{"status": "active"}\n{"status": "inactive"}\n'
    ended = worm(*asked, "--at", "2026-01-01T00:00:01Z", "--max-changed", "0")
    assert ended.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--sql", "select * from Custmer"], 2, "Table with name Custmer does not exist! (did you mean Customer?)"),
        (["--sql", "delete from Customer"], 2, "DELETE is not possible here: SQL only reads (to change documents, use"),
        (["--sql", "select 1", "--sql", "select 2"], 2, "--sql is given 2 times"),
        (["Customer", "--sql", "select 1"], 2, "MODEL and --sql cannot be combined (say it in the statement: FROM,"),
        (["--sql", "select 1", "--filter", "a=1"], 2, "--filter and --sql cannot be combined"),
        (["--sql", "select 1", "--limit", "0"], 2, "--limit and --sql cannot be combined"),
        (["--sql", "select 1", "--explain"], 2, "--explain and --sql cannot be combined"),
        (["--sql", "select 1", "--memory-limit", "much"], 2, "must be a size such as '2GB', not 'much'"),
        (["--sql", ENDLESS, "--timeout", "1"], 2, "took longer than 1 s (ask for less, or raise --timeout)"),
        (["Customer", "--timeout", "5"], 2, "--timeout and --memory-limit need --sql"),
        ([], 2, "name a model, or pass --sql (worm table query MODEL)"),
    ],
)
def test_a_wrong_question_is_refused(
    worm: Command, url: str, session: Worm, arguments: list[str], code: int, message: str
) -> None:
    ended = worm("table", "query", "--url", url, *arguments)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert message in ended.stderr


def test_without_duckdb_the_command_says_what_to_install(
    worm: Command, url: str, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    ended = worm("table", "query", "--url", url, "--sql", "select 1")
    assert (ended.exit_code, "pip install 's3worm[sql]'" in ended.stderr) == (3, True)


def test_the_process_says_nothing_but_the_answer(url: str, session: Worm) -> None:
    """DuckDB's module prints what it thinks was leaked if something of it is left at the end."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'shared'}"}
    for statement, code, said in (
        ("select id from Customer limit 1", 0, ""),
        ("select id from nobody", 2, "nobody does not exist"),
    ):
        command = [sys.executable, "-m", "worm.cli.main", "table", "query", "--url", url, "--sql", statement]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert ended.returncode == code
        assert "leak" not in ended.stderr
        assert said in ended.stderr
        assert bool(ended.stderr) is bool(said)
