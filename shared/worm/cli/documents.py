"""`worm get`, `worm put`, `worm rm`: single documents, and many of them."""

from __future__ import annotations

import re
from typing import Annotated, cast

import typer

from worm.cli.arguments import (
    MOMENT_HELP,
    DryRun,
    ModelName,
    SingleId,
    entity_id,
    note_undeclared,
    parse_moment,
    read_input,
)
from worm.cli.options import AuthorTargetOnBranch, SessionOnBranch
from worm.cli.output import (
    UNCHANGED,
    Outcome,
    RowFormat,
    Rows,
    attempted,
    echo_document,
    note_dry_run,
    note_unchanged,
    progress_bar,
    show_outcomes,
)
from worm.collections import Document
from worm.errors import Invalid, NotFound, WormError, show
from worm.formats import SINGLETON_ID, JsonValue, loads
from worm.query import request_text
from worm.sdk import DocumentDict, Model, Result, Worm

LINES = (".ndjson", ".jsonl")
"""Files with these names have one document per line."""


def get(
    session: SessionOnBranch,
    model: ModelName,
    id: SingleId = SINGLETON_ID,
    at: Annotated[str | None, typer.Option("--at", metavar="SEQ|TIME", help=f"A past state: {MOMENT_HELP}.")] = None,
    format: Rows = RowFormat.json,
) -> None:
    """Show a document, current or past."""
    chosen, documents = entity_id(session, model, id, "get"), session.model(model)
    if at is None:
        echo_document(documents.get(chosen), format)
        return
    moment = parse_moment(at)
    if isinstance(moment, int):
        found, when = documents.get_at(chosen, seq=moment), f"seq {at}"
    else:
        found, when = documents.get_at(chosen, time=moment), at
    if found is None:
        raise NotFound(f"{model} '{chosen}' does not exist at {when}", key=session.resolver.document_key(model, chosen))
    echo_document(found, format)


def put(
    target: AuthorTargetOnBranch,
    model: ModelName,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON; `-` is stdin.")] = "-",
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Id of the document.")] = None,
    many: Annotated[
        bool,
        typer.Option("--many", help="FILE has several documents: a JSON array, or one per line, as in *.ndjson."),
    ] = False,
    format: Annotated[
        RowFormat | None,
        typer.Option("--format", help="How to show the stored documents.  [default: json; with --many: table]"),
    ] = None,
) -> None:
    """Store a document: create it, or replace the existing one."""
    many = many or file.endswith(LINES)
    if many and id is not None:
        raise Invalid("--id names one document, --many stores several", hint="each document names its own id")
    body = read_input(file)
    session = target.connect()
    documents = session.model(model)
    if many:
        outcomes = _put_many(session, model, parse_documents(body))
        note_unchanged(outcomes)
        show_outcomes(outcomes, format or RowFormat.table)
        return
    document = _object(_loaded(body), "the document")
    chosen = _id_of(session, model, document, id)
    named = _named(session, model, document, chosen)
    stored = documents.upsert({**document, **named})
    echo_document(stored, format or RowFormat.json)


def rm(
    target: AuthorTargetOnBranch,
    model: ModelName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids; `_` for a singleton.")] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="CONDITIONS", help="Documents that match, as in `worm table query`."),
    ] = None,
    dry_run: DryRun = None,
    format: Rows = RowFormat.table,
) -> None:
    """Delete documents; with soft delete they go to trash. Several ids, or --filter, are a dry run by default."""
    if bool(ids) is bool(filter):
        raise Invalid("name the documents by id, or with --filter", hint=f"worm rm {model} ID")
    session = target.connect()
    documents = session.model(model)
    documents.check_removing()
    if filter:
        conditions = request_text.parse_filter(session.schema.model(model), filter)
        note_undeclared(session.schema.model(model), request_text.filter_fields(conditions))
        chosen = [str(row["id"]) for row in documents.find_all(filter=conditions, select=["id"])]
    else:
        chosen = list(dict.fromkeys(ids or []))
    is_bulk = bool(filter) or len(chosen) > 1
    if dry_run or (dry_run is None and is_bulk):
        outcomes = [_looked_at(documents, one) for one in chosen]
        note_dry_run(sum(outcome.error is None for outcome in outcomes), "delete")
        show_outcomes(outcomes, format)
    elif is_bulk:
        show_outcomes([_deleted(result) for result in documents.delete_many(chosen)], format)
    elif documents.delete(chosen[0]):
        show_outcomes([Outcome(chosen[0], "deleted")], format)
    else:
        raise NotFound(f"{model} '{chosen[0]}' does not exist", key=session.resolver.document_key(model, chosen[0]))


