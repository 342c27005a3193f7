"""Objects of a class lose nothing of their documents, at any depth, and are written alike in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, Field

from tests.emulators import ROOT
from tests.sdk.sessions import Bench
from worm.codec.strict_json import JsonValue


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


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_set_is_written_in_the_same_order_in_every_process(seed: str) -> None:
    code = (
        "from tests.sdk.test_objects import Order; from worm.sdk.objects import dump;"
        "print(dump(Order(id='a', labels=frozenset('abcdefgh')), {})['labels'])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT / 'shared'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(list("abcdefgh"))
