"""The tree of commands: the name of each, and where it is. A command's module is imported when the command is called.

`worm --help` shows the help that this module repeats, so it imports no command; a test compares it with the docstrings.
`worm GROUP --help` imports the commands of the group. `main` is about the process (streams, errors, exit codes); to add
a command, change only this module and the command's own.

A module of its own because it must load nothing else of the command: `worm --version` and `--help` read it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from worm.cli.options import with_target


class CommandLeaf(NamedTuple):
    """A command: `module:function`."""

    where: str
    help: str | None = None

    def load(self, name: str) -> Any:
        module, _, function = self.where.partition(":")
        alone = typer.Typer(add_completion=False)
        alone.command(name)(with_target(getattr(import_module(module), function)))
        return typer.main.get_command(alone)


class CommandGroup(NamedTuple):
    """Commands below a common name."""

    help: str
    commands: Mapping[str, CommandLeaf | CommandGroup]

    def load(self, name: str) -> Any:
        return LazyGroup(name=name, help=self.help, tree=self.commands, no_args_is_help=True)


class LazyGroup(TyperGroup):
    """A group that knows its commands by the tree."""

    def __init__(self, *, tree: Mapping[str, CommandLeaf | CommandGroup], **settings: Any) -> None:
        super().__init__(**settings)
        self.tree = tree
        self.commands = cast(Any, LoadedCommand(tree))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.tree)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As much of a command as a list of commands needs."""
        found = self.tree.get(cmd_name)
        if isinstance(found, CommandLeaf) and found.help is not None:
            return TyperCommand(cmd_name, help=found.help)
        return None if found is None else found.load(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called, or completed by the shell."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else self.commands[name], rest


class LoadedCommand(Mapping[str, Any]):
    """The commands of a tree by their names; asking for one imports it."""

    def __init__(self, tree: Mapping[str, CommandLeaf | CommandGroup]) -> None:
        self.tree = tree

    def __getitem__(self, name: str) -> Any:
        return self.tree[name].load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)


COMMANDS: dict[str, CommandLeaf | CommandGroup] = {
    "push": CommandLeaf(
        "worm.cli.schema:push_schema",
        "Make a schema the bucket's: say what changes, upload it, and adopt the documents that are there.",
    ),
    "import": CommandLeaf(
        "worm.cli.schema:import_documents",
        "Infer a schema from existing JSON documents. The findings go to stderr, the schema to stdout.",
    ),
    "get": CommandLeaf("worm.cli.documents:get", "Show a document, as it is or as it was."),
    "put": CommandLeaf("worm.cli.documents:put", "Store a document: create it, or replace the one that is there."),
    "rm": CommandLeaf(
        "worm.cli.documents:rm",
        "Delete documents; with soft delete they go to trash. More than one id, or --filter, is a dry run by default.",
    ),
    "history": CommandLeaf(
        "worm.cli.history:history", "Show the oplog of a document, or search those of all documents."
    ),
    "diff": CommandLeaf(
        "worm.cli.history:diff", "Show the fields that differ between the documents after two entries."
    ),
    "rollback": CommandLeaf(
        "worm.cli.history:rollback",
        "Save the document of an earlier entry again. History is not rewritten: this appends an entry.",
    ),
    "why": CommandLeaf(
        "worm.cli.why:why", "Explain what became of an upload: which model, entry and row it has, or why it has none."
    ),
    "verify": CommandLeaf(
        "worm.cli.verify:verify",
        "Compare oplogs, manifests, indexes and heads with the documents. Reads only.",
    ),
    "repair": CommandLeaf(
        "worm.cli.verify:repair",
        "Write missing oplog entries, then rebuild time marks, manifests, indexes, heads and claims from the oplogs.",
    ),
    "migrate": CommandLeaf(
        "worm.cli.migration:migrate",
        "Change the documents of a model by rules or a function, each by a save with history.",
    ),
    "prune": CommandLeaf(
        "worm.cli.verify:prune",
        "Remove expired trash, snapshots beyond maxAge and maxCount, and replaced files of tables, as `purge` does.",
    ),
    "relayout": CommandLeaf(
        "worm.cli.schema:relayout",
        "Move oplog, snapshots and trash to another layout, verified. Pause capture first (docs/relayout.md).",
    ),
    "pack": CommandLeaf(
        "worm.cli.log:pack_directory", "Write a store into one archive file. The same store gives the same bytes."
    ),
    "unpack": CommandLeaf(
        "worm.cli.log:unpack_archive",
        "Make a store of an archive. Everything is checked first: the directory then has all of it, or nothing.",
    ),
    "dev": CommandLeaf(
        "worm.cli.dev:dev",
        "Run the deployed wiring on this machine: bucket, queues, functions and schedules of template.yaml.",
    ),
    "table": CommandGroup(
        "Tables: list, inspect, query, aggregate, export and rebuild them; values of a field.",
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
    "schema": CommandGroup(
        "Schemas and Python classes: make one of the other.",
        {
            "export": CommandLeaf("worm.cli.types:export_schema"),
            "types": CommandLeaf("worm.cli.types:write_types"),
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
    "log": CommandGroup(
        "Logs: verify, repair, compact and read them.",
        {name: CommandLeaf(f"worm.cli.log:{name}") for name in ("verify", "repair", "compact", "cat", "tail")},
    ),
    "db": CommandGroup(
        "Page stores: pages with all their versions, branches, the past.",
        {
            "list": CommandLeaf("worm.cli.db:list_databases"),
            "create": CommandLeaf("worm.cli.db:create"),
            "configure": CommandLeaf("worm.cli.db:configure"),
            "stat": CommandLeaf("worm.cli.db:stat"),
            "get": CommandLeaf("worm.cli.db:get"),
            "put": CommandLeaf("worm.cli.db:put"),
            "apply": CommandLeaf("worm.cli.db:apply"),
            "compact": CommandLeaf("worm.cli.db:compact"),
            "gc": CommandLeaf("worm.cli.db:gc"),
            "restore": CommandLeaf("worm.cli.db:restore"),
            "branch": CommandGroup(
                "Branches: list, create, delete, reset, compare.",
                {
                    "list": CommandLeaf("worm.cli.db:list_branches"),
                    "create": CommandLeaf("worm.cli.db:create_branch"),
                    "delete": CommandLeaf("worm.cli.db:delete_branch"),
                    "reset": CommandLeaf("worm.cli.db:reset_branch"),
                    "diff": CommandLeaf("worm.cli.db:diff_branches"),
                },
            ),
        },
    ),
    "space": CommandGroup(
        "Spaces: log, read, write, branches, blobs, and replicas.",
        {
            "log": CommandLeaf("worm.cli.space:log"),
            "read": CommandLeaf("worm.cli.space:read"),
            "at": CommandLeaf("worm.cli.space:at"),
            "write": CommandLeaf("worm.cli.space:write"),
            "merge": CommandLeaf("worm.cli.space:merge"),
            "pull": CommandLeaf("worm.cli.space:pull"),
            "branch": CommandGroup(
                "Branches: list, create, delete and compare them.",
                {
                    "list": CommandLeaf("worm.cli.space:list_branches"),
                    "create": CommandLeaf("worm.cli.space:create_branch"),
                    "delete": CommandLeaf("worm.cli.space:delete_branch"),
                    "diff": CommandLeaf("worm.cli.space:diff_branches"),
                },
            ),
            "blob": CommandGroup(
                "Blobs: put, get and list them, and collect those that nothing needs.",
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
