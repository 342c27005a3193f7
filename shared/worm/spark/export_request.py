"""The request of an export, checked against the schema before anything is read."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from worm.errors import Invalid
from worm.query.filter_text import (
    JsonFilter,
    both,
    filter_fields,
    parse_filter,
    parse_names,
    parse_select,
    parse_where,
)
from worm.schema import ModelDef
from worm.schema.definition import undeclared_fields
from worm.spark.cluster import JobSpec

FORMATS = ("parquet", "ndjson", "json", "csv", "delta", "iceberg")
FROM = ("auto", "table", "documents")
_S3 = ("s3", "s3a", "s3n")


@dataclass(frozen=True)
class ExportRequest:
    """One export."""

    spec: JobSpec
    out: str
    format: str = "parquet"
    filter: JsonFilter | None = None
    select: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] = ()
    history: bool = False
    at: str | None = None
    csv_raw: bool = False
    overwrite: bool = False
    files: int | None = None
    mode: str = "PERMISSIVE"
    read_from: str = "auto"

    @property
    def model(self) -> str:
        return self.spec.model

    @property
    def definition(self) -> ModelDef:
        return self.spec.schema().model(self.model)

    @classmethod
    def of(
        cls,
        spec: JobSpec,
        out: str,
        *,
        format: str = "parquet",
        filters: Sequence[str] | None = None,
        where: str | None = None,
        select: str | None = None,
        partition_by: str | None = None,
        history: bool = False,
        at: str | None = None,
        csv_raw: bool = False,
        overwrite: bool = False,
        files: int | None = None,
        mode: str = "PERMISSIVE",
        read_from: str = "auto",
    ) -> ExportRequest:
        """From command-line arguments. `Invalid` if the request cannot be fulfilled."""
        definition = spec.schema().model(spec.model)
        wanted = both(parse_filter(definition, filters or []), parse_where(where))
        selected, by = parse_select(select), tuple(parse_names(partition_by, "--partition-by"))
        if format not in FORMATS:
            raise Invalid(f"unknown format {format!r}", hint=f"use one of: {', '.join(FORMATS)}")
        if format == "json" and by:
            raise Invalid(
                "--format json writes one array per file and cannot be partitioned", hint="use --format ndjson"
            )
        if files is not None and files < 1:
            raise Invalid("--files must be at least 1")
        if format != "iceberg":  # there it names a table
            refuse_overlap(spec.url, out)
        undeclared_fields(definition, [*filter_fields(wanted), *(selected or [])])
        return cls(
            spec,
            out,
            format,
            wanted or None,
            None if selected is None else tuple(selected),
            by,
            history,
            at,
            csv_raw,
            overwrite,
            files,
            mode,
            read_from,
        )


def refuse_overlap(url: str, out: str) -> None:
    """Raise `Invalid` if the export and the documents overlap: overwriting the export would delete documents."""
    source = _place(unquote(url) if url.startswith("file:") else url if "://" in url else str(Path(url).expanduser()))
    for written in (out, unquote(out)):  # our file URLs are decoded, Hadoop's are not
        if all(one == other for one, other in zip(source, _place(written), strict=False)):
            hint = "choose a place that neither contains --url nor is inside it"
            raise Invalid(f"--out {out} overlaps with the documents at {url}", hint=hint)


def _place(url: str) -> tuple[str, ...]:
    """The kind of file system and the path segments, as Hadoop understands them."""
    scheme, colon, rest = url.partition(":")
    if not colon or "/" in scheme:
        return ("file", *Path(url).resolve().parts)
    if scheme.lower() == "file":
        return ("file", *Path("/" + rest.removeprefix("//localhost").lstrip("/")).resolve().parts)
    names = posixpath.normpath(rest.lstrip("/")).split("/")
    return ("s3" if scheme.lower() in _S3 else scheme.lower(), *names)
