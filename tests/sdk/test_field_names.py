"""Names of fields in queries on a strict model: what no document can have is a mistake in the query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sdk.sessions import Bench
from worm.errors import Invalid
from worm.formats.strict_json import JsonValue

STRICT: dict[str, object] = {
    "strict": True,
    "fields": {
        "name": {"type": "string"},
        "status": {"type": "string"},
        "any": {"type": "object"},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    },
}


def test_a_mistyped_field_of_a_strict_model_is_refused_everywhere(tmp_path: Path) -> None:
    customers = Bench("memory", tmp_path, **STRICT).customers()
    wrong: list[Callable[[], object]] = [
        lambda: customers.find_all(filter={"$or": [{"statsu": 1}]}),
        lambda: customers.find_all(sort={"field": "statsu"}),
        lambda: customers.find_all(select=["name", "statsu"]),
        lambda: customers.explain(filter={"statsu": 1}),
        lambda: customers.find_batches(filter={"statsu": 1}),
        lambda: customers.count({"statsu": 1}),
        lambda: customers.aggregate(sum="statsu"),
        lambda: customers.aggregate(count=True, group_by=["name", "statsu"]),
        lambda: customers.aggregate(count=True, filter={"statsu": None}),
    ]
    for ask in wrong:
        with pytest.raises(Invalid, match="Customer has no field 'statsu'; it has id, name, status, any, home, lines"):
            ask()
    with pytest.raises(Invalid, match=r"has no field 'name\.first'"):
        customers.find_all(filter={"name.first": "A"})
    with pytest.raises(Invalid, match=r"has no field 'lines\.n\.x'"):
        customers.count({"lines.n.x": 1})


def test_a_strict_model_is_asked_for_everything_that_its_documents_may_have(tmp_path: Path) -> None:
    """Objects in a document are not strict, and filters look through arrays."""
    customers = Bench("memory", tmp_path, **STRICT).customers()
    customers.save({"id": "a", "home": {"city": "Rome", "zip": 7}, "any": {"x": {"y": 1}}, "lines": [{"n": 1, "m": 2}]})
    filters: list[dict[str, JsonValue]] = [
        {"home.zip": 7},
        {"any.x.y": 1},
        {"lines.n": 1},
        {"lines.m": 2},
        {"createdAt": {"$exists": True}},
    ]
    for one in filters:
        assert [row["id"] for row in customers.find_all(filter=one)] == ["a"], one
    loose = Bench("memory", tmp_path).customers()
    assert loose.find_all(filter={"statsu": 1}) == []
