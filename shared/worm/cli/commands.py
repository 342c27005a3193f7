"""The tree of commands: the name and location of each. A command's module is imported when the command is called.

`worm --help` shows the help that this module repeats, so it imports no command; a test compares it with the docstrings.
`worm GROUP --help` imports the commands of the group. `main` handles signals, `program` errors and exit codes. To add
a command, change only this module and the command's own.

It must load no command: `worm --version` and `--help` read only this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from worm.cli.options import with_target

_UNCLEAR: Any = object()
_DIGITS_MAX = 9


class _Quick:
    """Passes values that already have the right type. typer lets pydantic convert every value, even defaults: importing
    it, and building a converter for each option, takes longer than reading a table."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class beside this one
        for one in found:
            one.process_value = partial(_processed, one, type(one).process_value)
        return found


class QuickCommand(_Quick, TyperCommand):
    """A command."""


def _processed(parameter: Any, usual: Callable[[Any, Any, Any], Any], context: Any, value: Any) -> Any:
    found = _plain(parameter, value)
    if found is _UNCLEAR or (parameter.required and parameter.value_is_missing(found)):
        return usual(parameter, context, value)
    return found if parameter.callback is None else parameter.callback(context, parameter, found)


def _plain(parameter: Any, value: Any) -> Any:
    """The converted value; `_UNCLEAR` if typer must decide or refuse it."""
    descriptor = parameter.type_descriptor
    info, kind = descriptor.parameter_info, descriptor.annotation
    is_list = parameter.multiple or parameter.nargs == -1
    if info.parser is not None or (parameter.nargs != 1 and not is_list):
        return _UNCLEAR
    if value is None:
        return () if is_list else None
    if is_list:
        is_text = kind == list[str] and isinstance(value, tuple | list) and all(isinstance(one, str) for one in value)
        return list(value) if is_text and value else _UNCLEAR
    if not isinstance(kind, type) or isinstance(value, bool):
        return _UNCLEAR
    if issubclass(kind, Enum):
        return _member(kind, value) if info.case_sensitive else _UNCLEAR
    if kind is int:
        return _number(value, info.min, info.max)
    return value if kind is str and type(value) is str else _UNCLEAR


def _member(kind: type[Enum], value: Any) -> Any:
    return value if isinstance(value, kind) else next((one for one in kind if one.value == value), _UNCLEAR)


def _number(value: Any, least: float | None, most: float | None) -> Any:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _DIGITS_MAX:
        value = int(value)
    is_within = type(value) is int and (least is None or value >= least) and (most is None or value <= most)
    return value if is_within else _UNCLEAR


class CommandLeaf(NamedTuple):
    """A command: `module:function`."""

    where: str
    help: str | None = None

    def load(self, name: str) -> Any:
        module, _, function = self.where.partition(":")
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=QuickCommand)(with_target(getattr(import_module(module), function)))
        return typer.main.get_command(alone)


class CommandGroup(NamedTuple):
    """Commands under a common name."""

    help: str
    commands: Mapping[str, CommandLeaf | CommandGroup]

    def load(self, name: str) -> Any:
        return LazyGroup(name=name, help=self.help, tree=self.commands, no_args_is_help=True)


