"""A value of another type, in any argument of any verb, ends in an error of this library and in no other."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from tests.sdk.sessions import schema
from tests.sdk.unique_room import BOTH, FIELDS
from worm.errors import Invalid, NotFound, WormError
from worm.sdk.database import Model, Worm
from worm.store.memory import MemoryStore


class Odd:
    """A value whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


ODD: dict[str, Any] = {
    "none": None,
    "true": True,
    "number": 5,
    "negative": -1,
    "zero": 0,
    "digits": 10**5000,
    "float": 1.5,
    "nan": math.nan,
    "infinite": math.inf,
    "decimal": Decimal("1.5"),
    "text": "x",
    "empty text": "",
    "surrogate": "\ud800",
    "nul": "a\x00b",
    "bytes": b"x",
    "list": [1],
    "list of text": ["x"],
    "list of lists": [["x"]],
    "empty list": [],
    "tuple": ("x", 1),
    "set": {"x"},
    "object": {"x": 1},
    "empty object": {},
    "object with a number for a name": {1: 2},
    "object with a tuple for a name": {(1, 2): 3},
    "nested": {"x": {"y": {"$z": [{}]}}},
    "operator": {"$in": 5},
    "date": datetime(2026, 1, 1, tzinfo=UTC),
    "naive date": datetime(2026, 1, 1),  # noqa: DTZ001 - that is the point
    "function": lambda: None,
    "class": dict,
    "generator": (one for one in "ab"),
    "odd": Odd(),
    "odd in a list": [Odd()],
    "odd in an object": {"name": Odd()},
}

CALLED = frozenset({"function", "progress", "planned", "change"})
"""Functions that do not fit are the caller's own."""
GOOD: dict[str, Any] = {
    "id": "a",
    "ids": ["a", "b"],
    "data": {"name": "new"},
    "document": {"id": "a", "name": "a"},
    "documents": [{"id": "a", "name": "a"}],
    "changes": {"name": "b"},
    "update": {"$set": {"name": "b"}},
    "function": lambda document: document,
    "filter": {"name": "a"},
    "field": "name",
    "ts": "2026-01-01T00:00:00Z",
    "to_seq": 1,
    "seq_a": 1,
    "seq_b": 1,
    "name": "byEmail",
    "cls": BaseModel,
    "operators": {"$set": {"name": "b"}},
    "which": ["nobody"],
    "model": "Customer",
    "change": [{"rename": "name", "to": "title"}],
    "space": "main",
    "key": "org/customers/a/profile.json",
    "at": "2999-01-01T00:00:00Z",
    "branch": "draft",
    "statement": "select name from Customer",
}
"""Arguments that a verb needs."""


def verbs(kind: type) -> dict[str, inspect.Signature]:
    public = (name for name in dir(kind) if not name.startswith("_"))
    found = {name: getattr(kind, name) for name in public}
    return {name: inspect.signature(one) for name, one in found.items() if inspect.isfunction(one)}


def arguments(signature: inspect.Signature) -> Iterator[str]:
    """The names of all parameters, including those that describe a write."""
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from ("actor", "reason", "metadata")
        elif name != "self":
            yield name


def cases(kind: type, left_out: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    return [
        (verb, one) for verb, signature in verbs(kind).items() if verb not in left_out for one in arguments(signature)
    ]


def called(target: object, verb: str, argument: str, value: Any) -> None:
    """Call a verb with one odd argument; the others are valid, or left out if they are optional."""
    signature = inspect.signature(getattr(type(target), verb))
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if name != "self" and parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    given = {name: GOOD[name] for name in needed if name != argument}
    result = getattr(target, verb)(**given, **{argument: value})
    if isinstance(result, Iterator):
        next(result, None)


def try_all(target: object, verb: str, argument: str) -> None:
    """Any other error than ours fails the test."""
    for name, value in ODD.items():
        if argument in CALLED and callable(value):
            continue
        try:
            called(target, verb, argument, value)
        except WormError as error:
            repr(error), str(error)
        except Exception as error:
            error.add_note(f"{verb}({argument}={name})")
            raise


def session(**more: object) -> Worm:
    customers: dict[str, object] = {
        "fields": {**FIELDS, "tags": {"type": "array", "items": "string"}},
        "indexes": {**BOTH, "byTag": {"field": "tags", "type": "multiValue"}},
        "snapshots": {"enabled": True, "every": 1},
        **more,
    }
    made = Worm(MemoryStore(), schema(**customers), probe=False)
    made.push()
    made.model("Customer").insert({"id": "a", "name": "a", "email": "a@acme.com", "tags": ["x"]})
    return made


@pytest.fixture(scope="module")
def customers() -> Model:
    return session().model("Customer")


@pytest.mark.parametrize(("verb", "argument"), cases(Model))
def test_no_argument_of_a_verb_of_a_model_ends_in_another_error(verb: str, argument: str, customers: Model) -> None:
    try_all(customers, verb, argument)


SESSION = frozenset({"in_parallel", "collection", "table", "table_lock", "lake"})
"""Not for callers: other rooms call them."""


@pytest.mark.parametrize(("verb", "argument"), cases(Worm, SESSION))
def test_no_argument_of_a_verb_of_a_session_ends_in_another_error(verb: str, argument: str) -> None:
    try_all(session(), verb, argument)


BRANCHES = frozenset({"create_branch", "branches", "branch", "delete_branch", "undelete_branch", "diff", "merge"})


def branched() -> Worm:
    made = session(space="main")
    made.create_branch("draft")
    made.branch("draft").model("Customer").patch("a", {"name": "b"})
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "argument"), [one for one in cases(Worm) if one[0] in BRANCHES])
def test_no_argument_about_branches_ends_in_another_error(verb: str, argument: str) -> None:
    try_all(branched(), verb, argument)


