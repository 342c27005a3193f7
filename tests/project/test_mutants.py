"""`make mutants`: which guards it changes, that a change reaches the live function, and that its list does not lag."""

from __future__ import annotations

import ast
import textwrap

import pytest

from scripts.mutants import listed
from scripts.mutations import Source, _functions, counted_blocks, live_function, modules, mutants_of
from worm.errors import Invalid
from worm.store import base

SAMPLE = """
def write(store, key, body, etag, seq, last):
    if seq <= last and etag:
        raise ValueError(key)
    store.put_if_match(key, body, etag)
    store.sync(key)
    return [one for one in store.list(key) if one]
"""


def _source(text: str) -> Source:
    tree = ast.parse(textwrap.dedent(text))
    return Source("sample.py", tree, tuple(_functions(tree, "")))


def test_each_guard_of_a_function_is_changed_in_each_way() -> None:
    names = [one.name.removeprefix("sample.py write: ") for one in mutants_of(_source(SAMPLE))]
    assert sorted(names) == [
        "always: if one",
        "edge: seq <= last",
        "never: seq <= last and etag",
        "skipped: store.put_if_match(key, body, etag)",
        "skipped: store.sync(key)",
        "swapped: store.put_if_match(key, body, etag); store.sync(key)",
        "unconditional: store.put_if_match(key, body, etag)",
        "without: etag in seq <= last and etag",
        "without: seq <= last in seq <= last and etag",
    ]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("edge: seq <= last", "if seq < last and etag:"),
        ("unconditional: store.put_if_match(key, body, etag)", "store.put(key, body)"),
        ("without: etag in seq <= last and etag", "if True and seq <= last:"),
        ("always: if one", "if True]"),
        ("swapped: store.put_if_match(key, body, etag); store.sync(key)", "store.sync(key)\n    store.put_if_match("),
    ],
)
def test_a_mutant_is_the_function_with_that_change(name: str, changed: str) -> None:
    source = _source(SAMPLE)
    next(one for one in mutants_of(source) if one.name.endswith(f" write: {name}")).edit.apply()
    assert changed in ast.unparse(source.tree)


def test_a_mutant_reaches_the_live_function_wherever_it_was_imported() -> None:
    source = Source.of("store/base.py")
    mutant = next(one for one in mutants_of(source) if one.function == "check_range" and one.edit.kind == "never")
    function, check_range = live_function("store/base.py", "check_range", mutant.line), base.check_range
    original = function.__code__
    with pytest.raises(Invalid):
        check_range("k", -1, 1)
    mutant.edit.apply()
    try:
        source.install(mutant.function, mutant.line)
        check_range("k", -1, 1)
    finally:
        function.__code__ = original
    with pytest.raises(Invalid):
        check_range("k", -1, 1)


def test_blocks_that_are_entered_are_noted() -> None:
    hits: set[tuple[str, int]] = set()
    counted = dict(counted_blocks("store/base.py", hits))
    function = live_function("store/base.py", "check_prefix", base.check_prefix.__code__.co_firstlineno)
    original = function.__code__
    function.__code__ = counted[function]
    try:
        base.check_prefix("")
        around = set(hits)
        base.check_prefix("a/")
    finally:
        function.__code__ = original
    assert len(around) == 1
    assert len(hits - around) == 1


def test_every_mutant_that_may_survive_still_exists_and_has_a_reason() -> None:
    """A guard that was changed since must be judged again."""
    rooms = sorted({name.partition(" ")[0] for name in listed()})
    there = {one.name for module in modules(rooms) for one in mutants_of(Source.of(module))}
    assert rooms != []
    assert set(listed()) - there == set()
    assert [name for name, reason in listed().items() if len(reason) < 10] == []
