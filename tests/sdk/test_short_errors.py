"""Whatever a caller passes or a document holds, an error stays short: logs, terminals and dead letters show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.unique_room import FIELDS, Room
from worm.errors import MESSAGE_MAX, Corrupt, Invalid, UniqueViolation, WormError, shorten, show
from worm.sdk.database import Model

LARGE = "x" * 3_000_000
MANY = {f"field{number}": LARGE[:1000] for number in range(3000)}
SHORT = 700


class Odd:
    """A value whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


DEEP: Any = 1
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (1, "1"),
        ("x" * 81, f"'{'x' * 80}'… (81 characters)"),
        (b"y" * 100, f"b'{'y' * 78}… (103 characters)"),
        (10**5000, "a value of type int"),
        (Odd(), "a value of type Odd"),
        (DEEP, "a value of type list"),
        ([1] * 1000, f"[{'1, ' * 26}1… (3,000 characters)"),
    ],
    ids=["text", "number", "long text", "bytes", "digits", "without text", "deep", "list"],
)
def test_a_value_is_shown_by_its_beginning(value: object, text: str) -> None:
    assert show(value) == text


def test_a_message_that_is_far_too_long_loses_its_middle() -> None:
    error = Corrupt(f"the beginning {LARGE} the end", key=LARGE, hint=LARGE)
    assert error.message.startswith("the beginning x")
    assert error.message.endswith("x the end")
    assert "3,000,022 characters" in error.message
    assert len(error.message) <= MESSAGE_MAX
    assert len(str(error)) < 4 * MESSAGE_MAX
    assert len(repr(error)) < 4 * MESSAGE_MAX
    assert (error.key, error.hint) == (LARGE, LARGE)
    assert Corrupt("x" * MESSAGE_MAX).message == "x" * MESSAGE_MAX
    assert shorten("x" * 80) == "x" * 80


@pytest.mark.slow
@pytest.mark.parametrize("value", [LARGE, [LARGE], {"a": MANY}, 2**64 - 1], ids=["text", "list", "object", "number"])
def test_a_violation_shows_the_beginning_of_a_large_value_and_has_all_of_it(value: Any) -> None:
    """It printed the 3 MB."""
    room = Room(indexes={"byKey": {"field": "meta.key", "unique": True}})
    room.customers().save({"id": "a", "meta": {"key": value}})
    with pytest.raises(UniqueViolation) as caught:
        room.customers().save({"id": "b", "meta": {"key": value}})
    assert caught.value.value == value
    assert caught.value.holder == "a"
    assert len(str(caught.value)) < SHORT
    assert "already exists on entity 'a'" in str(caught.value)
    room.raw("c", meta={"key": value})
    (report,) = room.session().repair()
    assert report.problems
    assert all(len(reason) < SHORT for reason in report.problems.values())
    (verified,) = room.session().verify()
    assert all(len(found.detail) < SHORT for found in verified.differences)


def named(value: Any) -> dict[Any, Any]:
    """An object with the value for a name, or in it."""
    return {value: Odd()} if isinstance(value, str | int | Odd) else {"x": value}


VERBS: dict[str, Callable[[Model, Any], object]] = {
    "get": lambda customers, value: customers.get(value),
    "find_by_id": lambda customers, value: customers.find_by_id(value),
    "find_many": lambda customers, value: customers.find_many(value),
    "find_one": lambda customers, value: customers.find_one({"name": {"$regex": value}}),
    "find_all filter": lambda customers, value: customers.find_all(filter=value),
    "find_all operator": lambda customers, value: customers.find_all(filter={"name": named(value)}),
    "find_all operand": lambda customers, value: customers.find_all(filter={"name": {"$size": value}}),
    "find_all type": lambda customers, value: customers.find_all(filter={"name": {"$type": value}}),
    "find_all sort": lambda customers, value: customers.find_all(sort=value),
    "find_all select": lambda customers, value: customers.find_all(select=value, filter=named(value)),
    "find_all populate": lambda customers, value: customers.find_all(populate=value),
    "find_all cursor": lambda customers, value: customers.find_all(cursor=value, limit=1),
    "find_all limit": lambda customers, value: customers.find_all(limit=value),
    "find_all strategy": lambda customers, value: customers.find_all(strategy=value),
    "aggregate": lambda customers, value: customers.aggregate(sum=value, having=named(value)),
    "distinct": lambda customers, value: customers.distinct(value, filter=value),
    "explain": lambda customers, value: customers.explain(filter=value),
    "save": lambda customers, value: customers.save(value),
    "save id": lambda customers, value: customers.save({"id": value}),
    "save wrong type": lambda customers, value: customers.save({"id": "w", "code": value}),
    "save time": lambda customers, value: customers.insert({"id": "t", "createdAt": value}),
    "save name": lambda customers, value: customers.insert({"id": "n", "meta": named(value)}),
    "patch": lambda customers, value: customers.patch("a", value),
    "update": lambda customers, value: customers.update("a", {"$set": named(value)}),
    "update position": lambda customers, value: customers.update("a", {"$set": {f"tags.{show(value)}": 1}}),
    "modify": lambda customers, value: customers.modify("a", value),
    "if_version": lambda customers, value: customers.replace({"id": "a", "name": "b"}, if_version=value),
    "actor": lambda customers, value: customers.save({"id": "a"}, actor=value, metadata=value),
    "get_at": lambda customers, value: customers.get_at("a", time=value),
    "get_history": lambda customers, value: customers.get_history("a", limit=value),
    "rollback": lambda customers, value: customers.rollback("a", to_seq=value),
    "restore_snapshot": lambda customers, value: customers.restore_snapshot("a", value),
    "restore": lambda customers, value: customers.restore(value),
    "build_index": lambda customers, value: customers.build_index(value),
}


VALUES: dict[str, Any] = {
    "text": LARGE,
    "list": [LARGE],
    "object": MANY,
    "name": {LARGE: LARGE},
    "digits": 10**5000,
    "without text": Odd(),
}


@pytest.fixture(scope="module")
def customers() -> Model:
    room = Room(fields={**FIELDS, "tags": {"type": "array"}}, oplog=True, snapshots={"enabled": True, "every": 1})
    room.customers().insert({"id": "a", "name": "a", "tags": [1]})
    return room.customers()


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_answers_a_large_value_with_all_of_it(verb: str, value: str, customers: Model) -> None:
    error = refusal(lambda: VERBS[verb](customers, VALUES[value]))
    assert len(str(error)) < 2 * MESSAGE_MAX
    assert len(repr(error)) < 2 * MESSAGE_MAX


def refusal(work: Callable[[], object]) -> WormError | None:
    """The error of this library, where it is one. Any other fails the test."""
    try:
        work()
    except WormError as error:
        return error
    return None


def test_a_stored_document_that_is_not_valid_is_told_shortly(tmp_path: Path) -> None:
    room = Room("file", tmp_path, strict=True)
    room.store.put("org/customers/a/profile.json", json.dumps({LARGE: 1, "code": LARGE}).encode())
    with pytest.raises(Invalid) as caught:
        room.customers().get("a")
    assert len(str(caught.value)) < 2 * MESSAGE_MAX
