"""`worm table list`, `query` and `aggregate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.cli.output import RowFormat
from worm.cli.rows import Strategy, aggregate_rows, show_plan
from worm.formats.strict_json import JsonValue
from worm.query.needs import STRATEGIES
from worm.sdk.database import Worm


def test_list_shows_count_freshness_indexes_and_time_of_every_model(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "list", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Model             Count  Manifest    Indexes               Last Updated\n"
        "-------------  --------  ----------  --------------------  ----------------------\n"
        "Customer              3  fresh       status                2026-01-01T00:00:03Z\n"
        "OrgSettings           0  n/a         --                    --\n"
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
    assert ids("score>2") == ["acme"]
    assert ids("score>=2,score<10.5") == ["kobe"]
    assert ids("status!=active") == ["acme", "kobe"]
    assert ids("tags~b") == ["acme"]
    assert ids("tags~a,tags~b") == ["acme"]
    assert ids("tags~a,tags~c") == []
    assert ids("name^=Ze") == ["zeta"]
    assert ids("name~cme") == ["acme"]
    assert ids("updatedAt>2026-01-01T00:00:02.500Z") == ["acme"]


def test_limit_and_offset_page_through_sorted_rows(worm: Command, url: str, session: Worm) -> None:
    page = ("--sort", "name:asc", "--limit", "1", "--offset", "1", "--select", "name", "--format", "json")
    assert json.loads(worm("table", "query", "Customer", *page, "--url", url).stdout) == [
        {"id": "zeta", "name": "Zeta"}
    ]


def test_pages_follow_one_another_by_cursor(worm: Command, url: str, session: Worm) -> None:
    page = ("table", "query", "Customer", "--sort", "name:asc", "--limit", "2", "--format", "ndjson", "--url", url)
    first = worm(*page)
    assert [json.loads(line)["id"] for line in first.stdout.splitlines()] == ["acme", "zeta"]
    note, _, cursor = first.stderr.strip().rpartition(" ")
    assert note == "worm: note: more rows follow: --cursor"
    second = worm(*page, "--cursor", cursor)
    assert [json.loads(line)["id"] for line in second.stdout.splitlines()] == ["kobe"]
    assert second.stderr == ""


def test_where_takes_the_whole_filter_language_and_holds_beside_filter(worm: Command, url: str, session: Worm) -> None:
    where = '{"$or": [{"status": "active"}, {"score": {"$gt": 5}}]}'
    options = ("table", "query", "Customer", "--where", where, "--select", "id", "--format", "csv", "--url", url)
    assert worm(*options).stdout == "id\nacme\nzeta\n"
    assert worm(*options, "--filter", "vip=true").stdout == "id\nacme\n"


def test_explain_shows_the_plan_instead_of_rows(worm: Command, url: str, session: Worm) -> None:
    options = ("table", "query", "Customer", "--filter", "vip=true", "--select", "name", "--url", url)
    shown = dict(line.split(maxsplit=1) for line in worm(*options, "--explain").stdout.splitlines())
    assert (shown["Plan"], shown["strategy"], shown["estimatedRequests"]) == ("Value", "manifest_scan", "1")
    assert shown["estimatedUsd"] == "0.0000004"
    plan = json.loads(worm(*options, "--explain", "--format", "json").stdout)
    assert (plan["strategy"], plan["estimatedRequests"], "actualRows" in plan) == ("manifest_scan", 1, False)


def test_analyze_runs_the_query_and_shows_what_it_took(worm: Command, url: str, session: Worm) -> None:
    options = ("table", "query", "Customer", "--filter", "vip=true", "--select", "name", "--url", url)
    forced = ("--strategy", "full_scan", "--analyze", "--format", "json")
    plan = json.loads(worm(*options, *forced).stdout)
    assert (plan["strategy"], plan["actualRows"], plan["actualRequests"] > 3) == ("full_scan", 1, True)


def test_the_strategies_are_those_of_the_planner() -> None:
    assert tuple(Strategy) == STRATEGIES


def test_amounts_in_a_plan_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show_plan({"estimatedBytes": 1234567, "estimatedUsd": 0.0123456, "x": None, "indexes": ["a", "b"]}, RowFormat.table)
    assert capsys.readouterr().out == (
        "Plan            Value\n"
        "--------------  ---------\n"
        "estimatedBytes  1,234,567\n"
        "estimatedUsd    0.0123\n"
        "x               null\n"
        "indexes         a, b\n"
    )


def test_aggregates_are_a_row_for_each_group(worm: Command, url: str, session: Worm) -> None:
    def run(*options: str) -> str:
        ended = worm("table", "aggregate", "Customer", *options, "--url", url)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return ended.stdout

    assert run() == "count\n-----\n3\n"
    assert run("--group-by", "status", "--format", "csv") == "status,count\nactive,1\nchurned,1\ninactive,1\n"
    assert run("--sum", "score", "--avg", "score", "--count", "--format", "csv") == (
        "count,sum(score),avg(score)\n3,12.5,6.25\n"
    )
    assert run("--group-by", "vip,status", "--min", "seats", "--max", "seats", "--format", "csv") == (
        "vip,status,min(seats),max(seats)\nfalse,active,12,12\ntrue,churned,3,3\n,inactive,,\n"
    )
    assert json.loads(run("--group-by", "status", "--count", "--filter", "seats>0", "--format", "json")) == {
        "groups": {"active": {"count": 1}, "churned": {"count": 1}}
    }
    assert json.loads(run("--min", "score", "--max", "score", "--format", "json")) == {"min": 2, "max": 10.5}


def test_aggregates_of_several_fields_with_percentiles_and_having(worm: Command, url: str, session: Worm) -> None:
    def run(*options: str) -> str:
        ended = worm("table", "aggregate", "Customer", *options, "--url", url)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return ended.stdout

    several = ("--sum", "score,seats", "--max", "seats", "--percentiles", "score:50:95,seats:50")
    assert run(*several, "--format", "csv") == (
        "sum(score),sum(seats),max(seats),p50(score),p95(score),p50(seats)\n12.5,15,12,6.25,10.075,7.5\n"
    )
    assert json.loads(run(*several, "--format", "json")) == {
        "sum": {"score": 12.5, "seats": 15},
        "max": 12,
        "percentiles": {"score": {"50": 6.25, "95": 10.075}, "seats": {"50": 7.5}},
    }
    having = ("--group-by", "status", "--sum", "seats", "--having", "sum.seats>3,count=1", "--format", "csv")
    assert run(*having) == "status,sum(seats)\nactive,12\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--percentiles", "score"), "--percentiles 'score' is not valid (write field:50 or, for several, field"),
        (("--percentiles", "score:x"), "--percentiles 'score:x' is not valid"),
        (("--percentiles", "score:101"), "percentiles: must have fields, each with up to 100 numbers from 0 to 100"),
        (("--having", "count>1"), "having: having needs groups"),
        (("--group-by", "status", "--having", "count=>1"), "--having 'count=>1': the operator '=>' is not valid"),
        (
            ("--group-by", "status", "--having", "avg>1"),
            "having: 'avg' is not part of the result (the result has: count)",
        ),
        (("--sum", "name"), "sum: 'name' of document "),
    ],
)
def test_wrong_totals_are_refused(
    worm: Command, url: str, session: Worm, options: tuple[str, ...], problem: str
) -> None:
    ended = worm("table", "aggregate", "Customer", *options, "--url", url)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"worm: {problem}")


def test_distinct_lists_the_values_of_a_field(worm: Command, url: str, session: Worm) -> None:
    def run(*options: str) -> str:
        ended = worm("table", "distinct", "Customer", *options, "--url", url)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return ended.stdout

    assert run("status") == "status\n--------\nactive\nchurned\ninactive\n"
    assert json.loads(run("status", "--filter", "status=~/^IN/i", "--format", "json")) == ["inactive"]
    assert run("seats", "--format", "ndjson") == '{"seats": 3}\n{"seats": 12}\n'


def test_a_sort_may_be_written_with_a_sign(worm: Command, url: str, session: Worm) -> None:
    for sort in ("-name", "name:desc"):
        ended = worm(
            "table", "query", "Customer", "--select", "name", "--sort", sort, "--format", "ndjson", "--url", url
        )
        names = [json.loads(line)["name"] for line in ended.stdout.splitlines()]
        assert names == sorted(names, reverse=True)
        assert len(names) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "--where", '{"$not": {"floor": 3}}'),
        ("query", "--sort", "floor"),
        ("export", "--select", "floor"),
        ("aggregate", "--group-by", "floor"),
        ("aggregate", "--max", "floor"),
        ("aggregate", "--percentiles", "floor:50"),
        ("distinct", "floor"),
    ],
)
def test_an_undeclared_field_is_noted_wherever_it_is_named(
    worm: Command, url: str, session: Worm, arguments: tuple[str, ...]
) -> None:
    ended = worm("table", arguments[0], "Customer", *arguments[1:], "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "worm: note: the schema of Customer declares no field 'floor'\n")


def test_a_group_of_the_name_of_a_total_is_not_hidden_by_it() -> None:
    found: dict[str, JsonValue] = {"groups": [{"key": {"count": "x"}, "count": 2, "sum": 1}]}
    assert aggregate_rows(found, ["count"], {"sum": "n"}) == [{"count": "x", "count(*)": 2, "sum(n)": 1}]


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
        (
            ["--filter", "status"],
            (
                "--filter 'status': this is not valid at character 7 (use = != > >= < <= ~ (contains) "
                "^= (starts with); separate several conditions, which must all hold, with commas: "
                'status=active,amount>100,name="Acme, Inc."; =~ matches a pattern: name=~/^acme/i)'
            ),
        ),
        (["--filter", "vip=yes"], "--filter: 'vip' is a boolean; write true, false or null, not 'yes'"),
        (["--sort", "name:up"], "--sort 'name:up' is not valid (write field, -field, field:asc or field:desc)"),
        (["--select", "name,,score"], "--select 'name,,score' contains an empty name"),
        (["--cursor", "nonsense"], None),
        (["--where", '{"$where": "1"}'], None),
        (["--strategy", "guess"], None),
    ],
)
def test_what_is_not_understood_is_one_line_and_exit_code_2(
    worm: Command, url: str, session: Worm, arguments: list[str], message: str | None
) -> None:
    ended = worm("table", "query", "Customer", *arguments, "--url", url)
    assert (ended.exit_code, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr == f"worm: {message}\n" if message else ended.stderr.startswith("worm: ")


def test_an_unknown_model_is_one_line_with_the_known_ones(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "query", "Custommer", "--url", url)
    message = "worm: the schema has no model 'Custommer'; known: Customer, OrgSettings\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "", message)


def test_a_place_without_a_schema_says_what_to_do(worm: Command, tmp_path: Path) -> None:
    ended = worm("table", "list", "--url", str(tmp_path / "empty"))
    assert ended.exit_code == 3
    assert ended.stderr.startswith("worm: there is no schema at file://")
    assert ended.stderr.endswith("(push one with `worm push schema.json`)\n")


def test_the_url_may_stand_before_the_command_or_in_the_environment(
    worm: Command, url: str, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = worm("table", "list", "--url", url).stdout
    assert worm("--url", url, "table", "list").stdout == wanted
    assert worm("--url", "./elsewhere", "table", "list", "--url", url).stdout == wanted
    monkeypatch.setenv("WORM_URL", url)
    assert worm("table", "list").stdout == wanted


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["aggregate", "Customer", "--sum", "score", "--sum", "seats"], "--sum"),
        (["aggregate", "Customer", "--avg", "score", "--avg", "seats"], "--avg"),
        (["aggregate", "Customer", "--min", "score", "--min", "seats"], "--min"),
        (["aggregate", "Customer", "--max", "score", "--max", "seats"], "--max"),
        (["aggregate", "Customer", "--percentiles", "score:5", "--percentiles", "seats:5"], "--percentiles"),
        (["aggregate", "Customer", "--group-by", "status", "--group-by", "vip"], "--group-by"),
        (["query", "Customer", "--sort", "name:asc", "--sort", "score:asc"], "--sort"),
        (["query", "Customer", "--select", "name", "--select", "score"], "--select"),
        (["export", "Customer", "--where", "{}", "--where", "{}"], "--where"),
    ],
)
def test_an_option_that_is_there_twice_is_refused(
    worm: Command, url: str, session: Worm, arguments: list[str], option: str
) -> None:
    ended = worm("table", *arguments, "--url", url)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"worm: {option} is given 2 times, but only once is allowed (")


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_query_without_a_manifest_says_so(worm: Command, url: str, session: Worm, how: str) -> None:
    key, query = "org/customers/.worm.manifest.json", ("table", "query", "Customer", "--url", url)
    assert worm(*query).stderr == ""
    if how == "missing":
        session.store.delete(key)
    else:
        session.store.put(key, b"damage")
    told = (
        "worm: note: Customer has no valid manifest, so documents are read. "
        "Build it with `worm table rebuild Customer`\n"
    )
    for more in ([], ["--filter", "name=nobody"], ["--explain"], ["--filter", "status=active"]):
        assert worm(*query, *more).stderr == told, more
    assert worm("table", "query", "OrgSettings", "--url", url).stderr == ""
    assert worm("table", "rebuild", "Customer", "--url", url).exit_code == 0
    assert worm(*query).stderr == ""


def test_an_empty_collection_wants_no_manifest(worm: Command, url: str, schema_file: Path) -> None:
    assert worm("push", str(schema_file), "--url", url).exit_code == 0
    (Path(url) / "org/customers/.worm.manifest.json").unlink(missing_ok=True)
    assert worm("table", "query", "Customer", "--url", url).stderr == ""
