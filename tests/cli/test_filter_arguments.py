"""`--filter`, `--where`, `--sort` and `--select` as the query language gets them."""

from __future__ import annotations

import pytest

from tests.cli.company import SCHEMA
from worm.errors import Invalid
from worm.formats import ModelDef, load_schema
from worm.formats.strict_json import JsonValue
from worm.query.request_text import both, parse_filter, parse_select, parse_sort, parse_where

CUSTOMER = load_schema(SCHEMA).model("Customer")
INVOICE = load_schema(
    {
        "version": "1.0",
        "models": {
            "Invoice": {
                "path": "#org/@invoices/(id:int)",
                "fields": {
                    "amount": {"type": "number"},
                    "dueAt": {"type": "datetime"},
                    "years": {"type": "array", "items": "integer"},
                    "notes": {"type": "array"},
                },
            }
        },
    }
).model("Invoice")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("status=active", {"status": "active"}),
        ("amount>100", {"amount": {"$gt": 100}}),
        ("status=active,tags~vip", {"status": "active", "tags": {"$contains": "vip"}}),
    ],
)
def test_the_documented_examples(text: str, wanted: JsonValue) -> None:
    assert parse_filter(CUSTOMER, [text]) == wanted


@pytest.mark.parametrize(
    ("definition", "text", "wanted"),
    [
        (CUSTOMER, "status!=churned", {"status": {"$ne": "churned"}}),
        (CUSTOMER, "score>=2.5", {"score": {"$gte": 2.5}}),
        (CUSTOMER, "score<10", {"score": {"$lt": 10}}),
        (CUSTOMER, "score<=-1e3", {"score": {"$lte": -1000.0}}),
        (CUSTOMER, "name^=Acme", {"name": {"$startsWith": "Acme"}}),
        (CUSTOMER, "name~cm", {"name": {"$contains": "cm"}}),
        (CUSTOMER, "vip!=true", {"vip": {"$ne": True}}),
        (CUSTOMER, "name=~/^acme/", {"name": {"$regex": "^acme"}}),
        (
            CUSTOMER,
            "name =~ /^ac,me/i , status=active",
            {"name": {"$regex": "^ac,me", "$options": "i"}, "status": "active"},
        ),
        (CUSTOMER, r"name=~/a\/b\d\\/", {"name": {"$regex": r"a/b\d\\"}}),
        (CUSTOMER, "tags=~/^v/", {"tags": {"$regex": "^v"}}),
        (CUSTOMER, "floor=~/3/", {"floor": {"$regex": "3"}}),
        (
            CUSTOMER,
            "name=~/a/,name=~/b/i",
            {"name": {"$regex": "a"}, "$and": [{"name": {"$regex": "b", "$options": "i"}}]},
        ),
        (CUSTOMER, "status=null", {"status": None}),
        (CUSTOMER, 'status!="null"', {"status": {"$ne": "null"}}),
        (CUSTOMER, "seats>1.5", {"seats": {"$gt": 1.5}}),
        (CUSTOMER, "seats=49.0", {"seats": 49}),
        (CUSTOMER, "seats=4.9e1", {"seats": 49}),
        (INVOICE, "dueAt>2026-0", {"dueAt": {"$gt": "2026-0"}}),
        (INVOICE, 'dueAt<="2026-02-24T12:00:00.5+01:00"', {"dueAt": {"$lte": "2026-02-24T12:00:00.5+01:00"}}),
        (INVOICE, "dueAt^=2026-02-24T1", {"dueAt": {"$startsWith": "2026-02-24T1"}}),
        (INVOICE, "dueAt~-24T", {"dueAt": {"$contains": "-24T"}}),
        (INVOICE, "dueAt=null", {"dueAt": None}),
        (INVOICE, "updatedAt!=2026", {"updatedAt": {"$ne": "2026"}}),
        (CUSTOMER, "name^=1", {"name": {"$startsWith": "1"}}),
        (CUSTOMER, "name~null", {"name": {"$contains": "null"}}),
        (CUSTOMER, 'tags~"a,b"', {"tags": {"$contains": "a,b"}}),
        (CUSTOMER, "tags~null", {"tags": {"$contains": None}}),
        (CUSTOMER, "address.city^=Kō", {"address.city": {"$startsWith": "Kō"}}),
        (CUSTOMER, "createdAt>=2026", {"createdAt": {"$gte": "2026"}}),
        (CUSTOMER, 'name="=1"', {"name": "=1"}),
        (CUSTOMER, "name=a:b^c", {"name": "a:b^c"}),
        (CUSTOMER, "floor>3", {"floor": {"$gt": 3}}),
        (CUSTOMER, "floor~3", {"floor": {"$contains": 3}}),
        (CUSTOMER, 'floor="3"', {"floor": "3"}),
        (CUSTOMER, "id=7", {"id": "7"}),
        (INVOICE, "years~2026", {"years": {"$contains": 2026}}),
        (INVOICE, "notes~7", {"notes": {"$contains": 7}}),
        (INVOICE, "dueAt<2026-02-01", {"dueAt": {"$lt": "2026-02-01"}}),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(definition: ModelDef, text: str, wanted: JsonValue) -> None:
    assert parse_filter(definition, [text]) == wanted


def test_several_conditions_on_one_field_must_all_hold() -> None:
    assert parse_filter(CUSTOMER, ["score>=10,score<20"]) == {"score": {"$gte": 10, "$lt": 20}}
    assert parse_filter(CUSTOMER, ["score>=10", "score<20"]) == {"score": {"$gte": 10, "$lt": 20}}
    assert parse_filter(CUSTOMER, ["score=10,score<20"]) == {"score": {"$eq": 10, "$lt": 20}}
    assert parse_filter(CUSTOMER, ["tags~a,tags~b,vip=true"]) == {
        "tags": {"$contains": "a"},
        "vip": True,
        "$and": [{"tags": {"$contains": "b"}}],
    }


def test_two_values_of_one_field_are_refused_with_the_filter_that_is_meant() -> None:
    with pytest.raises(Invalid) as refused:
        parse_filter(CUSTOMER, ["status=active,status=new"])
    assert refused.value.message == "the filter has two values for 'status'"
    assert refused.value.hint == """to match any of several: --where '{"status":{"$in":["active","new"]}}'"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score>high", "--filter: 'score' is a number; write a number or null, not 'high'"),
        ("seats=1.5", "--filter: 'seats' is an integer; no document has 1.5"),
        ("seats!=1.5", "--filter: 'seats' is an integer; no document has 1.5"),
        ("vip=yes", "--filter: 'vip' is a boolean; write true, false or null, not 'yes'"),
        ("vip>false", "--filter: 'vip' is a boolean, which has no order (compare it with = or !=)"),
        ("score<null", "--filter: null has no order, so this never matches: score<null"),
        ("tags=vip", "--filter: 'tags' is an array and has no single value to compare (use tags~VALUE to look inside)"),
        ("tags>vip", "--filter: 'tags' is an array and has no single value to compare (use tags~VALUE to look inside)"),
        (
            "address=x",
            (
                "--filter: 'address' is an object and has no single value to compare "
                "(name a field of the object, such as address.city)"
            ),
        ),
        ("address~x", "--filter: 'address' is of type object; ~ works on arrays and strings"),
        ("score~1", "--filter: 'score' is of type number; ~ works on arrays and strings"),
        ("score^=1", "--filter: 'score' is of type number; ^= works on strings"),
    ],
)
def test_a_value_that_the_field_cannot_have_is_refused(text: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_filter(CUSTOMER, [text])
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("status", "--filter 'status': this is not valid at character 7"),
        ("", "--filter '': this is not valid at character 1"),
        ("status=a,", "--filter 'status=a,': this is not valid at character 10"),
        ("=a", "--filter '=a': this is not valid at character 1"),
        ("a==b", "--filter 'a==b': the operator '==' is not valid at character 2"),
        ("a=>b", "--filter 'a=>b': the operator '=>' is not valid at character 2"),
        ("a!b", "--filter 'a!b': the operator '!' is not valid at character 2"),
        ("a^b", "--filter 'a^b': the operator '^' is not valid at character 2"),
        ("a=1,b<>2", "--filter 'a=1,b<>2': the operator '<>' is not valid at character 6"),
        ('name="a', "--filter 'name=\"a': the closing quote is missing"),
        ('name="a"b', "--filter 'name=\"a\"b': a comma must follow the quoted text"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_is(text: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_filter(CUSTOMER, [text])
    assert refused.value.message == message
    hint = "use = != > >= < <= ~ (contains) ^= (starts with); separate several conditions"
    assert (refused.value.hint or "").startswith(hint)


def test_a_sign_at_the_start_of_a_value_is_told_to_be_quoted() -> None:
    with pytest.raises(Invalid, match="a value that starts with an operator in double quotes"):
        parse_filter(CUSTOMER, ["name=~x"])


def test_where_takes_the_whole_language() -> None:
    text = '{"$or": [{"status": "active"}, {"score": {"$gte": 80}}]}'
    assert parse_where(text) == {"$or": [{"status": "active"}, {"score": {"$gte": 80}}]}
    assert parse_where(None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "--where: a filter must be a JSON object"),
        ('{"a": 1,}', r"--where: byte offset 8 \(line 1, column 9\)"),
        ('{"a": {"$gtt": 1}}', "--where: .*a.*\\$gtt"),
    ],
)
def test_a_broken_where_says_where_it_is_broken(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message) as refused:
        parse_where(text)
    assert refused.value.hint


def test_filter_and_where_hold_together() -> None:
    assert both({"a": 1}, {"b": 2}) == {"$and": [{"a": 1}, {"b": 2}]}
    assert both({"a": 1}, {}) == {"a": 1}
    assert both({}, {"b": 2}) == {"b": 2}
    assert both({}, {}) == {}


def test_sort_and_select() -> None:
    assert parse_sort("name:asc,address.city:desc,score") == [
        {"field": "name", "order": "asc"},
        {"field": "address.city", "order": "desc"},
        {"field": "score", "order": "asc"},
    ]
    assert parse_sort("-score,name") == [{"field": "score", "order": "desc"}, {"field": "name", "order": "asc"}]
    assert (parse_sort(None), parse_select(None)) == ([], None)
    assert parse_select("name, email") == ["name", "email"]
    with pytest.raises(Invalid, match="--select 'a,,b' contains an empty name"):
        parse_select("a,,b")
    with pytest.raises(Invalid, match="--sort 'name:up' is not valid"):
        parse_sort("name:up")


@pytest.mark.parametrize("text", ["dueAt>yesterday", "dueAt=24.2.2026", "dueAt^=Feb", "dueAt<", "createdAt>=2026-13"])
def test_what_is_no_time_is_refused_on_a_time(text: str) -> None:
    with pytest.raises(Invalid, match=r"is a time, but '.*' is not") as refused:
        parse_filter(INVOICE, [text])
    assert refused.value.hint == "write 2026-02-24T12:00:00Z, or the start of it"


def test_an_integer_is_an_integer() -> None:
    assert repr(parse_filter(CUSTOMER, ["seats=49.0"])) == "{'seats': 49}"
    with pytest.raises(Invalid, match="'seats' is an integer; write a number or null, not 'many'"):
        parse_filter(CUSTOMER, ["seats=many"])
