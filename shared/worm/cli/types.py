"""`worm schema export`, `worm schema types`, `worm schema json-schema`: a schema from Python classes, classes from a
schema, and the JSON Schema of schema.json for editors."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from pydantic import BaseModel

from worm.cli.arguments import checked_output, existing_file, opened_output
from worm.cli.options import Target
from worm.cli.output import echo
from worm.errors import Conflict, Invalid, NotFound, show
from worm.formats import Schema, load_schema
from worm.sdk import Document, schema_of, source_of

OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file.")]


def export_schema(
    classes: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE[:CLASS,…]",
            help="A module (crm.models) or file (crm/models.py) with the classes; without names, all documents in it.",
        ),
    ],
    output: OutputFile = None,
    force: Force = False,
) -> None:
    """Write the schema that Python classes define. This imports their module."""
    found = [one for text in classes for one in _classes(text)]
    schema = schema_of(list(dict.fromkeys(found)))
    _write(json.dumps(json.loads(schema.to_json()), indent=2, ensure_ascii=False) + "\n", output, force=force)


def write_types(
    target: Target,
    schema: Annotated[
        Path | None, typer.Argument(metavar="[SCHEMA]", help="The schema file; without one, the pushed schema.")
    ] = None,
    output: OutputFile = None,
    force: Force = False,
) -> None:
    """Write a Python module with a class for each model of a schema."""
    definition = target.connect().schema if schema is None else load_schema(existing_file(schema))
    _write(source_of(definition), output, force=force)


def write_json_schema(output: OutputFile = None, force: Force = False) -> None:
    """Write the JSON Schema of schema.json, for editors and other tools."""
    _write(Schema.JSON_SCHEMA.read_text(encoding="utf-8"), output, force=force)


def _write(text: str, output: Path | None, *, force: bool) -> None:
    if output is None:
        echo(text, nl=False)
        return
    if checked_output(output).exists() and not force:
        raise Conflict(f"{output} already exists", hint="choose another --output, or pass --force to overwrite it")
    with opened_output(output) as file:
        file.write(text.encode())
    echo(f"wrote {output}", err=True)


def _classes(text: str) -> list[type[BaseModel]]:
    place, _, names = text.partition(":")
    module = _module(place)
    if not names:
        found = [one for one in vars(module).values() if _is_document(one) and one.__module__ == module.__name__]
        if not found:
            raise NotFound(f"{place} defines no subclass of worm.Document", hint=f"name classes: {place}:Customer")
        return found
    return [_named(module, name.strip()) for name in names.split(",") if name.strip()]


def _named(module: ModuleType, name: str) -> type[BaseModel]:
    found = getattr(module, name, None)
    if found is None:
        known = ", ".join(name for name, one in vars(module).items() if _is_document(one)) or "none"
        raise NotFound(f"{module.__name__} has no class {show(name)}; its documents: {known}")
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise Invalid(f"{module.__name__}:{name} is not a pydantic class")
    return found


def _is_document(one: object) -> bool:
    """A subclass of `Document`, but not `Document[int]`, which pydantic creates along with its subclass."""
    return isinstance(one, type) and issubclass(one, Document) and one is not Document and one.__name__.isidentifier()


def _module(place: str) -> ModuleType:
    """Imported from the current directory or, for a file, from its own, so that it finds the modules next to it."""
    path = existing_file(Path(place)) if place.endswith(".py") else None
    name = place if path is None else path.stem
    sys.path.insert(0, str(Path.cwd() if path is None else path.resolve().parent))
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "modules are searched from the current directory; name a file with .py"
            raise NotFound(f"the module {name} does not exist", hint=hint) from error
        raise Invalid(f"{place} cannot be imported: {error}") from error
    except Exception as error:
        raise Invalid(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        del sys.path[0]