class LazyGroup(_Quick, TyperGroup):
    """A group that gets its commands from the tree."""

    def __init__(self, *, tree: Mapping[str, CommandLeaf | CommandGroup], **settings: Any) -> None:
        super().__init__(**settings)
        self.tree = tree
        self.commands = cast(Any, LoadedCommand(tree))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.tree)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Just enough of a command for a list of commands."""
        found = self.tree.get(cmd_name)
        if isinstance(found, CommandLeaf) and found.help is not None:
            return TyperCommand(cmd_name, help=found.help)
        return None if found is None else self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called or completed by the shell."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else self.commands[name], rest


class LoadedCommand(Mapping[str, Any]):
    """The commands of a tree by name. The first access imports a command."""

    def __init__(self, tree: Mapping[str, CommandLeaf | CommandGroup]) -> None:
        self.tree = tree
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self.tree[name].load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)


COMMANDS: dict[str, CommandLeaf | CommandGroup] = {
    "init": CommandLeaf(
        "worm.cli.init:init",
        "Start a project: answer three questions, and get a program that runs, or a schema.",
    ),
    "push": CommandLeaf(
        "worm.cli.schema:push_schema",
        "Push a schema: show what changes, upload it, and adopt existing documents.",
    ),
    "import": CommandLeaf(
        "worm.cli.schema:import_documents",
        "Infer a schema from existing JSON documents. Findings go to stderr, the schema to stdout.",
    ),
    "attach": CommandLeaf(
        "worm.cli.attach:attach",
        "Check whether the workers can serve an existing bucket: show what is "
        "missing and how to fix it, or fix it with --apply.",
    ),
    "detach": CommandLeaf(
        "worm.cli.attach:detach", "Remove from a bucket's settings what attach added, and nothing else."
    ),
    "get": CommandLeaf("worm.cli.documents:get", "Show a document, current or past."),
    "put": CommandLeaf("worm.cli.documents:put", "Store a document: create it, or replace the existing one."),
    "rm": CommandLeaf(
        "worm.cli.documents:rm",
        "Delete documents; with soft delete they go to trash. Several ids, or --filter, are a dry run by default.",
    ),
    "history": CommandLeaf(
        "worm.cli.history:history", "Show the history of a document, or search the histories of all documents."
    ),
    "diff": CommandLeaf(
        "worm.cli.history:diff", "Show the fields that differ between two entries of a document's history."
    ),
    "rollback": CommandLeaf(
        "worm.cli.history:rollback",
        "Save the document of an earlier entry again. History is not rewritten: this appends an entry.",
    ),
    "restore": CommandLeaf(
        "worm.cli.history:restore",
        "Restore whole models to a moment, each document by a save with history. Run it again if it was interrupted.",
    ),
    "why": CommandLeaf(
        "worm.cli.why:why",
        "Explain what happened to an upload: its model, history entry and table row, or why it has none.",
    ),
    "doctor": CommandLeaf(
        "worm.cli.doctor:doctor",
        "Check on one screen whether everything works: stack, bucket, queues, dead letters, freshness, sweep, costs.",
    ),
    "cost": CommandLeaf(
        "worm.cli.cost:cost", "Estimate the monthly cost of a deployment from the requests that each change makes."
    ),
    "verify": CommandLeaf(
        "worm.cli.verify:verify",
        "Compare oplogs, manifests, indexes and heads with the documents. Reads only, unless you pass --record.",
    ),
    "repair": CommandLeaf(
        "worm.cli.verify:repair",
        "Record changes that have no oplog entry, then rebuild time marks, manifests, indexes, heads and claims.",
    ),
    "migrate": CommandLeaf(
        "worm.cli.migration:migrate",
        "Change the documents of a model by rules or a function, each with a save and history.",
    ),
    "prune": CommandLeaf(
        "worm.cli.verify:prune",
        "Remove expired trash, snapshots beyond maxAge and maxCount, and replaced table files, as `purge` does.",
    ),
    "relayout": CommandLeaf(
        "worm.cli.schema:relayout",
        "Move oplog, snapshots and trash to another layout, and verify them. Pause capture first (docs/relayout.md).",
    ),
    "pack": CommandLeaf(
        "worm.cli.log:pack_directory", "Pack a store into one archive file. The same store gives the same bytes."
    ),
    "unpack": CommandLeaf(
        "worm.cli.log:unpack_archive",
        "Unpack an archive into a new store. Everything is checked first: the directory gets all of it, or nothing.",
    ),
    "serve": CommandLeaf(
        "worm.cli.serve:serve",
        "Serve the HTTP API and the console on this machine, for anyone with "
        "the token that it prints. Stop it with Ctrl-C.",
    ),
    "dev": CommandLeaf(
        "worm.dev.commands:dev",
        "Run the deployed stack on this machine: bucket, queues, functions and schedules of template.yaml.",
    ),
    "demo": CommandLeaf(
        "worm.dev.commands:demo",
        "Show the whole path on this machine: upload documents, and look at the history and the tables that they get.",
    ),
    "table": CommandGroup(
        "Tables: list, inspect, query, aggregate, export and rebuild them; list the values of a field.",
        {
            "list": CommandLeaf("worm.cli.table:list_tables"),
            "inspect": CommandLeaf("worm.cli.table:inspect"),
            "query": CommandLeaf("worm.cli.rows:query"),
            "aggregate": CommandLeaf("worm.cli.rows:aggregate"),
            "distinct": CommandLeaf("worm.cli.rows:distinct"),
            "rebuild": CommandLeaf("worm.cli.table:rebuild"),
            "export": CommandLeaf("worm.cli.rows:export"),
        },
    ),
    "lake": CommandGroup(
        "Delta tables for other engines: publish a model's table, show its state, delete old files.",
        {
            "publish": CommandLeaf("worm.cli.lake:publish"),
            "status": CommandLeaf("worm.cli.lake:status"),
            "vacuum": CommandLeaf("worm.cli.lake:vacuum"),
            "ddl": CommandLeaf("worm.cli.lake:ddl"),
        },
    ),
    "dlq": CommandGroup(
        "Dead letters: list, show, redrive and drop messages that the workers could not process.",
        {
            "list": CommandLeaf("worm.cli.dlq:list_letters"),
            "show": CommandLeaf("worm.cli.dlq:show"),
            "redrive": CommandLeaf("worm.cli.dlq:redrive"),
            "drop": CommandLeaf("worm.cli.dlq:drop"),
        },
    ),
    "branch": CommandGroup(
        "Branches of the models in a space: create, compare, merge and delete them.",
        {
            "list": CommandLeaf("worm.cli.branch:list_branches"),
            "create": CommandLeaf("worm.cli.branch:create"),
            "diff": CommandLeaf("worm.cli.branch:diff"),
            "merge": CommandLeaf("worm.cli.branch:merge"),
            "delete": CommandLeaf("worm.cli.branch:delete"),
            "undelete": CommandLeaf("worm.cli.branch:undelete"),
        },
    ),
    "schema": CommandGroup(
        "Schemas and Python classes: convert one into the other. The JSON Schema for editors.",
        {
            "export": CommandLeaf("worm.cli.types:export_schema"),
            "types": CommandLeaf("worm.cli.types:write_types"),
            "json-schema": CommandLeaf("worm.cli.types:write_json_schema"),
        },
    ),
    "snapshot": CommandGroup(
        "Snapshots: take, list and restore full copies of a document.",
        {
            "take": CommandLeaf("worm.cli.history:take_snapshot"),
            "list": CommandLeaf("worm.cli.history:list_snapshots"),
            "restore": CommandLeaf("worm.cli.history:restore_snapshot"),
        },
    ),
    "trash": CommandGroup(
        "Trash: list, restore and purge deleted documents.",
        {
            "list": CommandLeaf("worm.cli.trash:list_trash"),
            "restore": CommandLeaf("worm.cli.trash:restore"),
            "purge": CommandLeaf("worm.cli.trash:purge"),
            "expire": CommandLeaf("worm.cli.trash:expire"),
        },
    ),
    "token": CommandGroup(
        "Read tokens of the HTTP API: create, list and revoke them.",
        {
            "create": CommandLeaf("worm.cli.token:create"),
            "list": CommandLeaf("worm.cli.token:list_all"),
            "revoke": CommandLeaf("worm.cli.token:revoke"),
        },
    ),
    "log": CommandGroup(
        "Logs: list, verify, repair, compact and read them.",
        {
            "list": CommandLeaf("worm.cli.log:list_logs"),
            **{
                name: CommandLeaf(f"worm.cli.log:{name}")
                for name in ("stat", "verify", "repair", "compact", "cat", "tail", "gc")
            },
        },
    ),
    "db": CommandGroup(
        "Page stores: pages with all their versions, branches and past states.",
        {
            "list": CommandLeaf("worm.cli.log:list_logs"),
            "create": CommandLeaf("worm.cli.db:create"),
            "configure": CommandLeaf("worm.cli.db:configure"),
            "stat": CommandLeaf("worm.cli.db:stat"),
            "get": CommandLeaf("worm.cli.db:get"),
            "put": CommandLeaf("worm.cli.db:put"),
            "apply": CommandLeaf("worm.cli.db:apply"),
            "compact": CommandLeaf("worm.cli.db:compact"),
            "gc": CommandLeaf("worm.cli.db:gc"),
            "maintain": CommandLeaf("worm.cli.db:maintain"),
            "verify": CommandLeaf("worm.cli.db:verify"),
            "repair": CommandLeaf("worm.cli.db:repair"),
            "tail": CommandLeaf("worm.cli.log:tail"),
            "pack": CommandLeaf("worm.cli.db:pack"),
            "unpack": CommandLeaf("worm.cli.db:unpack"),
            "delete": CommandLeaf("worm.cli.db:delete"),
            "undelete": CommandLeaf("worm.cli.db:undelete"),
            "restore": CommandLeaf("worm.cli.db:restore"),
            "branch": CommandGroup(
                "Branches: list, create, delete, reset, compare.",
                {
                    "list": CommandLeaf("worm.cli.db:list_branches"),
                    "create": CommandLeaf("worm.cli.db:create_branch"),
                    "delete": CommandLeaf("worm.cli.db:delete_branch"),
                    "undelete": CommandLeaf("worm.cli.db:undelete_branch"),
                    "reset": CommandLeaf("worm.cli.db:reset_branch"),
                    "diff": CommandLeaf("worm.cli.db:diff_branches"),
                },
            ),
        },
    ),
    "space": CommandGroup(
        "Spaces: log, read, write, branches, blobs, replicas and maintenance.",
        {
            "list": CommandLeaf("worm.cli.space:list_all"),
            "log": CommandLeaf("worm.cli.space:log"),
            "tail": CommandLeaf("worm.cli.space:tail"),
            "read": CommandLeaf("worm.cli.space:read"),
            "at": CommandLeaf("worm.cli.space:at"),
            "write": CommandLeaf("worm.cli.space:write"),
            "merge": CommandLeaf("worm.cli.space:merge"),
            "pull": CommandLeaf("worm.cli.space:pull"),
            "stat": CommandLeaf("worm.cli.space:stat"),
            "verify": CommandLeaf("worm.cli.space:verify"),
            "repair": CommandLeaf("worm.cli.space:repair"),
            "maintain": CommandLeaf("worm.cli.space:maintain"),
            "branch": CommandGroup(
                "Branches: list, create, delete, undelete and compare them.",
                {
                    "list": CommandLeaf("worm.cli.space:list_branches"),
                    "create": CommandLeaf("worm.cli.space:create_branch"),
                    "delete": CommandLeaf("worm.cli.space:delete_branch"),
                    "undelete": CommandLeaf("worm.cli.space:undelete_branch"),
                    "diff": CommandLeaf("worm.cli.space:diff_branches"),
                },
            ),
            "blob": CommandGroup(
                "Blobs: put, get and list them, and collect unused ones.",
                {
                    "put": CommandLeaf("worm.cli.space:put_blob"),
                    "get": CommandLeaf("worm.cli.space:get_blob"),
                    "list": CommandLeaf("worm.cli.space:list_blobs"),
                    "gc": CommandLeaf("worm.cli.space:collect_blobs"),
                },
            ),
        },
    ),
}