def parse_documents(body: bytes) -> list[Document | Invalid]:
    """A JSON array of documents, or one document per line. Empty lines are skipped. An item that is not a document
    becomes an error at its position; a broken array has no positions."""
    if body.lstrip().startswith(b"["):
        listed = cast("list[JsonValue]", _loaded(body))
        return [one if isinstance(one, dict) else _no_object(f"item {at}") for at, one in enumerate(listed, start=1)]
    lines = enumerate(body.split(b"\n"), start=1)
    return [_line(line.strip(), f"line {at}") for at, line in lines if line.strip()]


def _line(line: bytes, where: str) -> Document | Invalid:
    try:
        parsed = loads(line)
    except Invalid as mistake:
        # the parser sees one line: its own "line 1" would contradict ours
        return Invalid(re.sub(r"\bline 1,? (?=column)|:? ?\bline 1\b", "", mistake.message), path=where)
    return parsed if isinstance(parsed, dict) else _no_object(where)


def _no_object(what: str, hint: str | None = None) -> Invalid:
    return Invalid(f"{what} is not a JSON object", hint=hint)


def _object(value: JsonValue, what: str) -> Document:
    if not isinstance(value, dict):
        raise _no_object(what, "to store several documents, pass --many")
    return value


def _loaded(body: bytes) -> JsonValue:
    try:
        return loads(body)
    except Invalid as mistake:
        mistake.hint = mistake.hint or "the input must be JSON; for one document per line, pass --many"
        raise


def _id_of(session: Worm, model: str, document: Document, given: str | None) -> str | None:
    """The id of the document; None if it gets a new one."""
    definition = session.schema.model(model)
    if definition.is_singleton:
        if given not in (None, SINGLETON_ID):
            raise Invalid(f"{model} has a single document, but --id is {show(given)}", hint="leave out --id")
        return SINGLETON_ID
    own = None if document.get("id") is None else definition.id_text(document["id"])
    if given is not None and own is not None and own != given:
        raise Invalid(f"the document has id {show(own)}, but --id is {show(given)}", path="id")
    return own if given is None else given


def _named(session: Worm, model: str, document: Document, chosen: str | None) -> Document:
    """The id for a document without one: a number if the ids of the model are numbers."""
    definition = session.schema.model(model)
    if chosen is None or definition.is_singleton or document.get("id") is not None:
        return {}
    is_number = definition.id_type == "int" and chosen.isdecimal() and str(int(chosen)) == chosen
    return {"id": int(chosen) if is_number else chosen}


def _put_many(session: Worm, model: str, found: list[Document | Invalid]) -> list[Outcome]:
    """A failure does not stop the others."""
    outcomes: dict[int, Outcome] = {}
    wanted: dict[int, Document] = {}
    for at, one in enumerate(found):
        try:
            if isinstance(one, Invalid):
                raise one
            _id_of(session, model, one, None)
            wanted[at] = one
        except WormError as error:
            outcomes[at] = Outcome("", "failed", error)
    with progress_bar("documents") as bar:
        results = session.model(model).upsert_many(list(wanted.values()), progress=bar)
    for at, result in zip(wanted, results, strict=True):
        outcomes[at] = _stored(result)
    return [outcomes[at] for at in sorted(outcomes)]


def _stored(result: Result[DocumentDict]) -> Outcome:
    if result.document is None:
        return Outcome(result.id, "failed", result.error)
    done = "created" if result.created else UNCHANGED if result.unchanged else "replaced"
    return Outcome(result.id, done, result.error)


def _deleted(result: Result[DocumentDict]) -> Outcome:
    if result.document is not None:
        return Outcome(result.id, "deleted", result.error)
    return Outcome(result.id, "failed", result.error) if result.error else Outcome.missing(result.id, "no document")


def _looked_at(documents: Model, id: str) -> Outcome:
    return attempted(id, documents.exists, "there", "no document")
