"""`worm table list` and `worm table query`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.model import Worm


def test_list_shows_count_freshness_indexes_and_time_of_every_model(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "list", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Model        Count  Manifest  Indexes  Last Updated\n"
        "-----------  -----  --------  -------  --------------------\n"
        "Customer         3  fresh     status   2026-01-01T00:00:03Z\n"
        "OrgSettings      0  n/a       --       --\n"
    )


def test_list_as_json_is_for_programs(worm: Command, url: str, session: Worm) -> None:
    assert json.loads(worm("table", "list", "--url", url, "--format", "json").stdout) == [
        {
            "model": "Customer",
            "count": 3,
            "manifest": "fresh",
            "indexes": ["status"],
            "lastUpdated": "2026-01-01T00:00:03Z",
        },
        {"model": "OrgSettings", "count": 0, "manifest": "n/a", "indexes": [], "lastUpdated": None},
    ]


def _state(worm: Command, url: str) -> object:
    return json.loads(worm("table", "list", "--url", url, "--format", "json").stdout)[0]["manifest"]


def test_a_document_that_nobody_recorded_makes_the_table_stale(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/new/data.json", b'{"name": "New"}')
    assert _state(worm, url) == "stale"


def test_a_document_that_breaks_the_schema_does_not_make_the_table_stale(
    worm: Command, url: str, session: Worm
) -> None:
    session.store.put("org/customers/bad/data.json", b'{"name": 7}')
    assert _state(worm, url) == "fresh"


def test_a_deleted_document_makes_the_table_stale_until_it_is_recorded(worm: Command, url: str, session: Worm) -> None:
    session.store.delete("org/customers/zeta/data.json")
    assert _state(worm, url) == "stale"


@pytest.mark.parametrize("file", [".worm.manifest.json", ".worm.heads.json", ".worm.index/status.json"])
def test_a_missing_derived_file_makes_the_table_stale(worm: Command, url: str, session: Worm, file: str) -> None:
    session.store.delete(f"org/customers/{file}")
    assert _state(worm, url) == "stale"


def test_a_query_is_an_aligned_table(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "query", "Customer", "--select", "name,score,tags", "--sort", "name:desc", "--url", url)
    assert ended.stdout == (
        "id    name        score  tags\n"
        "----  ----------  -----  ----\n"
        "kobe  神戸紙      2\n"
        "zeta  Zeta\n"
        "acme  Acme, Inc.  10.5   a, b\n"
    )


def test_filters_compare_by_the_type_of_the_field(worm: Command, url: str, session: Worm) -> None:
    def ids(*filters: str) -> list[str]:
        options = [part for text in filters for part in ("--filter", text)]
        ended = worm("table", "query", "Customer", *options, "--format", "ndjson", "--url", url)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return [json.loads(line)["id"] for line in ended.stdout.splitlines()]

    assert ids("status=active") == ["zeta"]
    assert ids("vip=true") == ["acme"]
    assert ids("vip=false", "seats=12") == ["zeta"]
    assert ids("score=2.0") == ["kobe"]
    assert ids('name="Acme, Inc.",status=churned') == ["acme"]
    assert ids("id=kobe") == ["kobe"]
    assert ids("address.city=Kōbe") == ["kobe"]
    assert ids("status=nothing") == []


def test_limit_and_offset_page_through_sorted_rows(worm: Command, url: str, session: Worm) -> None:
    page = ("--sort", "name:asc", "--limit", "1", "--offset", "1", "--select", "name", "--format", "json")
    assert json.loads(worm("table", "query", "Customer", *page, "--url", url).stdout) == [
        {"id": "zeta", "name": "Zeta"}
    ]


def test_csv_is_quoted_and_formulas_are_disarmed_unless_raw(worm: Command, url: str, session: Worm) -> None:
    customers = session.model("Customer")
    customers.save(customers.create({"name": '=HYPERLINK("x")', "score": -1, "tags": ["a"]}, id="evil"))
    columns = ("--filter", "id=evil", "--select", "name,score,tags,status", "--format", "csv", "--url", url)
    assert worm("table", "query", "Customer", *columns).stdout == (
        'id,name,score,tags,status\nevil,"\'=HYPERLINK(""x"")",-1,"[""a""]",\n'
    )
    assert worm("table", "query", "Customer", *columns, "--csv-raw").stdout == (
        'id,name,score,tags,status\nevil,"=HYPERLINK(""x"")",-1,"[""a""]",\n'
    )


def test_a_document_cannot_send_control_characters_to_the_terminal(worm: Command, url: str, session: Worm) -> None:
    customers = session.model("Customer")
    customers.save(customers.create({"name": "a\x1b[31mb\nc\x9b\u202e"}, id="evil"))
    ended = worm("table", "query", "Customer", "--filter", "id=evil", "--select", "name", "--url", url)
    assert ended.stdout.splitlines()[2] == "evil  a\\x1b[31mb\\nc\\x9b\\u202e"


def test_an_undeclared_field_is_noted_and_still_looked_for(worm: Command, url: str, session: Worm) -> None:
    customers = session.model("Customer")
    customers.save(customers.create({"name": "New", "floor": 3}, id="new"))
    ended = worm("table", "query", "Customer", "--filter", "floor=3", "--select", "floor", "--url", url)
    assert ended.stdout == "id   floor\n---  -----\nnew  3\n"
    assert ended.stderr == "worm: note: the schema of Customer declares no field 'floor'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "score>100"], "--filter 'score>100': the operator '>' is not understood at character 6"),
        (["--filter", "tags~vip"], "--filter 'tags~vip': the operator '~' is not understood at character 5"),
        (["--filter", "a!=b"], "--filter 'a!=b': the operator '!=' is not understood at character 2"),
        (["--filter", "status"], "--filter 'status': this is not understood at character 7"),
        (["--filter", ""], "--filter '': this is not understood at character 1"),
        (["--filter", "status=a,"], "--filter 'status=a,': this is not understood at character 10"),
        (["--filter", 'name="a'], "--filter 'name=\"a': the quoted text does not end"),
        (["--filter", "status=a,status=b"], "the filter names 'status' twice"),
    ],
)
def test_a_filter_that_is_not_understood_is_refused_and_says_what_is(
    worm: Command, url: str, session: Worm, arguments: list[str], message: str
) -> None:
    ended = worm("table", "query", "Customer", *arguments, "--url", url)
    hint = 'understood are field=value and, with commas, several that must all hold: status=active,name="Acme, Inc."'
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", f"worm: {message} ({hint})\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "score=high"], "--filter: 'score' is a number; write a number or null, not 'high'"),
        (["--filter", "seats=1.5"], "--filter: 'seats' is an integer; no document has 1.5"),
        (["--filter", "vip=yes"], "--filter: 'vip' is boolean; write true, false or null, not 'yes'"),
        (["--filter", "tags=vip"], "--filter: 'tags' is of type array and has no single value to compare"),
        (["--sort", "name:up"], "--sort 'name:up' is not understood (write field:asc or field:desc)"),
        (["--select", "name,,score"], "--select 'name,,score' has an empty name"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(
    worm: Command, url: str, session: Worm, arguments: list[str], message: str
) -> None:
    ended = worm("table", "query", "Customer", *arguments, "--url", url)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", f"worm: {message}\n")


def test_an_unknown_model_is_one_line_with_the_known_ones(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "query", "Custommer", "--url", url)
    message = "worm: no model 'Custommer' in the schema; known: Customer, OrgSettings\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "", message)


def test_a_place_without_a_schema_says_what_to_do(worm: Command, tmp_path: Path) -> None:
    ended = worm("table", "list", "--url", str(tmp_path / "empty"))
    assert ended.exit_code == 3
    assert ended.stderr.startswith("worm: no schema at file://")
    assert ended.stderr.endswith("(run `worm push` with your schema.json)\n")


def test_the_url_may_stand_before_the_command_or_in_the_environment(
    worm: Command, url: str, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = worm("table", "list", "--url", url).stdout
    assert worm("--url", url, "table", "list").stdout == wanted
    assert worm("--url", "./elsewhere", "table", "list", "--url", url).stdout == wanted
    monkeypatch.setenv("WORM_URL", url)
    assert worm("table", "list").stdout == wanted
