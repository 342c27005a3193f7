"""The past by HTTP: entries of a document or of all, earlier states, differences, and going back."""

from __future__ import annotations

from typing import cast

from worm.api.call import JSON, Call, HttpAnswer
from worm.api.documents import document_answer
from worm.api.preconditions import tags_of, under_condition
from worm.api.routes import BRANCH, DOCUMENT, IDEMPOTENCY_KEY, IF_MATCH, REASON, WORM_REASON, Parameter, Route
from worm.collections import OplogEntry
from worm.errors import Corrupt, Invalid, show
from worm.formats import JsonObject, JsonValue
from worm.sdk import HistoryEntry

LIMIT, LIMIT_MAX = 100, 1000


def entry_shape(entry: OplogEntry) -> JsonObject:
    """An entry as it appears in answers. `absent` says which nulls of `diff` mean that the field is missing."""
    absent = {} if entry.absent is None else {"absent": cast(JsonValue, dict(entry.absent))}
    return {
        "seq": entry.seq,
        "op": entry.op,
        "ts": entry.ts,
        "actor": entry.actor,
        "reason": entry.reason,
        "diff": None if entry.diff is None else cast(JsonValue, dict(entry.diff)),
        **absent,
        "metadata": dict(entry.metadata),
        "branch": entry.metadata.get("branch"),
    }


def found_shape(entry: HistoryEntry) -> JsonObject:
    return {"model": entry.model, "id": entry.id, **entry_shape(entry)}


def damage_shape(damage: Corrupt) -> JsonObject:
    return {"key": damage.key, "detail": damage.message}


def list_entries(call: Call) -> JsonObject:
    """`GET …/{id}/history`: newest first."""
    limit = call.query.number("limit", LIMIT, least=1, most=LIMIT_MAX)
    before = call.query.number("before", 0, least=1) or None
    entries = call.model.get_history(call.parameters["id"], limit=limit, before_seq=before)
    last = entries[0].seq if entries else 1
    items: list[JsonValue] = [entry_shape(one) for one in reversed(entries)]
    return {"items": items, "cursor": str(last) if last > 1 else None}


def show_state(call: Call) -> JsonObject:
    """`GET …/{id}/at`"""
    seq, time = _seq(call, "seq"), call.query.one("time")
    if (seq is None) == (time is None):
        raise Invalid("pass either seq or time", path="seq")
    model, entity_id = call.model, call.parameters["id"]
    found = model.get_at(entity_id, seq=seq, time=time)
    if found is None:
        return {"id": entity_id, "seq": seq, "document": None}
    return {"id": entity_id, "seq": found.seq, "document": dict(found)}


def show_difference(call: Call) -> JsonObject:
    """`GET …/{id}/diff`"""
    seqs = {name: _seq(call, name) for name in ("from", "to")}
    for name, seq in seqs.items():
        if seq is None:
            raise Invalid("pass the seqs of two entries", path=name)
    found = call.model.diff_between(call.parameters["id"], cast(int, seqs["from"]), cast(int, seqs["to"]))
    changes: list[JsonValue] = [
        {
            "path": path,
            "from": before,
            "to": after,
            "hasFrom": path not in found.absent["before"],
            "hasTo": path not in found.absent["after"],
        }
        for path, (before, after) in found.diff.items()
    ]
    return {"changes": changes}


def roll_back(call: Call) -> HttpAnswer:
    """`POST …/{id}/rollback`"""
    model, entity_id, body = call.model, call.parameters["id"], call.json_object()
    unknown = sorted(body.keys() - {"toSeq", "time"})
    if unknown or len(body) != 1:
        raise Invalid("pass either toSeq or time", path=unknown[0] if unknown else "toSeq")
    if "time" in body:
        moment = body["time"]
        if not isinstance(moment, str):
            raise Invalid(f"must be a time, not {show(moment)}", path="time")
        state = model.get_at(entity_id, time=moment)
        if state is None or state.seq is None:
            raise Invalid(
                f"{model.name} '{entity_id}' was deleted at that time, so there is nothing to roll back to", path="time"
            )
        seq = state.seq
    else:
        seq = cast(int, body["toSeq"])  # the SDK checks it
    return document_answer(
        under_condition(
            tags_of(call, "If-Match"),
            lambda version: model.rollback(entity_id, to_seq=seq, if_version=version, **call.about),
        )
    )