@pytest.fixture(scope="module")
def on_a_branch() -> Model:
    return branched().branch("draft").model("Customer")


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "argument"), cases(Model))
def test_no_argument_of_a_verb_on_a_branch_ends_in_another_error(verb: str, argument: str, on_a_branch: Model) -> None:
    try_all(on_a_branch, verb, argument)


UNIQUE: dict[str, Callable[[Model, Any], object]] = {
    "id": lambda customers, wrong: customers.insert({"id": wrong, "email": "new@acme.com"}),
    "value": lambda customers, wrong: customers.insert({"id": "new", "email": wrong}),
    "nested value": lambda customers, wrong: customers.insert({"id": "new", "meta": {"key": wrong}}),
    "patch": lambda customers, wrong: customers.patch("a", {"email": wrong}),
    "bulk": lambda customers, wrong: customers.save_many([{"id": "new", "email": wrong}, {"id": "b", "email": "b"}]),
    "filter": lambda customers, wrong: customers.find_all(filter={"email": wrong}),
    "among": lambda customers, wrong: customers.find_all(filter={"email": {"$in": [wrong]}}, strategy="index_lookup"),
    "lookup": lambda customers, wrong: customers.find_one({"email": wrong, "phone": wrong}),
}


@pytest.mark.parametrize("verb", UNIQUE)
def test_no_unique_value_ends_in_another_error(verb: str) -> None:
    customers = session().model("Customer")
    for name, value in ODD.items():
        try:
            UNIQUE[verb](customers, value)
        except WormError as error:
            repr(error), str(error)
        except Exception as error:
            error.add_note(f"{verb} of {name}")
            raise
    assert isinstance(customers.get("a")["email"], str | None)


WRONG: list[tuple[str, Callable[[Worm, Any], object], str]] = [
    ("build_index", lambda db, wrong: db.model("Customer").build_index(wrong), "has no index"),
    ("build_manifest", lambda db, wrong: db.model("Customer").build_manifest(progress=wrong), "must be a function"),
    ("push", lambda db, wrong: db.push(progress=wrong), "must be a function"),
    ("planned", lambda db, wrong: db.push(planned=wrong), "must be a function"),
    ("migrate", lambda db, wrong: db.migrate("Customer", lambda document: None, progress=wrong), "must be a function"),
    ("plan_push", lambda db, wrong: db.plan_push(progress=wrong), "must be a function"),
    ("sample", lambda db, wrong: db.plan_push(sample=wrong), "must be a whole number of at least 0"),
    ("typed", lambda db, wrong: db.model("Customer").typed(wrong), "is not a pydantic class"),
    ("history", lambda db, wrong: db.history(model=wrong), "must be the name of a model"),
    ("op", lambda db, wrong: db.history(op=wrong), "is not an operation"),
    ("cursor", lambda db, wrong: db.history(cursor=wrong), "not the cursor of a search"),
    ("space", lambda db, wrong: db.space(wrong), "must be text"),
    ("materialize", lambda db, wrong: db.materialize(wrong), "must be text"),
    ("snapshot", lambda db, wrong: db.model("Customer").restore_snapshot("a", wrong), "must be a time"),
    ("batch_size", lambda db, wrong: next(db.model("Customer").find_batches(batch_size=wrong)), "of at least 1"),
]


@pytest.mark.parametrize("wrong", [[], {"x": 1}, -1.5, b"x"], ids=["list", "object", "number", "bytes"])
@pytest.mark.parametrize(("work", "reason"), [one[1:] for one in WRONG], ids=[one[0] for one in WRONG])
def test_a_value_of_another_type_is_refused_with_the_reason(
    work: Callable[[Worm, Any], object], reason: str, wrong: Any
) -> None:
    with pytest.raises((Invalid, NotFound), match=reason):
        work(session(), wrong)


@pytest.mark.parametrize("number", [10**5000, -(10**5000), 2**64], ids=["digits", "negative", "large"])
def test_an_id_or_seq_with_too_many_digits_is_refused(number: int, customers: Model) -> None:
    for work in (customers.get, customers.delete, customers.exists, customers.find_by_id, customers.get_history):
        with pytest.raises(Invalid, match="an id must be a string"):
            work(number)
    (found,) = customers.find_many([number])
    assert isinstance(found.error, Invalid)
    for to_seq in (number, abs(number)):
        with pytest.raises(NotFound, match="has no entry"):
            customers.rollback("a", to_seq=to_seq)


def test_an_id_of_a_model_with_numbers_for_ids_has_bounds() -> None:
    numbered = Worm(MemoryStore(), schema(path="#org/@customers/(id:int)"), probe=False).model("Customer")
    numbered.insert({"id": 2**53 + 1, "name": "a"})
    assert numbered.get(2**53 + 1)["name"] == "a"
    assert [row["id"] for row in numbered.find_all(filter={"id": 2**53 + 1})] == [str(2**53 + 1)]
    for number in (10**5000, -(10**5000), 2**64):
        with pytest.raises(Invalid):
            numbered.get(number)
        with pytest.raises(Invalid):
            numbered.insert({"id": number})
        (saved,) = numbered.save_many([{"id": number}])
        assert isinstance(saved.error, Invalid)
        assert numbered.find_all(filter={"id": number}) == []


def test_a_function_that_fails_is_the_callers_own(customers: Model) -> None:
    def fails(*_: object) -> None:
        raise KeyError("theirs")

    work: list[Callable[[], object]] = [
        lambda: customers.build_manifest(progress=fails),
        lambda: customers.modify("a", fails),
    ]
    for one in work:
        with pytest.raises(KeyError, match="theirs"):
            one()
