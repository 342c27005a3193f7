"""The tree of commands: the name of each, and where it is. A command's module is imported when the command is called.

`worm --help` shows the help that this module repeats, so it imports no command; a test compares it with the docstrings.
`worm GROUP --help` imports the commands of the group. `main` is about the process (streams, errors, exit codes); to add
a command, change only this module and the command's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from worm.cli.options import with_target


class Leaf(NamedTuple):
    """A command: `module:function`."""

    where: str
    help: str | None = None

    def load(self, name: str) -> Any:
        module, _, function = self.where.partition(":")
        alone = typer.Typer(add_completion=False)
        alone.command(name)(with_target(getattr(import_module(module), function)))
        return typer.main.get_command(alone)


class Group(NamedTuple):
    """Commands below a common name."""

    help: str
    commands: Mapping[str, Leaf | Group]

    def load(self, name: str) -> Any:
        return LazyGroup(name=name, help=self.help, tree=self.commands, no_args_is_help=True)


class LazyGroup(TyperGroup):
    """A group that knows its commands by the tree."""

    def __init__(self, *, tree: Mapping[str, Leaf | Group], **settings: Any) -> None:
        super().__init__(**settings)
        self.tree = tree
        self.commands = cast(Any, Loaded(tree))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.tree)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As much of a command as a list of commands needs."""
        found = self.tree.get(cmd_name)
        if isinstance(found, Leaf) and found.help is not None:
            return TyperCommand(cmd_name, help=found.help)
        return None if found is None else found.load(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is called, or completed by the shell."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found if name is None else self.commands[name], rest


class Loaded(Mapping[str, Any]):
    """The commands of a tree by their names; asking for one imports it."""

    def __init__(self, tree: Mapping[str, Leaf | Group]) -> None:
        self.tree = tree

    def __getitem__(self, name: str) -> Any:
        return self.tree[name].load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)


COMMANDS: dict[str, Leaf | Group] = {
    "push": Leaf(
        "worm.cli.schema:push_schema",
        "Upload a schema and write the sentinels that describe the bucket and its collections.",
    ),
    "import": Leaf(
        "worm.cli.schema:import_documents",
        "Infer a schema from existing JSON documents. What was found is told on stderr, the schema goes to stdout.",
    ),
    "get": Leaf("worm.cli.documents:get", "Show a document, as it is or as it was."),
    "put": Leaf("worm.cli.documents:put", "Store a document: create it, or replace the one that is there."),
    "rm": Leaf(
        "worm.cli.documents:rm",
        "Delete documents; with soft delete they go to trash. More than one id, or --filter, is a dry run by default.",
    ),
    "history": Leaf("worm.cli.history:history", "Show the oplog of a document, oldest entry first."),
    "diff": Leaf("worm.cli.history:diff", "Show the fields that differ between the documents after two entries."),
    "rollback": Leaf(
        "worm.cli.history:rollback",
        "Save the document of an earlier entry again. History is not rewritten: this appends an entry.",
    ),
    "verify": Leaf(
        "worm.cli.verify:verify",
        "Compare oplogs, manifests, indexes and heads with the documents. Reads only.",
    ),
    "repair": Leaf(
        "worm.cli.verify:repair",
        "Write missing oplog entries, then rebuild time marks, manifests, indexes, heads and claims from the oplogs.",
    ),
    "relayout": Leaf(
        "worm.cli.schema:relayout",
        "Move oplog, snapshots and trash to another layout, verified. Pause capture first (docs/relayout.md).",
    ),
    "pack": Leaf(
        "worm.cli.log:pack_directory", "Write a store into one archive file. The same store gives the same bytes."
    ),
    "unpack": Leaf(
        "worm.cli.log:unpack_archive",
        "Make a store of an archive. Everything is checked first: the directory then has all of it, or nothing.",
    ),
    "dev": Leaf(
        "worm.cli.dev:dev",
        "Run the deployed wiring on this machine: bucket, queues, functions and schedules of template.yaml.",
    ),
    "table": Group(
        "Tables: list, inspect, query, aggregate, export and rebuild them.",
        {
            "list": Leaf("worm.cli.table:list_tables"),
            "inspect": Leaf("worm.cli.table:inspect"),
            "query": Leaf("worm.cli.rows:query"),
            "aggregate": Leaf("worm.cli.rows:aggregate"),
            "rebuild": Leaf("worm.cli.table:rebuild"),
            "export": Leaf("worm.cli.rows:export"),
        },
    ),
    "snapshot": Group(
        "Snapshots: take, list and restore full copies of a document.",
        {
            "take": Leaf("worm.cli.history:take_snapshot"),
            "list": Leaf("worm.cli.history:list_snapshots"),
            "restore": Leaf("worm.cli.history:restore_snapshot"),
        },
    ),
    "trash": Group(
        "Trash: list, restore and purge deleted documents.",
        {
            "list": Leaf("worm.cli.trash:list_trash"),
            "restore": Leaf("worm.cli.trash:restore"),
            "purge": Leaf("worm.cli.trash:purge"),
            "expire": Leaf("worm.cli.trash:expire"),
        },
    ),
    "log": Group(
        "Logs: verify, repair, compact and read them.",
        {name: Leaf(f"worm.cli.log:{name}") for name in ("verify", "repair", "compact", "cat", "tail")},
    ),
    "db": Group(
        "Page stores: pages with all their versions, branches, the past.",
        {
            "list": Leaf("worm.cli.db:list_databases"),
            "create": Leaf("worm.cli.db:create"),
            "configure": Leaf("worm.cli.db:configure"),
            "stat": Leaf("worm.cli.db:stat"),
            "get": Leaf("worm.cli.db:get"),
            "put": Leaf("worm.cli.db:put"),
            "apply": Leaf("worm.cli.db:apply"),
            "compact": Leaf("worm.cli.db:compact"),
            "gc": Leaf("worm.cli.db:gc"),
            "restore": Leaf("worm.cli.db:restore"),
            "branch": Group(
                "Branches: list, create, delete, reset, compare.",
                {
                    "list": Leaf("worm.cli.db:list_branches"),
                    "create": Leaf("worm.cli.db:create_branch"),
                    "delete": Leaf("worm.cli.db:delete_branch"),
                    "reset": Leaf("worm.cli.db:reset_branch"),
                    "diff": Leaf("worm.cli.db:diff_branches"),
                },
            ),
        },
    ),
    "space": Group(
        "Spaces: log, read, write, branches, blobs, and replicas.",
        {
            "log": Leaf("worm.cli.space:log"),
            "read": Leaf("worm.cli.space:read"),
            "at": Leaf("worm.cli.space:at"),
            "write": Leaf("worm.cli.space:write"),
            "merge": Leaf("worm.cli.space:merge"),
            "pull": Leaf("worm.cli.space:pull"),
            "branch": Group(
                "Branches: list, create, delete and compare them.",
                {
                    "list": Leaf("worm.cli.space:list_branches"),
                    "create": Leaf("worm.cli.space:create_branch"),
                    "delete": Leaf("worm.cli.space:delete_branch"),
                    "diff": Leaf("worm.cli.space:diff_branches"),
                },
            ),
            "blob": Group(
                "Blobs: put, get and list them, and collect those that nothing needs.",
                {
                    "put": Leaf("worm.cli.space:put_blob"),
                    "get": Leaf("worm.cli.space:get_blob"),
                    "list": Leaf("worm.cli.space:list_blobs"),
                    "gc": Leaf("worm.cli.space:collect_blobs"),
                },
            ),
        },
    ),
}
