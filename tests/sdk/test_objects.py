"""Objects of a class lose nothing of their documents, at any depth, and are written alike in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from pydantic import BaseModel, Field

from tests.emulators import ROOT
from tests.sdk.sessions import Bench
from worm.errors import Invalid
from worm.formats.strict_json import JsonValue
from worm.sdk.shapes import is_object


class Place(BaseModel):
    city: str
    zip_code: str = Field(default="", alias="zip")


class Line(BaseModel):
    sku: str
    places: list[Place] = []


class Order(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str
    place: Place | None = None
    lines: list[Line] = []
    by_name: dict[str, Place] = {}
    labels: frozenset[str] = frozenset()


STORED: dict[str, JsonValue] = {
    "id": "a",
    "place": {"city": "Kobe", "zip": "1", "country": "JP"},
    "lines": [
        {"sku": "x", "note": 1, "places": [{"city": "A", "zip": "", "floor": 3}]},
        {"sku": "y", "note": 2, "places": []},
    ],
    "by_name": {"home": {"city": "B", "zip": "", "street": "S"}},
    "labels": ["a", "b"],
    "vat": "X1",
}


def test_fields_of_inner_objects_that_their_classes_do_not_declare_are_kept(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    plain = bench.customers()
    plain.insert(STORED)
    orders = bench.session().model(Order)
    found = orders.get("a")
    assert found.place is not None
    found.place.city = "Osaka"
    found.lines.reverse()
    copied = deepcopy(found)
    orders.save(copied)
    stored = plain.get("a")
    assert stored["place"] == {"city": "Osaka", "zip": "1", "country": "JP"}
    assert [line["note"] for line in stored["lines"]] == [2, 1]  # type: ignore[union-attr,index,call-overload]
    assert stored["by_name"] == STORED["by_name"]
    assert stored["vat"] == "X1"
    assert stored["lines"][1]["places"] == [{"city": "A", "zip": "", "floor": 3}]  # type: ignore[index,call-overload]


def test_what_an_object_says_goes_before_what_it_carries(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().insert(STORED)
    orders = bench.session().model(Order)
    found = orders.get("a")
    found.place = Place(city="New")
    found.lines = []
    orders.save(found)
    stored = bench.customers().get("a")
    assert (stored["place"], stored["lines"]) == ({"city": "New", "zip": ""}, [])


@pytest.mark.parametrize(
    "seed", ["1", pytest.param("2", marks=pytest.mark.slow), pytest.param("3", marks=pytest.mark.slow)]
)
def test_a_set_is_written_in_the_same_order_in_every_process(seed: str) -> None:
    code = (
        "import pydantic; from worm.sdk.objects import dump;"
        "Order = pydantic.create_model('Order', id=str, labels=frozenset[str]);"
        "print(dump(Order(id='a', labels=frozenset('abcdefgh')), {})['labels'])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(list("abcdefgh"))


class Event(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str
    at: datetime | None = None
    score: int = Field(default=0, ge=0)


def test_what_does_not_fit_the_class_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    events, plain = bench.session().model(Event), bench.customers()
    found = events.insert(Event(id="a", score=1))
    found.score = -5
    writes: list[Callable[[], object]] = [
        lambda: events.save(found),
        lambda: events.replace(found),
        lambda: events.upsert(found),
        lambda: events.insert(Event.model_construct(id="b", score=-1)),
        lambda: events.patch("a", {"score": -5}),
        lambda: events.update("a", {"$inc": {"score": -5}}),
        lambda: events.modify("a", lambda one: one.model_copy(update={"score": -5})),
    ]
    for write in writes:
        with pytest.raises(Invalid, match="does not fit Event"):
            write()
    assert not events.update_many({}, {"$set": {"score": -5}})[0].ok
    assert not events.save_many([found])[0].ok
    assert (plain.get("a")["score"], bench.ops()) == (1, ["create"])
    plain.patch("a", {"score": -5})
    with pytest.raises(Invalid, match="document 'a' does not fit Event") as caught:
        events.find_all()
    assert "db.model(" in str(caught.value.hint)
    backs: list[Callable[[], object]] = [lambda: events.rollback("a", to_seq=2), lambda: events.restore("a")]
    for back in backs:
        plain.delete("a")
        with pytest.raises(Invalid):
            back()
        assert plain.find_by_id("a") is None
        plain.restore("a")
    bench.assert_clean()


def test_times_have_one_form_and_are_found_by_their_values(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    events, plain = bench.session().model(Event), bench.customers()
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    events.insert(Event(id="a", at=noon))
    events.insert(Event(id="b", at=noon.astimezone(timezone(timedelta(hours=2)))))
    plain.insert({"id": "c", "at": noon})
    assert {str(row["at"]) for row in plain.find_all()} == {"2026-01-01T12:00:00.000Z"}
    assert len(events.find_all({"at": noon})) == len(events.find_all({"at": {"$gte": noon}})) == 3
    with pytest.raises(Invalid, match=r"time zone|timezone"):
        events.insert(Event(id="d", at=datetime(2026, 1, 1)))  # noqa: DTZ001 - naive on purpose
    bench.store.put("org/customers/e/profile.json", b'{"id": "e", "at": "2026-01-01T12:00:00Z", "score": 1}')
    raw = events.get("e")
    raw.score = 2
    events.save(raw)
    assert plain.get("e")["at"] == "2026-01-01T12:00:00Z"  # it did not change


def test_decimals_of_text_fields_are_text_in_filters_and_updates(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    plain = bench.customers()
    plain.insert({"id": "a", "name": Decimal("2.50")})
    assert plain.count({"name": Decimal("2.50")}) == plain.count({"$and": [{"name": {"$in": [Decimal("2.50")]}}]}) == 1
    assert plain.update("a", {"$set": {"name": Decimal("3.50")}})["name"] == "3.50"


def test_pydantic_that_another_thread_is_importing_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pydantic", "pydantic.main"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # as it is at first: nothing is in it yet
    assert not is_object({"id": "a"})
