"""The picture and the figures of `worm db stat`."""

from __future__ import annotations

import typer

from worm.cli.output import echo_table, printable, size
from worm.codec.strict_json import JsonObject
from worm.pages.manifest import Branch
from worm.pages.stat import BranchStat, picture

COLUMNS = ("Layers", "Count", "Versions", "Size")


def show_stat(found: BranchStat, branch: Branch) -> None:
    origin = "" if found.parent is None else f", forked from {printable(found.parent)} at LSN {found.base:,}"
    typer.echo(f"branch {printable(found.name)}{origin}")
    typer.echo(f"LSN {found.head:,}, in layers up to {found.lsn:,}, readable from {found.horizon:,} on")
    rows = [[one.kind, f"{one.layers:,}", f"{one.versions:,}", size(one.bytes)] for one in found.kinds]
    rows.append(["log", f"{found.log_slots:,}", "-", size(found.log_bytes)])
    echo_table(COLUMNS, rows, right=COLUMNS[1:])
    typer.echo(f"a read asks up to {found.read_max} layers, {found.read_mean:.1f} on the average, before filters")
    if found.page_bytes:
        typer.echo(f"{found.write_amplification:.2f} bytes stored for each of {size(found.page_bytes)} of pages")
    for line in picture(branch):
        typer.echo(line)


def stat_shape(found: BranchStat) -> JsonObject:
    return {
        "branch": found.name,
        "parent": found.parent,
        "base": found.base,
        "head": found.head,
        "lsn": found.lsn,
        "horizon": found.horizon,
        "layers": [
            {"kind": one.kind, "layers": one.layers, "versions": one.versions, "bytes": one.bytes}
            for one in found.kinds
        ],
        "dropped": found.dropped,
        "logSlots": found.log_slots,
        "logBytes": found.log_bytes,
        "pageBytes": found.page_bytes,
        "readMax": found.read_max,
        "readMean": round(found.read_mean, 3),
        "writeAmplification": round(found.write_amplification, 3),
    }
