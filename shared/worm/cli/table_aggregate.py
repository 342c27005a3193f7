"""`worm table aggregate`: totals of a model's rows, whole or by group."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from worm.cli.arguments import ModelName
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import RowFormat, echo_json, echo_rows
from worm.cli.table_options import CsvRaw, Filters, Where, choose, once
from worm.codec.strict_json import JsonObject
from worm.query.filter_text import parse_names


def aggregate(
    context: typer.Context,
    model: ModelName,
    group_by: Annotated[
        list[str] | None,
        typer.Option("--group-by", metavar="FIELDS", help="A result for each value; several with commas."),
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="How many; the default where nothing is asked for.")] = False,
    sum: Annotated[list[str] | None, typer.Option("--sum", metavar="FIELD", help="Sum of a number.")] = None,
    avg: Annotated[list[str] | None, typer.Option("--avg", metavar="FIELD", help="Average of a number.")] = None,
    min: Annotated[list[str] | None, typer.Option("--min", metavar="FIELD", help="Least number, time or text.")] = None,
    max: Annotated[
        list[str] | None, typer.Option("--max", metavar="FIELD", help="Greatest number, time or text.")
    ] = None,
    filter: Filters = None,
    where: Where = None,
    format: Annotated[RowFormat, typer.Option("--format", help="How to show it.")] = RowFormat.table,
    csv_raw: CsvRaw = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Count rows, or add up, average and compare a field; whole or by group."""
    session = target(context, url, endpoint_url).connect()
    grouped = once(group_by, "--group-by", "several fields go with commas: --group-by status,currency")
    groups = parse_names(grouped, "--group-by")
    asked = {"sum": sum, "avg": avg, "min": min, "max": max}
    fields = {
        name: once(given, f"--{name}", "one field at a time: run it once for each") for name, given in asked.items()
    }
    named = [*groups, *(name for name in fields.values() if name is not None)]
    choice = choose(session.schema.model(model), filter, where, others=named)
    is_json = format is RowFormat.json
    found = session.model(model).aggregate(
        count=count or not any(fields.values()),
        sum=fields["sum"],
        avg=fields["avg"],
        min=fields["min"],
        max=fields["max"],
        # of one field, JSON has groups by name, as the SDK gives them; a table shows the values themselves
        group_by=(groups[0] if is_json and len(groups) == 1 else groups) if groups else None,
        filter=choice.filter,
    )
    if is_json:
        echo_json(found)
        return
    rows = aggregate_rows(found, groups, {name: field for name, field in fields.items() if field is not None})
    echo_rows(list(dict.fromkeys((*groups, *(name for row in rows for name in row)))), rows, format, raw_csv=csv_raw)


def aggregate_rows(found: JsonObject, groups: list[str], fields: dict[str, str]) -> list[JsonObject]:
    """A row for each group: its values, then `count`, `sum(amount)` and so on."""
    totals = cast("list[JsonObject]", found["groups"]) if groups else [found]
    rows: list[JsonObject] = []
    for one in totals:
        row = dict(cast(JsonObject, one.get("key", {})))
        for name, value in one.items():
            if name != "key":
                label = f"{name}({fields[name]})" if name in fields else name
                row[f"{label}(*)" if label in groups else label] = value
        rows.append(row)
    return rows
