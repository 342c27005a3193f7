"""What the commands on tables share: the options that choose rows, and reading them with the schema at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import typer

from worm.errors import Invalid
from worm.query.filter_text import (
    JsonFilter,
    both,
    columns_of,
    filter_fields,
    parse_filter,
    parse_select,
    parse_sort,
    parse_where,
)
from worm.schema import ModelDef
from worm.schema.definition import undeclared_fields

Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="CONDITIONS",
        help="status=active, 'amount>100', tags~vip, …; commas or repeating: all hold.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="JSON", help="A filter of the whole language; holds beside --filter."),
]
Sort = Annotated[
    list[str] | None, typer.Option("--sort", metavar="FIELD:ORDER", help="asc or desc; several with commas.")
]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="FIELDS", help="Only these fields, with commas; the id is always there."),
]
CsvRaw = Annotated[
    bool,
    typer.Option("--csv-raw", help="CSV without the apostrophe that keeps spreadsheets from running formulas."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows and fields of a model, in which order."""

    filter: JsonFilter = field(default_factory=dict)
    sort: list[dict[str, str]] = field(default_factory=list)
    select: list[str] | None = None
    columns: list[str] = field(default_factory=list)


def choose(
    definition: ModelDef,
    filters: list[str] | None,
    where: list[str] | None,
    *,
    sort: list[str] | None = None,
    select: list[str] | None = None,
    others: list[str] | None = None,
) -> Choice:
    """The options, checked against the schema. A field that it does not declare is noted on stderr and looked for in
    the documents; `others` are further fields that the command names."""
    one_where = once(where, "--where", 'all must hold: {"$and": [{…}, {…}]}, any: {"$or": [{…}, {…}]}')
    chosen = both(parse_filter(definition, filters or []), parse_where(one_where))
    orders = parse_sort(once(sort, "--sort", "several fields go with commas: --sort name:asc,score:desc"))
    selected = parse_select(once(select, "--select", "several fields go with commas: --select name,score"))
    named = [*filter_fields(chosen), *(order["field"] for order in orders), *(selected or []), *(others or [])]
    note_undeclared(definition, named)
    return Choice(chosen, orders, selected, columns_of(definition, selected))


def once(given: list[str] | None, option: str, hint: str) -> str | None:
    """The one value of an option; repeated it is refused, where otherwise the last one would silently win."""
    if given and len(given) > 1:
        raise Invalid(f"{option} is there {len(given)} times", hint=hint)
    return given[0] if given else None


def note_undeclared(definition: ModelDef, names: list[str]) -> None:
    for name in undeclared_fields(definition, names):
        typer.echo(f"worm: note: the schema of {definition.name} declares no field {name!r}", err=True)
