"""`worm migrate`: change many documents by rules or by a function."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from worm.cli.arguments import ModelName, existing_file, note_undeclared
from worm.cli.options import AuthorSession
from worm.cli.output import Report, ReportFormat, cell, count, echo, echo_json, printable, progress_bar
from worm.collections import Document
from worm.errors import Invalid, show
from worm.formats import JsonObject, JsonValue, loads
from worm.query import request_text
from worm.sdk import MigrationReport, migration_rules

EXIT_FAILED = 1
FAILURES_MAX = 20


def migrate(
    session: AuthorSession,
    model: ModelName,
    renames: Annotated[
        list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Rename a field. May be repeated.")
    ] = None,
    conversions: Annotated[
        list[str] | None,
        typer.Option(
            "--convert", metavar="FIELD=TYPE", help="Convert a field to string, number, integer, boolean or datetime."
        ),
    ] = None,
    defaults: Annotated[
        list[str] | None,
        typer.Option("--default", metavar="FIELD=JSON", help="Set a field that is missing or null."),
    ] = None,
    removals: Annotated[list[str] | None, typer.Option("--remove", metavar="FIELD", help="Remove a field.")] = None,
    rules: Annotated[
        Path | None, typer.Option("--rules", metavar="FILE", help="A JSON file with a list of rules, applied in order.")
    ] = None,
    function: Annotated[
        str | None,
        typer.Option("--function", metavar="MODULE:NAME", help="A Python function that takes and returns a document."),
    ] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="CONDITIONS", help="Only documents that match, as in `worm table query`."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from the beginning, not where an interrupted run stopped.")
    ] = False,
    format: Report = ReportFormat.table,
) -> None:
    """Change the documents of a model by rules or a function, each with a save and history.

    Run it again after an interruption: it continues. Exit code 1 if a document could not be changed.
    """
    conditions = request_text.parse_filter(session.schema.model(model), filter) if filter else None
    if conditions is not None:
        note_undeclared(session.schema.model(model), request_text.filter_fields(conditions))
    given = _rules(renames or [], conversions or [], defaults or [], removals or [], rules)
    change: migration_rules.Change | Sequence[migration_rules.Rule] = (
        given if function is None else _composed(given, function)
    )
    with progress_bar(f"Migrating {model}", is_hidden=format is ReportFormat.json) as step:
        report = session.migrate(model, change, filter=conditions, dry_run=dry_run, restart=restart, progress=step)
    if format is ReportFormat.json:
        echo_json(_shape(report, dry_run))
    else:
        _show(report, dry_run)
    if report.failed:
        raise typer.Exit(EXIT_FAILED)


def _rules(
    renames: list[str], conversions: list[str], defaults: list[str], removals: list[str], file: Path | None
) -> list[migration_rules.Rule]:
    """Renames first, then conversions, defaults and removals, then the rules of the file."""
    found: list[migration_rules.Rule] = [migration_rules.rename(*_pair(text, "--rename OLD=NEW")) for text in renames]
    found += [migration_rules.convert(*_pair(text, "--convert FIELD=TYPE")) for text in conversions]
    shapes: list[JsonValue] = [_default(text) for text in defaults]
    shapes += [{"remove": name} for name in removals]
    found += migration_rules.rules_of(shapes)
    if file is not None:
        try:
            found += migration_rules.rules_of(loads(existing_file(file).read_bytes()))
        except Invalid as mistake:
            raise Invalid(f"{file}: {mistake.message}", hint=mistake.hint) from mistake
    return found


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise Invalid(f"{show(text)} is not of the form {form}")
    return name, value


def _default(text: str) -> JsonObject:
    name, value = _pair(text, "--default FIELD=JSON")
    try:
        return {"default": {"field": name, "value": loads(value.encode())}}
    except Invalid as mistake:
        hint = f"quote text: --default '{name}=\"{value}\"'"
        raise Invalid(f"--default {show(text)}: the value is not JSON", hint=hint) from mistake


def _composed(rules: Sequence[migration_rules.Rule], where: str) -> migration_rules.Change:
    """The rules, then the function. A resumed run is identified by both, and by the function's code."""
    function = _function(where)

    def change(document: Document) -> Document:
        ruled = migration_rules.apply_rules(rules, document)
        returned = function(ruled)
        return ruled if returned is None else returned

    own = migration_rules.name_of(function)
    if own is not None:
        vars(change)["migration_name"] = f"{own} {[one.shape() for one in rules]}"
    return change


def _function(where: str) -> migration_rules.Change:
    module, _, name = where.partition(":")
    if not module or not name:
        raise Invalid(f"--function {show(where)} is not of the form MODULE:NAME")
    try:
        with _current_directory_first():
            found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        hint = "modules are searched in the current directory and on Python's path"
        raise Invalid(f"--function {show(where)}: {error}", hint=hint) from error
    if not callable(found):
        raise Invalid(f"--function {show(where)} is not a function")
    return cast(migration_rules.Change, found)


@contextmanager
def _current_directory_first() -> Iterator[None]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.pop(0)


def _show(report: MigrationReport, dry_run: bool) -> None:
    if report.resumed:
        echo("continuing where an interrupted run stopped")
    for before, after in report.examples:
        echo(f"{cell(before.get('id'))}: {printable(_told(before, after))}")
    verb = "would change" if dry_run else "changed"
    looked = f"looked at {count(report.looked_at, 'document')}"
    echo(f"{looked}: {report.changed:,} {verb}, {report.unchanged:,} already fit, {len(report.failed):,} failed")
    for entity_id, reason in sorted(report.failed.items())[:FAILURES_MAX]:
        echo(f"failed  {printable(entity_id)}: {printable(' '.join(reason.split()))}")
    if len(report.failed) > FAILURES_MAX:
        echo(f"and {count(len(report.failed) - FAILURES_MAX, 'more failure')}; --format json shows all")
    if dry_run:
        echo("nothing was changed")


def _told(before: Document, after: Document) -> str:
    """The fields that differ: `-age "7"`, `+age 7`."""
    gone = [f"-{name} {cell(value)}" for name, value in before.items() if name not in after or after[name] != value]
    came = [f"+{name} {cell(value)}" for name, value in after.items() if name not in before or before[name] != value]
    return ", ".join(gone + came)


def _shape(report: MigrationReport, dry_run: bool) -> JsonValue:
    return {
        "model": report.model,
        "dryRun": dry_run,
        "resumed": report.resumed,
        "lookedAt": report.looked_at,
        "changed": report.changed,
        "unchanged": report.unchanged,
        "failed": [{"id": one, "reason": reason} for one, reason in sorted(report.failed.items())],
        "examples": [{"before": before, "after": after} for before, after in report.examples],
    }