def search(call: Call) -> JsonObject:
    """`GET /v1/history`"""
    query = call.query
    names = query.all("model")
    for name in names:
        call.check_model(name)
    if not names and call.identity.models is not None:
        models, is_branch = call.session.schema.models.items(), query.one("branch") not in (None, "main")
        seen = [(name, known) for name, known in models if known.oplog and call.identity.sees(name)]
        names = [name for name, known in seen if known.space is not None or not is_branch]
        if not names:
            return {"items": [], "cursor": None, "damages": []}
    found = call.on_branch().history(
        model=names or None,
        actor=query.one("actor"),
        since=query.one("since"),
        until=query.one("until"),
        op=query.one("op"),
        reason=query.one("reason"),
        limit=query.number("limit", LIMIT, least=1, most=LIMIT_MAX),
        cursor=query.one("cursor"),
    )
    return {
        "items": [found_shape(one) for one in found],
        "cursor": found.cursor,
        "damages": [damage_shape(one) for one in found.damages],
    }


def _seq(call: Call, name: str) -> int | None:
    return None if call.query.one(name) is None else call.query.number(name, 0, least=1)


TEXT: JsonObject = {"type": "string"}
NAME: JsonObject = {"type": ["string", "null"]}
SEQ: JsonObject = {"type": "integer", "minimum": 1}
ENTRY: dict[str, JsonValue] = {
    "seq": SEQ,
    "op": {"enum": list[JsonValue](sorted(OplogEntry.OPS))},
    "ts": TEXT,
    "actor": NAME,
    "reason": NAME,
    "diff": {
        "type": ["object", "null"],
        "description": "For each field, the values before and after. If null, use `at`.",
    },
    "metadata": {"type": "object"},
    "branch": NAME,
}
DAMAGES: JsonObject = {"type": "array", "items": {"type": "object"}, "description": "Entries that could not be read."}


def items_of(properties: JsonObject, **more: JsonValue) -> JsonObject:
    """The schema of a list."""
    listed: JsonObject = {"type": "array", "items": {"type": "object", "properties": properties}}
    return {"type": "object", "required": ["items"], "properties": {"items": listed, **more}}


LIMIT_PARAMETER = Parameter(
    "limit", "Maximum number of items.", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX}
)
CURSOR_PARAMETER = Parameter("cursor", "The `cursor` of the previous page.")
MODEL_PARAMETER = Parameter("model", "Only this model. May be repeated.", is_repeated=True)
_PATH = "/v1/models/{model}/documents/{id}"
_SEQ_PARAMETER = {
    name: Parameter(name, f"The seq of an entry: {name}.", SEQ, is_required=True) for name in ("from", "to")
}
ROUTES = (
    Route(
        "GET",
        f"{_PATH}/history",
        list_entries,
        "List the history of a document, newest entry first",
        parameters=(
            LIMIT_PARAMETER,
            Parameter("before", "Only entries before this seq; use the `cursor` of the previous page.", SEQ),
            BRANCH,
        ),
        answer=items_of(ENTRY, cursor=NAME),
        problems=(404,),
        tag="history",
    ),
    Route(
        "GET",
        f"{_PATH}/at",
        show_state,
        "Read a document as it was after an entry, or at a time; null if it was deleted then",
        parameters=(Parameter("seq", "After this entry.", SEQ), Parameter("time", "At this time, ISO 8601."), BRANCH),
        answer={
            "type": "object",
            "properties": {
                "id": TEXT,
                "seq": {"type": ["integer", "null"]},
                "document": {"type": ["object", "null"]},
            },
        },
        problems=(404,),
        tag="history",
    ),
    Route(
        "GET",
        f"{_PATH}/diff",
        show_difference,
        "Show the differences between two entries",
        parameters=(*_SEQ_PARAMETER.values(), BRANCH),
        answer={"type": "object", "properties": {"changes": {"type": "array", "items": {"type": "object"}}}},
        problems=(404,),
        tag="history",
    ),
    Route(
        "POST",
        f"{_PATH}/rollback",
        roll_back,
        "Save an earlier state again, as a new entry",
        scope="write",
        parameters=(BRANCH, REASON, WORM_REASON, IF_MATCH, IDEMPOTENCY_KEY),
        body={JSON: {"type": "object", "properties": {"toSeq": SEQ, "time": TEXT}, "additionalProperties": False}},
        answer=DOCUMENT,
        problems=(404, 409, 412, 422),
        tag="history",
        is_idempotent=True,
    ),
    Route(
        "GET",
        "/v1/history",
        search,
        "Search the entries of all documents, newest first",
        parameters=(
            MODEL_PARAMETER,
            Parameter("actor", "Only by this author."),
            Parameter("since", "Only since this time, ISO 8601."),
            Parameter("until", "Only until this time, ISO 8601."),
            Parameter("op", "Only entries of this kind.", {"enum": list[JsonValue](sorted(OplogEntry.OPS))}),
            Parameter("reason", "Only entries whose reason contains this text."),
            LIMIT_PARAMETER,
            CURSOR_PARAMETER,
            BRANCH,
        ),
        answer=items_of({"model": TEXT, "id": TEXT, **ENTRY}, cursor=NAME, damages=DAMAGES),
        models="filtered",
        tag="history",
    ),
)
