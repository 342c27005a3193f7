"""The request of an export, checked against the schema before anything is read.

What is exported (the *kind*): the documents, their history as a slowly changing table, or the feed of their changes.
How the target is treated (the *mode*): without one it must not exist; `overwrite` replaces it; `merge` makes its rows
those of the documents or of the history; `append` adds the changes that it lacks.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote

from worm.errors import Invalid
from worm.formats import ModelDef
from worm.query import (
    filter_fields,
    request_text,
)
from worm.spark.cluster import JobSpec

ExportKind = Literal["documents", "history", "changes"]
ExportMode = Literal["append", "merge", "overwrite"]

FORMATS = ("parquet", "ndjson", "json", "csv", "delta", "iceberg")
TABLES = ("delta", "iceberg")
"""Formats whose tables commit rows and what we know about them together."""
MODES: tuple[ExportMode, ...] = get_args(ExportMode)
BROKEN = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
FROM = ("auto", "table", "documents")
_S3 = ("s3", "s3a", "s3n")
_OURS = ".worm."


@dataclass(frozen=True)
class ExportRequest:
    """One export. `broken`: how broken documents are treated; `target_mb`: about how large files should be."""

    spec: JobSpec
    out: str
    format: str = "parquet"
    filter: request_text.JsonFilter | None = None
    select: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] = ()
    kind: ExportKind = "documents"
    at: str | None = None
    csv_raw: bool = False
    mode: ExportMode | None = None
    files: int | None = None
    target_mb: int | None = None
    broken: str = BROKEN[0]
    read_from: str = FROM[0]
    full: bool = False

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
        changes: bool = False,
        at: str | None = None,
        csv_raw: bool = False,
        overwrite: bool = False,
        mode: str | None = None,
        files: int | None = None,
        target_file_mb: int | None = None,
        broken: str = BROKEN[0],
        read_from: str = FROM[0],
        full: bool = False,
    ) -> ExportRequest:
        """From command-line arguments. `Invalid` if the request cannot be fulfilled."""
        definition = spec.schema().model(spec.model)
        wanted = request_text.both(
            request_text.parse_filter(definition, filters or []), request_text.parse_where(where)
        )
        selected = request_text.parse_select(select)
        by, kind = request_text.parse_names(partition_by, "--partition-by"), _kind(history=history, changes=changes)
        columns = by if kind == "documents" else []  # others have columns that are no fields
        definition.undeclared_fields([*filter_fields(wanted), *(selected or []), *columns])
        made = cls(
            spec,
            out,
            format,
            wanted or None,
            None if selected is None else tuple(selected),
            tuple(by),
            kind,
            at,
            csv_raw,
            _mode(mode, overwrite=overwrite),
            files,
            target_file_mb,
            broken.upper(),
            read_from,
            full,
        )
        made.check()
        return made

    def check(self) -> None:
        """Raise `Invalid` for options that do not go together."""
        _check_files(self)
        _check_kind(self)
        _check_mode(self)
        if self.broken not in BROKEN:
            raise Invalid(f"--broken {self.broken}: there is no such choice", hint=f"use one of: {', '.join(BROKEN)}")
        if self.format != "iceberg":  # there it names a table
            refuse_overlap(self.spec.url, self.out)
            refuse_derived(self.out)


def _kind(*, history: bool, changes: bool) -> ExportKind:
    if history and changes:
        raise Invalid("--history and --changes cannot be combined", hint="export them to two places")
    return "history" if history else "changes" if changes else "documents"


def _mode(mode: str | None, *, overwrite: bool) -> ExportMode | None:
    if mode is not None and mode.upper() in BROKEN:
        hint = f"use --broken {mode.upper()}"
        raise Invalid(f"--mode {mode}: how to treat broken documents has an option of its own", hint=hint)
    if mode is not None and mode not in MODES:
        raise Invalid(f"unknown mode {mode!r}", hint=f"use one of: {', '.join(MODES)}")
    if overwrite and mode not in (None, "overwrite"):
        raise Invalid(f"--overwrite and --mode {mode} cannot be combined", hint="use one of them")
    return "overwrite" if overwrite else mode


def _check_files(request: ExportRequest) -> None:
    if request.format not in FORMATS:
        raise Invalid(f"unknown format {request.format!r}", hint=f"use one of: {', '.join(FORMATS)}")
    twice = [name for at, name in enumerate(request.partition_by) if name in request.partition_by[:at]]
    if twice:
        raise Invalid(f"--partition-by names {twice[0]} twice")
    if request.format == "json" and request.partition_by:
        raise Invalid("--format json writes one array per file and cannot be partitioned", hint="use --format ndjson")
    if request.files is not None and request.files < 1:
        raise Invalid("--files must be at least 1")
    if request.target_mb is not None and request.target_mb < 1:
        raise Invalid("--target-file-mb must be at least 1")
    if request.files is not None and request.target_mb is not None:
        raise Invalid("--files and --target-file-mb cannot be combined", hint="use one of them")


def _check_kind(request: ExportRequest) -> None:
    if request.at is not None and not request.at.strip():
        raise Invalid("--at is empty", hint="pass a time such as 2026-02-24T12:00:00Z, or leave --at out")
    if request.kind == "documents" and request.at is None:
        return
    if not request.definition.oplog:
        raise Invalid(f"{request.model} has no oplog", hint='set "oplog": true in the schema and push it')
    if request.kind == "changes" and request.at is not None:
        raise Invalid("--changes cannot be combined with --at", hint="use --history, which has the same entries")
    if request.read_from == "table":
        what = "earlier states" if request.kind == "documents" else request.kind
        raise Invalid(f"a table has no {what}", hint="leave --from out")


def _check_mode(request: ExportRequest) -> None:
    mode = request.mode
    if mode not in ("append", "merge"):
        if request.full:
            raise Invalid("--full is for --mode merge and append: otherwise all rows are written anyway")
        return
    if request.format not in TABLES:
        hint = "use --format delta or iceberg; files can only be written once, or replaced with --mode overwrite"
        raise Invalid(f"--format {request.format} knows no --mode {mode}", hint=hint)
    if request.at is not None:
        raise Invalid(f"--mode {mode} cannot be combined with --at", hint="use --mode overwrite")
    if mode == "append" and request.kind != "changes":
        what = "a document's row changes" if request.kind == "documents" else "valid_to of the last row changes"
        hint = "use --mode merge, or --changes for a feed to append to"
        raise Invalid(f"--mode append is for --changes: {what} with its document", hint=hint)
    if mode == "merge" and request.kind == "changes":
        raise Invalid("--changes has nothing to merge: a change stays as it is", hint="use --mode append")


def refuse_derived(out: str) -> None:
    """Raise `Invalid` for a place of files that workers derive from documents, such as a published Delta table."""
    ours = [part for part in _place(out) if part.startswith(_OURS)]
    if ours:
        hint = "choose another --out; `worm lake publish` and the workers keep the published table up to date"
        raise Invalid(f"--out {out} is inside {ours[0]}, which only workers write", hint=hint)


def refuse_overlap(url: str, out: str) -> None:
    """Raise `Invalid` if an export or a report would overlap with the documents: overwriting it would delete documents,
    and its files would be captured as documents."""
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
