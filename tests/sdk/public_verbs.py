"""Every public call of the library with valid arguments; `test_every_public_verb` replaces some of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import worm
from tests.sdk.test_wrong_arguments import GOOD, SESSION, branched, session
from tests.spaces.space_room import put
from worm.sdk.aio import AsyncWorm
from worm.sdk.database import Worm
from worm.sdk.transacting import DocumentTransaction
from worm.store.memory import MemoryStore

SCHEMA: dict[str, Any] = {"models": {"Customer": {"path": "@customers/(id:string)"}}}
_NUMBERS = count()


class Customer(worm.Document):
    """A class for `schema_of`."""

    name: str = ""


def settled(part: Callable[..., Any]) -> Callable[..., Any]:
    """A part of the settings of a class; what is wrong with it, the schema of the class says."""

    def made(**given: Any) -> worm.Schema:
        found: Any = part(**given)
        whole = found if isinstance(found, worm.ModelSettings) else worm.ModelSettings()
        if isinstance(found, worm.ManifestSettings):
            whole = worm.ModelSettings(manifest=found)
        elif isinstance(found, worm.SnapshotSettings):
            whole = worm.ModelSettings(snapshots=found)
        elif isinstance(found, worm.Index):
            whole = worm.ModelSettings(indexes={"byName": found})
        return worm.schema_of([type("Customer", (Customer,), {"worm_settings": whole})])

    made.__signature__ = inspect.signature(part)  # type: ignore[attr-defined]  # inspect reads it
    return made


def place() -> str:
    """The URL of a new, empty store."""
    return f"memory://verbs-{next(_NUMBERS)}"


def memory_log() -> worm.CommitLog:
    log = worm.open_log(place(), "orders")
    log.append([{"op": "a"}])
    return log


def memory_pages() -> worm.PageDb:
    pages = worm.open_pages(place(), "orders")
    pages.write({"a": b"1"})
    return pages


def memory_space() -> worm.Space:
    space = worm.open_space(place(), "main")
    space.transact([put("a", n=1)])
    space.create_branch("dev")
    return space


def transaction() -> DocumentTransaction:
    return session(space="main").transaction().__enter__()


def async_session() -> AsyncWorm:
    url = place()
    with worm.connect(
        url, schema={"models": {"Customer": {"path": "@customers/(id:string)", "space": "main"}}}
    ) as made:
        made.push()
        made.model("Customer").insert({"id": "a", "name": "a"})

    async def opened() -> AsyncWorm:
        return await worm.aconnect(url, probe=False)

    return asyncio.run(opened())


@dataclass(frozen=True)
class Target:
    """An object with verbs. `good` has the arguments that they need; verbs in `left_out` are not for callers."""

    make: Callable[[], Any]
    good: dict[str, Any] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def calls(self, made: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
        for name in sorted(set(dir(type(made))) - self.left_out - {"close", "aclose"}):
            is_verb = not name.startswith("_") and callable(getattr(type(made), name))
            if is_verb and list(parameters(getattr(made, name))):
                yield name, getattr(made, name)


IN_A_LIST = frozenset(name for name in dir(list) if not name.startswith("_")) | {"with_items"}
OF_A_DEFINITION = frozenset({"changed", "shape", "read", "of", "called"})
IN_SPACES: dict[str, Any] = {
    "ops": [put("a")],
    "id": "a",
    "ids": ["a"],
    "at": 1,
    "name": "dev",
    "left": "main",
    "right": "dev",
    "branch": "dev",
    "plan": None,
    "known": 0,
    "after": 0,
    "upto": 1,
    "data": b"x",
    "hash": "0" * 64,
}
KEYS: dict[str, Any] = {
    "model": "Customer",
    "id": "a",
    "seq": 1,
    "name": "x",
    "field": "name",
    "digest": "0",
    "key": "a",
}
PAGES: dict[str, Any] = {"pages": {"a": b"1"}, "page": "a", "records": [{"op": "a"}], "lsn": 1}
TARGETS: dict[str, Target] = {
    "Worm": Target(session, GOOD, SESSION),
    "Worm on a branch": Target(lambda: branched().branch("draft"), GOOD, SESSION),
    "Model": Target(lambda: session().model("Customer"), GOOD),
    "Model on a branch": Target(lambda: branched().branch("draft").model("Customer"), GOOD),
    "DocumentTransaction": Target(transaction, GOOD),
    "AsyncWorm": Target(async_session, GOOD),
    "AsyncModel": Target(lambda: async_session().model("Customer"), GOOD),
    "AsyncTransaction": Target(lambda: async_session().transaction(), GOOD),
    "CommitLog": Target(memory_log, {"records": [{"op": "a"}]}),
    "PageDb": Target(memory_pages, PAGES, frozenset({"open", "stop"})),
    "Space": Target(memory_space, IN_SPACES),
    "Schema": Target(lambda: session().schema, {"name": "Customer"}, OF_A_DEFINITION),
    "StorageResolver": Target(lambda: worm.StorageResolver(session().schema), KEYS, frozenset({"place"})),
    "Rows": Target(lambda: session().model("Customer").find_all(), {}, IN_A_LIST),
    "SqlRows": Target(lambda: session().sql("select 1 as one"), {}, frozenset({"index", "count"})),
    "HistoryRows": Target(lambda: session().history(), {}, IN_A_LIST),
    "Plan": Target(lambda: session().model("Customer").explain()),
}
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "connect": (worm.connect, {"url": "memory://verbs", "schema": SCHEMA}),
    "aconnect": (worm.aconnect, {"url": "memory://verbs", "schema": SCHEMA}),
    "push": (worm.push, {"store": MemoryStore(), "schema": worm.load_schema(SCHEMA)}),
    "load_schema": (worm.load_schema, {"source": SCHEMA}),
    "schema_of": (worm.schema_of, {"classes": [Customer]}),
    "open_log": (worm.open_log, {"url": "memory://verbs", "name": "log"}),
    "open_pages": (worm.open_pages, {"url": "memory://verbs", "name": "pages"}),
    "open_space": (worm.open_space, {"url": "memory://verbs", "name": "space"}),
    "open_store": (worm.open_store, {"url": "memory://verbs"}),
    "Worm": (Worm, {"store": MemoryStore(), "schema": worm.load_schema(SCHEMA)}),
    "StorageResolver": (worm.StorageResolver, {"schema": worm.load_schema(SCHEMA)}),
    "Index": (settled(worm.Index), {"field": "name"}),
    "ModelSettings": (settled(worm.ModelSettings), {}),
    "ManifestSettings": (settled(worm.ManifestSettings), {}),
    "SnapshotSettings": (settled(worm.SnapshotSettings), {}),
}
RESULTS = {"BranchChange", "HistoryEntry", "MergeResult", "OplogEntry", "Result"}
"""What verbs return: values without verbs of their own."""
CLASSES = {"Document", "DocumentDict", "Ref"}
"""A class of yours is checked by pydantic, a dict by Python; what they hold is checked when it is stored."""
NAMES = {"MISSING", "__version__", "errors"}


def parameters(call: Callable[..., Any]) -> Iterator[str]:
    """The names of all arguments, including those that describe a write."""
    for name, one in inspect.signature(call).parameters.items():
        if one.kind is one.VAR_KEYWORD:
            yield from ("actor", "reason", "metadata")
        elif one.kind is not one.VAR_POSITIONAL and name != "self":
            yield name


def needed(call: Callable[..., Any]) -> list[str]:
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    given = inspect.signature(call).parameters.items()
    return [name for name, one in given if one.default is one.empty and one.kind not in variable and name != "self"]
