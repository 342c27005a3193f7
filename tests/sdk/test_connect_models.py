"""`connect(models=…)`: the schema is what the classes say; a session is a context manager."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import worm
from worm.errors import Invalid, SchemaDiffers
from worm.formats import load_schema
from worm.sdk.database import push
from worm.store.open import open_store


class Customer(worm.Document):
    name: str
    status: str = "lead"


class Counter(worm.Document[int]):
    value: int = 0


class Token(worm.Document[UUID]):
    pass


def test_a_class_is_a_whole_program(tmp_path: Path) -> None:
    db = worm.connect(str(tmp_path), models=[Customer, Counter])
    assert db.schema == worm.schema_of([Customer, Counter])
    customers = db.model(Customer)
    customers.insert(Customer(id="acme", name="Acme"))
    assert (tmp_path / "customers" / "acme" / "data.json").is_file()
    found = customers.get("acme")
    assert found == Customer(id="acme", name="Acme", status="lead")
    found.status = "active"
    saved = customers.save(found)
    assert (saved.status, saved.model, saved.seq) == ("active", "Customer", 2)
    assert saved.version is not None
    assert saved.created_at is not None
    assert [entry.op for entry in customers.get_history("acme")] == ["create", "update"]
    assert [one.name for one in customers.find_all(filter={"status": "active"})] == ["Acme"]


def test_ids_have_the_type_of_the_class(tmp_path: Path) -> None:
    db = worm.connect(str(tmp_path), models=[Counter, Token])
    counters, tokens = db.model(Counter), db.model(Token)
    first = counters.insert(Counter(id=7, value=1))
    assert (first.id, counters.get(7).value) == (7, 1)
    second = counters.insert(Counter())
    assert isinstance(second.id, int)
    made = tokens.insert(Token())
    assert isinstance(made.id, UUID)
    assert tokens.get(made.id) == made


def test_the_classes_are_the_whole_schema_whatever_was_pushed(tmp_path: Path) -> None:
    pushed = load_schema({"version": "1.0", "models": {"Other": {"path": "@others/(id:slug)"}}})
    push(open_store(tmp_path), pushed)
    with pytest.warns(SchemaDiffers, match="Customer is added; Other is missing") as told:
        assert list(worm.connect(str(tmp_path), models=[Customer]).schema.models) == ["Customer"]
    assert [one.filename for one in told] == [__file__]  # the line that called connect
    assert list(worm.connect(str(tmp_path)).schema.models) == ["Other"]


def test_a_session_is_closed_at_the_end_of_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    with worm.connect(str(tmp_path), models=[Customer]) as db:
        monkeypatch.setattr(db, "close", lambda: closed.append("now"))
        assert isinstance(db, worm.Worm)
        assert closed == []
    assert closed == ["now"]
    with pytest.raises(ZeroDivisionError), worm.connect(str(tmp_path), models=[Customer]) as db:
        1 / 0  # noqa: B018


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"models": [Customer], "schema": "s.json"}, "both define the schema"),
    "one class": ({"models": Customer}, "must be a list of classes"),
    "none": ({"models": []}, "at least one model"),
    "names": ({"models": ["Customer"]}, "not a pydantic class"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused(case: str) -> None:
    arguments, message = WRONG[case]
    with pytest.raises(Invalid, match=message):
        worm.connect("memory://wrong", **arguments)


def test_everything_public_is_there() -> None:
    for name in worm.__all__:
        assert getattr(worm, name) is not None
    assert isinstance(worm.Index("x"), worm.Index)
