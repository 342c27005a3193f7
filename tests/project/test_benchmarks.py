"""The benchmarks are listed, described, and what their figures rest on holds."""

from __future__ import annotations

import struct
import zlib
from functools import partial
from unittest.mock import Mock
from xml.etree import ElementTree

import pytest

from scripts import bench
from scripts.benchmarks import _customers as customers
from scripts.benchmarks import _turns as turning
from scripts.benchmarks import commit, http, save, simulate
from scripts.benchmarks._bars import bars
from scripts.benchmarks._chart import HEIGHT, WIDTH, steps_chart
from scripts.benchmarks._growth import HEADS, MANIFEST, Growth
from scripts.benchmarks._lifecycle import lifecycle
from scripts.benchmarks._turns import check_answers, medians
from tests.project.source_tree import ROOT
from worm.formats.strict_json import dumps
from worm.store.memory import MemoryStore


def test_every_benchmark_is_listed_with_its_first_line_and_described() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    names = bench.names()
    assert {"coldstart", "history", "query", "maintain"} <= set(names)
    assert [name for name, about in names.items() if name.startswith("_") or not about] == []
    assert [name for name in names if f"## {name}\n" not in page] == []


def test_everybody_has_one_turn_in_a_round_and_every_round_has_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turning, "gc", Mock())  # a collection before every turn takes seconds beside other tests
    turns: list[str] = []
    names = ["a", "b", "c", "d", "e"]
    medians({name: partial(turns.append, name) for name in names}, 4, float("inf"), is_warm=True)
    rounds = [turns[at : at + 5] for at in range(0, 20, 5)]
    assert [sorted(one) for one in rounds] == [names] * 4
    assert len({tuple(one) for one in rounds}) == 4


def test_a_contestant_with_another_answer_is_found_out() -> None:
    references = {"lookup": "floor_of_lookup", "": "floor"}
    floors = {"floor": lambda: ["a"], "floor_of_lookup": lambda: ["b"]}
    check_answers(references, {**floors, "scan": lambda: ["a"], "lookup": lambda: ["b"]})
    with pytest.raises(RuntimeError, match="scan gives a different answer than floor"):
        check_answers(references, {**floors, "scan": lambda: ["b"]})


def test_a_synthetic_table_is_what_folding_its_documents_gives() -> None:
    """Else the benchmarks would measure tables that no worker writes."""
    schema, store = customers.schema(), MemoryStore()
    table = customers.session(store, schema).table
    numbers = range(20)
    for number in numbers:
        document = customers.document(number)
        assert schema.model(customers.MODEL).validate_document(document, id=customers.customer_id(number)) == []
        assert table.collection.row(document) == customers.row(number)
    table.manifest.update(lambda _: customers.manifest(20, schema))
    state = table.view()
    assert state is not None
    assert state.count == 20
    assert 250 <= len(dumps(customers.row(1))) <= 400


def test_growth_counts_what_a_whole_and_a_spread_table_write() -> None:
    whole = Growth(60, 100, 10).run(30)
    assert (whole["changes"], whole["merges_left_to_the_sweep"]) == (200, 0)
    spread = Growth(60, 20, 10).run(30)
    assert spread["stopped_before_the_merge"] is False
    for name in (MANIFEST, HEADS):
        told = spread[name]
        assert isinstance(told, dict)
        assert told["merges_of_the_base"] >= 1
        assert told["bytes_written_per_change"] > 0


@pytest.mark.slow
def test_layers_of_a_page_store_are_kept_few_by_compaction_and_collection() -> None:
    """What the chart shows: without them there would be as many as flushes."""
    found = lifecycle(240, pages=400, changed=40)
    assert found.flushes == len(found.live) == 240
    assert max(found.asked) <= 20
    assert max(found.live[180:]) < 100
    assert max(found.objects[200:]) < 240
    assert found.stored_bytes > found.layer_bytes > found.page_bytes


def test_a_chart_is_a_png_with_a_line_for_each_name() -> None:
    body = steps_chart("title", "hours", [0.0, 1.0, 2.0], {"one": [0, 5, 3], "two": [1, 1, 1]})
    assert body.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(body):
        (size,) = struct.unpack_from(">I", body, at)
        kind, data = body[at + 4 : at + 8], body[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", body, at + 8 + size)[0] == zlib.crc32(kind + data)
        chunks[kind], at = data, at + 12 + size
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    dots = zlib.decompress(chunks[b"IDAT"])
    assert len(dots) == (WIDTH + 1) * HEIGHT
    assert set(dots) == {0, 1, 2, 3, 4}


def test_bars_are_svg_with_a_bar_for_each_value_and_a_line_for_the_goal() -> None:
    picture = ElementTree.fromstring(bars("a < b", {"one": {"p50": 1.0, "p99": 2.0}, "two": {"p99": 4.0}}, goal=3.0))
    tags = [element.tag.rpartition("}")[2] for element in picture]
    assert (tags.count("rect"), tags.count("line")) == (1 + 2 + 3, 1)  # ground, legend, bars
    words = [element.text for element in picture if element.tag.endswith("text")]
    assert words == ["a < b", "p50", "p99", "one", "1", "2", "two", "4", "goal 3"]
    widths = [float(element.attrib["width"]) for element in picture if element.attrib.get("height") == "12"]
    assert widths == [pytest.approx(share * max(widths), abs=0.1) for share in (0.25, 0.5, 1.0)]


def test_bars_that_differ_much_are_drawn_on_a_logarithmic_scale() -> None:
    picture = bars("title", {"one": {"ms": 0.001}, "two": {"ms": 1000.0}, "none": {"ms": 0.0}})
    assert "logarithmic scale" in picture
    widths = [
        float(element.attrib["width"])
        for element in ElementTree.fromstring(picture).iter()
        if element.attrib.get("height") == "12"
    ]
    assert 0 < widths[0] < widths[1]
    assert widths[2] == 0


def test_the_benches_that_draw_make_a_picture_for_each_table_of_their_results() -> None:
    names = ("floor_obstore", "ours")
    single = {name: {"p50_ms": 2.0} for name in names} | {"ratio": {"ours / floor_obstore": 1.0}}
    measured = {
        "single": single,
        "group of 16": {"ratio": {"ours / quickest slatedb": 2.0}},
        "closed loop": {"alone / raw PUT": 1.0, "threads 2": {"p50 / alone": 1.0}},
    }
    assert set(commit.charts(measured)) == {"commit-single", "commit-group", "commit-closed"}
    assert commit.charts({"bytes_of_a_commit": 1}) == {}
    saved: dict[str, dict[str, object]] = {
        "directory": {"save / sqlite": 4.0},
        "growth": {"block": 10, "block_ms": [1.0, 1.1]},
    }
    assert set(save.charts(saved)) == {"save-ratios", "save-growth"}
    costs = {"s3": 1.0, "all": 1.0}
    run = {"freshness_p50_s": 5.0, "freshness_p99_s": 9.0, "usd_per_million": costs}
    assert set(simulate.charts({"10/s": run})) == {"simulate-freshness", "simulate-costs"}
    read = {"bare": {"p50_ms": 1.0, "p99_ms": 2.0, "reads_per_second": 3}, "ratio": {}}
    assert set(http.charts({"one": read, "page": read})) == {"http-latency", "http-rates"}
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    drawn = {
        "http-latency",
        "http-rates",
        "save-ratios",
        "save-growth",
        "simulate-freshness",
        "simulate-costs",
        *commit.charts(measured),
    }
    assert [name for name in drawn if f"(img/{name}.svg)" not in page] == []
