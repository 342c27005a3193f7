"""No public call answers a wrong value with an error of Python's own: a `WormError` says what is wrong, or the call
works. `tests/sdk/test_wrong_arguments.py` tries the verbs of a model and a session one by one; here is everything that
`worm` exports, and several wrong values at once."""

from __future__ import annotations

import asyncio
import inspect
import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import worm
from tests.examples import examples
from tests.sdk.public_verbs import CLASSES, FUNCTIONS, NAMES, RESULTS, SCHEMA, TARGETS, needed, parameters
from tests.sdk.test_wrong_arguments import CALLED, ODD
from worm.errors import WormError
from worm.store.memory import MemoryStore

ALONE = [name for name in TARGETS if name not in ("Worm", "Model", "Worm on a branch", "Model on a branch", "Space")]
"""The others have tests of their own, value by value."""


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Some values name a directory."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("verbs"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    os.chdir(before)


async def _awaited(result: Any) -> None:
    found = await result if inspect.isawaitable(result) else result
    if isinstance(found, AsyncIterator):
        async for _ in found:
            break


def attempt(call: Callable[..., Any], arguments: dict[str, Any], said: str) -> None:
    """Any other error than ours fails the test."""
    try:
        result = call(**arguments)
        if inspect.isawaitable(result) or isinstance(result, AsyncIterator):
            asyncio.run(_awaited(result))
        elif isinstance(result, Iterator):
            next(result, None)
        elif isinstance(result, worm.Worm | worm.CommitLog | worm.PageDb | worm.Space):
            result.close()
    except WormError as error:
        repr(error), str(error), error.help_url
    except Exception as error:
        error.add_note(said)
        raise


def try_each(call: Callable[..., Any], good: dict[str, Any], label: str) -> None:
    for argument in parameters(call):
        for name, value in ODD.items():
            if argument not in CALLED or not callable(value):
                given = {one: good[one] for one in needed(call) if one != argument}
                attempt(call, {**given, argument: value}, f"{label}({argument}={name})")


def test_everything_that_is_exported_is_tried() -> None:
    tried = {name.split(" ")[0] for name in TARGETS} | set(FUNCTIONS)
    errors = {name for name in worm.__all__ if is_error(getattr(worm, name))}
    assert set(worm.__all__) - tried - errors == RESULTS | CLASSES | NAMES
    assert tried - set(worm.__all__) == {"AsyncWorm", "AsyncModel", "AsyncTransaction", "DocumentTransaction"}


def is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_answers_a_wrong_value_with_an_error_of_ours(name: str) -> None:
    call, good = FUNCTIONS[name]
    try_each(call, {**dict.fromkeys(needed(call)), **good}, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_every_verb_answers_a_wrong_value_with_an_error_of_ours(name: str) -> None:
    target = TARGETS[name]
    made = target.make()
    for verb, call in target.calls(made):
        try_each(call, target.good, f"{name}.{verb}")


UNTYPED: Any = worm


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: UNTYPED.connect("memory://x", schema="a\x00b"), r"'a\\x00b' is not the path of a file"),
        (lambda: UNTYPED.connect("memory://x", clock=5), "clock: takes a clock, not 5"),
        (lambda: UNTYPED.open_store("memory://x", ids="x"), "ids: takes a source of ids, not 'x'"),
        (lambda: UNTYPED.open_log("memory://x", "log", config=5), "config: takes a LogConfig, not 5"),
        (lambda: UNTYPED.open_pages("memory://x", "pages", config=5), "config: takes a PageConfig, not 5"),
        (lambda: UNTYPED.push("./data", {}), r"store: takes a store, not '\./data' \(`worm.open_store` opens one\)"),
        (lambda: UNTYPED.Worm(MemoryStore(), {}), "schema: takes a Schema, not {}"),
        (lambda: UNTYPED.schema_of(5), "takes a list of classes, not 5"),
        (lambda: UNTYPED.StorageResolver(worm.load_schema(SCHEMA)).parse(5), "key: must be text, not 5"),
    ],
)
def test_the_error_says_which_value_is_wrong_and_what_is_taken(work: Callable[[], object], message: str) -> None:
    with pytest.raises(worm.Invalid, match=message):
        work()


@cache
def all_calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Everything that can be called directly, by name. Created on demand, because some start threads."""
    made = {name: target.make() for name, target in TARGETS.items() if not name.startswith("Async")}
    verbs = {
        f"{name}.{verb}": (call, TARGETS[name].good)
        for name, one in made.items()
        for verb, call in TARGETS[name].calls(one)
    }
    return {**FUNCTIONS, **verbs}


@dataclass(frozen=True)
class Wrong:
    """One of the odd values by its name: some cannot be shown."""

    name: str


VALUES = st.recursive(
    st.sampled_from(sorted(ODD)).map(Wrong) | st.integers() | st.text(max_size=4) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def meant(drawn: Any) -> Any:
    if isinstance(drawn, dict):
        return {name: meant(one) for name, one in drawn.items()}
    if isinstance(drawn, list):
        return [meant(one) for one in drawn]
    return ODD[drawn.name] if isinstance(drawn, Wrong) else drawn


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_several_wrong_values_at_once_are_no_different(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(all_calls())))
    call, good = all_calls()[name]
    known = [one for one in parameters(call) if one not in CALLED and one not in ("wait", "timeout")]
    chosen = data.draw(st.dictionaries(st.sampled_from(known), VALUES, max_size=3)) if known else {}
    wrong = {argument: meant(value) for argument, value in chosen.items()}
    attempt(call, {**{one: good.get(one) for one in needed(call)}, **wrong}, name)
