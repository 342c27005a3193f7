"""What people see of answers: `repr` in a terminal, `_repr_html_` in a notebook."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

import worm
from tests.sdk.sessions import Bench
from worm.collections.entries import OplogEntry
from worm.errors import Conflict, Invalid, NotFound, UniqueViolation
from worm.formats import load_schema
from worm.sdk.access import Result
from worm.sdk.document import DocumentDict
from worm.sdk.rows import Rows
from worm.spaces.opening import open_space

ATTACK = "<script>alert('x')</script>&"
TAGS = re.compile(r"</?(?:table|caption|thead|tbody|tr|th|td)>")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("memory-versioned", tmp_path)


def texts(html: str) -> list[str]:
    """What is between the tags; there are no others than those of a table."""
    found = [text for text in TAGS.split(html) if text]
    assert all("<" not in text and ">" not in text for text in found)
    return found


def test_a_session_names_its_place_and_models(bench: Bench) -> None:
    db = worm.connect("memory://showing", schema=bench.schema)
    assert repr(db) == "<Worm memory://showing (Customer)>"
    assert repr(db.model("Customer")) == "<Model Customer at memory://showing>"
    assert repr(db.schema) == "<Schema 1.0 (Customer)>"
    assert repr(db.resolver) == "<StorageResolver (Customer)>"


def test_rows_are_a_list_with_count_and_cursor(bench: Bench) -> None:
    customers = bench.customers()
    for number in range(30):
        customers.insert({"id": f"c{number:02}", "name": "x"})
    page = customers.find_all(select=["name"], limit=2)
    first, second = "{'id': 'c00', 'name': 'x'}", "{'id': 'c01', 'name': 'x'}"
    assert repr(page) == f"Rows([{first}, {second}], count=2, cursor={page.cursor!r})"
    everything = repr(customers.find_all(select=["name"]))
    assert everything.startswith(f"Rows([{first}, {second}, ")
    assert everything.endswith(", … 10 more], count=30)")


def test_results_say_what_became_of_an_item() -> None:
    stored = DocumentDict({"id": "a"})
    assert repr(Result("a", stored, created=True)) == "<Result 'a': created, {'id': 'a'}>"
    assert repr(Result("a", stored)) == "<Result 'a': done, {'id': 'a'}>"
    missing: Result[DocumentDict] = Result("a")
    failed: Result[DocumentDict] = Result("a", error=NotFound("gone"))
    assert (repr(missing), repr(failed)) == ("<Result 'a': nothing>", "<Result 'a': NotFound('gone')>")
    late = Result("a", stored, NotFound("gone"))
    assert repr(late) == "<Result 'a': done, but NotFound('gone'), {'id': 'a'}>"


def test_errors_say_class_message_key_and_hint() -> None:
    conflict = Conflict("changed", key="a.json", hint="read it")
    assert repr(conflict) == "Conflict('changed', key='a.json', hint='read it')"
    assert repr(Invalid("wrong", path="name")) == "Invalid('name: wrong')"
    taken = UniqueViolation("email", "x", "a", shown='"x"')
    assert repr(taken) == f"UniqueViolation({taken.message!r})"


def test_entries_and_histories_are_short(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "x"})
    bench.tick()
    customers.patch("a", {"name": "y"})
    history = customers.get_history("a")
    entry = "seq 2, update at 2026-01-01T00:00:01Z by ann: name, updatedAt>"
    assert repr(history[1]) == f"<OplogEntry {entry}"
    (newest,) = bench.session().history(limit=1)
    assert repr(newest) == f"<HistoryEntry Customer 'a' {entry}"
    assert repr(history) == f"HistoryRows([{history[0]!r}, {history[1]!r}], count=2)"
    assert repr(OplogEntry(3, "delete", "2026")) == "<OplogEntry seq 3, delete at 2026>"


def test_plans_say_strategy_reason_and_cost(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "x"})
    plan = customers.explain(filter={"name": "x"}, analyze=True)
    cost = r"1 request, \d+ bytes, 0\.0\d+ USD"
    assert re.fullmatch(rf"<Plan manifest_scan: [^;]+; estimated {cost}; took {cost}, rows: 1>", repr(plan))
    shown = texts(plan._repr_html_())
    assert shown[:5] == ["Plan", "strategy", plan.strategy, "reason", plan.reason]
    assert shown[5] == "estimate"


def test_spaces_and_transactions_say_where_they_are(tmp_path: Path) -> None:
    with open_space(f"sqlite://{tmp_path}", "main") as space:
        assert repr(space) == f"<Space sqlite://{tmp_path}/main.sqlite>"
    with open_space("memory://showing-space", "main") as space:
        assert repr(space) == "<Space space-main at memory://showing-space>"
    model = {"path": "#org/@customers/(id:string)", "space": "main", "fields": {"name": {"type": "string"}}}
    schema = load_schema({"version": "1.0", "models": {"Customer": model}})
    db = worm.connect("memory://showing-tx", schema=schema)
    with db.transaction() as tx:
        assert repr(tx) == "<DocumentTransaction, open: nothing read or written>"
        tx.save("Customer", {"id": "a", "name": "x"})
        assert re.fullmatch(r"<DocumentTransaction in the space 'main', open: \S*Customer\S*a\S*>", repr(tx))
    assert f", commit {tx.seq}: " in repr(tx)
    db.close()


def test_rows_in_a_notebook_are_a_table_of_the_first_fifty(bench: Bench) -> None:
    customers = bench.customers()
    customers.save_many([{"id": f"c{number:02}", "name": ATTACK, "tags": ["a"]} for number in range(53)])
    html = customers.find_all(select=["name", "tags", "score"])._repr_html_()
    assert "<script" not in html
    shown = texts(html)
    assert shown[0] == "53 rows; 3 more"
    assert shown[1:4] == ["id", "name", "tags"]  # no row has a score
    assert shown[4:7] == ["c00", "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;", "[&quot;a&quot;]"]
    assert html.count("<tr>") == 51
    assert html == customers.find_all(select=["name", "tags", "score"])._repr_html_()
    assert texts(customers.find_all(select=["name"], limit=1)._repr_html_())[0] == "1 row; the next page has a cursor"
    assert texts(customers.find_all(filter={"name": "none"})._repr_html_()) == ["0 rows"]


def test_names_of_fields_are_escaped_and_columns_are_limited(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", ATTACK: 1, **{f"f{number:02}": "x" * 500 for number in range(30)}})
    document = customers.get("a")
    assert "<script" not in document._repr_html_()
    html = customers.find_all()._repr_html_()
    assert "<script" not in html
    assert re.search(r"^1 row; 1\d more columns: ", texts(html)[0])
    assert "x" * 201 not in html


def test_objects_of_a_class_are_shown_like_documents(bench: Bench) -> None:
    class Customer(BaseModel):
        id: str
        name: str

    db = bench.session()
    db.model("Customer").insert({"id": "a", "name": ATTACK})
    rows = db.model(Customer).find_all()
    assert isinstance(rows, Rows)
    assert rows._repr_html_() == db.model("Customer").find_all()._repr_html_()
    assert repr(rows).startswith("Rows([Customer(id='a', ")


def test_an_object_in_a_notebook_has_its_version() -> None:
    class Customer(worm.Document):
        name: str

    customers = worm.connect("memory://showing-objects", models=[Customer]).model(Customer)
    new = Customer(id="a", name=ATTACK)
    assert texts(new._repr_html_())[:5] == ["Customer", "field", "value", "id", "a"]
    stored = customers.insert(new)
    assert texts(stored._repr_html_())[0] == f"Customer; version {stored.version}; seq 1"
    assert "<script" not in stored._repr_html_()


def test_asynchronous_sessions_are_told_apart(bench: Bench) -> None:
    async def shown() -> list[str]:
        async with worm.aconnect("memory://showing-async", schema=bench.schema) as db:
            return [repr(db), repr(db.model("Customer")), repr(db.transaction())]

    assert asyncio.run(shown()) == [
        "<AsyncWorm memory://showing-async (Customer)>",
        "<AsyncModel Customer at memory://showing-async>",
        "<AsyncTransaction, open: nothing read or written>",
    ]


def test_a_document_in_a_notebook_has_its_version(bench: Bench) -> None:
    document = bench.customers().insert({"id": "a", "name": ATTACK})
    shown = texts(document._repr_html_())
    assert shown[0] == f"Customer; version {document.version}; seq 1"
    assert shown[1:5] == ["field", "value", "id", "a"]
    assert texts(DocumentDict({"id": "a"})._repr_html_()) == ["field", "value", "id", "a"]
    assert repr(document) == repr(dict(document))


def test_histories_in_a_notebook_say_who_why_and_what(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "x"}, actor="<b>ann", reason=ATTACK)
    customers.patch("a", {"name": ATTACK, "score": 1})
    html = customers.get_history("a")._repr_html_()
    assert "<script" not in html
    assert "<b>" not in html
    shown = texts(html)
    assert shown[:7] == ["2 entries", "seq", "op", "time", "actor", "reason", "change"]
    assert shown[10] == "&lt;b&gt;ann"
    found = bench.session().history(limit=1)
    shown = texts(found._repr_html_())
    assert shown[:3] == ["1 entry; the next page has a cursor", "model", "id"]
    assert shown[9:11] == ["Customer", "a"]
    assert "score: (none) → 1" in found._repr_html_()
