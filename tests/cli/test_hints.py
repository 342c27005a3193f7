"""Hints speak to the one who reads them: a program hears of calls, a user of the command hears of commands.

Every test here of the command also holds it: the fixture `worm` refuses a call of the SDK on stderr.
"""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.company import SDK_CALL, Command
from tests.project.source_tree import WORM, python_files, relative
from worm.errors import (
    CommitStateUnknown,
    Conflict,
    Corrupt,
    Hint,
    Invalid,
    NotFound,
    SnapshotExpired,
    Unavailable,
    WormError,
)
from worm.sdk.database import Worm
from worm.store.base import Gone, Lost, Won
from worm.store.file import FileStore

PROGRAMS_ONLY = {
    "sdk/database.py",
    "log/writer.py",
    "sdk/changing.py",
    "sdk/class_schema.py",
    "sdk/class_source.py",
    "sdk/objects.py",
    "sdk/reading.py",
    "sdk/transacting.py",
    "sdk/writing.py",
}
"""Modules whose words no command can bring about: classes, typed objects, transactions, arguments of Python."""
WARNED = {"the schema passed to connect() differs from", "leave out schema= to use the pushed one"}
"""Of the warning `SchemaDiffers`: no command is given a schema and uses another."""
WRITTEN = {'"""A first program.'}
"""Programs that a command writes."""


def test_a_hint_has_words_for_both() -> None:
    error = Conflict("it changed", key="a/b", hint=Hint("refresh() it", "run the command again"))
    assert (str(error), error.for_shell()) == (
        "it changed [a/b] (refresh() it)",
        "it changed [a/b] (run the command again)",
    )
    assert error.hint == "refresh() it"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.for_shell()) == (str(error), error.for_shell())


def test_a_plain_hint_serves_both() -> None:
    error = Invalid("no", hint="run `worm repair` to rebuild it")
    assert str(error) == error.for_shell() == "no (run `worm repair` to rebuild it)"
    assert WormError("no").for_shell() == "no"
    assert WormError("no", hint=Hint("try later")).for_shell() == "no (try later)"


@pytest.mark.parametrize(
    ("error", "is_explained"),
    [
        (Invalid("no"), False),
        (Conflict("no"), False),
        (Unavailable("no"), False),
        (CommitStateUnknown("no", hint="look"), True),
        (Corrupt("no", hint="`worm repair`"), True),
        (SnapshotExpired("no"), True),
    ],
)
def test_a_rare_error_has_a_second_line_that_links_to_its_page(
    error: WormError, is_explained: bool, worm: Command, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("worm.sdk.database.connect", failing)
    ended = worm("table", "list", "--format", "json", "--url", url)
    more = [f"more: {error.help_url}"] if is_explained else []
    assert (ended.exit_code, ended.stdout) == (error.exit_code, "")
    assert ended.stderr.splitlines() == [f"worm: {error.for_shell()}", *more]


def _texts(tree: ast.AST) -> Iterator[str]:
    """Texts that the code may show to somebody at a shell: no docstrings, and of a `Hint` the words for the shell."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == "Hint":
            for shown in child.args[1:]:
                yield from _texts(ast.Expression(shown))
        elif isinstance(child, ast.JoinedStr):
            yield "".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in child.values)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        else:
            yield from _texts(child)


def test_no_text_that_a_command_may_show_names_a_call_of_the_sdk() -> None:
    found = {
        f"{relative(path)}: {text}"
        for path in python_files(WORM)
        if path.relative_to(WORM).as_posix() not in PROGRAMS_ONLY
        for text in _texts(ast.parse(path.read_text()))
        if " " in text and SDK_CALL.search(text) and not any(text.startswith(one) for one in WARNED | WRITTEN)
    }
    assert found == set()


def test_only_modules_that_name_calls_are_excepted() -> None:
    named = {name for name in PROGRAMS_ONLY if any(map(SDK_CALL.search, _texts(ast.parse((WORM / name).read_text()))))}
    assert named == PROGRAMS_ONLY


def test_errors_of_the_command_name_commands(worm: Command, url: str, session: Worm) -> None:
    at = ("--url", url)
    worm("rm", "Customer", "zeta", *at)
    session.store.put("org/customers/kobe/data.json", b'{"name": 1}')
    said = {
        ("get", "Customer", "zeta"): "it may be in trash: `worm trash list`, `worm trash restore`",
        ("get", "Customer", "kobe"): "`worm put` replaces it; `worm history` shows its last valid state",
        ("get", "Customer", "acme", "--at", "9"): "`worm history` lists the entries",
        ("rollback", "Customer", "zeta", "--to", "2"): "choose another entry of `worm history`",
        ("snapshot", "restore", "Customer", "acme", "2026-01-01T00:00:00Z"): "`worm snapshot list` names them",
    }
    for command, hint in said.items():
        ended = worm(*command, *at)
        assert (ended.exit_code > 0, hint in ended.stderr) == (True, True), ended.stderr
    session.store.delete("org/customers/.worm.manifest.json")
    forced = worm("table", "query", "Customer", "--select", "name", "--strategy", "manifest_scan", *at)
    assert "(run `worm table rebuild` to rebuild it)" in forced.stderr


def test_a_command_that_lost_a_race_says_what_to_run(
    worm: Command, url: str, session: Worm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = FileStore.put_if_match

    def gone(store: FileStore, key: str, *given: Any, **named: Any) -> Won | Lost | Gone:
        return Gone() if key.endswith("acme/data.json") else swap(store, key, *given, **named)

    monkeypatch.setattr(FileStore, "put_if_match", gone)
    ended = worm("rollback", "Customer", "acme", "--to", "1", "--url", url)
    assert (ended.exit_code, "`worm put` creates it again" in ended.stderr) == (4, True)


def test_the_result_of_one_of_many_documents_names_commands(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/kobe/data.json", b'{"name": 1}')
    ended = worm("rm", "Customer", "kobe", "nobody", "--no-dry-run", "--format", "json", "--url", url)
    assert SDK_CALL.search(ended.stdout) is None
    assert {one["id"]: one["result"] for one in json.loads(ended.stdout)}["nobody"] == "not found"


def test_errors_of_the_sdk_name_calls(session: Worm) -> None:
    customers = session.model("Customer")
    with pytest.raises(NotFound, match=r"get_history\(\) lists the entries"):
        customers.get_at("acme", seq=9)
    with pytest.raises(NotFound, match=r"list_trashed\(\), restore\(\)"):
        customers.get("nobody")
